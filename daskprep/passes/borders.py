"""Borders of windows in scratch files, so that their exchange needs memory for a share of the groups.

The task of a partition writes its border, split by hashes of groups as counts of tokens are. A task for each share
reads this share of all borders, and writes the rows that each partition needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from daskprep.columns.summaries.token_counts import shard_groups
from daskprep.features.windows import WindowBorder, WindowImputer
from daskprep.sources import Source, partitions
from daskprep.storage.checkpoint import deserialize, serialize
from daskprep.storage.files import Folder

SHARE_ROWS = 1 << 20  # of all borders, in the memory of a task
MEMORY_BYTES = 32 << 20  # of all borders of a feature that are too small for files


@dataclass(frozen=True)
class Section:
    """A value in a part of a file."""

    folder: Folder
    name: str
    start: int
    stop: int

    def read(self) -> Any:
        return deserialize(self.folder.read(self.name, self.start, self.stop))


def write_sections(folder: Folder, name: str, values: Iterable[Any]) -> list[Section]:
    """Write values to a file one by one; return their sections."""
    sections, stop = [], 0
    with folder.writer(name, durable=False) as append:
        for value in values:
            start, stop = stop, stop + sum(map(append, serialize(value)))
            sections.append(Section(folder, name, start, stop))
    return sections


@dataclass(frozen=True)
class SavedRows:
    """Rows of other partitions in files, a section for each share."""

    shares: Sequence[range]
    sections: Sequence[Section]

    def read(self, share: int) -> Any:
        return self.sections[share].read()


@dataclass(frozen=True)
class BorderFiles:
    """The files of the borders of a source."""

    folder: Folder
    shares: Sequence[range]  # of the shards of groups
    limit_bytes: int  # smaller borders are in no file

    @classmethod
    def of(cls, source: Source, folder: Folder) -> BorderFiles | None:
        """Return the files of a source with known numbers of rows; None if all borders fit into memory."""
        shares = list(shard_groups(sum(source.row_counts or ()), SHARE_ROWS))
        return cls(folder, shares, MEMORY_BYTES // source.npartitions) if len(shares) > 1 else None

    def save(self, partition: int, borders: Mapping[str, Any]) -> dict[str, Any]:
        """Return the borders of a partition by feature, the large ones as a section for each share."""

        def save_large(label: str, border: Any) -> Any:
            if isinstance(border, dict):
                return {code: save_large(f"{label}-{code}", one) for code, one in border.items()}
            if not isinstance(border, WindowBorder) or border.nbytes <= self.limit_bytes:
                return border
            return write_sections(self.folder, f"border-{label}-{partition}.scratch", border.split(self.shares))

        return {name: save_large(str(number), borders[name]) for number, name in enumerate(borders)}

    def exchange(self, label: str, imputer: WindowImputer, borders: Sequence[Any]) -> list[SavedRows]:
        """Return, for each partition, files of rows of other ones that its windows need."""
        by_border = [
            one if isinstance(one, list) else list(one.split(self.shares)) for one in [*imputer._before, *borders]
        ]
        shares = list(enumerate(zip(*by_border, strict=True)))
        results = partitions.run_tasks("exchange", _exchange_share, (self.folder, label, imputer), shares)
        imputer.check_order(sum(late for late, _ in results))
        return [
            SavedRows(self.shares, sections) for sections in zip(*(sections for _, sections in results), strict=True)
        ]


def _exchange_share(
    shared: tuple[Folder, str, WindowImputer], argument: tuple[int, Sequence[Section | WindowBorder]]
) -> tuple[int, list[Section]]:
    """Write the rows that each partition needs of a share; return the number of late rows, and a section for each."""
    (folder, label, imputer), (number, parts) = shared, argument
    borders = [one.read() if isinstance(one, Section) else one for one in parts]
    return imputer.count_late(borders), write_sections(
        folder, f"outer-{label}-{number}.scratch", imputer.outer_rows(borders, len(imputer._before))
    )
