"""Model outputs are converted to labels, units and tokens; the encoded truth round-trips, invalid outputs raise."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError, RejectedValueError
from daskprep.extensions.media.pixels import encode_png
from daskprep.serving import Encoder

CLASSES = ["<UNK>", "red", "blue", "green"]  # as `sort` learns them


def frame_of(cells: Any) -> pd.DataFrame:
    return pd.DataFrame({"x": np.zeros(len(cells)), "y": pd.Series(cells)})


def prep_of(feature: Any, cells: Any) -> dp.Preprocessor:
    number = dp.Number(normalization=None)
    return dp.Preprocessor({"x": number, "y": feature}, targets="y").fit(frame_of(cells))


def truth(prep: dp.Preprocessor, cells: Any, *, expand: bool = False) -> Any:
    """Return the outputs of a model that is always right."""
    encoded = torch.from_numpy(prep.encode(frame_of(cells))["y"])
    return prep.features_["y"].expand(encoded, prep.learned_["y"]) if expand else encoded


def one_hot(ids: Any, count: int) -> np.ndarray:
    return np.eye(count)[np.asarray(ids, int)]


@pytest.fixture(scope="module")
def sort() -> dp.Preprocessor:
    return prep_of(dp.Category(handle_unknown="unk"), ["red", "red", "red", "blue", "blue", "green"])


@pytest.fixture(scope="module")
def sold() -> dp.Preprocessor:
    return prep_of("binary", ["yes", "no"])


@pytest.fixture(scope="module")
def tags() -> dp.Preprocessor:
    return prep_of("set", ["a b c", "a b", "a"])  # <PAD>, <UNK>, a, b, c


@pytest.fixture(scope="module")
def words() -> dp.Preprocessor:
    return prep_of(dp.Text(add_start_stop=True), ["good day", "good"])  # <PAD>, <START>, <STOP>, <UNK>, good, day


# -- round trips


@pytest.mark.parametrize("normalization", [None, "zscore", "minmax", "iq", "log1p"])
@settings(max_examples=25)
@given(cells=st.lists(st.integers(-90, 10**8).map(lambda cents: cents / 100), min_size=2, max_size=20))
@pytest.mark.filterwarnings("ignore:column .* is constant", "ignore:column .* has equal quartiles")
def test_numbers_are_returned_in_original_units(normalization, cells):
    prep = prep_of(dp.Number(normalization=normalization), cells)
    outputs = truth(prep, cells)
    [column] = prep.predictions(outputs).to_dict("list").values()
    if prep.features_["y"].advice(prep.learned_["y"]) is None:
        np.testing.assert_allclose(column, cells, rtol=1e-5, atol=1e-5 * (max(cells) - min(cells)))
    assert column == prep.predictions(outputs[:, None]).iloc[:, 0].tolist()
    # Decoding returns the shortest of the numbers that are encoded alike.
    np.testing.assert_allclose(column, prep.decode({"y": outputs})["y"], rtol=1e-5, atol=1e-5 * np.ptp(cells))


def test_nan_predictions_stay_missing_and_large_ones_are_clipped():
    prep = prep_of(dp.Number(normalization="log1p"), [1.0, 2.0])
    assert prep.predictions([np.nan, 5_000.0, 0.0])["y_predictions"].fillna(-1).tolist() == [
        -1,
        np.finfo(float).max,
        0,
    ]
    with pytest.warns(UserWarning, match="is constant"):
        constant = prep_of("number", [3.0, 3.0])
    assert constant.predictions([np.nan, 0.5])["y_predictions"].fillna(-1).tolist() == [-1, 3]


@settings(max_examples=25)
@given(cells=st.lists(st.text(min_size=1, max_size=3).filter(str.strip), min_size=1, max_size=12))
def test_one_hot_rows_predict_classes(cells):
    prep = prep_of("category", cells)
    ids = truth(prep, cells)
    hot = one_hot(ids, len(prep.learned_["y"].vocabulary))
    found = prep.predictions(hot, logits=False, probabilities=True)
    assert found["y_predictions"].tolist() == prep.decode({"y": ids})["y"].tolist()
    assert (found.filter(like="y_probability").max(axis=1) == 1).all()
    assert prep.predictions(50 * hot)["y_predictions"].tolist() == found["y_predictions"].tolist()


@pytest.mark.parametrize("shape", [(-1,), (-1, 1), (-1, 2)])
@pytest.mark.parametrize("cells", [["yes", "no", "yes"], [3, -3, 3], [True, False, True], ["human", "bot", "human"]])
def test_binary_outputs_of_both_shapes_predict_labels(cells, shape):
    true_label = str(cells[0]) if cells[0] in ("human", 3) else None
    prep = prep_of(dp.Binary(positive=true_label), cells)
    true = truth(prep, cells).numpy().astype(float)
    chances = np.stack([1 - true, true], axis=1) if shape == (-1, 2) else true.reshape(shape)
    for found in (prep.predictions(chances, logits=False), prep.predictions(40 * chances - 20)):
        assert found["y_predictions"].tolist() == cells
        np.testing.assert_allclose(found.iloc[:, 1], true, atol=1e-8)


@settings(max_examples=25)
@given(cells=st.lists(st.sets(st.sampled_from("abcde")).map(sorted), min_size=1, max_size=8))
def test_multi_hot_rows_predict_sets(cells):
    prep = prep_of("set", cells)
    hot = truth(prep, cells, expand=True)
    for found in (prep.predictions(hot, logits=False), prep.predictions(20.0 * hot - 10)):
        assert [sorted(row) for row in found["y_predictions"]] == cells
        assert [len(row) for row in found["y_probability"]] == [len(row) for row in cells]


SEQUENCES = [
    dp.Sequence(),
    dp.Sequence(add_start_stop=True),
    dp.Sequence(special_symbols="ludwig"),
    dp.Sequence(tokenizer="characters", padding="left"),
    dp.Text(add_start_stop=True, padding="left"),
    dp.Text(level="char", add_start_stop=True),
]


@pytest.mark.slow
@pytest.mark.parametrize("feature", SEQUENCES, ids=str)
@settings(max_examples=25)
@given(cells=st.lists(st.lists(st.sampled_from(["ab", "c", "de"]), min_size=1).map(" ".join), min_size=1, max_size=6))
def test_ids_and_one_hot_rows_predict_texts(feature, cells):
    prep = prep_of(feature, cells)
    ids = truth(prep, cells)
    right = prep.decode({"y": ids})["y"].tolist()
    assert prep.predictions(ids)["y_predictions"].tolist() == right
    hot = one_hot(ids, len(prep.learned_["y"].vocabulary))
    found = prep.predictions(hot, logits=False)
    assert found["y_predictions"].tolist() == right
    assert (found["y_probability"] == 1).all()


@pytest.mark.parametrize("feature", ["vector", "timeseries", dp.Timeseries(window_size=2)], ids=str)
def test_vectors_and_timeseries_predict_lists(feature):
    cells = [1.5, 2.5] if getattr(feature, "window_size", 0) else ["1.5 2.5", "3 4"]
    prep = prep_of(feature, cells)
    np.testing.assert_array_equal(
        prep.predictions(truth(prep, cells))["y_predictions"].tolist(), prep.encode(frame_of(cells))["y"]
    )


def test_mask_ids_and_scores_predict_masks():
    masks = [encode_png(np.array(rows, np.uint8)) for rows in ([[0, 255], [9, 9]], [[9, 0], [0, 0]])]
    prep = prep_of(dp.Image(num_classes=3, num_channels=1), masks)
    ids = truth(prep, masks)
    for outputs in (ids, np.moveaxis(one_hot(ids, 3), -1, 1)):
        found = prep.predictions(outputs)["y_predictions"]
        np.testing.assert_array_equal(np.stack(found), ids)
        assert found[0].dtype == np.uint8
    with pytest.raises(ColumnError, match=r"\(rows, 3, 2, 2\), a score for each class, or \(rows, 2, 2\)"):
        prep.predictions(np.zeros((2, 4, 2, 2)))
    with pytest.raises(RejectedValueError, match="row 1 holds the id 3"):
        prep.predictions(np.array([[[0, 1], [1, 1]], [[0, 3], [1, 1]]]))


# -- probabilities


@given(scores=st.lists(st.lists(st.floats(-50, 50), min_size=4, max_size=4), min_size=1, max_size=8))
def test_logits_and_probabilities_agree(sort, sold, tags, scores):
    rows = np.array(scores)
    soft = torch.softmax(torch.from_numpy(rows), 1)
    options: dict[str, Any] = {"top_k": 2, "probabilities": True}
    pd.testing.assert_frame_equal(
        sort.predictions(rows, **options), sort.predictions(soft, logits=False, **options), check_exact=False
    )
    for prep, outputs in ((sold, rows[:, 0]), (tags, np.hstack([rows, rows[:, :1]]))):
        chances = torch.sigmoid(torch.from_numpy(outputs))
        found, same = prep.predictions(outputs), prep.predictions(chances, logits=False)
        assert found["y_predictions"].tolist() == same["y_predictions"].tolist()


def test_probabilities_equal_torch(sort):
    scores = torch.tensor([[0.5, 2.0, -1.0, 0.0], [0.0, 0.0, 3.0, 0.0]])
    found = sort.predictions(scores, probabilities=True)
    right = torch.softmax(scores.double(), 1).numpy()
    np.testing.assert_allclose(found["y_probability"], right.max(axis=1))
    np.testing.assert_allclose(found[[f"y_probability_{name}" for name in CLASSES]], right)


def test_threshold_decides_binary_predictions(sold):
    scores = [0.2, 0.6, 0.8]
    for threshold in (0.7, {"y": 0.7}):
        found = sold.predictions(scores, logits=False, threshold=threshold, probabilities=True)
        assert found["y_predictions"].tolist() == ["no", "no", "yes"]
        np.testing.assert_allclose(found["y_probability_no"], [0.8, 0.4, 0.2])
        np.testing.assert_allclose(found["y_probability_yes"], scores)
    assert sold.predictions([0.0])["y_predictions"].tolist() == ["yes"]


def test_threshold_decides_set_tokens_without_padding(tags):
    scores = np.array([[0.99, 0.1, 0.9, 0.3, 0.5]])
    found = tags.predictions(scores, logits=False, threshold=0.3, probabilities=True).loc[0]
    assert found["y_predictions"] == ["a", "b", "c"]
    assert found["y_probability"] == [0.9, 0.3, 0.5]
    assert found["y_probabilities"] == scores[0].tolist()
    assert tags.predictions(np.full((1, 5), -9.0))["y_predictions"].tolist() == [[]]


@given(
    scores=st.lists(st.lists(st.integers(-2, 2), min_size=4, max_size=4), min_size=1, max_size=5), k=st.integers(1, 6)
)
def test_top_k_is_sorted_by_probability_then_id(sort, scores, k):
    found = sort.predictions(scores, top_k=k)
    for row, labels, chances in zip(scores, found["y_predictions_top_k"], found["y_probabilities_top_k"], strict=True):
        order = sorted(range(4), key=lambda number: -row[number])[:k]
        assert labels == [CLASSES[number] for number in order]
        assert chances == sorted(chances, reverse=True)
    assert found["y_predictions"].tolist() == [labels[0] for labels in found["y_predictions_top_k"]]
    np.testing.assert_array_equal(found["y_probability"], [chances[0] for chances in found["y_probabilities_top_k"]])


def test_top_k_lists_each_class_once_with_zero_probabilities(sort):
    found = sort.predictions([[-2_000, -2_000, 0, -2_000]], top_k=4).loc[0]
    assert found["y_predictions_top_k"] == ["blue", "<UNK>", "red", "green"]
    assert found["y_probabilities_top_k"] == [1, 0, 0, 0]


def test_text_and_its_probability_end_at_the_first_stop_symbol(words):
    ids = [[1, 4, 5, 2, 4], [1, 2, 2, 2, 2], [4, 3, 4, 4, 4]]
    texts = ["good day", "", "good <UNK> good good good"]
    assert words.predictions(ids)["y_predictions"].tolist() == texts
    assert words.predictions(ids).columns.tolist() == ["y_predictions"]
    scores = 0.5 * one_hot(ids, 6) + 0.5 / 6
    found = words.predictions(scores, logits=False, probabilities=True)
    assert found["y_predictions"].tolist() == texts
    best = 0.5 + 0.5 / 6
    np.testing.assert_allclose(found["y_probability"], [best**4, best**2, best**5])
    assert [len(row) for row in found["y_probabilities"]] == [4, 2, 5]


def test_shared_padding_and_stop_symbol_stops_after_tokens():
    prep = prep_of(dp.Text(padding="left"), ["good day"])
    state = prep.to_dict()
    state["features"]["y"]["learned"]["special_symbols"]["stop"] = "<PAD>"
    both = dp.Preprocessor.from_dict(state)
    assert both.predictions([[0, 0, 3, 2], [3, 0, 2, 0]])["y_predictions"].tolist() == ["good day", "good"]


def test_many_rows_are_processed_in_chunks(sizes, sort, words):
    rng = np.random.default_rng(0)
    outputs = {"sort": (sort, rng.normal(size=(50, 4))), "words": (words, rng.normal(size=(50, 3, 6)))}
    whole = {name: prep.predictions(rows, probabilities=True) for name, (prep, rows) in outputs.items()}
    sizes(prediction_values=30)
    for name, (prep, rows) in outputs.items():
        pd.testing.assert_frame_equal(prep.predictions(rows, probabilities=True), whole[name])
        rows[33, 0] = np.nan
        with pytest.raises(RejectedValueError, match="row 33 hold nan"):
            prep.predictions(rows)


# -- forms of outputs


@pytest.fixture(scope="module")
def several() -> dp.Preprocessor:
    frame = pd.DataFrame({"x": [1.0, 2.0], "sold": ["yes", "no"], "sort": ["a", "b"], "price": [10.0, 30.0]})
    features = {
        "x": "number",
        "sold": "binary",
        "sort": dp.Category(handle_unknown="unk"),
        "price": dp.Number(normalization="minmax"),
    }
    return dp.Preprocessor(features, targets=["price", "sort", "sold"]).fit(frame)


def test_outputs_by_target_accept_any_order_and_subset(several):
    outputs = {"sort": [[0, 1, 2], [3, 1, 2]], "price": [[0.5], [1.0]]}
    found = several.predictions(outputs)
    assert found.columns.tolist() == ["price_predictions", "sort_predictions", "sort_probability"]
    assert found["price_predictions"].tolist() == [20, 30]
    assert found["sort_predictions"].tolist() == ["b", "<UNK>"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_tensors_of_any_dtype_and_with_gradients_are_accepted(sort, dtype):
    scores = torch.tensor([[0.0, 1.0, 4.0, 2.0]], dtype=dtype, requires_grad=True)
    assert sort.predictions(scores)["y_predictions"].tolist() == ["blue"]
    soft = torch.softmax(scores, 1)
    assert sort.predictions(soft, logits=False, probabilities=True)["y_predictions"].tolist() == ["blue"]


def test_batches_of_outputs_are_concatenated(sort, several):
    scores = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    whole = sort.predictions(scores, top_k=2, probabilities=True)
    parts = [torch.from_numpy(scores[:4]), torch.from_numpy(scores[4:])]
    for batches in (parts, iter(parts), (part for part in parts)):
        pd.testing.assert_frame_equal(sort.predictions(batches, top_k=2, probabilities=True), whole)
    mappings = [
        {"price": np.array([0.0]), "sold": np.array([3.0])},
        {"price": np.array([1.0]), "sold": np.array([-3.0])},
    ]
    found = several.predictions(mappings)
    assert found["price_predictions"].tolist() == [10, 30]
    assert found["sold_predictions"].tolist() == ["yes", "no"]
    with pytest.raises(RejectedValueError, match="row 1 hold nan") as caught:
        sort.predictions([scores, np.array([[0.0] * 4, [np.nan] * 4])])
    assert caught.value.__notes__ == ["in batch 1 of the outputs"]
    with pytest.raises(ConfigError, match="batch 1 of the outputs has the columns"):
        several.predictions([mappings[0], {"price": np.array([1.0])}])
    with pytest.raises(ConfigError, match="no batch of outputs"):
        sort.predictions(iter([]))


def test_zero_rows_have_the_same_column_types(sort, tags):
    for prep, width in ((sort, 4), (tags, 5)):
        none, one = (prep.predictions(np.zeros((rows, width)), probabilities=True) for rows in (0, 1))
        assert len(none) == 0
        assert none.dtypes.to_dict() == one.dtypes.to_dict()


def test_serving_encoder_predictions_equal_preprocessor(several):
    outputs = {"price": [0.25, 0.5], "sort": [[0.1, 0.2, 0.7], [0.8, 0.1, 0.1]], "sold": [0.2, 0.9]}
    options: dict[str, Any] = {"logits": False, "threshold": {"sold": 0.1}, "top_k": 2, "probabilities": True}
    columns = Encoder(several.to_dict()).predictions(outputs, **options)
    frame = several.predictions(outputs, **options)
    assert list(columns) == frame.columns.tolist()
    assert {name: list(column) for name, column in columns.items()} == frame.to_dict("list")


def test_refit_changes_predictions():
    prep = prep_of("category", ["a"])
    assert prep.predictions([[1]])["y_predictions"].tolist() == ["a"]
    prep.fit(frame_of(["b"]))
    assert pickle.loads(pickle.dumps(prep)).predictions([[1]])["y_predictions"].tolist() == ["b"]


# -- errors


@pytest.mark.parametrize(
    ("outputs", "error", "words"),
    [
        (
            np.zeros((2, 3)),
            ColumnError,
            r"float64 and shape \(2, 3\), but outputs for a category have shape \(rows, 4\)",
        ),
        (np.zeros(2), ColumnError, r"shape \(2,\)"),
        (1.0, ColumnError, r"shape \(\)"),
        ([[1, 2, 3, 4], [1]], ColumnError, "no array can be made of a list"),
        (
            (np.zeros((2, 4)), np.zeros((2, 4))),
            ConfigError,
            'a tuple of 2 is not an output: pass the output for "y" alone',
        ),
        (iter([(np.zeros((2, 4)), [0, 1])]), ConfigError, "a tuple of 2 is not an output"),
        ([["a"] * 4], ColumnError, "outputs are <U1: pass numbers"),
        ([[0, 0, 0, 0], [0, np.nan, 0, 0]], RejectedValueError, "the outputs of row 1 hold nan"),
        ([[0, np.inf, 0, 0]], RejectedValueError, "row 0 hold inf"),
        ([[-np.inf] * 4], RejectedValueError, "row 0 hold -inf"),
        ({"y": np.zeros((1, 4)), "z": [1]}, ConfigError, 'no target is named "z"'),
        ({"x": [1.0]}, ConfigError, 'no target is named "x".* Targets are: y'),
        ({}, ConfigError, "outputs are empty"),
    ],
)
def test_invalid_outputs_raise(sort, outputs, error, words):
    with pytest.raises(error, match=words):
        sort.predictions(outputs)


def test_minus_infinity_scores_are_accepted(sort):
    assert sort.predictions([[-np.inf, -np.inf, 0.0, -np.inf]]).iloc[0].tolist() == ["blue", 1.0]


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ([[0.1, 0.2, 0.3, 0.4], [3.0, -1.0, -1.0, 0.0]], "row 1 holds 3, which is not a probability: use logits=True"),
        ([[0.1, 0.2, 0.3, 0.4], [0.1, 0.1, 0.1, 0.1]], "the probabilities of row 1 add up to 0.4, not 1"),
    ],
)
def test_invalid_probabilities_raise(sort, outputs, words):
    with pytest.raises(ConfigError, match=words):
        sort.predictions(outputs, logits=False)
    sort.predictions(outputs)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"threshold": 1.5}, "threshold must be a probability from 0 to 1, not 1.5"),
        ({"threshold": {"sold": True}}, "threshold must be a probability"),
        ({"threshold": {"soldx": 0.5}}, 'no target is named "soldx". Did you mean "sold"'),
        ({"threshold": {"price": 0.5}}, 'threshold: target "price" is a number'),
        ({"top_k": 0}, "top_k must be an integer of at least 1"),
        ({"top_k": True}, "top_k must be"),
        ({"logits": "no"}, "logits must be True or False, not 'no'"),
        ({"probabilities": 1}, "probabilities must be True or False"),
    ],
)
def test_invalid_options_raise(several, options, words):
    with pytest.raises(ConfigError, match=words):
        several.predictions({"price": [1.0]}, **options)


def test_boolean_scores_raise(sold):
    with pytest.raises(ConfigError, match='target "y": the outputs are True and False, not scores'):
        sold.predictions(np.array([True, False]))
    assert sold.predictions([True, False], logits=False)["y_predictions"].tolist() == ["yes", "no"]


def test_several_targets_require_a_mapping_with_equal_rows(several):
    with pytest.raises(ConfigError, match="outputs of 3 targets: price, sort, sold; not a list"):
        several.predictions([1.0])
    with pytest.raises(ConfigError, match=r"different numbers of rows: \{'price': 1, 'sold': 2\}"):
        several.predictions({"price": [1.0], "sold": [1.0, 2.0]})


def test_invalid_ids_and_shapes_of_texts_raise(words):
    with pytest.raises(ColumnError, match="pad rows of ids to one length, with the id of <PAD>"):
        words.predictions([[1, 4, 2], [1, 2]])
    for outputs in (np.array([[1, 4], [6, 2]]), np.array([[1, 4], [-1, 2]])):
        with pytest.raises(RejectedValueError, match="row 1 holds the id (6|-1), but ids are 0 to 5"):
            words.predictions(outputs)
    for outputs in (np.zeros((2, 3)), np.zeros((2, 3, 5)), np.zeros(2, int)):
        with pytest.raises(ColumnError, match=r"\(rows, length\), integers.*\(rows, length, 6\)"):
            words.predictions(outputs)


def test_unsupported_types_raise_only_for_their_own_outputs():
    frame = pd.DataFrame({"x": [1.0, 2.0], "day": ["2020-01-01", "2021-02-03"], "words": ["a b", "a"], "price": [1, 2]})
    features = {
        "x": "number",
        "day": "date",
        "words": "bag",
        "price": "number",
        "both": dp.Text(level="both", column="words"),
    }
    prep = dp.Preprocessor(features, targets=["day", "words", "price", "both"]).fit(frame)
    assert len(prep.predictions({"price": [1.0]})) == 1
    for name, noun in (("day", "a date"), ("words", "a bag")):
        with pytest.raises(ConfigError, match=f'target "{name}": outputs for {noun} cannot be turned into predictions'):
            prep.predictions({name: np.zeros((1, 9)), "price": [1.0]})
    with pytest.raises(ConfigError, match='level "both" has two outputs.*column="words"'):
        prep.predictions({"both": [[1]]})


def test_images_without_num_classes_raise():
    prep = prep_of(dp.Image(height=1, width=1, num_channels=1), [encode_png(np.zeros((1, 1), np.uint8))])
    with pytest.raises(ConfigError, match='target "y": outputs for an image cannot .* unless num_classes'):
        prep.predictions(np.zeros((1, 1, 1, 1)))


def test_predictions_without_targets_raise():
    prep = dp.Preprocessor({"x": "number"}).fit(pd.DataFrame({"x": [1.0, 2.0]}))
    for use in (prep, Encoder(prep.to_dict())):
        with pytest.raises(ConfigError, match="no feature is a target"):
            use.predictions([1.0])


def test_multi_hot_rows_as_wide_as_ids_raise_in_decode():
    prep = prep_of(dp.Set(most_common=1), ["a b c", "a"])
    ids = truth(prep, ["a", "a b c"])
    assert [list(row) for row in prep.decode({"y": ids})["y"]] == [["a"], ["a", "<UNK>", "<UNK>"]]
    hot = truth(prep, ["a", "a b c"], expand=True)
    assert hot.shape == ids.shape
    with pytest.raises(ColumnError, match='column "y": cannot decode multi-hot vectors.*expand=False'):
        prep.decode({"y": hot})


def test_decode_raises_for_a_batch_tuple(sort):
    rows = frame_of(["red", "blue"])
    inputs, targets = next(iter(sort.stream(rows, 2, shuffle=False)))
    assert sort.decode(inputs | {"y": targets})["y"].tolist() == ["red", "blue"]
    with pytest.raises(ConfigError, match="a dict of arrays by output, .* not a tuple; decode the inputs"):
        sort.decode((inputs, targets))
    with pytest.raises(ColumnError, match=r"shape \(rows, 4\), .*; encoded rows are for `decode`"):
        sort.predictions(targets)


def test_predictions_do_not_enlarge_pickles(sort):
    before = pickle.dumps(pickle.loads(pickle.dumps(sort)))
    sort.predictions(np.zeros((1, 4)))
    again = pickle.loads(pickle.dumps(sort))
    assert len(pickle.dumps(again)) == len(before)
    pd.testing.assert_frame_equal(again.predictions(np.eye(4)), sort.predictions(np.eye(4)))


def test_decode_error_for_scores_suggests_predictions(sort):
    with pytest.raises(ColumnError, match="Preprocessor.predictions"):
        sort.decode({"y": np.zeros((2, 4), np.float32)})
