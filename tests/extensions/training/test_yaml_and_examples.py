"""DataModules from YAML, prediction on examples, and example processors."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest
import torch

import daskprep as dp
from daskprep.errors import ConfigError

STEPS = """
import daskprep as dp

def scaled(batch, by=2):
    return batch | {"price": batch["price"] * by}

def doubled(example):
    return {"price": example["price"] * 2, "twice": [example["price"], example["price"]]}

def dearer(rows, by=1):
    return rows.assign(price=rows["price"] + by)

def found(path):
    return path

def pairs(batches):
    for batch in batches:
        yield batch
"""


@pytest.fixture
def steps(tmp_path, monkeypatch):
    (tmp_path / "yaml_steps.py").write_text(STEPS)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("yaml_steps", None)
    return "yaml_steps."


def test_data_module_from_yaml(path, steps, tmp_path):
    (tmp_path / "data.yaml").write_text(f"""
train:
  lm:
    data: {path}
    batch_size: 4
    seed: 3
    group_processors:
      - packing: {{block_size: 16, columns: steps}}
val:
  all:
    data: {{dataset: ["{path}", "{path}"]}}
    batch_size: 10
    processors: {{function: yaml_steps.scaled, by: 3}}
  found:
    data: {{function: yaml_steps.found, path: "{path}"}}
    processors: yaml_steps.scaled
predict:
  prompts:
    data: [one, two, three]
    batch_size: 2
""")
    data = dp.DataModule.from_config(tmp_path / "data.yaml", allowed=steps)
    data.prepare_data()
    for stage in ("fit", "predict"):
        data.setup(stage)
    assert next(iter(data.train_dataloader()))["steps"].shape == (4, 16)
    every, found = (torch.cat([batch["price"] for batch in loader]) for loader in data.val_dataloader())
    assert len(every) == 40
    assert torch.equal(every[:20], found * 1.5)
    assert list(data.predict_dataloader()[0]) == [["one", "two"], ["three"]]


def frame(rows=60):
    return pd.DataFrame({"price": np.arange(rows) * 1.0, "city": ["Rome", "Oslo", "Bern"] * (rows // 3)})


CONFIG = "{input_features: [{name: price, type: number}, {name: city, type: category}], preprocessing: {split: null}}"


@pytest.mark.parametrize("kind", ["csv", "parquet", "huggingface", "saved"])
def test_files_and_hugging_face_datasets_are_written_once(tmp_path, kind, monkeypatch):
    frame().to_csv(tmp_path / "rows.csv", index=False)
    frame().to_parquet(tmp_path / "rows.parquet")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    source = f"files: {tmp_path}/rows.{'csv' if kind == 'csv' else 'parquet'}"
    if kind == "huggingface":
        pytest.importorskip("datasets")
        source = f"huggingface: parquet, split: train, data_files: {tmp_path}/rows.parquet"
    prep = CONFIG
    if kind == "saved":
        prep = f"{tmp_path}/prep.json"
        dp.Preprocessor({"price": "number", "city": "category"}).fit(frame()).save(prep)
    data = f"{{{source}, preprocessor: {prep}}}"
    text = f"train: {{a: {{data: {data}, batch_size: 20}}}}\nval: {{b: {{data: {data}, split: train}}}}\n"
    versions = set()
    for _ in range(2):
        module = dp.DataModule.from_config(text, folder=tmp_path / "made")
        module.prepare_data()
        module.setup("fit")
        assert sum(len(batch["city"]) for batch in module.train_dataloader()) == 60
        [loader] = module.val_dataloader()
        versions.add((loader.source.split.dataset.version, loader.source.split.dataset.url))
        assert loader.source.split.dataset.url == module.train_dataloader().source.split.dataset.url
    assert len(versions) == 1


def test_prepare_function_must_be_allowed(tmp_path, steps):
    frame().to_parquet(tmp_path / "rows.parquet")
    dp.Preprocessor({"price": dp.Number(normalization=None)}).fit(frame()).save(tmp_path / "prep.json")
    source_options = {"files": f"{tmp_path}/rows.parquet", "preprocessor": f"{tmp_path}/prep.json"}

    def opened(prepare, **more):
        config = {"train": {"a": {"data": source_options | more | {"prepare": prepare}}}}
        module = dp.DataModule.from_config(config, allowed=steps, folder=tmp_path / "made")
        module.setup("fit")
        split = module.train_dataloader().source.split
        return split.dataset.version, split.read("price")["price"].max()

    assert opened("yaml_steps.dearer")[1] == opened({"function": "yaml_steps.dearer", "by": 1})[1] == 60
    assert opened("yaml_steps.dearer", version=1) == opened("yaml_steps.dearer", version=1)
    assert opened({"function": "yaml_steps.dearer", "by": 5}, version=1)[1] == 64
    first = opened("yaml_steps.dearer", version=1)
    frame(30).to_parquet(tmp_path / "rows.parquet")
    assert first != opened("yaml_steps.dearer", version=1)
    assert opened("yaml_steps.dearer")[1] == opened("yaml_steps.dearer", version=2)[1] == 30
    with pytest.raises(ConfigError, match=r'data: prepare: "os.getcwd" may not be imported .*allowed=\["os\."\]'):
        opened("os.getcwd")
    for other in (3, ["yaml_steps.dearer"], {"packing": {"block_size": 4, "columns": "price"}}):
        with pytest.raises(ConfigError, match="data: prepare.*: expected a callable or its dotted name"):
            opened(other)


REFUSED = [
    ("{function: os.getcwd}", 'data: "os.getcwd" may not be imported'),
    ("{function: 3}", 'expected "function" with its arguments'),
    ("{file: a.csv}", 'unknown key "file". Did you mean "files"'),
    ("{files: a.csv, name: x, preprocessor: p.json}", 'unknown key "name"'),
    ("{dataset: a.dp, prepare: a.b}", 'unknown key "prepare"'),
    ("{files: a.csv, preprocessor: p.json}", "needs a .preprocessor., and from_config needs folder="),
    ("{huggingface: squad, trust_remote_code: true}", 'unknown key "trust_remote_code"'),
    ("!!python/name:os.system", "is not valid YAML"),
    ("{}", "data is empty: set one of dataset, files, huggingface"),
]


@pytest.mark.parametrize(("data", "words"), REFUSED)
def test_invalid_configuration_raises(data, words):
    with pytest.raises(ConfigError, match=words):
        dp.DataModule.from_config(f"train: {{a: {{data: {data}}}}}")
    packing = "{data: a.dp, group_processors: {packing: {size: 3}}}"
    with pytest.raises(ConfigError, match="packing: {'size': 3}: expected block_size and columns"):
        dp.DataModule.from_config(f"train: {{a: {packing}}}")
    versioned = "{files: a.csv, preprocessor: p.json, version: 1}"
    with pytest.raises(ConfigError, match='"version" names the version of a "prepare" function'):
        dp.DataModule.from_config(f"train: {{a: {{data: {versioned}}}}}", folder="made")
    with pytest.raises(ConfigError, match='loaders have no option "prepare"'):
        dp.DataModule.from_config("train: {a: {data: a.dp, prepare: a.b}}")
    with pytest.raises(ConfigError, match="a mapping of managers"):
        dp.DataModule.from_config("[]")


def test_functions_with_arguments_must_be_allowed(path, steps):
    config = {"train": {"a": {"data": path, "processors": [{"function": "yaml_steps.scaled", "by": 2}]}}}
    with pytest.raises(ConfigError, match=r'processors: "yaml_steps.scaled" may not be imported'):
        dp.DataModule.from_config(config, allowed="other.")
    assert "yaml_steps" not in sys.modules
    assert dp.DataModule.from_config(config | {"overfit_batches": 2}, allowed=steps).overfit_batches == 2


def test_open_dataset_with_int_raises():
    with pytest.raises(ConfigError, match="the path or URL of a dataset, not int"):
        dp.open_dataset(3)


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, row):
        return {"price": float(row), "name": f"row {row}"}


def predicting(dataset, data, **options):
    module = dp.DataModule({"train": {"a": dataset}, "predict": {"a": dp.Manager(data, 4, **options)}})
    module.setup("predict")
    return module.predict_dataloader()[0]


def test_predict_any_iterable(dataset):
    loader = predicting(dataset, Numbers(), example_processors=[lambda one: one | {"price": one["price"] * 2}])
    assert len(loader) == 3
    for _ in range(2):
        batches = list(loader)
        assert torch.cat([batch["price"] for batch in batches]).tolist() == [2.0 * row for row in range(10)]
        assert batches[2]["name"] == ["row 8", "row 9"]
    assert list(predicting(dataset, {"a", "b"}, collate=sorted)) == [["a", "b"]]
    assert list(predicting(dataset, lambda: [[1], [2, 3]], collate=list)) == [[[1], [2, 3]]]
    assert list(predicting(dataset, ("a", "b"), processors=len)) == [2]


def test_uneven_ranks_share_batches_and_examples(dataset):
    def of_rank(rank):
        train = dp.Manager(dataset, 10, uneven=True, row_ids=True)
        managers = {"train": {"a": train}, "predict": {"a": dp.Manager(list("abcdefghi"), 4)}}
        module = dp.DataModule(managers, rank=rank, world_size=3)
        module.setup("predict")
        module.setup("fit")
        rows = torch.cat([batch["row_id"] for batch in module.train_dataloader()])
        return rows, "".join("".join(batch) for batch in module.predict_dataloader()[0])

    rows, examples = zip(*map(of_rank, range(3)), strict=True)
    assert torch.cat(rows).sort().values.tolist() == dataset["train"].read("row_id")["row_id"].tolist()
    assert sorted("".join(examples)) == list("abcdefghi")


def test_example_processors_receive_single_rows(path):
    def twice(example):
        assert example["price"].ndim == 0
        return {"twice": [example["price"], example["price"] * 2]}

    module = dp.DataModule({"train": {"a": dp.Manager(path, 16, example_processors=twice, columns_to_remove="area")}})
    module.setup("fit")
    batch = next(iter(module.train_dataloader()))
    assert torch.equal(batch["twice"][1], batch["twice"][0] * 2)
    manager = dp.Manager(path, 16, targets="sold", example_processors=lambda pair: (pair[0]["price"], ~pair[1]))
    module = dp.DataModule({"train": {"a": manager}})
    module.setup("fit")
    price, sold = next(iter(module.train_dataloader()))
    assert price.shape == sold.shape == (16,)


def test_invalid_examples_raise(dataset):
    with pytest.raises(ConfigError, match="yields its examples only once"):
        dp.Manager(iter("ab"))
    for option in ("targets", "columns_to_remove", "split"):
        with pytest.raises(ConfigError, match=f"{option} is for datasets only"):
            predicting(dataset, ["a"], **{option: "sold"})
    module = dp.DataModule({"train": {"a": dataset}, "predict": {"a": dp.Manager(["a"], 2)}}, rank=0, world_size=3)
    with pytest.raises(ConfigError, match="not divisible by 3 ranks"):
        module.setup("predict")
