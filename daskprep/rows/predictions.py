"""Decoders of model outputs: labels, tokens, numbers in their original units, and probabilities."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from daskprep.errors import ColumnError, ConfigError, DaskprepError, RejectedValueError, did_you_mean
from daskprep.rows.classes import CONVENTIONAL_LABELS, class_labels, convert_labels
from daskprep.rows.normalization import NORMALIZATIONS
from daskprep.rows.numbers import bin_middles
from daskprep.rows.series import component_names, normalize
from daskprep.rows.tokens import join_tokens

PredictionColumn: TypeAlias = np.ndarray | list[Any]
"""One value for each row: an array, or a list where the values are lists or arrays themselves."""
Columns: TypeAlias = dict[str, PredictionColumn]

_BATCH_VALUES = 1 << 22  # converted to probabilities per step: 32 MiB of doubles
_TOLERANCE = 1e-5  # rounding errors of a probability
_SUM_TOLERANCE = 0.01  # rounding errors of the sum of a row's probabilities, for 16-bit floats


@dataclass(frozen=True)
class PredictionOptions:
    """Options of `Preprocessor.predictions`."""

    logits: bool = True
    threshold: float | Mapping[str, float] = 0.5
    top_k: int | None = None
    probabilities: bool = False

    def check(self, decoders: Mapping[str, OutputDecoder]) -> None:
        if not decoders:
            raise ConfigError("no feature is a target, so there is nothing to predict: pass targets= to Preprocessor")
        for option in ("logits", "probabilities"):
            if not isinstance(getattr(self, option), bool):
                raise ConfigError(f"{option} must be True or False, not {getattr(self, option)!r}")
        is_integer = isinstance(self.top_k, int | np.integer) and not isinstance(self.top_k, bool)
        if self.top_k is not None and not (is_integer and self.top_k > 0):
            raise ConfigError(f"top_k must be an integer of at least 1, or None, not {self.top_k!r}")
        for name, value in (self.threshold if isinstance(self.threshold, Mapping) else {"": self.threshold}).items():
            if isinstance(self.threshold, Mapping):
                decoder = _target(decoders, name)
                if not isinstance(decoder, BinaryDecoder | SetDecoder):
                    raise ConfigError(
                        f'threshold: target "{name}" is {decoder.noun}, and thresholds are for binary and set'
                    )
            if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 <= value <= 1:
                raise ConfigError(f"threshold must be a probability from 0 to 1, not {value!r}")

    def get_threshold(self, target: str) -> float:
        """Return the probability from which True is predicted."""
        return self.threshold.get(target, 0.5) if isinstance(self.threshold, Mapping) else self.threshold


class OutputDecoder(ABC):
    """Decoder of the outputs for a target.

    `params` and `learned` are as in the saved JSON. A decoder never changes once constructed, so threads may share it.
    """

    size: int  # outputs per row, for decoders that accept only one shape
    meaning = remedy = ""  # parts of error messages

    def __init__(self, name: str, kind: str, params: Mapping[str, Any], learned: Mapping[str, Any]) -> None:
        self.name = name
        self.noun = f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
        self.params = params
        self.learned = learned
        self.prepare()

    def prepare(self) -> None:  # noqa: B027 optional
        """Set the attributes that `decode_rows` uses, from the parameters and the learned state."""

    def error(self, message: str, kind: type[DaskprepError] = ConfigError) -> DaskprepError:
        return kind(f'target "{self.name}": {message}')

    def unsupported_error(self, unless: str = "") -> DaskprepError:
        """Return the error for a target without predictions."""
        return self.error(
            f"outputs for {self.noun} cannot be turned into predictions{unless}; pass a mapping with the outputs of "
            "the other targets, and use these as the model returns them"
        )

    def predictions(self, outputs: Any, options: PredictionOptions) -> Columns:
        """Return the prediction columns of a batch by suffix; ColumnError for other types or shapes."""
        try:
            array = as_array(outputs)
        except (ValueError, TypeError, RuntimeError) as error:  # a ragged list
            message = f"no array can be made of a {type(outputs).__name__}: {error}{self.remedy}"
            raise self.error(message, ColumnError) from error
        if array.dtype.kind not in "biuf":
            raise self.error(f"outputs are {array.dtype}: pass numbers", ColumnError)
        if (shapes := self.describe_expected_shape(array)) is not None:
            hint = "; encoded rows are for `decode`" * (array.dtype.kind in "iu")
            description = f"outputs of {array.dtype} and shape {array.shape}"
            raise self.error(f"{description}, but outputs for {self.noun} have shape {shapes}{hint}", ColumnError)
        step = max(1, _BATCH_VALUES // max(1, math.prod(array.shape[1:])))
        starts = range(0, max(len(array), 1), step)
        return concat_columns([self.decode_rows(array[start : start + step], options, start) for start in starts])

    def describe_expected_shape(self, outputs: np.ndarray) -> str | None:
        """Return the shapes that fit, None if this one does."""
        return None if outputs.shape[1:] == (self.size,) else f"(rows, {self.size}){self.meaning}"

    @abstractmethod
    def decode_rows(self, outputs: np.ndarray, options: PredictionOptions, first_row: int) -> Columns:
        """Return columns by suffix for a slice of a batch from `first_row` on, which is for errors."""

    def to_probabilities(
        self, outputs: np.ndarray, options: PredictionOptions, first_row: int, *, exclusive: bool
    ) -> np.ndarray:
        """Convert outputs to probabilities in float64.

        With `exclusive`, the last axis has the classes, and their probabilities add up to 1; otherwise each output is
        an independent probability. Raise an error that names the row if the outputs are not finite, or if
        probabilities (``logits=False``) are out of range.
        """
        values = outputs.astype(np.float64)
        if options.logits:
            if outputs.dtype == bool:
                raise self.error(
                    "the outputs are True and False, not scores: pass the raw outputs of the model, before any "
                    "threshold, or use logits=False"
                )
            with np.errstate(invalid="ignore", over="ignore"):  # infinite scores result in NaN, an error below
                if exclusive:
                    values -= values.max(axis=-1, keepdims=True)
                    np.exp(values, out=values)
                    values /= values.sum(axis=-1, keepdims=True)
                else:
                    values = 1 / (1 + np.exp(-values))
        if index := _first_index(np.isnan(values)):
            nonfinite = outputs[index[0]][~np.isfinite(outputs[index[0]])].ravel()[0]
            raise self.error(
                f"the outputs of row {first_row + index[0]:,} hold {nonfinite}, from which no class can be "
                "predicted: look for values that are not finite in the model or its inputs",
                RejectedValueError,
            )
        if not options.logits and (index := _first_index((values < -_TOLERANCE) | (values > 1 + _TOLERANCE))):
            raise self.error(
                f"row {first_row + index[0]:,} holds {values[index]:g}, which is not a probability: use logits=True "
                "for raw scores"
            )
        sums = values.sum(axis=-1) if exclusive and not options.logits else np.ones(0)
        if index := _first_index(np.abs(sums - 1) > _SUM_TOLERANCE):
            raise self.error(
                f"the probabilities of row {first_row + index[0]:,} add up to {sums[index]:g}, not 1: use logits=True "
                "for raw scores, or pass the probabilities of all classes"
            )
        return np.clip(values, 0, 1, out=values)

    def check_ids(self, ids: np.ndarray, count: int, first_row: int) -> np.ndarray:
        """Return ids as int64; RejectedValueError unless 0 to `count` - 1."""
        if index := _first_index((ids < 0) | (ids >= count)):
            message = f"row {first_row + index[0]:,} holds the id {ids[index]}, but ids are 0 to {count - 1}"
            raise self.error(message, RejectedValueError)
        return ids.astype(np.int64)


class CategoryDecoder(OutputDecoder):
    """Decoder of scores by class to labels of `Category`."""

    labels: np.ndarray  # in the order of their ids
    positive: int | None = None  # of two labels
    meaning = ", a score for each class of the vocabulary"

    def prepare(self) -> None:
        self.labels = _label_array(class_labels(self.learned), self.learned.get("cell_type"))
        self.size = len(self.labels)
        if self.size == 2:
            self.positive = max(range(2), key=lambda number: _rank_as_positive(self.labels[number]))

    def decode_rows(self, outputs: np.ndarray, options: PredictionOptions, first_row: int) -> Columns:
        """Return the class of the highest score, and `top_k` classes."""
        scores = self.to_probabilities(outputs, options, first_row, exclusive=True)
        columns = self.columns(scores, scores.argmax(axis=1), options)
        if options.top_k is not None:
            best = _top_classes(scores, min(options.top_k, len(self.labels)))
            columns["_predictions_top_k"] = self.labels[best].tolist()
            columns["_probabilities_top_k"] = np.take_along_axis(scores, best, axis=1).tolist()
        return columns

    def columns(self, scores: np.ndarray, ids: np.ndarray, options: PredictionOptions) -> Columns:
        """Return the labels of the predicted `ids`, and probabilities.

        Of two classes, the positive one has a column of probabilities, with its label in the name. Of more, the
        predicted class has one. With ``options.probabilities``, each class has a column.
        """
        result: Columns = {"_predictions": self.labels[ids]}
        if self.positive is None:
            result["_probability"] = scores[np.arange(len(ids)), ids]
        shown = range(len(self.labels)) if options.probabilities else [self.positive]
        named = {f"_probability_{self.labels[n]}": scores[:, n].copy() for n in shown if n is not None}
        return result | named


def _rank_as_positive(label: Any) -> tuple[Any, ...]:
    """Return a key that is larger for the positive of two labels."""
    return label != "<UNK>", CONVENTIONAL_LABELS.get(label.lower(), 0.5) if isinstance(label, str) else label, label


def _label_array(texts: Sequence[str], cell_type: str | None) -> np.ndarray:
    """Return labels as an array of the column's type."""
    labels = convert_labels(texts, cell_type)
    is_plain = cell_type in ("integer", "boolean", "float") and "<UNK>" not in labels
    return np.array(labels, None if is_plain else object)


class BinDecoder(CategoryDecoder):
    """Decoder of scores by bin to the midpoints of the bins of `Number`."""

    meaning = ", a score for each bin"

    def prepare(self) -> None:
        self.labels = bin_middles(self.learned.get("edges"))
        self.size = len(self.labels)


class BinaryDecoder(CategoryDecoder):
    """Decoder of scores to labels of `Binary`."""

    positive = 1

    def prepare(self) -> None:
        self.labels = _label_array(self.learned["bool2str"], self.learned.get("cell_type"))

    def describe_expected_shape(self, outputs: np.ndarray) -> str | None:
        is_valid = outputs.shape[1:] in ((), (1,), (2,)) and outputs.ndim > 0
        return None if is_valid else "(rows,) or (rows, 1), the score of True, or (rows, 2), scores of False and True"

    def decode_rows(self, outputs: np.ndarray, options: PredictionOptions, first_row: int) -> Columns:
        """Return labels, True from the threshold on, by scores of True or of (False, True)."""
        if outputs.shape[1:] == (2,):
            both = self.to_probabilities(outputs, options, first_row, exclusive=True)
        else:
            true = self.to_probabilities(outputs.reshape(-1), options, first_row, exclusive=False)
            both = np.stack([1 - true, true], axis=1)
        return self.columns(both, (both[:, 1] >= options.get_threshold(self.name)).astype(np.intp), options)


class NumberDecoder(OutputDecoder):
    """Decoder of normalized numbers to the original units of `Number`."""

    def describe_expected_shape(self, outputs: np.ndarray) -> str | None:
        return None if outputs.ndim == 1 or outputs.shape[1:] == (1,) else "(rows,) or (rows, 1)"

    def decode_rows(self, outputs: np.ndarray, options: PredictionOptions, first_row: int) -> Columns:
        normalizer = NORMALIZATIONS[self.params["normalization"]](self.learned)
        return {"_predictions": normalizer.inverse_transform(outputs.reshape(-1))}


class NumberListDecoder(OutputDecoder):
    """Decoder of numbers to lists, for `Vector` and `Timeseries`."""

    def prepare(self) -> None:
        is_vector = "vector_size" in self.learned
        names = None if is_vector else component_names(self.params)
        steps = self.learned["vector_size" if is_vector else "max_timeseries_length"]
        self.shape = (steps,) if names is None else (steps, len(names))
        self.size = math.prod(self.shape)

    def describe_expected_shape(self, outputs: np.ndarray) -> str | None:
        shapes = list(dict.fromkeys([self.shape, (self.size,)]))
        texts = [f"(rows, {', '.join(map(str, shape))})" for shape in shapes]
        return None if outputs.shape[1:] in shapes else " or ".join(texts)

    def decode_rows(self, outputs: np.ndarray, options: PredictionOptions, first_row: int) -> Columns:
        outputs = outputs.reshape(len(outputs), *self.shape)
        if (normalization := self.params.get("normalization")) is not None:
            outputs = normalize(normalization, self.learned, outputs, inverse=True)
        return {"_predictions": outputs.astype(np.float64).tolist()}


class SetDecoder(OutputDecoder):
    """Decoder of scores by token to lists of the tokens of `Set`."""

    meaning = ", a score for each token of the vocabulary"

    def prepare(self) -> None:
        self.tokens = np.array(self.learned["idx2str"], object)
        self.size = len(self.tokens)
        self.padding = self.learned["idx2str"].index(self.learned["special_symbols"]["padding"])

    def decode_rows(self, outputs: np.ndarray, options: PredictionOptions, first_row: int) -> Columns:
        """Return the tokens from the threshold on, without padding."""
        scores = self.to_probabilities(outputs, options, first_row, exclusive=False)
        chosen = scores >= options.get_threshold(self.name)
        chosen[:, self.padding] = False
        ends = np.cumsum(chosen.sum(axis=1))
        columns: Columns = {
            "_predictions": _split_rows(self.tokens[np.nonzero(chosen)[1]], ends),
            "_probability": _split_rows(scores[chosen], ends),
        }
        return columns | ({"_probabilities": scores.tolist()} if options.probabilities else {})


class SequenceDecoder(OutputDecoder):
    """Decoder of token ids or scores to texts."""

    remedy = "; pad rows of ids to one length, with the id of <PAD>"

    def prepare(self) -> None:
        self.has_two_levels = "word" in self.learned
        if self.has_two_levels:
            return
        tokens = self.learned["idx2str"]
        ids = {role: tokens.index(symbol) for role, symbol in self.learned["special_symbols"].items()}
        self.tokens = np.array(tokens, object)
        self.padding, self.stop = ids.get("padding"), ids.get("stop")
        self.omitted_ids = [ids[role] for role in ("padding", "start", "stop") if role in ids]
        characters = self.params["tokenizer"] == "characters" or self.params.get("level") == "char"
        self.joining = "characters" if characters else self.learned.get("decoder") or self.params["tokenizer"]

    def describe_expected_shape(self, outputs: np.ndarray) -> str | None:
        if self.has_two_levels:
            raise self.error(
                'a text of level "both" has two outputs: define two features instead, one of level "word" and one of '
                f'level "char", with column="{self.params.get("column") or self.name}"'
            )
        are_ids, count = outputs.ndim == 2 and outputs.dtype.kind in "iu", len(self.tokens)
        if are_ids or (outputs.ndim == 3 and outputs.shape[2] == count):
            return None
        return f"(rows, length), integers that are ids, or (rows, length, {count}), a score for each token"

    def decode_rows(self, outputs: np.ndarray, options: PredictionOptions, first_row: int) -> Columns:
        """Return texts up to the stop; probabilities only of scores."""
        if outputs.ndim == 2:
            ids, scores = self.check_ids(outputs, len(self.tokens), first_row), None
        else:
            token_scores = self.to_probabilities(outputs, options, first_row, exclusive=True)
            ids, scores = token_scores.argmax(axis=2), token_scores.max(axis=2)
        stops = np.zeros(ids.shape, bool) if self.stop is None else ids == self.stop
        if self.stop == self.padding:  # before the first token, this id is padding on the left, not a stop
            stops &= np.logical_or.accumulate(ids != self.padding, axis=1)
        is_counted = np.cumsum(stops, axis=1) - stops == 0  # positions up to and including the first stop
        inside = is_counted & ~np.isin(ids, self.omitted_ids)
        words = _split_rows(self.tokens[ids[inside]], np.cumsum(inside.sum(axis=1)))
        texts = [join_tokens(row, self.joining) for row in words]
        columns: Columns = {"_predictions": np.array(texts, object)}
        if scores is not None:
            columns["_probability"] = np.where(is_counted, scores, 1.0).prod(axis=1)
            if options.probabilities:
                columns["_probabilities"] = _split_rows(scores[is_counted], np.cumsum(is_counted.sum(axis=1)))
        return columns


class MaskDecoder(OutputDecoder):
    """Decoder of class ids or scores to masks."""

    def prepare(self) -> None:
        self.classes = len(self.learned.get("class_map") or ())

    def describe_expected_shape(self, outputs: np.ndarray) -> str | None:
        if not self.classes:
            raise self.unsupported_error(", unless num_classes declares them as masks")
        size = (self.learned["height"], self.learned["width"])
        are_ids = outputs.dtype.kind in "iu" and outputs.ndim == 3
        if (are_ids and outputs.shape[1:] == size) or outputs.shape[1:] == (self.classes, *size):
            return None
        area = "{}, {}".format(*size)
        return f"(rows, {self.classes}, {area}), a score for each class, or (rows, {area}), integers that are classes"

    def decode_rows(self, outputs: np.ndarray, options: PredictionOptions, first_row: int) -> Columns:
        """Return class ids of pixels, of scores the highest."""
        if outputs.ndim == 3:
            ids = self.check_ids(outputs, self.classes, first_row)
        else:
            ids = self.to_probabilities(np.moveaxis(outputs, 1, -1), options, first_row, exclusive=True).argmax(axis=-1)
        return {"_predictions": list(ids.astype(np.uint8))}


class UnsupportedDecoder(OutputDecoder):
    """Decoder that raises ConfigError on every call."""

    def describe_expected_shape(self, outputs: np.ndarray) -> str | None:
        raise self.unsupported_error()

    def decode_rows(self, outputs: np.ndarray, options: PredictionOptions, first_row: int) -> Columns:
        raise self.unsupported_error()


_DECODERS: dict[str, type[OutputDecoder]] = {
    "binary": BinaryDecoder, "category": CategoryDecoder, "image": MaskDecoder, "number": NumberDecoder,
    "sequence": SequenceDecoder, "set": SetDecoder, "text": SequenceDecoder, "timeseries": NumberListDecoder,
    "vector": NumberListDecoder,
}  # fmt: skip


def create_decoder(name: str, feature: Mapping[str, Any]) -> OutputDecoder:
    """Return the decoder for a target by its saved JSON; for types without one, its methods raise ConfigError."""
    kind = feature["type"]
    if kind == "number" and feature["params"].get("encoding") == "bins":
        return BinDecoder(name, kind, feature["params"], feature["learned"])
    return _DECODERS.get(kind, UnsupportedDecoder)(name, kind, feature["params"], feature["learned"])


def decode_batch(decoders: Mapping[str, OutputDecoder], outputs: Any, options: PredictionOptions) -> Columns:
    """Return prediction columns of a batch; ConfigError for equal names, or unequal rows of targets."""
    options.check(decoders)
    by_target = _by_target(decoders, outputs)
    columns: Columns = {}
    rows = {}
    for name in filter(by_target.__contains__, decoders):
        for suffix, column in decoders[name].predictions(by_target[name], options).items():
            if name + suffix in columns:
                raise ConfigError(f'two prediction columns are named "{name}{suffix}": rename a target')
            columns[name + suffix] = column
            rows[name] = len(column)
    if len(set(rows.values())) > 1:
        raise ConfigError(f"outputs have different numbers of rows: {rows}")
    return columns


def _by_target(decoders: Mapping[str, OutputDecoder], outputs: Any) -> Mapping[str, Any]:
    """Return outputs by target; ConfigError for none, unknown ones, or one array for several."""
    if not isinstance(outputs, Mapping):
        if len(decoders) > 1:
            raise ConfigError(
                f"pass a mapping with the outputs of {len(decoders)} targets: {', '.join(decoders)}; not a "
                f"{type(outputs).__name__}"
            )
        if isinstance(outputs, tuple):
            raise ConfigError(
                f'a tuple of {len(outputs)} is not an output: pass the output for "{next(iter(decoders))}" alone, or '
                "a list of batches"
            )
        return dict.fromkeys(decoders, outputs)
    for name in outputs:
        _target(decoders, name)
    if not outputs:
        raise ConfigError(f"outputs are empty: pass the outputs of a target; targets are {', '.join(decoders)}")
    return outputs


def decode_batches(decoders: Mapping[str, OutputDecoder], outputs: Any, options: PredictionOptions) -> Columns:
    """Return prediction columns for one batch or an iterable.

    Raise ConfigError if there is no batch; errors of a batch of several are noted with its number.
    """
    parts, batches = [], _batches(outputs)
    for number, batch in enumerate(batches):
        try:
            parts.append(decode_batch(decoders, batch, options))
        except DaskprepError as error:
            if not isinstance(batches, list) or len(batches) > 1:
                error.add_note(f"in batch {number:,} of the outputs")
            raise
    if not parts:
        raise ConfigError("no batch of outputs: pass at least one, which may have no rows")
    return concat_columns(parts)


def _batches(outputs: Any) -> Iterator[Any] | list[Any]:
    """Return the batches of an iterable; a list of the outputs if they are one, as arrays and tuples are."""
    if isinstance(outputs, Mapping) or hasattr(outputs, "detach") or hasattr(outputs, "__array__"):
        return [outputs]
    if isinstance(outputs, list):
        are_batches = bool(outputs) and (isinstance(outputs[0], Mapping) or bool(getattr(outputs[0], "shape", ())))
        return outputs if are_batches else [outputs]
    return iter(outputs) if isinstance(outputs, Iterable) and not isinstance(outputs, str | tuple) else [outputs]


def concat_columns(parts: Sequence[Mapping[str, PredictionColumn]]) -> Columns:
    """Concatenate columns of one batch or more; ConfigError if names differ."""
    for number, part in enumerate(parts):
        if part.keys() != parts[0].keys():
            raise ConfigError(
                f"batch {number:,} of the outputs has the columns {list(part)}, but the first batch "
                f"{list(parts[0])}: pass outputs for the same targets, of the same kind, in each batch"
            )
    if len(parts) == 1:
        return dict(parts[0])
    return {
        name: np.concatenate([part[name] for part in parts])
        if isinstance(column, np.ndarray)
        else list(itertools.chain.from_iterable(part[name] for part in parts))
        for name, column in parts[0].items()
    }


def as_array(values: Any) -> np.ndarray:
    """Convert a list, an array or a tensor to a NumPy array."""
    if hasattr(values, "detach"):  # a tensor, recognized without importing torch
        values = values.detach().cpu()
        # NumPy has no bfloat16.
        values = values.float() if values.is_floating_point() and values.itemsize < 4 else values
    return np.asarray(values)


def _first_index(mask: np.ndarray) -> tuple[int, ...]:
    """Return the index of the first True in a mask; () if all are False."""
    return tuple(np.argwhere(mask)[0].tolist()) if mask.any() else ()


def _top_classes(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the ids of the `count` largest probabilities by row, the largest first."""
    remaining, rows = scores.copy(), np.arange(len(scores))
    best = np.empty((len(scores), count), np.intp)
    for rank in range(count):  # for few of thousands of classes, repeated argmax is faster than a sort
        best[:, rank] = remaining.argmax(axis=1)
        remaining[rows, best[:, rank]] = -1
    return best


def _split_rows(flat: np.ndarray, ends: np.ndarray) -> list[list[Any]]:
    """Split values into one list per row, by the ends of rows."""
    values = flat.tolist()
    return [values[start:end] for start, end in itertools.pairwise([0, *ends.tolist()])]


def _target(decoders: Mapping[str, OutputDecoder], name: str) -> OutputDecoder:
    """Return the decoder of a target, or raise ConfigError."""
    if name not in decoders:
        hint = did_you_mean(name, decoders)
        raise ConfigError(f'no target is named "{name}".{hint} Targets are: {", ".join(decoders)}')
    return decoders[name]
