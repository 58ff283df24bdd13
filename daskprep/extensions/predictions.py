"""Predictions for the targets of a Preprocessor: from the outputs of a model, or by running a model on a frame."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.deferred.decoders import check_failures
from daskprep.columns.parametrized import check_is_fitted
from daskprep.errors import ConfigError, warn
from daskprep.features.arrays import MIN_CELLS
from daskprep.features.checking import memoize
from daskprep.features.media import MediaFeature
from daskprep.passes.encoding import find_encoding_contexts
from daskprep.passes.engine import PartitionReader, Pass
from daskprep.passes.fitting import bind_features
from daskprep.passes.losses import LeftOut, count_losses, tabulate_losses, warn_about_losses
from daskprep.passes.reviewing import CountedCells
from daskprep.passes.table import (
    LossMasks,
    Parsed,
    PartitionContext,
    completed_columns,
    encoded_outputs,
    parse_columns,
    source_columns,
)
from daskprep.rows.predictions import (
    OutputDecoder,
    PredictionColumn,
    PredictionOptions,
    concat_columns,
    create_decoder,
    decode_batch,
    decode_batches,
)
from daskprep.sources import PandasSource, Rows, as_source, partitions, table_to_pandas, wrap_single_row
from daskprep.sources.partitions import prepend_columns
from daskprep.storage.manifest import LossCounts, add_losses

if TYPE_CHECKING:
    import torch

    from daskprep.features import Feature, Learned
    from daskprep.preprocessor import Preprocessor

Method = TypeVar("Method", bound=Callable[..., Any])
Model = Callable[[dict[str, Any]], Any]

# Partitions are encoded on several threads, but a model runs on one thread at a time, as its mode is shared. Each model
# has a separate lock: a model that itself calls `predict` with another model would deadlock on a common lock.
_MODEL_LOCKS: weakref.WeakKeyDictionary[Any, threading.RLock] = weakref.WeakKeyDictionary()
_MODEL_LOCKS_GUARD = threading.Lock()  # held while `_MODEL_LOCKS` is accessed
# Types with missing values, because the label <UNK> becomes missing.
_PANDAS_TYPES: Any = {"integer": "Int64", "boolean": "boolean", "float": "float64", "float32": "float64"}
_FALLBACK_LOCK = threading.RLock()  # for models that cannot be weakly referenced


def decode_outputs(prep: Preprocessor, outputs: Any, options: PredictionOptions) -> pd.DataFrame:
    """Return the predictions for one batch of a model's outputs, or an iterable of them, as a frame."""
    check_is_fitted(prep)
    decoders = _make_decoders(prep)
    return _to_frame(decode_batches(decoders, outputs, options), decoders)


def predict(
    prep: Preprocessor,
    frame: Rows,
    model: Model,
    options: PredictionOptions,
    batch_size: int,
    ids: str | Sequence[str] | None,
    device: Any,
) -> Any:
    """Return the predictions of a model for the rows of a frame, as `Preprocessor.predict` does."""
    check_is_fitted(prep)
    decoders = _make_decoders(prep)
    options.check(decoders)
    _check_predict_arguments(prep._inputs, model, batch_size)
    if not isinstance(ids, str | Iterable | None):
        raise ConfigError(f'predict: ids={ids!r} is not the name of a column: pass ids="id", or a list of names')
    names = [ids] if isinstance(ids, str) else list(dict.fromkeys(ids or ()))
    source = as_source(wrap_single_row(frame), columns=source_columns(prep._inputs, names), scratch=prep.scratch)
    features, reader = bind_features(prep._inputs, source, names), PartitionReader(source)
    learned = {name: prep.learned_[name] for name in features}
    is_frame = source.is_dask or isinstance(source, PandasSource)
    id_columns = () if is_frame else tuple(names)
    run = ModelRun(features, learned, model, _device(model, device), decoders, options, batch_size, id_columns)
    if not (source.in_memory and any(source.row_counts or ())):
        run = dataclasses.replace(run, empty_result=run.predict_missing_row(source))
    contexts = find_encoding_contexts(features, learned, reader)
    counted = CountedCells(features, learned, source)
    if source.in_memory:
        run = dataclasses.replace(run, losses=[])
    work = reader.work(Pass("predict", counted.wrap(run), features, id_columns), contexts)
    if not source.in_memory:
        assert run.empty_result is not None
        return partitions.build_frame(work, meta=run.empty_result, leading_columns=names if is_frame else ())
    predictions = pd.concat(partitions.map_partitions(work, "predict"), ignore_index=True)
    counted.warn("predict")
    if is_frame:
        predictions = prepend_columns(source.frame, names, predictions)
    assert run.losses is not None
    predictions.attrs["losses"] = _report_losses(features, learned, run.losses, len(predictions))
    return predictions


def _make_decoders(prep: Preprocessor) -> dict[str, OutputDecoder]:
    return {name: _create_decoder(prep.features_[name], prep.learned_[name], name) for name in prep.targets_}


@memoize
def _create_decoder(feature: Feature, learned: Learned, name: str) -> OutputDecoder:
    return create_decoder(name, {"type": feature.kind, "params": vars(feature), "learned": learned.to_dict()})


@dataclass(frozen=True)
class ModelRun:
    """The task of a partition in `predict`: encode its rows and run a model on them; the function of a pass."""

    features: Mapping[str, Feature]  # of the inputs
    learned: Mapping[str, Any]
    model: Model
    device: torch.device  # of the batches
    decoders: Mapping[str, OutputDecoder]  # by target
    options: PredictionOptions
    batch_size: int
    ids: tuple[str, ...] = ()  # columns of the partition to copy to the front
    empty_result: pd.DataFrame | None = None  # predictions for a partition without rows
    losses: list[LossCounts] | None = None  # to which the losses of partitions are appended

    def __call__(self, context: PartitionContext, parsed: Parsed, table: pa.Table) -> pd.DataFrame:
        """Encode the rows of a partition and return their predictions as a frame, with the columns `ids` in front."""
        rows = parsed.rows
        if not rows and self.empty_result is not None:
            return self.empty_result
        codes: dict[str, np.ndarray] = {}
        columns = completed_columns(self.features, self.learned, context, parsed, table, missing_codes=codes)
        for name, feature in self.features.items():
            if isinstance(feature, MediaFeature) and pc.struct_field(columns[name].cells, "error").null_count < rows:
                _warn_about_broken_media(name, feature)
        keep, masks = np.ones(rows, bool), LossMasks()
        options: dict[str, Any] = {"keep_media_cells": True, "missing_codes": codes, "losses": masks}
        arrays = dict(encoded_outputs(self.features, self.learned, columns, keep, **options))
        if self.losses is not None:  # partitions run on several threads, and appending to a list is atomic
            for name, feature in self.features.items():
                if feature._past is not None:
                    padded = feature._mask_padded(arrays[name], masks[name], self.learned[name])
                    masks[name] = {**masks[name], "padded": padded}
            self.losses.append(count_losses(masks, keep))
        predicted = [self._predict_batch(arrays, start) for start in range(0, rows, self.batch_size)]
        predictions = _to_frame(concat_columns(predicted), self.decoders)
        if not self.ids:
            return predictions
        return prepend_columns(table_to_pandas(table.select(self.ids)), self.ids, predictions)

    def predict_missing_row(self, source: Any) -> pd.DataFrame:
        """Return predictions without rows, whose columns come from a prediction for a row of missing values."""
        kinds = {name: source.schema.field(name).type for name in self.ids}
        columns = source_columns(self.features, self.ids)
        table = pa.table({name: pa.nulls(1, kinds.get(name)) for name in columns})
        return self(PartitionContext(), parse_columns(self.features, table), table).iloc[:0]

    def _predict_batch(self, arrays: Mapping[str, Any], start: int) -> dict[str, PredictionColumn]:
        """Return the predictions for the batch from row `start` on.

        Its images and audio are decoded now. ConfigError if the model returns another number of rows.
        """
        import torch  # noqa: PLC0415 it takes seconds to import

        from daskprep.dataset.loader.batches import make_expanders  # noqa: PLC0415 as above

        expand = make_expanders(self.features, self.learned, arrays)
        batch = {}
        for name, array in arrays.items():
            chunk = array[start : start + self.batch_size]
            rows = len(chunk)
            chunk = chunk if isinstance(chunk, np.ndarray) else self._decode_media(name, chunk, start)
            compact = torch.from_numpy(np.require(chunk, requirements=["C", "W"])).to(self.device)
            batch[name] = expand[name](compact) if name in expand else compact
        with _exclusive_evaluation(self.model):
            try:
                outputs = self.model(batch)
            except TypeError as error:
                error.add_note(
                    "the model gets a dict of tensors; daskprep.nn.Inputs(preprocessor) makes one tensor of it"
                )
                raise
        columns = decode_batch(self.decoders, outputs, self.options)
        for name, column in columns.items():
            if len(column) != rows:
                raise ConfigError(
                    f'the model returned {len(column):,} rows for "{name}" of a batch of {rows:,}: return one per row'
                )
        return columns

    def _decode_media(self, name: str, cells: pa.StructArray, start: int) -> np.ndarray:
        """Return the decoded media of a batch from a row on."""
        feature = cast("MediaFeature", self.features[name])
        decoder = feature.decoder(self.learned[name])
        out = np.empty((len(cells), *decoder.shape), decoder.dtype)
        failures = decoder.decode(cells, out)
        on_error = "raise" if feature.on_error == "raise" else "fill"  # no row is dropped
        check_failures(failures, on_error, name, lambda: start + np.arange(len(cells)))
        if failures:
            _warn_about_broken_media(name, feature)
            if self.losses is not None:
                self.losses.append({name: {"unreadable": len(failures)}})
        return out


def _report_losses(
    features: Mapping[str, Feature], learned: Mapping[str, Learned], counts: Iterable[LossCounts], rows: int
) -> list[dict[str, Any]]:
    """Return the losses of rows as records, and warn about those that are not compared with the fit."""
    totals: LossCounts = functools.reduce(add_losses, counts, {})
    table = tabulate_losses(features, learned, {"": totals}, {"": rows}, LeftOut({}, rows))
    uncompared = table[(table["cells"] >= MIN_CELLS) & ~table["cause"].isin(["missing", "unreadable", "unknown"])]
    call = 'predictions.attrs["losses"]'
    warn_about_losses(uncompared, features, learned, fitted=False, rows={"": rows}, call=call)
    return cast("list[dict[str, Any]]", table.drop(columns="split").to_dict("records"))


def _warn_about_broken_media(name: str, feature: MediaFeature) -> None:
    """Warn about files that are predicted from fill values; without a number, so that Python shows it once."""
    warn(
        f'column "{name}": {feature.kind} files that cannot be decoded are replaced by a fill value, from which the '
        "model predicts: cell_counts(rows) counts them as unreadable"
    )


def _check_predict_arguments(inputs: Mapping[str, Feature], model: object, batch_size: object) -> None:
    """Raise ConfigError without inputs, for a model that is not callable, or for an invalid batch size."""
    if not inputs:
        raise ConfigError("Preprocessor: all features are targets, so there is nothing to predict from")
    if not callable(model) or isinstance(model, type):
        remedy = "a torch module or a function from a dict of tensors to outputs"
        if isinstance(model, str | os.PathLike):
            remedy = "the model itself: load the file first, for example with torch.load or torch.jit.load"
        elif hasattr(model, "predict"):
            remedy += ", or use sklearn.pipeline.make_pipeline(preprocessor, estimator) for an estimator"
        shown = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise ConfigError(f"model cannot be {shown}: pass {remedy}")
    if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise ConfigError(f"batch_size must be an integer of at least 1, not {batch_size!r}")


def _device(model: Model, device: Any) -> torch.device:
    """Return the device of batches, by default the model's."""
    import torch  # noqa: PLC0415 it takes seconds to import

    if device is None and isinstance(model, torch.nn.Module):
        tensor = next((tensor for tensors in (model.parameters(), model.buffers()) for tensor in tensors), None)
        device = None if tensor is None else tensor.device
    from daskprep.dataset.loader.groups import as_device, make_cuda_stream  # noqa: PLC0415 as above

    resolved = as_device(device) or torch.device("cpu")
    make_cuda_stream(resolved)
    return resolved


@contextlib.contextmanager
def _exclusive_evaluation(model: Model) -> Iterator[None]:
    """Run a model on this thread only and in evaluation mode; restore the modes of its modules afterwards."""
    import torch  # noqa: PLC0415 as above

    lock = _FALLBACK_LOCK
    with _MODEL_LOCKS_GUARD, contextlib.suppress(TypeError):
        lock = _MODEL_LOCKS.setdefault(model, threading.RLock())
    # Not inference mode: tensors that a model caches in it could not be used in training afterwards.
    with lock, torch.no_grad():
        if not isinstance(model, torch.nn.Module):
            yield
            return
        # A frozen module has no mode, and an exported one cannot change it.
        modes = [(module, module.training) for module in model.modules() if hasattr(module, "training")]
        try:
            with contextlib.suppress(NotImplementedError):
                model.eval()
            yield
        finally:
            for module, mode in modes:
                module.training = mode


def _to_frame(columns: Mapping[str, PredictionColumn], decoders: Mapping[str, OutputDecoder]) -> pd.DataFrame:
    """Return predictions as a frame of types of the targets."""
    types = {f"{name}_predictions": decoder.learned.get("cell_type") for name, decoder in decoders.items()}
    return pd.DataFrame({name: _to_series(column, types.get(name)) for name, column in columns.items()})


def _to_series(column: PredictionColumn, cell_type: str | None) -> pd.Series[Any]:
    """Return a column of predictions as a Series with the type of the labels; the label <UNK> becomes missing."""
    if isinstance(column, list):
        return pd.Series(column, dtype=object)
    if column.dtype != object:
        return pd.Series(column)
    if cell_type is None:
        return pd.Series(column, dtype="str")
    values = column.copy()
    values[column == "<UNK>"] = None
    return pd.Series(values, dtype=_PANDAS_TYPES.get(cell_type, "object"))
