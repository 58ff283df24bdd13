"""The features that were guessed, as a mapping that says why."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping

from daskprep.features import Feature

__all__ = ["InferredFeatures"]

_NAME_CHARACTERS, _REASON_CHARACTERS = 40, 200
_MOST_ROWS = 200
_TITLES = ("column", "type", "why")
_CELL = "text-align:left;vertical-align:top;padding:2px 12px 2px 0;overflow-wrap:anywhere"
_ROW = "background:transparent;border-bottom:1px solid rgba(128,128,128,0.4)"


class InferredFeatures(Mapping[str, Feature]):
    """A feature for each column that is of use, in the order of the columns; it goes into a Preprocessor as it is.

    Attributes
    ----------
    reasons : dict of str to str
        Why each has the type it has.
    skipped : dict of str to str
        The other columns, and why they are left out.
    """

    def __init__(self, features: Mapping[str, Feature], reasons: Mapping[str, str], skipped: Mapping[str, str]) -> None:
        self._features = dict(features)
        self.reasons = dict(reasons)
        self.skipped = dict(skipped)

    def __getitem__(self, name: str) -> Feature:
        return self._features[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._features)

    def __len__(self) -> int:
        return len(self._features)

    def __repr__(self) -> str:
        table = [_TITLES, *self._rows()]
        widths = [max(len(row[place]) for row in table) for place in range(2)]
        lines = (f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]}".rstrip() for row in table)
        return "\n".join([self._caption(), *lines])

    def _repr_html_(self) -> str:
        rows = ["".join(f'<th scope="col" style="{_CELL}">{title}</th>' for title in _TITLES)]
        rows += ["".join(f'<td style="{_CELL}">{html.escape(cell)}</td>' for cell in row) for row in self._rows()]
        return (
            '<table style="border-collapse:collapse;color:inherit">'
            f'<caption style="caption-side:top;text-align:left;color:inherit">{self._caption()}</caption>'
            + "".join(f'<tr style="{_ROW}">{row}</tr>' for row in rows)
            + "</table>"
        )

    def _caption(self) -> str:
        return f"{len(self):,} feature{'s' * (len(self) != 1)}, {len(self.skipped):,} skipped"

    def _rows(self) -> list[tuple[str, str, str]]:
        rows = [(name, feature.kind, self.reasons[name]) for name, feature in self._features.items()]
        rows += [(name, "skipped", reason) for name, reason in self.skipped.items()]
        shown = [(_line(name, _NAME_CHARACTERS), kind, _line(why, _REASON_CHARACTERS)) for name, kind, why in rows]
        if len(shown) > _MOST_ROWS:
            return [*shown[:_MOST_ROWS], ("…", "", f"and {len(shown) - _MOST_ROWS:,} more columns")]
        return shown


def _line(text: str, limit: int) -> str:
    """Return text that takes one line."""
    printable = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
    return printable if len(printable) <= limit else f"{printable[: limit - 1]}…"
