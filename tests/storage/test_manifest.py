"""Manifests round-trip, and altered ones raise."""

from __future__ import annotations

import dataclasses
import json
import uuid
from pathlib import Path

import numpy as np
import pytest

from daskprep.errors import CorruptDatasetError, FormatVersionError
from daskprep.storage import FileEntry, Folder, Layout, Manifest, Output, read_manifest
from daskprep.storage.arrays import Span, encode_chunk, encode_shard, tail_bytes
from daskprep.storage.checksum import CHECKSUM_BYTES, crc32c
from daskprep.storage.manifest import FORMAT, Receipt
from tests.sizes import sized

FILES = {"metadata.json": FileEntry(3, 0xFFFFFFFF), "train/arrays.zarr/a/c.0.0": FileEntry(5, 7, 2)}
LAYOUT = Layout.choose([Output("ä/b", "uint16", (3,))], {"train": 2}, block_rows=4, compression="lz4")
MANIFEST = Manifest("3f2a9c1b", LAYOUT, FILES, {"files": [["a.csv", 3, "x"]]}, {"seed": 0, "ratio": 0.1, "name": None})


def with_body(**changes: object) -> bytes:
    body = {**json.loads(MANIFEST.to_bytes())["manifest"], **changes}
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return b'{"checksum":"%08x","manifest":%s}\n' % (crc32c(text), text)


def test_manifest_round_trips() -> None:
    text = MANIFEST.to_bytes()
    assert Manifest.from_bytes(text, "here") == MANIFEST
    assert text.endswith(b"}\n")
    assert set(json.loads(text)) == {"checksum", "manifest"}
    sharded = dataclasses.replace(LAYOUT, sharded=True)
    for changes, written_in in (({"source": None}, 1), ({"layout": sharded}, 2)):
        other = dataclasses.replace(MANIFEST, **changes)
        assert Manifest.from_bytes(other.to_bytes(), "here") == other
        assert json.loads(other.to_bytes())["manifest"]["format"] == written_in


def test_entry_matches_only_its_bytes() -> None:
    entry = FileEntry.from_data("metadata.json", b"abc")
    assert entry.matches("metadata.json", b"abc") is True
    assert entry.matches("metadata.json", b"abx") is False
    assert entry.matches("metadata.json", b"abcx") is False


def test_manifest_with_empty_files() -> None:
    empty = dataclasses.replace(MANIFEST, files={"a": FileEntry(0, 0), "b": FileEntry(0, 0, 0)})
    assert Manifest.from_bytes(empty.to_bytes(), "here") == empty


@pytest.mark.parametrize("name", ["a/b", "train/arrays.zarr/x/c.0", "train/arrays.zarr/x/c/0"])
def test_checksum_of_more_than_32_bits_raises(name: str) -> None:
    for most, fits in ((2**32 - 1, True), (2**32, False)):
        text = with_body(files={name: [9, most]}, layout={**LAYOUT.to_dict(), "rows": {}})
        if fits:
            assert Manifest.from_bytes(text, "here").files[name].crc32c == most
            continue
        with pytest.raises(CorruptDatasetError, match=r"here is damaged: .*the checksum .* has more than 32 bits"):
            Manifest.from_bytes(text, "here")


@pytest.mark.parametrize(
    "entry", [[1], [1, 2, 3, 4], {"bytes": 1, "crc32c": 2}, {"1": 0, "2": 0}, "ab", None, [1.0, 2], [True, 1]]
)
def test_invalid_entries_raise(entry: object) -> None:
    with pytest.raises(CorruptDatasetError, match="here is damaged: .*a/b"):
        Manifest.from_bytes(with_body(files={"a/b": entry}), "here")


def test_receipt_without_fills_omits_key() -> None:
    body = json.loads(Receipt(FILES).to_bytes())["receipt"]
    assert body == {"format": 1, "files": {name: entry.to_list() for name, entry in FILES.items()}}
    assert Receipt.from_bytes(Receipt(FILES).to_bytes()) == Receipt(FILES)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_non_finite_settings_raise(number: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        dataclasses.replace(MANIFEST, settings={"ratio": number}).to_bytes()


@pytest.mark.parametrize("number", [0, -1, True, 1.0, "1"])
def test_invalid_format_numbers_raise(number: object) -> None:
    with pytest.raises(CorruptDatasetError, match="here is damaged: .*the format"):
        Manifest.from_bytes(with_body(format=number), "here")


def test_manifest_bytes_do_not_depend_on_order() -> None:
    turned = dataclasses.replace(
        MANIFEST, files=dict(reversed(FILES.items())), settings=dict(reversed(MANIFEST.settings.items()))
    )
    assert turned.to_bytes() == MANIFEST.to_bytes()


def test_every_altered_byte_of_manifest_raises() -> None:
    text = MANIFEST.to_bytes()
    format_digit = text.index(b'"format":1') + len('"format":')
    for position in range(len(text)):
        for bit in range(8):
            altered = bytearray(text)
            altered[position] ^= 1 << bit
            # A larger digit is a newer format, whose checksum may differ.
            expected = FormatVersionError if position == format_digit and bit in {1, 2, 3} else CorruptDatasetError
            with pytest.raises(expected, match="here"):
                Manifest.from_bytes(altered, "here")


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"null\n", b"[]", b'{"manifest":3}', b"[" * 100_000, b"\xff", b"1" * 5000]
)
def test_invalid_manifest_text_raises(text: bytes) -> None:
    with pytest.raises(CorruptDatasetError, match="s3://x/manifest.json is damaged"):
        Manifest.from_bytes(text, "s3://x/manifest.json")


def test_manifest_of_other_length_raises() -> None:
    text = MANIFEST.to_bytes()
    for wrong in (text[:-1], text + b" ", b" " + text, text + text, json.dumps(json.loads(text), indent=1).encode()):
        with pytest.raises(CorruptDatasetError, match="here is damaged"):
            Manifest.from_bytes(wrong, "here")


def test_newer_format_raises_format_version_error() -> None:
    with pytest.raises(FormatVersionError, match=r"here was written in format 3, .* reads up to 2: upgrade"):
        Manifest.from_bytes(json.dumps({"manifest": {"format": 3, "all": "else"}}).encode(), "here")


@pytest.mark.parametrize("name", ["/etc/passwd", "../a", "a/../b", "a//b", "", ".", "a/", "a\\b", "a\0"])
def test_file_name_outside_folder_raises(name: str) -> None:
    with pytest.raises(CorruptDatasetError, match="leads out of the folder"):
        Manifest.from_bytes(with_body(files={name: [1, 2]}), "here")
    with pytest.raises(CorruptDatasetError, match="leads out of the folder"):
        Receipt.from_bytes(Receipt({name: FileEntry(1, 2)}).to_bytes())


@pytest.mark.parametrize(
    "changes",
    [
        {"version": "../.."},
        {"version": ""},
        {"version": 3},
        {"files": {"a": [1]}},
        {"files": {"a": [1, -2]}},
        {"files": {"a": [1, True]}},
        {"files": {"a": {"bytes": 1}}},
        {"files": []},
        {"layout": {}},
        {"layout": {**LAYOUT.to_dict(), "block_rows": 0}},
        {"layout": {**LAYOUT.to_dict(), "outputs": [{"name": "a", "dtype": "object", "shape": []}]}},
        {"layout": {**LAYOUT.to_dict(), "outputs": [{"name": "a", "dtype": "nonsense", "shape": []}]}},
        {"layout": {**LAYOUT.to_dict(), "outputs": [{"name": "a", "dtype": "uint8", "shape": [-1]}]}},
        {"format": 0},
        {"format": "1"},
        {"source": 3},
        {"settings": None},
    ],
)
def test_invalid_manifest_body_raises(changes: dict[str, object]) -> None:
    with pytest.raises(CorruptDatasetError, match="here is damaged"):
        Manifest.from_bytes(with_body(**changes), "here")


@pytest.mark.parametrize("where", ["local", "memory"])
def test_read_manifest_from_folder(tmp_path: Path, where: str) -> None:
    folder = Folder.open(tmp_path if where == "local" else f"memory://{uuid.uuid4().hex}")
    assert read_manifest(folder) is None
    folder.write("manifest.json", MANIFEST.to_bytes())
    assert read_manifest(folder) == MANIFEST
    with (
        sized(manifest_bytes=10),
        pytest.raises(CorruptDatasetError, match=r"manifest\.json is damaged: it has \d+ bytes"),
    ):
        read_manifest(folder)


def test_receipt_round_trips_and_altered_receipt_raises() -> None:
    receipt = Receipt(FILES, [(7, "photo", "cat.png: it is empty")])
    text = receipt.to_bytes()
    assert Receipt.from_bytes(text) == receipt
    for position in range(len(text)):
        altered = bytearray(text)
        altered[position] ^= 1 << position % 8
        with pytest.raises((CorruptDatasetError, FormatVersionError)):
            Receipt.from_bytes(altered)
    with pytest.raises(CorruptDatasetError, match="part-3 is damaged"):
        Receipt.from_bytes(MANIFEST.to_bytes(), "part-3")


def test_entries_distinguish_chunks() -> None:
    one, other = (encode_chunk(np.full((4, 3), value, "uint16"), 4, "none") for value in (1, 2))
    # Every chunk ends with its own checksum, so the CRC of all chunks is the same.
    assert crc32c(one) == crc32c(other)
    name = "train/arrays.zarr/a/c.0.0"
    entry = FileEntry.from_data(name, one, 4)
    assert entry == FileEntry(len(one), int.from_bytes(one[-4:], "little"), 4)
    assert entry.matches(name, one)
    assert not entry.matches(name, other)


@pytest.mark.parametrize("name", ["train/arrays.zarr/a/c.0.0", "train/table/part-00000.parquet"])
def test_entry_does_not_match_altered_file(name: str) -> None:
    content = encode_chunk(np.arange(12, dtype="uint16").reshape(4, 3), 4, "none")
    entry = FileEntry.from_data(name, content)
    assert entry.matches(name, content)
    for position in range(len(content)):
        altered = bytearray(content)
        altered[position] ^= 1 << position % 8
        assert not entry.matches(name, altered)
    assert not entry.matches(name, content[:-1])
    assert not entry.matches(name, b"")


SOURCE = {"files": [["a.csv", 3, "x"]], "format": "csv", "settings": {}}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"source": []}, "source must be a dict or None"),
        ({"settings": []}, "settings must be a dict"),
        ({"source": None, "settings": None}, "settings must be a dict"),
        ({"source": {**SOURCE, "format": 3}}, "no format and settings"),
        ({"source": {**SOURCE, "settings": []}}, "no format and settings"),
        ({"source": {"splits": {"train": {**SOURCE, "format": 3}}}}, "no format and settings"),
        ({"source": {**SOURCE, "files": ["a.csv"]}}, "names 'a.csv' as a file"),
        ({"source": {**SOURCE, "files": [[]]}}, r"names \[\] as a file"),
        ({"source": {**SOURCE, "files": [[3, 3, "x"]]}}, r"names \[3, 3, 'x'\] as a file"),
        ({"settings": {"shuffle_seed": "0"}}, "the seed '0'"),
        ({"settings": {"shuffle_seed": True}}, "the seed True"),
        ({"settings": {"folds": -1}}, "-1 folds"),
        ({"settings": {"folds": 256}}, "256 folds"),
        ({"settings": {"folds": 2.0}}, "2.0 folds"),
        ({"settings": {"folds": True}}, "True folds"),
        ({"files": {}}, 'the split "train" has 2 rows, too many for its files'),
        ({"files": {"b" * 256: [3, 7], "metadata.json": [3, 7]}}, "is too long"),
        ({"files": {"a/" + "b" * 256: [3, 7], "metadata.json": [3, 7]}}, "is too long"),
        ({"files": {"metadata.json": [3, 7, 2, 1]}}, "expected size, checksum and number of rows"),
        ({"files": {"train/arrays.zarr/a/c.0.0": [3, 7, 2, 1, 1]}}, "expected size, checksum and number of rows"),
        ({"files": {"train/arrays.zarr/a/c.0.0": [10**9, 7, 2, 10**9]}}, "a shard of 1,000,000,000 chunks in"),
        ({"files": {"train/arrays.zarr/a/c.0.0": [tail_bytes(257), 7, 2, 257]}}, "a shard of 257 chunks in"),
        ({"files": {"train/arrays.zarr/a/c.0.0": [tail_bytes(1) - 1, 7, 2, 1]}}, "a shard of 1 chunks in"),
    ],
)
def test_invalid_source_settings_and_files_raise(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(CorruptDatasetError, match=f"here is damaged: .*{reason}"):
        Manifest.from_bytes(with_body(**changes), "here")


@pytest.mark.parametrize(
    "changes",
    [
        {"source": SOURCE},
        {"source": {"splits": {"train": SOURCE}}},
        {"source": {"files": []}},
        {"source": {"format": 3}},
        {"settings": {"shuffle_seed": 0, "folds": 0}},
        {"settings": {"shuffle_seed": None, "folds": 255}},
        {"files": {"b" * 255: [3, 7], "a" * 200 + "/" + "b" * 200: [3, 7]}},
        {"files": {"train/arrays.zarr/a/c.0.0": [tail_bytes(256), 7, 2, 256], "metadata.json": [3, 7, 2]}},
        {"files": {"train/arrays.zarr/a/c.0.0": [tail_bytes(1), 7, 2, 1], "metadata.json": [3, 7, 2]}},
    ],
)
def test_valid_source_settings_and_files_round_trip(changes: dict[str, object]) -> None:
    found = Manifest.from_bytes(with_body(**changes), "here")
    assert json.loads(found.to_bytes()) == json.loads(with_body(**changes))


def test_rows_and_format_must_match_layout() -> None:
    table = LAYOUT.table_file("train", 0)
    for rows, fits in ((2, True), (3, False)):
        text = with_body(files={table: [3, 7, rows], "metadata.json": [3, 7]})
        if fits:
            assert Manifest.from_bytes(text, "here").files[table].rows == 2
        else:
            with pytest.raises(CorruptDatasetError, match="has 3 rows, not the 2 of the layout"):
                Manifest.from_bytes(text, "here")
    with pytest.raises(CorruptDatasetError, match="and shards are False"):
        Manifest.from_bytes(with_body(format=FORMAT), "here")


def test_shard_entry_covers_only_tail() -> None:
    data, name = bytes(range(100)), "train/arrays.zarr/a/c.0.0"
    entry = FileEntry.from_data(name, data, 2, 3)
    tail = data[100 - tail_bytes(3) : -CHECKSUM_BYTES]
    assert entry == FileEntry(100, crc32c(tail), 2, 3)
    assert FileEntry(100, 5).chunks(lambda _: b"") == [Span(0, 100, 5)]


def test_entry_does_not_match_altered_shard() -> None:
    name = "train/arrays.zarr/a/c.0.0"
    chunks = [encode_chunk(np.full((4, 3), value, "uint16"), 4, "none") for value in (1, 2)]
    shard = encode_shard(chunks, 3)
    entry = FileEntry.from_data(name, shard, 8, 3)
    edges = [0, len(chunks[0]), len(chunks[0]) + len(chunks[1])]
    checksums = [int.from_bytes(chunk[-CHECKSUM_BYTES:], "little") for chunk in chunks]
    assert entry.chunks(lambda start: shard[start:]) == list(map(Span, edges, edges[1:], checksums))
    assert entry.matches(name, shard) is True
    for position in range(len(shard)):
        altered = bytearray(shard)
        altered[position] ^= 1 << position % 8
        assert entry.matches(name, altered) is False


@pytest.mark.parametrize(
    ("sharded", "shape", "least"), [(False, (3,), 6), (True, (3,), 3), (False, (), 3), (True, (), 3)]
)
def test_too_few_files_for_rows_raise(sharded: bool, shape: tuple[int, ...], least: int) -> None:
    layout = Layout((Output("x", "uint16", shape),), {"train": 21}, 4, 2, "lz4", sharded)
    for count in range(8):
        files = {f"{number}": FileEntry(3, 7) for number in range(count)}
        text = dataclasses.replace(MANIFEST, layout=layout, files=files).to_bytes()
        if count >= least:
            assert Manifest.from_bytes(text, "here").layout == layout
        else:
            with pytest.raises(CorruptDatasetError, match="has 21 rows, too many for its files"):
                Manifest.from_bytes(text, "here")
