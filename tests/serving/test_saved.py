"""A saved Preprocessor loads unchanged, or raises with the feature and the altered part."""

from __future__ import annotations

import copy
import json
import math
import random
import sys
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError

import daskprep as dp
from daskprep import serving
from daskprep.errors import ConfigError, CorruptDatasetError, DaskprepError, FormatVersionError
from daskprep.features import FEATURES
from daskprep.features.number import LearnedNumber
from daskprep.rows import ROW_ENCODERS
from daskprep.rows.saved import add_digest, canonical, compute_digests
from tests.arrow_columns import encode_columns

CELLS = {
    "binary": ["yes", "no", "yes", "no"],
    "number": ["1.5", "2", "-3e2", "x"],
    "category": ["Rome", "Oslo", "Rome", "Ærø"],
    "set": ["a b", "c a", "b", "é"],
    "bag": ["a a b", "c a", "b", ""],
    "sequence": ["x y z", "y", "z z", "x"],
    "text": ["Good, really good!", "bad", "so-so.", "GOOD"],
    "timeseries": ["1 2.5 nan", "4 5", "6", ""],
    "vector": ["1 2", "[3, 4.5]", "5 6", "0.1 1e-3"],
    "date": ["2020-02-29", "2021-01-01 10:11:12", "3/5/2021", "no"],
    "h3": ["8928308280fffff", "622236750694711295", "8928308280fffff", "no"],
}
FEATURE = {
    "number": dp.Number(normalization="iq", outlier_strategy="fill_with_mean", missing_value_strategy="fill_with_mode"),
    "binary": dp.Binary(missing_value_strategy="fill_with_mode"),
    "text": dp.Text(level="both", compute_idf=True, add_start_stop=True),
    "sequence": dp.Sequence(special_symbols="ludwig", padding="left"),
}
READERS: dict[str, Callable[[Path], Any]] = {"preprocessor": dp.Preprocessor.load, "serving": serving.load}
BOTH = [(kind, one) for kind in CELLS for one in READERS]
ODD = [
    None, True, -1, 1.5, 1e308, 10**400, 2**63, 10**12, "", "x", "\ud800", [], [1], ["a"], [None], [[[]]], {}, {"a": 1},
]  # fmt: skip


def fitted(*kinds: str) -> dp.Preprocessor:
    frame = pd.DataFrame({kind: [*CELLS[kind], None] for kind in kinds})
    return dp.Preprocessor({kind: FEATURE.get(kind, kind) for kind in kinds}).fit(frame)


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return the JSON of a saved Preprocessor of one feature, for each type."""
    folder, found = tmp_path_factory.mktemp("saved"), {}
    for kind in CELLS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some cells are unreadable
            fitted(kind).save(folder / kind)
        found[kind] = json.loads((folder / kind).read_text(encoding="utf-8"))
    return found


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value without children, including empty lists and objects."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    yield from (found for key, one in inner for found in leaves(one, (*place, key))) if inner and value else [place]


def another(value: Any) -> Any:
    """Return a different value of the same type, as close as possible."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1 if isinstance(value, int) and abs(value) < 2**53 else math.nextafter(value, math.inf)
    return f"{value} " if isinstance(value, str) else [0] if isinstance(value, list) else {"a": 0} if value == {} else 0


def put(state: dict[str, Any], place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    state = copy.deepcopy(state)
    holder: Any = state
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    return state


def write(path: Path, state: dict[str, Any]) -> Path:
    path.write_text(json.dumps(state), encoding="utf-8")
    return path


def signed(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state with matching digests, as another implementation would save it."""
    for feature in state["features"].values():
        feature["digests"] = compute_digests(feature["learned"])
    return add_digest(state) if "digest" in state else state


def vocabularies(state: dict[str, Any], kind: str) -> Iterator[tuple[Any, ...]]:
    learned = state["features"][kind]["learned"]
    for place in [(), ("word",), ("char",)]:
        inner = learned.get(place[0], {}) if place else learned
        if "idx2str" in inner:
            yield ("features", kind, "learned", *place, "idx2str")


def at(state: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        state = state[key]
    return state


@pytest.mark.parametrize(("kind", "reader"), BOTH)
def test_altered_learned_value_raises_with_its_name(states, tmp_path, kind, reader):
    state = states[kind]
    for place in leaves(state["features"][kind]["learned"], ("features", kind, "learned")):
        file = write(tmp_path / "altered.json", put(state, place, another(at(state, place))))
        # Digits beyond the precision of a double only change the rows.
        with pytest.raises(CorruptDatasetError, match=f'"{kind}"(: its learned "{place[3]}" is not| encodes None to)'):
            READERS[reader](file)


@pytest.mark.parametrize(("kind", "reader"), [pair for pair in BOTH if pair[0] in ("category", "set", "bag", "text")])
def test_swapped_removed_or_added_token_raises(states, tmp_path, kind, reader):
    for place in vocabularies(states[kind], kind):
        tokens = at(states[kind], place)
        numbers = range(len(tokens))
        swapped = [[*tokens[:i], tokens[i + 1], tokens[i], *tokens[i + 2 :]] for i in numbers[:-1]]
        removed = [[*tokens[:i], *tokens[i + 1 :]] for i in numbers]
        added = [[*tokens[:i], "new", *tokens[i:]] for i in numbers]
        for one in (*swapped, *removed, *added):
            with pytest.raises(CorruptDatasetError, match=f'feature "{kind}": its learned "({place[3]})"'):
                READERS[reader](write(tmp_path / "altered.json", put(states[kind], place, one)))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("kind", "place", "value", "message"),
    [
        ("category", ("learned", "idx2str"), ["<UNK>", "Oslo", "Rome", "Ærø"], "'Rome' to 2, but to 1 when saved"),
        ("number", ("learned", "q2"), 1.5, 'feature "number" encodes'),
        ("number", ("params", "normalization"), "minmax", 'feature "number" encodes'),
        ("binary", ("learned", "str2bool"), {"yes": False, "no": True}, "'no' to 1, but to 0 when saved"),
        ("category", ("params", "lowercase"), True, "feature \"category\" encodes 'Rome' to 0"),
        ("category", ("golden", "arrays", "", "dtype"), "uint16", "encodes to uint8, but to uint16 when saved"),
    ],
)
def test_different_encoding_of_golden_rows_raises_with_the_cell(states, tmp_path, reader, kind, place, value, message):
    state = signed(put(states[kind], ("features", kind, *place), value))
    with pytest.raises(CorruptDatasetError, match=message):
        READERS[reader](write(tmp_path / "altered.json", state))


@pytest.mark.parametrize("reader", READERS)
def test_lengthened_row_raises_without_allocating_memory(states, tmp_path, reader):
    for kind, key in {"sequence": "max_sequence_length", "vector": "vector_size", "set": "size"}.items():
        state = signed(put(states[kind], ("features", kind, "learned", key), 2 * 10**9))
        with pytest.raises(CorruptDatasetError, match="longer than when"):
            READERS[reader](write(tmp_path / "altered.json", state))


def changed(state: dict[str, Any], kind: str) -> Iterator[dict[str, Any]]:
    """Yield the state with each value outside the learned state changed, each key removed, and features renamed."""
    learned = ("features", kind, "learned"), ("features", kind, "digests")
    for place in every(state):
        value = at(state, place)
        if place[:3] not in learned and place not in {("digest",), ("format",), ("features",), ("features", kind)}:
            if not isinstance(value, dict):
                yield put(state, place, another(value))
            if isinstance(place[-1], str):
                altered = copy.deepcopy(state)
                del at(altered, place[:-1])[place[-1]]
                yield altered
    yield {**state, "features": {"other": state["features"][kind]}}
    yield {**state, "targets": [kind]}


@pytest.mark.parametrize("kind", CELLS)
def test_edit_outside_the_learned_state_raises(states, kind):
    remedy = "edited or damaged.*to_dict|no golden rows"
    for state in changed(states[kind], kind):
        for read in (serving.Encoder, dp.Preprocessor.from_dict):
            with pytest.raises(CorruptDatasetError, match=remedy):
                read(state)


def test_reordered_features_raise(tmp_path):
    fitted("category", "set").save(tmp_path / "saved.json")
    state = json.loads((tmp_path / "saved.json").read_text())
    state["features"] = dict(reversed(state["features"].items()))
    with pytest.raises(CorruptDatasetError, match="edited or damaged"):
        serving.load(write(tmp_path / "altered.json", state))


@pytest.mark.parametrize("kind", CELLS)
def test_older_file_without_digest_loads(states, kind):
    before = {key: value for key, value in states[kind].items() if key != "digest"}
    encoded = serving.Encoder(before).encode({kind: CELLS[kind][0]})
    again = serving.Encoder(states[kind]).encode({kind: CELLS[kind][0]})
    assert {name: array.tolist() for name, array in encoded.items()} == {
        name: array.tolist() for name, array in again.items()
    }
    assert dp.Preprocessor.from_dict(before).to_dict() == dp.Preprocessor.from_dict(states[kind]).to_dict()


def test_state_can_be_edited_as_the_error_describes(states, tmp_path):
    state = dp.Preprocessor.load(write(tmp_path / "saved.json", states["category"])).to_dict()
    state["features"]["category"]["params"]["lowercase"] = True
    dp.Preprocessor.from_dict(state).save(tmp_path / "changed.json")
    assert serving.load(tmp_path / "changed.json").encode({"category": "Oslo"})["category"].tolist() == [0]


@pytest.mark.parametrize("reader", READERS)
def test_file_without_digests_raises(states, tmp_path, reader):
    state = copy.deepcopy(states["category"])
    del state["features"]["category"]["digests"]
    with pytest.raises(CorruptDatasetError, match="has no digests"):
        READERS[reader](write(tmp_path / "altered.json", state))


@pytest.mark.parametrize("reader", READERS)
def test_feature_without_type_raises(states, tmp_path, reader):
    state = dp.Preprocessor.from_dict(states["category"]).to_dict()
    del state["features"]["category"]["type"]
    with pytest.raises(DaskprepError, match='feature "category"'):
        READERS[reader](write(tmp_path / "altered.json", state))


@pytest.mark.parametrize("reader", READERS)
def test_file_without_golden_rows_raises(states, tmp_path, reader):
    state = copy.deepcopy(states["category"])
    del state["features"]["category"]["golden"]
    with pytest.raises(CorruptDatasetError, match='"category" has no golden rows'):
        READERS[reader](write(tmp_path / "altered.json", state))


# Changes of a plain state, and the error of a Preprocessor.
ALTERED = [
    ("sequence", "learned", "max_sequence_length", -2, "max_sequence_length must be an integer of at least 0"),
    ("number", "learned", "q3", None, "was not learned"),
    ("binary", "learned", "fill_value", "1e999", "fill_value must be True or False or None"),
    ("binary", "learned", "fill_value", -1, "fill_value must be True or False or None"),
    ("timeseries", "params", "window_size", 10**12, "a window has 16,777,216 numbers at most"),
    ("timeseries", "params", "group_by", [1], "group_by must be a string or None"),
    ("category", "params", "column", {"a": 1}, "column must be a string or None"),
    ("vector", "params", "column", [-1], "column must be a string or None"),
    ("category", "learned", "buckets", 10**12, "buckets must be an integer of at least 0 and at most 16,777,216"),
    ("date", "params", "parts", ["AAAA"], "parts has no 'AAAA'"),
    ("number", "params", "bins", 10**12, "use at most 65,536"),
]
# Changes that only matter to some rows.
OF_ROWS = [
    ("timeseries", "learned", "max_timeseries_length", 0),
    ("vector", "learned", "vector_size", 0),
    ("text", "learned", "fill_value", {"char": "a"}),
    ("number", "learned", "fill_value", 10**400),
]


def plain(states: dict[str, Any], kind: str, part: str, key: str, value: Any) -> dict[str, Any]:
    return put(dp.Preprocessor.from_dict(states[kind]).to_dict(), ("features", kind, part, key), value)


@pytest.mark.parametrize(("kind", "part", "key", "value", "message"), ALTERED)
def test_altered_plain_state_raises_in_load(states, tmp_path, kind, part, key, value, message):
    file = write(tmp_path / "altered.json", plain(states, kind, part, key, value))
    with pytest.raises(CorruptDatasetError, match=f'feature "{kind}".*{message}'):
        dp.Preprocessor.load(file)


@pytest.mark.parametrize(
    ("reader", "altered"),
    [(reader, one) for reader in READERS for one in OF_ROWS] + [("serving", one[:4]) for one in ALTERED],
)
def test_altered_plain_state_encodes_or_raises_with_the_column(states, tmp_path, reader, altered):
    kind = altered[0]
    file = write(tmp_path / "altered.json", plain(states, *altered))
    expected = READERS[reader](write(tmp_path / "saved.json", states[kind])).encode([{kind: CELLS[kind][0]}])
    for cell in (CELLS[kind][0], None):
        try:
            found = READERS[reader](file).encode([{kind: cell}])
        except DaskprepError as error:
            assert f'"{kind}"' in str(error)  # noqa: PT017 some readers do without what was altered
        else:
            assert {name: (len(array), array.dtype) for name, array in found.items()} == {
                name: (1, array.dtype) for name, array in expected.items()
            }


@pytest.mark.parametrize("reader", READERS)
def test_lone_surrogate_in_a_state_raises(states, tmp_path, reader):
    file = write(tmp_path / "altered.json", plain(states, "category", "learned", "fill_value", "\ud800"))
    with pytest.raises(CorruptDatasetError, match=r"altered\.json cannot be restored .*surrogates not allowed"):
        READERS[reader](file)


@pytest.mark.parametrize("reader", READERS)
def test_key_order_and_white_space_are_ignored(states, tmp_path, reader):
    (tmp_path / "a.json").write_text(json.dumps(states["category"], indent=3, sort_keys=True))
    rows = [{"category": cell} for cell in ("Oslo", "Ærø", "new", None)]
    expected = READERS[reader](write(tmp_path / "b.json", states["category"])).encode(rows)["category"]
    assert READERS[reader](tmp_path / "a.json").encode(rows)["category"].tolist() == expected.tolist()
    assert len(set(expected.tolist())) == 3


# Written before digests existed.
OLD = """{"format": 1,
"split": null,
"balance": null,
"fit_on": "train",
"features": {
 "city": {"type": "category", "params": {"most_common": 10000, "min_frequency": null, "lowercase": false,
 "missing_value_strategy": "fill_with_const", "fill_value": "<UNK>", "invalid": "missing", "column": null},
 "learned": {"rows": 3, "missing": 0, "invalid": 0, "invalid_samples": [], "fill_value": "<UNK>",
 "idx2str": ["<UNK>", "Rome", "Oslo"], "str2idx": {"<UNK>": 0, "Rome": 1, "Oslo": 2},
 "str2freq": {"<UNK>": 0, "Rome": 2, "Oslo": 1}, "vocab_size": 3, "special_symbols": {"unknown": "<UNK>"}}},
 "price": {"type": "number", "params": {"normalization": "minmax", "outlier_strategy": null, "outlier_threshold": 3.0,
 "missing_value_strategy": "fill_with_const", "fill_value": 0.0, "invalid": "missing", "column": null},
 "learned": {"rows": 3, "missing": 0, "invalid": 0, "invalid_samples": [], "fill_value": 0.0, "mean": 3.0, "std": 2.0,
 "min": 1.0, "max": 5.0, "q1": null, "q2": null, "q3": null, "outlier_fill_value": null}}
}}
"""


def test_older_file_loads_unchanged(tmp_path):
    (tmp_path / "old.json").write_text(OLD)
    prep, encoder = (load(tmp_path / "old.json") for load in READERS.values())
    rows = [{"city": "Oslo", "price": 5}, {"city": "Bern", "price": 3}]
    for encoded in (encode_columns(prep, pd.DataFrame(rows)), encoder.encode(rows)):
        assert encoded["city"].tolist() == [2, 0]
        assert encoded["price"].tolist() == [1.0, 0.5]
    assert prep.learned_["city"].vocabulary.frequencies.tolist() == [0, 2, 1]
    prep.save(tmp_path / "new.json")
    assert dp.Preprocessor.load(tmp_path / "new.json").to_dict() == prep.to_dict() == json.loads(OLD)


@pytest.mark.parametrize("kind", CELLS)
def test_saving_is_deterministic(states, tmp_path, kind):
    (tmp_path / "a.json").write_text(json.dumps(states[kind]))
    dp.Preprocessor.load(tmp_path / "a.json").save(tmp_path / "b.json")
    assert json.loads((tmp_path / "b.json").read_text(encoding="utf-8")) == states[kind]
    golden = states[kind]["features"][kind]["golden"]
    assert 5 <= len(golden["cells"]) <= 8
    assert golden["cells"][0] is None


def cells_of(kind: str) -> st.SearchStrategy[tuple[str, list[str | None]]]:
    """Draw a type and cells for it: any text, except for types that reject most columns."""
    odd = st.nothing() if kind in ("binary", "vector") else st.text(max_size=8)
    cells = st.lists(st.none() | st.sampled_from(CELLS[kind]) | odd, min_size=1, max_size=8)
    return st.tuples(st.just(kind), cells)


@pytest.mark.slow
@settings(max_examples=80)
@given(st.sampled_from(list(CELLS)).flatmap(cells_of), st.booleans())
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_loaded_preprocessor_encodes_equally(tmp_path_factory, column, lowercase):
    kind, cells = column
    file = tmp_path_factory.mktemp("any") / "prep.json"
    frame = pd.DataFrame({"x": pd.Series(cells, dtype=object)})
    words = {"lowercase": lowercase} if kind in ("category", "set", "bag", "sequence", "text") else {}
    prep = dp.Preprocessor({"x": FEATURES[kind](**words)})
    try:
        prep.fit(frame)
    except DaskprepError:
        reject()  # vectors of several lengths
    prep.save(file)
    again = dp.Preprocessor.load(file)
    assert again.to_dict() == prep.to_dict()
    expected = encode_columns(prep, frame)["x"]
    np.testing.assert_array_equal(again.encode(frame)["x"], expected, strict=True)
    served = serving.load(file).encode([{"x": cell} for cell in cells])["x"]
    np.testing.assert_array_equal(served, expected, strict=True)


def altered(state: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Replace or remove a value; half of the time the digests match the result."""
    places = list(every(state))
    *outer, last = chance.choice(places)
    state = copy.deepcopy(state)
    holder = at(state, tuple(outer))
    if chance.random() < 0.2:
        del holder[last]
    else:
        holder[last] = chance.choice(ODD)
    try:
        return signed(state) if chance.random() < 0.5 else state
    except (AttributeError, KeyError, OverflowError, TypeError, UnicodeEncodeError):
        return state


def every(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if place:
        yield place
    inner = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, one in inner:
        yield from every(one, (*place, key))


@pytest.mark.parametrize(("kind", "reader"), BOTH)
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
def test_altered_file_encodes_or_raises(states, tmp_path, kind, reader, plain):
    state = dp.Preprocessor.from_dict(states[kind]).to_dict() if plain else states[kind]
    found: Counter[str] = Counter()
    for seed in range(150):
        file = write(tmp_path / "altered.json", altered(state, random.Random(seed)))
        try:
            loaded = READERS[reader](file)
            found["loaded"] += 1
            loaded.encode([{kind: None if seed % 2 else CELLS[kind][0]}])
        except (DaskprepError, NotFittedError) as error:  # without learned state, it is unfitted
            found[type(error).__name__] += 1
    assert found["loaded"] > 5
    assert found["CorruptDatasetError"] > 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("[]", "holds a list, not the state"),
        ('{"format": 1, "format": 1}', 'the key "format" occurs twice'),
        ("{" + "".join(f'"{n}": {n}, ' for n in range(200_000)) + '"199999": 1}', 'the key "199999" occurs twice'),
        ('{"format": NaN, "features": {}}', "NaN is not a JSON number"),
        ("[" * 1_000_000, "nested too deeply"),
        ('{"format": true, "features": {}}', "its format is True"),
        ('{"format": 1, "features": [1]}', "are not features by name"),
        ('{"format": 2, "features": {"a": {"type": "number"}}}', "has no digests"),
        ('{"format": 1, "features": {"a": {"type": "number"}}}', 'feature "a" cannot be restored'),
        ('{"format": 1, "features": {}, "targets": ["a"]}', "are not features"),
    ],
)
def test_json_of_other_programs_raises(tmp_path, text, message):
    (tmp_path / "saved.json").write_text(text)
    with pytest.raises(CorruptDatasetError, match=message):
        serving.load(tmp_path / "saved.json")


@pytest.mark.parametrize("kind", list(ROW_ENCODERS))
def test_unknown_parameter_raises(kind):
    state = {"format": 1, "features": {"x": {"type": kind, "params": {"later": 1}, "learned": {}}}}
    with pytest.raises(FormatVersionError, match=f'feature "x": a {kind} has no parameter "later"'):
        serving.Encoder(state)


@pytest.mark.parametrize("reader", READERS)
def test_deeply_nested_vocabulary_raises(tmp_path, reader):
    learned = '{"word":' * 800 + "1" + "}" * 800
    text = '{"format": 1, "features": {"a": {"type": "text", "params": {}, "learned": ' + learned + "}}}"
    (tmp_path / "saved.json").write_text(text)
    with pytest.raises(CorruptDatasetError, match="cannot be restored"):
        READERS[reader](tmp_path / "saved.json")


def save_altered(path: Path, prep: dp.Preprocessor, alter: Callable[[dict[str, Any]], None]) -> Path:
    """Save a Preprocessor of the one feature "a", then alter it with matching digests."""
    prep.save(path)
    state = json.loads(path.read_text())
    feature = state["features"]["a"]
    alter(feature)
    path.write_text(json.dumps(signed(state)))
    return path


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([], "golden rows is not 1,000,000"),
        pytest.param([[0]] * (10**6 - 1), "rows are longer than", marks=pytest.mark.slow),
    ],
)
def test_golden_rows_with_one_long_row_allocate_no_memory(tmp_path, reader, others, message):
    def alter(feature: dict[str, Any]) -> None:
        feature["learned"]["size"] = 10**6
        rows = [[0] * 10**6, *others]
        feature["golden"] = {"cells": [""] * 10**6, "arrays": {"": {"dtype": "uint8", "rows": rows}}}

    prep = dp.Preprocessor({"a": "set"}).fit(pd.DataFrame({"a": ["x y", "y"]}))
    path = save_altered(tmp_path / "saved.json", prep, alter)
    with pytest.raises(CorruptDatasetError, match=message):
        READERS[reader](path)


@pytest.mark.parametrize("reader", READERS)
def test_golden_rows_of_one_long_text_allocate_no_memory(tmp_path, reader):
    def alter(feature: dict[str, Any]) -> None:
        array = feature["golden"]["arrays"][""]
        array["rows"] = [["x" * 20_000] + [""] * 1_000] * len(array["rows"])  # as an array, 80 MB for each row

    path = save_altered(tmp_path / "saved.json", dp.Preprocessor({"a": "category"}).fit({"a": ["x", "y"]}), alter)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptDatasetError, match='feature "a"'):
            READERS[reader](path)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("given", ["%Y%Y", "%b %b %Y"])
def test_datetime_format_with_a_repeated_field_raises(tmp_path, reader, given):
    prep = dp.Preprocessor({"a": "date"}).fit(pd.DataFrame({"a": ["2020-01-02", "2021-02-03"]}))
    path = save_altered(tmp_path / "saved.json", prep, lambda one: one["params"].update(datetime_format=given))
    with pytest.raises(CorruptDatasetError, match='feature "a"'):
        READERS[reader](path)


@pytest.mark.parametrize("reader", READERS)
def test_ngram_size_beyond_every_row_takes_no_time(tmp_path, reader):
    tokenizer = {"tokenizer": "ngram", "ngram_size": 2}
    prep = dp.Preprocessor({"a": dp.Set(**tokenizer)}).fit(pd.DataFrame({"a": ["x y", "y"]}))
    path = save_altered(tmp_path / "saved.json", prep, lambda one: one["params"].update(ngram_size=10**12))
    rows = pd.DataFrame({"a": ["y", "x y", "x"]})
    found = READERS[reader](path).encode(rows.to_dict("records"))["a"]
    np.testing.assert_array_equal(found, prep.encode(rows)["a"], strict=True)


def test_missing_file_error_names_the_file(tmp_path):
    with pytest.raises(ConfigError, match=r"gone\.json"):
        serving.load(tmp_path / "gone.json")


@pytest.fixture
def large(tmp_path, sizes) -> Path:
    sizes(large_vocabulary=3)
    fitted("category").save(tmp_path / "prep.json")
    return tmp_path / "prep.json"


def test_large_vocabulary_is_read_from_its_file(large):
    [file] = (large.parent / "prep.json.vocab").iterdir()
    assert serving.load(large).encode([{"category": "Ærø"}])["category"].tolist() == [3]
    moved = file.rename(large.parent / "elsewhere")
    for load in READERS.values():
        with pytest.raises(CorruptDatasetError, match="does not exist"):
            load(large)
    file.write_bytes(moved.read_bytes()[:-1])
    for load in READERS.values():
        with pytest.raises(CorruptDatasetError, match="is not the one that"):
            load(large)
    file.unlink()
    file.symlink_to(moved)
    for load in READERS.values():
        with pytest.raises(DaskprepError, match="link"):
            load(large)


def test_large_vocabulary_without_pyarrow_raises(large, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match="pip install pyarrow"):
        serving.load(large)


def test_custom_types_have_golden_rows_that_are_checked(tmp_path, monkeypatch):
    class Doubled(dp.Number):
        kind = "doubled"
        factor = 2

        def encode(self, parsed, learned):
            return super().encode(parsed, learned) * self.factor

    monkeypatch.setitem(FEATURES, "doubled", Doubled)
    dp.Preprocessor({"x": Doubled()}).fit(pd.DataFrame({"x": [1.0, 2.0]})).save(tmp_path / "prep.json")
    assert dp.Preprocessor.load(tmp_path / "prep.json").features["x"].kind == "doubled"
    monkeypatch.setattr(Doubled, "factor", np.float32(2 + 1e-6))
    with pytest.raises(CorruptDatasetError, match=r'feature "x" encodes .* or this version encodes differently'):
        dp.Preprocessor.load(tmp_path / "prep.json")


def test_golden_rows_omit_cells_that_a_type_rejects(tmp_path, monkeypatch):
    class Brittle(dp.Category):
        kind = "brittle"

        def parse(self, column):
            return {"b": super().parse(column)}[column[0].as_py()]

    monkeypatch.setitem(FEATURES, "brittle", Brittle)
    frame = pd.DataFrame({"x": ["b", "a"], "y": ["1", "2"]})
    prep = dp.Preprocessor({"x": Brittle(missing_value_strategy="drop_row"), "y": dp.Number(invalid="raise")})
    prep.fit(frame).save(tmp_path / "prep.json")
    saved = json.loads((tmp_path / "prep.json").read_text())["features"]
    assert saved["x"]["golden"] == {"cells": [], "arrays": {}}
    assert "no number" not in saved["y"]["golden"]["cells"]
    assert len(saved["y"]["golden"]["cells"]) == 6


def test_wide_golden_rows_are_few(tmp_path):
    for length, cells in ((10_000, 6), (70_000, 0)):
        prep = dp.Preprocessor({"x": dp.Sequence(sequence_length=length)}).fit(pd.DataFrame({"x": ["a b"]}))
        prep.save(tmp_path / "prep.json")
        saved = json.loads((tmp_path / "prep.json").read_text())["features"]["x"]
        assert len(saved["golden"]["cells"]) == cells
        dp.Preprocessor.load(tmp_path / "prep.json")


def test_learned_fields_of_custom_types_can_have_any_name(tmp_path, monkeypatch):
    @dataclass(frozen=True, kw_only=True)
    class LearnedSizes(LearnedNumber):
        size: int = 10**9
        char: str = "a"

    class Sized(dp.Number):
        kind = "sized"
        learned_type = LearnedSizes

        def learn(self, summary):
            return LearnedSizes(**vars(super().learn(summary)))

    monkeypatch.setitem(FEATURES, "sized", Sized)
    dp.Preprocessor({"x": Sized()}).fit(pd.DataFrame({"x": [1.0, 2.0]})).save(tmp_path / "prep.json")
    assert dp.Preprocessor.load(tmp_path / "prep.json").learned_["x"].size == 10**9


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("number", "mean", "high"),
        ("number", "q1", True),
        ("binary", "str2bool", {"yes": 1}),
        ("binary", "above_zero", 1),
        ("category", "idx2str", ["<UNK>", None]),
        ("category", "idx2str", {"<UNK>": 0}),
        ("set", "size", -1),
        ("set", "size", 10**12),
        ("set", "special_symbols", {"unknown": 1}),
        ("text", "word", []),
        ("text", "char", {"idx2str": 1}),
    ],
)
def test_learned_value_of_wrong_type_raises_without_digests(states, kind, key, value):
    state = dp.Preprocessor.from_dict(states[kind]).to_dict()
    serving.Encoder(state)
    with pytest.raises(CorruptDatasetError, match=f'feature "{kind}" cannot be restored'):
        serving.Encoder(put(state, ("features", kind, "learned", key), value))


def test_paths_are_excluded_from_digests():
    assert compute_digests({"base_dir": "/a", "rows": 1}) == compute_digests({"base_dir": "/b", "rows": 1})
    states = [{"features": {"a": {"params": {"base_dir": one, "lazy_cache_dir": one}}}} for one in ("/a", "/b")]
    assert add_digest(states[0])["digest"] == add_digest(states[1])["digest"]


@pytest.mark.parametrize(
    ("number", "text"),
    [  # Appendix B of RFC 8785
        (0.0, "0"),
        (-0.0, "0"),
        (5e-324, "5e-324"),
        (-5e-324, "-5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (9007199254740992.0, "9007199254740992"),
        (295147905179352830000.0, "295147905179352830000"),
        (9.999999999999997e22, "9.999999999999997e+22"),
        (1e23, "1e+23"),
        (1.0000000000000001e23, "1.0000000000000001e+23"),
        (999999999999999700000.0, "999999999999999700000"),
        (1e21, "1e+21"),
        (9.999999999999997e-7, "9.999999999999997e-7"),
        (0.000001, "0.000001"),
        (333333333.3333332, "333333333.3333332"),
        (1424953923781206.2, "1424953923781206.2"),
    ],
)
def test_canonical_numbers_follow_rfc_8785(number, text):
    assert canonical(number) == text


def test_canonical_texts_and_keys_follow_rfc_8785():
    assert canonical({"\u20ac": 1, "\r": 2, "1": 3, "\U0001f600": 4, "\ufb33": 5, "ö": 6}) == (
        '{"\\r":2,"1":3,"ö":6,"€":1,"😀":4,"\ufb33":5}'
    )
    assert canonical(["\x0f\x7f\u2028", '"\\/\b']) == '["\\u000f\x7f\u2028","\\"\\\\/\\b"]'
    assert canonical({1: 2, None: 3, 0.5: 4}) == canonical(json.loads('{"1": 2, "null": 3, "0.5": 4}'))
    assert canonical([True, None, 2**60, 1, [], {}]) == "[true,null,1152921504606847000,1,[],{}]"


@given(st.lists(st.text()))
def test_canonical_vocabulary_equals_json(tokens):
    assert canonical(tokens) == json.dumps(tokens, ensure_ascii=False, separators=(",", ":"))


def test_digests_cover_all_learned_fields(states):
    for kind, state in states.items():
        feature = state["features"][kind]
        assert feature["digests"].keys() == feature["learned"].keys()
        assert {"rows", "missing"} <= feature["learned"].keys()
