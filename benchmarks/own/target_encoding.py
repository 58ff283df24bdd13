"""Leakage, values and memory of target encodings.

    python -m benchmarks.own.target_encoding [leakage | memory]

"leakage": random labels and 50,000 rare categories; a logistic regression on the encodings of its own training rows.
"memory": a fit on 5,000,000 rows of 2,000,000 categories, written to Parquet first, with the peak of this process.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import daskprep as dp


def leakage(rows: int = 200_000, categories: int = 50_000) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"id": rng.integers(0, categories, rows), "label": rng.integers(0, 2, rows)})
    prep = dp.Preprocessor({"id": dp.TargetEncoding(target="label")})
    with tempfile.TemporaryDirectory() as folder:
        held = prep.fit_write(frame, Path(folder) / "d", progress=False)["train"].read()["id"]
    for name, column in (("cross-fitted", held), ("naive", prep.encode(frame)["id"])):
        inputs = ((column - column.mean()) / column.std())[:, None]
        scores = LogisticRegression().fit(inputs, frame["label"]).predict_proba(inputs)[:, 1]
        print(f"{name}: AUC {roc_auc_score(frame['label'], scores):.4f} on its own training rows")


def memory(rows: int = 5_000_000, categories: int = 2_000_000, pieces: int = 10) -> None:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for piece in range(pieces):
            ids = rng.integers(0, categories, rows // pieces)
            texts = pa.array(ids).cast(pa.string())
            table = pa.table({"id": texts, "price": rng.normal(100, 20, len(ids))})
            pq.write_table(table, Path(folder) / f"{piece}.parquet")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start, spent = time.perf_counter(), time.process_time()
        prep = dp.Preprocessor({"id": dp.TargetEncoding(target="price")}).fit(f"{folder}/*.parquet")
        wall, processor = time.perf_counter() - start, time.process_time() - spent
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    known = len(prep.learned_["id"].vocabulary)
    print(f"{known:,} values, {wall:.1f} s, {processor:.1f} s of processors")
    print(f"peak {peak * 1024 / 1e9:.2f} GB, {before * 1024 / 1e9:.2f} GB before the fit")


if __name__ == "__main__":
    chosen = sys.argv[1:] or ["leakage", "memory"]
    for name in chosen:
        {"leakage": leakage, "memory": memory}[name]()
