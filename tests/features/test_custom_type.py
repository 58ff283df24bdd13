"""A new type is one file and one line of the registry: inference, writing, display and loading use it."""

from __future__ import annotations

import importlib.util
import json
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner

import daskprep as dp
from daskprep.errors import ColumnError
from daskprep.extensions.cli.program import program
from daskprep.features import FEATURES
from daskprep.testing import check_feature

FILE = '''
"""Colours: three bytes, by the names that pages give them."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.features import Feature, Learned
from daskprep.features.base import Invalid, Tensor
from daskprep.features.cells import as_text
from daskprep.features.missing import Strategy
from daskprep.columns.summaries import Summary, TokenCounts

_COLOUR = "^#[0-9a-f]{6}$"


@dataclass(frozen=True, kw_only=True)
class LearnedColour(Learned):
    """The most frequent colour."""

    favourite: str | None = None


class Colour(Feature[TokenCounts, LearnedColour]):
    """Read colours such as "#ff8000" as red, green and blue."""

    kind = "colour"
    holds = "series"

    def __init__(
        self,
        *,
        missing_value_strategy: Strategy = "fill_with_const",
        fill_value: str | None = "#000000",
        invalid: Invalid = "missing",
        column: str | None = None,
    ) -> None:
        self.missing_value_strategy = missing_value_strategy
        self.fill_value = fill_value
        self.invalid = invalid
        self.column = column

    @classmethod
    def guess(cls, facts):
        colours = cls().parse(facts.distinct.texts)
        return None if colours.null_count or not len(colours) else (cls(), "colours")

    def parse(self, column: pa.Array) -> pa.Array:
        text = as_text(column)
        return pc.if_else(pc.match_substring_regex(text, _COLOUR), text, None)

    def summarize(self, parsed: pa.Array) -> TokenCounts:
        counted = parsed.drop_null().value_counts()
        return TokenCounts.of(counted.field("values"), counted.field("counts").to_numpy())

    def learn(self, summary: TokenCounts) -> LearnedColour:
        return LearnedColour(favourite=summary.top() if summary.total else None)

    def encode(self, parsed: pa.Array, learned: LearnedColour) -> np.ndarray:
        bytes_ = "".join(cell[1:] for cell in pc.fill_null(parsed, "#000000").to_pylist())
        return np.frombuffer(bytearray.fromhex(bytes_), np.uint8).reshape(-1, 3).copy()

    def expand(self, batch: Tensor, learned: LearnedColour) -> Tensor:
        return batch.float() / 255

    def decode(self, encoded: np.ndarray, learned: LearnedColour) -> pa.Array:
        return pa.array(["#" + bytes(row).hex() for row in np.asarray(encoded, np.uint8)], pa.string())
'''
COLOURS = ["#ff8000", "#00ff00", "#ff8000", "#0000ff"]


@pytest.fixture
def frame():
    return pd.DataFrame({"paint": COLOURS * 25, "price": np.arange(100) % 7 + 0.5})


@pytest.fixture(autouse=True)
def colour(tmp_path, monkeypatch):
    path = tmp_path / "colour.py"
    path.write_text(FILE)
    spec = importlib.util.spec_from_file_location("colour", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "colour", module)
    spec.loader.exec_module(module)
    monkeypatch.setitem(FEATURES, "colour", module.Colour)
    return module.Colour


def test_custom_type_passes_check_feature(colour):
    assert colour.learned_type.__name__ == "LearnedColour"
    check_feature(colour(), COLOURS)


def test_custom_type_is_inferred(frame, colour):
    guessed = dp.infer_features(frame)
    assert isinstance(guessed["paint"], colour)
    assert guessed.reasons["paint"] == "colours: 3 distinct values in 100 rows"
    assert guessed["price"].kind == "number"


def test_custom_type_is_written_loaded_decoded_and_shown(frame, tmp_path):
    dataset = dp.Preprocessor("auto", split=None).fit_write(frame, tmp_path / "d")
    assert dataset.learned["paint"].favourite == "#ff8000"
    opened = dp.open_dataset(tmp_path / "d")
    [batch] = opened["train"].loader(100, shuffle=False)
    assert torch.equal(batch["paint"][1], torch.tensor([0.0, 1.0, 0.0]))
    assert opened["train"].head(4)["paint"].tolist() == COLOURS
    page = opened.report().html
    assert "Mean by position" in page
    assert "favourite" in page
    assert len(opened.plot("paint").subfigs) == 1
    inspected = json.loads(CliRunner().invoke(program, ["inspect", "--json", str(tmp_path / "d")]).stdout)
    assert inspected["features"]["paint"]["learned"] == {"favourite": "#ff8000"}


def test_custom_type_is_saved_and_configured(frame, tmp_path):
    prep = dp.Preprocessor({"paint": "colour"}).fit(frame)
    prep.save(tmp_path / "prep.json")
    assert dp.Preprocessor.load(tmp_path / "prep.json").learned_ == prep.learned_
    again = dp.Preprocessor.from_config(prep.to_config())
    assert again.features["paint"].get_params() == prep.features_["paint"].get_params()


def test_custom_type_can_have_several_outputs(frame, tmp_path, colour, monkeypatch):
    class Parts(colour):
        kind = "parts"
        outputs = ("_red", "_rest")

        def encode(self, parsed, learned):
            rows = super().encode(parsed, learned)
            return {"_red": rows[:, 0].copy(), "_rest": rows[:, 1:].copy()}

        def decode(self, encoded, learned):
            return super().decode(np.column_stack([encoded["_red"], encoded["_rest"]]), learned)

    monkeypatch.setitem(FEATURES, "parts", Parts)
    dataset = dp.Preprocessor({"paint": "parts"}, split=None).fit_write(frame, tmp_path / "d")
    assert dataset["train"].head(4)["paint"].tolist() == COLOURS
    inspected = CliRunner().invoke(program, ["inspect", "--json", str(tmp_path / "d")])
    assert json.loads(inspected.stdout)["features"]["paint"]["outputs"] == ["paint_red", "paint_rest"]


@pytest.mark.parametrize(
    "encode",
    [
        lambda cells: np.zeros((len(cells), 4 if not len(cells) else 3), np.float32),
        lambda cells: np.zeros((len(cells), 1 if len(cells) == 1 else 4), np.float32),
        lambda cells: np.zeros((len(cells), 4), np.float16 if len(cells) else np.float32),
        lambda cells: np.zeros(len(cells), np.float32) if len(cells) else np.zeros((0, 4), np.float32),
    ],
    ids=["narrower", "one row", "dtype", "flat"],
)
def test_rows_of_another_shape_or_dtype_are_refused_everywhere(tmp_path, encode):
    class Uneven(dp.Number):
        def encode(self, parsed, learned):
            return encode(parsed)

    rows = pd.DataFrame({"x": [1.0, 2.0, None, 4.0]})
    calls = [
        lambda prep: prep.fit(rows).encode(rows),
        lambda prep: prep.fit(rows).transform(rows[:1]),
        lambda prep: prep.fit_write(rows, tmp_path / "x.dp", progress=False),
        lambda prep: list(prep.fit(rows).stream(rows, 2)),
    ]
    for call in calls:
        with pytest.raises(ColumnError, match="type and shape must follow from the fitted state alone"):
            call(dp.Preprocessor({"x": Uneven()}, split=None))
