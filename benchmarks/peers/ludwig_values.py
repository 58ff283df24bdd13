"""Compare Ludwig's encodings with daskprep's, row by row, from one configuration and one CSV file.

    python -m benchmarks.peers.ludwig_values --source ludwig --tables tables

`--source` is a checkout of Ludwig 0.17, and its folder `site` may hold packages that Ludwig imports and that are not
installed. Both learn from all rows. Ids are compared as the tokens that they stand for, but with Ludwig's symbols as
they are. Printed is, for every feature, its vocabulary and the split: how many rows or tokens are equal, how far
numbers are apart, and the first that differs.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

import daskprep as dp

Config = dict[str, Any]
Values = dict[str, dict[int, Any]]  # of the rows of each feature

ROWS = 400
SYMBOLS = {"<EOS>", "<SOS>", "<PAD>", "<UNK>", "<START>", "<STOP>"}
ROW = {"name": "row", "type": "number", "preprocessing": {"normalization": None}}
SOLD = {"name": "sold", "type": "binary"}
# By type: the features, each with its cells ("~": some are missing) and its preprocessing.
EVERY_TYPE: dict[str, dict[str, list[Any]]] = yaml.safe_load("""
number: {zscore: [numbers~], minmax: [numbers, {normalization: minmax}], log1p: [positive, {normalization: log1p}],
  iq: [numbers, {normalization: iq}], plain: [numbers, {normalization: null}],
  mean: [numbers~, {missing_value_strategy: fill_with_mean}], mode: [whole~, {missing_value_strategy: fill_with_mode}],
  bfill: [numbers~, {missing_value_strategy: bfill}], ffill: [numbers~, {missing_value_strategy: ffill}],
  outlier: [numbers, {outlier_strategy: fill_with_mean, outlier_threshold: 2.0}]}
binary: {answer: [answer~], zero: [zero], zeros: [zero~],
  answer_true: [answer~, {missing_value_strategy: fill_with_true}], who: [who, {fallback_true_label: human}],
  who_mode: [who~, {fallback_true_label: human, missing_value_strategy: fill_with_mode}]}
category: {label: [label~], label_top: [label, {most_common: 3}], label_whole: [whole],
  label_mode: [label~, {missing_value_strategy: fill_with_mode}]}
set: {set: [words~], set_top: [words, {most_common: 3}], set_comma: [commas, {tokenizer: comma}]}
bag: {bag: [words~], bag_top: [words, {most_common: 3}]}
sequence: {sequence: [words~], sequence_top: [words, {most_common: 3}], sequence_long: [words, {sequence_length: 9}],
  sequence_cut: [words, {max_sequence_length: 4}], sequence_left: [words, {padding: left}],
  sequence_lower: [words, {lowercase: true}], underscore: [lines, {tokenizer: underscore}],
  characters: [words, {tokenizer: characters}], ids: [words~, {special_symbols: ludwig}],
  ids_left: [words, {special_symbols: ludwig, padding: left}]}
text: {text: [prose], text_missing: [prose~], text_lower: [prose, {lowercase: true}]}
timeseries: {series: [series~], series_window: [numbers, {window_size: 3}],
  series_left: [series, {padding: left, padding_value: 9.0, timeseries_length_limit: 4}]}
vector: {vector: [vectors], vector_fill: [vectors~, {fill_value: 1 2 3}]}
date: {moment: [moments], moment_fill: [moments~, {fill_value: "2000-01-02 03:04:05"}],
  day: [days, {datetime_format: "%d.%m.%Y"}], zone: [zones], epoch: [epochs]}
h3: {h3: [cells~]}
""")
SPLITS = ("{type: random}", "{type: stratify, column: label}", "{type: hash, column: row}")
SPLITS += ("{type: datetime, column: moments}", "{type: fixed, column: split}")


def make_tables(folder: Path) -> Iterator[tuple[str, Config, Path]]:
    """Yield a feature for each of `EVERY_TYPE`, one that drops rows, and every kind of split."""
    rng = np.random.default_rng(0)
    words = np.array(["oak", "ash", "Elm", "fir", "yew", "bay", "Fig", "box"])
    lists = [" ".join(rng.choice(words, size, p=np.arange(8, 0, -1) / 36)) for size in rng.integers(1, 7, ROWS)]
    moments = pd.Timestamp("2001-02-03 04:05:06") + pd.to_timedelta(rng.integers(0, 10**9, ROWS), "s")
    cells: dict[str, Any] = {
        "row": range(ROWS),
        "split": rng.choice(3, ROWS, p=[0.7, 0.1, 0.2]),
        "sold": rng.choice([True, False], ROWS),
        "numbers": rng.normal(5, 3, ROWS).round(3),
        "positive": rng.lognormal(0, 1, ROWS).round(4) + 0.5,
        "whole": rng.choice(9, ROWS, p=np.arange(9, 0, -1) / 45),
        "answer": rng.choice(["yes", "no"], ROWS),
        "zero": rng.integers(0, 2, ROWS),
        "who": rng.choice(["human", "bot"], ROWS),
        "label": rng.choice([" oak", "ash ", "Elm", "fir", "yew", "box"], ROWS, p=[0.3, 0.25, 0.2, 0.13, 0.07, 0.05]),
        "words": lists,
        "commas": [one.replace(" ", ", ") for one in lists],
        "lines": [one.replace(" ", "_") for one in lists],
        "prose": [f"{one.replace(' ', ', ', 1).capitalize()}! It's 3.5 of 10." for one in lists],
        "series": [" ".join(map(str, rng.normal(0, 1, size).round(3))) for size in rng.integers(1, 8, ROWS)],
        "vectors": [" ".join(map(str, row)) for row in rng.normal(0, 1, (ROWS, 3)).round(3)],
        "moments": moments.strftime("%Y-%m-%d %H:%M:%S"),
        "days": moments.strftime("%d.%m.%Y"),
        "zones": moments.strftime("%Y-%m-%dT%H:%M:%S.250-07:00"),
        "epochs": (moments - pd.Timestamp(0)) // pd.Timedelta(1, "s"),
        "cells": 622236750694711295 - (rng.integers(0, 2**40, ROWS) << 8),
    }
    frame = pd.DataFrame({name: pd.Series(values).astype(str) for name, values in cells.items()})
    features = []
    for kind, name, (column, *preprocessing) in ((k, *one) for k, some in EVERY_TYPE.items() for one in some.items()):
        kept = rng.random(ROWS) > 0.1 * column.endswith("~")
        frame[f"{name}_cells"] = frame[column.rstrip("~")].where(kept, "")
        features.append({"name": name, "type": kind, "column": f"{name}_cells", "preprocessing": dict(*preprocessing)})
    frame.to_csv(path := folder / "made.csv", index=False)
    config = {"input_features": [ROW, *features], "output_features": [SOLD]}
    yield "every type", config | {"preprocessing": {"split": {"type": "fixed", "column": "split"}}}, path
    dropping = {**features[0], "name": "drop", "preprocessing": {"missing_value_strategy": "drop_row"}}
    yield "rows dropped", config | {"input_features": [ROW, dropping, features[1]]}, path
    for split in SPLITS:
        yield split, {**config, "input_features": [ROW], "preprocessing": {"split": yaml.safe_load(split)}}, path


def infer_table(path: Path, folder: Path) -> tuple[str, Config, Path]:
    """Return the inferred type of each column of a table, without parameters."""
    frame = pd.read_csv(path, dtype=str, keep_default_na=False).fillna("")
    features = [
        {"name": name, "type": feature.kind} for name, feature in dp.infer_features(frame, redundant="keep").items()
    ]
    frame.assign(row=range(len(frame))).to_csv(folder / path.name, index=False)
    [target] = [one for one in features if not frame[one["name"]].isin(["", "NA"]).any()][-1:]
    inputs = [ROW, *(one for one in features if one is not target)]
    return path.stem, {"input_features": inputs, "output_features": [target]}, folder / path.name


def encode_with_ludwig(model: Any, config: Config, path: Path) -> Values:
    done = model(config, logging_level=logging.ERROR, backend="local").preprocess(dataset=str(path))
    found: Values = {}
    for split, part in enumerate((done.training_set, done.validation_set, done.test_set)):
        if part is not None:
            # Names end in "_" and six characters of a checksum.
            stored = {name[:-7]: np.asarray(column) for name, column in part.dataset.items()}
            _add(found, config, stored, done.training_set_metadata, split, ids=False)
    return found


def encode_with_daskprep(config: Config, path: Path, out: Path) -> Values:
    shared = {**config.get("preprocessing", {}), "fit_on": "all"}
    dataset = dp.Preprocessor.from_config({**config, "preprocessing": shared}).fit_write(str(path), str(out))
    found: Values = {}
    for split, name in enumerate(("train", "validation", "test")):
        if name in dataset:
            _add(found, config, dataset[name].read(), dataset.metadata, split, ids=True)
    return found


def _add(found: Values, config: Config, stored: Any, metadata: Any, split: int, *, ids: bool) -> None:
    rows = np.asarray(stored["row"]).astype(int).tolist()
    for one in _features(config):
        name = one["name"]
        of = {} if name.startswith("ids") else metadata[name]  # which are equal
        found.setdefault(name, {}).update(zip(rows, _readable(one["type"], stored[name], of, ids=ids), strict=True))
        if "idx2str" in of:
            tokens = [(token, of["str2freq"][token]) for token in of["idx2str"] if token not in SYMBOLS]
            found[f"{name}: vocabulary"] = dict(enumerate(tokens))
    found.setdefault("split", {}).update(dict.fromkeys(rows, split))


def _features(config: Config) -> list[Config]:
    return [*config["input_features"], *config["output_features"]]


def _readable(kind: str, column: np.ndarray, metadata: Any, *, ids: bool) -> list[Any]:
    """Return rows with tokens instead of ids; for sets and bags Ludwig stores the count of each token."""
    if "idx2str" not in metadata:
        return list((column.astype(int) if kind == "binary" else column).tolist())
    tokens = np.array(metadata["idx2str"], object)
    if kind == "category":
        return list(tokens[column])
    if kind in ("set", "bag") and not ids:
        return [sorted(np.repeat(tokens, row.astype(int))) for row in column]
    if kind == "bag":
        return [sorted(np.repeat(tokens[row], times)) for row, times in column]
    rows = [[token for token in tokens[row] if token not in SYMBOLS - {"<UNK>"}] for row in column]
    return [sorted(set(row)) for row in rows] if kind == "set" else rows


def print_comparison(name: str, theirs: Values, ours: Values) -> None:
    for feature, left in theirs.items():
        right = ours[feature]
        both = left.keys() & right.keys()
        odd = [row for row in sorted(both) if left[row] != right[row]]
        cells = [name, feature, f"{len(both) - len(odd)} of {len(both)}", "", ""]
        if left.keys() != right.keys():
            cells[2] += f"; {len(left.keys() - both)} only there, {len(right.keys() - both)} only here"
        if feature == "split":
            cells[4] = " and ".join(str(np.bincount(list(side.values())).tolist()) for side in (left, right))
        elif odd:
            if isinstance(left[odd[0]], float):
                cells[3] = f"{max(abs(left[row] - right[row]) for row in odd):.1e}"
            cells[4] = f"{odd[0]}: {left[odd[0]]!s:.80} and {right[odd[0]]!s:.80}"
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--tables", type=Path, required=True, help="a folder of CSV files")
    arguments = parser.parse_args()
    sys.path[:0] = [str(arguments.source), str(arguments.source / "site")]
    from ludwig.api import LudwigModel

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    print("| table | feature | equal rows | farthest | the first other: Ludwig and daskprep |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tables = [*make_tables(folder), *(infer_table(path, folder) for path in sorted(arguments.tables.glob("*.csv")))]
        for number, (table, config, path) in enumerate(tables):
            print_comparison(
                table,
                encode_with_ludwig(LudwigModel, config, path),
                encode_with_daskprep(config, path, folder / str(number)),
            )


if __name__ == "__main__":
    main()
