"""Parsers, encoders and decoders of single cells, which need only the standard library and NumPy.

`daskprep.serving` runs on these modules; encoders of columns import the same rules, patterns and constants.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from daskprep.errors import FormatVersionError
from daskprep.steps.base import RowEncoder
from daskprep.steps.text_tokenizers import TOKENIZERS

ROW_ENCODERS = {
    "number": "numbers.NumberRowEncoder", "category": "classes.CategoryRowEncoder",
    "binary": "classes.BinaryRowEncoder", "set": "tokens.SetRowEncoder", "bag": "tokens.BagRowEncoder",
    "sequence": "tokens.SequenceRowEncoder", "text": "tokens.TextRowEncoder", "date": "dates.DateRowEncoder",
    "h3": "h3.H3RowEncoder", "target_encoding": "classes.TargetEncodingRowEncoder",
    "timeseries": "series.TimeseriesRowEncoder", "vector": "series.VectorRowEncoder",
}  # fmt: skip
"""Module and class of each type's row encoder; a module is imported only if a feature needs it."""
# Parameters by type, repeated here because the modules of the types import pandas.
_COMMON_PARAMETERS = {"column", "fill_value", "invalid", "missing_indicator", "missing_value_strategy"}
_TEXT_PARAMETERS = "lowercase min_frequency most_common ngram_size pattern pretrained_model_name_or_path tokenizer "
_SEQUENCE_PARAMETERS = _TEXT_PARAMETERS + (
    "add_start_stop max_sequence_length padding padding_symbol sequence_length special_symbols truncation "
    "unknown_symbol vocab_file "
)
_PARAMETERS = {
    "number": "bin_strategy bins clip_quantiles encoding normalization null_values outlier_strategy outlier_threshold "
    "target target_type written",
    "category": "columns handle_unknown hash_buckets lowercase min_frequency most_common null_values oov_buckets order "
    "transform_to",
    "binary": "fallback_true_label null_values",
    "set": _TEXT_PARAMETERS + "expand_to max_size",
    "bag": _TEXT_PARAMETERS + "max_size",
    "sequence": _SEQUENCE_PARAMETERS,
    "text": _SEQUENCE_PARAMETERS + "char_max_sequence_length char_most_common compute_idf level",
    "date": "cyclic datetime_format parts since since_unit",
    "h3": "",
    "target_encoding": "encoding fold_group fold_time folds lowercase null_values smooth target target_type",
    "timeseries": "across_splits group_by horizon padding padding_value timeseries_length_limit tokenizer truncation "
    "window_size",
    "vector": "vector_size",
}


def make_row_encoder(name: str, feature: Mapping[str, Any]) -> RowEncoder | None:
    """Return the row encoder of a feature; None if there is none for its type or tokenizer.

    `feature` has its type, parameters and learned state, as in the saved JSON. Raise FormatVersionError for a parameter
    that the type does not have in this version.
    """
    kind, params = feature["type"], feature["params"]
    if kind not in ROW_ENCODERS:
        return None
    if unknown := sorted(set(params) - _COMMON_PARAMETERS - set(_PARAMETERS[kind].split())):
        raise FormatVersionError(
            f'feature "{name}": a {kind} has no parameter "{unknown[0]}" in this version of daskprep: '
            "upgrade it, or restore the file if it was altered"
        )
    for key in ("column", "group_by"):
        if not isinstance(value := params.get(key), str | None):
            raise TypeError(f"{key} is {str(value)[:80]}")
    if params.get("tokenizer", "space") not in TOKENIZERS and params.get("level") != "char":
        return None
    module, _, encoder = ROW_ENCODERS[kind].partition(".")
    row_type: type[RowEncoder] = getattr(importlib.import_module(f"daskprep.steps.{module}"), encoder)
    return row_type(name, params, feature["learned"])
