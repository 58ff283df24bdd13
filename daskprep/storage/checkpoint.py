"""Results of tasks in files, from which work that was killed goes on: checked, and never executed."""

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
from daskprep.storage.files import Folder

# Counts up when what is kept means something else than before.
FORMAT = 3
TRAILER_BYTES = 4
_HEADER_BYTES = 8
_checkpoint_types: dict[str, type] = {}

Kind = TypeVar("Kind", bound=type)


def checkpointable(kind: Kind) -> Kind:
    """Let instances of a dataclass or a named tuple be kept, by the name of the class."""
    _checkpoint_types[f"{kind.__module__}.{kind.__qualname__}"] = kind
    return kind


@dataclass(frozen=True)
class Checkpoint:
    """The results of a pass in a folder, each under the numbers of its partitions.

    They count for the same rows, cut into the same partitions, and the same work; so the folder is named by a digest of
    these. ``companion_file(partition)`` names a file that the task leaves there, and without which its result does not count.
    """

    folder: Folder
    name: str
    companion_file: Callable[[int], str] | None = None

    def size(self) -> int | None:
        """Return how many partitions the tasks took of which results are here; None if there are no results."""
        name_parts = [name.split("-") for name in self.folder.children() if name.startswith(f"{self.name}-")]
        return max((int(stop.partition(".")[0]) - int(start) for _, start, stop in name_parts), default=None)

    def get_or_compute(self, partition_range: range, compute: Callable[[], Any]) -> Any:
        """Return what is kept of some partitions, or else make it and keep it, if it is of kinds that can be kept."""
        name = f"{self.name}-{partition_range.start}-{partition_range.stop}.kept"
        result = read_checkpoint(
            self.folder, name, *(self.companion_file(i) for i in partition_range if self.companion_file)
        )
        if result is None:
            write_checkpoint(self.folder, name, result := compute())
        return result


def write_checkpoint(folder: Folder, name: str, value: Any) -> bool:
    """Write a value to a file, and return whether it is there: only if all of it is of kinds that can be kept."""
    # The same work may end elsewhere and remove the folder.
    with contextlib.suppress(FileNotFoundError, _NotCheckpointableError), write_with_checksum(folder, name) as write:
        for buffer in serialize(value):
            write(buffer)
        return True
    return False


def read_checkpoint(folder: Folder, name: str, *companions: str) -> Any:
    """Return what `write_checkpoint` wrote; None if that or a file beside it is not there, or if another release wrote it."""
    with contextlib.suppress(FileNotFoundError, _NotCheckpointableError):
        if all(is_intact(folder, one) for one in (name, *companions)):
            return deserialize(folder.read(name)[:-TRAILER_BYTES])
    return None


class _NotCheckpointableError(Exception):
    """Raised for what cannot be kept: an instance of a class that is not known here, or what another release kept."""


def serialize(value: Any) -> list[Buffer]:
    """Return buffers of which `deserialize` makes an equal value."""
    buffers: list[Any] = []
    tree = _to_tree(value, buffers)
    header = json.dumps([FORMAT, tree, [memoryview(one).nbytes for one in buffers]]).encode()
    return [len(header).to_bytes(_HEADER_BYTES, "little"), header, *buffers]


def deserialize(data: bytes) -> Any:
    """Return the value of which `serialize` made these bytes."""
    end = _HEADER_BYTES + int.from_bytes(data[:_HEADER_BYTES], "little")
    file_format, tree, sizes = json.loads(data[_HEADER_BYTES:end])
    if file_format != FORMAT:
        raise _NotCheckpointableError
    starts = np.cumsum([end, *sizes]).tolist()
    buffer = pa.py_buffer(data)
    return _from_tree(tree, [buffer.slice(start, size) for start, size in zip(starts, sizes, strict=False)])


def _to_tree(value: Any, buffers: list[Any]) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in (list, tuple):
        return {kind.__name__: [_to_tree(one, buffers) for one in value]}
    if kind is dict:
        return {"dict": [[_to_tree(key, buffers), _to_tree(one, buffers)] for key, one in value.items()]}
    name = f"{kind.__module__}.{kind.__qualname__}"
    if _checkpoint_types.get(name) is kind:
        names = getattr(kind, "_fields", None) or [field.name for field in dataclasses.fields(value)]
        return {"known": [name, {one: _to_tree(getattr(value, one), buffers) for one in names}]}
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        buffers.append(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
        return {"array": [value.dtype.str, value.shape, len(buffers) - 1]}
    if isinstance(value, pa.Array | pa.DataType):
        column = pa.array([], value) if isinstance(value, pa.DataType) else value
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, pa.schema([("", column.type)])) as stream:
            stream.write_table(pa.table({"": column}))
        buffers.append(sink.getvalue())
        return {"type" if isinstance(value, pa.DataType) else "arrow": len(buffers) - 1}
    raise _NotCheckpointableError


def _from_tree(tree: Any, buffers: Sequence[pa.Buffer]) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    match kind:
        case "list":
            return [_from_tree(one, buffers) for one in content]
        case "tuple":
            return tuple(_from_tree(one, buffers) for one in content)
        case "dict":
            return {_from_tree(key, buffers): _from_tree(one, buffers) for key, one in content}
        case "known":
            if content[0] not in _checkpoint_types:
                raise _NotCheckpointableError
            return _checkpoint_types[content[0]](**{name: _from_tree(one, buffers) for name, one in content[1].items()})
        case "array":
            dtype, shape, buffer_index = content
            return np.frombuffer(buffers[buffer_index], np.dtype(dtype)).reshape(shape).copy()
    column = pa.ipc.open_stream(buffers[content]).read_all().column(0)
    return column.type if kind == "type" else column.combine_chunks()


@contextmanager
def write_with_checksum(folder: Folder, name: str) -> Iterator[Any]:
    """Write a file that ends with its checksum: whole or not at all, but not flushed to the disk.

    Gives a function that appends a buffer.
    """
    checksum = 0
    with folder.writer(name, durable=False) as append:

        def write(buffer: Any) -> int:
            nonlocal checksum
            checksum = crc32c(buffer, start=checksum)
            return append(buffer)

        yield write
        append(checksum.to_bytes(TRAILER_BYTES, "little"))


def is_intact(folder: Folder, name: str) -> bool:
    """Tell whether a file that `write_with_checksum` wrote is there and whole, also after a loss of power."""
    if (size := folder.size(name)) is None or size < TRAILER_BYTES:
        return False
    data = folder.read_buffer(name)
    checksum = crc32c(data.slice(0, size - TRAILER_BYTES))
    trailer: bytes = data.slice(size - TRAILER_BYTES).to_pybytes()
    return checksum.to_bytes(TRAILER_BYTES, "little") == trailer
