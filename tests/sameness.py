"""Digests of all results that must not change if code is only moved or renamed.

    python tests/sameness.py record    # writes tests/sameness.json, before
    python tests/sameness.py           # compares, after; exits with 1 and names the entries that differ

An entry is a digest of one result: a written dataset, the batches of an epoch, the rows of a service, the arrays of an
older dataset, the schema and vectors of saved files, and the public names with their parameters. `datasets/csv`,
`datasets/workers` and `datasets/killed` hold the same rows and must be equal to each other as well. Files of Zarr and
Parquet depend on the versions of their libraries, which are recorded too.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import typing
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster

import daskprep as dp

HERE = Path(__file__).parent
RECORD = HERE / "sameness.json"
LIBRARIES = ("dask", "numpy", "pandas", "pyarrow", "zarr", "torch", "pillow")
MODULES = (
    "serving",
    "testing",
    "errors",
    "extensions.predictions",
    "dataset.loader",
    "extensions.streaming.stream",
    "columns.tokenizers",
    "sources",
    "lightning",
    "nn",
)
ROWS = 600
SAVED = runpy.run_path(str(HERE / "saved_format.py"))


def digest(parts: Iterable[bytes | str]) -> str:
    """Return a digest of byte strings, each with its length."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little") + data)
    return state.hexdigest()[:16]


def arrays_digest(arrays: Any) -> str:
    """Return a digest of arrays or tensors, in mappings and tuples, with their names, types, shapes and order."""
    return digest(array_parts("", arrays))


def array_parts(name: str, value: Any) -> Iterator[bytes | str]:
    if isinstance(value, tuple):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from array_parts(f"{name}/{key}", one)
        return
    array = np.asarray(value)
    yield f"{name} {array.dtype.name} {array.shape}"
    yield json.dumps(array.tolist()) if array.dtype == object else np.ascontiguousarray(array).tobytes()


def dataset_digest(path: Path) -> str:
    """Return a digest of the files of a dataset, without the source of its rows and hence its version."""
    manifest = json.loads((path / "manifest.json").read_text())["manifest"]
    folder = path / manifest["version"]
    parts: list[bytes | str] = [
        json.dumps({key: manifest[key] for key in sorted(manifest) if key not in ("version", "source")})
    ]
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            parts += [file.relative_to(folder).as_posix(), file.read_bytes()]
    return digest(parts)


# -- tables


def mixed_table(rows: int = ROWS) -> pd.DataFrame:
    """Return time-ordered rows of all columns of the saved-format vectors, with random cells."""
    rng = np.random.default_rng(11)
    table = SAVED["frame"]()
    drawn = {name: table[name].iloc[rng.integers(0, len(table), rows)].to_list() for name in table}
    frame = pd.DataFrame({name: pd.Series(cells, dtype=table[name].dtype) for name, cells in drawn.items()})
    frame["when"] = pd.Timestamp("2021-01-01") + pd.to_timedelta(np.arange(rows) * 3_601, "s")
    frame["group"] = rng.integers(0, 40, rows)
    frame["target"] = rng.choice(["low", "mid", "high"], rows, p=[0.6, 0.3, 0.1])
    frame["weight"] = rng.integers(1, 9, rows) / 4
    frame["exact"] = rng.normal(size=rows).astype(np.float32)
    return frame


def all_features() -> dict[str, Any]:
    return {
        **SAVED["features"](),
        "target": dp.Category(),
        "number_kept": dp.Number(missing_value_strategy="keep", column="number"),
        "number_dropped": dp.Number(missing_value_strategy="drop_row", column="number"),
        "city_one_hot": dp.Category(transform_to="one_hot", column="city"),
        "when": dp.Date(),
        "exact": dp.Number(normalization="zscore", missing_indicator=True),
    }


def text_features() -> dict[str, Any]:
    """Return the features whose columns a CSV file can store."""
    return {
        "number": dp.Number(normalization="quantile_normal", missing_value_strategy="fill_with_median"),
        "city": dp.Category(min_frequency=2),
        "city_mean": dp.TargetEncoding(target="target", target_type="class", column="city"),
        "sold": dp.Binary(missing_value_strategy="ffill"),
        "tags": dp.Set(),
        "text": dp.Text(most_common=20),
        "series": dp.Timeseries(),
        "place": dp.H3(),
        "price": dp.Number(),
        "seen": dp.Date(missing_value_strategy="drop_row"),
        "count": dp.Timeseries(window_size=3, padding_value=0.0, across_splits=False),
        "target": dp.Category(),
    }


def csv_file(folder: Path) -> Path:
    mixed_table(4_000).drop(columns="list").to_csv(folder / "rows.csv", index=False)
    return folder / "rows.csv"


def written(write: Callable[..., Any], rows: Any, path: Path, **options: Any) -> str:
    """Return the digest of a dataset that a method of a Preprocessor writes."""
    write(rows, path, progress=False, **options)
    return dataset_digest(path)


def write_csv(source: Path, path: Path) -> str:
    split, balance = dp.StratifiedSplit("target", (0.7, 0.1, 0.2), seed=3), dp.Oversample("target", ratio=0.5)
    prep = dp.Preprocessor(text_features(), targets=["target"], split=split, balance=balance)
    rows = dp.read_files(str(source), partition_bytes=40_000)
    return written(prep.fit_write, rows, path, block_rows=64, shuffle=True)


def media_table(folder: Path) -> pd.DataFrame:
    """Write small images, masks and recordings, some broken or missing, and return their paths with labels."""
    import wave

    from PIL import Image

    rng, rows = np.random.default_rng(5), []
    for number in range(48):
        image, mask, audio = (folder / f"{number}{end}" for end in (".png", "-mask.png", ".wav"))
        pixels = rng.integers(0, 256, (20 + number % 5, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(image)
        Image.fromarray(rng.choice(np.array([0, 7, 9], np.uint8), pixels.shape[:2])).save(mask)
        with wave.open(str(audio), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8_000)
            file.writeframes(rng.integers(-3_000, 3_000, 2_000 + 100 * (number % 7), dtype=np.int16).tobytes())
        rows.append([str(image), str(mask), str(audio), "ab"[number % 2]])
    (folder / "3.png").write_bytes(b"no image")
    rows[5][0] = rows[6][2] = None
    return pd.DataFrame(rows, columns=["photo", "mask", "sound", "label"])


def media_features(mode: str) -> dict[str, Any]:
    return {
        "photo": dp.Image(height=16, width=16, mode=mode, on_error="fill"),
        "mask": dp.Image(height=16, width=16, num_classes=3, mode=mode, missing_value_strategy="drop_row"),
        "sound": dp.Audio(sampling_rate=8_000, audio_file_length_limit_in_s=0.3, mode=mode),
        "sound_fbank": dp.Audio(
            column="sound", type="fbank", sampling_rate=8_000, audio_file_length_limit_in_s=0.3, mode=mode
        ),
        "label": dp.Category(),
    }


# -- compared results


def datasets(folder: Path) -> Iterator[tuple[str, str]]:
    frame, source = mixed_table(), csv_file(folder)
    prep = dp.Preprocessor(all_features(), targets=["target"], split=dp.RandomSplit((0.7, 0.1, 0.2), seed=1))
    yield "frame", written(prep.fit_write, frame, folder / "frame.dp", block_rows=32)
    yield "frame-state", digest([json.dumps(prep.to_dict())])
    yield "frame-transform", arrays_digest({"table": prep.transform(frame.head(50))})
    yield "csv", write_csv(source, folder / "csv.dp")
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as workers, Client(workers):
        yield "workers", write_csv(source, folder / "workers.dp")
    yield "killed", write_twice(source, folder / "killed.dp")
    fitted = dp.Preprocessor(text_features(), targets=["target"]).fit(str(source))
    yield "fitted", written(fitted.write, frame, folder / "other.dp", compression="zstd", shards=True, block_rows=100)
    for name, split in splits().items():
        encoding = dp.TargetEncoding(target="target", target_type="class", column="city")
        number = dp.Number(missing_value_strategy="bfill", column="count")
        small = {"city": "category", "number": number, "exact": "number", "city_mean": encoding, "target": "category"}
        weight = None if name == "kfold" else "weight"
        write = dp.Preprocessor(small, split=split, weight=weight).fit_write
        yield f"split-{name}", written(write, frame, folder / f"{name}.dp", compression="none", block_rows=50)
    for mode in ("lazy", "lazy_cached", "eager"):
        files = folder / f"media-{mode}"
        files.mkdir()
        table = media_table(files)
        prep = dp.Preprocessor(media_features(mode), split=dp.RandomSplit(seed=2))
        dataset = prep.fit_write(table, folder / f"{mode}.dp", block_rows=8, progress=False)
        loader = dataset["train"].loader(8, seed=1, cache=mode == "lazy_cached", cache_dir=folder / "cache")
        yield f"media-{mode}", digest(map(arrays_digest, loader))


def splits() -> dict[str, Any]:
    return {
        "group": dp.GroupSplit("group"), "hash": dp.HashSplit("group"), "kfold": dp.KFold(3, seed=1),
        "time": dp.DatetimeSplit("when"), "series": dp.TimeSeriesSplit("when", 3),
    }  # fmt: skip


def write_twice(source: Path, path: Path) -> str:
    """Write in a process that is killed after some chunks are on disk, and resume."""
    process = subprocess.Popen([sys.executable, __file__, "write", str(source), str(path)], start_new_session=True)
    while process.poll() is None and sum(1 for _ in path.rglob("c.*")) < 20:
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (path / "manifest.json").exists()
    return write_csv(source, path)


def epochs(folder: Path) -> Iterator[tuple[str, str]]:
    split = dp.open_dataset(folder / "csv.dp")["train"]
    options: dict[str, dict[str, Any]] = {
        "default": {}, "ordered": {"shuffle": False, "drop_last": True}, "raw": {"expand": False, "streams": 2},
        "rank-1-of-2": {"rank": 1, "world_size": 2}, "uneven": {"rank": 2, "world_size": 5, "uneven": True},
        "balanced": {"balance": dp.Undersample("target", ratio=0.5)},
        "weighted": {"weights": {"target": {"high": 5.0, "mid": 1.0, "low": 1.0}}},
        "packed": {"pack": dp.Packing(64, columns="text")}, "overfit": {"overfit_batches": 2},
        "columns": {"columns": ["city", "price"], "targets": "target"},
    }  # fmt: skip
    for name, how in options.items():
        loader = split.loader(50, seed=9, **{"row_ids": "pack" not in how, **how})
        yield name, digest(arrays_digest(batch) for _ in range(2) for batch in loader)
    loader = split.loader(50, seed=9, row_ids=True)
    batches = iter(loader)
    for _ in range(7):
        next(batches)
    resumed = split.loader(50, seed=9, row_ids=True)
    resumed.load_state_dict(loader.state_dict())
    yield "resumed", digest(arrays_digest(batch) for batch in resumed)
    prep = dp.Preprocessor(text_features(), targets=["target"], split=dp.HashSplit("group", seed=1))
    prep.fit(dp.read_files(str(folder / "rows.csv")))
    for rank in range(2):
        stream = prep.stream(
            dp.read_files(str(folder / "rows.csv"), partition_bytes=40_000), 64, seed=4, rank=rank, world_size=2,
            row_ids=True,
        )  # fmt: skip
        yield f"stream-{rank}", digest(arrays_digest(batch) for _ in range(2) for batch in stream)


def services(folder: Path) -> Iterator[tuple[str, str]]:
    from daskprep import serving

    frame = mixed_table(300)
    prep = dp.Preprocessor(all_features(), targets=["target"]).fit(frame)
    prep.save(folder / "prep.json")
    encoder = serving.load(folder / "prep.json")
    rows = frame.drop(columns="target").astype(object).where(frame.notna(), None).to_dict("records")
    yield "rows", arrays_digest(encoder.encode(rows[:100]))
    yield "row", digest(arrays_digest(encoder.encode(row)) for row in rows[100:120])
    for count in (1, 30, 300):
        yield f"encode-{count}", arrays_digest(prep.encode(frame.head(count)))
    yield "decoded", digest([prep.decode(prep.encode(frame)).to_json()])
    yield "counts", digest([prep.cell_counts(frame).to_json()])


def earlier(folder: Path) -> Iterator[tuple[str, str]]:
    with zipfile.ZipFile(HERE / "earlier" / "dataset.zip") as archive:
        archive.extractall(folder / "earlier")
    (path,) = {file.parent for file in (folder / "earlier").rglob("manifest.json")}
    dataset = dp.open_dataset(path)
    for name, split in dataset.splits.items():
        yield name, arrays_digest({key: np.asarray(one) for key, one in split.read().items()})


def formats() -> Iterator[tuple[str, str]]:
    yield "schema", digest([json.dumps(SAVED["schema"]())])
    yield "vectors", digest([json.dumps(SAVED["vectors"]())])


def names() -> Iterator[tuple[str, str]]:
    """Yield the members of public modules and classes, and the names of the parameters of functions."""
    for module in ("daskprep", *(f"daskprep.{name}" for name in MODULES)):
        home = importlib.import_module(module)
        public = sorted(getattr(home, "__all__", ()))
        yield module, " ".join(public)
        for name in public:
            yield f"{module}.{name}", " ".join(members(getattr(home, name)))
    for module, name in (
        ("dataset.loader.loader", "Loader"),
        ("extensions.streaming.stream", "Stream"),
        ("dataset.split", "Split"),
    ):
        yield name, " ".join(members(getattr(importlib.import_module(f"daskprep.{module}"), name)))


@functools.cache
def documented() -> set[str]:
    """Return the words of all code in the documentation."""
    pages = [*HERE.parent.glob("docs/**/*.md"), HERE.parent / "README.md"]
    code = re.compile(r"^ *```.*?^ *```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
    return {word for page in pages for part in code.findall(page.read_text()) for word in re.findall(r"\w+", part)}


def members(one: Any) -> Iterator[str]:
    if not inspect.isclass(one):
        yield parameters(one) if callable(one) else type(one).__name__
        return
    yield f"__init__{parameters(one.__init__)}"
    for name, member in inspect.getmembers(one):
        if str(getattr(member, "__module__", "")).startswith("torch."):  # inherited by modules
            continue
        if not name.startswith("_") and name in documented():
            yield name + (parameters(member) if callable(member) and not inspect.isclass(member) else "")


def parameters(function: Callable[..., Any]) -> str:
    """Return the names of the parameters of a function; ``**options: Unpack[...]`` are those of its TypedDict."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    found = []
    for parameter in signature.parameters.values():
        if parameter.kind == parameter.VAR_KEYWORD and "Unpack" in str(parameter.annotation):
            annotation = str(parameter.annotation)  # other annotations may name classes that only type checkers import
            (options,) = typing.get_args(eval(annotation, vars(inspect.getmodule(function))))
            found += list(options.__annotations__)
        elif parameter.name != "self":
            found.append(parameter.name)
    return f"({','.join(found)})"


def results() -> dict[str, str]:
    """Return every digest, under a name."""
    warnings.simplefilter("ignore")  # most cells cannot be read
    folder = Path(tempfile.mkdtemp(prefix="sameness-"))
    groups: dict[str, Callable[[], Iterable[tuple[str, str]]]] = {
        "names": names, "formats": formats, "earlier": lambda: earlier(folder), "services": lambda: services(folder),
        "datasets": lambda: datasets(folder), "epochs": lambda: epochs(folder),
    }  # fmt: skip
    try:
        with dask.config.set(scheduler="threads"):
            return {f"{group}/{name}": one for group, make in groups.items() for name, one in make()}
    finally:
        shutil.rmtree(folder)


def main() -> None:
    if sys.argv[1:2] == ["write"]:
        warnings.simplefilter("ignore")
        write_csv(*map(Path, sys.argv[2:4]))
        return
    record = {"libraries": {name: version(name) for name in LIBRARIES}, "results": results()}
    found = record["results"]
    assert found["datasets/csv"] == found["datasets/workers"] == found["datasets/killed"]
    if sys.argv[1:] == ["record"]:
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
        return
    before = json.loads(RECORD.read_text())
    if before["libraries"] != record["libraries"]:
        print(f"recorded with other libraries: {before['libraries']}, here {record['libraries']}")
    differing = [name for name in {**before["results"], **found} if before["results"].get(name) != found.get(name)]
    for name in differing:
        print(f"differs: {name}\n  was {before['results'].get(name)}\n  is  {found.get(name)}")
    print(f"{len(found) - len(differing)} of {len(found)} results are the same")
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
