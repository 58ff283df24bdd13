"""Time of one row in onnxruntime, by feature and for all of them, after `Preprocessor.to_onnx`.

    python -m benchmarks.own.onnx_rows [--calls 2000]

One thread, rows without the conversion from pandas. The median and the fastest call.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import onnxruntime
import pandas as pd

import daskprep as dp

FEATURES = {
    "price": dp.Number(), "area": dp.Number(normalization="robust"), "city": dp.Category(),
    "zone": dp.TargetEncoding(target="y"),
    "sold": dp.Binary(), "tags": dp.Set(), "words": dp.Sequence(), "text": dp.Text(), "day": dp.Date(),
    "hour": dp.Date(cyclic=["hour"]), "point": dp.Vector(),
}  # fmt: skip


def make_rows(count: int) -> pd.DataFrame:
    random = np.random.default_rng(0)
    frame = {"price": random.normal(size=count), "area": random.normal(size=count), "y": random.random(count)}
    for name, size in (("city", 1), ("zone", 1), ("tags", 4), ("words", 8), ("text", 20)):
        tokens = random.choice([f"w{number}" for number in range(1000)], (count, size))
        frame[name] = [" ".join(row) for row in tokens]
    frame["sold"] = random.choice(["yes", "no"], count)
    for name in ("day", "hour"):
        frame[name] = pd.Timestamp("2024-01-01") + pd.to_timedelta(random.integers(0, 10**8, count), unit="s")
    return pd.DataFrame({**frame, "point": list(random.normal(size=(count, 64)).astype(np.float32))})


def measure(path: Path, row: pd.DataFrame, calls: int) -> str:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = {}
    for one in session.get_inputs():
        column = row[one.name]
        dates = column.dtype.kind == "M"
        inputs[one.name] = column.astype("datetime64[ns]").astype(np.int64).to_numpy() if dates else column.to_numpy()
        if one.type == "tensor(float)":
            inputs[one.name] = np.stack(list(column))
        elif one.type == "tensor(string)":
            inputs[one.name] = column.to_numpy(object)
    times = []
    for _ in range(calls):
        began = time.perf_counter()
        session.run(None, inputs)
        times.append((time.perf_counter() - began) * 1e6)
    return f"{median(times):6.0f} us, fastest {min(times):.0f} us"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    calls = parser.parse_args().calls
    rows = make_rows(20_000)
    prep = dp.Preprocessor({**FEATURES, "y": dp.Number()}, targets="y").fit(rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prep.onnx"
        for columns in [[name] for name in FEATURES] + [list(FEATURES)]:
            prep.to_onnx(path, columns=columns)
            print(f"{', '.join(columns)}: {measure(path, rows.iloc[:1], calls)}")


if __name__ == "__main__":
    main()
