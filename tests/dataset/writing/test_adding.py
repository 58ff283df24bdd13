"""Outputs added to a written dataset equal those of a write with all features."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError, DaskprepError, MissingColumnError
from daskprep.storage.files import Folder

ROWS = 700
FEATURES = {"city": dp.Category(), "walk": dp.Timeseries(), "price": dp.Number(missing_value_strategy="drop_row")}
ADDED = {
    "scalar": dp.Number(column="area"),
    "matrix": dp.Text(column="review"),
    "set": dp.Set(column="review"),
    "two outputs": dp.Number(column="area", missing_indicator=True, missing_value_strategy="fill_with_mean"),
}


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"city": rng.choice(["Rome", "Oslo", "Bern"], ROWS), "price": rng.normal(size=ROWS)})
    rows["walk"] = [rng.normal(size=size).tolist() for size in rng.integers(1, 9, ROWS)]
    rows["review"] = rng.choice(["calm and sunny", "loud", None, "sunny, but loud"], ROWS)
    rows["area"] = np.where(rng.random(ROWS) < 0.1, np.nan, rng.integers(20, 120, ROWS))
    rows.loc[rng.random(ROWS) < 0.1, "price"] = np.nan
    return rows


def make(features, **options):
    return dp.Preprocessor(features, split=dp.RandomSplit(seed=1), **options)


def contents(dataset):
    return {
        name: dataset.files.read(name) if name.endswith((".json", "rejects.parquet")) else entry.crc32c
        for name, entry in dataset.manifest.files.items()
        if name != "metadata.json"
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", ADDED)
@pytest.mark.parametrize("fit_on", ["train", "all"])
@pytest.mark.parametrize("options", [{}, {"shuffle": True, "shards": True}, {"compression": "none"}], ids=str)
def test_added_files_equal_write_with_feature(frame, tmp_path, kind, fit_on, options):
    options = {"block_rows": 64, **options}
    dataset = make(FEATURES, fit_on=fit_on).fit_write(frame, tmp_path / "a.dp", **options)
    inodes = {path.stat().st_ino for path in (tmp_path / "a.dp").rglob("walk/c*")}
    added = dataset.add("new", ADDED[kind], frame)
    expected = make({**FEATURES, "new": ADDED[kind]}, fit_on=fit_on).fit_write(frame, tmp_path / "b.dp", **options)
    for split in expected.splits:
        for output, values in expected[split].read().items():
            np.testing.assert_array_equal(added[split].read(output)[output], values)
    if not options.get("shards"):  # a shard of more outputs has fewer chunks
        assert contents(added) == contents(expected)
    assert added.state()["features"] == expected.state()["features"]
    assert added.damaged() == []
    assert dp.open_dataset(tmp_path / "a.dp").digest == added.digest
    assert list(dp.Preprocessor.from_dataset(added).learned_) == [*FEATURES, "new"]
    # Files of other outputs are the same files.
    assert {path.stat().st_ino for path in (tmp_path / "a.dp").rglob("walk/c*")} == inodes
    assert [path.name for path in Path(tmp_path, "a.dp").iterdir() if path.is_dir()] == [added.version]


LAW_ROWS = 180
TYPES = {
    **{kind: (lambda kind=kind: dp.features.FEATURES[kind](column="area")) for kind in ("number", "category", "bag")},
    "mean": lambda: dp.Number(column="area", missing_value_strategy="fill_with_mean", missing_indicator=True),
    "next": lambda: dp.Number(column="area", missing_value_strategy="bfill", normalization="minmax"),
    "dropping": lambda: dp.Number(column="price", missing_value_strategy="drop_row"),
    "bins": lambda: dp.Number(column="area", normalization="quantile_normal"),
    "text": lambda: dp.Text(column="review"),
    "windows": lambda: dp.Timeseries(column="day", window_size=3, across_splits=False),
    "date": lambda: dp.Date(column="when"),
    "target": lambda: dp.TargetEncoding(column="city", target="sold"),
    "classes": lambda: dp.TargetEncoding(column="review", target="kind", target_type="class", folds=3),
    "frequency": lambda: dp.TargetEncoding(column="city", encoding="frequency"),
}
BASES = {
    "all rows": {"city": "category"},
    "dropped rows": {"price": dp.Number(missing_value_strategy="drop_row"), "city": "category"},
    "outliers": {"day": dp.Number(outlier_strategy="drop_row", outlier_threshold=2.0), "city": "category"},
}
SPLIT_CHOICES = {
    "none": None,
    "random": dp.RandomSplit(seed=3),
    "hash": dp.HashSplit("city"),
    "strata": dp.StratifiedSplit("kind"),
    "group": dp.GroupSplit("city"),
    "time": dp.DatetimeSplit("when"),
    "column": dp.FixedSplit("part"),
    "fold": dp.KFold(3, fold=1),
    "period": dp.TimeSeriesSplit("when", 3, fold=2, gap="20h"),
}
BALANCES = [None, dp.Oversample("sold", ratio=0.8), dp.Undersample("sold", ratio=0.6)]


@pytest.fixture(scope="module")
def law_rows() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    rows = pd.DataFrame({"city": rng.choice(["Rome", "Oslo", "Bern", "Kyiv", "Bonn"], LAW_ROWS)})
    rows["price"] = np.where(rng.random(LAW_ROWS) < 0.2, np.nan, rng.normal(size=LAW_ROWS))
    rows["area"] = np.where(rng.random(LAW_ROWS) < 0.1, np.nan, rng.integers(20, 120, LAW_ROWS))
    rows["day"], rows["w"] = rng.normal(size=LAW_ROWS), rng.exponential(size=LAW_ROWS)
    rows["review"] = rng.choice(["calm and sunny", "loud", "sunny, but loud"], LAW_ROWS)
    rows["when"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, LAW_ROWS), "h")
    rows["sold"] = (rng.random(LAW_ROWS) < 0.15).astype(int)
    rows["kind"] = rng.choice(list("abc"), LAW_ROWS)
    rows["part"] = rng.integers(0, 3, LAW_ROWS)
    return rows


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(data=st.data())
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_add_equals_write_with_feature_or_is_refused(law_rows, tmp_path_factory, data):
    folder, draw = tmp_path_factory.mktemp("law"), data.draw
    kind, base = draw(st.sampled_from(sorted(TYPES))), draw(st.sampled_from(sorted(BASES)))
    split = draw(st.sampled_from(sorted(SPLIT_CHOICES)))
    options = {
        "split": SPLIT_CHOICES[split],
        "balance": draw(st.sampled_from(BALANCES)),
        "weight": draw(st.sampled_from([None, "w"])),
        "sample": draw(st.sampled_from([None, None, None, 0.5])),
        "fit_on": draw(st.sampled_from(["train", "all"])),
    }
    path = folder / "rows.parquet"
    law_rows.to_parquet(path, row_group_size=70)
    rows = draw(st.sampled_from([law_rows, path]))
    shuffle = draw(st.booleans())
    dataset = dp.Preprocessor(BASES[base], **options).fit_write(rows, folder / "a.dp", shuffle=shuffle)
    try:
        expected = dp.Preprocessor({**BASES[base], "new": TYPES[kind]()}, **options)
        expected = expected.fit_write(rows, folder / "b.dp", shuffle=shuffle)
    except DaskprepError as error:
        with pytest.raises(type(error)):
            dataset.add("new", TYPES[kind](), rows)
        return
    if options["sample"] is not None:
        reason = "it has a sample"
    else:
        reason = "drops .* rows? that the" if kind == "dropping" and base != "dropped rows" else None
    if reason is not None:
        with pytest.raises(ConfigError, match=reason):
            dataset.add("new", TYPES[kind](), rows)
        return
    added = dataset.add("new", TYPES[kind](), rows)
    assert added.state()["features"] == expected.state()["features"]
    assert list(added.splits) == list(expected.splits)
    for name, own in added.splits.items():
        assert sorted(own.columns) == sorted(expected[name].columns)
        for output, values in expected[name].read().items():
            np.testing.assert_array_equal(own.read(output)[output], values)
    assert added.damaged() == []


def test_added_output_of_oversampled_rows(frame, tmp_path):
    rows = frame.assign(sold=np.arange(ROWS) % 5 == 0)
    prep = make({"city": "category", "sold": "binary"}, balance=dp.Oversample("sold", 0.8))
    dataset = prep.fit_write(rows, tmp_path / "a.dp", block_rows=64)
    added = dataset.add("price", dp.Number(normalization=None), frame)
    ids = added["train"].read("row_id")["row_id"]
    assert len(ids) > len(set(ids.tolist()))
    expected = frame["price"].to_numpy()[ids]
    known = ~np.isnan(expected)
    np.testing.assert_allclose(added["train"].read("price")["price"][known], expected[known], rtol=1e-6)


def test_add_function_of_decoded_rows(frame, tmp_path):
    dataset = make(FEATURES, targets="price").fit_write(frame, tmp_path / "a.dp", block_rows=64, shuffle=True)
    sizes = []

    def compute(rows):
        sizes.append(len(rows))
        return rows["city"].str.len() + rows["price"]

    added = dataset.add("sum", dp.Number(normalization=None), compute)
    assert max(sizes) <= 64
    for split in added.splits.values():
        rows = split.head(len(split))
        expected = rows["city"].str.len() + rows["price"]
        np.testing.assert_allclose(split.read("sum")["sum"], expected, rtol=1e-5)
    inputs, _ = next(iter(added["train"].loader(8)))
    assert list(inputs) == ["city", "walk", "sum"]
    framed = added.add("twice", dp.Number(normalization=None), lambda rows: rows.assign(twice=2 * rows["price"]))
    np.testing.assert_allclose(framed["test"].read("twice")["twice"], 2 * framed["test"].head(999)["price"], rtol=1e-5)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda rows: [1.0], "returned 1 values for .* rows"),
        (lambda rows: None, "returned None for"),
        (lambda rows: 7, "returned 7 for"),
        (lambda rows: "x" * len(rows), "returned 'xxx"),
        (lambda rows: iter(range(len(rows))), "returned <range_iterator"),
        (lambda rows: rows, 'returned a DataFrame without "x"'),
        (lambda rows: {}, 'returned a dict without "x"'),
    ],
)
def test_invalid_result_of_added_function_raises(frame, tmp_path, result, message):
    dataset = make(FEATURES).fit_write(frame, tmp_path / "a.dp", block_rows=64)
    with pytest.raises(ConfigError, match=message):
        dataset.add("x", "number", result)
    assert dp.open_dataset(tmp_path / "a.dp").digest == dataset.digest


def test_function_learns_with_weights_and_targets(frame, tmp_path):
    rows = frame[["city"]].assign(w=np.arange(ROWS) + 1.0, sold=np.arange(ROWS) % 3)
    features, cities = {"city": "category", "sold": dp.Number(normalization=None)}, {"Rome": 1.0, "Oslo": 2.0}
    dataset = make(features, weight="w").fit_write(rows, tmp_path / "a.dp", block_rows=64)
    added = dataset.add("size", "number", lambda decoded: decoded["city"].map(cities))
    added = added.add("rate", dp.TargetEncoding(target="sold", smooth=0.0), lambda decoded: decoded["city"])
    train = rows.iloc[added["train"].read("row_id")["row_id"]]
    size = train["city"].map(cities).dropna()
    assert added.learned["size"].mean == pytest.approx(np.average(size, weights=train["w"][size.index]))
    rate = added.learned["rate"]
    means = train.groupby("city")[["sold", "w"]].apply(lambda own: np.average(own["sold"], weights=own["w"]))
    np.testing.assert_allclose(rate.encodings[0, rate.vocabulary.ids(pa.array(means.index)), 0], means, rtol=1e-6)
    with pytest.raises(ColumnError, match='learns from column "age", but the decoded rows have city, sold'):
        added.add("by_age", dp.TargetEncoding(target="age"), lambda decoded: decoded["city"])


def test_add_to_undersampled_rows_needs_all_rows(frame, tmp_path):
    rows = frame.assign(sold=np.arange(ROWS) % 5 == 0)
    prep = dp.Preprocessor({"city": "category"}, balance=dp.Undersample("sold", 0.8))
    dataset = prep.fit_write(rows, tmp_path / "a.dp", block_rows=64)
    with pytest.raises(ConfigError, match=r"left out: pass all rows, not a function"):
        dataset.add("size", "number", lambda decoded: decoded["city"].str.len())
    with pytest.raises(MissingColumnError, match=r'"sold" is not in the data.*reads area, sold'):
        dataset.add("area", "number", frame)
    for others in (pd.concat([rows, rows[:9]]), rows[:690], rows.assign(sold=np.arange(ROWS) % 5 == 1)):
        with pytest.raises(ConfigError, match="not the rows of"):
            dataset.add("area", "number", others)
    ids = dataset["train"].read("row_id")["row_id"]
    deleted = dataset.delete(ids[:2])
    added = deleted.add("area", dp.Number(normalization=None), rows)
    np.testing.assert_array_equal(added["train"].read("row_id")["row_id"], ids[2:])
    added.purge()
    with pytest.raises(ConfigError, match="were purged, and balance or split left out others"):
        dp.open_dataset(tmp_path / "a.dp").add("review", "text", rows)


def test_add_to_untrusted_dataset_imports_nothing(frame, tmp_path, monkeypatch):
    (tmp_path / "functions.py").write_text("def embed(values):\n    return [[float(len(one))] for one in values]\n")
    monkeypatch.syspath_prepend(tmp_path)
    features = {"review": dp.Embedding(function="functions.embed", size=1, cache_dir=str(tmp_path / "cache"))}
    dp.Preprocessor(features).fit_write(frame, tmp_path / "a.dp")
    (tmp_path / "functions.py").write_text("raise SystemExit")
    monkeypatch.delitem(sys.modules, "functions")
    added = dp.open_dataset(tmp_path / "a.dp").add("area", "number", frame)
    assert not added.trusted
    assert "functions" not in sys.modules
    assert "functions.embed" in (tmp_path / "a.dp" / added.version / "metadata.json").read_text()


def test_add_rows_by_split(frame, tmp_path):
    tables = {"train": frame[:500], "test": frame[500:]}
    dataset = dp.Preprocessor(FEATURES).fit_write(tables, tmp_path / "a.dp")
    added = dataset.add("review", "text", tables)
    for name, split in added.splits.items():
        ids = split.read("row_id")["row_id"]
        expected = frame["review"].iloc[ids].fillna("<UNK>").str.replace(" ", "").tolist()
        assert split.head(len(split))["review"].str.replace(" ", "").tolist() == expected, name


def test_add_skips_deleted_and_purged_rows(frame, tmp_path):
    dataset = make(FEATURES).fit_write(frame, tmp_path / "a.dp", block_rows=64)
    ids = dataset["train"].read("row_id")["row_id"]
    dataset = dataset.delete(ids[:5])
    dataset.purge()
    dataset = dp.open_dataset(tmp_path / "a.dp").delete(ids[5:9])
    added = dataset.add("area", dp.Number(normalization=None), frame)
    assert np.array_equal(added["train"].read("row_id")["row_id"], ids[9:])
    expected = frame["area"].to_numpy()[ids[9:]]
    is_known = ~np.isnan(expected)
    np.testing.assert_array_equal(added["train"].read("area")["area"][is_known], expected[is_known])
    assert dp.open_dataset(tmp_path / "a.dp")["train"].columns == added["train"].columns
    assert added.damaged() == []
    codes = frame.assign(code=[f"code {number}" for number in range(len(frame))])
    coded = added.add("code", dp.Category(most_common=10_000), codes)
    assert not {f"code {number}" for number in ids[:9]} & set(coded.vocabulary("code").tokens.to_pylist())
    assert f"code {ids[9]}" in coded.vocabulary("code").tokens.to_pylist()


@pytest.mark.parametrize(
    ("name", "feature", "rows", "message"),
    [
        ("city", "category", slice(None), 'it has a feature "city" already'),
        (
            "x",
            dp.Number(column="area", missing_value_strategy="drop_row"),
            slice(None),
            "drops .* rows that the dataset",
        ),
        ("x", dp.Number(column="area"), slice(0, 90), "the rows are 90, but .* has row"),
        ("photo", "image", slice(None), 'mode="eager"'),
    ],
)
def test_invalid_add_raises_and_keeps_dataset(frame, tmp_path, name, feature, rows, message):
    dataset = make(FEATURES).fit_write(frame, tmp_path / "a.dp", block_rows=64)
    with pytest.raises(ConfigError, match=message):
        dataset.add(name, feature, frame[rows])
    assert dp.open_dataset(tmp_path / "a.dp").digest == dataset.digest
    assert dataset.damaged() == []


def test_add_with_extra_rows_warns(frame, tmp_path):
    dataset = make(FEATURES).fit_write(frame[:600], tmp_path / "a.dp")
    with pytest.warns(UserWarning, match=r"100 rows after row 599 are left out.*in the same order"):
        dataset.add("review", "text", frame)


def test_add_to_parts_or_folds_raises(frame, tmp_path):
    prep = make(FEATURES)
    prep.fit_write(frame, tmp_path / "a.dp")
    with pytest.raises(ConfigError, match="it has 2 parts, of appended rows"):
        prep.append(frame[:50], tmp_path / "a.dp").add("area", "number", frame)
    folds = dp.Preprocessor(FEATURES, split=dp.KFold(3)).fit_write(frame, tmp_path / "b.dp")
    with pytest.raises(ConfigError, match="has folds"):
        folds.add("area", "number", frame)


class _Stopped(BaseException):
    pass


def test_add_after_interrupted_add_writes_own_rows(frame, tmp_path, monkeypatch):
    dataset = make(FEATURES).fit_write(frame, tmp_path / "a.dp", block_rows=64)
    frame[["area", "price"]].to_parquet(tmp_path / "rows.parquet")

    def stop(*_, **__):
        raise _Stopped

    with monkeypatch.context() as patch:
        patch.setattr("daskprep.dataset.writing.adding.write_next_version", stop)
        with pytest.raises(_Stopped):
            dataset.add("new", dp.Number(column="area"), tmp_path / "rows.parquet")
    added = dataset.add("new", dp.Number(column="price", normalization=None), tmp_path / "rows.parquet")
    expected = frame["price"].to_numpy()[added["test"].read("row_id")["row_id"]]
    np.testing.assert_allclose(added["test"].read("new")["new"], expected, rtol=1e-6)
    assert added.damaged() == []


@pytest.mark.slow
@pytest.mark.parametrize("with_versions", [False, True])
def test_interrupted_add_leaves_one_version(frame, tmp_path, monkeypatch, with_versions):
    frame = frame[:200]

    def write(path):
        dataset = make(FEATURES).fit_write(frame, path, block_rows=64)
        return dataset.delete(dataset["train"].read("row_id")["row_id"][:2]) if with_versions else dataset

    expected = write(tmp_path / "expected.dp").add("review", "text", frame).digest
    write_file, counts = Folder.write, [0]
    for stop in range(0, 1_000, 5):
        dataset = write(tmp_path / f"{stop}.dp")

        def write_or_stop(folder, name, *args, stop=stop, **options):
            counts[0] += 1
            if counts[0] > stop:
                raise _Stopped
            return write_file(folder, name, *args, **options)

        counts[0] = 0
        monkeypatch.setattr(Folder, "write", write_or_stop)
        try:
            dataset.add("review", "text", frame)
        except _Stopped:
            pass
        else:
            assert stop > 5
            break
        finally:
            monkeypatch.setattr(Folder, "write", write_file)
        left = dp.open_dataset(tmp_path / f"{stop}.dp")
        assert left.digest in (dataset.digest, expected)
        left["train"].read()
        if left.digest != expected:
            assert left.add("review", "text", frame).digest == expected
        assert dp.open_dataset(tmp_path / f"{stop}.dp").damaged() == []
