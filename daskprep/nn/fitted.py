"""What modules read of a Preprocessor, a dataset and a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from torch import Tensor

from daskprep.dataset import Dataset
from daskprep.errors import ColumnError, ConfigError, did_you_mean
from daskprep.features import Feature, Learned
from daskprep.parametrized import check_is_fitted
from daskprep.preprocessor import Preprocessor

Source: TypeAlias = Preprocessor | Dataset
"""A fitted Preprocessor, or a dataset."""
Fitted: TypeAlias = tuple[dict[str, Feature], dict[str, Learned], tuple[str, ...]]


def fitted_state(source: Source, targets: Iterable[str] | str | None) -> Fitted:
    """Return features, fitted states and the names of targets; ConfigError for another object or an unknown target."""
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
    """Raise ConfigError, which starts with `option`, for a name that is not known."""
    known = list(known)
    for name in names:
        if name not in known:
            raise ConfigError(
                f'{option}: there is no "{name}".{did_you_mean(name, known)} Those are: {", ".join(known)}'
            )


def column_of(batch: Mapping[str, Tensor], name: str) -> Tensor:
    """Return a tensor of a batch; raise ColumnError if it is missing."""
    if name not in batch:
        raise ColumnError(
            f'the batch has no "{name}", only {", ".join(batch)}: select it with columns= of the loader, or pass the '
            "columns of the batches as columns="
        )
    return batch[name]
