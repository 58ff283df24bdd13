"""Rows with the same inputs in several splits: counted by writes, and shown by reports and `inspect`."""

import json

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import daskprep as dp
from daskprep.dataset.writing.duplicates import hash_rows
from daskprep.storage.manifest import Manifest

FEATURES = {"x": "number", "city": "category", "text": "text", "y": "binary"}
TRAIN, VALIDATION, ROWS = 600, 700, 1_000


def make_frame():
    """Return rows: 20 of "test" are in "train", 5 of them with another target, and 2 of "validation" are in "test"."""
    rng = np.random.default_rng(0)
    words = np.array(["red", "blue", "green"])
    frame = pd.DataFrame(
        {
            "x": rng.normal(size=ROWS),
            "city": rng.choice(list("abcd"), ROWS),
            "text": [" ".join(rng.choice(words, 1 + row % 5)) for row in range(ROWS)],
            "y": rng.integers(0, 2, ROWS),
        }
    )
    frame.loc[800:819] = frame.loc[100:119].to_numpy()
    frame.loc[650:651] = frame.loc[900:901].to_numpy()
    frame = frame.astype({"x": float, "y": int})
    frame.loc[800:804, "y"] = 1 - frame.loc[800:804, "y"]
    frame["split"] = ["train"] * TRAIN + ["validation"] * (VALIDATION - TRAIN) + ["test"] * (ROWS - VALIDATION)
    return frame


@pytest.fixture
def frame():
    return make_frame()


def write(frame, path, **options):
    prep = dp.Preprocessor(FEATURES, targets="y", split=dp.FixedSplit("split"))
    return prep.fit_write(frame, path, progress=False, **options)


def expected():
    first = tuple(range(100, 110)), tuple(range(800, 810))
    return {
        "train": (20, 5, first[0], tuple(range(100, 105))),
        "validation": (2, 0, (650, 651), ()),
        "test": (22, 5, first[1], tuple(range(800, 805))),
    }


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"block_rows": 64}, {"shards": True}])
@pytest.mark.parametrize("partitions", [1, 7])
def test_duplicates_do_not_depend_on_partitioning(frame, tmp_path, partitions, options, sizes):
    sizes(duplicate_rows=50, duplicate_bytes=1 << 11)
    dataset = write(dd.from_pandas(frame, npartitions=partitions), tmp_path / "a.dp", **options)
    assert dataset.duplicates == expected()
    assert dp.open_dataset(tmp_path / "a.dp").duplicates == expected()


def test_duplicates_equal_brute_force(tmp_path):
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {"a": rng.integers(0, 40, 500), "b": rng.choice(list("xyz"), 500), "y": rng.integers(0, 2, 500)}
    )
    prep = dp.Preprocessor({"a": "number", "b": "category", "y": "binary"}, targets="y", split=dp.RandomSplit())
    dataset = prep.fit_write(frame, tmp_path / "a.dp", progress=False)
    splits = prep.assign(frame)["split"]
    for code, split in enumerate(("train", "validation", "test")):
        own = splits == code
        others = {tuple(row) for row in frame[~own][["a", "b"]].to_numpy()}
        pairs = {tuple(row) for row in frame[~own].to_numpy()}
        shared = [tuple(row) in others for row in frame[own][["a", "b"]].to_numpy()]
        same = [tuple(row) in pairs for row in frame[own].to_numpy()]
        assert dataset.duplicates[split][:2] == (sum(shared), sum(shared) - sum(same))


def test_duplicates_are_none_if_not_comparable(frame, tmp_path):
    one_split = dp.Preprocessor(FEATURES, targets="y").fit_write(frame, tmp_path / "a.dp", progress=False)
    assert one_split.duplicates is None
    features = {**FEATURES, "city": dp.TargetEncoding(target="y", target_type="class")}
    prep = dp.Preprocessor(features, targets="y", split=dp.FixedSplit("split"))
    assert prep.fit_write(frame, tmp_path / "b.dp", progress=False).duplicates is None
    unrelated = write(frame.drop(index=[*range(800, 820), 650, 651]), tmp_path / "c.dp")
    assert unrelated.duplicates == {}
    assert unrelated.delete([5]).duplicates is None


def test_duplicates_of_older_manifest_are_none(frame, tmp_path):
    manifest = write(frame, tmp_path / "a.dp").manifest
    text = manifest.to_bytes()
    assert Manifest.from_bytes(text, "here").duplicates == expected()
    older = Manifest(manifest.version, manifest.layout, manifest.files, manifest.source, manifest.settings)
    assert b"duplicates" not in older.to_bytes()
    assert Manifest.from_bytes(older.to_bytes(), "here").duplicates is None


def test_duplicates_of_folds_and_appended_parts(frame, tmp_path):
    inputs = frame.drop(columns="split")
    folds = dp.Preprocessor(FEATURES, targets="y", split=dp.KFold(3)).fit_write(
        inputs, tmp_path / "k.dp", progress=False
    )
    assert [set(fold.duplicates) <= {"train", "validation"} for fold in folds] == [True] * 3
    prep = dp.Preprocessor(FEATURES, targets="y", split=dp.FixedSplit("split"))
    prep.fit_write(frame, tmp_path / "a.dp", progress=False)
    grown = prep.append(frame[::-1], tmp_path / "a.dp", progress=False)
    assert grown.duplicates is None
    assert [part.duplicates["test"].rows for part in grown.datasets] == [22, 22]


def test_report_and_inspect_show_duplicates(frame, tmp_path, capsys):
    from daskprep.extensions.cli import main

    dataset = write(frame, tmp_path / "a.dp")
    sentence = (
        "22 rows of test (7.3 %) have the same inputs as rows of other splits, 5 of them with another target; "
        "row ids: 800, 801, 802, 803, 804, ..."
    )
    alerts = [alert for alert in dataset.report().to_dict()["alerts"] if alert["kind"] == "shared-rows"]
    assert [alert["text"] for alert in alerts][-1] == sentence
    assert main(["inspect", str(tmp_path / "a.dp")]) == 0
    assert sentence in capsys.readouterr().out
    main(["inspect", str(tmp_path / "a.dp"), "--json"])
    assert json.loads(capsys.readouterr().out)["duplicates"]["test"]["rows"] == 22


def test_hash_rows_depends_on_values_of_any_type():
    columns = [
        np.arange(6, dtype=np.float32) * 2.0**20,
        np.zeros(6, np.float64),
        np.arange(6, dtype=np.uint8)[::-1],
        np.arange(18, dtype=np.uint16).reshape(6, 3),
        pa.StructArray.from_arrays(
            [pa.array([b"a", b"", None, b"a", b"b", b"c"], pa.large_binary()), pa.array(list("aabbcc"))],
            names=["bytes", "path"],
        ),
    ]
    hashes = hash_rows(columns)
    assert len(set(hashes.tolist())) == 6
    assert (hash_rows([columns[0], -columns[1], *columns[2:]]) == hashes).all()  # -0.0 is 0.0
    for index in range(len(columns)):
        column = columns[index]
        swapped = column.take(pa.array([1, 0, 2, 3, 4, 5])) if index == 4 else column[[1, 0, 2, 3, 4, 5]]
        changed = hash_rows([*columns[:index], swapped, *columns[index + 1 :]]) != hashes
        assert changed.tolist() == [index != 1] * 2 + [False] * 4


@pytest.mark.slow
def test_hash_rows_of_a_million_structured_rows_are_distinct():
    side = np.arange(1_000)
    grid = np.stack([axis.ravel() for axis in np.meshgrid(side, side)]).astype(np.float32)
    for columns in (list(grid), list(grid * 2.0**-60), [grid.T.astype(np.uint64) << np.uint64(48)]):
        assert len(np.unique(hash_rows(columns))) == 1_000_000


@pytest.mark.parametrize("most_common", [None, 5])
def test_unseen_values_are_equal_to_no_other_and_missing_ones_are(most_common, tmp_path):
    train = pd.DataFrame({"user": [f"u{number}" for number in range(60)] + ["a"] * 60, "z": range(120)})
    fresh = pd.DataFrame({"user": [f"new {number}" for number in range(40)] + [None, "a"], "z": 0})
    frames = {"train": train, "validation": fresh, "test": fresh[::-1]}
    prep = dp.Preprocessor({"user": dp.Category(most_common=most_common)}, split=None)
    found = prep.fit_write(frames, tmp_path / "a.dp", progress=False)
    assert {split: rows.rows for split, rows in found.duplicates.items()} == {"train": 60, "validation": 2, "test": 2}
    texts = [one["text"] for one in found.report().to_dict()["alerts"] if one["kind"] == "duplicates"]
    [text] = texts
    assert ("64 rows without <UNK> in user" in text) == (most_common is not None)


def test_majority_of_unknown_values_is_named(tmp_path):
    frame = pd.DataFrame({"user": [f"u{number}" for number in range(100)] + ["a"] * 5})
    prep = dp.Preprocessor({"user": dp.Category(most_common=1)}, split=None)
    alerts = prep.fit_write(frame, tmp_path / "a.dp", progress=False).report().to_dict()["alerts"]
    assert ("imbalance", "has <UNK> with 95.2 % of the rows") in [(one["kind"], one["text"]) for one in alerts]
