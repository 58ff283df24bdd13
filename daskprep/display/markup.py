"""HTML that is safe because of how it is made: whatever is no `Markup` is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable

_VOID = frozenset({"br", "img", "input", "link", "meta"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: object) -> Markup:
    """Return an element; attributes that are None are left out, and "class_" stands for "class".

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
    """Return what stands one after the other."""
    return Markup("".join(child if isinstance(child, Markup) else html.escape(child) for child in children))
