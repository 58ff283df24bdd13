"""Malicious datasets with valid checksums: nothing outside is accessed, and every error is a daskprep error."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import daskprep as dp
from daskprep.storage.checksum import crc32c
from daskprep.storage.manifest import FileEntry
from tests.amount import one_in

PROCESS = Path(__file__).parent / "hostile_process.py"
PART = "train/table/part-00000.parquet"
CHUNK = "train/arrays.zarr/tags/c.0.0"
ZARR = "train/arrays.zarr/zarr.json"
HUGE = 10**400
MOST_BYTES = 500_000_000


class Hostile:
    """A dataset whose parts can be altered and sealed again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.manifest: dict[str, Any] = json.loads((root / "manifest.json").read_bytes())["manifest"]

    @property
    def folder(self) -> Path:
        return self.root / self.manifest["version"]

    @property
    def layout(self) -> dict[str, Any]:
        layout: dict[str, Any] = self.manifest["layout"]
        return layout

    def seal(self, text: bytes | None = None) -> None:
        """Write the manifest, or any text in its place, with a valid checksum."""
        body = json.dumps(self.manifest, sort_keys=True, separators=(",", ":")).encode() if text is None else text
        sealed = b'{"checksum":"%08x","manifest":%s}\n' % (crc32c(body), body)
        (self.root / "manifest.json").write_bytes(sealed)

    def put(self, name: str, data: bytes) -> None:
        """Write a file, and record its size and checksum in the manifest."""
        if name.rpartition("/")[2].startswith("c."):
            data = data + crc32c(data).to_bytes(4, "little")
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_bytes(data)
        rows = self.manifest["files"].get(name, [0, 0])[2:]
        self.manifest["files"][name] = [*FileEntry.from_data(name, data).to_list(), *rows]

    def read(self, name: str) -> bytes:
        data = (self.folder / name).read_bytes()
        return data[:-4] if name.rpartition("/")[2].startswith("c.") else data

    def table(self, change: Callable[[pa.Table], pa.Table], **options: Any) -> None:
        sink = io.BytesIO()
        pq.write_table(change(pq.read_table(io.BytesIO(self.read(PART)))), sink, compression="lz4", **options)
        self.put(PART, sink.getvalue())

    def metadata(self, change: Callable[[dict[str, Any]], object]) -> None:
        state = json.loads(self.read("metadata.json"))
        change(state)
        self.put("metadata.json", json.dumps(state).encode())

    def feature(self, name: str, part: str, **values: Any) -> None:
        self.metadata(lambda state: state["features"][name][part].update(values))


Attack = Callable[[Hostile], object]


def set_layout(**values: Any) -> Attack:
    return lambda one: one.layout.update(values)


def set_rows(rows: Any) -> Attack:
    return lambda one: one.layout["rows"].update(train=rows)


def set_output(output: str, **values: Any) -> Attack:
    return lambda one: next(each for each in one.layout["outputs"] if each["name"] == output).update(values)


def set_entry(name: str, entry: Any) -> Attack:
    return lambda one: one.manifest["files"].update({name: entry})


def set_manifest(**values: Any) -> Attack:
    return lambda one: one.manifest.update(values)


def set_feature(name: str, part: str, **values: Any) -> Attack:
    return lambda one: one.feature(name, part, **values)


def set_metadata(**values: Any) -> Attack:
    return lambda one: one.metadata(lambda state: state.update(values))


def drop_metadata(*names: str) -> Attack:
    def change(state: dict[str, Any]) -> None:
        for name in names:
            del state[name]

    return lambda one: one.metadata(change)


def raw_metadata(data: bytes) -> Attack:
    return lambda one: one.put("metadata.json", data)


def raw_manifest(old: bytes, new: bytes) -> Attack:
    def attack(one: Hostile) -> None:
        body = json.dumps(one.manifest, sort_keys=True, separators=(",", ":")).encode()
        assert old in body
        one.seal(body.replace(old, new, 1))

    return attack


def cells(change: Callable[[int], dict[str, Any] | None]) -> Attack:
    """Replace the cells of the column of images."""

    def attack(one: Hostile) -> None:
        def changed(table: pa.Table) -> pa.Table:
            kind = table.schema.field("photo").type
            place = table.column_names.index("photo")
            return table.set_column(place, "photo", pa.array([change(i) for i in range(len(table))], kind))

        one.table(changed, row_group_size=one.layout["block_rows"], store_schema=False, write_page_checksum=True)

    return attack


def path_cells(path: str) -> Attack:
    return cells(lambda i: {"bytes": None, "path": path})


def byte_cells(data: bytes) -> Attack:
    return cells(lambda i: {"bytes": data, "path": None})


def bomb() -> bytes:
    """Return a small PNG file of very many pixels."""
    sink = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(sink, "PNG")
    return sink.getvalue()


def columns(**arrays: Any) -> Attack:
    """Replace the values of columns of the table, or the columns."""

    def attack(one: Hostile) -> None:
        def changed(table: pa.Table) -> pa.Table:
            for name, values in arrays.items():
                array = values(len(table))
                place = table.column_names.index(name)
                table = table.set_column(place, name, array)
            return table

        one.table(changed, row_group_size=one.layout["block_rows"], store_schema=False, write_page_checksum=True)

    return attack


def chunk_header(field: int, value: int) -> Attack:
    """Change the sizes in the header of a compressed chunk."""

    def attack(one: Hostile) -> None:
        data = bytearray(one.read(CHUNK))
        struct.pack_into("<I", data, field, value)
        one.put(CHUNK, bytes(data))

    return attack


def flipped(name: str, at: float) -> Attack:
    def attack(one: Hostile) -> None:
        data = bytearray(one.read(name))
        data[int(at * (len(data) - 1))] ^= 0xFF
        one.put(name, bytes(data))

    return attack


def vocabulary_file(data: bytes, name: str = "vocab/city-0.parquet") -> Attack:
    """Move the vocabulary of a column to a file."""

    def attack(one: Hostile) -> None:
        def change(state: dict[str, Any]) -> None:
            learned = state["features"]["city"]["learned"]
            for key in [key for key in learned if "2" in key or key.startswith("vocab")]:
                del learned[key]
            learned["vocabulary_file"] = name

        one.metadata(change)
        if "\0" not in name and ".." not in name and not name.startswith("/"):
            one.put(name, data)

    return attack


def parquet(**arrays: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(arrays), sink, compression="zstd")
    return sink.getvalue()


def zarr_json(**values: Any) -> Attack:
    def attack(one: Hostile) -> None:
        name = "train/arrays.zarr/tags/zarr.json"
        one.put(name, json.dumps({**json.loads(one.read(name)), **values}).encode())
        group = json.loads(one.read(ZARR))
        group["consolidated_metadata"]["metadata"]["tags"].update(values)
        one.put(ZARR, json.dumps(group).encode())

    return attack


def linked(name: str, target: str) -> Attack:
    """Replace a file or folder by a link to something outside."""

    def attack(one: Hostile) -> None:
        place = one.folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_dir():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        place.symlink_to(one.root.parent.parent / "decoy" / target)

    return attack


def piped(name: str) -> Attack:
    def attack(one: Hostile) -> None:
        (one.folder / name).unlink()
        os.mkfifo(one.folder / name)

    return attack


def loop(one: Hostile) -> None:
    (one.folder / "train" / "up").symlink_to(one.folder)
    (one.folder / "train" / "self").symlink_to("self")


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


SIZE = 1 << 40
ATTACKS: dict[str, Attack] = {
    # -- the manifest
    "rows-huge": set_rows(HUGE),
    "rows-many": set_rows(10**12),
    "rows-more": set_rows(41),
    "rows-negative": set_rows(-5),
    "rows-float": set_rows(1e300),
    "rows-true": set_rows(True),
    "rows-text": set_rows("40"),
    "rows-infinite": raw_manifest(b'"train":28', b'"train":Infinity'),
    "rows-1e400": raw_manifest(b'"train":28', b'"train":1e400'),
    "rows-digits": raw_manifest(b'"train":28', b'"train":' + b"9" * 5000),
    "rows-twice": raw_manifest(b'"train":28', b'"train":1,"train":28'),
    "rows-list": set_layout(rows=[28]),
    "rows-split": set_layout(rows={"../../decoy": 5}),
    "block-rows-huge": set_layout(block_rows=HUGE),
    "block-rows-many": set_layout(block_rows=1 << 45),
    "block-rows-float": set_layout(block_rows=0.5),
    "part-blocks-huge": set_layout(part_blocks=HUGE),
    "compression-list": set_layout(compression=["lz4"]),
    "shape-huge": set_output("tags", shape=[1 << 50]),
    "shape-product": set_output("tags", shape=[1 << 20] * 20),
    "shape-many": set_output("tags", shape=[1] * 70),
    "shape-text": set_output("tags", shape="44"),
    "shape-media": set_output("photo", shape=[3, 1 << 20, 1 << 20]),
    "dtype-object": set_output("tags", dtype="O"),
    "dtype-void": set_output("tags", dtype="V1000000000"),
    "dtype-list": set_output("tags", dtype=[["a", "u1"]]),
    "dtype-other": set_output("price", dtype="float64"),
    "dtype-half": set_output("photo", dtype="float16"),
    "name-leads-out": set_output("tags", name="../../../../decoy"),
    "name-empty": set_output("tags", name=""),
    "name-nul": set_output("tags", name="a\0b"),
    "name-twice": set_output("tags", name="price"),
    "name-number": set_output("tags", name=5),
    "outputs-none": set_layout(outputs=[]),
    "outputs-text": set_layout(outputs="abc"),
    "cell-bytes-negative": set_output("photo", cell_bytes=-1),
    "cells-of-numbers": set_output("price", cell_bytes=10),
    "version-up": set_manifest(version="../decoy"),
    "version-list": set_manifest(version=["a"]),
    "version-other": set_manifest(version="0123456789abcdef"),
    "file-up": set_entry("../../decoy/notes.txt", [4, 0]),
    "file-absolute": set_entry("/etc/hostname", [4, 0]),
    "file-long": set_entry("train/" + "a" * 5000, [4, 0]),
    "file-surrogate": set_entry("train/\ud800", [4, 0]),
    "file-windows": set_entry("train\\..\\..\\x", [4, 0]),
    "entry-huge": set_entry(PART, [HUGE, 0, 28]),
    "entry-terabyte": set_entry(PART, [SIZE, 0, 28]),
    "entry-text": set_entry(PART, ["9", "0"]),
    "files-list": set_manifest(files=[]),
    "format-huge": set_manifest(format=HUGE),
    "source-url": set_manifest(
        source={"files": [["http://127.0.0.1:9/x.csv", 1, "x"]], "format": "csv", "settings": {}}
    ),
    "source-other": set_manifest(source={"files": 5}),
    "settings-none": set_manifest(settings={}),
    "settings-wrong": set_manifest(settings={"shuffle_seed": "x", "block_rows": [], "compression": 4}),
    "manifest-deep": lambda one: one.seal(nested(100_000)),
    "manifest-no-json": lambda one: one.seal(b"\xff\xfe{}"),
    "manifest-list": lambda one: one.seal(b"[]"),
    # -- the learned state
    "metadata-deep": raw_metadata(b'{"format":1,"features":' + nested(100_000) + b"}"),
    "metadata-list": raw_metadata(b"[]"),
    "metadata-no-json": raw_metadata(b"\x80\x04\x95pickle"),
    "metadata-utf16": raw_metadata('{"format":1}'.encode("utf-16")),
    "metadata-empty": raw_metadata(b""),
    "metadata-digits": raw_metadata(b'{"format":' + b"9" * 5000 + b',"features":{}}'),
    "metadata-nan": set_metadata(format=float("nan")),
    "format-text": set_metadata(format="1"),
    "features-list": set_metadata(features=[1, 2]),
    "features-none": set_metadata(features={}),
    "feature-number": set_metadata(features={"price": 5}),
    "split-wrong": set_metadata(split={"type": "random", "probabilities": "x", "seed": []}),
    "split-list": set_metadata(split=[1]),
    "balance-wrong": set_metadata(balance={"type": "oversample", "column": 5, "ratio": "x"}),
    "no-split": drop_metadata("split", "balance", "fit_on"),
    "no-features": drop_metadata("features"),
    "kind-unknown": lambda one: one.metadata(lambda state: state["features"]["price"].update(type="os.system")),
    "kind-list": lambda one: one.metadata(lambda state: state["features"]["price"].update(type=["number"])),
    "kind-other": lambda one: one.metadata(lambda state: state["features"]["price"].update(type="h3")),
    "kind-of-media": lambda one: one.metadata(lambda state: state["features"]["photo"].update(type="audio")),
    "params-list": lambda one: one.metadata(lambda state: state["features"]["price"].update(params=[1])),
    "params-unknown": set_feature("price", "params", evil=1),
    "params-types": set_feature("city", "params", tokenizer=5, most_common="x"),
    "params-height": set_feature("photo", "params", height="x", width=-5, num_channels=1e9),
    "learned-missing": lambda one: one.metadata(lambda state: state["features"]["price"].pop("learned")),
    "learned-list": lambda one: one.metadata(lambda state: state["features"]["price"].update(learned=[1])),
    "learned-types": set_feature("price", "learned", mean="x", std=[], rows=-1, missing="x"),
    "learned-inf": set_feature("price", "learned", rows=HUGE, missing=HUGE, mean=1e308, std=1e-320),
    "learned-samples": set_feature("price", "learned", invalid_samples=5),
    "learned-shape": set_feature("photo", "learned", height=1 << 40, width=1 << 40, num_channels=3),
    "learned-colours": set_feature("photo", "learned", mean_colour=["x"], class_map=[[1], "abc"]),
    "learned-base": set_feature("photo", "learned", base_dir="http://127.0.0.1:9/"),
    "tokens-number": set_feature("city", "learned", idx2str=5),
    "tokens-types": set_feature("city", "learned", idx2str=[1, None, {"a": 1}]),
    "tokens-few": set_feature("city", "learned", idx2str=["a"]),
    "tokens-twice": set_feature("city", "learned", idx2str=["a"] * 9),
    "frequencies-wrong": set_feature("city", "learned", str2freq={"Rome": "x", "Oslo": -1}),
    "tokenizer-file": set_feature("review", "params", tokenizer="hf_tokenizer", pretrained_model_name_or_path="x/y"),
    "tokenizer-url": set_feature("review", "params", vocab_file="http://127.0.0.1:9/v.txt"),
    "base-dir": set_feature("photo", "params", base_dir="/", lazy_cache_dir="/"),
    "features-more": lambda one: one.metadata(lambda state: state["features"].update(more=state["features"]["price"])),
    "features-less": lambda one: one.metadata(lambda state: state["features"].pop("tags")),
    # -- vocabularies in files
    "vocabulary-up": vocabulary_file(b"", "vocab/../../decoy/part.parquet"),
    "vocabulary-absolute": vocabulary_file(b"", "/etc/hostname"),
    "vocabulary-missing": vocabulary_file(b"x", "vocab/none.parquet\0"),
    "vocabulary-no-parquet": vocabulary_file(b"PAR1PAR1"),
    "vocabulary-columns": vocabulary_file(parquet(a=[1])),
    "vocabulary-types": vocabulary_file(parquet(token=[1, 2], frequency=["a", "b"])),
    "vocabulary-bomb": vocabulary_file(
        parquet(token=pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000_000, np.int8)), pa.array(["x" * 1000])))
    ),
    # -- tables
    "table-no-parquet": lambda one: one.put(PART, b"PAR1" + b"\xff" * 100 + b"\x10\0\0\0PAR1"),
    "table-footer": flipped(PART, 0.98),
    "table-footer-2": flipped(PART, 0.9),
    "table-page": flipped(PART, 0.1),
    "table-footer-length": lambda one: one.put(PART, one.read(PART)[:-8] + b"\xff\xff\xff\x7fPAR1"),
    "table-rows": lambda one: one.table(lambda table: table.slice(0, 3)),
    "table-types": columns(price=lambda rows: pa.array(["x"] * rows)),
    "table-nulls": columns(price=lambda rows: pa.nulls(rows, pa.float32())),
    "table-ids": columns(city=lambda rows: pa.array([250] * rows, pa.uint8())),
    "table-row-ids": columns(row_id=lambda rows: pa.array([-(1 << 62)] * rows)),
    "rejects-columns": lambda one: one.put("rejects.parquet", parquet(a=[1])),
    "rejects-long": lambda one: one.put(
        "rejects.parquet", parquet(row_id=range(2_000), column=["price"] * 2_000, reason=["x" * 1_000_000] * 2_000)
    ),
    "rejects-nulls": lambda one: one.put(
        "rejects.parquet", parquet(row_id=[None, 1], column=["a"] * 2, reason=["b"] * 2)
    ),
    "rejects-no-parquet": lambda one: one.put("rejects.parquet", b"PAR1"),
    # -- chunks
    "chunk-decoded-size": chunk_header(4, 0xFFFFFFFF),
    "chunk-block-size": chunk_header(8, 0xFFFFFFF0),
    "chunk-encoded-size": chunk_header(12, 5),
    "chunk-flipped": flipped(CHUNK, 0.5),
    "chunk-empty": lambda one: one.put(CHUNK, b""),
    "chunk-ids": lambda one: one.put(CHUNK, b"\xff" * len(one.read(CHUNK))),
    # -- Zarr's own metadata
    "zarr-shape": zarr_json(shape=[1 << 60, 4]),
    "zarr-codecs": zarr_json(codecs=[{"name": "pickle"}, {"name": "numcodecs.pickle"}]),
    "zarr-transformers": zarr_json(storage_transformers=[{"name": "x"}]),
    "zarr-no-json": lambda one: one.put(ZARR, b"\xff"),
    "zarr-chunks": zarr_json(chunk_grid={"name": "regular", "configuration": {"chunk_shape": [0, 0]}}),
    # -- media
    "cells-outside": path_cells("/etc/hostname"),
    "cells-decoy": cells(lambda i: {"bytes": None, "path": "../decoy/notes.txt"}),
    "cells-url": path_cells("http://127.0.0.1:9/cat.png"),
    "cells-file-url": path_cells("file:///etc/hostname"),
    "cells-chain": path_cells("simplecache::file:///etc/hostname"),
    "cells-reference": path_cells("reference://x"),
    "cells-memory": path_cells("memory://x"),
    "cells-nul": path_cells("a\0b"),
    "cells-long": path_cells("/" + "a" * 100_000),
    "cells-device": path_cells("/dev/zero"),
    "cells-null": cells(lambda i: {"bytes": None, "path": None}),
    "cells-no-image": byte_cells(b"\x89PNG\r\n\x1a\n" + b"\0" * 50),
    "cells-svg": byte_cells(b"<svg xmlns='x'><image href='http://127.0.0.1:9/'/></svg>"),
    "cells-postscript": byte_cells(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"),
    "cells-bomb": byte_cells(bomb()),
    # -- special files
    "link-version": linked("", "."),
    "link-train": linked("train", "."),
    "link-table": linked("train/table", "table"),
    "link-part": linked(PART, "notes.txt"),
    "link-cache": linked("cache", "."),
    "link-receipts": linked("receipts", "."),
    "link-scratch": linked("scratch", "."),
    "link-metadata": linked("metadata.json", "notes.txt"),
    "link-loop": loop,
    "pipe-part": piped(PART),
    "pipe-metadata": piped("metadata.json"),
    "pipe-chunk": piped(CHUNK),
    "pipe-manifest": lambda one: ((one.root / "manifest.json").unlink(), os.mkfifo(one.root / "manifest.json")),
}


def decoy(folder: Path) -> Path:
    """Create a folder that must not change."""
    for name in ("notes.txt", "part.parquet", "table/part-00000.parquet", "receipts/train-00000.json", "c.0"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"mine")
    return folder


def tree(folder: Path) -> dict[str, bytes | None]:
    return {str(one.relative_to(folder)): one.read_bytes() if one.is_file() else None for one in folder.rglob("*")}


def rows() -> pd.DataFrame:
    pictures = []
    for i in range(40):
        sink = io.BytesIO()
        Image.new("RGB", (4, 4), (i, 0, 0)).save(sink, "PNG")
        pictures.append(sink.getvalue())
    return pd.DataFrame(
        {
            "price": [float(i) for i in range(40)],
            "city": ["Rome", "Oslo", "Bern", "Rome"] * 10,
            "tags": ["a b", "c", "d", ""] * 10,
            "review": ["Nice one", "bad", "so so", "good"] * 10,
            "photo": pictures,
        }
    )


def preprocessor() -> dp.Preprocessor:
    features = {
        "price": dp.Number(normalization="zscore"),
        "city": "category",
        "tags": "set",
        "review": dp.Text(level="both"),
        "photo": dp.Image(height=4, width=4, num_channels=3, mode="lazy"),
    }
    return dp.Preprocessor(features, split=dp.RandomSplit((0.7, 0.1, 0.2)))


@pytest.fixture
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the dataset that the others are derived from."""
    folder = tmp_path_factory.mktemp("hostile")
    decoy(folder / "decoy")
    frame = rows()
    frame.to_parquet(folder / "rows.parquet")
    preprocessor().fit_write(frame, folder / "sound.dp")
    return folder


def made(intact: Path, names: list[str]) -> None:
    for name in names:
        (intact / name).mkdir()
        shutil.copytree(intact / "sound.dp", intact / name / "a.dp")
        hostile = Hostile(intact / name / "a.dp")
        ATTACKS[name](hostile)
        if not (name.startswith("manifest-") or "pipe-manifest" in name or name in RAW):
            hostile.seal()


RAW = {"rows-infinite", "rows-1e400", "rows-digits", "rows-twice"}


def run_attacks(intact: Path, names: list[str], amount: str) -> Iterator[dict[str, Any]]:
    made(intact, names)
    environment = {**os.environ, "HOME": str(intact), "TMPDIR": str(intact), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, str(PROCESS), str(intact), str(intact / "rows.parquet"), amount]
    ended = subprocess.run(command, capture_output=True, env=environment, check=False, timeout=3000)
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert ended.returncode == 0, (found[-1:], ended.stderr.decode()[-3000:])
    yield from found


@pytest.mark.parametrize(("amount", "step"), [("reading", 8), pytest.param("all", one_in(2), marks=pytest.mark.slow)])
def test_hostile_datasets_access_nothing_outside_and_raise_our_errors(intact: Path, amount: str, step: int) -> None:
    before, attacks = tree(intact / "decoy"), list(ATTACKS)[::step]
    found = list(run_attacks(intact, attacks, amount))
    assert len(ATTACKS) >= 60
    assert {one["dataset"] for one in found} == set(attacks)
    assert [one for one in found if one["outcome"].startswith("RAW")] == []
    assert [one for one in found if one["outside"]] == []
    assert [one for one in found if one["bytes"] > MOST_BYTES] == []
    assert tree(intact / "decoy") == before
