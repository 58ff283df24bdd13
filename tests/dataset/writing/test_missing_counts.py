"""The number of missing and unreadable cells by split, which writes count and reports show."""

from __future__ import annotations

import dataclasses

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.storage.manifest import MANIFEST, Manifest, Receipt

pytestmark = pytest.mark.filterwarnings("ignore:.*cannot be read as a number")

ROWS = 3_000
FEATURES = {"price": "number", "city": "category", "words": "set", **{f"x{i}": "number" for i in range(8)}}


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({f"x{i}": rng.random(ROWS) for i in range(8)})
    frame["price"] = np.where(rng.random(ROWS) < 0.1, None, rng.random(ROWS).round(3).astype(str))
    frame.loc[5, "price"] = "n/k"  # unreadable
    frame["city"] = pd.Series(rng.choice(["Oslo", "Rome"], ROWS)).mask(rng.random(ROWS) < 0.3)
    frame["words"] = "a b"
    frame["x7"] = frame["x7"].mask(rng.random(ROWS) < 0.02)
    return frame


def count(frame, dataset):
    """Return the missing cells by split and feature, from the row ids of a dataset."""
    missing = frame[list(FEATURES)].isna()
    missing["price"] |= frame["price"] == "n/k"
    counts = {}
    for name, split in dataset.splits.items():
        totals = missing.iloc[split.read(["row_id"])["row_id"]].sum()
        counts[name] = {feature: int(total) for feature, total in totals.items() if total}
    return counts


@pytest.mark.filterwarnings("ignore:.* without a value are a separate class")
@pytest.mark.parametrize("partitions", [1, 7])
@pytest.mark.parametrize(
    "options",
    [{"shuffle": False, "block_rows": 100}, {"block_rows": 100}, {"shards": True}],
    ids=["ordered", "shuffled", "shards"],
)
def test_missing_counts_do_not_depend_on_partitioning(frame, tmp_path, partitions, options):
    prep = dp.Preprocessor(FEATURES, split=dp.RandomSplit(seed=1), balance=dp.Oversample("city", ratio=0.9))
    dataset = prep.fit_write(dd.from_pandas(frame, npartitions=partitions), tmp_path / "a.dp", **options)
    assert dataset.missing_counts == count(frame, dataset)
    assert dataset.missing_counts["train"].keys() == {"price", "city", "x7"}


def test_missing_counts_of_folds_and_appended_parts(frame, tmp_path):
    folded = dp.Preprocessor(FEATURES, split=dp.KFold(3)).fit_write(frame, tmp_path / "folds.dp")
    assert folded.missing_counts is None
    assert folded.fold(1).missing_counts == count(frame, folded.fold(1))

    prep = dp.Preprocessor(FEATURES, split=dp.RandomSplit(seed=1))
    first = prep.fit_write(frame.iloc[:2_000], tmp_path / "a.dp")
    grown = prep.append(frame.iloc[2_000:], tmp_path / "a.dp")
    expected = [count(frame, first), count(frame.iloc[2_000:], grown.datasets[1])]
    assert grown.missing_counts["test"]["city"] == sum(one["test"]["city"] for one in expected)
    assert grown.delete([3], part=0).missing_counts is None


def test_report_shows_missing_counts_by_split(frame, tmp_path):
    prep = dp.Preprocessor(FEATURES, split=dp.RandomSplit(seed=1))
    dataset = prep.fit_write(frame, tmp_path / "a.dp")
    counts, report = count(frame, dataset), dataset.report()
    facts = {one["name"]: one["missing_by_split"] for one in report.to_dict()["features"]}
    assert facts["city"] == {split: counts[split]["city"] for split in ("train", "validation", "test")}
    assert facts["words"] == {"train": 0, "validation": 0, "test": 0}
    cells = "".join(
        f"<td>{counts[split]['price']} ({100 * counts[split]['price'] / len(dataset[split]):.1f} %)</td>"
        for split in dataset.splits
    )
    assert f'<tr><th scope="row">missing</th>{cells}</tr>' in report.html
    assert f"Missing by split: {counts['train']['city']:,} (" in report.html
    assert report.html.count("Missing by split") == 1


def test_missing_counts_with_older_receipts_are_none(frame, tmp_path, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    prep, path = dp.Preprocessor(FEATURES, split=dp.RandomSplit(seed=1)).fit(frame), tmp_path / "a.dp"
    frame.to_parquet(tmp_path / "rows.parquet")
    with monkeypatch.context() as patch:
        patch.setattr("daskprep.dataset.writing.job.commit", fail)
        with pytest.raises(KeyboardInterrupt):
            prep.write(tmp_path / "rows.parquet", path)
    for file in path.rglob("receipts/train-*.json"):
        receipt = Receipt.from_bytes(file.read_bytes())
        assert receipt.losses
        file.write_bytes(dataclasses.replace(receipt, losses=None).to_bytes())
    assert prep.write(tmp_path / "rows.parquet", path).missing_counts is None


def test_missing_counts_of_older_manifest_are_none(frame, tmp_path):
    dataset = dp.Preprocessor(FEATURES).fit_write(frame, tmp_path / "a.dp")
    manifest = dataclasses.replace(dataset.manifest, losses=None)
    assert b'"losses":{' not in manifest.to_bytes()
    (tmp_path / "a.dp" / MANIFEST).write_bytes(manifest.to_bytes())
    report = dp.open_dataset(tmp_path / "a.dp").report()
    assert report.to_dict()["features"][0]["missing_by_split"] is None
    assert '<th scope="row">missing</th>' not in report.html
    assert Manifest.from_bytes(dataset.manifest.to_bytes(), "here") == dataset.manifest


def test_missing_counts_of_a_manifest_that_lacks_causes(frame, tmp_path):
    dataset = dp.Preprocessor(FEATURES).fit_write(frame, tmp_path / "a.dp")
    manifest = dataclasses.replace(dataset.manifest, losses=None, missing=dataset.missing_counts)
    data = manifest.to_bytes()
    assert Manifest.from_bytes(data, "here").to_bytes() == data  # its digest is in the lists of parts
    (tmp_path / "a.dp" / MANIFEST).write_bytes(data)
    again = dp.open_dataset(tmp_path / "a.dp")
    assert again.missing_counts == dataset.missing_counts
    assert set(again.losses()["cause"]) == {"missing"}
