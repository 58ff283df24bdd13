"""A module that turns a batch into one tensor of numbers and embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 its usual name

from daskprep.columns.vocabulary import SpecialSymbols
from daskprep.dataset.loader.batches import make_expanders
from daskprep.dataset.loader.lengths import LENGTH, find_paddings
from daskprep.dataset.options import check_count
from daskprep.errors import ConfigError
from daskprep.features import Feature, Learned
from daskprep.features.base import Limits, all_outputs, keeps_missing, kind_with_article
from daskprep.features.checking import all_empty_arrays
from daskprep.nn.fitted import Source, check_names, column_of, fitted_state, match_ids, replace_rows
from daskprep.rows.base import MISSING

_MAX_DIMENSIONS = 64
_DEVIATION = 0.01  # of new embeddings; with 1, the default of torch, rare values stay large noise


class _Numbers(torch.nn.Module):
    """Numbers as floats, less `center` and divided by `scale`."""

    center: Tensor | None
    scale: Tensor

    def __init__(self, width: int, center: list[Any] | None = None, scale: list[Any] | None = None) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("center", None if center is None else torch.tensor(center), persistent=False)
        self.register_buffer("scale", None if scale is None else torch.tensor(scale), persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        rows = values.flatten(1) if values.ndim > 1 else values.unsqueeze(1)
        return rows if self.center is None else rows.sub(self.center).div(self.scale)


class _Window(torch.nn.Module):
    """Numbers of windows, 0 for missing ones, and a flag of each row or step that is missing."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.width = shape.numel() + shape[0]

    def forward(self, values: Tensor) -> Tensor:
        is_missing = values.isnan()
        flags = is_missing if values.ndim == 2 else is_missing[:, :, 0]  # a vector or a date is missing as a whole
        return torch.cat([values.masked_fill(is_missing, 0.0).flatten(1), flags.to(values.dtype)], 1)


class _Embedding(torch.nn.Embedding):
    """An embedding of one id per row; `unknown` starts as zeros."""

    def __init__(self, size: int, width: int, unknown: int | None) -> None:
        super().__init__(size, width)
        torch.nn.init.normal_(self.weight, std=_DEVIATION)
        if unknown is not None:
            torch.nn.init.zeros_(self.weight.data[unknown])

    @property
    def width(self) -> int:
        return self.embedding_dim

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids.long())


class _TokenMean(_Embedding):
    """The mean embedding of the tokens of each row, as ids, flags or counts; zeros without tokens."""

    def __init__(self, size: int, width: int, specials: SpecialSymbols, *, left: bool) -> None:
        super().__init__(size, width, specials.unknown_id)
        self.padding, self.left = specials.padding_id, left

    def forward(self, rows: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return mean embeddings of tokens, without padding."""
        if rows.dtype != torch.int64:
            counts = rows.to(self.weight.dtype)
            return counts @ self.weight / counts.sum(1, keepdim=True).clamp(min=1)
        if lengths is not None:
            positions = torch.arange(rows.shape[1], device=rows.device)
            positions = rows.shape[1] - 1 - positions if self.left else positions
            inside = positions < lengths.unsqueeze(1)
        else:
            inside = torch.ones_like(rows, dtype=torch.bool) if self.padding is None else rows != self.padding
        shares = inside.to(self.weight.dtype)
        shares = shares / shares.sum(1, keepdim=True).clamp(min=1)
        return F.embedding_bag(rows, self.weight, mode="sum", per_sample_weights=shares)


class _Custom(torch.nn.Module):
    """A module of the user, whose result is flattened."""

    def __init__(self, name: str, module: torch.nn.Module, example: Tensor) -> None:
        super().__init__()
        self.module = module
        was_training, device = module.training, next((tensor.device for tensor in module.parameters()), None)
        with torch.no_grad():
            result = module.eval()(example.new_zeros((1, *example.shape[1:]), device=device))
        module.train(was_training)
        if not isinstance(result, Tensor) or len(result) != 1:
            raise ConfigError(f'modules["{name}"] must return a tensor with one row for each row of its batch')
        self.width = result.numel()

    def forward(self, values: Tensor) -> Tensor:
        result: Tensor = self.module(values)
        return result.flatten(1)


class Inputs(torch.nn.Module):
    """Turn a batch into one tensor: numbers next to embeddings of ids.

    - Numbers, vectors, piecewise-linear encodings, binaries, missing indicators and dates with chosen parts are passed
      through. Target encodings of a number are standardized.
    - The nine parts of a date and the fields of H3 are scaled to 0 to 1 by their limits, and years by the fitted state.
    - Ids of categories and of bins become embeddings.
    - Sets, bags, sequences and texts become the mean embedding of their tokens, without padding. Padding is the rest of
      a row after ``<name>_length`` of a loader with ``trim=True``, or else the padding id.
    - Windows of time series are their numbers, 0 in place of NaN, and a flag for each missing row or step.
    - Images, audio and other time series need a module in `modules`.

    An embedding of n ids has ``min(64, round(1.6 * n ** 0.56))`` numbers: 3 for 3 ids, 10 for 25, 21 for 100, and 64
    from 726 on. This is the rule of fastai with a lower limit. Embeddings start small, with a standard deviation of
    0.01. The embedding of unknown values starts as zeros.

    Parameters
    ----------
    source : Preprocessor or Dataset
        A fitted Preprocessor, or a dataset, whose features and fitted state have the sizes.
    columns : iterable of str or None
        Outputs to use. None: all outputs of features that are neither targets nor weights.
    targets : str, iterable of str or None
        Features that are no inputs. None: the targets of the Preprocessor.
    embedding_dim : int, mapping of str to int, or None
        Size of all embeddings, or sizes by output; the rule determines sizes that are not set.
    modules : mapping of str to torch.nn.Module, or None
        Modules by output, which take its batch and return a row for each of its rows.

    Attributes
    ----------
    width : int
        Numbers in a row of the result.
    names : tuple of str
        Outputs in the order of the result.

    Examples
    --------
    >>> import pandas as pd
    >>> import torch
    >>> import daskprep as dp
    >>> from daskprep.nn import Inputs
    >>> frame = pd.DataFrame({"size": [1.0, 2.0, 3.0], "city": ["Rome", "Oslo", "Rome"]})
    >>> prep = dp.Preprocessor({"size": "number", "city": "category"}).fit(frame)
    >>> inputs = Inputs(prep)
    >>> inputs.width  # the size, and 3 numbers for the city
    4
    >>> inputs({"size": torch.tensor([0.5, -1.0]), "city": torch.tensor([1, 2])}).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        source: Source,
        *,
        columns: Iterable[str] | None = None,
        targets: Iterable[str] | str | None = None,
        embedding_dim: int | Mapping[str, int] | None = None,
        modules: Mapping[str, torch.nn.Module] | None = None,
    ) -> None:
        super().__init__()
        features, learned, excluded = fitted_state(source, targets)
        owners = {
            name + suffix: (name, suffix)
            for name, feature in features.items()
            if name not in excluded and feature._is_input
            for suffix in all_outputs(feature)
        }
        self.names = tuple(owners) if columns is None else tuple(dict.fromkeys(columns))
        check_names("columns", self.names, owners)
        check_names("modules", modules or (), self.names)
        if not self.names:
            raise ConfigError(
                "all features are targets or weights, so no inputs are left: pass targets= or add features"
            )
        sizes = embedding_dim if isinstance(embedding_dim, Mapping) else dict.fromkeys(owners, embedding_dim)
        check_names("embedding_dim", sizes, owners)
        for size in sizes.values():
            check_count("embedding_dim", size, 1)
        self._learned: dict[str, Learned] = {}
        paddings = find_paddings(features, learned)
        expand = make_expanders(features, learned, self.names)
        # By position: names of columns may contain dots, or be names of methods, which ModuleDict refuses.
        self.encoders = torch.nn.ModuleList()
        for name in self.names:
            owner, suffix = owners[name]
            feature, state = features[owner], learned[owner]
            array = all_empty_arrays(feature, state)[suffix]
            example = expand.get(name, Tensor.clone)(torch.from_numpy(array.copy()))
            self._learned[name] = state = Learned() if suffix == MISSING else state.of_output(suffix)
            if modules and name in modules:
                self.encoders.append(_Custom(name, modules[name], example))
            elif suffix == MISSING:
                self.encoders.append(_Numbers(1))
            else:
                left = name in paddings and paddings[name].left
                self.encoders.append(_make_encoder(name, feature, state, example, sizes.get(name), left=left))
        # A column of the data may have the name that a loader uses for lengths.
        self._lengths = tuple(
            "" if name + LENGTH in owners or name not in paddings else name + LENGTH for name in self.names
        )
        self.width: int = sum(encoder.width for encoder in self.encoders)  # type: ignore[misc]
        self.register_buffer("_like", torch.zeros(()), persistent=False)  # has the dtype of the module

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the inputs of a model, of shape (rows, `width`), in the order of `names`.

        ColumnError for a missing tensor, ConfigError if the batch is no mapping.
        """
        if not isinstance(batch, Mapping):
            raise ConfigError(
                f"a batch is a mapping of tensors by output, not a {type(batch).__name__}: pass the inputs alone"
            )
        parts = []
        for name, length, encoder in zip(self.names, self._lengths, self.encoders, strict=True):
            column = column_of(batch, name)
            parts.append(encoder(column, batch[length]) if length in batch else encoder(column))
        return torch.cat(parts, 1).to(self._like.dtype)  # type: ignore[arg-type]

    def extend(self, source: Source, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Adopt the vocabularies of a Preprocessor that was fitted again: tokens keep their embeddings.

        Parameters
        ----------
        source : Preprocessor or Dataset
            The new fitted state, with the same outputs. Its new tokens get new embeddings; those it lacks are removed.
        optimizer : torch.optim.Optimizer or None
            Optimizer of the embeddings, whose state is extended with zeros. Without it, create a new optimizer.

        Raises
        ------
        ConfigError
            An output differs in more than its vocabulary: create a new `Inputs`.
        """
        encoders = dict(zip(self.names, self.encoders, strict=True))
        embeddings = {name: encoder for name, encoder in encoders.items() if isinstance(encoder, _Embedding)}
        sizes = {name: embedding.embedding_dim for name, embedding in embeddings.items()}
        modules = {name: encoder.module for name, encoder in encoders.items() if isinstance(encoder, _Custom)}
        new = Inputs(source, columns=self.names, targets=(), embedding_dim=sizes, modules=modules)
        new_encoders = dict(zip(self.names, new.encoders, strict=True))
        for name, encoder in encoders.items():
            if (type(encoder), encoder.width) != (type(new_encoders[name]), new_encoders[name].width):
                raise ConfigError(f'"{name}" has another type or width than before: create new Inputs')
        moves = {name: match_ids(name, self._learned[name], new._learned[name]) for name in embeddings}
        for name, embedding in embeddings.items():
            replace_rows(embedding.weight, new_encoders[name].weight, *moves[name], optimizer)  # type: ignore[arg-type]
            embedding.num_embeddings = len(embedding.weight)
        self._learned = new._learned


def _make_encoder(
    name: str, feature: Feature, learned: Any, example: Tensor, size: int | None, *, left: bool
) -> torch.nn.Module:
    """Return the module for an output of these batches; ConfigError if none fits."""
    shape, is_float = example.shape[1:], example.is_floating_point() or example.dtype == torch.bool
    if getattr(feature, "is_windowed", False):
        return _Window(shape) if getattr(feature, "padding_value", None) is None else _Numbers(shape.numel())
    is_series, meaning = feature.kind in ("timeseries", "boxes", "keypoints"), feature.semantic_type
    vocabulary, ids = getattr(learned, "vocabulary", None), getattr(learned, "num_embeddings", 0)
    dimensions = size or min(_MAX_DIMENSIONS, round(1.6 * ids**0.56))
    if is_float and keeps_missing(feature):
        raise ConfigError(
            f'"{name}" keeps missing values as NaN, which networks cannot use: use missing_value_strategy='
            '"fill_with_mean" with missing_indicator=True'
        )
    if vocabulary is not None and meaning in ("sets", "bags", "tokens"):
        return _TokenMean(ids, dimensions, vocabulary.specials, left=left)
    if hasattr(learned, "encodings") and not learned.classes:
        encodings = learned.encodings[0]
        return _Numbers(shape.numel(), encodings.mean(0).tolist(), _divisors(encodings.std(0)))
    if is_float and not is_series and meaning not in ("images", "sounds"):
        return _Numbers(shape.numel())
    if example.ndim == 1 and ids:
        return _Embedding(ids, dimensions, None if vocabulary is None else vocabulary.specials.unknown_id)
    if meaning in ("dates", "places"):
        low, high = (np.broadcast_to(bound, shape).flatten() for bound in Limits(*feature.limits(learned)[""])[:2])
        if meaning == "dates" and learned.first and learned.last:
            low[0], high[0] = int(learned.first[:4]), int(learned.last[:4])
        return _Numbers(shape.numel(), low.tolist(), _divisors(high - low))
    module = "Flatten()" if is_series else "Sequential(...)"
    raise ConfigError(
        f'"{name}" is {kind_with_article(feature)}, for which Inputs has no default: pass a module that returns a row '
        f'for each of its rows, as in modules={{"{name}": torch.nn.{module}}}, or select other outputs with columns='
    )


def _divisors(scale: np.ndarray) -> list[Any]:
    """Return the numbers to divide by, with 1 in place of 0."""
    return np.where(scale > 0, scale, scale.dtype.type(1)).tolist()
