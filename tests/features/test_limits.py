"""Default limits hold all training values; the memory of padding, and of columns for each token, is bounded."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.errors import ColumnError
from daskprep.extensions.media.audio import encode_wav

MANY = 25_000  # more values than the former limits
WORDS = [f"w{number}" for number in range(MANY)]


def fit(feature, cells):
    frame = pd.DataFrame({"x": cells})
    prep = dp.Preprocessor({"x": feature}, split=None).fit(frame)
    return prep, prep.encode(frame)


@pytest.mark.parametrize("style", [None, "network"])
def test_inferred_category_keeps_all_values(style):
    cells = [f"shop {number}" for number in range(MANY)] * 3
    prep = dp.Preprocessor("auto", style=style) if style else dp.Preprocessor({"x": "category"})
    frame = pd.DataFrame({"x": cells, "y": np.arange(len(cells)) % 7})
    assert (prep.fit(frame).encode(frame)["x"] > 0).all()


@pytest.mark.parametrize(
    "feature", [dp.Category(), dp.Sequence(), dp.Text(), dp.Sequence(tokenizer="untokenized")], ids=lambda one: one.kind
)
def test_all_training_values_have_an_id_of_their_own(feature):
    prep, arrays = fit(feature, WORDS)
    assert len(np.unique(arrays["x"], axis=0)) == MANY
    assert prep.decode(arrays)["x"].tolist() == WORDS


def test_all_characters_have_an_id():
    cells = [chr(0x4E00 + number) * 3 for number in range(500)]
    prep, arrays = fit(dp.Text(level="char"), cells)
    assert prep.decode(arrays)["x"].tolist() == cells


@pytest.mark.parametrize("feature", [dp.Sequence(), dp.Text(), dp.Text(level="char"), dp.Timeseries()])
def test_rows_that_are_all_long_are_not_cut(feature):
    cells = [" ".join(["1"] * length) for length in (3_000, 5_000)]
    _, arrays = fit(feature, cells)
    assert arrays["x"].shape == (2, 9_999 if getattr(feature, "level", "") == "char" else 5_000)


@pytest.mark.parametrize(
    ("feature", "length"),
    [(dp.Sequence(), 256), (dp.Text(), 256), (dp.Text(level="char"), 1_024), (dp.Timeseries(), 256)],
)
def test_one_long_row_does_not_widen_all(feature, length):
    _, arrays = fit(feature, ["1 1 1"] * 999 + [" ".join(["1"] * 2_000)])
    assert arrays["x"].shape == (1_000, length)


@pytest.mark.parametrize(("longest", "limit"), [(1, 7.5), (9, 9.0), (40, 30.0)])
@pytest.mark.filterwarnings("ignore:.*has recordings longer than 30")
def test_recordings_are_held_up_to_a_bound(longest, limit):
    cells = [encode_wav(np.zeros(100 * seconds), 100) for seconds in (1, longest)]
    prep, arrays = fit(dp.Audio(type="raw", sampling_rate=100), cells)
    assert arrays["x"].shape == (2, limit * 100, 1)
    assert dp.Preprocessor.from_dict(prep.to_dict()).encode(pd.DataFrame({"x": cells}))["x"].shape == (
        2,
        limit * 100,
        1,
    )


def test_sets_and_bags_have_a_bounded_number_of_columns():
    for feature in (dp.Set(), dp.Bag()):
        prep, _ = fit(feature, WORDS)
        assert prep.get_feature_names_out().size == 10_002
    _, arrays = fit(dp.Set(expand_to="ids", most_common=None), WORDS)
    assert len(np.unique(arrays["x"])) == MANY


def test_values_beyond_the_memory_of_a_vocabulary_raise(sizes):
    sizes(ranked_bytes=10_000)
    with pytest.raises(ColumnError, match=r'"x".* more than 10.0 KB, too many for a vocabulary: set most_common'):
        fit(dp.Category(), WORDS)
    fit(dp.Category(most_common=10), WORDS)


def test_subwords_have_a_vocabulary_by_default():
    prep, _ = fit(dp.Text(tokenizer="bpe", most_common=None), ["low lower lowest"] * 9)
    assert prep.learned_["x"].max_sequence_length < 256
