"""Encoder of single rows, in microseconds, for processes that have only the standard library and NumPy.

It needs only the file that `Preprocessor.save` wrote, and returns the same arrays as `Preprocessor.encode`.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections import OrderedDict, deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np

from daskprep.errors import (
    ColumnError,
    ConfigError,
    CorruptDatasetError,
    DaskprepError,
    MissingPackageError,
    RejectedValueError,
    UnfilledCellError,
    did_you_mean,
)
from daskprep.rows import make_row_encoder, saved
from daskprep.rows.base import COUNTED, MISSING, Arrays, CellReport, RowEncoder, RowMappings, count_lock, json_number
from daskprep.rows.cells import is_missing, text_of
from daskprep.rows.metrics import prometheus_text
from daskprep.rows.predictions import PredictionColumn, PredictionOptions, create_decoder, decode_batches
from daskprep.rows.saved import load_vocabularies, parse_vocabulary_file, read_unless_link
from daskprep.rows.series import MAX_PAST

__all__ = ["Encoder", "load"]

_MAX_SHOWN_CHARACTERS = 80  # characters of a cell in an error
_MIN_TRIMMED = 64  # rows of a group before those that no window of time needs are removed; then again at twice the rest


def __dir__() -> list[str]:
    return __all__


class FallbackRowEncoder:
    """Encoder by `Preprocessor.encode`, for other types."""

    def __init__(self, name: str, feature: Mapping[str, Any], *, trusted: bool) -> None:
        self.name, self.seen = name, dict.fromkeys(COUNTED, 0)
        state = {"format": 1, "features": {name: feature}, "split": None, "balance": None, "fit_on": "train"}
        try:
            import pandas  # noqa: PLC0415, ICN001 only some features need them

            from daskprep.preprocessor import Preprocessor  # noqa: PLC0415

            self._prep, self._pandas = Preprocessor.from_dict(state, trusted=trusted), pandas
        except DaskprepError:
            raise
        except ImportError as error:
            raise MissingPackageError(
                f'feature "{name}" ({feature["type"]}) cannot be encoded without the package {error.name or error}: '
                "install daskprep with all of its requirements, without --no-deps"
            ) from error
        self.columns: tuple[str, ...] = tuple(self._prep.features_[name].reads(name))
        self.column = self.columns[0]
        self.past = self._prep.features_[name]._past
        if self.past is not None:
            self.seen["padded"] = 0

    def require_labels(self) -> None:
        """Remove the fill value if a missing label drops its row."""
        from daskprep.passes.reviewing import require_labels  # noqa: PLC0415

        features, learned = self._prep.features_, self._prep.learned_
        self._prep.learned_ = {name: require_labels(features[name], state) for name, state in learned.items()}

    def _frame(self, rows: RowMappings) -> Any:
        # By default, pandas would convert integers to floats if a cell is None.
        cells = {column: self._pandas.Series([row[column] for row in rows], dtype=object) for column in self.columns}
        return self._pandas.DataFrame(cells)

    def encode(self, rows: RowMappings, first: int = 0) -> Arrays:
        arrays, counted = self._encode(rows, first)
        with count_lock:
            for kind, own in counted.items():
                self.seen[kind] += len(own)
        return arrays

    def _encode(self, rows: RowMappings, first: int) -> tuple[Arrays, dict[str, list[int]]]:
        """Return arrays by output, and the rows of missing and unseen cells and of incomplete windows."""
        from daskprep.passes.encoding import encode_source, mask_cells  # noqa: PLC0415
        from daskprep.sources import as_source  # noqa: PLC0415

        [feature], [learned] = self._prep.features_.values(), self._prep.learned_.values()
        masks: dict[int, dict[str, np.ndarray]] = {}

        def wrap(encode: Any) -> Any:
            def encode_partition(context: Any, parsed: Any, *table: Any) -> dict[str, np.ndarray]:
                copy = dataclasses.replace(parsed, columns=dict(parsed.columns))
                _, missing, _, unseen = mask_cells(self.name, feature, learned, copy)
                masks[context.number] = own = {"missing": missing, "unseen": unseen}
                if "padded" not in self.seen:
                    return encode(context, parsed, *table)
                losses: dict[str, Any] = {}
                arrays: dict[str, np.ndarray] = encode(context, parsed, *table, losses=losses)
                own["padded"] = feature._mask_padded(arrays[self.name], losses[self.name], learned)
                return arrays

            return encode_partition

        # Not `Preprocessor.encode`, which warns: `report` and `seen` are about the cells of a request.
        arrays = encode_source(self._prep.features_, self._prep.learned_, as_source(self._frame(rows)), wrap)
        parts = [masks[number] for number in sorted(masks)]
        kinds = parts[0] if parts else ()
        counted = {
            kind: np.flatnonzero(np.concatenate([one[kind] for one in parts])[first:]).tolist() for kind in kinds
        }
        return {output: array[first:] for output, array in arrays.items()}, counted

    def find_needed(self, rows: RowMappings) -> list[int]:
        """Return the ascending positions of the rows of a group that later rows need for their windows."""
        from daskprep.passes.engine import PartitionReader  # noqa: PLC0415
        from daskprep.sources import as_source  # noqa: PLC0415

        [feature], [learned] = self._prep.features_.values(), self._prep.learned_.values()
        parsed, _ = PartitionReader(as_source(self._frame(rows))).read(self._prep.features_, [], 0)
        imputer: Any = feature.imputer
        rows_needed, _ = imputer.find_border_rows(learned.mask_unlearned(parsed.columns[self.name]), learned)
        needed: list[int] = np.sort(rows_needed).tolist()
        return needed

    def report(self, rows: RowMappings, first: int = 0) -> CellReport:
        """Return the missing, unreadable and unseen cells of rows, and rows whose window lacks rows."""
        from daskprep.passes.encoding import rows_by_kind  # noqa: PLC0415
        from daskprep.sources import as_source  # noqa: PLC0415

        own = rows[first:]
        source = as_source(self._frame(own))
        row_numbers = dict(rows_by_kind(self._prep.features_, self._prep.learned_, source)[self.name])
        if "padded" in self.seen:
            row_numbers["padded"] = self._encode(rows, first)[1].get("padded", [])
        return {
            kind: {row: json_number(own[row][self.column]) for row in ids} for kind, ids in row_numbers.items() if ids
        }

    def expand(self, encoded: np.ndarray) -> np.ndarray:
        import torch  # noqa: PLC0415

        [feature] = self._prep.features_.values()
        return feature.expand(torch.from_numpy(encoded), self._prep.learned_[self.name]).numpy()


class _PastRows:
    """The last rows of each group, for windows of later rows. The group unused longest loses its oldest rows first."""

    def __init__(self, encoder: Any, limit: int) -> None:
        self._columns, (self._group, self._per_group, self._null_is_group) = encoder.columns, encoder.past
        self._limit, self._rows, self._encoder = limit, 0, encoder
        self._groups: OrderedDict[str | None, deque[dict[str, Any]]] = OrderedDict()
        self._trimmed: dict[str | None, int] = {}  # rows of groups after the last time that unneeded ones were removed

    def before(self, rows: RowMappings) -> list[Mapping[str, Any]]:
        """Return the kept rows of the same groups."""
        groups = dict.fromkeys(map(self._group_of, rows))
        with count_lock:
            return [row for group in groups for row in self._groups.get(group, ())]

    def add(self, rows: RowMappings) -> None:
        """Add rows that are later than all others of their group; a row without a value is in no history."""
        for row in rows:
            group = self._group_of(row)
            if not self._null_is_group and (group is None or is_missing(row[self._columns[0]])):
                continue
            with count_lock:
                known = self._groups.setdefault(group, deque())
                self._groups.move_to_end(group)
                known.append({column: row[column] for column in self._columns})
                self._rows += 1
                if len(known) > self._per_group:
                    known.popleft()
                    self._rows -= 1
                elif self._per_group == MAX_PAST and len(known) >= max(_MIN_TRIMMED, 2 * self._trimmed.get(group, 0)):
                    needed = self._encoder.find_needed(list(known))
                    self._rows -= len(known) - len(needed)
                    known = self._groups[group] = deque(known[number] for number in needed)
                    self._trimmed[group] = len(known)
                while self._rows > self._limit:
                    oldest, known = next(iter(self._groups.items()))
                    known.popleft()
                    self._rows -= 1
                    if not known:
                        del self._groups[oldest]
                        self._trimmed.pop(oldest, None)

    def _group_of(self, row: Mapping[str, Any]) -> str | None:
        return "" if self._group is None else text_of(row[self._group])


class Encoder:
    """Encode rows like `Preprocessor.encode`, with NumPy alone.

    Threads may share an encoder. `load` creates one from the file that `Preprocessor.save` wrote.

    Parameters
    ----------
    state : mapping
        The result of `Preprocessor.to_dict`, or the JSON that `Preprocessor.save` wrote.
    trusted : bool
        Whether tokenizers that the state names may be downloaded, as for `Preprocessor.load`.
    history : int
        Number of rows that are kept for each feature with windows over past rows: a row that is encoded, or passed to
        `remember`, is in the windows of later rows of its group. Of a group, the rows that its window needs are kept,
        with windows of time up to twice as many, and at least 64. Beyond the limit, the group unused longest loses its
        oldest rows. 0: windows have rows of the same call alone.
    """

    def __init__(self, state: Mapping[str, Any], *, trusted: bool = False, history: int = 0) -> None:
        if isinstance(state, str | os.PathLike):
            raise ConfigError(
                f"Encoder: state={state!r:.80} is not a mapping: use daskprep.serving.load(path) for a file"
            )
        state = saved.verify(state)
        features = {}
        for name, feature in state["features"].items():
            with saved.error_context(f'feature "{name}"'):
                if feature["type"] in ("weight", "key"):  # prediction does not use them
                    continue
                encoder = make_row_encoder(name, feature)
                features[name] = encoder or FallbackRowEncoder(name, feature, trusted=trusted)
                if encoder is not None:
                    _test_encoding(encoder, has_length=feature["type"] in saved.TYPES_WITH_LENGTH)
            if "golden" in feature:
                saved.check_golden(name, feature, functools.partial(_encode_cells, features[name]))
        for one in features.values():
            one.seen = dict.fromkeys(one.seen, 0)  # without the cells of these checks
        self._rows = self._target_rows = 0
        targets = saved.read_targets(state, features)
        self._inputs = {name: encoder for name, encoder in features.items() if name not in targets}
        self._targets = {name: features[name] for name in targets}
        self._target_columns = [column for encoder in self._targets.values() for column in encoder.columns]
        if isinstance(history, bool) or not isinstance(history, int) or history < 0:
            raise ConfigError(f"Encoder: history={history!r} is no number of rows: pass one such as 1_000_000")
        self._past = {
            name: _PastRows(one, history) for name, one in self._inputs.items() if one.past is not None and history
        }
        for one in self._targets.values():
            one.require_labels()
        with saved.error_context("a target"):
            self._decoders = {name: create_decoder(name, state["features"][name]) for name in targets}

    @overload
    def encode(
        self,
        rows: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        expand: bool = False,
        report: Literal[False] = False,
        strict: bool = False,
    ) -> dict[str, np.ndarray]: ...

    @overload
    def encode(
        self,
        rows: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        expand: bool = False,
        report: Literal[True],
        strict: bool = False,
    ) -> tuple[dict[str, np.ndarray], dict[str, CellReport]]: ...

    def encode(
        self,
        rows: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        expand: bool = False,
        report: bool = False,
        strict: bool = False,
    ) -> dict[str, np.ndarray] | tuple[dict[str, np.ndarray], dict[str, CellReport]]:
        """Return arrays by output name, with a row per input row.

        Each row must have the columns of all inputs, with None for missing values; a single mapping is one row. Targets
        are encoded only if every row has their columns. A target is left out if it has no code for a missing label.

        Parameters
        ----------
        rows : mapping or sequence of mappings
            One row or several, as mappings of column names to values.
        expand : bool
            Whether arrays are in the form that batches of a loader have.
        report : bool
            Whether to return a pair: the arrays, and the cells that were imputed or replaced. The latter are by
            feature, then by "missing", "unreadable" or "unseen", then by row number, and windows with padding by
            "padded". Unreadable cells count as missing too, as in `Preprocessor.cell_counts`. Others are left out.
        strict : bool
            Whether to raise `RejectedValueError` for unreadable cells, and for categories and tokens outside the
            vocabulary. Missing cells are still imputed.

        Examples
        --------
        >>> import pandas as pd
        >>> import daskprep as dp
        >>> from daskprep.serving import Encoder
        >>> frame = pd.DataFrame({"size": [1, 2, 3], "city": ["Rome", "Oslo", "Rome"]})
        >>> encoder = Encoder(dp.Preprocessor({"size": "number", "city": "category"}).fit(frame).to_dict())
        >>> encoder.encode({"size": "2,5", "city": "Bern"}, report=True)[1]
        {'size': {'missing': {0: '2,5'}, 'unreadable': {0: '2,5'}}, 'city': {'unseen': {0: 'Bern'}}}
        """
        row_list = _as_row_list(rows)
        encoders, has_targets = self._inputs, False
        if self._target_columns and row_list:
            has_targets = all(column in row for row in row_list for column in self._target_columns)
            encoders = {**self._inputs, **self._targets} if has_targets else self._inputs
        with count_lock:
            self._rows += len(row_list)
            self._target_rows += len(row_list) * has_targets
        arrays: dict[str, np.ndarray] = {}
        # For features with a history, the rows after those that they need, and the number of these.
        passed: dict[str, tuple[RowMappings, int]] = {}
        for name, encoder in encoders.items():
            try:
                if self._past and name in self._past:
                    before = self._past[name].before(row_list)
                    passed[name] = [*before, *row_list], len(before)
                    encoded = encoder.encode(*passed[name])
                else:
                    encoded = encoder.encode(row_list)
            except KeyError:
                columns = dict.fromkeys(column for one in encoders.values() for column in one.columns)
                raise _missing_columns_error(columns, row_list) from None
            except UnfilledCellError:
                if name in self._targets:
                    continue
                raise
            arrays |= _expand(encoder, encoded) if expand else encoded
        if self._past and not strict:
            self.remember(row_list)
        if not (report or strict):
            return arrays
        cells = {
            name: flagged
            for name, one in encoders.items()
            if row_list and (flagged := one.report(*passed.get(name, (row_list, 0))))
        }
        if strict:
            _reject_cells({encoders[name].column: flagged for name, flagged in cells.items()})
            self.remember(row_list)
        return (arrays, cells) if report else arrays

    def remember(self, rows: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Add rows to the past of later ones, as `encode` does; pass the rows of a group in order of time.

        Examples
        --------
        >>> import pandas as pd
        >>> import daskprep as dp
        >>> from daskprep.serving import Encoder
        >>> days = pd.DataFrame({"load": [1, 2, 3, 4]})
        >>> prep = dp.Preprocessor({"load": dp.Timeseries(window_size=3)}).fit(days)
        >>> encoder = Encoder(prep.to_dict(), history=1_000)
        >>> encoder.remember(days.to_dict("records"))
        >>> encoder.encode({"load": 5})["load"].tolist()
        [[3.0, 4.0, 5.0]]
        """
        for past in self._past.values():
            past.add(_as_row_list(rows))

    @property
    def seen(self) -> dict[str, dict[str, int]]:
        """Counts of the cells encoded since the start, by feature.

        They are the number of "rows" and of "missing", "unseen" and "out_of_range" cells, in all threads. Unreadable
        cells are missing. Numbers and the days of dates are out of range below the smallest or above the largest of the
        fit. Features with windows also have the rows whose window has padding, as "padded". Tokens beyond the length of
        a row are not counted. Of images, audio and custom types, cells out of range are not.

        Examples
        --------
        >>> import pandas as pd
        >>> import daskprep as dp
        >>> from daskprep.serving import Encoder
        >>> frame = pd.DataFrame({"size": [1, 2, 3], "city": ["Rome", "Oslo", "Rome"]})
        >>> encoder = Encoder(dp.Preprocessor({"size": "number", "city": "category"}).fit(frame).to_dict())
        >>> _ = encoder.encode([{"size": 300, "city": "Bern"}, {"size": None, "city": "Rome"}])
        >>> encoder.seen["size"]
        {'rows': 2, 'missing': 1, 'unseen': 0, 'out_of_range': 1}
        """
        rows = {**dict.fromkeys(self._inputs, self._rows), **dict.fromkeys(self._targets, self._target_rows)}
        return {name: {"rows": rows[name], **one.seen} for name, one in {**self._inputs, **self._targets}.items()}

    def to_prometheus(self) -> str:
        """Return `seen` in the text format of Prometheus, as the counter ``daskprep_cells_total``.

        Examples
        --------
        >>> import pandas as pd
        >>> import daskprep as dp
        >>> encoder = Encoder(dp.Preprocessor({"size": "number"}).fit(pd.DataFrame({"size": [1, 2]})).to_dict())
        >>> _ = encoder.encode({"size": 300})
        >>> print(encoder.to_prometheus().splitlines()[-1])
        daskprep_cells_total{feature="size",kind="out_of_range"} 1
        """
        counts = [({"feature": name, "kind": kind}, n) for name, one in self.seen.items() for kind, n in one.items()]
        return prometheus_text("daskprep_cells_total", "counter", "Cells of requests, by feature and kind.", counts)

    def predictions(
        self,
        outputs: Any,
        *,
        logits: bool = True,
        threshold: float | Mapping[str, float] = 0.5,
        top_k: int | None = None,
        probabilities: bool = False,
    ) -> dict[str, PredictionColumn]:
        """Convert outputs of a model to labels, tokens and units.

        Columns and parameters are the same as for `Preprocessor.predictions`. The result maps column names to arrays,
        or to lists if each value is a list.

        Examples
        --------
        >>> import json
        >>> import pandas as pd
        >>> import daskprep as dp
        >>> from daskprep.serving import Encoder
        >>> frame = pd.DataFrame({"size": [1, 2, 3], "sort": ["a", "b", "a"]})
        >>> prep = dp.Preprocessor({"size": "number", "sort": "category"}, targets="sort").fit(frame)
        >>> Encoder(prep.to_dict()).predictions([[1, 3]])["sort_predictions"].tolist()
        ['b']
        """
        return decode_batches(self._decoders, outputs, PredictionOptions(logits, threshold, top_k, probabilities))


def load(path: str | os.PathLike[str], *, trusted: bool = False, history: int = 0) -> Encoder:
    """Load an encoder of single rows from a file of `Preprocessor.save`, without unpickling.

    Raise `CorruptDatasetError` if the file was altered, or if its sample values do not encode to the stored rows.
    `trusted` is whether tokenizers that the file names may be downloaded, as for `Preprocessor.load`, and `history` the
    number of past rows that are kept, as for `Encoder`.
    """
    try:
        file = Path(path)
        size = file.stat().st_size
        data = file.read_bytes() if size <= saved.MAX_BYTES else b""
    except (OSError, TypeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        save = "Preprocessor.save wrote"
        if isinstance(error, IsADirectoryError):
            save = "Preprocessor.from_dataset(path).save(file) writes for a dataset"
        raise ConfigError(
            f"no saved Preprocessor can be read at {path!r}: {reason}; pass the file that {save}"
        ) from error
    if size > saved.MAX_BYTES:
        raise CorruptDatasetError(f"{path} is larger than {saved.MAX_BYTES:,} bytes, the maximum for a Preprocessor")
    state = saved.verify(saved.parse_state(data, str(path)))
    del data
    with saved.error_context(str(path)):
        state = load_vocabularies(
            state, str(path), lambda name: read_unless_link(file.parent / name), parse_vocabulary_file
        )
    return Encoder(state, trusted=trusted, history=history)


def _expand(encoder: RowEncoder | FallbackRowEncoder, encoded: Arrays) -> Arrays:
    """Return encoded arrays in the form of batches."""
    mark = encoder.name + MISSING
    marks = {mark: encoded.pop(mark).astype(np.bool_)} if mark in encoded else {}
    return {output: encoder.expand(array) for output, array in encoded.items()} | marks


def _encode_cells(encoder: RowEncoder | FallbackRowEncoder, cells: Sequence[Any]) -> Arrays:
    """Return the arrays of cells by the suffix of the output."""
    arrays = encoder.encode([{encoder.columns[0]: cell} for cell in cells])
    return {output.removeprefix(encoder.name): array for output, array in arrays.items()}


def _as_row_list(rows: Any) -> Sequence[Mapping[str, Any]]:
    """Return a mapping as a list of it; ColumnError for others."""
    if type(rows) is dict:  # faster than the checks of abstract classes
        return [rows]
    if type(rows) is list and set(map(type, rows)) == {dict}:
        return rows
    if isinstance(rows, Mapping):
        return [rows]
    if not isinstance(rows, Sequence):
        raise ColumnError(
            f'a {type(rows).__name__} is not a row: pass a mapping, or a list, such as frame.to_dict("records")'
        )
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise ColumnError(f"row {number} is a {type(row).__name__}: pass a mapping of columns to values")
    return rows


def _missing_columns_error(columns: Collection[str], rows: RowMappings) -> ColumnError:
    number, row = next((i, row) for i, row in enumerate(rows) if any(column not in row for column in columns))
    absent = [column for column in columns if column not in row]
    names, present = (", ".join(map(str, one)) for one in ([f'"{column}"' for column in absent], row))
    hint = did_you_mean(absent[0], row) if len(absent) == 1 else ""
    has = f" The row has: {present}" if row else ""
    return ColumnError(f"row {number} has no {names}.{hint} Pass None for missing cells.{has}")


def _reject_cells(cells: Mapping[str, CellReport]) -> None:
    """Raise RejectedValueError for the first refused cell, if any."""
    refused = [
        (number, column, kind, cell)
        for column, flagged in cells.items()
        for kind in ("unreadable", "unseen")
        for number, cell in flagged.get(kind, {}).items()
    ]
    if not refused:
        return
    number, column, kind, cell = min(refused, key=lambda one: one[0])
    fault = {
        "unreadable": "cannot be read; correct it, or pass None if the value is missing",
        "unseen": "holds a category or token that was not learned; correct it, or leave out strict=True to encode it "
        "as unknown",
    }[kind]
    others = f" ({len(refused) - 1:,} more such cells)" if len(refused) > 1 else ""
    raise RejectedValueError(
        f'column "{column}": {str(cell)[:_MAX_SHOWN_CHARACTERS]!r} of row {number:,} {fault}{others}'
    )


def _test_encoding(encoder: RowEncoder, *, has_length: bool) -> None:
    """Encode, or with `has_length` only read, two sample cells: an altered state raises an error."""
    for sample in ("0", "no such cell"):
        row = dict.fromkeys(encoder.columns, sample)
        with suppress(ValueError):  # the encoder may reject the sample
            encoder.read(encoder.cell_of(row)) if has_length else encoder.encode([row])
