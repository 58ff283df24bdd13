"""Base class of decoders of cells to arrays, with fill values for missing and broken cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.deferred.reader import MediaReader
from daskprep.columns.kernels import only_where
from daskprep.columns.permutation import Integers
from daskprep.errors import MediaError
from daskprep.storage.checksum import json_sha256
from daskprep.storage.security import redact_url

# A cell as stored in the tables of a dataset: at most one field is present.
STORED_TYPE = pa.struct([("bytes", pa.large_binary()), ("path", pa.string())])

Result = TypeVar("Result")


class Failure(NamedTuple):
    """Cell that cannot be decoded: its row, path, and the reason."""

    row: int
    cell: str
    reason: str


@dataclass(frozen=True)
class MediaDecoder:
    """Base class of thread-safe decoders to rows of one shape."""

    dtype: ClassVar[str]
    max_threads: ClassVar[int] = 16  # number of threads beyond which decoding is no faster
    min_rows: ClassVar[int] = 1  # for which a separate task pays off
    reader: MediaReader
    # Whether the caller raises for failures or uses fill values; `decode` returns failures and fills in both cases.
    on_error: Literal["raise", "fill"]
    recipe: Any
    missing: Any  # fill value for missing cells
    broken: Any  # fill value for cells that cannot be decoded

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.recipe.shape
        return shape

    def decode(self, cells: pa.StructArray, out: np.ndarray) -> list[Failure]:
        """Decode or fill each row of `out`; return the failures."""
        failures: list[Failure] = []
        self._decode(cells, out, failures)
        if cells.null_count:
            out[cells.is_null().to_numpy(zero_copy_only=False)] = self._fill_value(self.missing)
        for failure in failures:
            out[failure.row] = self._fill_value(self.broken)
        return failures

    def _decode(self, cells: pa.StructArray, out: np.ndarray, failures: list[Failure]) -> None:
        """Decode the cells that are not missing; append failures, whose rows stay."""

        def decode(content: pa.Buffer | bytes, _: int) -> Any:
            values = self.decode_file(content)
            if np.shape(values) != out.shape[1:]:  # NumPy would repeat a smaller one
                raise MediaError(f"has the shape {np.shape(values)}, and not {out.shape[1:]} as learned")
            return values

        for row, values in self._apply_each(cells, decode, failures):
            out[row] = values

    def decode_file(self, content: pa.Buffer | bytes) -> Any:
        """Return an array of `shape`; raise MediaError for every file that cannot be decoded."""
        raise NotImplementedError

    def _fill_value(self, value: Any) -> Any:
        """Return `missing` or `broken`, broadcastable to a row."""
        return value

    def digest(self, **parameters: Any) -> str:
        """Return the SHA-256 of all parameters that the decoded values depend on."""
        broken = self.broken if self.on_error == "fill" else None
        recipe = self.recipe.digest() if hasattr(self.recipe, "digest") else self.recipe
        return json_sha256({"recipe": recipe, "fill": [self.missing, broken]} | parameters)

    def prepare(self) -> None:
        """Import libraries and compute tables before the first cell."""

    def pack(self, cells: pa.StructArray) -> tuple[pa.StructArray, list[Failure]]:
        """Return cells with files in place of paths, and the failures.

        Cells that fail keep their path, if any.
        """
        failures: list[Failure] = []
        contents: list[bytes | None] = [None] * len(cells)
        for row, content in self._apply_each(cells, lambda content, _: self.pack_file(content), failures):
            # pyarrow 26 leaks views that are converted to arrays.
            contents[row] = content if isinstance(content, bytes) else content.to_pybytes()
        data = pa.array(contents, pa.large_binary())
        path = only_where(data.is_null(), pc.struct_field(cells, "path"))
        return pa.StructArray.from_arrays([data, path], fields=list(STORED_TYPE), mask=cells.is_null()), failures

    def pack_file(self, content: pa.Buffer | bytes) -> pa.Buffer | bytes:
        """Return the bytes to store; subclasses may reduce them."""
        return content

    def _apply_each(
        self, cells: pa.StructArray, function: Callable[[pa.Buffer | bytes, int], Result], failures: list[Failure]
    ) -> Iterator[tuple[int, Result]]:
        """Yield row and result of ``function(content, row)`` for each cell; append its MediaErrors to `failures`."""
        data, path_column = (pc.struct_field(cells, name) for name in ("bytes", "path"))
        # As lists: scalars of Arrow for each row took 1 % of an epoch of photos.
        paths, has_bytes = path_column.to_pylist(), data.is_valid().to_pylist()
        for row in np.flatnonzero(cells.is_valid()).tolist():
            path = paths[row]
            try:
                result = function(data[row].as_buffer() if has_bytes[row] else self.reader.read(path), row)
            except MediaError as error:
                name = self.reader.bytes_name if path is None else redact_url(path)
                failures.append(Failure(row, name, str(error).removeprefix(f"{name}: ")))
            else:
                yield row, result


def read_content(cell: pa.StructScalar, reader: MediaReader) -> pa.Buffer | bytes:
    """Return the bytes of a cell or of its file."""
    data = cell["bytes"]
    return data.as_buffer() if data.is_valid else reader.read(cell["path"].as_py())


def decode_cells(
    decoder: MediaDecoder, cells: pa.StructArray, out: np.ndarray, column: str, row_ids: Callable[[], Integers]
) -> list[Failure]:
    """Decode the cells of a column into `out`; return filled failures, else raise one."""
    failures = decoder.decode(cells, out)
    check_failures(failures, decoder.on_error, column, row_ids)
    return failures


def check_failures(failures: Sequence[Failure], on_error: str, column: str, row_ids: Callable[[], Integers]) -> None:
    """Raise MediaError for the first failure, unless `on_error` is "fill"."""
    if not failures or on_error == "fill":
        return
    first = failures[0]
    others = f" (and {len(failures) - 1:,} more)" if len(failures) > 1 else ""
    raise MediaError(
        f'column "{column}", row {row_ids()[first.row]}: {first.cell}: {first.reason}{others}; correct it, or use '
        'on_error="fill" or "drop"'
    )
