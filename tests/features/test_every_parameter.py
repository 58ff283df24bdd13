"""Frames of 1, 4 and 400 rows, the service and ONNX encode alike, whatever value each parameter of a type has."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import random
import types
import typing
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep import rows
from daskprep.errors import ConfigError, DaskprepError
from daskprep.extensions import onnx
from daskprep.features import FEATURES
from daskprep.rows import ROW_ENCODERS
from daskprep.rows.typed import AtLeast
from daskprep.serving import Encoder
from tests.arrow_columns import encode_columns
from tests.extensions.test_onnx import run

ROWS = 400
RANDOM = np.random.default_rng(5)
NUMBERS = np.where(
    RANDOM.random(ROWS) < 0.2, RANDOM.choice([np.nan, 0.0, -3.0, 1e9, 7.0], ROWS), RANDOM.lognormal(0, 2, ROWS)
)
NAMES = ["Rome", "rome", " Oslo ", "KÖLN", "n/a", "<UNK>", None, "new town", *map(str, range(9))]
TEXTS = ["a b a c", "B a", "one_two, three!", "n/a", "<UNK>", None, "Über x " * 5, "zz", "a"]
DAYS = ["2024-02-29 12:30:00", "1969-12-31", "1900-03-01T05:06:07", None, "2030-01-01"]
CELLS: dict[str, list[Any]] = {
    "binary": ["yes", "NO", "no", None, "maybe", "n/a"], "date": DAYS,
    "h3": ["8928308280fffff", None, "8928308281fffff"],
    "timeseries": ["1 2 3", "4,5", "6_7 8", "", None, "9"], "vector": ["1 2", "3 4.5", None],
    **dict.fromkeys(("category", "target_encoding"), NAMES),
    **dict.fromkeys(("set", "bag", "sequence", "text", "text_components"), TEXTS),
}  # fmt: skip
VALUES: dict[str, list[Any]] = {
    "column": ["x", "other"], "target": ["y"], "fill_value": [None, 0, 7.5, "Rome", "a b", "1 2", True, "2024-01-01"],
    "null_values": [["n/a"], ["7", "x"]], "clip_quantiles": [[0.1, 0.9], [0.0, 0.5]], "bins": [3, [0.0, 1.0, 5.0]],
    "written": ["1,234.5", "1.234,5"], "order": [["Rome", "rome"], ["1", "2", "Oslo"]], "columns": [["x", "other"]],
    "fold_group": ["group"], "fold_time": ["day"], "positive": ["yes", "NO"], "pattern": [r"\w+"],
    "tokenizer": ["space", "space_punct", "characters", "ngram", "comma", "underscore", "subword"],
    "special_symbols": ["ludwig", {"unknown": "[UNK]", "padding": "[PAD]", "start": "[CLS]", "stop": "[SEP]"}],
    "datetime_format": ["%Y-%m-%d"], "parts": [["year", "hour"], ["weekday"]], "cyclic": [["hour"], ["month"]],
    "since": ["day"], "padding_value": [-1.0], "group_by": ["group"],
}  # fmt: skip
NEED_FILES = {"vocab_file", "pretrained_model_name_or_path"}


def frame_of(kind: str) -> pd.DataFrame:
    cells = pd.Series(NUMBERS if kind == "number" else (CELLS[kind] * ROWS)[:ROWS])
    cells = pd.to_datetime(cells, format="ISO8601") if kind == "date" else cells
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(ROWS) * 31, unit="h")
    return pd.DataFrame({
        "x": cells, "other": np.roll(cells, 3), "day": days, "group": np.arange(ROWS) % 3, "y": RANDOM.random(ROWS),
    })  # fmt: skip


def choices(hint: Any) -> list[Any]:
    """Return values of a type: all of a Literal, small ones of a number."""
    origin = typing.get_origin(hint)
    if origin is Literal:
        return list(typing.get_args(hint))
    if origin in (typing.Union, types.UnionType):
        return list(itertools.chain.from_iterable(map(choices, typing.get_args(hint))))
    if origin is Annotated:
        kind, bound = typing.get_args(hint)
        assert isinstance(bound, AtLeast)
        return [bound.bound, bound.bound + 2] if kind is int else [bound.bound + 0.5, bound.bound + 2.0]
    return {bool: [True, False], type(None): [None]}.get(hint, [])


def parameters(kind: str) -> dict[str, list[Any]]:
    feature = FEATURES[kind]
    hints = typing.get_type_hints(feature, include_extras=True)  # of the parameters, which are a dataclass
    names = feature().get_params(deep=False)
    found = {name: [*choices(hints.get(name)), *VALUES.get(name, [])] for name in names if name not in NEED_FILES}
    assert not (empty := [name for name, values in found.items() if not values]), f"add values of {empty} to VALUES"
    return found


def programs(kind: str, *, alone: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a parameter and parameters to set: each of its values, alone or with random values of two others."""
    values, chance = parameters(kind), random.Random(kind)
    base = {"target_encoding": {"target": "y"}, "text_components": {"size": 3}}.get(kind, {})
    for name, value in ((name, value) for name, own in values.items() for value in own):
        others = [] if alone else chance.sample(sorted(values), 2)
        yield name, base | {other: chance.choice(values[other]) for other in others} | {name: value}


@pytest.mark.parametrize("alone", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ROW_ENCODERS)
def test_all_numbers_of_rows_are_encoded_alike(kind: str, tmp_path: Path, *, alone: bool) -> None:
    frame, accepted, exported = frame_of(kind), set(), 0
    for name, params in programs(kind, alone=alone):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                prep = dp.Preprocessor({"x": FEATURES[kind](**params)}).fit(frame)
            except DaskprepError:
                continue
            accepted.add(name)
            exported += check(prep, frame, params, None if alone else tmp_path)
    assert accepted == parameters(kind).keys() or not alone, "a parameter was refused with each of its values"
    assert exported or alone or kind in ("bag", "h3", "timeseries", "text_components", "vector")


def check(prep: dp.Preprocessor, frame: pd.DataFrame, params: Any, folder: Path | None) -> bool:
    """Compare parts of a frame, and return whether ONNX took part, which needs a folder."""
    encoder = Encoder(prep.to_dict())
    ways = {"frame": prep.encode, "service": lambda part: encoder.encode(part.to_dict("records"))}
    with contextlib.suppress(ConfigError):
        if folder is not None and not isinstance(prep.features_["x"], dp.Vector):  # whose cells are texts here
            prep.to_onnx(folder / "x.onnx")
            ways["ONNX"] = functools.partial(run, folder / "x.onnx")
    for start, count in ((0, ROWS), (0, 4), (4, 4), *((start, 1) for start in range(6))):
        part = frame[start : start + count]
        try:
            expected = encode_columns(prep, part)
        except DaskprepError:
            for way in ("frame", "service"):
                with pytest.raises(DaskprepError):
                    ways[way](part)
            continue
        for way, encode in ways.items():
            arrays, where = encode(part), f"{way} of {count} rows from {start}, {params}"
            assert arrays.keys() == expected.keys(), where
            for output, array in expected.items():
                compare(arrays[output], array, way, params, where)
    check_counts(prep, frame)
    return "ONNX" in ways


def check_counts(prep: dp.Preprocessor, frame: pd.DataFrame) -> None:
    """Count the cells of rows together and one at a time."""
    together, alone = Encoder(prep.to_dict()), Encoder(prep.to_dict())
    rows = frame.to_dict("records")
    with contextlib.suppress(DaskprepError):
        for encoder, requests in ((together, [rows]), (alone, rows)):
            _, reports = zip(*(encoder.encode(request, report=True) for request in requests), strict=True)
            missing = sum(len(report.get("x", {}).get("missing", ())) for report in reports)
            assert encoder.seen["x"]["missing"] == missing, prep.features_
        own = ({**encoder.seen["x"], "padded": 0} for encoder in (together, alone))
        assert next(own) == next(own), prep.features_


def compare(array: np.ndarray, expected: np.ndarray, way: str, params: Any, message: str) -> None:
    is_logarithm = params.get("normalization") in ("quantile_normal", "yeo_johnson", "log1p", "box_cox")
    if way == "ONNX" and is_logarithm:
        np.testing.assert_allclose(array, expected, rtol=3e-7, atol=1e-7, err_msg=message)
    else:
        np.testing.assert_array_equal(array, expected, strict=True, err_msg=message)


def test_parameters_that_a_fast_way_does_not_know_are_left_to_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prep = dp.Preprocessor({"x": dp.Number(normalization="minmax")}).fit(pd.DataFrame({"x": [1.0, 2.0, 4.0]}))
    saved = prep.to_dict()["features"]["x"]
    assert rows.make_row_encoder("x", saved).transform is not None
    monkeypatch.setattr(rows.numbers, "_NORMALIZED_PARAMETERS", "")
    assert rows.make_row_encoder("x", saved).transform is None
    monkeypatch.setattr(onnx, "_SUPPORTED", "")
    with pytest.raises(ConfigError, match='"x": the parameter normalization'):
        prep.to_onnx(tmp_path / "x.onnx")
    fields = {one.name: one for one in dataclasses.fields(dp.Number)}
    monkeypatch.setattr(fields["normalization"], "metadata", {"rows": False})
    assert rows.make_row_encoder("x", saved) is None
    assert Encoder(prep.to_dict()).encode({"x": 2.5})["x"] == prep.encode(pd.DataFrame({"x": [2.5]}))["x"] == 0.5
