"""Checkpoints: results of tasks in files with checksums, from which killed work resumes; loading executes no code."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from daskprep.storage.checksum import Buffer, crc32c
from daskprep.storage.files import Folder, open_output

# Increase it when the meaning of saved values changes.
FORMAT = 7
TRAILER_BYTES = 4
_HEADER_BYTES = 8
_checkpoint_types: dict[str, type] = {}
_checkpoint_names: dict[type, str] = {}
_field_names: dict[type, tuple[str, ...]] = {}

Kind = TypeVar("Kind", bound=type)


def field_names(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass or named tuple; `dataclasses.fields` takes ten times as long."""
    if kind not in _field_names:
        _field_names[kind] = getattr(kind, "_fields", None) or tuple(field.name for field in dataclasses.fields(kind))
    return _field_names[kind]


def checkpointable(kind: Kind) -> Kind:
    """Register a dataclass or tuple as a type of checkpoints."""
    _checkpoint_names[kind] = name = f"{kind.__module__}.{kind.__qualname__}"
    _checkpoint_types[name] = kind
    return kind


@dataclass(frozen=True)
class Checkpoint:
    """The saved results of the tasks of a pass."""

    folder: Folder
    name: str  # of the pass; the names of its files start with it.
    # Returns the name of a file that the task of a partition writes to the folder; the result is valid only with it.
    companion_file: Callable[[int], str] | None = None

    def size(self) -> int | None:
        """Return the partitions of the largest task; None without any."""
        name_parts = [name.split("-") for name in self.folder.children() if name.startswith(f"{self.name}-")]
        return max((int(stop.partition(".")[0]) - int(start) for _, start, stop in name_parts), default=None)

    def get_or_compute(self, partition_range: range, compute: Callable[[], Any]) -> Any:
        """Return the saved result of partitions, or compute and save it."""
        name = f"{self.name}-{partition_range.start}-{partition_range.stop}.kept"
        result = read_checkpoint(
            self.folder, name, *(self.companion_file(i) for i in partition_range if self.companion_file)
        )
        if result is None:
            write_checkpoint(self.folder, name, result := compute())
        return result


def write_checkpoint(folder: Folder, name: str, value: Any) -> bool:
    """Write a value to a file; False for unsupported types, or without the folder."""
    # Another process with the same work may have finished it and removed the folder.
    with contextlib.suppress(FileNotFoundError, _NotCheckpointableError), write_with_checksum(folder, name) as write:
        with open_output(write) as out:
            for buffer in serialize(value):
                out.write(buffer)
        return True
    return False


def read_checkpoint(folder: Folder, name: str, *companions: str) -> Any:
    """Return the value of a file; None unless it and `companions` are intact."""
    with contextlib.suppress(FileNotFoundError, _NotCheckpointableError):
        if all(is_intact(folder, file) for file in (name, *companions)):
            return deserialize(folder.read(name)[:-TRAILER_BYTES])
    return None


class _NotCheckpointableError(Exception):
    """Raised for unsupported types and other releases."""


def serialize(value: Any) -> list[Buffer]:
    """Return a value as buffers for `deserialize`; _NotCheckpointableError for other types."""
    arrays: list[np.ndarray] = []
    columns: dict[Any, tuple[int, pa.Array]] = {}
    tree = _to_tree(value, arrays, columns)
    buffers: list[Any] = [array.reshape(-1).view(np.uint8) for array in arrays]
    if columns:
        rows = []  # all in one stream, as lists of one row: a stream for each would reacquire the GIL a dozen times
        for _, column in columns.values():
            offsets = pa.py_buffer(np.array([0, len(column)]))
            rows.append(pa.Array.from_buffers(pa.large_list(column.type), 1, [None, offsets], children=[column]))
        batch = pa.RecordBatch.from_arrays(rows, [str(i) for i in range(len(rows))])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        buffers.append(sink.getvalue())
    header = json.dumps([FORMAT, tree, [memoryview(buffer).nbytes for buffer in buffers], bool(columns)]).encode()
    return [len(header).to_bytes(_HEADER_BYTES, "little"), header, *buffers]


def deserialize(data: bytes) -> Any:
    """Return the value that `serialize` of this release encoded; _NotCheckpointableError for others."""
    end = _HEADER_BYTES + int.from_bytes(data[:_HEADER_BYTES], "little")
    file_format, tree, *content = json.loads(data[_HEADER_BYTES:end])
    if file_format != FORMAT:
        raise _NotCheckpointableError
    sizes, has_columns = content
    starts = np.cumsum([end, *sizes]).tolist()
    buffer = pa.py_buffer(data)
    buffers = [buffer.slice(start, size) for start, size in zip(starts, sizes, strict=False)]
    columns = pa.ipc.open_stream(buffers.pop()).read_next_batch().columns if has_columns else []
    return _from_tree(tree, buffers, columns)


def _to_tree(value: Any, arrays: list[np.ndarray], columns: dict[Any, tuple[int, pa.Array]]) -> Any:
    """Return a value as JSON values, with indexes of arrays; _NotCheckpointableError for other types.

    A type is in `columns` once, as an array without cells.
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in (list, tuple):
        return {kind.__name__: [_to_tree(item, arrays, columns) for item in value]}
    if kind is dict:
        return {"dict": [[_to_tree(part, arrays, columns) for part in item] for item in value.items()]}
    if (name := _checkpoint_names.get(kind, "")) and _checkpoint_types[name] is kind:
        fields = {field: _to_tree(getattr(value, field), arrays, columns) for field in field_names(kind)}
        return {"known": [name, fields]}
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        arrays.append(np.ascontiguousarray(value))
        return {"array": [value.dtype.str, value.shape, len(arrays) - 1]}
    if isinstance(value, pa.Array | pa.DataType):
        is_type = isinstance(value, pa.DataType)
        key = value if is_type else len(columns)
        if key not in columns:
            columns[key] = len(columns), pa.array([], value) if is_type else value
        return {"type" if is_type else "arrow": columns[key][0]}
    raise _NotCheckpointableError


def _from_tree(tree: Any, buffers: Sequence[pa.Buffer], columns: Sequence[pa.Array]) -> Any:
    """Return the value that `_to_tree` converted."""
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    match kind:
        case "list":
            return [_from_tree(item, buffers, columns) for item in content]
        case "tuple":
            return tuple(_from_tree(item, buffers, columns) for item in content)
        case "dict":
            return {_from_tree(key, buffers, columns): _from_tree(item, buffers, columns) for key, item in content}
        case "known":
            if content[0] not in _checkpoint_types:
                raise _NotCheckpointableError
            fields = {key: _from_tree(item, buffers, columns) for key, item in content[1].items()}
            return _checkpoint_types[content[0]](**fields)
        case "array":
            dtype, shape, index = content
            return np.frombuffer(buffers[index], np.dtype(dtype)).reshape(shape).copy()
    column = columns[content].flatten()
    return column.type if kind == "type" else column


@contextmanager
def write_with_checksum(folder: Folder, name: str) -> Iterator[Any]:
    """Yield a function that appends to a new file, which its CRC-32C ends."""
    checksum = 0
    with folder.writer(name, durable=False) as append:

        def write(buffer: Any) -> int:
            nonlocal checksum
            checksum = crc32c(buffer, start=checksum)
            return append(buffer)

        yield write
        append(checksum.to_bytes(TRAILER_BYTES, "little"))


def is_intact(folder: Folder, name: str) -> bool:
    """Return whether a file of `write_with_checksum` is complete."""
    if (size := folder.size(name)) is None or size < TRAILER_BYTES:
        return False
    data = folder.read_buffer(name)
    checksum = crc32c(data.slice(0, size - TRAILER_BYTES))
    trailer: bytes = data.slice(size - TRAILER_BYTES).to_pybytes()
    return checksum.to_bytes(TRAILER_BYTES, "little") == trailer
