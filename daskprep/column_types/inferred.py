"""The features that were guessed, as a mapping that says why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from daskprep.display.tables import Description, Row, Table
from daskprep.display.words import count, cut
from daskprep.features import Feature

_NAME_CHARACTERS, _REASON_CHARACTERS = 40, 200


class InferredFeatures(Mapping[str, Feature]):
    """A feature for each useful column, in the order of the columns; pass it to a Preprocessor.

    Attributes
    ----------
    reasons : dict of str to str
        Reason for the type of each column.
    skipped : dict of str to str
        Columns that were left out, and why.
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
        return self._description().text()

    def _repr_html_(self) -> str:
        return self._description().html()

    def _description(self) -> Description:
        columns = [(name, feature.kind, self.reasons[name]) for name, feature in self._features.items()]
        columns += [(name, "skipped", reason) for name, reason in self.skipped.items()]
        line = f"{count(len(self), 'feature')}, {len(self.skipped):,} skipped"
        return Description([line], [Table(("column", "type", "why"), columns, _row, "column")])


def _row(column: tuple[str, str, str]) -> Row:
    name, kind, why = column
    return cut(name, _NAME_CHARACTERS), kind, cut(why, _REASON_CHARACTERS)
