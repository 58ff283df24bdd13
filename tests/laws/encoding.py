"""Laws of encodings: one row as many, a service as a Preprocessor, a graph of ONNX as both, old ids as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd

import daskprep as dp
from daskprep.errors import ConfigError, DaskprepError
from daskprep.extensions.onnx import PREFIX
from daskprep.serving import Encoder
from tests.laws.laws import REFUSED, TALLY, Arrays, check, equal, pick
from tests.laws.stored import as_arrays, depending_on_others, outputs_of

_ROUNDED = ("quantile_normal", "yeo_johnson", "log1p", "box_cox")


def check_encoded(prep: dp.Preprocessor, frame: pd.DataFrame, carried: Any) -> None:
    """Check that rows are encoded alike, in any form, one by one, by four, and by a service."""
    encoded = outcome(lambda: as_arrays(prep.encode(frame)))
    found = TALLY.attempt("encode lazily", lambda: as_arrays(dask.compute(dict(prep.encode(carried)))[0]))
    if found is not REFUSED:
        same("each form of rows is encoded alike", lambda: found, encoded)
    encoder = Encoder(prep.to_dict(), trusted=True)
    alone = outputs_of({n: one for n, one in prep.features_.items() if n not in depending_on_others(prep.features_)})
    for count in (1, 4):
        for start in range(0, min(len(frame), 12), count):
            few = frame.iloc[start : start + count]
            own = outcome(lambda few=few: as_arrays(prep.encode(few)))
            if isinstance(own, dict) and prep.weight is not None:
                own.pop("weight")  # a service has no use for weights
            records = few.to_dict("records")
            same("a service encodes as its Preprocessor", lambda records=records: encoder.encode(records), own)
            if isinstance(encoded, dict) and isinstance(own, dict):
                names = [name for name in alone if name in own and name in encoded]  # labels need all rows
                expected = pick({n: encoded[n] for n in names}, slice(start, start + count))
                equal("few rows are encoded as many", {name: own[name] for name in names}, expected)


def outcome(call: Any) -> Any:
    """Return the arrays, or the class of an error of the package."""
    try:
        return call()
    except DaskprepError as error:
        return type(error)


def same(law: str, call: Any, expected: Any) -> None:
    found = outcome(call)
    if isinstance(expected, dict) and isinstance(found, dict):
        equal(law, found, expected)
    else:
        check(law, isinstance(expected, type) and isinstance(found, type), (found, expected))


def check_grown(before: dp.Preprocessor, after: dp.Preprocessor, frame: pd.DataFrame) -> None:
    """Check that a Preprocessor that has grown encodes rows as before, but for tokens that had no id."""
    old = TALLY.attempt("encode", lambda: as_arrays(before.encode(frame)))
    if old is REFUSED:
        return
    new = as_arrays(after.encode(frame))
    check("growing adds no output", old.keys() == new.keys())
    for name, feature in before.features_.items():
        # The ids of a set are in the order of the cell, and a bag is counts by id: a new token moves others.
        if not isinstance(feature, dp.Set | dp.Bag):
            _check_ids(old, new, outputs_of({name: feature}), feature)


def _check_ids(old: Arrays, new: Arrays, outputs: list[str], feature: dp.Feature) -> None:
    for output in outputs:
        if output not in old:
            continue
        own, grown = old[output], new[output]
        if own.ndim > 1:
            width = min(own.shape[1], grown.shape[1])
            own, grown = own[:, :width], grown[:, :width]
        special = (0 if isinstance(feature, dp.Category) else 1) if feature._grows else -np.inf
        known = own > special
        equal("old ids stay when a vocabulary grows", grown[known], own[known])


def check_onnx(prep: dp.Preprocessor, frame: pd.DataFrame, path: Path) -> None:
    """Check that onnxruntime returns what encode returns, for the features that the export does not refuse."""
    import onnxruntime

    names = [name for name in prep.features_ if name not in (prep.weight, *prep.keys, *prep.targets_)]
    kept = []
    for name in names:
        TALLY.calls["to_onnx"] += 1
        try:
            prep.to_onnx(path, columns=[name])
        except ConfigError as error:
            TALLY.refusals["to_onnx", str(error).rpartition(":")[0][-60:]] += 1
            continue
        kept.append(name)
    for name in kept:
        prep.to_onnx(path, columns=[name])
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        inputs = {}
        for one in session.get_inputs():
            cells = as_input(frame[one.name], one.type)
            if cells is None:
                break
            inputs[one.name] = cells
        else:
            expected = TALLY.attempt("encode", lambda: as_arrays(prep.encode(frame)))
            if expected is REFUSED:
                return
            for output, array in zip(session.get_outputs(), session.run(None, inputs), strict=True):
                check_output(output.name.removeprefix(PREFIX), array, expected, prep.features_[name])


def as_input(column: pd.Series[Any], kind: str) -> np.ndarray | None:
    """Return the cells of a column as the input of a graph, None if it does not promise to read them."""
    if kind == "tensor(string)":
        is_text = column.map(lambda cell: cell is None or (isinstance(cell, str) and cell != ""))
        return column.fillna("").to_numpy(object) if is_text.all() else None
    if kind == "tensor(double)":
        cells = column.map(lambda cell: cell is None or isinstance(cell, float))
        return column.astype(np.float64).to_numpy() if cells.all() else None
    if kind == "tensor(int64)" and column.dtype.kind == "M":
        return column.astype("datetime64[ns]").astype(np.int64).to_numpy()
    return None


def check_output(name: str, array: np.ndarray, expected: dict[str, np.ndarray], feature: dp.Feature) -> None:
    TALLY.laws["a graph returns what encode returns"] += 1
    if getattr(feature, "normalization", None) in _ROUNDED:  # the last digit depends on the processor
        np.testing.assert_allclose(array, expected[name], rtol=3e-7, atol=1e-7, err_msg=name)
    else:
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
