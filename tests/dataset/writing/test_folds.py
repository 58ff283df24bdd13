"""Datasets of all folds equal those of single folds, from rows that are read once."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.dataset import FoldedDataset
from daskprep.dataset.writing import job as job_module
from daskprep.dataset.writing.job import WriteJob
from daskprep.dataset.writing.write import scratch_folder
from daskprep.errors import ConfigError, CorruptDatasetError, IncompleteDatasetError

K, ROWS = 3, 240
FOLDS = {
    "rows": dp.KFold(K, seed=1),
    "groups": dp.KFold(K, group="code", stratify="sold"),
    "time": dp.KFold(K, time="when"),
}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    return pd.DataFrame(
        {
            "price": pd.Series(rng.lognormal(3, 2, ROWS)).mask(rng.random(ROWS) < 0.1),
            "city": rng.choice(["Oslo", "Rome", "Lima", *map(str, range(40))], ROWS),
            "review": [" ".join(rng.choice(list("abcdefgh"), rng.integers(0, 9))) for _ in range(ROWS)],
            "code": rng.integers(0, 60, ROWS),
            "when": pd.Timestamp("2024-02-01") + pd.to_timedelta(rng.integers(0, 10**7, ROWS), unit="s"),
            "sold": pd.Series(rng.choice(["yes", "no"], ROWS)).mask(rng.random(ROWS) < 0.05),
        }
    )


@pytest.fixture
def source(table, tmp_path):
    table.to_parquet(tmp_path / "rows.parquet", row_group_size=40)
    return dp.read_files(tmp_path / "rows.parquet", partition_bytes=1)


def preprocessor(split, **options) -> dp.Preprocessor:
    features = {
        "price": dp.Number(missing_value_strategy="fill_with_mean"),
        "before": dp.Number(column="price", missing_value_strategy="ffill"),
        "city": "category",
        "review": "text",
        "sold": dp.Binary(missing_value_strategy="drop_row"),
    }
    return dp.Preprocessor(features, split=split, **options)


def single_fold(split, fold):
    return dp.KFold(**{**split.get_params(), "fold": fold})


def content(folder) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("split", FOLDS.values(), ids=FOLDS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_fold_bytes_equal_write_of_single_fold(table, source, tmp_path, split, shuffle):
    prep = preprocessor(split, balance=dp.Oversample("sold", ratio=0.9))
    dataset = prep.fit_write(source, tmp_path / "all.dp", shuffle=shuffle)
    dataset.verify()
    assert isinstance(dataset, FoldedDataset)
    assert (len(dataset), dataset.folds) == (K, K)
    for fold, one in enumerate(dataset):
        alone = preprocessor(single_fold(split, fold), balance=dp.Oversample("sold", ratio=0.9))
        alone.fit_write(source, tmp_path / f"{fold}.dp", shuffle=shuffle)
        assert content(tmp_path / f"{fold}.dp") == content(one.root.path)
        assert prep.fold(fold).to_dict() == alone.to_dict() == dp.Preprocessor.from_dataset(one).to_dict()
    assert prep.to_dict() == preprocessor(split, balance=dp.Oversample("sold", ratio=0.9)).fit(table).to_dict()
    assert dp.Preprocessor.from_dataset(dataset).to_dict() == prep.to_dict()


def test_fold_equals_fixed_split_of_same_rows(table, tmp_path):
    split = FOLDS["groups"]
    dataset = preprocessor(split).fit_write(table, tmp_path / "all.dp")
    numbers = preprocessor(split).assign(table)["split"]
    for fold, one in enumerate(dataset):
        frame = table.assign(split=np.where(numbers == fold, "val", "train"))
        alone = preprocessor(dp.FixedSplit()).fit_write(frame, tmp_path / f"{fold}.dp")
        mine, other = content(one.files.folder.path), content(alone.files.folder.path)
        del mine["metadata.json"], other["metadata.json"]  # which has the split
        assert mine == other


@pytest.mark.parametrize("name", FOLDS)
@pytest.mark.parametrize("partitions", [3, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 16, 64))])
def test_bytes_do_not_depend_on_partitioning(table, tmp_path, name, partitions):
    preprocessor(FOLDS[name]).fit_write(table, tmp_path / "1.dp", version="1")
    preprocessor(FOLDS[name]).fit_write(dd.from_pandas(table, npartitions=partitions), tmp_path / "2.dp", version="1")
    assert content(tmp_path / "1.dp") == content(tmp_path / "2.dp")


def test_bytes_do_not_depend_on_scheduler(source, tmp_path):
    preprocessor(FOLDS["groups"]).fit_write(source, tmp_path / "1.dp")
    with dask.config.set(scheduler="sync"):
        preprocessor(FOLDS["groups"]).fit_write(source, tmp_path / "2.dp")
    assert content(tmp_path / "1.dp") == content(tmp_path / "2.dp")


@pytest.mark.slow
@pytest.mark.cluster
def test_bytes_on_cluster_equal_threads(cluster, table, tmp_path):
    for name, split in FOLDS.items():
        frame = dd.from_pandas(table, npartitions=5)
        preprocessor(split).fit_write(frame, tmp_path / f"{name}-1.dp", version="1")
        with dask.config.set(scheduler="threads"):
            preprocessor(split).fit_write(frame, tmp_path / f"{name}-2.dp", version="1")
        assert content(tmp_path / f"{name}-1.dp") == content(tmp_path / f"{name}-2.dp")


class Killed(BaseException):
    """End a write abruptly, as a kill does."""


def kill_at(monkeypatch, name, owner, call):
    original, calls = getattr(owner, name), []

    def killed(*args, **how):
        calls.append(1)
        if len(calls) == call:
            raise Killed
        return original(*args, **how)

    monkeypatch.setattr(owner, name, killed)


@pytest.fixture
def counted(table):
    reads = []

    def read(place):
        reads.append(place)
        return table.iloc[place * 40 : place * 40 + 40]

    return reads, lambda: dd.from_map(read, range(6), meta=table.iloc[:0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "call", "again"),
    [
        (WriteJob, "_prepare", 2, 6),
        (WriteJob, "_write", 1, 0),
        (WriteJob, "_write", 3, 0),
        (WriteJob, "_write_rejects", 2, 0),
        (job_module, "commit", 1, 0),
    ],
)
def test_killed_write_resumes(counted, tmp_path, monkeypatch, owner, name, call, again):
    split, (reads, frame) = FOLDS["groups"], counted
    features = {"price": "number", "city": "category"}

    def write(path):
        return dp.Preprocessor(features, split=split).fit_write(frame(), path, version="1")

    with dask.config.set(scheduler="sync"):
        write(tmp_path / "1.dp")
        assert sorted(reads) == list(range(6))
        with monkeypatch.context() as patch:
            kill_at(patch, name, owner, call)
            with pytest.raises(Killed):
                write(tmp_path / "2.dp")
        with pytest.raises(IncompleteDatasetError):
            dp.open_dataset(tmp_path / "2.dp")
        reads.clear()
        write(tmp_path / "2.dp")
        assert len(reads) == again
        assert content(tmp_path / "1.dp") == content(tmp_path / "2.dp")
        reads.clear()
        again = dp.Preprocessor(features, split=split)
        again.fit_write(frame(), tmp_path / "2.dp", version="1")
        assert not reads
        assert again.fold(1).to_dict() == dp.Preprocessor(features, split=split).fit(frame()).fold(1).to_dict()


PLACES = {"number": {"fold_time": False}, "group": {"fold_group": "code"}, "time": {"fold_time": "when"}}
QUICK = {("none", "number"), ("rows", "group"), ("groups", "time")}
SPLITS_AND_PLACES = [
    pytest.param(FOLDS.get(split), PLACES[place], id=f"{split}-{place}", marks=mark)
    for split, place in itertools.product(["none", *FOLDS], PLACES)
    for mark in [[] if (split, place) in QUICK else pytest.mark.slow]
]


@pytest.mark.parametrize(("split", "place"), SPLITS_AND_PLACES)
@pytest.mark.parametrize("killed", [3, 6])
def test_killed_write_of_files_rereads_no_partition(source, tmp_path, monkeypatch, split, place, killed):
    features = {"price": "number", "city": dp.TargetEncoding(target="price", folds=2, **place)}
    prep, reads = dp.Preprocessor(features, split=split), []
    fragment_type = type(source.fragments[0])
    original = fragment_type.read

    def read(self, columns):
        if len(reads) == killed:
            raise Killed
        reads.append(self)
        return original(self, columns)

    with dask.config.set(scheduler="sync"):
        prep.fit_write(source, tmp_path / "1.dp")
        with monkeypatch.context() as patch:
            patch.setattr(fragment_type, "read", read)
            patch.setattr(WriteJob, "_save_state", None)  # called after the fit
            with pytest.raises((Killed, TypeError)):
                prep.fit_write(source, tmp_path / "2.dp")
            killed = -1
            with pytest.raises(TypeError):
                prep.fit_write(source, tmp_path / "2.dp")
        assert len(reads) == 6
        with monkeypatch.context() as patch:
            patch.setattr(fragment_type, "read", None)
            kill_at(patch, "_write", WriteJob, 1 if split is None else 3)
            with pytest.raises(Killed):
                prep.fit_write(source, tmp_path / "2.dp")
            patch.setattr(WriteJob, "_scan", None)  # called by a write without a plan
            kill_at(patch, "_write", WriteJob, K + 2)
            prep.fit_write(source, tmp_path / "2.dp")
    assert content(tmp_path / "1.dp") == content(tmp_path / "2.dp")


def test_killed_write_with_damaged_scratch_rereads_rows(counted, tmp_path, monkeypatch):
    reads, frame = counted
    prep = dp.Preprocessor({"price": "number"}, split=FOLDS["rows"])
    with dask.config.set(scheduler="sync"):
        prep.fit_write(frame(), tmp_path / "1.dp", version="1")
        with monkeypatch.context() as patch:
            kill_at(patch, "_write", WriteJob, 2)
            with pytest.raises(Killed):
                prep.fit_write(frame(), tmp_path / "2.dp", version="1")
        next((tmp_path / "2.dp").rglob("parsed-000003.scratch")).write_bytes(b"")
        reads.clear()
        prep.fit_write(frame(), tmp_path / "2.dp", version="1")
    assert len(reads) == 6
    assert content(tmp_path / "1.dp") == content(tmp_path / "2.dp")


def test_old_dataset_is_kept_until_all_folds_are_written(source, tmp_path, monkeypatch):
    old = preprocessor(None).fit_write(source, tmp_path / "a.dp")
    with monkeypatch.context() as patch:
        kill_at(patch, "_write", WriteJob, 3)
        with pytest.raises(Killed):
            preprocessor(FOLDS["rows"]).fit_write(source, tmp_path / "a.dp", overwrite=True)
    dp.open_dataset(tmp_path / "a.dp").verify()
    assert dp.open_dataset(tmp_path / "a.dp").version == old.version
    folded = preprocessor(FOLDS["rows"]).fit_write(source, tmp_path / "a.dp", overwrite=True)
    assert sorted(path.name for path in (tmp_path / "a.dp").iterdir()) == [folded.version, "manifest.json"]
    preprocessor(None).fit_write(source, tmp_path / "a.dp", overwrite=True).verify()
    assert content(tmp_path / "a.dp") == content(preprocessor(None).fit_write(source, tmp_path / "b.dp").root.path)


def test_repair_damaged_folds(source, tmp_path):
    preprocessor(FOLDS["groups"]).fit_write(source, tmp_path / "a.dp")
    whole = content(tmp_path / "a.dp")
    parts = sorted((tmp_path / "a.dp").rglob("part-00000.parquet"))
    parts[0].write_bytes(b"")
    parts[-1].unlink()
    (parts[0].parent / "stray").write_bytes(b"")
    dataset = dp.open_dataset(tmp_path / "a.dp")
    with pytest.raises(CorruptDatasetError, match="3 damaged files"):
        dataset.verify()
    with pytest.raises(ConfigError, match="is not trusted"):
        dp.repair(tmp_path / "a.dp")
    repaired = dp.repair(tmp_path / "a.dp", trusted=True)
    assert len(repaired.repaired) == 3
    assert content(tmp_path / "a.dp") == whole


def test_swapped_fold_manifest_raises(source, tmp_path):
    preprocessor(FOLDS["rows"]).fit_write(source, tmp_path / "a.dp")
    dataset = dp.open_dataset(tmp_path / "a.dp")
    manifest = Path(dataset.fold(0).root.path) / "manifest.json"
    manifest.write_bytes((Path(dataset.fold(1).root.path) / "manifest.json").read_bytes())
    with pytest.raises(CorruptDatasetError, match=r"fold-0/manifest\.json"):
        dataset.fold(0)


def test_repair_of_symlinked_fold_raises(source, tmp_path):
    preprocessor(FOLDS["rows"]).fit_write(source, tmp_path / "a.dp")
    preprocessor(FOLDS["rows"]).fit_write(source, tmp_path / "b.dp")
    version = dp.open_dataset(tmp_path / "a.dp").version
    decoy = tmp_path / "b.dp" / version / "fold-0"
    (decoy / "kept").write_bytes(b"")
    fold = tmp_path / "a.dp" / version / "fold-0"
    fold.rename(tmp_path / "away")
    fold.symlink_to(decoy)
    with pytest.raises((CorruptDatasetError, ConfigError)):
        dp.repair(tmp_path / "a.dp", source)
    assert (decoy / "kept").exists()


def test_progress_bars_name_fold(source, tmp_path, capsys):
    preprocessor(FOLDS["rows"]).fit_write(source, tmp_path / "a.dp", progress=True)
    shown = capsys.readouterr().err
    assert all(f"fold {fold}: encoding" in shown for fold in range(K))
    assert "fold 0: reading" not in shown


def test_folds_are_opened_separately(source, table, tmp_path):
    prep = preprocessor(FOLDS["rows"])
    dataset = prep.fit_write(source, tmp_path / "a.dp")
    opened = pickle.loads(pickle.dumps(dp.open_dataset(tmp_path / "a.dp")))
    rows = [one["validation"].read("row_id")["row_id"] for one in opened]
    assert sorted(np.concatenate(rows).tolist()) == np.flatnonzero(table["sold"].notna()).tolist()
    assert "3 folds" in repr(dataset)
    assert "3 folds" in dataset._repr_html_()
    for call, message in (
        (lambda: opened["train"], r"has 3 folds: choose one, as in dataset\.fold\(0\)\['train'\]"),
        (lambda: opened[0], r"choose one, as in dataset\.fold\(0\)$"),
        (lambda: opened.fold(3), "has no fold 3: its folds are 0 to 2"),
        (lambda: opened.fold(-1), "has no fold -1"),
        (lambda: opened.fold("a"), "has no fold 'a'"),
        (opened.rejects, r"dataset\.fold\(0\)\.rejects\(\)"),
        (lambda: opened.class_weights("sold"), r"dataset\.fold\(0\)\.class_weights\('sold'\)"),
        (opened.report, r"dataset\.fold\(0\)\.report\(\)"),
        (lambda: opened.plot("price"), r"dataset\.fold\(0\)\.plot\('price'\)"),
        (
            lambda: dp.open_dataset([tmp_path / "a.dp"] * 2),
            r"has folds: open it alone, or folds by their dataset\.fold\(0\)\.url",
        ),
        (lambda: prep.write(source, tmp_path / "b.dp"), r"write needs one fold, but KFold has 3: use prep\.fold\(0\)"),
        (lambda: prep.stream(source), r"prep\.fold\(0\)\.stream\(\.\.\.\)"),
        (lambda: prep.set_params(balance=dp.Oversample("sold", ratio=1.0)).assign(table), "assign needs one fold"),
    ):
        with pytest.raises(ConfigError, match=message):
            call()
    prep = preprocessor(FOLDS["rows"]).fit(source)
    again = prep.fold(2).write(source, tmp_path / "c.dp")
    for name in ("train", "validation"):
        assert again[name].table().equals(dataset.fold(2)[name].table())
    with pytest.warns(UserWarning, match="15 of 240 rows are left out"):
        assert len(next(iter(prep.fold(2).stream(source, 8)))["price"]) == 8


def test_failed_fit_leaves_no_files(source, tmp_path):
    with pytest.raises(dp.errors.ColumnError, match="too few for 200 folds"):
        preprocessor(dp.KFold(200, group="code")).fit_write(source, tmp_path / "a.dp")
    assert not [path for path in (tmp_path / "a.dp").rglob("*") if path.is_file()]


def test_leftovers_of_write_killed_after_commit_are_removed(source, tmp_path):
    root, outside = tmp_path / "a.dp", tmp_path / "scratch"
    prep = preprocessor(FOLDS["rows"]).set_params(scratch=str(outside))
    dataset = prep.fit_write(source, root)
    left = Path(dataset.fold(0).files.folder.path) / "receipts"
    with scratch_folder(dataset.root / dataset.version, str(outside)) as folder:
        scratch = Path(folder.path)
    for path in (left, scratch):
        path.mkdir(parents=True)
    (scratch / "parsed-000000.scratch").touch()
    (root / "manifest.json").unlink()  # killed while the folds were committed
    prep.fit_write(source, root)
    assert (left.exists(), scratch.exists()) == (False, False)
    scratch.mkdir()  # killed after all of it was
    prep.fit_write(source, root)
    assert not scratch.exists()
