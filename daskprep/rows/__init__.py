"""Parsers, encoders and decoders of single cells, which need only the standard library and NumPy.

`daskprep.serving` runs on these modules; encoders of columns import the same rules, patterns and constants.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from daskprep.errors import FormatVersionError
from daskprep.rows.base import RowEncoder, other_parameters
from daskprep.rows.parameter_names import from_saved_parameters
from daskprep.rows.tokens import TOKENIZERS

ROW_ENCODERS = {
    "number": "numbers.Number", "category": "classes.Category", "target_encoding": "classes.TargetEncoding",
    "binary": "classes.Binary", "set": "tokens.Set", "bag": "tokens.Bag", "sequence": "tokens.Sequence",
    "text": "tokens.Text", "text_components": "components.TextComponents", "date": "dates.Date", "h3": "h3.H3",
    "timeseries": "series.Timeseries", "vector": "series.Vector",
}  # fmt: skip
"""Module of each type, imported only if a feature needs it, and the name before `Parameters` and `RowEncoder`."""

_SUPPORTED = """
    missing_indicator invalid column normalization clip_quantiles encoding bins bin_strategy target target_type
    outlier_strategy outlier_threshold missing_value_strategy fill_value null_values written most_common
    min_frequency lowercase order hash_buckets oov_buckets columns handle_unknown transform_to smooth folds
    fold_group fold_time positive tokenizer ngram_size pattern pretrained_model_name_or_path max_size expand_to
    vocab_file sequence_length max_sequence_length padding truncation add_start_stop special_symbols level
    char_most_common char_max_sequence_length compute_idf size datetime_format parts cyclic since since_unit
    timeseries_length_limit padding_value window_size horizon group_by across_splits vector_size
"""
"""Parameters that row encoders support: a feature that sets others is encoded by column."""


def make_row_encoder(name: str, feature: Mapping[str, Any]) -> RowEncoder | None:
    """Return the row encoder of a feature; None if there is none for its type, tokenizer and parameters.

    `feature` has its type, parameters and learned state, as in the saved JSON. Raise FormatVersionError for a parameter
    that the type does not have in this version.
    """
    kind, params = feature["type"], feature["params"]
    if kind not in ROW_ENCODERS:
        return None
    module_name, _, class_name = ROW_ENCODERS[kind].partition(".")
    module = importlib.import_module(f"daskprep.rows.{module_name}")
    parameters = getattr(module, f"{class_name}Parameters")
    row_type: type[RowEncoder] = getattr(module, f"{class_name}RowEncoder")
    params = from_saved_parameters(kind, params)
    if unknown := sorted(params.keys() - {field.name for field in fields(parameters)}):
        raise FormatVersionError(
            f'feature "{name}": a {kind} has no parameter "{unknown[0]}" in this version of daskprep: '
            "upgrade it, or restore the file if it was altered"
        )
    for key in ("column", "group_by"):
        if not isinstance(value := params.get(key), str | None):
            raise TypeError(f"{key} is {str(value)[:80]}")
    if params.get("tokenizer", "space") not in TOKENIZERS and params.get("level") != "char":
        return None
    settings = parameters(**params)
    return row_type(name, settings, feature["learned"]) if not other_parameters(settings, _SUPPORTED) else None
