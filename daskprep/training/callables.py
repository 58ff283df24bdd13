"""Functions that a configuration names, found among those that a program allows."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

from daskprep.errors import ConfigError


def check_callables(option: str, given: Any, allowed: Iterable[str]) -> None:
    """Refuse what can neither be called nor is the name of something that is allowed; nothing is imported."""
    for one in [given] if isinstance(given, str) or not isinstance(given, Iterable) else given:
        if isinstance(one, str):
            _check_name(option, one, tuple(allowed))
        elif not callable(one):
            raise ConfigError(f"{option}={one!r}: expected a callable or its dotted name")


def resolve(option: str, given: Any, allowed: Iterable[str]) -> Callable[..., Any]:
    """Return what a dotted name such as ``"mypackage.steps.lower"`` stands for, if it is allowed; callables stay."""
    check_callables(option, [given], allowed)
    found: Callable[..., Any] = given
    if not isinstance(given, str):
        return found
    module, _, attribute = given.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ConfigError(f'{option}: cannot import "{given}": {error}') from error
    if not callable(found):
        raise ConfigError(f'{option}: "{given}" is {found!r}, which is not callable')
    return found


def _check_name(option: str, name: str, allowed: tuple[str, ...]) -> None:
    if not all(part.isidentifier() for part in name.split(".")) or "." not in name:
        raise ConfigError(f'{option}: "{name}" is not the dotted name of a function, such as "mypackage.steps.lower"')
    if not any(name.startswith(one) if one.endswith(".") else name == one for one in allowed):
        raise ConfigError(
            f'{option}: "{name}" may not be imported (allowed: {", ".join(map(repr, allowed)) or "none"}): pass the '
            f'function itself, or allow it, as in DataModule(..., allowed=["{name.partition(".")[0]}."])'
        )
