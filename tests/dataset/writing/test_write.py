"""Written rows equal `encode` and `assign` for any partitions; versions depend on rows and settings."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import daskprep as dp
from daskprep.dataset.writing.versions import commit
from daskprep.errors import ColumnError, ConfigError, CorruptDatasetError, DatasetExistsError, RejectedValueError
from daskprep.storage import Folder
from tests.sizes import Sizes

SPLITS = {
    "none": None,
    "random": dp.RandomSplit(),
    "stratify": dp.StratifiedSplit("sold"),
    "hash": dp.HashSplit("when"),
    "datetime": dp.DatetimeSplit("when"),
    "fixed": dp.FixedSplit("fold"),
}
BALANCES = {
    "none": None,
    "oversample": dp.Oversample("sold", ratio=0.8),
    "undersample": dp.Undersample("sold", ratio=0.9),
    "counts": dp.Oversample("city", counts={"Rome": 1000}),
}
CASES = [
    *[(split, "none", False) for split in SPLITS],
    *[("stratify", balance, False) for balance in BALANCES],
    *[(split, "oversample", True) for split in SPLITS],
    ("random", "undersample", True),
]
CODES = {"train": 0, "validation": 1, "test": 2}

pytestmark = pytest.mark.filterwarnings(
    "ignore:column .* cells cannot be read:UserWarning",
    "ignore:the times of .* go back:UserWarning",  # the rows are not in the order of their times
)


@pytest.fixture(autouse=True)
def small_parts(sizes: Sizes) -> None:
    """Several parts per split, of several blocks."""
    sizes(part_bytes=30_000)


@pytest.fixture
def folded(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(fold=np.arange(len(table)) % 3)


@pytest.fixture(params=CASES, ids=lambda case: "-".join(map(str, case)))
def case(request: pytest.FixtureRequest) -> tuple[dict[str, Any], bool]:
    split, balance, shuffle = request.param
    return {"split": SPLITS[split], "balance": BALANCES[balance]}, shuffle


@pytest.mark.slow
def test_written_rows_equal_encode_and_assign(
    folded: pd.DataFrame, prep: Callable[..., dp.Preprocessor], case: Any, tmp_path: Path
) -> None:
    options, shuffle = case
    dataset = prep(**options).fit_write(folded, tmp_path / "a.dp", shuffle=shuffle, block_rows=64)
    fitted = prep(**options).fit(folded)
    encoded, assigned = fitted.encode(folded), fitted.assign(folded)
    for name, split in dataset.splits.items():
        rows = np.flatnonzero(assigned["split"] == CODES[name])
        rows = np.repeat(rows, assigned["repeats"][rows])
        read = split.read(["row_id", *encoded])
        np.testing.assert_array_equal(np.sort(read["row_id"]), rows)
        assert shuffle or np.array_equal(read["row_id"], rows)
        for output, array in encoded.items():
            np.testing.assert_array_equal(read[output], array[read["row_id"]])
    assert sum(map(len, dataset.splits.values())) == assigned["repeats"].sum()


@pytest.mark.slow
def test_bytes_do_not_depend_on_partitions(
    folded: pd.DataFrame, prep: Callable[..., dp.Preprocessor], case: Any, tmp_path: Path, tree_of: Any
) -> None:
    options, shuffle = case
    frames = [
        folded,
        dd.from_pandas(folded, npartitions=7, sort=False),
        dd.from_map(lambda rows: folded.iloc[rows], [slice(0), slice(0, 9), slice(9, 9), slice(9, None), slice(0)]),
    ]
    trees = []
    for number, frame in enumerate(frames):
        path = tmp_path / str(number)
        prep(**options).fit_write(frame, path, shuffle=shuffle, block_rows=64, version="1")
        trees.append(tree_of(path))
    assert all(other == trees[0] for other in trees[1:])


@pytest.fixture
def tree_of() -> Callable[[Path], dict[str, bytes]]:
    def read(folder: Path) -> dict[str, bytes]:
        return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}

    return read


def test_write_of_fitted_preprocessor_equals_fit_write(
    table: pd.DataFrame, prep: Callable[..., dp.Preprocessor], tmp_path: Path
) -> None:
    options = {"split": dp.StratifiedSplit("sold"), "balance": dp.Oversample("sold", ratio=0.5)}
    one = prep(**options).fit_write(table, tmp_path / "one")
    two = prep(**options).fit(table).write(table, tmp_path / "two")
    assert one.manifest.files == two.manifest.files


def test_fit_write_fits_preprocessor(table: pd.DataFrame, prep: Callable[..., dp.Preprocessor], tmp_path: Path) -> None:
    written, fitted = prep(split=dp.RandomSplit()), prep(split=dp.RandomSplit()).fit(table)
    written.fit_write(table, tmp_path / "a", version="1")
    assert written.to_dict() == fitted.to_dict()
    again = prep(split=dp.RandomSplit())
    again.fit_write(table, tmp_path / "a", version="1")
    assert again.to_dict() == fitted.to_dict()


def test_fit_on_all_uses_all_rows(table: pd.DataFrame, tmp_path: Path) -> None:
    prep = dp.Preprocessor({"city": "category"}, split=dp.RandomSplit(), fit_on="all")
    dataset = prep.fit_write(table, tmp_path / "a")
    assert prep.learned_["city"].rows == len(table) > len(dataset["train"])


def test_shuffle_depends_on_seed(table: pd.DataFrame, tmp_path: Path) -> None:
    def order(seed: int) -> np.ndarray:
        options = {"shuffle": True, "seed": seed, "overwrite": True}
        dataset = dp.Preprocessor({"walk": "number"}).fit_write(table, tmp_path / "a", **options)
        rows: np.ndarray = dataset["train"].read(["row_id"])["row_id"]
        return rows

    first = order(0)
    np.testing.assert_array_equal(first, order(0))
    assert (first != order(1)).mean() > 0.9
    # Neighbors come from all rows.
    assert np.abs(np.diff(first)).mean() > len(table) / 5


def test_dropped_rows_are_in_rejects(table: pd.DataFrame, prep: Callable[..., dp.Preprocessor], tmp_path: Path) -> None:
    rejects = prep().fit_write(dd.from_pandas(table, npartitions=3), tmp_path / "a").rejects().to_pylist()
    expected = sorted({11, *range(0, len(table), 17)})
    assert [reject["row_id"] for reject in rejects] == expected
    reasons = {reject["row_id"]: reject["reason"] for reject in rejects}
    assert reasons[11] == "'abc' cannot be read as a number"
    assert reasons[17] == "missing"


def test_dropped_outliers_are_in_rejects(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [0.0, 1.0] * 50 + [1e6]})
    prep = dp.Preprocessor({"x": dp.Number(outlier_strategy="drop_row", outlier_threshold=3.0)})
    [reject] = prep.fit_write(frame, tmp_path / "a").rejects().to_pylist()
    assert reject == {"row_id": 100, "column": "x", "reason": "1000000.0 is excluded by the fitted state"}


# -- versions


@pytest.fixture
def files(table: pd.DataFrame, tmp_path: Path) -> list[str]:
    paths = [str(tmp_path / f"part-{number}.parquet") for number in range(3)]
    for number, path in enumerate(paths):
        table.iloc[number * 200 : (number + 1) * 200][["city", "walk"]].to_parquet(path)
    return paths


@pytest.fixture
def simple() -> Callable[..., dp.Preprocessor]:
    return lambda **options: dp.Preprocessor({"city": "category", "walk": "number"}, **options)


@pytest.fixture
def no_reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: Any) -> None:
        raise AssertionError("the source was read")

    with monkeypatch.context() as patch:
        patch.setattr("daskprep.passes.scratch.SpillingParser.parse", refuse)
        yield


def test_same_version_is_returned_without_reading(
    files: list[str], simple: Callable[..., dp.Preprocessor], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    first = simple().fit_write(files, tmp_path / "a")
    request.getfixturevalue("no_reading")
    assert simple().fit_write(files, tmp_path / "a").version == first.version
    with pytest.raises(AssertionError, match="the source was read"):
        simple().fit_write(files, tmp_path / "a", overwrite=True)


CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "file": ('1 file changed since it was written: "[^"]*"', {}),
    "files": ('files? removed since it was written: "[^"]*"', {}),
    "frame": ("it was written from .*, not from 10 rows in memory", {}),
    "feature": ("features.walk again is None, not {'type': 'number'", {}),
    "parameter": ("features.city.most_common is None, not 1", {}),
    "type": ("features.walk.type is 'number', not 'category'", {}),
    "split": ("split is None, not {'type': 'random'", {}),
    "shuffle": ("shuffle_seed is None, not 0", {"shuffle": True}),
    "block_rows": ("block_rows is None, not 7", {"block_rows": 7}),
    "compression": ("compression is 'lz4', not 'zstd'", {"compression": "zstd"}),
    "version": ('not from version="2"', {"version": "2"}),
    "dask": ("the rows cannot be compared", {}),
}


def changed(files: list[str], table: pd.DataFrame, simple: Callable[..., dp.Preprocessor], change: str) -> Any:
    """Return a Preprocessor and rows that differ from those of `simple` and `files`."""
    prep, rows = (
        simple(),
        {"files": files[:1], "frame": table[:10], "dask": dd.from_pandas(table, 2)}.get(change, files),
    )
    if change == "file":
        os.utime(files[0], ns=(1, 1))
    features: dict[str, Any] = {
        "feature": {**prep.features, "walk again": dp.Number(column="walk")},
        "parameter": {**prep.features, "city": dp.Category(most_common=1)},
        "type": {**prep.features, "walk": "category"},
    }
    if change in features:
        prep.set_params(features=features[change])
    return (simple(split=dp.RandomSplit()) if change == "split" else prep), rows


def test_differing_dataset_error_names_new_files(
    files: list[str], simple: Callable[..., dp.Preprocessor], tmp_path: Path
) -> None:
    simple().fit_write(files[:1], tmp_path / "a")
    with pytest.raises(DatasetExistsError) as caught:
        simple().fit_write(files[:2], tmp_path / "a")
    assert f'1 file added since it was written: "{files[1]}"; append([the new files], path)' in str(caught.value)


@pytest.mark.parametrize("is_fitted", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_finished_dataset_is_replaced_only_with_overwrite(
    files: list[str], table: pd.DataFrame, simple: Callable[..., dp.Preprocessor], tmp_path: Path, change: str,
    is_fitted: bool, tree_of: Any,
) -> None:  # fmt: skip
    first = simple().fit_write(files, tmp_path / "a")
    before = tree_of(tmp_path / "a")
    message, options = CHANGES[change]
    prep, rows = changed(files, table, simple, change)
    write = prep.fit(rows).write if is_fitted else prep.fit_write
    with pytest.raises(DatasetExistsError, match=f"a dataset that differs: .*{message}.* with overwrite=True"):
        write(rows, tmp_path / "a", **options)
    assert tree_of(tmp_path / "a") == before
    second = write(rows, tmp_path / "a", overwrite=True, **options)
    assert second.version != first.version
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted([second.version, "manifest.json"])
    with pytest.raises(CorruptDatasetError, match=f"{first.version} is gone"):
        first["train"].read()


def test_different_fitted_state_raises(files: list[str], tmp_path: Path) -> None:
    prep = dp.Preprocessor({"walk": "number"})
    prep.fit(files).write(files, tmp_path / "a")
    assert prep.write(files, tmp_path / "a").timings is None
    with pytest.raises(DatasetExistsError, match="its fitted state differs"):
        prep.fit(files[:1]).write(files, tmp_path / "a")


def test_version_depends_on_order_of_features_and_symbols(table: pd.DataFrame, tmp_path: Path) -> None:
    one = dp.Preprocessor({"walk": "number", "again": dp.Number(column="walk")})
    two = dp.Preprocessor({"again": dp.Number(column="walk"), "walk": "number"})
    first = one.fit_write(table, tmp_path / "a", version="1")
    columns = first["train"].columns
    with pytest.raises(DatasetExistsError, match="its features have another order"):
        two.fit_write(table, tmp_path / "a", version="1")
    second = two.fit_write(table, tmp_path / "a", version="1", overwrite=True)
    assert (columns, second["train"].columns) == (["walk", "again"], ["again", "walk"])
    symbols = {"padding": "<P>", "unknown": "<U>"}
    preps = [
        dp.Preprocessor({"tags": dp.Sequence(special_symbols=one)})
        for one in (symbols, dict(reversed(symbols.items())))
    ]
    assert len({prep.fit_write(table, tmp_path / "b", version="1", overwrite=True).version for prep in preps}) == 2


def test_version_depends_on_tokenizer_files(tmp_path: Path) -> None:
    vocabulary = tmp_path / "tokens.txt"
    frame = pd.DataFrame({"x": ["a b"]})
    versions = set()
    for tokens in ("a\nb\n", "b\na\n"):
        vocabulary.write_text(tokens)
        prep = dp.Preprocessor({"x": dp.Text(level="both", vocab_file=str(vocabulary))})
        versions.add(prep.fit_write(frame, tmp_path / "a", version="1", overwrite=True).version)
    assert len(versions) == 2


def test_concurrent_writes_are_independent(table: pd.DataFrame, tmp_path: Path) -> None:
    datasets: dict[int, dp.Dataset] = {}

    def write(number: int) -> None:
        prep = dp.Preprocessor({"city": dp.Category(most_common=number % 3 + 1)})
        datasets[number] = prep.fit_write(table, tmp_path / str(number))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {n: datasets[n]["train"].num_embeddings("city") for n in datasets} == {n: n % 3 + 2 for n in range(8)}


def test_overwrite_creates_new_versions(
    table: pd.DataFrame, simple: Callable[..., dp.Preprocessor], tmp_path: Path
) -> None:
    versions = [simple().fit_write(table, tmp_path / "a", overwrite=True).version for _ in range(3)]
    base = versions[0]
    assert versions == [base, f"{base}-1", f"{base}-2"]


@pytest.mark.parametrize(
    "convert",
    [
        pd.DataFrame.copy,
        lambda table: pa.Table.from_pandas(table.assign(price=1.0)),
        lambda table: table.to_dict("list"),
    ],
)
def test_equal_rows_in_memory_are_written_once(
    convert: Any, table: pd.DataFrame, simple: Callable[..., dp.Preprocessor], tmp_path: Path
) -> None:
    first = simple().fit_write(convert(table), tmp_path / "a")
    assert first.timings is not None
    assert simple().fit_write(convert(table.copy()), tmp_path / "a").timings is None
    other = table.copy()
    other.loc[len(other) - 1, "walk"] = np.nextafter(other["walk"].iloc[-1], np.inf)
    with pytest.raises(DatasetExistsError, match="rows in memory with other cells or columns"):
        simple().fit_write(convert(other), tmp_path / "a")


def test_interrupted_write_of_other_rows_is_replaced(
    files: list[str], simple: Callable[..., dp.Preprocessor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("daskprep.dataset.writing.job.commit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            simple().fit_write(files, tmp_path / "a")
    assert len(simple().fit_write(files[:1], tmp_path / "a")["train"]) > 0


def test_second_of_two_different_writers_raises(
    files: list[str], simple: Callable[..., dp.Preprocessor], tmp_path: Path
) -> None:
    def write(rows: list[str]) -> str:
        try:
            return simple().fit_write(rows, tmp_path / "a").version
        except DatasetExistsError:
            return "refused"

    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(write, [files, files[:1]]))
    ended.remove("refused")
    assert [dp.open_dataset(tmp_path / "a").version] == ended


def test_frame_with_version_is_written_once(
    table: pd.DataFrame, simple: Callable[..., dp.Preprocessor], tmp_path: Path
) -> None:
    simple().fit_write(table, tmp_path / "a", version="monday")
    same = simple().fit_write(table.iloc[:10], tmp_path / "a", version="monday")
    assert len(same["train"]) == len(table)
    other = simple().fit_write(table.iloc[:10], tmp_path / "a", version="tuesday", overwrite=True)
    assert len(other["train"]) == 10


def test_concurrent_writers_of_one_path_wait(
    files: list[str], simple: Callable[..., dp.Preprocessor], tmp_path: Path
) -> None:
    versions: list[str] = []
    threads = [
        threading.Thread(target=lambda: versions.append(simple().fit_write(files, tmp_path / "a").version))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(versions) == 4
    assert len(set(versions)) == 1
    dp.open_dataset(tmp_path / "a").verify()


# -- errors


def test_folder_with_other_files_raises(
    table: pd.DataFrame, simple: Callable[..., dp.Preprocessor], tmp_path: Path
) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match=r'has other files, such as "thesis.txt": use a new or empty folder'):
        simple().fit_write(table, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_folder_named_like_version_is_kept(
    table: pd.DataFrame, simple: Callable[..., dp.Preprocessor], tmp_path: Path
) -> None:
    mine = tmp_path / "0123456789abcdef" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(ConfigError, match="use a new or empty folder"):
        simple().fit_write(table, tmp_path)
    assert mine.exists()


def test_leftovers_of_old_version_are_removed(
    table: pd.DataFrame, simple: Callable[..., dp.Preprocessor], tmp_path: Path
) -> None:
    left = tmp_path / "a" / "0123456789abcdef" / "train" / "table" / "part-00000.parquet"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half removed")
    dataset = simple().fit_write(table, tmp_path / "a")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted([dataset.version, "manifest.json"])


def test_rejected_value_error_leaves_no_files(table: pd.DataFrame, tmp_path: Path) -> None:
    prep = dp.Preprocessor({"price": dp.Number(invalid="raise")})
    with pytest.raises(RejectedValueError, match="'abc' cannot be read as a number"):
        prep.fit_write(table, tmp_path / "a")
    assert not list((tmp_path / "a").iterdir())


def test_files_removed_before_commit_raise(
    table: pd.DataFrame, simple: Callable[..., dp.Preprocessor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(root: Any, manifest: Any) -> None:
        (root / manifest.version).remove("rejects.parquet")
        commit(root, manifest)

    monkeypatch.setattr("daskprep.dataset.writing.job.commit", lose)
    with pytest.raises(CorruptDatasetError, match=r"gone, such as rejects.parquet.*Nothing was committed"):
        simple().fit_write(table, tmp_path / "a")
    assert not (tmp_path / "a" / "manifest.json").exists()


def test_finished_parts_are_flushed_before_resumed_commit(
    files: list[str], simple: Callable[..., dp.Preprocessor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("daskprep.dataset.writing.job.commit", die)
        with pytest.raises(KeyboardInterrupt):
            simple().fit_write(files, tmp_path / "a")
    flushed: list[str] = []

    def sync(_: Folder, names: Iterable[str], *, contents: bool = True, folders: bool = True) -> None:
        if contents and folders:
            flushed.extend(names)

    monkeypatch.setattr(Folder, "sync", sync)
    dataset = simple().fit_write(files, tmp_path / "a")
    assert {name for name, entry in dataset.manifest.files.items() if entry.rows and "/" in name} <= set(flushed)


def test_damaged_manifest_is_replaced_only_with_overwrite(
    table: pd.DataFrame, simple: Callable[..., dp.Preprocessor], tmp_path: Path
) -> None:
    simple().fit_write(table, tmp_path / "a")
    (tmp_path / "a" / "manifest.json").write_bytes(b"{}")
    with pytest.raises(CorruptDatasetError, match="overwrite=True writes the dataset again"):
        simple().fit_write(table, tmp_path / "a")
    simple().fit_write(table, tmp_path / "a", overwrite=True).verify()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_rows": 0}, "block_rows=0: expected an integer"),
        ({"compression": "gzip"}, "compression='gzip': expected \"lz4\""),
        ({"progress": "yes"}, "progress must be True, False or None"),
        ({"memory": "much"}, "memory='much': expected bytes such as"),
        ({"seed": "x", "shuffle": True}, "seed='x'"),
        ({"version": 3}, "version=3"),
    ],
)
def test_invalid_options_raise_before_reading(
    table: pd.DataFrame,
    simple: Callable[..., dp.Preprocessor],
    tmp_path: Path,
    no_reading: None,
    options: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(ConfigError, match=message):
        simple().fit_write(table, tmp_path / "a", **options)
    assert not (tmp_path / "a").exists()


def test_data_without_rows_raises(table: pd.DataFrame, simple: Callable[..., dp.Preprocessor], tmp_path: Path) -> None:
    with pytest.raises(ColumnError, match="the data has no rows"):
        simple().fit_write(table.iloc[:0], tmp_path / "a")
    prep = dp.Preprocessor({"walk": dp.Number(missing_value_strategy="drop_row")}).fit(table)
    with pytest.raises(ColumnError, match="every row is left out"):
        prep.write(pd.DataFrame({"walk": [None, None]}), tmp_path / "a")


def test_feature_named_row_id_raises(table: pd.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='a feature is called "row_id"'):
        dp.Preprocessor({"row_id": dp.Number(column="walk")}).fit_write(table, tmp_path / "a")


def test_unregistered_tokenizer_raises(table: pd.DataFrame, tmp_path: Path) -> None:
    prep = dp.Preprocessor({"tags": dp.Set(tokenizer=str.split)})
    with pytest.raises(ConfigError, match="register it by name"):
        prep.fit_write(table, tmp_path / "a")


def test_progress_is_not_printed_without_terminal(
    table: pd.DataFrame, simple: Callable[..., dp.Preprocessor], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    simple().fit_write(table, tmp_path / "a")
    assert capfd.readouterr() == ("", "")
    simple().fit_write(table, tmp_path / "a", overwrite=True, progress=True)
    shown = capfd.readouterr().err
    assert all(stage in shown for stage in ("reading", "learning", "encoding", "writing"))


def test_schedulers_write_same_files(
    files: list[str], simple: Callable[..., dp.Preprocessor], tmp_path: Path, tree_of: Any
) -> None:
    for scheduler in ("sync", "threads"):
        with dask.config.set(scheduler=scheduler):
            simple().fit_write(files, tmp_path / scheduler)
    assert tree_of(tmp_path / "sync") == tree_of(tmp_path / "threads")


def test_rewriting_from_stream_without_version_raises(tmp_path):
    frame = pl.LazyFrame({"price": [1.0, 2.0]})
    prep = dp.Preprocessor({"price": "number"}, split=None)
    prep.fit_write(frame, tmp_path / "a.dp", progress=False)
    with pytest.raises(ConfigError, match=r"rows of a stream cannot be compared .*version=.*overwrite=True"):
        prep.fit_write(frame, tmp_path / "a.dp", progress=False)
