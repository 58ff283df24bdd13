"""Types that fulfill the contract pass `check_feature`; each violation fails its check."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import daskprep as dp
from daskprep.columns.summaries import Range, Summary
from daskprep.errors import ConfigError, ContractError, DaskprepError
from daskprep.features import FEATURES, Learned
from daskprep.testing import check_feature

# Weights refuse odd cells, no key is missing, histories are of other rows, boxes need an image, embeddings a function.
_OTHERS = ("weight", "key", "target_encoding", "history", "boxes", "keypoints", "embedding")


@pytest.mark.parametrize("kind", [kind for kind in FEATURES if kind not in _OTHERS])
def test_builtin_type_passes(kind):
    check_feature(FEATURES[kind]())


@pytest.mark.parametrize("feature", [dp.TargetEncoding(encoding="count"), dp.History(last=2)], ids=repr)
def test_encodings_without_the_cell_fail_only_decode(feature):
    with pytest.raises(ContractError, match='fails the check "decode"'):
        check_feature(feature)


@pytest.mark.parametrize(
    "feature",
    [
        dp.Number(outlier_strategy="ffill", outlier_threshold=1, missing_value_strategy="bfill"),
        dp.Number(outlier_strategy="drop_row", outlier_threshold=1, missing_value_strategy="fill_with_mode"),
        dp.Number(normalization="iq", missing_value_strategy="fill_with_mean", column="price"),
        dp.Category(min_frequency=2, missing_value_strategy="drop_row"),
        dp.Binary(missing_value_strategy="ffill"),
        dp.Set(expand_to="ids", missing_value_strategy="fill_with_mode"),
        dp.Sequence(add_start_stop=True, padding="left", missing_value_strategy="ffill"),
        dp.Text(level="both", compute_idf=True),
        dp.Text(level="char"),
        dp.Timeseries(window_size=3, missing_value_strategy="ffill"),
        dp.Timeseries(horizon=2, group_by="group"),
        dp.Date(missing_value_strategy="bfill"),
        dp.Image(height=3, width=3, mode="eager", formats=["PNG"], standardize_image="imagenet1k", on_error="drop"),
        dp.Audio(type="raw", audio_file_length_limit_in_s=0.2, missing_value_strategy="drop_row"),
    ],
    ids=repr,
)
def test_builtin_type_with_parameters_passes(feature):
    check_feature(feature)


@pytest.mark.parametrize(
    "column", [["a", "b", "a"], pd.Series(["a", "b"], index=[7, 3], dtype="category"), pa.array(["a"])]
)
def test_check_feature_with_column(column):
    check_feature(dp.Category(), column)


def test_unreadable_column_raises():
    for column in ([1.0, None], ["one"], []):
        with pytest.raises(ConfigError, match="Number cannot read all cells"):
            check_feature(dp.Number(), column)
    with pytest.raises(ConfigError, match="Picky reads none of the columns that check_feature generates"):
        check_feature(Picky())
    with pytest.raises(ConfigError, match="outlier_threshold must be"):
        check_feature(dp.Number(outlier_threshold=-1))


class Plain(dp.Feature):
    """Numbers without normalization."""

    kind = "plain"

    def __init__(
        self,
        *,
        missing_value_strategy: str = "fill_with_const",
        fill_value: Any = 0.0,
        invalid: str = "missing",
        column: str | None = None,
    ) -> None:
        self.missing_value_strategy = missing_value_strategy
        self.fill_value = fill_value
        self.invalid = invalid
        self.column = column

    def parse(self, column):
        return column.cast(pa.float64())

    def summarize(self, parsed):
        return Range.of(parsed.drop_null().to_numpy())

    def learn(self, summary):
        return self.learned_type()

    def encode(self, parsed, learned):
        return parsed.to_numpy(zero_copy_only=False).astype(np.float32)

    def decode(self, encoded, learned):
        return pa.array(encoded)


def test_custom_type_passes():
    check_feature(Plain())
    check_feature(Plain(missing_value_strategy="drop_row"), [1, 2, 3])


class Picky(Plain):
    def parse(self, column):
        return pa.nulls(len(column), pa.float64())


class Listed(Plain):
    def __init__(
        self, *, missing_value_strategy="fill_with_const", fill_value=0.0, invalid="missing", column=None, names=()
    ):
        super().__init__(
            missing_value_strategy=missing_value_strategy, fill_value=fill_value, invalid=invalid, column=column
        )
        self.names = (names,)


class Counting(Plain):
    def __init__(self, *, missing_value_strategy="drop_row", fill_value=None, invalid="missing", column=None):
        super().__init__(
            missing_value_strategy=missing_value_strategy, fill_value=fill_value, invalid=invalid, column=column
        )
        self.calls = 0


class Crowded(Plain):
    def summarize(self, parsed):
        values = parsed.drop_null().to_numpy()
        return Range(values.min(), values.max())


class Short(Plain):
    def encode(self, parsed, learned):
        return super().encode(parsed, learned)[:-1]


class Narrow(Plain):
    def encode(self, parsed, learned):
        encoded = super().encode(parsed, learned)
        return encoded.astype(np.float16) if len(encoded) and np.nanmax(encoded) < 100 else encoded


class Padded(Plain):
    def encode(self, parsed, learned):
        return np.zeros((len(parsed), min(len(parsed), 5)), np.float32)

    def decode(self, encoded, learned):
        return pa.nulls(len(encoded))


class Hopeful(Plain):
    def encode(self, parsed, learned):
        if len(parsed) and parsed.null_count == len(parsed):
            raise IndexError("index 0 is out of bounds")
        return super().encode(parsed, learned)


@dataclass(frozen=True)
class Newest(Summary):
    value: float

    def __add__(self, other):
        return other if other.value else self

    def __mul__(self, times):
        return self


@dataclass(frozen=True, kw_only=True)
class LearnedValue(Learned):
    value: float = 0.0


class Latest(Plain):
    learned_type = LearnedValue

    def summarize(self, parsed):
        present = parsed.drop_null()
        return Newest(present[-1].as_py() if len(present) else 0.0)

    def learn(self, summary):
        return LearnedValue(value=summary.value)


@dataclass(frozen=True)
class Once(Summary):
    rows: int

    def __mul__(self, times):
        return self


class Forgetful(Latest):
    def summarize(self, parsed):
        return Once(len(parsed))

    def learn(self, summary):
        return LearnedValue(value=summary.rows)


class Centred(Plain):
    def encode(self, parsed, learned):
        encoded = super().encode(parsed, learned)
        return encoded - np.nan_to_num(encoded).mean() if len(encoded) else encoded


@dataclass(frozen=True, kw_only=True)
class LearnedNames(Learned):
    names: dict[int, str] = field(default_factory=dict)


class Numbered(Plain):
    learned_type = LearnedNames

    def learn(self, summary):
        return LearnedNames(names={0: "none", 1: "one"})


class Shy(Numbered):
    def learn(self, summary):
        return LearnedNames(names={"none": {1}})


class Reversed(Plain):
    def decode(self, encoded, learned):
        return pa.array(encoded[::-1])


class Sparing(Plain):
    def decode(self, encoded, learned):
        return pa.array(encoded[1:])


class Sampling(Plain):
    def expand(self, batch, learned):
        return batch[::2]


class Blended(Plain):
    def expand(self, batch, learned):
        return batch - batch.mean()


class Busy(Plain):
    def fit(self, X, y=None):
        super().fit(X)


class Renamed(Plain):
    def tabulated_names(self, name, learned):
        return [name, f"{name}_again"]


BROKEN = [
    (Listed, "parameters", "another names than was passed"),
    (Counting, "parameters", "an attribute calls"),
    (Crowded, "no cells", "ValueError: zero-size array"),
    (Short, "encode", r"float32 of shape \(11,\) for 12 cells"),
    (Narrow, "encode", r"float16 of shape \(1,\), and for no cells float32"),
    (Padded, "encode", r"float32 of shape \(12, 5\), and for no cells"),
    (Hopeful, "missing cells", "IndexError: index 0"),
    (Latest, "merge", "value .*, and .* otherwise"),
    (Forgetful, "merge", "value .*, and .* otherwise"),
    (Centred, "partitions", "in row 0, and .* in other partitions"),
    (Numbered, "state", "{'0': 'none', '1': 'one'}.* in place of .*{0: 'none', 1: 'one'}"),
    (Shy, "state", "TypeError: Object of type set is not JSON serializable"),
    (Reversed, "decode", "in row 0, and .* decoded and encoded"),
    (Sparing, "decode", "returned 11 rows of float: expected an Arrow array of 12 rows"),
    (Sampling, "expand", r"returned shape \(6,\) for 12 rows"),
    (Blended, "expand", "in a batch"),
    (Busy, "transformer", "fit that returns another object"),
    (Renamed, "transformer", r"shape \(12, 1\) for 12 rows and 2 names"),
]


@pytest.mark.parametrize(("kind", "check", "found"), BROKEN, ids=lambda one: getattr(one, "__name__", None))
def test_contract_violation_fails_its_check(kind, check, found):
    with pytest.raises(
        ContractError, match=f'^{kind.__name__} fails the check "{check}", which expects .* Found: .*{found}'
    ):
        check_feature(kind())


def test_error_in_feature_is_a_contract_error_with_cause():
    with pytest.raises(AssertionError) as caught:
        check_feature(Crowded())
    assert isinstance(caught.value, DaskprepError)
    assert isinstance(caught.value.__cause__, ValueError)
