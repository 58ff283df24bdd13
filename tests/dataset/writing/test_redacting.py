"""Fitted states after a purge: no text of removed rows is left, nothing else changes, and all of it can be read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import zarr

import daskprep as dp
from daskprep import serving
from daskprep.dataset.writing import redacting
from daskprep.errors import CorruptDatasetError
from daskprep.extensions.media.audio import encode_wav
from daskprep.extensions.media.pixels import encode_png
from daskprep.features import FEATURES

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

MODE = {"missing_value_strategy": "fill_with_mode"}
TOKEN_FEATURES = {
    "category": dp.Category(**MODE),
    "category_const": dp.Category(fill_value="fill_value"),
    "closed": dp.Category(handle_unknown="error", missing_value_strategy="drop_row"),
    "lowercase": dp.Category(lowercase=True),
    "one_hot": dp.Category(transform_to="one_hot"),
    "ordinal": dp.Category(transform_to="ordinal"),
    "oov_buckets": dp.Category(oov_buckets=3),
    "buckets": dp.Category(hash_buckets=4),
    "sequence": dp.Sequence(**MODE),
    "start_stop": dp.Sequence(add_start_stop=True, special_symbols="ludwig"),
    "text": dp.Text(**MODE),
    "both": dp.Text(level="both", **MODE),
    "both_const": dp.Text(level="both", fill_value="size rows"),
    "idf": dp.Text(compute_idf=True),
    "cut": dp.Sequence(max_sequence_length=1),
    "history": dp.History(last=3),
    "set": dp.Set(**MODE),
    "small_set": dp.Set(max_size=1),
    "bag": dp.Bag(),
    "te_class": dp.TargetEncoding(target="y", target_type="class"),
    "te_classes": dp.TargetEncoding(target="z", target_type="class"),
    "te_number": dp.TargetEncoding(target="n", smooth=3.0),
    "count": dp.TargetEncoding(encoding="count"),
    "frequency": dp.TargetEncoding(encoding="frequency"),
}
KEPT, ROWS = ["alpha", "beta", "gamma", "beta"], 40


def keys_of(value: Any) -> set[str]:
    """All keys of nested mappings, and texts that other parts of a state have."""
    if isinstance(value, dict):
        return {*value, *(key for one in value.values() for key in keys_of(one))}
    return {value} if isinstance(value, str) and len(value) < 30 else set()


@pytest.fixture(scope="module")
def words() -> list[str]:
    """Every word that is a key or a value in the state of any type, and names that a purge gives."""
    frame = pd.DataFrame({"y": [*"abaaba"], "z": [*"abcabc"], "n": np.arange(6) / 2, "d": ["2024-01-02"] * 6})
    others = {"n": "number", "d": "date", "t": dp.Timeseries(column="n"), "v": dp.Vector(column="n")}
    tokens = {name: feature.set_params(column="z") for name, feature in clones().items()}
    fitted = dp.Preprocessor({**tokens, **others}, split=None).fit(frame).to_dict()
    found = {word for word in keys_of(fitted["features"]) if word and not {*word} & set(" -.:")}
    names = [f"<REMOVED {number}>" for number in (2, 5, 9)]
    return sorted({*found, "vocabulary", "vocabulary_file", "word", "char", "null", *names} - {*KEPT})


def clones() -> dict[str, Any]:
    return {name: feature.__class__(**feature.get_params()) for name, feature in TOKEN_FEATURES.items()}


def frame_of(cells: list[Any]) -> pd.DataFrame:
    """Rows that stay, and then one for each cell."""
    rng, rows = np.random.default_rng(0), ROWS + len(cells)
    frame = pd.DataFrame({"c": [KEPT[row % len(KEPT)] for row in range(ROWS)] + cells})
    return frame.assign(y=rng.choice([*"ab"], rows), z=rng.choice([*"uvw"], rows), n=rng.normal(size=rows))


def purged(path, features, frame, rows, **options) -> tuple[dp.Preprocessor, dict[str, Any], Any]:
    """Write rows, purge some, and return the Preprocessor before, the receipt, and the dataset."""
    prep = dp.Preprocessor(features, split=None)
    prep.fit_write(frame, path, progress=False, **options).delete(rows)
    receipt = dp.open_dataset(path).purge()
    dataset = dp.open_dataset(path)
    dataset.verify()
    return prep, receipt, dataset


def changed_texts(before: Any, after: Any) -> set[str]:
    """Return the texts that differ between two learned states, which are otherwise equal."""
    assert type(before) is type(after)
    if not isinstance(before, dict | list):
        assert before == after or isinstance(before, str)
        return set() if before == after else {before}
    assert len(before) == len(after)
    pairs = list(zip(before, after, strict=True))
    if isinstance(before, dict):
        pairs += zip(before.values(), after.values(), strict=True)
    return set().union(*(changed_texts(*pair) for pair in pairs))


@pytest.mark.parametrize("name", TOKEN_FEATURES)
def test_purge_of_words_that_states_use_changes_values_only(tmp_path, name, words):
    feature, prefix = clones()[name].set_params(column="c"), "alpha " if name in ("cut", "small_set") else ""
    frame = frame_of([prefix + word for word in words])
    frame.loc[1, "c"] = "alpha" if name == "closed" else None
    prep, receipt, dataset = purged(tmp_path / "a.dp", {"f": feature}, frame, np.arange(ROWS, len(frame)))
    again = dp.Preprocessor.from_dataset(dataset)
    before, after = (one.to_dict()["features"]["f"]["learned"] for one in (prep, again))
    for key in ("encodings", "declared_order"):
        before.pop(key, None)
        after.pop(key, None)
    outputs = [f"f{output}" for output in feature.outputs]
    symbols = {one for output in outputs for one in dataset.vocabulary(output).specials.symbols}
    is_constant = feature.missing_value_strategy == "fill_with_const"
    fixed = {"alpha", "beta", "gamma", *symbols, *(str(feature.fill_value).split() if is_constant else [])}
    changed = changed_texts(before, after)
    assert not changed & fixed
    assert changed or name == "buckets"
    assert receipt["removed_tokens"] == ({} if name == "buckets" else {"f": receipt["removed_tokens"].get("f")})
    tokens = dataset.vocabulary(outputs[0]).tokens.to_pylist()
    assert not {*tokens} & {word for word in {*words} - fixed if "REMOVED" not in word}
    assert len({*tokens}) == len(tokens)
    # Rows that stay are encoded as before, and all that reads the state does.
    old, new = (one.encode(frame[:ROWS]) for one in (prep, again))
    assert all(np.array_equal(old[output], new[output]) for output in old)
    assert np.array_equal(*(one.transform(frame[:ROWS]) for one in (prep, again)))
    assert len(dataset["train"].head(99)) == ROWS
    assert sum(len(batch[outputs[0]]) for batch in dataset["train"].loader(16)) == ROWS
    dataset.report()


@pytest.mark.parametrize("name", ["category", "sequence", "text", "both", "set"])
def test_fill_value_that_only_removed_rows_have_keeps_its_ids(tmp_path, name):
    frame = frame_of(["whistle blower"] * (ROWS + 1))
    feature = clones()[name].set_params(column="c")
    prep, _, dataset = purged(tmp_path / "a.dp", {"f": feature}, frame, np.arange(ROWS, len(frame)))
    dp.Preprocessor.from_dataset(dataset).save(tmp_path / "prep.json")
    missing = pd.DataFrame({"c": [None]}, dtype=object)
    expected = prep.encode(missing)
    for encoder in (dp.Preprocessor.load(tmp_path / "prep.json"), serving.load(tmp_path / "prep.json")):
        encoded = encoder.encode(missing if isinstance(encoder, dp.Preprocessor) else [{"c": None}])
        assert all(np.array_equal(expected[output], encoded[output]) for output in expected)
    assert b"whistle" not in (tmp_path / "prep.json").read_bytes()


def test_tokens_of_rejected_rows_are_removed(tmp_path):
    frame = frame_of(["whistle", "blower"]).assign(sold=["yes", "no"] * (ROWS // 2) + ["maybe", "yes"])
    features = {"c": "category", "sold": "binary"}
    prep = dp.Preprocessor(features, targets="sold", split=None)
    with pytest.warns(UserWarning, match="label"):
        dataset = prep.fit_write(frame, tmp_path / "a.dp", progress=False)
    assert dataset.rejects()["row_id"].to_pylist() == [ROWS]
    receipt = dataset.delete([ROWS]).purge()
    tokens = dp.open_dataset(tmp_path / "a.dp").vocabulary("c").tokens.to_pylist()
    assert "whistle" in prep.learned_["c"].vocabulary.tokens.to_pylist()
    assert "whistle" not in tokens
    assert "blower" in tokens
    assert receipt["removed_tokens"] == {"c": 1}


def test_parts_keep_their_own_states_without_removed_tokens(tmp_path):
    prep = dp.Preprocessor({"c": "category"}, split=None)
    prep.fit_write(frame_of(["whistle"]), tmp_path / "a.dp", progress=False)
    known, grown = frame_of([]), frame_of(["fresh"] * 3)
    for number, rows in enumerate([known, grown, known]):
        if rows is grown:
            prep.grow(rows)
        prep.append(rows, tmp_path / "a.dp", version=f"{number}", on_findings="ignore")
    before = [one.vocabulary("c").tokens.to_pylist() for one in dp.open_dataset(tmp_path / "a.dp").datasets]
    receipt = dp.open_dataset(tmp_path / "a.dp").delete([ROWS], part=0).purge()
    after = [one.vocabulary("c").tokens.to_pylist() for one in dp.open_dataset(tmp_path / "a.dp").datasets]
    assert [len(tokens) for tokens in before] == [len(before[0])] * 2 + [len(before[0]) + 1] * 2
    number = before[0].index("whistle")
    assert after == [[*tokens[:number], f"<REMOVED {number}>", *tokens[number + 1 :]] for tokens in before]
    assert receipt["removed_tokens"] == {"c": 1}


def test_labels_of_integers_are_text_after_a_label_is_removed(tmp_path):
    frame = pd.DataFrame({"c": [7, 7, 8, 9] * 5 + [1234]})
    _, _, dataset = purged(tmp_path / "a.dp", {"c": "category"}, frame, [20])
    assert dataset["train"].head(3)["c"].tolist() == ["7", "7", "8"]


def test_state_that_cannot_be_restored_is_not_committed(tmp_path, monkeypatch):
    prep = dp.Preprocessor({"c": "category"}, split=None)
    prep.fit_write(frame_of(["secret"]), tmp_path / "a.dp", progress=False).delete([ROWS])
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.json")}

    def damaged(*_):
        raise CorruptDatasetError("the state cannot be restored")

    monkeypatch.setattr(redacting, "restore", damaged)
    with pytest.raises(CorruptDatasetError, match="cannot be restored"):
        dp.open_dataset(tmp_path / "a.dp").purge()
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.json")} == before
    monkeypatch.undo()
    assert dp.open_dataset(tmp_path / "a.dp").purge()["removed_tokens"] == {"c": 1}


SECRET, RARE = "whistleblower", 12.345678912345
IMAGES = [encode_png(np.full((4, 4, 3), row, np.uint8)) for row in range(ROWS + 1)]
SOUNDS = [encode_wav(np.linspace(0, row / ROWS, 90), 1000) for row in range(ROWS + 1)]
TYPES: dict[str, tuple[Any, Any, Callable[[int], Any]]] = {
    **{name: (feature, SECRET, lambda row: KEPT[row % 4]) for name, feature in TOKEN_FEATURES.items()},
    "components": (dp.TextComponents(size=2), SECRET, lambda row: KEPT[row % 4]),
    "number": (dp.Number(normalization=None), RARE, float),
    "unreadable": (dp.Number(), SECRET, str),
    "date": (dp.Date(), "1987-06-05 04:03:02", lambda row: f"2024-01-{row % 28 + 1:02}"),
    "unreadable_date": (dp.Date(), SECRET, lambda row: f"2024-01-{row % 28 + 1:02}"),
    "binary": (dp.Binary(), "yes", lambda row: ["yes", "no"][row % 2]),
    "timeseries": (dp.Timeseries(), [RARE, 2.0], lambda row: [row / 2, 1.0]),
    "vector": (dp.Vector(), [RARE, 2.0], lambda row: [row / 2, 1.0]),
    "h3": (dp.H3(), "8928308280fffff", lambda _: "8928308281fffff"),
    "embedding": (dp.Embedding(function="tests.dataset.writing.test_redacting.embed", size=1), SECRET, str),
    "image": (dp.Image(height=4, width=4, pack=True), IMAGES[-1], IMAGES.__getitem__),
    "pixels": (dp.Image(height=4, width=4, mode="eager"), IMAGES[-1], IMAGES.__getitem__),
    "boxes": (dp.Boxes(image="image"), [[0.25, 0.5, 1.75, 2.0]], lambda _: [[0.0, 0.0, 1.0, 1.0]]),
    "keypoints": (dp.Keypoints(image="image"), [[0.25, 0.5]], lambda _: [[0.0, 0.0]]),
    "audio": (dp.Audio(pack=True), SOUNDS[-1], SOUNDS.__getitem__),
    "sound": (dp.Audio(mode="eager"), SOUNDS[-1], SOUNDS.__getitem__),
}


def embed(texts):
    return np.array([[RARE if text == SECRET else len(text)] for text in texts], np.float32)


def contents(folder) -> Iterator[tuple[str, bytes]]:
    """Yield all files of a dataset: tables as text, others as bytes."""
    for file in filter(Path.is_file, sorted(folder.rglob("*"))):
        data = file.read_bytes()
        yield file.name, repr(pq.read_table(file).to_pydict()).encode() if file.suffix == ".parquet" else data


@pytest.mark.parametrize("large", [False, pytest.param(True, id="large_vocabularies")])
def test_no_type_keeps_cells_of_purged_row(tmp_path, sizes, large):
    if large:
        sizes(large_vocabulary=2)
    path, kinds = tmp_path / "a.dp", {*(feature.kind for feature, *_ in TYPES.values()), "weight", "key"}
    assert kinds == {*FEATURES}
    frame = frame_of([SECRET]).assign(weight=[1.0] * ROWS + [RARE], key=[*map(str, range(ROWS)), SECRET])
    for name, (_, secret, cell) in TYPES.items():
        frame[name] = [*map(cell, range(ROWS)), secret]
    features = {name: feature.set_params() for name, (feature, *_) in TYPES.items()}
    prep = dp.Preprocessor(features, split=None, weight="weight", keys=["key"])
    dataset = prep.fit_write(frame, path, progress=False, block_rows=8)
    dataset.cache_media(progress=False)
    needles = [SECRET.encode(), repr(RARE).encode(), IMAGES[-1], repr(IMAGES[-1]).encode(), repr(SOUNDS[-1]).encode()]
    before = [name for name, data in contents(path) if any(needle in data for needle in needles)]
    assert {"metadata.json", "part-00000.parquet"} <= {*before}
    receipt = dataset.delete([ROWS]).purge()
    dataset = dp.open_dataset(path)
    dataset.verify()
    # Values that were computed with the row stay: the receipt lists them.
    metadata = json.loads((path / dataset.version / "metadata.json").read_bytes())
    (path / dataset.version / "metadata.json").unlink()
    for name, feature in metadata["features"].items():
        for key in receipt["kept"][name]:
            feature["learned"].pop(key, None)
    left = dict([("metadata", json.dumps(metadata).encode()), *contents(path)])
    assert not [name for name, data in left.items() if any(needle in data for needle in needles)]
    assert {name for name, keys in receipt["kept"].items() if "vocabulary" in keys} == {"buckets"}
    assert receipt["removed_samples"] == {"unreadable": 1, "unreadable_date": 1}
    assert receipt["removed_tokens"].keys() == TOKEN_FEATURES.keys() - {"buckets"}
    # The place of the row has zeros in all arrays, and no cell of a medium.
    arrays = zarr.open_group(path / dataset.version / "train" / "arrays.zarr", mode="r")
    assert not [name for name, array in arrays.arrays() if np.asarray(array)[ROWS].any()]
    place = pq.read_table(next(path.rglob("part-00000.parquet"))).to_pylist()[ROWS]
    assert place.pop("row_id") == -1
    assert not [name for name, cell in place.items() if cell]
    assert not list((path / "cache").rglob("*"))
