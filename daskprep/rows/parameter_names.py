"""Parameters of types under the names that they have in saved files, in earlier versions, and in Ludwig."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

# Parameters that were renamed; saved files keep the former name.
SAVED_AS = {"positive": "fallback_true_label", "sample_size": "infer_image_sample_size"}
PARAMETER_NAMES = {saved_as: name for name, saved_as in SAVED_AS.items()}
_SYMBOLS = {"padding_symbol": "<PAD>", "unknown_symbol": "<UNK>"}
# Parameters that types no longer have, by type, with the values that saved files keep.
REMOVED: Mapping[str, Mapping[str, Any]] = {
    "image": {
        "infer_image_num_channels": True, "infer_image_dimensions": True, "infer_image_max_height": 256,
        "infer_image_max_width": 256, "requires_equal_dimensions": False, "infer_image_num_classes": False,
    },
    "sequence": _SYMBOLS, "history": _SYMBOLS, "text": _SYMBOLS,
}  # fmt: skip
LUDWIG_SYMBOLS: dict[Literal["padding", "unknown", "start", "stop"], str] = {
    "stop": "<EOS>", "start": "<SOS>", "padding": "<PAD>", "unknown": "<UNK>",
}  # fmt: skip
_DELIMITERS = {"start": "<START>", "stop": "<STOP>"}


def to_saved_parameters(kind: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters of a type under names of saved files."""
    saved = {SAVED_AS.get(name, name): value for name, value in params.items()}
    if kind in REMOVED:
        saved = dict(sorted({**saved, **REMOVED[kind]}.items()))  # in the order of earlier versions
    if kind == "image" and saved["num_classes"] == "auto":
        saved |= {"num_classes": None, "infer_image_num_classes": True}
    return saved


def from_saved_parameters(kind: str, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters under their current names."""
    removed = REMOVED.get(kind, {})
    params = {PARAMETER_NAMES.get(name, name): value for name, value in saved.items() if name not in removed}
    former = {**removed, **{name: value for name, value in saved.items() if name in removed}}
    if kind == "image":
        height, width = params.get("height"), params.get("width")
        if former["requires_equal_dimensions"] is True and isinstance(height, int) and isinstance(width, int):
            params |= dict.fromkeys(("height", "width"), min(height, width))
        if former["infer_image_num_classes"] is True and params.get("num_classes") is None:
            params["num_classes"] = "auto"
    elif former != removed and not isinstance(specials := params.get("special_symbols"), Mapping):
        delimiters = _DELIMITERS if params.get("add_start_stop") else {}
        order = LUDWIG_SYMBOLS if specials == "ludwig" else {"padding": "", **delimiters, "unknown": ""}
        symbols = {"padding": former["padding_symbol"], "unknown": former["unknown_symbol"]}
        params["special_symbols"] = {**order, **symbols}
    return params
