"""Generate the files that docs/saved-format.md links to: a JSON Schema of saved files, and test vectors.

    .venv/bin/python tests/saved_format.py

Both follow from the code: parameters from constructors, learned values from dataclasses, vectors from a fit.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
import types
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import numpy as np
import pandas as pd

import daskprep as dp
from daskprep.features import FEATURES, Feature
from daskprep.features.base import Learned
from daskprep.features.parameters import annotations_of
from daskprep.features.sequence import LearnedSequence, LearnedText
from daskprep.features.tokens import LearnedTokens
from daskprep.rows.parameter_names import REMOVED, to_saved_parameters
from daskprep.rows.saved import FORMAT
from daskprep.rows.typed import Count, earlier_values
from daskprep.sources.balance import Balance, Oversample, Undersample
from daskprep.sources.split import SPLITS

DOCS = Path(__file__).parents[1] / "docs"
SCHEMA, VECTORS = DOCS / "saved-format.schema.json", DOCS / "saved-format-vectors.json"
Json = dict[str, Any]

PLAIN: dict[Any, Json] = {
    np.ndarray: {"type": "string", "contentEncoding": "base64"},
    type(None): {"type": "null"}, bool: {"type": "boolean"}, str: {"type": "string"}, int: {"type": "integer"},
    float: {"type": "number"}, Any: {},
}  # fmt: skip


def schema_of(annotation: Any) -> Json:
    """Return the schema of the JSON value for an annotation."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in PLAIN:
        return PLAIN[annotation]
    if origin in (Union, types.UnionType):
        # JSON has no functions.
        return {"anyOf": [schema_of(part) for part in parts if typing.get_origin(part) is not Callable]}
    if origin is Literal:
        return {"enum": list(parts)}
    if origin is Annotated:
        bounds = {"minimum": parts[1].bound, "maximum": parts[1].most}
        return schema_of(parts[0]) | {name: bound for name, bound in bounds.items() if bound < math.inf}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": schema_of(parts[1])}
    if origin is tuple and parts[1:] != (...,):
        return {"type": "array", "prefixItems": list(map(schema_of, parts)), "minItems": len(parts), "items": False}
    if origin in (tuple, list, Sequence):
        return {"type": "array", "items": schema_of(parts[0])}
    if isinstance(annotation, type) and issubclass(annotation, Learned):
        return {"$ref": f"#/$defs/{annotation.__name__}"}
    raise NotImplementedError(annotation)


def object_of(properties: Mapping[str, Json], optional: Sequence[str] = ()) -> Json:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": dict(properties), "required": required, "additionalProperties": False}


def parameters_schema(feature: type[Feature]) -> Json:
    """Return the schema of each parameter of a type, by the names in saved files."""
    annotations = dict(annotations_of(feature))
    annotations |= {"num_classes": Count | None} if "num_classes" in annotations else {}  # "auto" has a separate key
    former = {key: Count if type(value) is int else type(value) for key, value in REMOVED.get(feature.kind, {}).items()}
    return {key: schema_of(former.get(key, one)) for key, one in to_saved_parameters(feature.kind, annotations).items()}


def learned_schema(kind: type[Learned]) -> Json:
    hints = typing.get_type_hints(kind, include_extras=True)
    names = [field.name for field in dataclasses.fields(kind) if field.name != "vocabulary"]
    properties = {name: schema_of(hints[name]) for name in names}
    if not issubclass(kind, LearnedTokens):
        return object_of(properties, list(earlier_values(kind)))
    either = {"oneOf": [{"required": list(VOCABULARY)}, {"required": list(LARGE)}]}
    return {
        **object_of({**properties, **VOCABULARY, **LARGE}, [*VOCABULARY, *LARGE, *earlier_values(kind)]),
        **either,
    }


DIGEST = {"type": "string", "pattern": "^[0-9a-f]{16}$"}
COUNT = {"type": "integer", "minimum": 0}
VOCABULARY: dict[str, Json] = {
    "idx2str": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
    "frequencies": object_of(
        {"values": {"type": "array", "items": COUNT}, "tokens": {"type": "array", "items": COUNT}}
    ),
    "special_symbols": {
        "type": "object",
        "propertyNames": {"enum": ["padding", "unknown", "start", "stop"]},
        "additionalProperties": {"type": "string"},
    },
}
LARGE: dict[str, Json] = {
    "vocabulary_file": {"type": "string", "pattern": r"^[^/]+\.vocab/[^/]+-[0-9a-f]{16}\.parquet$"}
}
GOLDEN = object_of(
    {
        "cells": {"type": "array", "items": {"type": ["string", "null"]}, "maxItems": 8},
        "arrays": {
            "type": "object",
            "additionalProperties": object_of({"dtype": {"type": "string"}, "rows": {"type": "array"}}),
        },
    }
)


def feature_schema() -> Json:
    kinds = []
    for name, feature in FEATURES.items():
        then = {"params": {"$ref": f"#/$defs/{name}"}, "learned": learned_of(feature)}
        kinds.append({"if": {"properties": {"type": {"const": name}}}, "then": {"properties": then}})
    parts = {
        "type": {"type": "string"},
        "params": {"type": "object"},
        "learned": {"type": "object"},
        "digests": {"type": "object", "additionalProperties": DIGEST},
        "golden": {"$ref": "#/$defs/golden"},
    }
    return {**object_of(parts), "allOf": kinds}


def learned_of(feature: type[Feature]) -> Json:
    if feature.kind == "text":
        return {"anyOf": [schema_of(LearnedSequence), schema_of(LearnedText)]}
    return schema_of(feature.learned_type)


def chosen(classes: Mapping[str, Any]) -> Json:
    """Return the schema of a split or a balance: its type, and the parameters of the type."""
    found = []
    for name, one in classes.items():
        hints = [(key.replace("shares", "probabilities"), hint) for key, hint in annotations_of(one).items()]
        known: Json = {"counts": {}, "probabilities": {}, "gap": {"type": "string"}, "window": {"type": "string"}}
        parameters = {key: known[key] if key in known else schema_of(hint) for key, hint in hints}
        found.append(object_of({"type": {"const": name}, **parameters}, ["gap", "window", "divide_times"]))
    return {"anyOf": [{"type": "null"}, *found]}


def schema() -> Json:
    learned = {one for feature in FEATURES.values() for one in (feature.learned_type,) if isinstance(one, type)}
    learned |= {LearnedSequence, LearnedText}
    balances: dict[str, type[Balance]] = {one.type: one for one in (Oversample, Undersample)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What daskprep.Preprocessor.save writes",
        **object_of(
            {
                "format": {"const": FORMAT},
                "targets": {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "minItems": 1},
                "weight": {"type": "string"},
                "split": chosen(SPLITS),
                "balance": chosen(balances),
                "sample": {"type": "number", "exclusiveMinimum": 0},
                "sample_seed": {"type": "integer"},
                "fit_on": {"enum": ["train", "all"]},
                "digest": DIGEST,
                "features": {"type": "object", "minProperties": 1, "additionalProperties": {"$ref": "#/$defs/feature"}},
            },
            ["targets", "weight", "sample", "sample_seed", "digest"],
        ),
        "$defs": {
            "feature": feature_schema(),
            "golden": GOLDEN,
            **{one.__name__: learned_schema(one) for one in sorted(learned, key=lambda one: one.__name__)},
            **{
                name: object_of(parameters_schema(feature), list(earlier_values(feature)))
                for name, feature in FEATURES.items()
            },
        },
    }


# -- vectors: all types that need no files, also with unusual options

TEXTS = {
    "number": ["1.5", " 2 ", "-3e2", "+.5", "7.", "1e400", "0x1F", "1_000", "", None],
    "city": ["Rome", " Oslo ", "Rome", "ROME", "Ærø", "", "ß", "\u00a0Bern\u00a0", "<UNK>", None],
    "sold": ["yes", "No", "TRUE", "f", "1.0", "-1", "2", "maybe", "", None],
    "label": ["bot", "human", "bot", "human ", "bot", "human", "bot", "human", "bot", None],
    "tags": ["a b", "c,a", "b b a", "é_e", "", " ", "A", "a_b", "İ", None],
    "text": ["Don't stop!", "ΟΔΟΣ, Σ", "so-so. so", "x\u2003y", "", "漢字 kanji", "a_b 1.5", "\u0001", "😀 ok", None],
    "series": ["1 2.5 nan", "[1, 2]", "4,5", "1_2", "", "1 2 3 4 5", "x", "inf", "1e39", None],
    "point": ["1 2", "[3, 4.5]", "(5 6)", "0.1,1e-3", "1", "1 2 3", "nan 1", "1,,2", "", None],
    "seen": [
        "2020-02-29", "2012-02-26T13:51:50.417-07:00", "3/5/2021", "20210305", "1600000000", "2021", "5.3.2021 6 PM",
        "2021-02-30", "", None,
    ],
    "place": [
        "8928308280fffff", "0x8928308280FFFFF", "622236750694711295", "0", "8928308280ffff", "1e3", "-1", "x", "", None,
    ],
    "price": ["$1,299.50", "$5", "(1,200)", "7", "\u22123", "$-2", "$1\u00a0000", "5 €", "$1,5", None],
    "took": ["1h 30m", "45 min", "-2:05:00", "1 day, 3:00:01.5", "PT1M", "0", "3:45", "5 kg", "1 week", None],
    "items": ['["a", 1.50]', "[]", '["a", "b"]', " [true]", "x", '["\\u00e9"]', "[[1]]", "", '{"a": 1}', None],
}  # fmt: skip
COUNTS = [1, 2.5, 1e300, -7, 0, 3, 4, 5, 6, None]


def features() -> dict[str, Any]:
    tokens = ["space", "space_punct", "comma", "underscore", "characters", "untokenized", "stripped", "ngram"]
    return {
        **{f"number_{one}": dp.Number(normalization=one, column="number") for one in ("zscore", "minmax", "iq")},
        **{
            f"number_{one}": dp.Number(normalization=one, column="number")
            for one in ("robust", "quantile_normal", "quantile_uniform", "yeo_johnson")
        },
        "number_box_cox": dp.Number(normalization="box_cox", fill_value=1.0, column="count_positive"),
        "number_clipped": dp.Number(
            clip_quantiles=[0.1, 0.9], missing_value_strategy="fill_with_median", column="number"
        ),
        "number_bins": dp.Number(encoding="bins", bins=3, column="number"),
        "number_given_bins": dp.Number(encoding="bins", bins=[-1.0, 0.0, 2.0, 5.0], column="number"),
        "number_pieces": dp.Number(encoding="piecewise_linear", bins=3, bin_strategy="uniform", column="number"),
        "number_log1p": dp.Number(normalization="log1p", outlier_strategy="fill_with_mean", column="count_above"),
        "number_raw": dp.Number(normalization=None, missing_value_strategy="fill_with_mean", column="count"),
        "number_outliers": dp.Number(outlier_strategy="fill_with_const", outlier_threshold=1.0, column="number"),
        "number_around": dp.Number(normalization=None, missing_value_strategy="ffill", column="number"),
        "price": dp.Number(normalization=None),
        "price_comma": dp.Number(normalization=None, written="1.234,5 €", column="price"),
        "took": dp.Number(normalization="minmax"),
        "city": "category",
        "city_small": dp.Category(
            lowercase=True, most_common=2, missing_value_strategy="fill_with_mode", column="city"
        ),
        "count_class": dp.Category(column="count"),
        "city_hashed": dp.Category(hash_buckets=1_000, column="city"),
        "city_beyond": dp.Category(oov_buckets=3, most_common=1, column="city"),
        "city_sold": dp.Category(columns=["city", "sold"], null_values=["maybe"]),
        "city_mean": dp.TargetEncoding(target="count_above", folds=2, lowercase=True, column="city"),
        "city_shares": dp.TargetEncoding(target="label", target_type="class", folds=3, smooth=1.0, column="city"),
        "city_count": dp.TargetEncoding(encoding="count", missing_value_strategy="drop_row", column="city"),
        "sold": "binary",
        "label": dp.Binary(positive="human", missing_value_strategy="bfill"),
        "count_sign": dp.Binary(column="count"),
        **{f"set_{one}": dp.Set(tokenizer=one, column="tags") for one in tokens},
        "bag": dp.Bag(lowercase=True, max_size=2, column="tags"),
        "listed": dp.Sequence(column="list"),
        "items": dp.Set(tokenizer="json"),
        "steps": dp.Sequence(add_start_stop=True, max_sequence_length=4, column="text"),
        "steps_left": dp.Sequence(special_symbols="ludwig", padding="left", min_frequency=2, column="text"),
        "steps_regex": dp.Sequence(tokenizer="regex", pattern=r"[a-z]+", sequence_length=2, column="text"),
        "parts": dp.Text(tokenizer="bpe", most_common=12, column="text"),
        "pieces": dp.Sequence(tokenizer="wordpiece", most_common=24, add_start_stop=True, column="text"),
        "unigrams": dp.Text(tokenizer="unigram", most_common=16, column="text"),
        "steps_end": dp.Sequence(add_start_stop=True, max_sequence_length=4, truncation="keep_end", column="text"),
        "text": "text",
        "text_both": dp.Text(level="both", column="text"),
        "text_components": dp.TextComponents(size=2, column="text"),
        "series": dp.Timeseries(padding_value=-1.0, timeseries_length_limit=4),
        "series_end": dp.Timeseries(timeseries_length_limit=2, truncation="keep_end", column="series"),
        "series_comma": dp.Timeseries(tokenizer="comma", padding="left", column="series"),
        "series_underscore": dp.Timeseries(tokenizer="underscore", fill_value="1_2", column="series"),
        "window": dp.Timeseries(window_size=3, padding_value=0.0, column="count"),
        "past": dp.History(last=3, column="text"),
        "point": dp.Vector(vector_size=2, fill_value="0 1"),
        "seen": "date",
        "seen_format": dp.Date(datetime_format="%d.%m.%Y", column="day"),
        "place": "h3",
        "place_marked": dp.H3(missing_indicator=True, column="place"),
        "window_marked": dp.Timeseries(window_size=2, padding_value=0.0, missing_indicator=True, column="count"),
    }


def frame() -> pd.DataFrame:
    table = pd.DataFrame({name: pd.Series(cells, dtype=object) for name, cells in TEXTS.items()})
    table["count"] = COUNTS
    table["count_above"] = [1, 2, 3, 0.5, 0, 100, 2, 3, None, 1]
    table["count_positive"] = [1, 2, 3, 0.5, 7, 100, 2, 3, None, 1]
    table["day"] = ["05.03.2021", "31.12.1999", "2020-02-29", "1.2.2003", "3/5/2021", *[None] * 5]
    table["list"] = [["a", "b"], ["b"], [], ["c c"], None, ["a"], ["B"], ["b", "b"], [""], None]
    return table


def vectors() -> Json:
    table = frame()
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # most cells cannot be read
        prep = dp.Preprocessor(features()).fit(table)
        prep.save(Path(folder) / "prep.json")
        saved = json.loads((Path(folder) / "prep.json").read_text(encoding="utf-8"))
    rows = table.astype(object).where(table.notna(), None).to_dict("records")
    arrays = {
        name: {"dtype": array.dtype.name, "shape": list(array.shape), "rows": array.tolist()}
        for name, array in prep.encode(table).items()
    }
    return {"saved": saved, "rows": rows, "arrays": arrays}


def laid_out(value: Any, depth: int) -> str:
    """Write JSON with a line per value of objects and of lists of objects, down to a depth."""
    if depth and isinstance(value, dict) and value:
        inner = [f"{text(key)}: {laid_out(one, depth - 1)}" for key, one in value.items()]
        return "{\n" + ",\n".join(inner) + "\n}"
    if depth and isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(map(text, value)) + "\n]"
    return text(value)


def text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


if __name__ == "__main__":
    SCHEMA.write_text(laid_out(schema(), 2) + "\n", encoding="utf-8")
    VECTORS.write_text(laid_out(vectors(), 3) + "\n", encoding="utf-8")
