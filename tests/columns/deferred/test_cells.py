"""Cells of every kind become a path or bytes, and other cells raise."""

from __future__ import annotations

import io
import math
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from daskprep.columns.deferred.cells import CELL_TYPE, MediaKind, convert_media_column, convert_media_objects
from daskprep.errors import ColumnError
from daskprep.extensions.media.pixels import encode_png

SOUND = np.linspace(-0.5, 0.5, 40, dtype="float32")


def path(text: str) -> dict[str, Any]:
    return {"path": text, "bytes": None, "rate": None}


def content(data: bytes) -> dict[str, Any]:
    return {"path": None, "bytes": data, "rate": None}


def pixels(cell: dict[str, Any]) -> np.ndarray:
    image = pytest.importorskip("PIL.Image")
    assert cell["path"] is None
    return np.asarray(image.open(io.BytesIO(cell["bytes"]), formats=["PNG"]))


def samples(cell: dict[str, Any]) -> np.ndarray:
    soundfile = pytest.importorskip("soundfile")
    assert cell["path"] is None
    read, rate = soundfile.read(io.BytesIO(cell["bytes"]), dtype="float32")
    assert rate == cell["rate"]
    return read


def only_cell(value: object, kind: MediaKind) -> dict[str, Any]:
    cells, unreadable = convert_media_objects([value], kind)
    assert unreadable == []
    return convert_media_column(cells, kind)[0].as_py()


def unreadable_reason(value: object, kind: MediaKind) -> str:
    cells, unreadable = convert_media_objects(["a.png", value], kind)
    assert cells.to_pylist() == [path("a.png"), None]
    assert [row for row, _ in unreadable] == [1]
    return unreadable[0].reason


@pytest.mark.parametrize(
    "of", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
def test_text_column_becomes_paths(of: pa.DataType) -> None:
    column = pa.array(["missing", "a/ü.png", "", None, "s3://b/c.png"], pa.string()).cast(of)
    cells = convert_media_column(column.slice(1), "image")
    assert cells.type == CELL_TYPE
    assert cells.to_pylist() == [path("a/ü.png"), None, None, path("s3://b/c.png")]


@pytest.mark.parametrize("of", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)])
def test_binary_column_becomes_bytes(of: pa.DataType) -> None:
    cells = convert_media_column(pa.array([b"ab", None], of), "audio")
    assert cells.to_pylist() == [content(b"ab"), None]


def test_empty_bytes_are_missing() -> None:
    assert convert_media_column(pa.array([b"", b"x"]), "image").to_pylist() == [None, content(b"x")]
    rows = [{"bytes": b"", "path": "a.png"}, {"bytes": b"", "path": None}]
    assert convert_media_column(pa.array(rows), "image").to_pylist() == [path("a.png"), None]
    assert convert_media_column([b"", memoryview(b""), *rows], "image").to_pylist() == [None, None, path("a.png"), None]


def test_structs_prefer_bytes_over_path() -> None:
    rows = [{"bytes": b"x", "path": "a.png"}, {"bytes": None, "path": "a.png"}, {"bytes": None, "path": ""}, None]
    column = pa.array([{"bytes": b"skipped", "path": None}, *rows]).slice(1)
    expected = [content(b"x"), path("a.png"), None, None]
    assert convert_media_column(column, "image").to_pylist() == expected
    assert convert_media_column(rows, "image").to_pylist() == expected


def test_struct_with_one_field() -> None:
    assert convert_media_column(pa.array([{"path": "a.wav", "transcript": "hi"}]), "audio").to_pylist() == [
        path("a.wav")
    ]
    assert convert_media_column(pa.array([{"bytes": b"x"}]), "audio").to_pylist() == [content(b"x")]


def test_fields_of_null_structs_are_ignored() -> None:
    fields = [pa.array(["hidden", "a"]), pa.array([b"hidden", None])]
    column = pa.StructArray.from_arrays(fields, ["path", "bytes"], mask=pa.array([True, False]))
    assert convert_media_column(column, "image").to_pylist() == [None, path("a")]


def test_chunked_and_extension_columns() -> None:
    column = pa.chunked_array([["a"], [], ["b", None]], pa.string())
    assert convert_media_column(column, "image").to_pylist() == [path("a"), path("b"), None]
    assert convert_media_column(pa.chunked_array([], pa.string()), "image").type == CELL_TYPE
    wrapped = pa.ExtensionArray.from_storage(pa.opaque(pa.string(), "image", "vendor"), pa.array(["a"]))
    assert convert_media_column(wrapped, "image").to_pylist() == [path("a")]


@pytest.mark.parametrize("column", [pa.nulls(2), pa.array([None, float("nan")], pa.float64())])
def test_null_column_is_missing(column: pa.Array) -> None:
    assert convert_media_column(column, "image").to_pylist() == [None, None]


@pytest.mark.parametrize(
    ("column", "kind", "message"),
    [
        (pa.array([1, 2]), "image", "a column of int64 holds no image cells"),
        (pa.array([0.5, None]), "audio", "a column of double holds no audio cells"),
        (pa.array([[[1, 2]]]), "image", "use a pandas column of NumPy arrays"),
        (pa.array([{"url": "a"}]), "image", "a column of struct<url: string> holds no image cells, only paths"),
        (pa.array([{"array": [0.1], "sampling_rate": 8}]), "image", "array: list.*int64> holds no image cells"),
        (pa.array([{"array": [0.1]}]), "audio", r"holds no audio cells.* sampling_rate \(integers\)"),
        (pa.array([{"array": "abc", "sampling_rate": 8}]), "audio", "array: string.* holds no audio cells"),
        (pa.array([{"path": 3}]), "audio", "path: int64> holds no audio cells"),
        (pa.array([{"bytes": "text"}]), "image", "bytes: string> holds no image cells"),
        (
            pa.array([{"array": [0.1], "sampling_rate": 0}]),
            "audio",
            r"row 0 holds no audio \(dict: has a sampling rate of 0",
        ),
    ],
)
def test_columns_without_media_raise(column: pa.Array, kind: MediaKind, message: str) -> None:
    with pytest.raises(ColumnError, match=message):
        convert_media_column(column, kind)


def test_objects_of_mixed_kinds() -> None:
    values = [PurePosixPath("a/b.png"), b"x", bytearray(b"y"), memoryview(b"z"), {"path": Path("c.png")}, np.str_("d")]
    cells, unreadable = convert_media_objects(np.array(values, object), "image")
    assert unreadable == []
    expected = [path("a/b.png"), content(b"x"), content(b"y"), content(b"z"), path("c.png"), path("d")]
    assert cells.to_pylist() == expected


@pytest.mark.parametrize("kind", ["image", "audio"])
def test_missing_objects_are_null(kind: MediaKind) -> None:
    missing = [None, float("nan"), np.float32("nan"), pd.NA, pd.NaT, "", {}, {"bytes": None, "path": float("nan")}]
    cells, unreadable = convert_media_objects(missing, kind)
    assert (cells.null_count, unreadable) == (len(missing), [])
    assert convert_media_objects([], kind)[0].type == CELL_TYPE


@pytest.mark.parametrize(
    ("value", "kind", "what"),
    [
        (3, "image", "int"),
        (object(), "audio", "object"),
        ([[1, 2]], "image", "list"),
        ({"url": "a"}, "image", "dict: it has url of type str; expected bytes, a path"),
        ({"bytes": "text"}, "image", "dict: it has bytes of type str; expected"),
        ({"path": 7}, "image", "dict: it has path of type int; expected"),
        ("\udcff.png", "image", r"str: '\udcff.png' is not UTF-8 text; rename the file"),
        (("a", "b", "c"), "audio", "tuple"),
        ((SOUND, 16_000), "image", "tuple"),
        ((SOUND, 440.5), "audio", "tuple: a sampling rate of 440.5: expected an integer, in samples per second"),
        ((SOUND, None), "audio", "tuple: samples need their rate: pass the feature's sampling_rate, (samples, rate)"),
        (SOUND.astype(complex), "audio", "ndarray: it is an array of complex128"),
        ((SOUND, float("inf")), "audio", "tuple: a sampling rate of inf"),
        ((SOUND, 0), "audio", "tuple: has a sampling rate of 0"),
        ((SOUND.astype(complex), 8_000), "audio", "tuple: has samples of complex128"),
        ((SOUND.reshape(2, 5, 4), 8_000), "audio", "tuple: has the shape (2, 5, 4)"),
        (([[1.0], [1.0, 2.0]], 8_000), "audio", "tuple: it cannot be converted to an array"),
    ],
)
def test_unsupported_objects_are_unreadable(value: object, kind: MediaKind, what: str) -> None:
    assert unreadable_reason(value, kind).startswith(what)


def test_first_unreadable_object_error_names_row() -> None:
    with pytest.raises(ColumnError, match=r"row 1 holds no image \(int\), the first of 2 unreadable cells"):
        convert_media_column(["a", 3, 4.5, None], "image")


def test_images_in_memory_become_png() -> None:
    colours = np.arange(36, dtype="uint8").reshape(4, 3, 3)
    image = pytest.importorskip("PIL.Image").fromarray(colours)
    for value in (colours, image):
        assert pixels(only_cell(value, "image")).tolist() == colours.tolist()
    assert pixels(only_cell(colours[0], "image")).tolist() == colours[0].tolist()


def test_undecodable_image_is_unreadable() -> None:
    image = pytest.importorskip("PIL.Image")
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), dtype="uint8")
    encoded = only_cell(noise, "image")["bytes"]
    assert unreadable_reason(image.open(io.BytesIO(encoded[:1_000])), "image").startswith("PngImageFile: ")
    assert unreadable_reason(np.array(["no", "pixels"]), "image").startswith("ndarray: ")


@pytest.mark.parametrize("shape", [(3, 4, 3), (1, 5, 5), (4, 2, 1), (2, 3)])
def test_image_tensors_are_channels_first(shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    array = np.arange(np.prod(shape), dtype="uint8").reshape(shape)
    read = pixels(only_cell(torch.tensor(array), "image"))
    expected = array if array.ndim == 2 else np.moveaxis(array, 0, -1)
    assert read.tolist() == (expected[..., 0] if shape[0] == 1 else expected).tolist()


def test_bfloat16_tensor_is_unreadable() -> None:
    torch = pytest.importorskip("torch")
    assert unreadable_reason(torch.zeros(3, 3, dtype=torch.bfloat16), "image").startswith(
        "Tensor: it cannot be converted"
    )


@pytest.mark.parametrize(
    "value", [(SOUND, 8_000), {"array": list(map(float, SOUND)), "sampling_rate": np.int64(8_000)}]
)
def test_samples_become_wav(value: object) -> None:
    cell = only_cell(value, "audio")
    assert cell["rate"] == 8_000
    np.testing.assert_array_equal(samples(cell), SOUND)


def test_sample_structs_without_bytes_become_wav() -> None:
    full = {"array": SOUND.tolist(), "sampling_rate": 8_000, "path": "a.wav", "bytes": None}
    rows = [full, full | {"bytes": b"x"}, full | {"array": None}, full | {"array": None, "path": None}, None]
    first, *others = convert_media_column(pa.array(rows), "audio").to_pylist()
    np.testing.assert_array_equal(samples(first), SOUND)
    assert others == [content(b"x"), path("a.wav"), None, None]


def test_audio_channels_are_shorter_axis() -> None:
    torch = pytest.importorskip("torch")
    stereo = np.stack([SOUND, -SOUND])
    column = pa.array([{"array": stereo.tolist(), "sampling_rate": 8_000}])
    for cell in (
        only_cell((stereo, 8_000), "audio"),
        only_cell((stereo.T, 8_000), "audio"),
        only_cell((torch.tensor(stereo), 8_000), "audio"),
        convert_media_column(column, "audio")[0].as_py(),
    ):
        np.testing.assert_array_equal(samples(cell), stereo.T)


@pytest.mark.parametrize(
    ("whole", "expected"),
    [
        (np.array([-(2**15), 0, 2**14], "int16"), [-1, 0, 0.5]),
        (np.array([-(2**15), 0, 2**14], ">i2"), [-1, 0, 0.5]),
        (np.array([-(2**31), 0, 2**30], "int32"), [-1, 0, 0.5]),
        (np.array([0, 128, 192], "uint8"), [-1, 0, 0.5]),
        (np.array([-1, 0, 0.5], "float64"), [-1, 0, 0.5]),
    ],
)
def test_integer_samples_are_scaled(whole: np.ndarray, expected: list[float]) -> None:
    assert samples(only_cell((whole, 8_000), "audio")).tolist() == expected


@pytest.mark.parametrize("samples_of", [lambda a: a, lambda a: a[None], lambda a: np.stack([a, -a])])
@pytest.mark.parametrize("wrapped", [lambda a: a, lambda a: pytest.importorskip("torch").tensor(a)])
def test_arrays_are_audio_with_sampling_rate(samples_of: Any, wrapped: Any) -> None:
    array = samples_of(SOUND)
    cells = convert_media_column([wrapped(array), None, (SOUND, 8_000)], "audio", 16_000).to_pylist()
    assert [cell and cell["rate"] for cell in cells] == [16_000, None, 8_000]
    np.testing.assert_array_equal(samples(cells[0]), array.T if len(array) == 2 else array.reshape(-1))


@pytest.mark.parametrize("of", [pa.float32(), pa.float64(), pa.int16()])
def test_lists_are_audio_with_sampling_rate(of: pa.DataType) -> None:
    whole = (SOUND * 1_000).astype("int16")
    column = pa.array([whole, None, whole[:3]], pa.list_(of))
    cells = convert_media_column(column, "audio", 16_000).to_pylist()
    expected = whole / np.float32(2**15) if of == pa.int16() else whole
    np.testing.assert_array_equal(samples(cells[0]), expected)
    assert cells[1] is None
    for without_rate in (column, [SOUND], [{"array": SOUND}]):
        with pytest.raises(ColumnError, match=r"row 0 holds no audio .*samples need their rate"):
            convert_media_column(without_rate, "audio")


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 3)])
def test_dict_of_pixels_in_a_column_read_as_audio_is_an_image(shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape), dtype=np.uint8).reshape(shape)
    cells, unreadable = convert_media_objects([{"array": array}, {"array": array, "path": None}], "audio")
    assert not unreadable
    for cell in convert_media_column(cells, "image").to_pylist():
        assert pixels(cell).tolist() == array.tolist()


def test_ambiguous_2d_arrays_depend_on_feature() -> None:
    either, _ = convert_media_objects([np.zeros((2, 5), "float32")], "image")
    assert convert_media_column(either, "image")[0].as_py()["bytes"].startswith(b"\x89PNG")
    assert convert_media_column(either, "audio", 8_000)[0].as_py()["bytes"].startswith(b"RIFF")


def test_unmodified_pillow_images_become_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    for suffix in ("png", "jpg", "webp"):
        image.fromarray(np.arange(768, dtype="uint8").reshape(16, 16, 3)).save(tmp_path / f"a.{suffix}")
    monkeypatch.chdir(tmp_path)
    for suffix in ("png", "jpg", "webp"):
        untouched, loaded, changed = (image.open(f"a.{suffix}") for _ in range(3))
        loaded.load()
        changed.thumbnail((4, 4))
        assert only_cell(untouched, "image") == path(str(tmp_path / f"a.{suffix}"))
        assert only_cell(loaded, "image") == path(str(tmp_path / f"a.{suffix}"))
        assert pixels(only_cell(changed, "image")).shape == (4, 4, 3)
        assert only_cell(untouched.copy(), "image")["path"] is None
    missing = image.open("a.png")
    missing.load()
    (tmp_path / "a.png").unlink()
    assert pixels(only_cell(missing, "image")).shape == (16, 16, 3)


def test_samples_equal_to_their_file_become_path(tmp_path: Path) -> None:
    file = tmp_path / "a.wav"
    pytest.importorskip("soundfile").write(file, SOUND, 8_000, subtype="FLOAT")
    same = {"path": str(file), "array": SOUND, "sampling_rate": 8_000}
    assert only_cell(same, "audio") == {"path": str(file), "bytes": None, "rate": 8_000}
    (tmp_path / "b.wav").write_bytes(b"RIFF")
    for change in ({"array": SOUND * 2}, {"sampling_rate": 4_000}, {"path": "no.wav"}, {"path": f"{tmp_path}/b.wav"}):
        assert only_cell(same | change, "audio")["path"] is None


def test_image_array_is_encoded_whatever_its_path(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 3)).astype(np.uint8)
    file = tmp_path / "a.png"
    file.write_bytes(encode_png(pixels))
    for row in ({"array": pixels, "path": str(file)}, {"array": pixels[..., 0], "path": None}):
        [cell] = convert_media_column([row], "image").to_pylist()
        assert cell == content(encode_png(row["array"].reshape(5, 4, -1)))
    for wrong in ({"path": 3}, {"array": pixels[0, 0], "path": "a.png"}):
        with pytest.raises(ColumnError, match="row 0 holds no image") as error:
            convert_media_column([wrong], "image")
        assert "sound" not in str(error.value)
