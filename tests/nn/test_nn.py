"""`daskprep.nn`: inputs of every type, heads and losses, compiled and extended."""

from __future__ import annotations

import copy
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError
from daskprep.extensions.media.audio import encode_wav
from daskprep.extensions.media.pixels import encode_png
from daskprep.features import FEATURES
from daskprep.nn import Inputs, Outputs

ROWS = 24
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "price": RNG.lognormal(8, 1, ROWS),
        "day": pd.date_range("2021-03-01", periods=ROWS, freq="17D").astype(str),
        "city": RNG.choice(["Rome", "Oslo", "Bern"], ROWS),
        "words": RNG.choice(["to be or not", "be", "not to", "or or or to", ""], ROWS),
        "pulse": ["1 2 3"] * ROWS,
        "point": ["0.5 1"] * ROWS,
        "cell": ["8928308280fffff", "8928308280bffff"] * (ROWS // 2),
        "sold": RNG.choice(["yes", "no"], ROWS),
        "photo": [encode_png(np.full((4, 6), level, np.uint8)) for level in range(ROWS)],
        "sound": [encode_wav(np.full(400, 0.5), 8000)] * ROWS,
        "row": [f"row {row}" for row in range(ROWS)],
        "gap": [1.0, None, 3.0] * (ROWS // 3),
    }
)
# Every input, named after its type, and its width.
TYPES = {
    "number": (dp.Number(column="price"), 1),
    "bins": (dp.Number(column="price", encoding="bins", bins=4), 3),
    "piecewise": (dp.Number(column="price", encoding="piecewise_linear", bins=4), 4),
    "gap": (dp.Number(missing_indicator=True), 2),
    "binary": (dp.Binary(column="sold"), 1),
    "category": (dp.Category(column="city"), 3),
    "buckets": (dp.Category(column="city", hash_buckets=10), 6),
    "target_encoding": (dp.TargetEncoding(column="city", target="price", target_type="number"), 1),
    "set": (dp.Set(column="words"), 4),
    "set_ids": (dp.Set(column="words", expand_to="ids"), 4),
    "bag": (dp.Bag(column="words"), 4),
    "sequence": (dp.Sequence(column="words"), 4),
    "history": (dp.History(column="city", last=4), 4),
    "left": (dp.Sequence(column="words", padding="left"), 4),
    "text": (dp.Text(column="words", level="both", missing_indicator=True), 10),
    "text_components": (dp.TextComponents(column="row", size=3), 3),
    "vector": (dp.Vector(column="point"), 2),
    "date": (dp.Date(column="day"), 9),
    "cyclic": (dp.Date(column="day", parts=["weekend"], cyclic=["month"]), 3),
    "h3": (dp.H3(column="cell"), 19),
    "timeseries": (dp.Timeseries(column="pulse"), 3),
    "window": (dp.Timeseries(column="price", window_size=2), 4),
    "points": (dp.Timeseries(column="point", window_size=2, vector_size=2), 6),
    "months": (dp.Timeseries(column="day", window_size=3, cyclic=["month"], padding_value=0), 6),
    "image": (dp.Image(column="photo", mode="eager"), 24),
    "audio": (dp.Audio(column="sound", type="raw", audio_file_length_limit_in_s=0.01), 80),
}


class Pair(torch.nn.Module):
    def forward(self, rows):
        return rows, rows


FLAT = {name: torch.nn.Flatten() for name in ("timeseries", "image", "audio")}


def fit(features, frame=FRAME, **options):
    return dp.Preprocessor(features, **options).fit(frame)


def write(tmp_path, features, frame=FRAME, **options):
    return dp.Preprocessor(features, **options).fit_write(frame, tmp_path / "rows.dp")


def batch_of(dataset, **options):
    return next(iter(dataset["train"].loader(ROWS, shuffle=False, **options)))


def test_every_feature_type_is_covered():
    assert {feature.kind for feature, _ in TYPES.values()} == set(FEATURES) - {
        "weight",
        "key",
        "boxes",
        "keypoints",
        "embedding",
    }


@pytest.mark.parametrize("name", TYPES)
def test_inputs_of_each_type_have_the_expected_width_and_gradients(tmp_path, name):
    feature, width = TYPES[name]
    dataset = write(tmp_path, {name: feature})
    inputs = Inputs(dataset, modules={name: FLAT[name]} if name in FLAT else None)

    rows = inputs(batch_of(dataset))

    assert rows.dtype == torch.float32
    assert rows.shape == (ROWS, width)
    assert inputs.width == width
    assert torch.isfinite(rows).all()
    assert not [part for part in inputs.parameters() if part.ndim != 2]
    if list(inputs.parameters()):
        rows.square().sum().backward()
        assert all(weight.grad is not None and weight.grad.any() for weight in inputs.parameters())


@pytest.mark.filterwarnings("ignore:information is lost")
def test_windows_of_vectors_have_a_flag_for_each_step_and_losses_as_a_target(tmp_path):
    vectors = {"column": "point", "vector_size": 2}
    features = {"past": dp.Timeseries(window_size=2, **vectors), "next": dp.Timeseries(horizon=2, **vectors)}
    prep = dp.Preprocessor(features, targets="next", split=None)
    dataset = prep.fit_write(FRAME, tmp_path / "rows.dp")
    batch, truth = batch_of(dataset)
    rows = Inputs(dataset)(batch)
    assert rows[:2].tolist() == [[0, 0, 0.5, 1, 1, 0], [0.5, 1, 0.5, 1, 0, 0]]
    outputs = Outputs(dataset, rows.shape[1])
    scores = outputs(rows)["next"]
    assert scores.shape == (ROWS - 2, 4)
    expected = (scores - truth.reshape(-1, 4)).square().mean()
    torch.testing.assert_close(outputs.loss(rows, truth), expected)
    assert np.shape(prep.predictions(scores)["next_predictions"].tolist()) == (ROWS - 2, 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("trim", [False, True])
def test_compiled_inputs_and_losses_equal_eager_ones(tmp_path, trim):
    features = {name: feature for name, (feature, _) in TYPES.items()}
    features |= {"amount": dp.Number(column="price", normalization=None), "kind": dp.Category(column="city")}
    features |= {"quick": dp.Binary(column="sold"), "tags": dp.Set(column="words")}
    targets = ("amount", "kind", "quick", "tags")
    dataset = write(tmp_path, features, targets=targets)
    batch, truth = batch_of(dataset, trim=trim)
    torch.manual_seed(0)
    inputs = Inputs(dataset, modules=FLAT)
    outputs = Outputs(dataset, inputs.width, class_weights=True)

    def run(batch, truth):
        hidden = inputs(batch)
        return outputs.loss(hidden, truth), outputs(hidden)

    loss, predicted = run(batch, truth)
    compiled_loss, compiled = torch.compile(run, fullgraph=True, backend="aot_eager")(batch, truth)
    torch.testing.assert_close(compiled_loss, loss)
    torch.testing.assert_close(compiled, predicted)
    compiled_loss.backward()
    gradients = [weight.grad.clone() for weight in inputs.parameters()]
    inputs.zero_grad()
    loss.backward()
    torch.testing.assert_close(gradients, [weight.grad for weight in inputs.parameters()])


@pytest.mark.parametrize("padding", ["left", "right"])
def test_token_mean_excludes_padding_with_and_without_lengths(tmp_path, padding):
    dataset = write(tmp_path, {"words": dp.Sequence(padding=padding)})
    inputs = Inputs(dataset)
    weight, rows = inputs.encoders[0].weight, inputs(batch_of(dataset))

    ids = [dataset.vocabulary("words").ids(pa.array(text.split(), pa.string())) for text in FRAME["words"]]
    expected = torch.stack([weight[row.astype(int)].mean(0) if len(row) else 0 * weight[0] for row in ids])
    torch.testing.assert_close(rows, expected)
    torch.testing.assert_close(inputs(batch_of(dataset, trim=True)), expected)
    batch = batch_of(dataset, trim=True)
    batch["words"] = torch.where(batch["words"] == 0, 1, batch["words"])  # only lengths mark the padding
    torch.testing.assert_close(inputs(batch), expected)


def test_column_named_like_lengths_is_a_column(tmp_path):
    features = {"words": "sequence", "words_length": dp.Number(column="price")}
    dataset = write(tmp_path, features)
    batch = batch_of(dataset)
    inputs = Inputs(dataset)
    alone = Inputs(dataset, columns=["words"])
    alone.encoders[0].load_state_dict(inputs.encoders[0].state_dict())
    torch.testing.assert_close(inputs(batch)[:, :-1], alone(batch))


def test_three_forms_of_a_set_have_the_same_mean(tmp_path):
    frame = FRAME[["words"]].replace("or or or to", "or to")
    dataset = write(tmp_path, {name: TYPES[name][0] for name in ("set", "set_ids", "bag")}, frame)
    inputs = Inputs(dataset)
    for encoder in inputs.encoders:
        encoder.load_state_dict(inputs.encoders[0].state_dict())
    one, other, bag = inputs(batch_of(dataset)).split(4, 1)
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(one, bag)


def test_date_and_h3_inputs_are_between_0_and_1(tmp_path):
    dataset = write(tmp_path, {name: TYPES[name][0] for name in ("date", "h3")})
    rows = Inputs(dataset)(batch_of(dataset))
    assert 0 <= rows.min() <= rows.max() <= 1
    assert rows[:, 0].unique().tolist() == [0, 1]  # 2021 and 2022


def test_embedding_dim_follows_the_rule_or_the_parameter():
    frame = pd.DataFrame({"a": range(2_000), "b": [1, 2] * 1_000})
    prep = fit({"a": "category", "b": "category"}, frame)
    assert Inputs(prep).width == 64 + 3
    assert Inputs(prep, embedding_dim=5).width == 10
    assert Inputs(prep, embedding_dim={"a": 2}).width == 2 + 3


@pytest.mark.parametrize("name", ["category", "sequence", "bag"])
def test_unknown_embedding_is_initialized_with_zeros(name):
    prep = fit({name: TYPES[name][0]})
    unknown = prep.learned_[name].vocabulary.specials.unknown_id
    assert (Inputs(prep).encoders[0].weight == 0).all(1).nonzero()[:, 0].tolist() == [unknown]


def test_inputs_follow_the_module_dtype(tmp_path):
    dataset = write(tmp_path, {name: TYPES[name][0] for name in ("number", "category", "sequence", "bag", "date")})
    inputs = Inputs(dataset)
    expected = inputs(batch_of(dataset))
    rows = inputs.to(torch.bfloat16)(batch_of(dataset))
    assert rows.dtype == torch.bfloat16
    torch.testing.assert_close(rows.float(), expected, atol=0.05, rtol=0.05)


@pytest.mark.parametrize(
    ("features", "options", "message"),
    [
        ({"photo": dp.Image(mode="eager")}, {}, 'modules={"photo": torch.nn.Sequential(...)}'),
        ({"pulse": "timeseries"}, {}, 'modules={"pulse": torch.nn.Flatten()}'),
        ({"gap": dp.Number(missing_value_strategy="keep")}, {}, '"gap" keeps missing values as NaN'),
        ({"city": "category"}, {"columns": ["cty"]}, 'columns: there is no "cty". Did you mean "city"?'),
        ({"city": "category"}, {"embedding_dim": {"cty": 3}}, 'embedding_dim: there is no "cty".'),
        ({"city": "category"}, {"embedding_dim": {"city": 0}}, "embedding_dim=0: expected an integer from 1"),
        ({"city": "category"}, {"modules": {"cty": torch.nn.Flatten()}}, 'modules: there is no "cty".'),
        ({"city": "category"}, {"targets": "city"}, "no inputs are left"),
        ({"city": "category"}, {"modules": {"city": Pair()}}, 'modules["city"]'),
    ],
)
def test_inputs_errors_name_the_column_and_a_remedy(features, options, message):
    with pytest.raises(ConfigError) as caught:
        Inputs(fit(features), **options)
    assert message in str(caught.value)


def test_invalid_sources_and_batches_raise(tmp_path):
    with pytest.raises(ConfigError, match="a fitted Preprocessor or a dataset, not a dict"):
        Inputs({"city": "category"})
    dataset = write(tmp_path, {"city": "category", "sold": "binary"}, targets="sold")
    inputs, outputs = Inputs(dataset), Outputs(dataset, 3)
    with pytest.raises(ColumnError, match='has no "city", only price'):
        inputs({"price": torch.zeros(1)})
    with pytest.raises(ConfigError, match="pass the inputs alone"):
        inputs(batch_of(dataset))
    with pytest.raises(ColumnError, match='has no "sold"'):
        outputs.loss(inputs(batch_of(dataset)[0]), {})


@pytest.mark.parametrize("name", ["city", "buckets", "words", "bag"])
def test_extend_keeps_embeddings_of_tokens(tmp_path, name):
    feature = {
        "city": dp.Category(), "buckets": dp.Category(column="city", oov_buckets=2), "words": dp.Sequence(),
        "bag": dp.Bag(column="words"),
    }[name]  # fmt: skip
    before = fit({name: feature, "price": "number"})
    # The new tokens are the most frequent, so that old tokens get other ids.
    new = pd.DataFrame({"city": ["Lima", "Kiel"] * 40, "words": ["that is"] * 80, "price": 1.0})
    after = fit({name: feature, "price": "number"}, pd.concat([FRAME[list(new)], new], ignore_index=True))
    inputs = Inputs(before)
    optimizer = torch.optim.Adam(inputs.parameters())
    encode = {one: prep.features_[name].expand for one, prep in (("old", before), ("new", after))}

    def batch(prep, which):
        arrays = prep.encode(FRAME)
        tensor = encode[which](torch.from_numpy(arrays[name].astype(np.int64)), prep.learned_[name])
        return {name: tensor, "price": torch.zeros(ROWS)}

    inputs(batch(before, "old")).square().sum().backward()
    optimizer.step()
    expected = inputs(batch(before, "old")).detach()
    [parameter] = inputs.parameters()
    rows = len(parameter)

    inputs.extend(after, optimizer)

    assert [parameter] == list(inputs.parameters())
    assert len(parameter) == rows + 2 == inputs.encoders[0].num_embeddings
    torch.testing.assert_close(inputs(batch(after, "new")), expected)
    averages = optimizer.state[parameter]["exp_avg"]
    assert averages.shape == parameter.shape
    inputs(batch(after, "new")).square().sum().backward()
    optimizer.step()
    compiled = torch.compile(inputs, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(batch(after, "new")), inputs(batch(after, "new")))


def test_extend_appends_embeddings_of_a_grown_preprocessor():
    prep = fit({"city": "category", "words": "sequence"})
    inputs = Inputs(prep)
    before = [weight.detach().clone() for weight in inputs.parameters()]
    prep.grow(pd.DataFrame({"city": ["Lima", "Rome"], "words": ["that is", "to"]}))
    inputs.extend(prep)
    for old, weight, added in zip(before, inputs.parameters(), (1, 2), strict=True):
        assert len(weight) == len(old) + added
        assert torch.equal(weight[: len(old)], old)


@pytest.mark.parametrize("name", ["city", "words"])
def test_extend_keeps_weights_of_classes(name):
    feature = {"city": dp.Category(), "words": dp.Set()}[name]

    def fit_targets(frame):
        return dp.Preprocessor({name: feature, "price": "number"}, targets=[name, "price"]).fit(frame)

    before = fit_targets(FRAME)
    new = pd.DataFrame({"city": ["Lima", "Kiel"] * 40, "words": ["that is"] * 80, "price": 1e6})
    after = fit_targets(pd.concat([FRAME[list(new)], new], ignore_index=True))
    outputs = Outputs(before, 3, class_weights=True)
    optimizer = torch.optim.Adam(outputs.parameters())
    hidden = torch.randn(ROWS, 3)

    def loss(prep):
        arrays = prep.encode(FRAME)
        target = prep.features_[name].expand(torch.from_numpy(arrays[name].astype(np.int64)), prep.learned_[name])
        return outputs.loss(hidden, {name: target, "price": torch.from_numpy(arrays["price"])})

    loss(before).backward()
    optimizer.step()
    expected, parameters = outputs(hidden)[name].detach(), list(outputs.parameters())
    old_ids, new_ids = (
        prep.learned_[name].vocabulary.find_ids(before.learned_[name].vocabulary.tokens) for prep in (before, after)
    )

    outputs.extend(after, optimizer)

    assert all(one is other for one, other in zip(parameters, outputs.parameters(), strict=True))
    scores = outputs(hidden)[name]
    assert scores.shape[1] == len(after.learned_[name].vocabulary) > expected.shape[1]
    assert not np.array_equal(old_ids, new_ids)
    torch.testing.assert_close(scores[:, new_ids], expected[:, old_ids])
    assert outputs.heads[1].center == Outputs(after, 3).heads[1].center
    assert all(optimizer.state[one]["exp_avg"].shape == one.shape for one in parameters)
    loss(after).backward()
    optimizer.step()
    assert len(after.predictions(outputs(hidden))) == ROWS


def test_extend_outputs_raises_for_incompatible_targets():
    def fit_target(feature):
        return dp.Preprocessor({"x": feature, "city": "category"}, targets="x").fit(FRAME)

    outputs = Outputs(fit_target(TYPES["bins"][0]), 3)
    with pytest.raises(ConfigError, match='"x" has other bins or buckets'):
        outputs.extend(fit_target(dp.Number(column="price", encoding="bins", bins=3)))
    with pytest.raises(ConfigError, match='target "x" has another type or width'):
        outputs.extend(fit_target(dp.Number(column="price")))
    with pytest.raises(ConfigError, match='there is no "x"'):
        outputs.extend(dp.Preprocessor({"city": "category"}, targets="city").fit(FRAME))


def test_extend_inputs_raises_for_incompatible_features():
    inputs = Inputs(fit({"x": TYPES["bins"][0]}))
    with pytest.raises(ConfigError, match='"x" has other bins or buckets'):
        inputs.extend(fit({"x": dp.Number(column="price", encoding="bins", bins=3)}))
    with pytest.raises(ConfigError, match='"x" has another type or width'):
        inputs.extend(fit({"x": dp.Number(column="price")}))
    with pytest.raises(ConfigError, match='there is no "x"'):
        inputs.extend(fit({"y": dp.Number(column="price")}))


TARGETS = {
    "price": dp.Number(normalization=None), "scaled": dp.Number(column="price"),
    "logs": dp.Number(column="price", normalization="log1p"),
    "bins": dp.Number(column="price", encoding="bins", bins=4),
    "city": dp.Category(), "sold": dp.Binary(), "tags": dp.Set(column="words"),
    "ids": dp.Set(column="words", expand_to="ids"), "point": dp.Vector(),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_training_converges_to_correct_predictions(tmp_path, name):
    torch.manual_seed(0)
    dataset = write(tmp_path, {"row": "category", name: TARGETS[name]}, targets=name)
    prep = dp.Preprocessor.from_dataset(dataset)
    batch, truth = batch_of(dataset)
    inputs = Inputs(dataset, embedding_dim=32)
    outputs = Outputs(prep, inputs.width)
    optimizer = torch.optim.Adam([*inputs.parameters(), *outputs.parameters()], 0.05)
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        loss = outputs.loss(inputs(batch), truth)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    assert losses[0] < 5
    assert losses[-1] < 0.02
    found = prep.predictions(outputs(inputs(batch)))[f"{name}_predictions"]
    expected = dataset["train"].head(ROWS)[name]
    if name in ("tags", "ids"):
        assert [set(row) for row in found] == [set(row) for row in expected]
    elif name == "point":
        np.testing.assert_allclose(np.stack(found), np.stack(expected), atol=0.1)
    elif isinstance(TARGETS[name], dp.Number):
        np.testing.assert_allclose(found, expected, rtol=0.1)
    else:
        assert found.tolist() == expected.tolist()


def test_losses_equal_torch_with_row_weights(tmp_path):
    features = {name: TARGETS[name] for name in ("price", "city", "sold")} | {"gap": "number"}
    dataset = write(tmp_path, features, targets=["price", "city", "sold"])
    _, truth = batch_of(dataset)
    outputs = Outputs(dataset, 5)
    hidden = torch.randn(ROWS, 5)
    predicted, functional = outputs(hidden), torch.nn.functional
    deviation = FRAME["price"].std()
    losses = outputs.losses(hidden, truth)

    expected = ((predicted["price"] - truth["price"]) / deviation).square().mean()
    torch.testing.assert_close(losses["price"], expected, check_dtype=False)
    torch.testing.assert_close(losses["city"], functional.cross_entropy(predicted["city"], truth["city"]))
    binary = functional.binary_cross_entropy_with_logits
    torch.testing.assert_close(losses["sold"], binary(predicted["sold"], truth["sold"].float()))
    torch.testing.assert_close(outputs.loss(hidden, truth), sum(losses.values()))

    first = {name: column[:8] for name, column in truth.items()}
    weights = (torch.arange(ROWS) < 8).float()
    torch.testing.assert_close(outputs.loss(hidden, truth, weights), outputs.loss(hidden[:8], first))


def test_loss_of_predictions_instead_of_the_hidden_layer_raises():
    prep = dp.Preprocessor({"x": "number", "y": "number"}, targets="y").fit(pd.DataFrame({"x": [1, 2], "y": [3, 4]}))
    outputs = Outputs(prep, 1)
    with pytest.raises(ConfigError, match=r"outputs\.loss\(hidden\(inputs\), targets\)"):
        outputs.loss(outputs(torch.zeros(2, 1)), torch.zeros(2))


def test_class_weights_balance_the_losses_of_classes(tmp_path):
    dataset = write(tmp_path, {"city": "category", "sold": "binary", "price": "number"}, targets=["city", "sold"])
    _, truth = batch_of(dataset)
    hidden = torch.randn(ROWS, 5)
    for source in (dataset, dp.Preprocessor.from_dataset(dataset)):
        outputs = Outputs(source, 5, class_weights=True)
        plain = copy.deepcopy(outputs)
        for head in plain.heads:
            head.class_weights = None
        by_class = [dataset.class_weights(name)[truth[name].long()] for name in ("city", "sold")]
        for name, weights in zip(("city", "sold"), by_class, strict=True):
            expected = plain.losses(hidden, truth, torch.from_numpy(weights))[name]
            torch.testing.assert_close(outputs.losses(hidden, truth)[name], expected)


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (dp.Text(column="words"), "no head for a text:"),
        (dp.Date(column="day"), "no head for a date:"),
        (dp.Number(column="price", encoding="piecewise_linear"), 'with encoding="piecewise_linear"'),
        (dp.Number(column="gap", missing_value_strategy="keep"), 'with missing_value_strategy="keep"'),
    ],
)
def test_unsupported_targets_raise(feature, message):
    prep = fit({"y": feature, "city": "category"})
    with pytest.raises(ConfigError, match='target "y"') as caught:
        Outputs(prep, 4, targets=["y", "city"])
    assert message in str(caught.value)
    with pytest.raises(ConfigError, match="no feature is a target"):
        Outputs(prep, 4)


def test_hidden_layer_of_wrong_width_raises():
    frame = pd.DataFrame({"x": [1.0, 2.0], "y": [1.0, 3.0]})
    outputs = Outputs(dp.Preprocessor({"x": "number", "y": "number"}, targets="y").fit(frame), in_features=4)
    for call in (outputs, lambda hidden: outputs.loss(hidden, torch.zeros(2))):
        with pytest.raises(ConfigError, match=r"has the shape \(2, 5\), not \(rows, in_features=4\)"):
            call(torch.zeros(2, 5))


def test_predict_runs_a_model_of_inputs_and_outputs():
    prep = fit({"price": "number", "city": "category", "sold": "binary"}, targets="sold")
    inputs = Inputs(prep)
    model = torch.nn.Sequential(inputs, Outputs(prep, inputs.width))
    found = prep.predict(FRAME, model)
    assert list(found) == ["sold_predictions", "sold_probability_yes"]
    assert len(found) == ROWS


def test_importing_daskprep_does_not_import_torch_or_nn():
    code = (
        "import sys, daskprep; daskprep.Preprocessor; sys.exit('torch' in sys.modules or 'daskprep.nn' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
