"""Compare the CPU time of daskprep's own implementations with libraries of a similar purpose, as ratios.

    python -m benchmarks.peers.libraries [--rounds 9] [--only token]

Both run in turn (A B A B ...) in one process, on the same cells; what is compared is the CPU time of the process, all
its threads together, so that other processes change little. The ratio is ours by the library's, 0.5 is half its time:
the median of the rounds. Prints a Markdown table. docs/decisions.md says what the library does not do.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import dask.dataframe as dd
import duckdb
import matplotlib as mpl
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import soundfile
import torch
import zarr
from dask.delayed import delayed
from dask.local import SynchronousExecutor, get_sync
from filelock import FileLock
from matplotlib.figure import Figure
from PIL import Image
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from daskprep.columns.permutation import make_key, permute
from daskprep.columns.summaries.moments import Moments
from daskprep.columns.summaries.quantiles import Quantiles
from daskprep.columns.summaries.token_counts import TokenCounts, argsort_bytes, token_hashes
from daskprep.columns.vocabulary import SpecialSymbols, TokenIndex, Vocabulary
from daskprep.dataset.loader.augment import Draws, Mirror
from daskprep.extensions.media.audio import read_plain_wav
from daskprep.extensions.media.pixels import fit
from daskprep.extensions.report.charts import bin_lengths, draw
from daskprep.features.date import from_text
from daskprep.rows.saved import parse_json
from daskprep.sources import as_source
from daskprep.sources.cells import Cells, cell_kind
from daskprep.sources.partitions.dask_internals import Task
from daskprep.sources.partitions.graphs import reference_results
from daskprep.sources.split import RandomSplit, StratifiedSplit
from daskprep.storage.arrays import Output, chunk_name, decode_chunk, encode_chunk, group_metadata
from daskprep.storage.local_files import LocalFiles
from daskprep.storage.threads import InlineExecutor

ROWS = 1_000_000
Call = Callable[[], Any]
Pair = tuple[str, str, Call, Call]
rng = np.random.default_rng(0)


def words(distinct: int, rows: int = ROWS) -> pa.Array:
    """Return texts of 3 to 12 bytes, some of them frequent."""
    tokens = np.array([f"{rng.integers(10**6):x}{i:x}" for i in range(distinct)], dtype=object)
    return pa.array(tokens[rng.zipf(1.3, rows) % distinct])


def tokens(_folder: Path) -> Iterator[Pair]:
    """Sorting, hashing, counting and looking up tokens."""
    column = words(200_000)
    distinct = column.unique()
    yield "token_order", "pyarrow sort_indices", lambda: argsort_bytes(distinct), lambda: pc.sort_indices(distinct)
    as_objects = distinct.to_numpy(zero_copy_only=False)
    yield "token_order", "numpy argsort of str", lambda: argsort_bytes(distinct), lambda: np.argsort(as_objects)
    yield (
        "token_hash", "pandas hash_array",
        lambda: token_hashes(distinct), lambda: pd.util.hash_array(as_objects, categorize=False),
    )  # fmt: skip

    def counted() -> Any:
        coded = column.dictionary_encode()
        counts = np.bincount(coded.indices.to_numpy(), minlength=len(coded.dictionary))
        return TokenCounts.of(coded.dictionary, counts).compact()

    table = pa.table({"token": column})
    connection = duckdb.connect()
    connection.execute("SET threads = 1")
    yield "token_counts, one column", "pyarrow value_counts", counted, lambda: pc.value_counts(column)
    query = "SELECT token, count(*) FROM table_of_tokens GROUP BY token"
    connection.register("table_of_tokens", table)
    yield "token_counts, one column", "DuckDB", counted, lambda: connection.sql(query).to_arrow_table()
    vocabulary = pa.array([f"{i:x}" for i in range(1_000_000)])
    index, lookup = TokenIndex(vocabulary), {token: i for i, token in enumerate(vocabulary.to_pylist())}
    for amount in (100_000, 1_000):
        few = vocabulary.take(pa.array(rng.choice(len(vocabulary), amount, replace=False)))
        few_texts = few.to_pylist()
        name = f"token_index, {amount:,} of 1,000,000"

        def found(few: pa.Array = few) -> Any:
            return index.find(few)

        def by_arrow(few: pa.Array = few) -> Any:
            return pc.index_in(few, value_set=vocabulary)

        def by_dict(texts: list[str] = few_texts) -> Any:
            return np.fromiter(map(lookup.get, texts), np.int64, len(texts))

        yield name, "pyarrow index_in", found, by_arrow
        yield name, "a dict", found, by_dict


def cells(_folder: Path) -> Iterator[Pair]:
    """Reading cells: dates, objects."""
    days = pd.Timestamp("2001-01-01") + pd.to_timedelta(rng.integers(0, 8_000, ROWS), unit="D")
    iso, slashed = (pa.array(days.strftime(form), pa.string()) for form in ("%Y-%m-%d", "%d.%m.%Y"))
    yield "date_text, ISO", "pyarrow cast", lambda: from_text(iso, None), lambda: iso.cast(pa.timestamp("us"))
    as_pandas = iso.to_pandas()
    yield "date_text, ISO", "pandas to_datetime", lambda: from_text(iso, None), lambda: pd.to_datetime(as_pandas)
    yield (
        "date_text, with a format", "pyarrow strptime",
        lambda: from_text(slashed, "%d.%m.%Y"), lambda: pc.strptime(slashed, "%d.%m.%Y", "us"),
    )  # fmt: skip

    texts = as_pandas.to_numpy(dtype=object)
    numbers = rng.normal(size=ROWS).astype(object)

    def ours(values: np.ndarray) -> Call:
        return lambda: Cells(values, "a", cell_kind(values), 0).to_arrow()

    for what, values in (("texts", texts), ("numbers", numbers)):
        yield (
            f"object_cells, {what}",
            "pyarrow from_pandas",
            ours(values),
            partial(pa.array, values, from_pandas=True),
        )


def numbers(_folder: Path) -> Iterator[Pair]:
    """Moments, quantiles, permutations, splits."""
    values = rng.normal(1_000, 3, ROWS)
    column = values.reshape(-1, 1)
    yield "moments", "numpy mean and std", lambda: Moments.of(values), lambda: (values.mean(), values.std())
    yield (
        "moments", "StandardScaler.partial_fit",
        lambda: Moments.of(values), lambda: StandardScaler().partial_fit(column),
    )  # fmt: skip
    yield "quantiles", "numpy quantile", lambda: Quantiles.of(values).quantile(0.5), lambda: np.quantile(values, 0.5)

    key = make_key(0, "rows")
    every, some = np.arange(ROWS), np.arange(8_192)
    yield (
        "permutation, all of 1,000,000", "numpy permutation",
        lambda: permute(every, ROWS, key), lambda: np.random.default_rng(0).permutation(ROWS),
    )  # fmt: skip
    yield (
        "permutation, 8,192 places of 1,000,000", "numpy permutation",
        lambda: permute(some, ROWS, key), lambda: np.random.default_rng(0).permutation(ROWS)[:8_192],
    )  # fmt: skip

    labels = rng.integers(0, 10, ROWS)
    table = pa.table({"label": pa.array(labels.astype(str))})

    def assigned(splitter: Any) -> Call:
        return lambda: splitter.plan([splitter.census(table)])[0].assign(table, None)

    yield "split at random", "train_test_split", assigned(RandomSplit()), lambda: train_test_split(every)
    as_text = table["label"].to_numpy()
    yield (
        "split by class", "train_test_split, stratify",
        assigned(StratifiedSplit("label")), lambda: train_test_split(every, stratify=as_text),
    )  # fmt: skip


def files(folder: Path) -> Iterator[Pair]:
    """Reading delimited text and JSON lines."""
    frame = pd.DataFrame({f"number_{i}": rng.normal(size=200_000).round(4) for i in range(6)})
    frame = frame.assign(city=words(1_000, 200_000).to_pandas(), note=words(100_000, 200_000).to_pandas())
    frame.to_csv(folder / "a.csv", index=False)
    frame.to_json(folder / "a.jsonl", orient="records", lines=True)
    frame.to_json(folder / "a.json", orient="records")
    names = list(frame.columns)

    def ours(path: Path) -> Call:
        return lambda: [fragment.read(names) for fragment in as_source(path).fragments]

    csv_options = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    yield (
        "delimited", "pyarrow.csv, the whole file",
        ours(folder / "a.csv"), lambda: pyarrow.csv.read_csv(folder / "a.csv", convert_options=csv_options),
    )  # fmt: skip

    def read_by_dask() -> Any:
        return dd.read_csv(folder / "a.csv", dtype=str).compute(scheduler="synchronous")

    yield "delimited", "dask.dataframe.read_csv", ours(folder / "a.csv"), read_by_dask
    yield (
        "json_lines", "pyarrow.json, the whole file",
        ours(folder / "a.jsonl"), lambda: pyarrow.json.read_json(folder / "a.jsonl"),
    )  # fmt: skip
    yield (
        "json_lines", "pandas.read_json",
        ours(folder / "a.jsonl"), lambda: pd.read_json(folder / "a.jsonl", lines=True),
    )  # fmt: skip
    yield "json_arrays", "pandas.read_json", ours(folder / "a.json"), lambda: pd.read_json(folder / "a.json")


def storage(folder: Path) -> Iterator[Pair]:
    """JSON and chunks of a dataset, files and locks."""
    text = json.dumps({"vocabulary": words(20_000, 20_000).to_pylist(), "files": {f"f{i}": i for i in range(20_000)}})
    yield "json_text", "json", lambda: parse_json(text), lambda: json.loads(text)
    tokens = words(50_000, ROWS).dictionary_encode().dictionary
    known = Vocabulary(tokens, np.arange(len(tokens)), SpecialSymbols.locate_in(tokens, {}))
    yield "vocabulary_json", "json", known.to_json, lambda: json.dumps(known.to_dict(), ensure_ascii=False)

    output, block_rows = Output("a", "float32", (64,)), 8_192
    blocks = rng.normal(size=(8, block_rows, 64)).round(2).astype(np.float32)
    store = folder / "arrays.zarr"
    for name, data in group_metadata([output], len(blocks) * block_rows, block_rows, "lz4").items():
        (store / name).parent.mkdir(parents=True, exist_ok=True)
        (store / name).write_bytes(data)
    paths = [store / chunk_name(output, i) for i in range(len(blocks))]

    def write_ours() -> None:
        for path, block in zip(paths, blocks, strict=True):
            path.write_bytes(encode_chunk(block, block_rows, "lz4"))

    def write_zarr() -> None:
        zarr.open_array(store / "a")[:] = blocks.reshape(-1, 64)

    room = np.empty((block_rows, 64), np.float32)

    def read_ours() -> None:
        for path in paths:
            decode_chunk(path.read_bytes(), output, block_rows, "lz4", room)

    def read_zarr() -> None:
        array = zarr.open_array(store / "a", mode="r")
        for i in range(len(blocks)):
            array[i * block_rows : (i + 1) * block_rows]

    yield "arrays, written", "zarr", write_ours, write_zarr
    yield "arrays, read", "zarr", read_ours, read_zarr


def on_disk(folder: Path) -> Iterator[Pair]:
    """Metadata of arrays, atomic file writes, locked folders."""
    outputs = [Output(f"a{i}", "float32", ()) for i in range(20)]

    def create_by_zarr() -> None:
        group = zarr.open_group(folder / "other.zarr", mode="w")
        for one in outputs:
            group.create_array(one.name, shape=(ROWS,), dtype="float32", chunks=(8_192,))

    yield "metadata of 20 arrays", "zarr", lambda: group_metadata(outputs, ROWS, 8_192, "lz4"), create_by_zarr

    local, held = LocalFiles(str(folder)), folder / "held"
    held.mkdir()
    block = bytes(1_000_000)

    def write_safely() -> None:
        with local.writer(str(folder / "one"), "", durable=False) as write:
            write(memoryview(block))

    yield "local_files, 1 MB, not flushed", "open and write", write_safely, lambda: (folder / "two").write_bytes(block)

    def hold() -> None:
        for _ in range(100):
            with local.lock(str(held), ""):
                pass

    def hold_by_library() -> None:
        for _ in range(100):
            with FileLock(folder / "lock"):
                pass

    yield "a held folder", "filelock", hold, hold_by_library


def media(_folder: Path) -> Iterator[Pair]:
    """Audio, pixels, augmentation, images of a report."""
    mpl.use("svg")
    sink = io.BytesIO()
    soundfile.write(sink, rng.integers(-(2**15), 2**15, 16_000).astype(np.int16), 16_000, format="WAV")
    sound = sink.getvalue()

    def samples() -> None:
        for _ in range(100):
            read_plain_wav(memoryview(sound))

    def by_soundfile() -> None:
        for _ in range(100):
            soundfile.read(io.BytesIO(sound), dtype="int16")

    yield "wav, clips of a second", "soundfile", samples, by_soundfile

    image = Image.fromarray(rng.integers(0, 256, (224, 224, 3)).astype(np.uint8))
    room = np.empty((3, 224, 224), np.uint8)

    def planes() -> None:
        for _ in range(50):
            fit(image, "RGB", crop=False, labels=False, out=room)

    def by_numpy() -> None:
        for _ in range(50):
            np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))

    yield "pixels, planes of an image", "Pillow to numpy, transposed", planes, by_numpy

    batch = torch.from_numpy(rng.integers(0, 256, (256, 3, 64, 64)).astype(np.uint8))
    mirror, draws = Mirror(), Draws(np.arange(256), 0)
    torch.set_num_threads(1)
    which = torch.from_numpy(rng.random(256) < 0.5)

    def by_torch() -> torch.Tensor:
        return torch.where(which[:, None, None, None], batch.flip(3), batch)

    yield "augment: Mirror", "torch flip and where", lambda: mirror(batch, draws), by_torch


def cached_images(folder: Path) -> Iterator[Pair]:
    """Copies of decoded images, by block."""
    for side in (64, 128, 224):
        file, count = folder / f"{side}.bin", 128_000_000 // (3 * side * side)
        rng.integers(0, 256, (count, 3 * side * side), np.uint8).tofile(file)
        stored = np.asarray(np.memmap(file, np.uint8, "r", shape=(count, 3 * side * side)))
        copies, order = np.zeros_like(stored), rng.permutation(count).tolist()

        def by_block(copies: np.ndarray = copies, stored: np.ndarray = stored) -> None:
            for start in range(0, len(stored), 256):
                copies[start : start + 256] = stored[start : start + 256]

        def by_row(copies: np.ndarray = copies, stored: np.ndarray = stored, order: list[int] = order) -> None:
            for target, row in enumerate(order):
                copies[target] = stored[row]

        yield f"blocks of cached images, {side} pixels", "rows in random order", by_block, by_row


def tasks(_folder: Path) -> Iterator[Pair]:
    """Graphs, executors, charts."""

    def run(executor: Any) -> Call:
        return lambda: [executor.submit(abs, -1).result() for _ in range(10_000)]

    yield "inline, 10,000 calls", "dask.local.SynchronousExecutor", run(InlineExecutor()), run(SynchronousExecutor())

    def ours() -> Any:
        layer = {("rows", i): Task(("rows", i), divmod, 7, i + 1) for i in range(2_000)}
        return get_sync({**layer, "end": Task("end", len, reference_results(list(layer)))}, "end")

    def by_delayed() -> Any:
        rows = delayed(divmod)
        return delayed(len)([rows(7, i + 1) for i in range(2_000)]).compute(scheduler="synchronous")

    yield "partitions, 2,000 empty tasks", "dask.delayed", ours, by_delayed

    lengths = rng.poisson(20, 100_000)

    def by_matplotlib() -> str:
        figure, sink = Figure(), io.StringIO()
        figure.add_subplot().hist(lengths, 40)
        figure.savefig(sink, format="svg")
        return sink.getvalue()

    yield "report, a histogram", "matplotlib", lambda: draw(bin_lengths("Lengths", {"train": lengths})), by_matplotlib


GROUPS = (tokens, cells, numbers, files, storage, on_disk, media, cached_images, tasks)


def cpu_seconds(call: Call) -> float:
    """Return the CPU time of one call."""
    began = time.process_time()
    call()
    return time.process_time() - began


def main() -> None:
    """Measure all pairs and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="pairs whose name holds this")
    arguments = parser.parse_args()
    print("| ours | library | ours, ms of CPU | ours by library's | lowest to highest |\n|---|---|---|---|---|")
    for group in GROUPS:
        with tempfile.TemporaryDirectory() as folder:
            for name, library, ours, theirs in group(Path(folder)):
                if arguments.only not in name:
                    continue
                ours(), theirs()
                runs = [(cpu_seconds(ours), cpu_seconds(theirs)) for _ in range(arguments.rounds)]
                ratios = sorted(a / b for a, b in runs)
                mine = median(a for a, _ in runs) * 1_000
                spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
                print(f"| {name} | {library} | {mine:.1f} | {median(ratios):.2f} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
