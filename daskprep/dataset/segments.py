"""Segments of a dataset: the files of one write, and the rows in them that are deleted."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from daskprep.columns.permutation import Integers
from daskprep.dataset.cache import make_cache_name
from daskprep.errors import ConfigError, CorruptDatasetError, IncompleteDatasetError
from daskprep.passes.state import METADATA
from daskprep.storage import FileEntry, Folder, Layout, Manifest, read_manifest
from daskprep.storage.arrays import ROW_ID
from daskprep.storage.manifest import NEXT, LossCounts, MissingCell
from daskprep.storage.reading import REMEDY, VersionFiles
from daskprep.storage.security import require_safe, require_safe_url
from daskprep.storage.tables import REJECTS, REJECTS_SCHEMA, read_bounded_table

HiddenRows = Mapping[str, Integers]
"""Positions of deleted rows in each split as it is stored, sorted; for `REJECTED`, row ids."""

REJECTED = "rejects"
_NO_ROWS = np.empty(0, np.int64)
# Files and folders that a version has before its manifest is written.
_UNFINISHED_FILES = frozenset({METADATA, "receipts", "scratch"})
_DELETED_SCHEMA = pa.schema(
    [pa.field(name, kind, nullable=False) for name, kind in (("part", pa.int64()), ("split", pa.string()))]
    + [pa.field("row", pa.int64(), nullable=False)]
)


def encode_deleted(parts: Sequence[HiddenRows]) -> tuple[str, bytes]:
    """Return the name and the content of the file of the deleted rows of each part."""
    tables = [
        pa.table([np.full(len(rows), part), pa.repeat(split, len(rows)), rows], schema=_DELETED_SCHEMA)
        for part, hidden in enumerate(parts)
        for split, rows in sorted(hidden.items())
    ]
    sink, table = pa.BufferOutputStream(), pa.concat_tables([_DELETED_SCHEMA.empty_table(), *tables])
    pq.write_table(table, sink, compression="zstd", store_schema=False)
    data: bytes = sink.getvalue().to_pybytes()
    return f"deleted-{hashlib.sha256(data).hexdigest()[:16]}.parquet", data


def read_deleted(root: Folder, name: str | None, parts: int) -> list[HiddenRows]:
    """Return the deleted rows of each part; none for name None, CorruptDatasetError if altered."""
    hidden: list[dict[str, Integers]] = [{} for _ in range(parts)]
    if name is None:
        return list(hidden)
    try:
        data = root.read(name)
        if name != f"deleted-{hashlib.sha256(data).hexdigest()[:16]}.parquet":
            raise CorruptDatasetError("its bytes do not match its name")
        table = read_bounded_table(io.BytesIO(data), _DELETED_SCHEMA)
    except (CorruptDatasetError, FileNotFoundError) as error:
        raise CorruptDatasetError(f"{root.url}/{name} is damaged: {error}; restore it from a copy") from error
    splits = table["split"].combine_chunks().dictionary_encode()
    numbers, codes, rows = (column.to_numpy() for column in (table["part"], splits.indices, table["row"]))
    for part, own in enumerate(hidden):
        is_own = numbers == part
        for code in np.flatnonzero(np.bincount(codes[is_own])).tolist():
            own[splits.dictionary[code].as_py()] = sort_distinct(rows[is_own & (codes == code)])
    return list(hidden)


def sort_distinct(rows: Integers) -> Integers:
    """Return the distinct numbers in order: for a million that are nearly in order, 20 times as fast as `np.unique`."""
    rows = np.sort(rows)
    return rows[np.diff(rows, prepend=rows[:1] - 1) > 0]


def visible_cells(cells: Iterable[MissingCell], hidden: HiddenRows) -> tuple[MissingCell, ...]:
    """Return the cells of rows that are not hidden."""
    return tuple(one for one in cells if one[1] not in hidden.get(one[0], _NO_ROWS))


@dataclass(frozen=True, eq=False)
class Segment:
    """The files of one write, and the rows in them that are deleted: a dataset is a list of segments."""

    root: Folder
    manifest: Manifest
    base_dir: str | None = None  # of relative media paths; None: the folder recorded at the write
    trusted: bool = False
    hidden: HiddenRows = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, rows in self.manifest.layout.rows.items():
            if len(own := self.hidden.get(name, _NO_ROWS)) and not 0 <= own[0] <= own[-1] < rows:
                url = self.root.url
                raise CorruptDatasetError(f"{url} has {rows:,} rows in {name}, and row {own[-1]:,} is deleted")

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        own = self.root, self.manifest.version, self.manifest.digest, self.base_dir, self.trusted, self.hidden
        return _reopen, own

    @cached_property
    def files(self) -> VersionFiles:
        return VersionFiles(self.root / self.manifest.version, self.manifest.files)

    @cached_property
    def layout(self) -> Layout:
        """The layout without deleted rows; the layout of the manifest locates files."""
        return self.manifest.layout.hide(self.hidden) if self.hidden else self.manifest.layout

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the manifest, or another one if rows are deleted."""
        if not self.hidden:
            return self.manifest.digest
        return make_cache_name(stored=self.manifest.digest, hidden=encode_deleted([self.hidden])[0])

    @property
    def state_entries(self) -> dict[str, FileEntry]:
        """Entries of the files with the fitted state; equal entries have equal states."""
        entries = self.files.entries.items()
        return {name: entry for name, entry in entries if name == METADATA or name.startswith("vocab/")}

    @property
    def missing_cells(self) -> tuple[MissingCell, ...] | None:
        """Missing and unreadable cells of the first rows of each split; None of older writes, without this record."""
        if self.manifest.missing_cells is None:
            return None
        return tuple(
            (split, row - int(np.searchsorted(self.hidden.get(split, _NO_ROWS), row)), name, kind)
            for split, row, name, kind in visible_cells(self.manifest.missing_cells, self.hidden)
        )

    @property
    def loss_counts(self) -> Mapping[str, LossCounts] | None:
        return None if self.hidden else self.manifest.loss_counts()

    def rejects(self) -> pa.Table:
        """Return the rows that could not be used, as `Dataset.rejects`; CorruptDatasetError if altered."""
        if REJECTS not in self.files.entries:
            return REJECTS_SCHEMA.empty_table()
        try:
            table = read_bounded_table(io.BytesIO(self.files.read(REJECTS)), REJECTS_SCHEMA)
        except CorruptDatasetError as error:
            raise CorruptDatasetError(f"{self.files.folder.url}/{REJECTS} cannot be used: {error}; {REMEDY}") from error
        hidden = self.hidden.get(REJECTED, _NO_ROWS)
        return table.filter(pa.array(~np.isin(table[ROW_ID.name].to_numpy(), hidden))) if len(hidden) else table


def open_segment(root: Folder, base_dir: str | None, *, trusted: bool, digest: str | None = None) -> Segment:
    """Open the files of a write; raise ConfigError or IncompleteDatasetError if the folder has no manifest.

    If its manifest does not have the `digest`, but the next one has, that is opened.
    """
    if not trusted:
        remedy = ", or open the dataset with trusted=True if you trust its author"
        require_safe("pyarrow", remedy)
        if not root.is_local and not root.is_process_local:
            require_safe_url(root.url.partition("://")[0], remedy)
    manifest = read_manifest(root)
    if manifest is None:
        raise _missing_dataset_error(root)
    if digest not in (None, manifest.digest) and (following := read_manifest(root, NEXT)) is not None:
        manifest = following if following.digest == digest else manifest
    segment = Segment(root, manifest, base_dir, trusted)
    try:
        for name in segment.state_entries:
            segment.files.read(name)
    except CorruptDatasetError:
        current = read_manifest(root)  # the dataset may have been written again after its manifest was read
        if current is None or current.to_bytes() == manifest.to_bytes():
            raise
        return open_segment(root, base_dir, trusted=trusted, digest=digest)
    segment.files.entry(METADATA)
    return segment


def _missing_dataset_error(root: Folder) -> Exception:
    """Return the error for a folder without a manifest: ConfigError, or IncompleteDatasetError after a failed write."""
    unfinished = [name for name in root.children() if _UNFINISHED_FILES & set((root / name).children())]
    if not unfinished:
        is_file = root.is_local and Path(root.path).is_file()
        if is_file:
            return ConfigError(
                f"{root.url} is a file, not a dataset: use Preprocessor.load for a saved Preprocessor, or fit_write "
                "for rows"
            )
        return ConfigError(f"no dataset at {root.url}: check the path, or write one there")
    return IncompleteDatasetError(
        f"the dataset at {root.url} was never finished: it has no manifest, only {', '.join(unfinished)}; "
        "run the write again to resume it"
    )


def _reopen(
    root: Folder, version: str, digest: str, base_dir: str | None, trusted: bool, hidden: HiddenRows
) -> Segment:
    """Open an unpickled segment; ConfigError if it was written again since it was pickled."""
    segment = open_segment(root, base_dir, trusted=trusted, digest=digest)
    if segment.manifest.digest != digest:
        raise ConfigError(
            f"the dataset at {root.url} is not the one that was pickled (version {segment.manifest.version}, not "
            f"{version}, or other files under the same name): it was written again; open it again"
        )
    return replace(segment, hidden=hidden)
