"""Parsers, encoders and decoders of single cells, which need only the standard library and NumPy.

In: a saved state and the cells of a row. Out: its arrays, or labels for the outputs of a model. `daskprep.serving`
runs on these modules; encoders of columns import the same rules, patterns and constants.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from daskprep.errors import FormatVersionError
from daskprep.rows.base import RowEncoder, changed_parameters
from daskprep.rows.parameter_names import from_saved_parameters
from daskprep.rows.tokens import TOKENIZERS
from daskprep.rows.typed import check_fields

ROW_ENCODERS = {
    "number": "numbers.Number", "category": "classes.Category", "target_encoding": "classes.TargetEncoding",
    "binary": "classes.Binary", "set": "tokens.Set", "bag": "tokens.Bag", "sequence": "tokens.Sequence",
    "text": "tokens.Text", "text_components": "components.TextComponents", "date": "dates.Date", "h3": "h3.H3",
    "timeseries": "series.Timeseries", "vector": "series.Vector",
}  # fmt: skip
"""Module of each type, imported only if a feature needs it, and the name before `Parameters` and `RowEncoder`."""


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
    check_fields(parameters, params)
    if params.get("tokenizer", "space") not in TOKENIZERS and params.get("level") != "char":
        return None
    settings = parameters(**params)
    columns_only = {field.name for field in fields(settings) if not field.metadata.get("rows", True)}
    if columns_only & changed_parameters(settings):
        return None
    return row_type.create(name, settings, feature["learned"])
