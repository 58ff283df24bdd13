"""Conversion of media cells of any supported kind to a column of paths and bytes.

| cell | becomes |
|---|---|
| text, os.PathLike | path or URL, unchanged |
| bytes | bytes, unchanged |
| dict or struct with `bytes` and `path`, as Hugging Face datasets stores media | its bytes, or else its path |
| the same with `array`, for audio also `sampling_rate` | its bytes, or else a PNG or WAV of its array, or its path |
| PIL image, array or torch tensor of an image | a PNG; for an unchanged PIL image of a local file, its path |
| (samples, rate) of audio | a WAV |
| dict of an array of audio and path | the path, if the file has the same samples |
| array or tensor of one or two dimensions | a PNG or a WAV, depending on the feature |
| None, NaN, NA, empty text or bytes, a dict of these alone | missing |

A column may mix them. Arrays of two or three dimensions are images in the format of `encode_png`; tensors of three
dimensions are channels first. Samples are in the format of `encode_wav`: the shorter of two dimensions is the channels.
Arrays that may be either are .npy files with a rate of 0 until a feature encodes them. Lists are audio.
"""

from __future__ import annotations

import importlib
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from tokenize import TokenError
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from daskprep.columns.kernels import only_where
from daskprep.errors import ColumnError, MediaError

MediaKind = Literal["image", "audio"]

# At most one of path and bytes is present; the rate belongs to samples that were encoded as bytes.
CELL_TYPE = pa.struct([("path", pa.string()), ("bytes", pa.large_binary()), ("rate", pa.int32())])
_TEXT_TYPES = (pa.string(), pa.large_string(), pa.string_view())
_AMBIGUOUS_RATE = 0  # marks .npy bytes of arrays that could be images or audio
_ACCEPTED_TYPES = {
    "image": "paths, bytes, or structs of bytes and path (text)",
    "audio": "paths, bytes, structs of bytes and path (text), or of array (a list) and sampling_rate (integers)",
}
ACCEPTED_OBJECTS = {
    "image": "text, bytes, dicts of bytes, path and array, PIL images, arrays and tensors",
    "audio": "text, bytes, dicts of bytes and path, dicts of array and sampling_rate, (samples, rate), and arrays",
}
_NO_RATE = (
    "samples need their rate: pass the feature's sampling_rate, (samples, rate), or a dict of array and sampling_rate"
)
_NPY_HEADER_BYTES = 1 << 17
_NPY_ERRORS = (ValueError, TypeError, SyntaxError, EOFError, RecursionError, MemoryError, TokenError, Warning)


class UnreadableCell(NamedTuple):
    """Cell that cannot be converted: its row position, and the reason."""

    row: int
    reason: str


class _CellContent(NamedTuple):
    """Path or bytes of a cell; all fields are None for a missing cell."""

    path: str | None = None
    data: bytes | None = None
    rate: int | None = None


_MISSING = _CellContent()


def convert_media_column(
    column: pa.Array | pa.ChunkedArray | Sequence[object], kind: MediaKind, rate: int | None = None
) -> pa.StructArray:
    """Return a column of media as an Arrow column of `CELL_TYPE`.

    `rate` is the sampling rate of samples without one. Raise ColumnError for a column of an unsupported type or with an
    unreadable cell. `convert_media_objects` returns unreadable cells instead.
    """
    if isinstance(column, pa.ChunkedArray):
        chunks = [convert_media_column(chunk, kind, rate) for chunk in column.chunks]
        return pa.concat_arrays([pa.nulls(0, CELL_TYPE), *chunks])
    if isinstance(column, pa.Array):
        return _encode_ambiguous(_convert_arrow(column, kind, rate), kind, rate)
    return _encode_ambiguous(_convert_or_raise(column, kind), kind, rate)


def convert_media_objects(values: Iterable[object], kind: MediaKind) -> tuple[pa.StructArray, list[UnreadableCell]]:
    """Return objects as `CELL_TYPE`, and the unreadable cells, which are missing there."""
    contents: list[_CellContent] = []
    unreadable: list[UnreadableCell] = []
    for row, value in enumerate(values):
        try:
            contents.append(_parse_cell(value, kind))
        except MediaError as error:
            reason, name = str(error), type(value).__name__
            unreadable.append(UnreadableCell(row, f"{name}: {reason}" if reason else name))
            contents.append(_MISSING)
    paths, media, rates = zip(*contents, strict=True) if contents else ((), (), ())
    columns = zip((paths, media, rates), (field.type for field in CELL_TYPE), strict=True)
    return _build_cells(*(pa.array(column, column_type) for column, column_type in columns)), unreadable


def _convert_or_raise(values: Iterable[object], kind: MediaKind) -> pa.StructArray:
    """Return Python objects as a column of `CELL_TYPE`; ColumnError for an unreadable one."""
    cells, unreadable = convert_media_objects(values, kind)
    if unreadable:
        row, reason = unreadable[0]
        raise ColumnError(
            f"row {row} holds no {kind} ({reason}), the first of {len(unreadable):,} unreadable cells; accepted are "
            f"{ACCEPTED_OBJECTS[kind]}"
        )
    return cells


def _encode_ambiguous(cells: pa.StructArray, kind: MediaKind, rate: int | None) -> pa.StructArray:
    """Return cells with PNG or WAV files in place of .npy arrays.

    ColumnError if one cannot be encoded, such as audio without `rate`.
    """
    is_array = pc.fill_null(pc.equal(pc.struct_field(cells, "rate"), _AMBIGUOUS_RATE), fill_value=False)
    if not pc.any(is_array).as_py():
        return cells
    values: list[object] = [None] * len(cells)
    for row in np.flatnonzero(is_array).tolist():
        array = parse_npy(cells[row]["bytes"].as_buffer())
        values[row] = (array, rate) if kind == "audio" else array.reshape(*array.shape, 1)
    encoded = _convert_or_raise(values, kind)
    field_pairs = [[pc.struct_field(array, field.name) for array in (encoded, cells)] for field in CELL_TYPE]
    return _build_cells(*(pc.if_else(is_array, *pair) for pair in field_pairs))


def parse_npy(source: pa.Buffer | bytes) -> np.ndarray:
    """Return the numbers of an .npy file as a view; MediaError for other files."""
    view = memoryview(source)
    file = io.BytesIO(view[:_NPY_HEADER_BYTES])
    try:
        is_short = np.lib.format.read_magic(file) == (1, 0)
        read_header = np.lib.format.read_array_header_1_0 if is_short else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read_header(file)
        if dtype.kind not in "biuf":
            raise MediaError(f"it is an array of {dtype}: expected numbers")
        array = np.frombuffer(view[file.tell() :], dtype)
        return array.reshape(shape, order="F" if is_fortran else "C")
    except _NPY_ERRORS as error:
        raise MediaError(f"it is not a .npy file of numbers, or cut short: {error}") from error


def _encode_npy(array: np.ndarray) -> _CellContent:
    """Return an array that could be an image or audio as .npy; MediaError for other than numbers."""
    if array.dtype.kind not in "biuf":
        raise MediaError(f"it is an array of {array.dtype}: expected numbers")
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return _CellContent(data=file.getvalue(), rate=_AMBIGUOUS_RATE)


def _build_cells(path: pa.Array, data: pa.Array, rate: pa.Array | None = None) -> pa.StructArray:
    """Return a column of `CELL_TYPE`; bytes take precedence over paths, and empty ones are missing."""
    path = only_where(pc.not_equal(path, ""), path)
    empty = pc.equal(pc.binary_length(data), 0)
    if pc.any(empty).as_py():
        data = only_where(pc.invert(empty), data)
    path = only_where(data.is_null(), path)
    rate = pa.nulls(len(data), pa.int32()) if rate is None else rate
    missing = pc.and_(path.is_null(), data.is_null())
    return pa.StructArray.from_arrays([path, data, rate], fields=list(CELL_TYPE), mask=missing)


def _convert_arrow(column: pa.Array, kind: MediaKind, rate: int | None) -> pa.StructArray:
    """Return an Arrow column as `CELL_TYPE`, samples in lists as WAV; ColumnError for other types."""
    data_type = column.type
    if isinstance(data_type, pa.BaseExtensionType):
        return _convert_arrow(column.storage, kind, rate)
    if pt.is_dictionary(data_type):
        return _convert_arrow(column.dictionary_decode(), kind, rate)
    if kind == "audio" and _is_list_type(data_type):
        return _convert_or_raise(((_to_numpy(cell), rate) if cell.is_valid else None for cell in column), kind)
    if data_type in _TEXT_TYPES:
        return _build_cells(column.cast(pa.string()), pa.nulls(len(column), pa.large_binary()))
    if _is_binary_type(data_type):
        return _build_cells(pa.nulls(len(column), pa.string()), column.cast(pa.large_binary()))
    if pt.is_struct(data_type) and _is_media_struct(data_type, kind):
        return _convert_structs(column, kind)
    if pt.is_null(data_type) or (
        pt.is_floating(data_type) and column.is_null(nan_is_null=True).true_count == len(column)
    ):
        return pa.nulls(len(column), CELL_TYPE)
    remedy = 'use another type, such as "number", or convert it to paths or bytes'
    if _is_list_type(data_type):
        remedy = "lists have no image shape: use a pandas column of NumPy arrays"
    raise ColumnError(
        f"a column of {data_type} holds no {kind} cells, only {_ACCEPTED_TYPES[kind]} can be read; {remedy}"
    )


def _is_binary_type(data_type: pa.DataType) -> bool:
    return data_type in (pa.binary(), pa.large_binary(), pa.binary_view()) or pt.is_fixed_size_binary(data_type)


def _is_list_type(data_type: pa.DataType) -> bool:
    return any(is_type(data_type) for is_type in (pt.is_list, pt.is_large_list, pt.is_fixed_size_list))


def _is_media_struct(data_type: pa.StructType, kind: MediaKind) -> bool:
    """Return whether a struct has readable fields of media."""
    fields = {field.name: field.type for field in data_type}
    path, data, rate = (fields.get(name, pa.null()) for name in ("path", "bytes", "sampling_rate"))
    if not (pt.is_null(path) or path in _TEXT_TYPES) or not (pt.is_null(data) or _is_binary_type(data)):
        return False
    if kind == "audio" and "array" in fields:
        return _is_list_type(fields["array"]) and pt.is_integer(rate)
    return "path" in fields or "bytes" in fields


def _convert_structs(column: pa.StructArray, kind: MediaKind) -> pa.StructArray:
    """Return structs of path and bytes, or of samples, as cells; ColumnError for unreadable samples."""
    if kind == "audio" and column.type.get_field_index("array") >= 0:
        return _convert_or_raise(_iterate_dicts(column), kind)
    rate = column.field("rate") if column.type == CELL_TYPE else None
    path, data = _get_field(column, "path"), _get_field(column, "bytes")
    return _build_cells(path.cast(pa.string()), data.cast(pa.large_binary()), rate)


def _get_field(column: pa.StructArray, name: str) -> pa.Array:
    # `column.field` would return arbitrary values for null structs; `struct_field` returns null.
    return pc.struct_field(column, name) if column.type.get_field_index(name) >= 0 else pa.nulls(len(column))


def _iterate_dicts(column: pa.StructArray) -> Iterator[dict[str, Any]]:
    """Yield structs as dicts of four keys, None if absent."""
    names = ("path", "bytes", "array", "sampling_rate")
    for path, data, samples, rate in zip(*(_get_field(column, name) for name in names), strict=True):
        yield {"path": path.as_py(), "bytes": data.as_py(), "array": _to_numpy(samples), "sampling_rate": rate.as_py()}


def _to_numpy(samples: pa.Scalar) -> Any:
    """Return samples as an array, or a list of an array per channel; None for null."""
    if not samples.is_valid:
        return None
    if _is_list_type(samples.values.type):
        return [_to_numpy(channel) for channel in samples.values]
    return samples.values.to_numpy(zero_copy_only=False)


def _parse_cell(value: object, kind: MediaKind) -> _CellContent:
    """Return the content of a cell; MediaError if it is not media."""
    if _is_missing(value):
        return _MISSING
    if isinstance(value, str | os.PathLike):
        return _CellContent(path=_check_utf8(os.fsdecode(value)))
    if isinstance(value, bytes | bytearray | memoryview):
        return _CellContent(data=bytes(value))
    if isinstance(value, Mapping):
        return _parse_mapping(value, kind)
    if kind == "image":
        return _encode_image(value)
    if isinstance(value, tuple) and len(value) == 2:
        return _encode_as_wav(*value)
    if isinstance(value, np.ndarray) or is_tensor(value):
        return _encode_npy(_to_array(value))
    raise MediaError


def _is_missing(value: object) -> bool:
    """Return whether a cell is None, NaN, NA, NaT, or empty."""
    # NA and NaT are recognized by name, to work without importing pandas.
    return (
        value is None
        or (isinstance(value, str | bytes | bytearray | memoryview) and not value)
        or (isinstance(value, float | np.floating) and bool(np.isnan(value)))
        or type(value).__name__ in {"NAType", "NaTType"}
    )


def _check_utf8(path: str) -> str:
    """Return the path; MediaError if it is not UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise MediaError(f"{path!r} is not UTF-8 text; rename the file") from error
    return path


def _parse_mapping(cell: Mapping[Any, Any], kind: MediaKind) -> _CellContent:
    """Return the content of a dict: bytes, array or path; MediaError for others."""
    data, path, samples = (None if _is_missing(cell.get(key)) else cell[key] for key in ("bytes", "path", "array"))
    if isinstance(data, bytes | bytearray | memoryview):
        return _CellContent(data=bytes(data))
    if samples is not None and data is None:
        if kind == "audio" and (rate := cell.get("sampling_rate")) is not None:
            return _encode_as_wav(samples, rate, path)
        # Sources read a dict with an array as audio, and without a rate it may have pixels.
        if kind == "image" or (values := _to_array(samples)).ndim == 3:
            return _encode_pixels(samples)
        return _encode_npy(values)
    if isinstance(path, str | os.PathLike) and data is None:
        return _CellContent(path=_check_utf8(os.fsdecode(path)))
    if data is not None or path is not None or (cell and not {"bytes", "path", "array"} & set(cell)):
        entries = ", ".join(f"{key} of type {type(value).__name__}" for key, value in cell.items())
        array = "array and sampling_rate of audio" if kind == "audio" else "array of an image"
        raise MediaError(f"it has {entries}; expected bytes, a path that is text, or {array}")
    return _MISSING


def _encode_image(value: Any) -> _CellContent:
    """Return a PIL image or 3-D array as PNG or its path.

    Arrays of 1 or 2 dimensions, which could also be audio, are returned as .npy. An unchanged PIL image of a local file
    becomes its path. Tensors of 3 dimensions are channels first.
    """
    if isinstance(value, np.ndarray) or is_tensor(value):
        array = _to_array(value)
        if array.ndim in {1, 2}:
            return _encode_npy(array)
        channels_first = is_tensor(value) and array.ndim == 3 and array.shape[0] in range(1, 5)
        return _encode_as_png(np.moveaxis(array, 0, -1) if channels_first else array)
    if not is_pillow(value):
        raise MediaError
    pixels = _codec("pixels")
    with pixels.convert_pillow_errors():  # Pillow may read the file only now
        path = pixels.find_source_file(value)
        return _encode_as_png(value) if path is None else _CellContent(path=_check_utf8(path))


def _encode_pixels(pixels: Any) -> _CellContent:
    """Return the array of an image as PNG; MediaError unless it has two or three dimensions."""
    array = _to_array(pixels)
    if array.ndim not in {2, 3}:
        raise MediaError(f"it is an array of shape {array.shape}: expected 2 or 3 dimensions")
    return _encode_image(pixels if is_tensor(pixels) and array.ndim == 3 else array.reshape(*array.shape[:2], -1))


def is_tensor(value: object) -> bool:
    """Return whether a value is a torch tensor."""
    return all(hasattr(value, name) for name in ("detach", "cpu", "numpy"))


def is_pillow(value: object) -> bool:
    """Return whether a value is a PIL image, without importing Pillow."""
    return any(base.__module__ == "PIL.Image" for base in type(value).__mro__)


def _to_array(value: Any) -> np.ndarray:
    """Return a tensor or list as an array, or raise MediaError."""
    try:
        return np.asarray(value.detach().cpu().numpy() if is_tensor(value) else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise MediaError(f"it cannot be converted to an array: {error}") from error


def _encode_as_png(image: Any) -> _CellContent:
    return _CellContent(data=_codec("pixels").encode_png(image))


def _encode_as_wav(samples: object, rate: object, path: object = None) -> _CellContent:
    """Return samples as WAV, or the `path` of equal ones; MediaError without an integer `rate`."""
    audio = _codec("audio")
    if rate is None:
        raise MediaError(_NO_RATE)
    if not isinstance(rate, int | float | np.integer | np.floating) or not float(rate).is_integer():
        raise MediaError(f"a sampling rate of {rate!r}: expected an integer, in samples per second")
    samples_per_second = int(rate)
    wav = audio.encode_wav(_to_array(samples), samples_per_second)
    if isinstance(path, str) and os.path.isfile(path) and audio.matches_wav_file(path, wav):  # noqa: PTH113 as below
        return _CellContent(path=os.path.abspath(path), rate=samples_per_second)  # noqa: PTH100 a Path would tidy it up
    return _CellContent(data=wav, rate=samples_per_second)


def _codec(name: str) -> Any:
    """Return the module of `daskprep.extensions.media` that encodes objects; paths and bytes do without it."""
    return importlib.import_module(f"daskprep.extensions.media.{name}")
