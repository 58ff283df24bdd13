"""Mistakes of users of pandas, scikit-learn, PyTorch and Hugging Face: the message has the remedy."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl  # noqa: F401 as of all that only MISTAKES use
import pytest
import sklearn.linear_model  # noqa: F401 as of all that only MISTAKES use
import torch  # noqa: F401
from torch.utils.data import DataLoader  # noqa: F401

import daskprep as dp
from daskprep import serving  # noqa: F401

# Expression, and the part of the error or warning with the remedy.
MISTAKES = """
Prep({"city": "categorical"}).fit(df) | Did you mean "category"?
Prep({"price": "int"}).fit(df) | Did you mean "number"?
Prep({"price": float}).fit(df) | Did you mean "number"?
Prep({"price": np.float32}).fit(df) | Did you mean "number"?
Prep({"price": "float32"}).fit(df) | Did you mean "number"?
Prep({"price": "numerical"}).fit(df) | Did you mean "number"?
Prep({"city": "string"}).fit(df) | Did you mean "category" or "text"?
Prep({"city": "str"}).fit(df) | Did you mean "category" or "text"?
Prep({"sold": "bool"}).fit(df) | Did you mean "binary"?
Prep({"when": "datetime"}).fit(df) | Did you mean "date"?
Prep({"review": "tokens"}).fit(df) | Did you mean "sequence"?
Prep({"city": sklearn.preprocessing.OneHotEncoder}).fit(df) | Did you mean "category"?
Prep({"price": "standardscaler"}).fit(df) | Did you mean "number"?
Prep({"cty": "category"}).fit(df) | Did you mean "city"?
Prep(["city", "price"]).fit(df) | such as {"price": "number"}
Prep([("city", "category")]).fit(df) | such as {"price": "number"}
Prep(df).fit(df) | such as {"price": "number"}
Prep({}).fit(df) | such as {"price": "number"}
Prep(F, targets="label").fit(df) | add it to features
Prep({"price": dp.Number(normalization="z-score")}).fit(df) | Did you mean "zscore"?
Prep({"price": dp.Number(normalization="min-max")}).fit(df) | Did you mean "minmax"?
Prep({"price": dp.Number(missing_value_strategy=0)}).fit(df) | Did you mean "fill_with_const"?
Prep({"review": dp.Text(tokenizer="bert-base-uncased")}).fit(df) | tokenizer="hf_tokenizer", pretrained_model_name_or_path="bert-base-uncased"
Prep({"review": dp.Text(tokenizer="hf_tokenizer")}).fit(df) | pass pretrained_model_name_or_path
Prep({"city": dp.Category(most_common=-1)}).fit(df) | an integer of at least 1
Prep({"review": dp.Text(tokenizer="spacy")}).fit(df) | Did you mean "english_tokenize"?
Prep({"review": dp.Text(tokenizer="word")}).fit(df) | Did you mean "space" or "space_punct"?
Prep({"city": dp.Category(handle_unknown="ignore")}).fit(df) | Did you mean "unk"?
Prep({"price": dp.Number(normalization=True)}).fit(df) | Did you mean "zscore"?
Prep({"when": "number"}).fit(df) | use another type, such as "date"
Prep({"price": dp.Number(missing_value_strategy="mean")}).fit(df) | Did you mean "fill_with_mean"?
Prep({"price": dp.Number(missing_value_strategy="median")}).fit(df) | Did you mean "fill_with_median"?
Prep({"price": dp.Number(missing_value_strategy="drop")}).fit(df) | Did you mean "drop_row"?
Prep({"city": dp.Category(missing_value_strategy="most_frequent")}).fit(df) | Did you mean "fill_with_mode"?
Prep({"city": dp.Category(missing_value_strategy="fill_with_mean")}).fit(df) | Did you mean "fill_with_mode"?
Prep({"photo": dp.Image(height="224")}).fit(df) | an integer of at least 1
Prep({"photo": dp.Image(height=(8, 8))}).fit(df) | Pass a single value for each parameter, such as 8
prep.set_params(price__normalisation=None) | Did you mean "price__normalization"?
Prep(F).encode(df) | call fit(frame)
Prep(F).save("x.json") | call fit(frame)
Prep(F).write(df, "x.dp") | fit_write(frame, path)
Prep(F).fit_write("x.dp", df) | fit_write(frame, path)
Prep(F).fit(df.to_numpy()) | pandas.DataFrame(array, columns=[...])
Prep({"price": "number"}).fit(torch.zeros(3, 2)) | pandas.DataFrame(array, columns=[...])
Prep({"price": "number"}).fit(df["price"]) | cannot be read as rows; for a single column use .to_frame()
Prep(F).fit(None) | Accepted: frames of pandas
Prep(F).fit(train.loader(8)) | pass the frame or the files that the dataset was written from
Prep(F).fit("b.csv") | Did you mean "a.csv"?
Prep(F).fit("nothing.csv") | Check the path
Prep(F).fit(df.iloc[:0]) | check the file, filter or split that the rows come from
Prep(F).fit("a.xlsx") | pandas.read_excel
Prep({"city": "category"}).fit("data") | use read_files(..., format=)
Prep(F).fit("*.feather") | check the pattern
Prep({"city": "number"}).fit(df) | use another type, such as "category"
Prep({"city": dp.Number(invalid="raise")}).fit(df) | use invalid="missing"
Prep({"city": "binary"}).fit(df) | use Category
Prep({"review": "date"}).fit(df) | use another type, such as "category" or "text"
Prep({"review": "image"}).fit(df) | use another type, such as "text"
Prep({"photo": dp.Image(height=8, width=8)}).fit(df) | set base_dir to their folder, or pass height, width and num_channels
Prep({"price": "image"}).fit(df) | use another type, such as "number"
Prep({"city": dp.TargetEncoding(), "price": "number"}).fit(df) | set target= of the feature to the name of a column
Prep(F, weight="city").fit(df) | rename the feature, for example to "city_feature"
Prep(F, sample=0).fit(df) | a share such as 0.1
Prep(F, sample_seed="x").fit(df) | expected an integer
Prep(F).fit(df, progress="yes") | must be True, False or None
Prep("auto").set_params(price__normalization=None) | pass Preprocessor(dict(infer_features(frame)))
Prep({"price": "number"}).set_params(price_normalization=None) | Did you mean "price__normalization"?
Prep({"price": "number"}, targets="sold").fit(df, df["sold"]) | in a pipeline of scikit-learn, where the model receives y, leave out targets
Prep(F, targets="sold").fit(df.drop(columns="sold"), df["sold"]) | y is for the model of a pipeline: leave out targets
Prep({"price": "number"}).fit(pd.DataFrame({"price": pd.to_timedelta([1, 2], unit="h")})) | .dt.total_seconds()
Prep({"price": "date"}).fit(pd.DataFrame({"price": pd.to_timedelta([1, 2], unit="h")})) | .dt.total_seconds()
Prep("auto").fit(pd.DataFrame({"price": pd.to_timedelta([1, 2], unit="h")})) | .dt.total_seconds()
dp.RandomHorizontalFlip | Did you mean "Mirror"?
prep.encode(df[["city"]]) | add the column, with empty cells
prep.encode(df.rename(columns={"price": "prize"})) | Did you mean "prize"?
prep.encode(df.iloc[0]) | frame.iloc[[i]]
prep.predict(df, sklearn.linear_model.LogisticRegression()) | sklearn.pipeline.make_pipeline(preprocessor, estimator)
prep.predict(df, "model.pt") | load the file first
prep.predictions(np.zeros((3, 4))) | have shape (rows,)
prep.predictions((np.zeros(3),)) | pass the output for "sold" alone
Prep({"city": "category"}).fit(df).predictions(np.zeros(3)) | pass targets=
prep.predict(df, sklearn.linear_model.LogisticRegression) | cannot be the class LogisticRegression: pass
prep.decode(np.zeros(3)) | expected a dict of arrays by output, such as {"city": array}
prep.decode({"cty": np.zeros(3)}) | Did you mean "city"?
dp.open_dataset("b.dp") | check the path
dp.open_dataset("a.csv") | is a file, not a dataset: use
dp.open_dataset(["a.dp", "none.dp"]) | check the path
dp.open_dataset(["a.dp", "c.dp"]) | write both with the same fitted Preprocessor
ds["val"] | Did you mean "validation"?
ds["valid"] | Did you mean "validation"?
ds["dev"] | Did you mean "validation"?
ds["training"] | Did you mean "train"?
ds.train | use dataset["train"]
ds[0] | dataset["train"][rows]
ds[:3] | dataset["train"][rows]
len(ds) | len(dataset["train"])
ds.loader(8) | dataset["train"].loader
ds.num_embeddings("city") | dataset["train"].num_embeddings
ds.vocabulary("price") | these have one: city, review
ds.head() | dataset["train"].head
ds.columns | dataset["train"].columns
ds.plot("cty") | Did you mean "city"?
train.loader(8, transform="lower") | expected a function of a batch
train.loader(8, weights={"sold": {"maybe": 1}}) | Classes are: no, yes
train.loader(8)[0] | next(iter(loader))
train.loader(0) | expected an integer from 1
train.loader("8") | expected an integer from 1
train.loader(8, seed=None) | expected an integer, such as 0
next(iter(train.loader(8, device="cuda"))) | omit device
train.loader(8, device="gpu") | Did you mean "cuda"?
train.loader(8, columns=["cty"]) | Did you mean "city"?
train.loader(8, rank=3) | pass both rank and world_size
train.loader(8, rank=0, world_size=3) | use batch_size=9
train.loader(8, weights="w") | such as {"sold":
train.loader(8, shuffle="yes") | expected True or False
train.loader(16).load_state_dict(train.loader(8).state_dict()) | depends on batch_size: create the loader with streams=8
train.loader(8).load_state_dict({"epoch": 1}) | state_dict()
ds["test"].loader(8).load_state_dict(train.loader(8).state_dict()) | load it into a loader of dataset['train']
next(iter(DataLoader(train.loader(4), batch_size=4))) | batch_size=None
train["city"] | use read('city') for columns
train.read("price", "city") | pass columns as a list, such as ['price', 'city']
train.head("3") | expected a number of rows
train.head(-1) | expected a number of rows
dp.StratifiedGroupKFold | Did you mean "KFold"?
prep.predict(df, lambda batch: batch, ids=True) | pass ids="id"
Prep({"pric": "number"}).fit(pl.DataFrame(df[["price"]])) | Did you mean "price"?
Prep({"pric": "number"}).fit(pl.DataFrame(df[["price"]]).lazy()) | Its columns are: price
train.read("cty") | Did you mean "city"?
train[10**9] | has 140 rows
train["x":] | use a number, a list of numbers
train.to_dask("xx") | Outputs are:
train.num_embeddings("price") | these have one: city, review
Prep(F, split=dp.RandomSplit((0.8, 0.2, 0.1))).fit(df) | such as (0.7, 0.1, 0.2)
Prep(F, split=dp.RandomSplit(0.2)).fit(df) | such as (0.7, 0.1, 0.2)
Prep(F, split=0.2).fit(df) | RandomSplit((0.7, 0.1, 0.2))
Prep(F, split="random").fit(df) | RandomSplit((0.7, 0.1, 0.2))
Prep(F, split=dp.StratifiedSplit("clas")).fit(df) | Correct the name
Prep(F, split=dp.KFold(1)).fit(df) | use k=5
Prep(F, balance=dp.Oversample("sold")).fit(df) | set ratio=0.5
Prep(F, balance="oversample").fit(df) | Oversample("sold", ratio=0.5)
Prep(F).fit_write({"train": df, "val": df}, "s.dp") | Did you mean "validation"?
prep.write(df, "a.csv") | use another path
prep.write(df, "thesis") | use a new or empty folder
prep.write(df.iloc[:50], "a.dp") | overwrite=True
prep.write(df, "m.dp", memory="2 gigs") | such as "2GB"
prep.write(df, "m.dp", memory="10MB") | Raise memory, use fewer threads (dask.config.set(num_workers=1))
Prep.load("a.dp") | use Preprocessor.from_dataset(path)
Prep.load("none.json") | check the path
Prep.load("a.csv") | pass the file that Preprocessor.save wrote
Prep.load("altered.json") | restore it, or save the Preprocessor again
Prep.load("newer.json") | upgrade daskprep
Prep.from_dataset("b.dp") | check the path
Prep.from_dataset("prep.json") | Preprocessor.load
serving.load("none.json") | pass the file that Preprocessor.save wrote
serving.load("a.dp") | pass the file that Preprocessor.from_dataset(path).save(file) writes for a dataset
serving.load("prep.json").encode(df) | frame.to_dict("records")
serving.load("prep.json").encode({"city": "Oslo"}) | Pass None for missing cells
Prep.from_config("nothing.yaml") | check the path
Prep.from_config("input_features: [\\n - x") | line 2, column 2
Prep.from_config("input_feature:\\n - {name: a, type: number}\\n") | Did you mean "input_features"?
Prep.from_config({"input_features": [{"name": "a", "type": "int"}]}) | Did you mean "number"?
Prep.from_config({"input_features": [{"name": "a", "type": "number", "preprocessing": {"normalisation": 1}}]}) | Did you mean "normalization"?
dp.infer_features(df, targets="sld") | Did you mean "sold"?
dp.infer_features(df, style="nn") | one of network, linear, trees
dp.infer_features(["city"]) | Check the path
dp.read_files("a.csv", format="cvs") | Did you mean "csv"?
prep.stream(df, split="val") | Did you mean "validation"?
dp.Manager(train, batchsize=3) | Did you mean "batch_size"?
dp.repair(df, "a.dp") | pass the path first
dp.open_dataset(ds) | pass the path first
dp.read_files(df) | pass it without read_files
dp.open_dataset(df) | pass the path first
dp.Categorical | Did you mean "Category"?
dp.Numeric | Did you mean "Number"?
dp.OneHotEncoder | Did you mean "Category"?
dp.Foo | dir(daskprep)
dp.Float | Did you mean "Number"?
dp.String | Did you mean "Category" or "Text"?
dp.Datetime | Did you mean "Date"?
dp.DataLoader | Did you mean "open_dataset"?
dp.read_parquet | Did you mean "read_files"?
dp.load | Did you mean "open_dataset"?
dp.read_csv | Did you mean "read_files"?
dp.train_test_split | Did you mean "RandomSplit"?
"""  # noqa: E501


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Return the names for the expressions, with their files in the current folder."""
    folder = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("mistakes"))
    rng = np.random.default_rng(0)
    df = pd.DataFrame(
        {
            "city": rng.choice(["Oslo", "Rome", "Bern"], 200),
            "price": rng.normal(100, 10, 200).round(2),
            "review": rng.choice(["calm and nice", "too loud", "ok"], 200),
            "sold": rng.choice(["yes", "no"], 200),
            "when": pd.date_range("2024-01-01", periods=200, freq="h"),
            "photo": "none.png",
        }
    )
    features = {"city": "category", "price": "number", "review": "text", "sold": "binary"}
    ds = dp.Preprocessor(features, targets="sold", split=dp.RandomSplit()).fit_write(df, "a.dp")
    prep = dp.Preprocessor(features, targets="sold").fit(df)
    dp.Preprocessor({"city": "category"}).fit_write(df, "c.dp")
    df.to_csv("a.csv", index=False)
    prep.save("prep.json")
    saved = Path("prep.json").read_text()
    Path("altered.json").write_text(saved.replace("Oslo", "Oslx"))
    Path("newer.json").write_text(re.sub('"format": ?[0-9]+', '"format": 99', saved))
    Path("data").write_text("city\nOslo\n")
    Path("a.xlsx").write_bytes(b"PK")
    Path("thesis").mkdir()
    Path("thesis/x.txt").write_text("x")
    yield globals() | {"Prep": dp.Preprocessor, "F": features, "df": df, "ds": ds, "train": ds["train"], "prep": prep}
    os.chdir(folder)


@pytest.mark.parametrize("mistake", MISTAKES.strip().splitlines(), ids=lambda line: line.partition(" | ")[0])
def test_error_message_has_the_remedy(names: dict[str, Any], mistake: str) -> None:
    expression, _, remedy = mistake.partition(" | ")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            eval(expression, dict(names))
        except (Exception, SystemExit) as error:
            message = str(error)
        else:
            message = " ".join(str(warning.message) for warning in warned)
    assert remedy.replace("\\n", "\n") in message
