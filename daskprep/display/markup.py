"""Safe HTML: every string that is not `Markup` is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable

_VOID = frozenset({"br", "img", "input", "link", "meta"})


class Markup(str):
    """String that is already HTML."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: object) -> Markup:
    """Return an HTML element; attributes that are None are omitted, and `class_` becomes "class".

    Examples
    --------
    >>> element("p", "1 < 2", element("b", "!"), class_="note", title=None)
    '<p class="note">1 &lt; 2<b>!</b></p>'
    """
    attribute_text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{attribute_text}>")
    return Markup(f"<{name}{attribute_text}>{join(children)}</{name}>")


def join(children: Iterable[str]) -> Markup:
    """Concatenate strings as HTML."""
    return Markup("".join(child if isinstance(child, Markup) else html.escape(child) for child in children))
