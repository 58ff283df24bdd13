"""Signatures of functions with ``**options``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any


def full_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function or class, with the keys of a TypedDict for ``**options: Unpack[...]``."""
    function = function.__init__ if inspect.isclass(function) else function
    signature = inspect.signature(function)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if unpacked := re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation)):
            options = inspect.unwrap(function).__globals__[unpacked[1]].__annotations__
            parameters += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in options]
        else:
            parameters.append(parameter)
    return signature.replace(parameters=parameters)
