"""Predictions of frames: the same for any source, in order, one per row."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import torch

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError, MediaError, RejectedValueError
from daskprep.extensions.media.pixels import encode_png

ROWS = 90


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "price": rng.lognormal(size=ROWS).round(3),
            "city": rng.choice(["Rome", "Oslo", "Lima"], ROWS),
            "review": rng.choice(["Nice one!", "bad", "so so"], ROWS),
            "tags": rng.choice(["a b", "b", "c"], ROWS),
            "sold": rng.choice(["yes", "no"], ROWS),
            "days": rng.integers(1, 60, ROWS),
            "group": rng.choice(["g", "h"], ROWS),
            "number": np.arange(ROWS) + 1_000,
        }
    )
    frame.loc[frame.index[::7], ["price", "city"]] = None
    return frame


@pytest.fixture(scope="module")
def prep(table) -> dp.Preprocessor:
    features = {
        "price": dp.Number(missing_value_strategy="ffill"),
        "city": dp.Category(missing_value_strategy="bfill"),
        "review": dp.Text(max_sequence_length=4),
        "tags": "set",
        "window": dp.Timeseries(column="price", window_size=5, group_by="group", padding_value=0),
        "sold": "binary",
        "days": "number",
    }
    return dp.Preprocessor(features, targets=["sold", "days"]).fit(table)


class Net(torch.nn.Module):
    """Uses all inputs; drops half of them in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = torch.nn.Dropout()
        self.frozen = torch.nn.BatchNorm1d(1).eval()
        self.last = torch.nn.LazyLinear(2)
        self.batches: list[dict[str, torch.Tensor]] = []

    def forward(self, batch: dict[str, torch.Tensor]) -> Any:
        self.batches.append(batch)
        parts = [rows.float().reshape(len(rows), -1) for rows in batch.values()]
        out = self.last(self.drop(torch.cat(parts, 1)))
        return {"sold": out[:, 0], "days": self.frozen(out[:, 1:])}


@pytest.fixture
def net(table, prep) -> Net:
    torch.manual_seed(0)
    model = Net()
    with torch.no_grad():
        model(next(iter(prep.stream(table, 8, shuffle=False)))[0])
    model.batches.clear()
    model.train()
    model.frozen.eval()
    return model


@pytest.fixture
def expected(table, prep, net) -> pd.DataFrame:
    """Return the predictions of a loop over batches of a stream."""
    net.eval()
    with torch.no_grad():
        found = prep.predictions(net(inputs) for inputs, _ in prep.stream(table, 16, shuffle=False))
    net.train()
    net.frozen.eval()
    net.batches.clear()
    return found


def check_same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    # Matrix products of other shapes round differently.
    pd.testing.assert_frame_equal(found.reset_index(drop=True), expected, check_exact=False, rtol=1e-4)


def test_predictions_of_frames_equal_predictions_of_a_stream(as_frame, table, prep, net, expected):
    frame = as_frame(table.set_index(2 * table["number"].to_numpy()))
    for batch_size in (7, 1024):
        found = prep.predict(frame, net, batch_size=batch_size)
        if isinstance(frame, dd.DataFrame):
            assert isinstance(found, dd.DataFrame)
            assert (found.npartitions, found.divisions) == (frame.npartitions, frame.divisions)
            meta, found = found._meta, found.compute()
            assert meta.dtypes.to_dict() == found.dtypes.to_dict()
        assert found.index.tolist() == (2 * table["number"]).tolist()
        check_same(found, expected)


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_files_are_predicted_lazily_per_partition(tmp_path, table, prep, net, expected, suffix):
    path = tmp_path / f"rows.{suffix}"
    if suffix == "parquet":
        table.to_parquet(path, row_group_size=20)
    elif suffix == "csv":
        table.to_csv(path, index=False)
    else:
        table.to_json(path, orient="records", lines=True)
    source = dp.read_files(path, partition_bytes=2_000)
    found = prep.predict(source, net, batch_size=8, ids=["number", "group"])
    assert len(net.batches) == 1  # for the columns
    assert found.npartitions == source.npartitions > 1
    whole = found.compute()
    assert whole.dtypes.to_dict() == found._meta.dtypes.to_dict()
    assert whole["number"].astype(int).tolist() == table["number"].tolist()
    assert whole["group"].tolist() == table["group"].tolist()
    check_same(whole.drop(columns=["number", "group"]), expected)
    check_same(prep.predict(str(path), net).compute(), expected)


def test_id_columns_come_first_unchanged(as_frame, table, prep, net):
    frame = table.astype({"group": "category"})
    frame["time"] = pd.Timestamp("2020-01-01", tz="Europe/Rome") + pd.to_timedelta(frame["number"], unit="h")
    found = prep.predict(as_frame(frame), net, ids=["time", "group", "city"])
    found = found.compute() if isinstance(found, dd.DataFrame) else found
    assert found.columns.tolist()[:4] == ["time", "group", "city", "sold_predictions"]
    for name in ("time", "group", "city"):
        assert found[name].tolist()[1:6] == frame[name].tolist()[1:6]
    assert found["time"].dtype == frame["time"].dtype
    assert prep.predict(frame, net, ids="number")["number"].tolist() == frame["number"].tolist()


def test_file_ids_with_missing_cells_stay_exact(tmp_path, table, prep, net):
    large = 2**60 + 1
    numbers = pd.array([large, None] * (ROWS // 2), "Int64")
    table.assign(number=numbers).to_parquet(tmp_path / "rows.parquet", row_group_size=10)
    found = prep.predict(dp.read_files(tmp_path / "rows.parquet", partition_bytes=2_000), net, ids="number").compute()
    assert found["number"].dropna().tolist() == [large] * (ROWS // 2)


def test_hugging_face_datasets_are_predicted(tmp_path, table, prep, net, expected):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_pandas(table).save_to_disk(tmp_path / "rows")
    for rows in (datasets.Dataset.from_pandas(table), datasets.load_from_disk(tmp_path / "rows")):
        found = prep.predict(rows, net, ids="number")
        found = found.compute() if isinstance(found, dd.DataFrame) else found
        assert found.pop("number").tolist() == table["number"].tolist()
        check_same(found, expected)


def test_dask_frame_predictions_equal_pandas(table, prep, net, expected):
    found = prep.predict(dd.from_pandas(table, npartitions=3), net, ids="number").compute()
    assert found.pop("number").tolist() == table["number"].tolist()
    check_same(found, expected)


def test_frame_without_rows_has_the_prediction_columns(as_frame, table, prep, net):
    none = prep.predict(as_frame(table.iloc[:0]), net, ids="group", probabilities=True)
    none = none.compute() if isinstance(none, dd.DataFrame) else none
    some = prep.predict(table, net, ids="group", probabilities=True)
    assert len(none) == 0
    assert none.columns.tolist() == some.columns.tolist()
    assert none.drop(columns="group").dtypes.to_dict() == some.drop(columns="group").dtypes.to_dict()


def test_predict_accepts_the_options_of_predictions(table, prep, net):
    found = prep.predict(table, net, threshold={"sold": 0}, probabilities=True)
    assert (found["sold_predictions"] == "yes").all()
    np.testing.assert_allclose(found["sold_probability_yes"] + found["sold_probability_no"], 1)
    sure = prep.predict(table, lambda batch: {"sold": torch.ones(len(batch["price"]))}, logits=False)
    assert (sure["sold_probability_yes"] == 1).all()


# -- the model


def test_model_batches_equal_stream_batches(table, prep, net):
    prep.predict(table, net, batch_size=32)
    batches = [inputs for inputs, _ in prep.stream(table, 32, shuffle=False)]
    assert len(net.batches) == len(batches) == 3
    for batch, other in zip(net.batches, batches, strict=True):
        assert batch.keys() == other.keys()
        for name, rows in batch.items():
            assert rows.dtype == other[name].dtype
            torch.testing.assert_close(rows, other[name])


def test_modules_run_in_eval_mode_and_modes_are_restored(table, prep, net):
    seen = []

    def look(module: torch.nn.Module, _: Any) -> None:
        seen.append((module.training, torch.is_grad_enabled()))

    net.drop.register_forward_pre_hook(look)
    modes = {name: module.training for name, module in net.named_modules()}
    assert set(modes.values()) == {True, False}
    prep.predict(table, net)
    prep.predict(dd.from_pandas(table, npartitions=3), net).compute()
    assert set(seen) == {(False, False)}
    assert {name: module.training for name, module in net.named_modules()} == modes
    with pytest.raises(RuntimeError, match="broken"):
        prep.predict(table, Broken())
    assert Broken.last.training


class Keeping(torch.nn.Module):
    """Keeps a table, such as of positions, created with the first rows."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Linear(1, 1)
        self.table: torch.Tensor | None = None

    def forward(self, batch: dict[str, torch.Tensor]) -> Any:
        if self.table is None:
            self.table = torch.full((1, 1), 2.0)
        return {"days": self.last(batch["price"][:, None]) * self.table}


def test_model_can_be_trained_with_tensors_kept_from_predict(table, prep):
    model = Keeping()
    prep.predict(table, model)
    model({"price": torch.ones(3)})["days"].sum().backward()
    assert model.last.weight.grad is not None


class Plain(torch.nn.Module):
    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"days": batch["price"] * 2}


def test_frozen_and_exported_modules_run(table, prep):
    batch, _ = next(iter(prep.stream(table, ROWS, shuffle=False)))
    exported = torch.export.export(Plain().eval(), (batch,)).module()
    with pytest.raises(NotImplementedError):
        exported.eval()
    expected = prep.predict(table, Plain())
    pd.testing.assert_frame_equal(prep.predict(table, exported), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        frozen = torch.jit.freeze(torch.jit.script(Plain().eval()))
    pd.testing.assert_frame_equal(prep.predict(table, frozen), expected)


class Broken(torch.nn.Module):
    last: Any = None

    def forward(self, batch: Any) -> Any:
        Broken.last = self
        raise RuntimeError("broken")


def test_model_runs_on_one_thread_at_a_time(table, prep):
    inside = threading.Semaphore(1)

    def model(batch: dict[str, torch.Tensor]) -> Any:
        assert inside.acquire(blocking=False)
        try:
            return {"days": torch.cat([batch["price"]] * 50).reshape(50, -1).T.sum(1)}
        finally:
            inside.release()

    with dask.config.set(scheduler="threads", num_workers=4):
        assert len(prep.predict(dd.from_pandas(table, npartitions=20), model).compute()) == ROWS


@pytest.mark.parametrize("buffers", [False, True])
def test_batches_are_moved_to_the_model_or_requested_device(table, prep, buffers):
    seen = set()

    class Far(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            if buffers:
                self.register_buffer("mean", torch.zeros(1, device="meta"))
            else:
                self.weight = torch.nn.Parameter(torch.zeros(1, device="meta"))

        def forward(self, batch: dict[str, torch.Tensor]) -> Any:
            seen.update(rows.device.type for rows in batch.values())
            return {"days": torch.zeros(len(batch["price"]))}

    prep.predict(table, Far())
    assert seen == {"meta"}
    prep.predict(table, Far(), device="cpu")
    assert seen == {"meta", "cpu"}
    prep.predict(table, lambda batch: {"days": torch.zeros(len(batch["price"]))})


def test_single_target_accepts_plain_outputs_and_arrays(table):
    prep = dp.Preprocessor({"number": dp.Number(normalization=None), "days": "number"}, targets="days").fit(table)
    learned = prep.learned_["days"]
    for wrap in (lambda rows: rows[:, None], torch.Tensor.numpy, torch.Tensor.tolist, lambda rows: {"days": rows}):
        found = prep.predict(table, lambda batch, wrap=wrap: wrap((batch["number"] - learned.mean) / learned.std))
        np.testing.assert_allclose(found["days_predictions"], table["number"], rtol=1e-6)


def test_models_that_cannot_be_hashed_are_accepted(table, prep):
    lock = threading.Lock()  # which cannot be pickled, and so not be hashed

    def model(batch: dict[str, torch.Tensor]) -> Any:
        with lock:
            return {"days": batch["price"]}

    first, second = (prep.predict(dd.from_pandas(table, npartitions=2), model) for _ in range(2))
    assert len(first.compute()) == len(second.compute()) == ROWS


# -- images


def test_images_are_decoded_batch_by_batch(tmp_path, monkeypatch):
    levels = np.arange(0, 200, 10, np.uint8)
    names = []
    for level in levels:
        names.append(str(tmp_path / f"{level}.png"))
        (tmp_path / f"{level}.png").write_bytes(encode_png(np.full((2, 2), level, np.uint8)))
    frame = pd.DataFrame({"photo": [*names, None], "level": [*levels.tolist(), 190]})
    image = dp.Image(height=2, width=2, num_channels=1, missing_value_strategy="ffill")
    number = dp.Number(normalization=None)
    prep = dp.Preprocessor({"photo": image, "level": number}, targets="level").fit(frame)
    rows = []

    def model(batch: dict[str, torch.Tensor]) -> Any:
        rows.append(len(batch["photo"]))
        return 255 * batch["photo"].mean(dim=(1, 2, 3))

    monkeypatch.setattr(type(image), "encode", None)
    found = prep.predict(frame, model, batch_size=8)
    np.testing.assert_allclose(found["level_predictions"], frame["level"], rtol=1e-5)
    assert rows == [8, 8, 5]
    (tmp_path / "100.png").write_bytes(b"no image")
    with pytest.raises(MediaError, match='column "photo", row 10: .*100.png'):
        prep.predict(frame, model, batch_size=8)
    filling = prep.set_params(photo__on_error="drop")
    for on_error in ("drop", "fill"):
        filling.features_["photo"].on_error = on_error
        with pytest.warns(
            UserWarning, match='"photo": image files that cannot be decoded are replaced by a fill value'
        ):
            assert len(filling.predict(frame, model, batch_size=8)) == len(frame)


# -- errors


def test_invalid_arguments_raise(table, prep, net):
    for options, words in (
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, not 0"),
        ({"batch_size": True}, "batch_size must be"),
        ({"device": "nowhere"}, "device='nowhere' is not a torch device"),
        ({"threshold": 2}, "threshold must be a probability"),
        ({"ids": "sold_predictions"}, "two columns would be named"),
    ):
        with pytest.raises(ConfigError, match=words):
            prep.predict(table.assign(sold_predictions=1), net, **options)
    with pytest.raises(ConfigError, match="model cannot be a str: pass the model itself: load the file first"):
        prep.predict(table, "net.pt")
    with pytest.raises(ColumnError, match='column "nummer" is not in the data. Did you mean "number"'):
        prep.predict(table, net, ids="nummer")
    with pytest.raises(ColumnError, match='"price"'):
        prep.predict(table.drop(columns="price"), net)
    with pytest.raises(AttributeError, match="predict") as caught:
        dp.Preprocessor({"price": "number"}).fit(table).predict(table, net)
    assert "targets=" in str(caught.value)
    with pytest.raises(ConfigError, match="there is nothing to predict from"):
        dp.Preprocessor({"days": "number"}, targets="days").fit(table).predict(table, net)


def test_invalid_model_outputs_raise(table, prep):
    with pytest.raises(
        ConfigError, match='the model returned 3 rows for "days_predictions" of a batch of 90: return one per row'
    ):
        prep.predict(table, lambda _: {"days": torch.zeros(3)})
    with pytest.raises(RejectedValueError, match='target "sold": the outputs of row 0 hold nan'):
        prep.predict(table, lambda batch: {"sold": torch.full((len(batch["price"]),), torch.nan)})
    with pytest.raises(ConfigError, match="outputs of . targets: .*; not a tuple"):
        prep.predict(table, lambda batch: (batch["price"], batch["price"]))
    with pytest.raises(ConfigError, match='no target is named "sale"'):
        prep.predict(dd.from_pandas(table, npartitions=2), lambda _: {"sale": torch.zeros(1)})


def test_predictions_and_import_do_not_import_torch():
    code = (
        "import sys, daskprep as dp, pandas as pd\n"
        "prep = dp.Preprocessor({'x': 'number', 'y': 'binary'}, targets='y')\n"
        "prep.fit(pd.DataFrame({'x': [1, 2], 'y': [True, False]})).predictions([1.0])\n"
        "assert 'torch' not in sys.modules and 'dask.dataframe' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- last, since the cluster runs until the end


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore:Sending large graph")
def test_cluster_predictions_equal_local(cluster, table, prep, net, expected):
    del cluster
    found = prep.predict(dd.from_pandas(table, npartitions=4), net, ids="number").compute()
    assert found.pop("number").tolist() == table["number"].tolist()
    check_same(found, expected)


@pytest.mark.timeout(120)
def test_nested_predict_does_not_deadlock():
    frame = pd.DataFrame({"size": np.arange(12.0), "price": np.arange(12.0)})
    prep = dp.Preprocessor({"size": "number", "price": dp.Number(normalization=None)}, targets="price").fit(frame)
    parts = dd.from_pandas(frame, npartitions=3)

    def mean_of_others(batch):
        others = prep.predict(parts, lambda inner: inner["size"]).compute(scheduler="threads")
        return batch["size"] * 0 + float(others["price_predictions"].mean())

    found = prep.predict(parts, mean_of_others).compute(scheduler="threads")
    assert len(found) == 12
    assert np.allclose(found["price_predictions"], 0, atol=1e-6)
