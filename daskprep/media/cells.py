"""What a media cell may hold, as a column of paths and bytes.

| cell | becomes |
|---|---|
| text, os.PathLike | path or URL, as it is |
| bytes | bytes, as they are |
| dict or struct with `bytes` and `path`, as Hugging Face datasets stores media | its bytes, or else its path |
| the same with `array`, of sounds also `sampling_rate` | its bytes, or else a PNG or WAV of its array, or its path |
| PIL image, array or torch tensor of an image | a PNG; the path of its file, where it holds what is in that |
| (samples, rate) of a sound | a WAV |
| a dict of an array and a path | the path, where the file holds what is in the array |
| array or tensor of one or two dimensions | a PNG or a WAV, as the feature says |
| None, NaN, NA, empty text or bytes, a dict of these alone | missing |

A column may mix them. Arrays of two or three dimensions are images as `encode_png` reads them, and tensors of three
have their channels first. Samples are what `encode_wav` takes: of two dimensions, the shorter is that of the channels.
Arrays that may be either are .npy files with a rate of 0, until a feature says what they are; its lists are sounds.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from tokenize import TokenError
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from daskprep.errors import ColumnError, MediaError
from daskprep.kernels import only_where

Kind = Literal["image", "audio"]

# Of each cell at most one of path and bytes is there; the rate is that of the samples which bytes were made of.
CELL_TYPE = pa.struct([("path", pa.string()), ("bytes", pa.large_binary()), ("rate", pa.int32())])
_TEXT = (pa.string(), pa.large_string(), pa.string_view())
_EITHER = 0  # stands for the rate of arrays that could be images or sounds
_NOUNS = {"image": "image", "audio": "sound"}
_ACCEPTED = {
    "image": "paths, bytes, or structs of bytes and path (text)",
    "audio": "paths, bytes, structs of bytes and path (text), or of array (a list) and sampling_rate (whole numbers)",
}
ACCEPTED_OBJECTS = {
    "image": "text, bytes, dicts of bytes, path and array, PIL images, arrays and tensors",
    "audio": "text, bytes, dicts of bytes and path, dicts of array and sampling_rate, (samples, rate), and arrays",
}
_NPY_HEADER_BYTES = 1 << 17
_NO_NPY = (ValueError, TypeError, SyntaxError, EOFError, RecursionError, MemoryError, TokenError, Warning)


class NotMedia(NamedTuple):
    """A cell that is no medium: its row, and its type with what is wrong where that is not the type alone."""

    row: int
    what: str


class _Content(NamedTuple):
    path: str | None = None
    data: bytes | None = None
    rate: int | None = None


_MISSING = _Content()


def media_cells(
    column: pa.Array | pa.ChunkedArray | Sequence[object], kind: Kind, rate: int | None = None
) -> pa.StructArray:
    """Return a column of media as an Arrow column of `CELL_TYPE`, null where a cell is missing.

    Samples without a rate of their own have `rate`. A column of a type that holds no media, or with a cell that is
    unreadable, is a ColumnError; `object_cells` goes on behind such cells.
    """
    if isinstance(column, pa.ChunkedArray):
        return pa.concat_arrays([pa.nulls(0, CELL_TYPE), *(media_cells(chunk, kind, rate) for chunk in column.chunks)])
    if isinstance(column, pa.Array):
        return _of_kind(_arrow_cells(column, kind, rate), kind, rate)
    return _of_kind(_all_readable(column, kind), kind, rate)


def object_cells(values: Iterable[object], kind: Kind) -> tuple[pa.StructArray, list[NotMedia]]:
    """Return Python objects as a column of `CELL_TYPE`, and what is unreadable, of which the cells are null."""
    contents: list[_Content] = []
    unreadable: list[NotMedia] = []
    for row, value in enumerate(values):
        try:
            contents.append(_content(value, kind))
        except MediaError as error:
            reason, name = str(error), type(value).__name__
            unreadable.append(NotMedia(row, f"{name}: {reason}" if reason else name))
            contents.append(_MISSING)
    paths, media, rates = zip(*contents, strict=True) if contents else ((), (), ())
    columns = zip((paths, media, rates), (one.type for one in CELL_TYPE), strict=True)
    return _struct(*(pa.array(column, of) for column, of in columns)), unreadable


def _all_readable(values: Iterable[object], kind: Kind) -> pa.StructArray:
    cells, unreadable = object_cells(values, kind)
    if unreadable:
        row, what = unreadable[0]
        raise ColumnError(
            f"row {row} holds no {_NOUNS[kind]} ({what}), of {len(unreadable):,} unreadable cells the first; accepted "
            f"are {ACCEPTED_OBJECTS[kind]}"
        )
    return cells


def _of_kind(cells: pa.StructArray, kind: Kind, rate: int | None) -> pa.StructArray:
    """Return cells with files of their kind in place of arrays that could be of either."""
    is_array = pc.fill_null(pc.equal(pc.struct_field(cells, "rate"), _EITHER), fill_value=False)
    if not pc.any(is_array).as_py():
        return cells
    values: list[object] = [None] * len(cells)
    for row in np.flatnonzero(is_array).tolist():
        array = array_of_npy(cells[row]["bytes"].as_buffer())
        values[row] = (array, rate) if kind == "audio" else array.reshape(*array.shape, 1)
    found = _all_readable(values, kind)
    parts = [[pc.struct_field(one, field.name) for one in (found, cells)] for field in CELL_TYPE]
    return _struct(*(pc.if_else(is_array, *part) for part in parts))


def array_of_npy(source: pa.Buffer | bytes) -> np.ndarray:
    """Return the numbers of an .npy file, which are not copied; MediaError if it holds others, or not all."""
    view = memoryview(source)
    file = io.BytesIO(view[:_NPY_HEADER_BYTES])
    try:
        is_short = np.lib.format.read_magic(file) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if is_short else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read(file)
        if dtype.kind not in "biuf":
            raise MediaError(f"it is an array of {dtype}: expected numbers")
        array = np.frombuffer(view[file.tell() :], dtype)
        return array.reshape(shape, order="F" if is_fortran else "C")
    except _NO_NPY as error:
        raise MediaError(f"it is not a .npy file of numbers, or cut short: {error}") from error


def _of_either(array: np.ndarray) -> _Content:
    if array.dtype.kind not in "biuf":
        raise MediaError(f"it is an array of {array.dtype}: expected numbers")
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return _Content(data=file.getvalue(), rate=_EITHER)


def _struct(path: pa.Array, data: pa.Array, rate: pa.Array | None = None) -> pa.StructArray:
    path = only_where(pc.not_equal(path, ""), path)
    empty = pc.equal(pc.binary_length(data), 0)
    if pc.any(empty).as_py():
        data = only_where(pc.invert(empty), data)
    path = only_where(data.is_null(), path)
    rate = pa.nulls(len(data), pa.int32()) if rate is None else rate
    missing = pc.and_(path.is_null(), data.is_null())
    return pa.StructArray.from_arrays([path, data, rate], fields=list(CELL_TYPE), mask=missing)


def _arrow_cells(column: pa.Array, kind: Kind, rate: int | None) -> pa.StructArray:
    found = column.type
    if isinstance(found, pa.BaseExtensionType):
        return _arrow_cells(column.storage, kind, rate)
    if pt.is_dictionary(found):
        return _arrow_cells(column.dictionary_decode(), kind, rate)
    if kind == "audio" and _is_list(found):
        return _all_readable(((_numbers(cell), rate) if cell.is_valid else None for cell in column), kind)
    if found in _TEXT:
        return _struct(column.cast(pa.string()), pa.nulls(len(column), pa.large_binary()))
    if _is_bytes(found):
        return _struct(pa.nulls(len(column), pa.string()), column.cast(pa.large_binary()))
    if pt.is_struct(found) and _holds_media(found, kind):
        return _struct_cells(column, kind)
    if pt.is_null(found) or (pt.is_floating(found) and column.is_null(nan_is_null=True).true_count == len(column)):
        return pa.nulls(len(column), CELL_TYPE)
    remedy = ""
    if _is_list(found):
        remedy = "; the shape of what lists hold is not known: use a pandas column of NumPy arrays"
    raise ColumnError(f"a column of {found} holds no {_NOUNS[kind]}s, only {_ACCEPTED[kind]} can be read{remedy}")


def _is_bytes(found: pa.DataType) -> bool:
    return found in (pa.binary(), pa.large_binary(), pa.binary_view()) or pt.is_fixed_size_binary(found)


def _is_list(found: pa.DataType) -> bool:
    return any(is_one(found) for is_one in (pt.is_list, pt.is_large_list, pt.is_fixed_size_list))


def _holds_media(found: pa.StructType, kind: Kind) -> bool:
    fields = {field.name: field.type for field in found}
    path, data, rate = (fields.get(name, pa.null()) for name in ("path", "bytes", "sampling_rate"))
    if not (pt.is_null(path) or path in _TEXT) or not (pt.is_null(data) or _is_bytes(data)):
        return False
    if kind == "audio" and "array" in fields:
        return _is_list(fields["array"]) and pt.is_integer(rate)
    return "path" in fields or "bytes" in fields


def _struct_cells(column: pa.StructArray, kind: Kind) -> pa.StructArray:
    if kind == "audio" and column.type.get_field_index("array") >= 0:
        return _all_readable(_dicts(column), kind)
    rate = column.field("rate") if column.type == CELL_TYPE else None
    return _struct(_field(column, "path").cast(pa.string()), _field(column, "bytes").cast(pa.large_binary()), rate)


def _field(column: pa.StructArray, name: str) -> pa.Array:
    # The field of a missing struct may hold anything: `struct_field` makes it null.
    return pc.struct_field(column, name) if column.type.get_field_index(name) >= 0 else pa.nulls(len(column))


def _dicts(column: pa.StructArray) -> Iterator[dict[str, Any]]:
    """Give every row as a dict, samples as NumPy arrays."""
    names = ("path", "bytes", "array", "sampling_rate")
    for path, data, samples, rate in zip(*(_field(column, name) for name in names), strict=True):
        yield {"path": path.as_py(), "bytes": data.as_py(), "array": _numbers(samples), "sampling_rate": rate.as_py()}


def _numbers(samples: pa.Scalar) -> Any:
    if not samples.is_valid:
        return None
    if _is_list(samples.values.type):
        return [_numbers(channel) for channel in samples.values]
    return samples.values.to_numpy(zero_copy_only=False)


def _content(value: object, kind: Kind) -> _Content:
    """Return what a cell holds; MediaError if it is no medium, with nothing to say if its type tells why."""
    if _is_missing(value):
        return _MISSING
    if isinstance(value, str | os.PathLike):
        return _Content(path=_text(os.fsdecode(value)))
    if isinstance(value, bytes | bytearray | memoryview):
        return _Content(data=bytes(value))
    if isinstance(value, Mapping):
        return _from_mapping(value, kind)
    return _encoded_image(value) if kind == "image" else _encoded_sound(value)


def _is_missing(value: object) -> bool:
    # pandas is not needed for its own marks of what is missing.
    return (
        value is None
        or (isinstance(value, str | bytes | bytearray | memoryview) and not value)
        or (isinstance(value, float | np.floating) and bool(np.isnan(value)))
        or type(value).__name__ in {"NAType", "NaTType"}
    )


def _text(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise MediaError(f"{path!r} is not UTF-8 text; rename the file") from error
    return path


def _from_mapping(cell: Mapping[Any, Any], kind: Kind) -> _Content:
    data, path, samples = (None if _is_missing(cell.get(key)) else cell[key] for key in ("bytes", "path", "array"))
    if isinstance(data, bytes | bytearray | memoryview):
        return _Content(data=bytes(data))
    if samples is not None and data is None:
        return _wav(samples, cell.get("sampling_rate"), path) if kind == "audio" else _picture(samples, path)
    if isinstance(path, str | os.PathLike) and data is None:
        return _Content(path=_text(os.fsdecode(path)))
    if data is not None or path is not None or (cell and not {"bytes", "path", "array"} & set(cell)):
        found = ", ".join(f"{key} of type {type(value).__name__}" for key, value in cell.items())
        array = "array and sampling_rate of a sound" if kind == "audio" else "array of an image"
        raise MediaError(f"it has {found}; expected bytes, a path that is text, or {array}")
    return _MISSING


def _encoded_image(value: Any) -> _Content:
    if isinstance(value, np.ndarray) or is_tensor(value):
        array = _array(value)
        if array.ndim in {1, 2}:
            return _of_either(array)
        channels_first = is_tensor(value) and array.ndim == 3 and array.shape[0] in range(1, 5)
        return _png(np.moveaxis(array, 0, -1) if channels_first else array)
    if is_pillow(value):
        from daskprep.media.pixels import file_of, media_errors  # noqa: PLC0415 columns of paths need none of it

        with media_errors():  # Pillow may read the file only now
            path = file_of(value)
            return _png(value) if path is None else _Content(path=_text(path))
    raise MediaError


def _picture(pixels: Any, path: object) -> _Content:
    from daskprep.media.pixels import holds  # noqa: PLC0415 as above

    array = _array(pixels)
    if array.ndim not in {2, 3}:
        raise MediaError(f"it is an array of shape {array.shape}: expected 2 or 3 dimensions")
    made = _encoded_image(pixels if is_tensor(pixels) and array.ndim == 3 else array.reshape(*array.shape[:2], -1))
    if isinstance(path, str) and os.path.isfile(path) and holds(path, made.data or b""):  # noqa: PTH113 as below
        return _Content(path=os.path.abspath(path))  # noqa: PTH100 as below
    return made


def _encoded_sound(value: object) -> _Content:
    if isinstance(value, tuple) and len(value) == 2:
        return _wav(*value)
    if isinstance(value, np.ndarray) or is_tensor(value):
        return _of_either(_array(value))
    raise MediaError


def is_tensor(value: object) -> bool:
    """Tell whether something is a torch tensor, without importing torch."""
    return all(hasattr(value, name) for name in ("detach", "cpu", "numpy"))


def is_pillow(value: object) -> bool:
    """Tell whether something is a PIL image, without importing Pillow."""
    return any(base.__module__ == "PIL.Image" for base in type(value).__mro__)


def _array(value: Any) -> np.ndarray:
    """Return a tensor, an array or nested lists as an array."""
    try:
        return np.asarray(value.detach().cpu().numpy() if is_tensor(value) else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise MediaError(f"it cannot be made an array: {error}") from error


def _png(image: Any) -> _Content:
    from daskprep.media.pixels import encode_png  # noqa: PLC0415 as above

    return _Content(data=encode_png(image))


def _wav(samples: object, rate: object, path: object = None) -> _Content:
    from daskprep.media.audio import encode_wav, holds  # noqa: PLC0415 as above

    if rate is None:
        raise MediaError(
            "samples need their rate: give the feature's sampling_rate, (samples, rate), or a dict of array and "
            "sampling_rate"
        )
    samples_per_second = _rate(rate)
    wav = encode_wav(_array(samples), samples_per_second)
    if isinstance(path, str) and os.path.isfile(path) and holds(path, wav):  # noqa: PTH113 a Path would tidy it up
        return _Content(path=os.path.abspath(path), rate=samples_per_second)  # noqa: PTH100 as above
    return _Content(data=wav, rate=samples_per_second)


def _rate(rate: Any) -> int:
    number = isinstance(rate, int | float | np.integer | np.floating) and not isinstance(rate, bool)
    if not number or not float(rate).is_integer():
        raise MediaError(f"a sampling rate of {rate!r}; expected is how many samples make a second")
    return int(rate)
