"""A saved Preprocessor with any one value replaced works, or raises a daskprep error that names the value."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import itertools
import json
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.exceptions import NotFittedError

import daskprep as dp
from daskprep import serving
from daskprep.errors import ConfigError, CorruptDatasetError, DaskprepError
from daskprep.extensions.media.audio import encode_wav
from daskprep.rows.saved import add_digest, compute_digests
from tests import saved_format
from tests.amount import one_in

State = dict[str, Any]
Place = tuple[Any, ...]
GONE = object()
ODD = [GONE, None, -1, 0, 1e308, "", [], {}, [[1]]]


def picture(shade: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (3, 3), 100 * (shade % 2)).save(file, "PNG")
    return file.getvalue()


@functools.cache
def rows() -> pd.DataFrame:
    table = saved_format.frame()
    cells = {
        "photo": [picture(i) for i in range(10)],
        "sound": [encode_wav(np.full(400, i, np.int16), 8000) for i in range(10)],
    }
    more = {name: pd.Series(one, dtype=object) for name, one in cells.items()}
    days = pd.date_range("2024-01-01", periods=10)
    return table.assign(**more, pounds=np.arange(10) / 3, time=days, part=[0, 1] * 5)


def preprocessors() -> Iterator[tuple[str, dp.Preprocessor]]:
    """Return a Preprocessor for each feature, split and balance, by name."""
    features = {
        **saved_format.features(),
        "photo": dp.Image(height=3, width=3, num_channels=3),
        "mask": dp.Image(height=3, width=3, num_channels=1, num_classes="auto", column="photo"),
        "photo_found": dp.Image(on_error="fill", column="photo"),
        "sound": "audio",
    }
    for name, feature in features.items():
        yield name, dp.Preprocessor({name: feature})
    price = {"price": dp.Number(column="count"), "sold": "category"}
    yield "weight", dp.Preprocessor(price, weight="pounds")
    splits = [
        dp.RandomSplit(), dp.StratifiedSplit("sold", on_small="train"), dp.GroupSplit("city"), dp.FixedSplit("part"),
        dp.DatetimeSplit("time"), dp.HashSplit("city"), dp.KFold(3, time="time", fold=0), dp.KFold(2, group="city"),
    ]  # fmt: skip
    for split in splits:
        balance = None
        if not split.folds:
            balance = (dp.Undersample if split.type == "random" else dp.Oversample)("label", ratio=0.5)
        name = f"{split.type} {split.folds} folds"
        yield name, dp.Preprocessor(price, targets="sold", split=split, balance=balance, sample=0.9)


@pytest.fixture(scope="module")
def states() -> dict[str, State]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # most cells are unreadable
        return {name: prep.fit(rows()).to_dict() for name, prep in preprocessors()}


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    if place:
        yield place
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*place, key))


def put(state: State, place: Place, odd: object) -> State:
    state = copy.deepcopy(state)
    holder: Any = state
    for key in place[:-1]:
        holder = holder[key]
    if odd is GONE:
        del holder[place[-1]]
    else:
        holder[place[-1]] = odd
    return state


def use(state: State, folder: Path) -> None:
    """Call all methods of a Preprocessor, and a write if its state matters there."""
    prep = dp.Preprocessor.from_dict(state)
    assert repr(prep).startswith("Preprocessor(")
    card = prep._repr_html_()
    is_error = (
        "<div>Preprocessor: " in card or "<div>column &#34;" in card or "<div>column &quot;" in card
    )  # of a parameter
    assert card.count("</tr>") > len(prep.features) or is_error
    assert prep.to_config()["input_features" if not prep.targets else "output_features"]
    new = rows().head(2)
    prep.decode(prep.encode(new))
    prep.cell_counts(new)
    assert prep.transform(new).shape[1] == len(prep.get_feature_names_out())
    assert dp.Preprocessor.from_dict(prep.to_dict()).to_dict() == prep.to_dict()
    if prep.split is not None:
        prep.assign(rows())
    if any(one.kind == "target_encoding" for one in prep.features_.values()):
        prep.write(rows(), folder / "a.dp", overwrite=True, progress=False)


def serve(state: State, folder: Path) -> None:
    """Call all methods of an encoder."""
    encoder = serving.Encoder(state)
    new = rows().head(2).astype(object)
    listed = new.where(new.notna(), None).to_dict("records")
    for expand in (False, True):
        assert all(len(array) == 2 for array in encoder.encode(listed, expand=expand).values())


def outcome(call: Callable[[State, Path], None], state: State, folder: Path) -> str:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            call(state, folder)
        except DaskprepError:
            return "refused"
        except NotFittedError:
            # Without learned state, a Preprocessor is unfitted.
            return "refused" if not any("learned" in one for one in state["features"].values()) else "lost"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "worked"


def check(states: dict[str, State], altered: Iterable[tuple[str, Place, object]], folder: Path) -> None:
    found: Counter[str] = Counter()
    odd = []
    for name, place, value in altered:
        # As read from a file.
        state = json.loads(json.dumps(put(states[name], place, value)))
        for call in (use, serve):
            what = outcome(call, state, folder)
            found[what] += 1
            if what not in {"worked", "refused"}:
                odd.append((name, *place, "gone" if value is GONE else value, call.__name__, what))
    assert odd == []
    assert min(found["worked"], found["refused"]) > sum(found.values()) // 4


def test_state_with_a_random_change_works_or_raises(states: dict[str, State], tmp_path: Path) -> None:
    chance = random.Random(0)
    check(states, ((n, chance.choice(list(places(one))), chance.choice(ODD)) for n, one in states.items()), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_state_with_any_change_works_or_raises(states: dict[str, State], tmp_path: Path) -> None:
    cases = ((name, place, odd) for name, one in states.items() for place in places(one) for odd in ODD)
    # Two or three of the nine values at each path, shifted at the next; at most one otherwise.
    check(states, itertools.islice(cases, 0, None, one_in(4) * 3 + 1), tmp_path)


DEFECTS = [
    ("number_raw", "learned.rows", GONE, "1 missing cells among 0 rows"),
    ("number_raw", "learned.missing", -1, "-1 missing cells among"),
    ("number_quantile_normal", "learned.quantiles", [], "IndexError"),
    ("number_bins", "learned.edges", [], "edges"),
    ("number_bins", "learned.edges", [1.0], "edges"),
    ("number_log1p", "learned.mean", None, "NoneType"),
    ("set_ngram", "params.ngram_size", None, "ngram_size"),
    ("city_sold", "params.columns", ["city", {}], "columns"),
    ("city_mean", "learned.encodings", "", "encodings"),
    ("pieces", "learned.special_symbols", {}, "'None' is not an instance"),
    ("count_class", "learned.cell_type", "", "cell_type must be"),
    ("count_sign", "learned.bool2str", GONE, "are not of type"),
    ("photo", "learned.fill_value", [[1]], "fill_value must be a number or None"),
    ("photo", "learned.fill_value", 1e308, "fill_value must be a brightness from 0 to 1"),
    ("mask", "learned.class_map", [], "fill_value of masks must be a class"),
    ("photo", "learned.class_map", [], "class_map is required for masks"),
    ("sound", "learned.fill_value", "", "fill_value must be a number or None"),
]


@pytest.mark.parametrize(("name", "place", "odd", "message"), DEFECTS)
@pytest.mark.filterwarnings("ignore")
def test_altered_value_raises_in_from_dict(
    states: dict[str, State], name: str, place: str, odd: object, message: str
) -> None:
    state = put(states[name], ("features", name, *place.split(".")), odd)
    with pytest.raises(CorruptDatasetError, match=f'feature "{name}".*({message})'):
        dp.Preprocessor.from_dict(state)


@pytest.mark.parametrize("name", ["city_mean", "city_shares"])
def test_encodings_with_fewer_folds_than_the_parameter_raise(states: dict[str, State], name: str) -> None:
    folds = states[name]["features"][name]["params"]["folds"]
    for other in (folds + 1, 9):
        with pytest.raises(CorruptDatasetError, match=f'"{name}".* state has {folds} folds, but folds={other}'):
            dp.Preprocessor.from_dict(put(states[name], ("features", name, "params", "folds"), other))


def test_partly_learned_state_raises(states: dict[str, State]) -> None:
    with pytest.raises(CorruptDatasetError, match='feature "sold" has no learned state, but others have one'):
        dp.Preprocessor.from_dict(put(states["weight"], ("features", "sold", "learned"), GONE))


SERVED = [
    ("number_quantile_normal", "learned.quantiles", []),
    ("number_log1p", "learned.mean", None),
    ("set_ngram", "params.ngram_size", [[1]]),
    ("city_sold", "params.columns", ["city", []]),
    ("city_mean", "learned.idx2str", []),
]


@pytest.mark.parametrize(("name", "place", "odd"), SERVED)
def test_altered_value_raises_in_serving(states: dict[str, State], name: str, place: str, odd: object) -> None:
    with pytest.raises(CorruptDatasetError, match=f'feature "{name}" cannot be restored'):
        serving.Encoder(put(states[name], ("features", name, *place.split(".")), odd))


def test_saved_folds_error_explains_the_missing_states(tmp_path: Path) -> None:
    prep = dp.Preprocessor({"price": dp.Number(column="count")}, split=dp.KFold(2)).fit(rows())
    prep.save(tmp_path / "saved.json")
    loaded = dp.Preprocessor.load(tmp_path / "saved.json")
    assert loaded.learned_ == prep.learned_
    with pytest.raises(
        ConfigError,
        match=r"no state without fold 0: a file, .* only the state of all rows: .*from_dataset\(dataset\.fold\(0\)\)",
    ):
        loaded.fold(0)
    with pytest.raises(ConfigError, match="no state without fold 2: the folds are 0 to 1"):
        prep.fold(2)
    with pytest.raises(ConfigError, match=r"no state without fold 0: use split=KFold\(5\)"):
        dp.Preprocessor({"price": dp.Number(column="count")}).fit(rows()).fold(0)
    prep.fold(0).save(tmp_path / "fold.json")
    assert dp.Preprocessor.load(tmp_path / "fold.json").learned_ == prep.learned_by_fold_[0]


@pytest.mark.parametrize("name", ["number_zscore", "text_both", "city_mean", "bag", "seen"])
def test_signed_file_with_a_random_change_works_or_raises(states: dict[str, State], tmp_path: Path, name: str) -> None:
    """Digests match the change, which anyone who alters a file can achieve; golden rows are altered too."""
    dp.Preprocessor.from_dict(states[name]).save(tmp_path / "saved.json")
    saved = json.loads((tmp_path / "saved.json").read_text(encoding="utf-8"))
    chance, odd = random.Random(0), []
    for place, value in chance.sample([(place, value) for place in places(saved) for value in ODD], 40):
        state = put(saved, place, value)
        for one in state["features"].values() if isinstance(state.get("features"), dict) else ():
            if isinstance(one, dict) and isinstance(one.get("learned"), dict):
                one["digests"] = compute_digests(one["learned"])
        with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError, OverflowError):
            state = add_digest(state)
        for call in (use, serve):
            what = outcome(call, state, tmp_path)
            if what not in {"worked", "refused"}:
                odd.append((*place, value, what))
    assert odd == []
