"""Export to ONNX: the graph in onnxruntime returns the arrays of `encode`; other features raise."""

import json
import sys
import warnings

import numpy as np
import onnxruntime
import pandas as pd
import pytest

import daskprep as dp
from daskprep.errors import ConfigError, MissingPackageError
from daskprep.extensions.onnx import PREFIX

NUMBERS = [0.0, -0.0, 5.0, -1e-9, 1e-300, 1e15, 1e308, -1e308, np.inf, -999.0, np.nan, np.nan]
TEXTS = {
    "city": ["Rome", " Rome\n", "rome", "KÖLN", "Köln", "new town", "  ", "\u3000Łódź", "ŁÓDŹ", "<UNK>", "n/a", None],
    "sold": ["yes", "NO ", "maybe", "1", "0.0", "n/a", None],
    "tags": ["a b a c", "zz yy zz b", "<UNK>", "  ", "d e f g a b c", "\u00a0a\tb\n", None],
    "note": ["CALM!? _x9 ²", "Too loud.", "<UNK>", "<PAD>", " über", "日本語, ok", "x y z " * 9, "...", "\n", None],
}
DAYS = ["1677-09-22", "1969-12-31 23:59:59.5", "2262-04-11", "2000-02-29 12:34:56", "1900-03-01", "2024-12-31", None]


def make_rows(count, seed=0):
    random = np.random.default_rng(seed)
    normal = random.normal(size=count) * random.choice([1.0, 1e-6, 1e6], count)
    frame = {"size": np.where(random.random(count) < 0.5, normal, random.choice(NUMBERS, count))}
    frame["wealth"] = np.where(random.random(count) < 0.1, np.nan, np.exp(random.normal(size=count) * 20))
    frame |= {name: random.choice(np.array(texts, object), count) for name, texts in TEXTS.items()}
    frame["day"] = pd.to_datetime(random.choice(np.array(DAYS, object), count), format="ISO8601")
    frame["until"] = frame["day"][random.permutation(count)]
    vectors = random.normal(size=(count, 3)).astype(np.float32)
    vectors[random.random(count) < 0.1, 1] = np.nan
    return pd.DataFrame({**frame, "point": list(vectors), "y": random.random(count)})


FEATURES = {
    "until": dp.Date(), "point": dp.Vector(fill_value="1 2 3"), "sold": dp.Binary(missing_indicator=True),
    "city": dp.Category(fill_value="Rome", null_values=["n/a"], missing_indicator=True),
    "lower": dp.Category(column="city", lowercase=True), "most": dp.Category(column="city", most_common=2),
    "target": dp.TargetEncoding(column="city", target="y"), "count": dp.TargetEncoding(column="sold", encoding="count"),
    "above": dp.Binary(column="wealth", missing_value_strategy="fill_with_false"), "tags": dp.Set(),
    "small": dp.Set(column="tags", max_size=2, fill_value="b a"), "note": dp.Text(level="both"),
    "first": dp.Sequence(column="note", max_sequence_length=3, padding="left"),
    "last": dp.Sequence(
        column="note", lowercase=True, max_sequence_length=6, truncation="keep_end", add_start_stop=True
    ),
    "short": dp.Sequence(column="note", max_sequence_length=3, add_start_stop=True, most_common=2),
    "left": dp.Text(column="note", tokenizer="space", padding="left", add_start_stop=True, lowercase=False),
    "clock": dp.Date(column="day", parts=["hour"]), "age": dp.Date(column="day", since="until"),
    "bins": dp.Number(column="wealth", encoding="bins", bins=8),
    "linear": dp.Number(column="wealth", encoding="piecewise_linear", bins=8),
    "clipped": dp.Number(column="wealth", clip_quantiles=[0.1, 0.9], normalization="minmax"),
    "outliers": dp.Number(column="size", outlier_strategy="fill_with_mean", null_values=["-999", "x"]),
    "kept": dp.Number(column="size", missing_value_strategy="keep"),
    **{f"size_{one}": dp.Number(column="size", normalization=one)
       for one in ("zscore", "minmax", "iq", "robust", "quantile_normal", "quantile_uniform", "yeo_johnson", None)},
    **{f"wealth_{one}": dp.Number(column="wealth", normalization=one) for one in ("log1p", "box_cox", "robust", "iq")},
}  # fmt: skip
LOGARITHMS = ("size_quantile_normal", "size_yeo_johnson", "wealth_log1p", "wealth_box_cox")


@pytest.fixture(scope="module")
def fitted():
    rows = make_rows(2_000)
    rows["size"] = np.where(np.abs(rows["size"]) > 1e300, 7.0, rows["size"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of unreadable cells
        return dp.Preprocessor({**FEATURES, "y": "number"}, targets="y").fit(rows)


def run(path, frame):
    """Return the outputs of a model by name, for a frame passed as in onnxruntime."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    convert = {
        "tensor(double)": lambda column: column.to_numpy(np.float64),
        "tensor(float)": lambda column: np.stack(list(column)).astype(np.float32),
        "tensor(int64)": lambda column: column.astype("datetime64[ns]").astype(np.int64).to_numpy(),
        "tensor(string)": lambda column: column.fillna("").to_numpy(object),
    }
    inputs = {one.name: convert[one.type](frame[one.name]) for one in session.get_inputs()}
    names = [one.name.removeprefix(PREFIX) for one in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


@pytest.mark.filterwarnings("ignore:encode: ")
@pytest.mark.parametrize("count", [1, 2_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_model_equals_encode(fitted, tmp_path, count):
    fitted.to_onnx(tmp_path / "prep.onnx")
    for start in range(0, count, 10_000):
        rows = make_rows(min(count, 10_000), seed=start + 1)
        encoded = fitted.encode(rows)
        results = run(tmp_path / "prep.onnx", rows)
        assert results.keys() == encoded.keys() - {"y"}
        for name, array in results.items():
            assert array.dtype == encoded[name].dtype
            if name in LOGARITHMS:  # the last digit depends on the processor
                np.testing.assert_allclose(array, encoded[name], rtol=3e-7, atol=1e-7, err_msg=name)
            else:
                np.testing.assert_array_equal(array, encoded[name], err_msg=name)


def test_golden_rows_are_encoded_equally(fitted, tmp_path):
    fitted.save(tmp_path / "prep.json")
    saved = json.loads((tmp_path / "prep.json").read_text())["features"]
    for name in ("city", "lower", "target", "sold", "tags", "note", "first", "last", "left"):
        column = saved[name]["params"]["column"] or name
        cells = [cell for cell in saved[name]["golden"]["cells"] if cell != ""]
        fitted.to_onnx(tmp_path / "one.onnx", columns=[name])
        results = run(tmp_path / "one.onnx", pd.DataFrame({column: pd.Series(cells, dtype=object)}))
        for output, array in results.items():
            rows = saved[name]["golden"]["arrays"][output.removeprefix(name)]["rows"]
            kept = [row for row, cell in zip(rows, saved[name]["golden"]["cells"], strict=True) if cell != ""]
            np.testing.assert_array_equal(array, np.array(kept, array.dtype))


def test_numbers_without_result_become_nan(fitted, tmp_path):
    fitted.to_onnx(tmp_path / "prep.onnx", columns=["wealth_log1p", "wealth_box_cox"])
    results = run(tmp_path / "prep.onnx", pd.DataFrame({"wealth": [-1.0, -5.0, 1.0]}))
    assert all(np.isnan(array).tolist() == [True, True, False] for array in results.values())


def test_same_state_has_the_same_bytes(fitted, tmp_path):
    for name in ("first", "second"):
        fitted.to_onnx(tmp_path / name)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_features_without_onnx_equivalent_share_one_error(tmp_path):
    rows = make_rows(50)
    features = {
        "size": "number", "before": dp.Number(column="size", missing_value_strategy="ffill"),
        "strict": dp.Number(column="wealth", invalid="raise"),
        "error": dp.Category(column="city", handle_unknown="error"),
        "hashed": dp.Category(column="city", hash_buckets=4), "cross": dp.Category(columns=["city", "sold"]),
        "comma": dp.Set(column="tags", tokenizer="comma"), "bag": dp.Bag(column="tags"),
        "size2": dp.Category(column="size"),
    }  # fmt: skip
    prep = dp.Preprocessor(features).fit(rows)
    with pytest.raises(ConfigError) as error:
        prep.to_onnx(tmp_path / "prep.onnx")
    for reason in (
        '"before": values are imputed from other rows', '"strict": invalid="raise"',
        '"error": handle_unknown="error"', '"hashed": hash buckets',
        '"cross": a cross of columns', "\"comma\": the tokenizer 'comma'",
        '"bag": type bag',
        '"size2": another feature reads column "size" as numbers', "columns", "daskprep.serving",
    ):  # fmt: skip
        assert reason in str(error.value)
    assert '"size":' not in str(error.value)
    assert not (tmp_path / "prep.onnx").exists()
    with pytest.raises(ConfigError, match='no feature "areas"'):
        prep.to_onnx(tmp_path / "prep.onnx", columns=["areas"])
    with pytest.raises(ConfigError, match=r"columns='area': expected a list of names, such as \['area'\]"):
        prep.to_onnx(tmp_path / "prep.onnx", columns="area")


def test_missing_package_error_names_the_package(fitted, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingPackageError, match="pip install onnx"):
        fitted.to_onnx(tmp_path / "prep.onnx")
