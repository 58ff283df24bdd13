"""What modules read of a Preprocessor, a dataset and a batch, and how their parameters follow a new fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from daskprep.columns.parametrized import check_is_fitted
from daskprep.dataset import Dataset
from daskprep.errors import ColumnError, ConfigError, did_you_mean
from daskprep.features import Feature, Learned
from daskprep.preprocessor import Preprocessor

Source: TypeAlias = Preprocessor | Dataset
"""A fitted Preprocessor, or a dataset."""
Fitted: TypeAlias = tuple[dict[str, Feature], dict[str, Learned], tuple[str, ...]]


def fitted_state(source: Source, targets: Iterable[str] | str | None) -> Fitted:
    """Return features, states and names of targets; ConfigError for other sources."""
    if isinstance(source, Dataset):
        features, learned, names = source.features, source.learned, source.targets
    elif isinstance(source, Preprocessor):
        check_is_fitted(source)
        features, learned, names = source.features_, source.learned_, source.targets_
    else:
        raise ConfigError(f"expected a fitted Preprocessor or a dataset, not a {type(source).__name__}")
    if targets is not None:
        names = (targets,) if isinstance(targets, str) else tuple(dict.fromkeys(targets))
    check_names("targets", names, features)
    return features, learned, names


def check_names(option: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise ConfigError for a name that is not known."""
    known = list(known)
    for name in names:
        if name not in known:
            raise ConfigError(
                f'{option}: there is no "{name}".{did_you_mean(name, known)} Those are: {", ".join(known)}'
            )


def column_of(batch: Mapping[str, Tensor], name: str) -> Tensor:
    """Return a tensor of a batch; ColumnError if it is missing."""
    if name not in batch:
        raise ColumnError(f'the batch has no "{name}", only {", ".join(batch)}: select it, or pass columns=')
    return batch[name]


def match_ids(name: str, old: Learned, new: Learned) -> tuple[Tensor, Tensor]:
    """Return the old and the new ids of the tokens of both states; ConfigError for other bins."""
    if any(getattr(old, one, None) != getattr(new, one, None) for one in ("edges", "buckets")):
        raise ConfigError(
            f'"{name}" has other bins or buckets than before: fit with the old edges, or create a new module'
        )
    vocabulary = getattr(old, "vocabulary", None)
    if vocabulary is None:
        ids = torch.arange(old.num_embeddings)  # type: ignore[attr-defined]
        return ids, ids
    new_ids = torch.from_numpy(new.vocabulary.find_ids(vocabulary.tokens).astype(np.int64))  # type: ignore[attr-defined]
    kept = torch.nonzero(new_ids >= 0)[:, 0]
    buckets = torch.arange(getattr(old, "buckets", 0))
    kept_ids = torch.cat([new_ids[kept], len(new.vocabulary) + buckets])  # type: ignore[attr-defined]
    return torch.cat([kept, len(vocabulary) + buckets]), kept_ids


def replace_rows(
    parameter: torch.nn.Parameter, values: Tensor, old: Tensor, new: Tensor, optimizer: torch.optim.Optimizer | None
) -> None:
    """Set a parameter to `values`, with its rows `old` as rows `new`."""

    def copy_rows(source: Tensor, target: Tensor) -> Tensor:
        target[new.to(target.device)] = source[old.to(source.device)]
        return target

    shape = parameter.shape
    # In place, so that an optimizer trains the same parameter, or fails if its state has the former shape.
    parameter.data = copy_rows(parameter.data, values.detach().to(parameter))
    parameter.grad = None
    state = {} if optimizer is None else optimizer.state[parameter]
    for key, value in state.items():
        if isinstance(value, Tensor) and value.shape == shape:
            state[key] = copy_rows(value, value.new_zeros(parameter.shape))
