"""What images and sounds have in common: cells of paths and bytes, which are only decoded where arrays are wanted."""

from __future__ import annotations

import copy
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import TypeVar

from daskprep.errors import ConfigError, MediaError, RejectedValueError
from daskprep.features.base import Learned, MediaContract
from daskprep.features.feature import Feature, with_parameters
from daskprep.features.missing import Carry, Edge, Neighbours, Strategy
from daskprep.media.cells import Kind, media_cells
from daskprep.media.decoding import STORED_TYPE, MediaDecoder, content_of
from daskprep.media.reader import MediaReader, save_in_memory
from daskprep.storage.files import Folder
from daskprep.storage.urls import check_own, public_name
from daskprep.summaries import ColumnSummary, FileSample, SampledFile

Mode = Literal["lazy", "lazy_cached", "eager"]
OnError = Literal["raise", "fill", "drop"]

# The error says why a cell cannot be decoded, where such rows are dropped.
PARSED_TYPE = pa.struct([*STORED_TYPE, ("error", pa.string())])
_ABSOLUTE = r"^(/|~|[^/]+://)"
_SAMPLE_THREADS = 8  # files of the sample that are read at a time
_PATH_BYTES = 64  # about what a stored cell takes where there was none to look at


class Found(NamedTuple):
    """What was found in a file of the sample: its size, and what the type looks for, or why it cannot be decoded."""

    file_bytes: int
    facts: Any = None
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class LearnedMedia(Learned):
    """The mean bytes of a cell, path or file, as a write carries it; and where relative paths begin."""

    file_bytes: int = 0
    base_dir: str | None = None
    fill_value: float | None = None


MediaT = TypeVar("MediaT", bound=LearnedMedia, default=Any)


@with_parameters
class MediaFeature(Feature[FileSample, MediaT], MediaContract):
    """Base of images and sounds.

    Parsed cells are structs of `path` and `bytes`, of which one is there, and an `error` where `on_error="drop"` has
    found one. A subclass says what it looks for in a file of the sample, and makes the decoder of what was learned.
    """

    media: ClassVar[Kind]
    known_formats: ClassVar[tuple[str, ...]]
    _folders: ClassVar[tuple[str, ...]] = ()

    mode: Mode = "lazy"
    pack: bool = False
    prefetch_size: int | None = None
    lazy_cache_dir: str | None = None
    base_dir: str | None = None
    on_error: OnError = "raise"
    formats: Sequence[str] | None = None
    missing_value_strategy: Strategy = "bfill"

    def _sample_cells(self, learned: MediaT) -> list[str | None]:
        return []

    # -- what a type defines

    @abstractmethod
    def decoder(self, learned: MediaT, base_dir: str | None = None) -> MediaDecoder:
        """Return what decodes cells; relative paths start in `base_dir`, or else in that of the feature."""

    @abstractmethod
    def facts_of(self, content: pa.Buffer | bytes) -> Any:
        """Return what is to be known of a file of the sample; MediaError if it cannot be decoded."""

    @abstractmethod
    def test(self, content: pa.Buffer | bytes) -> None:
        """Raise MediaError if a file cannot be decoded, in as little time as possible."""

    @property
    @abstractmethod
    def sample_size(self) -> int:
        """How many files are to be looked at to learn, 0 if none."""

    # -- what both share

    def check(self) -> None:
        name = type(self).__name__
        if self.missing_value_strategy == "fill_with_mode":
            raise ConfigError(f'{name}: "fill_with_mode" is not supported: use "bfill", "ffill" or "drop_row"')
        if self.pack and self.mode == "eager":
            raise ConfigError(f'{name}: pack=True is for lazy modes, and mode="eager" stores what is decoded')
        for place in ("base_dir", "lazy_cache_dir"):
            given = getattr(self, place)
            if given is not None and public_name(given) != given:
                raise ConfigError(
                    f"{name}: {place} holds a password or a signature, which would be written to the dataset: give it "
                    "without, and credentials by the environment or fsspec's configuration"
                )
        if self.prefetch_size is not None and self.prefetch_size < 0:
            raise ConfigError(f"{name}: prefetch_size must be at least 0, not {self.prefetch_size}")
        if isinstance(self.formats, str) or (self.formats is not None and not self.formats):
            known = ", ".join(self.known_formats)
            raise ConfigError(f"{name}: formats must be a list of {known}, not {self.formats!r}")

    @property
    def allowed_formats(self) -> tuple[str, ...]:
        """The formats that files may have."""
        return self.known_formats if self.formats is None else tuple(self.formats)

    def read_cells(self, column: pa.ChunkedArray, name: str) -> pa.Array:
        cells = media_cells(column, self.media, getattr(self, "sampling_rate", None))
        in_memory = pc.struct_field(cells, "bytes").null_count < len(cells)
        if in_memory and self.lazy_cache_dir is not None and self.mode != "eager":
            check_own(self.lazy_cache_dir, "lazy_cache_dir")
            cells = save_in_memory(cells, Folder.open(self.lazy_cache_dir) / _folder_name(name), self.media)
        return self._parsed(cells)

    def parse(self, column: pa.Array) -> pa.Array:
        return self._parsed(media_cells(column, self.media, getattr(self, "sampling_rate", None)))

    def _parsed(self, cells: pa.StructArray) -> pa.StructArray:
        path, data = (pc.struct_field(cells, name) for name in ("path", "bytes"))
        if self.base_dir is None:
            relative = pc.invert(pc.match_substring_regex(path, _ABSOLUTE))
            if pc.any(relative).as_py():
                here = pa.scalar(f"{self._folder(path.filter(relative)[0]).rstrip('/')}/")
                path = pc.if_else(relative, pc.binary_join_element_wise(here, path, ""), path)
        parsed = _struct([data, path, pa.nulls(len(cells), pa.string())], cells.is_null())
        if self.on_error != "drop":
            return parsed
        reader = self.reader()
        errors = pa.array([self._error(cell, reader) for cell in parsed], pa.string())
        return _struct([data, path, errors], cells.is_null())

    def _error(self, cell: pa.StructScalar, reader: MediaReader) -> str | None:
        if cell.is_valid:
            try:
                self.test(content_of(cell, reader))
            except MediaError as error:
                return str(error)
        return None

    @property
    def absolute_base(self) -> str | None:
        """Where relative paths begin, whatever the current folder will be."""
        return None if self.base_dir is None else _absolute(self.base_dir)

    def beside(self, folders: tuple[str, ...]) -> Self:
        # In the process that knows the source: that of a task may be in another folder.
        placed = copy.copy(self)
        vars(placed)["_folders"] = folders or (os.getcwd(),)  # noqa: PTH109 a Path would tidy it up
        return placed

    def _folder(self, path: pa.Scalar) -> str:
        """Return where relative paths begin without a base."""
        if len(self._folders) > 1:
            raise ConfigError(
                f'"{path}" is a relative path, and files of the data lie in {len(self._folders)} folders, such as '
                f"{self._folders[0]} and {self._folders[1]}: say by base_dir where such paths begin"
            )
        return self._folders[0] if self._folders else os.getcwd()  # noqa: PTH109 as above

    def fingerprint(self) -> str:
        # Without a base, what relative paths mean depends on the folder.
        return "" if self.base_dir is not None else "\n".join(self._folders) or os.getcwd()  # noqa: PTH109 as above

    def reader(self, base_dir: str | None = None) -> MediaReader:
        """Return what reads the files that cells name."""
        base = self.base_dir if base_dir is None else base_dir
        also = () if self.lazy_cache_dir is None else (self.lazy_cache_dir,)
        return MediaReader(None if base is None else _absolute(base), also=tuple(map(_absolute, also)))

    def parse_fill(self, value: object) -> pa.Array:
        # The decoder knows what stands for a missing cell; no file does.
        return pa.nulls(1, PARSED_TYPE)

    def _learn_fallback(self, summary: ColumnSummary[FileSample]) -> float:
        return 0

    def summarize(self, parsed: pa.Array) -> FileSample:
        present = sound_cells(parsed).drop_null()
        path, data = (pc.struct_field(present, name) for name in ("path", "bytes"))
        return FileSample.of(path, data, self.sample_size, self._found)

    def _found(self, content: pa.Buffer | bytes) -> Found:
        try:
            return Found(len(content), self.facts_of(content))
        except MediaError as error:
            return Found(len(content), error=str(error))

    def sample(self, summary: FileSample) -> list[Found]:
        """Return what was found in the files of the sample, which are opened if they are not in memory."""
        reader = self.reader()

        def look(file: SampledFile) -> Found:
            if not file.path:
                found: Found = file.facts
                return found
            try:
                return self._found(reader.read(file.path))
            except MediaError as error:
                return Found(0, error=f'"{public_name(file.path)}": {error}')

        with ThreadPoolExecutor(_SAMPLE_THREADS, thread_name_prefix="daskprep-sample") as pool:
            return list(pool.map(look, summary.files))

    def readable(self, sample: Sequence[Found], remedy: str) -> list[Found]:
        """Return the files of the sample that can be decoded, at least one."""
        found = [file for file in sample if not file.error]
        if not found and sample:
            raise MediaError(
                f"none of {len(sample)} files can be decoded to learn from them, the first because: {sample[0].error}; "
                f"correct the files, set base_dir, or give {remedy}"
            )
        if not found:
            raise MediaError(f"there is no {self.kind} to learn from: give {remedy}")
        return found

    def cell_size(self, summary: FileSample, sample: Iterable[Found]) -> int:
        """Return the mean bytes of what is carried of a cell, or stored of it, about."""
        sizes = [file.file_bytes for file in sample if file.file_bytes] if self.pack else []
        if sizes:
            return max(1, round(sum(sizes) / len(sizes)))
        return max(1, round(summary.bytes / summary.cells)) if summary.cells else _PATH_BYTES

    @property
    def around(self) -> Neighbours | None:
        return _MediaAround.of(self.missing_value_strategy)

    @property
    def drops(self) -> Callable[[pa.Array, MediaT], np.ndarray] | None:
        if self.on_error != "drop":
            return None
        return lambda parsed, _: pc.struct_field(parsed, "error").is_valid().to_numpy(zero_copy_only=False)

    def why_dropped(self, cell: Any) -> str:
        """Say why the row of a cell, given as a Python value, is left out."""
        path = cell["path"]
        name = "bytes in memory" if path is None else public_name(path)
        return f"{name}: {(cell['error'] or 'is left out').removeprefix(f'{name}: ')}"

    def encode(self, parsed: pa.Array, learned: MediaT) -> np.ndarray:
        return self._decoded(parsed, learned)[0]

    def _decoded(self, parsed: pa.Array, learned: MediaT) -> tuple[np.ndarray, list[int]]:
        """Return decoded cells, and the rows for which a fill value stands."""
        decoder = self.decoder(learned)
        out = np.empty((len(parsed), *decoder.shape), decoder.dtype)
        failures = decoder.decode(parsed, out)
        if failures and self.on_error == "raise":
            row, cell, reason = failures[0]
            raise MediaError(
                f"row {row} of this partition, {cell}: {reason} ({len(failures)} such cells in this partition); "
                'correct the file, or use on_error="fill" or "drop"'
            )
        return out, [failure.row for failure in failures]

    def carry_column(self, parsed: pa.Array, learned: MediaT) -> dict[str, pa.Array]:
        if parsed.null_count and learned.fill_value is None:
            raise RejectedValueError(
                f"{parsed.null_count} missing cells and no {self.kind} in the whole column for "
                f'"{self.missing_value_strategy}" to take: use "fill_with_const" with a fill_value'
            )
        fields = [pc.struct_field(parsed, field.name) for field in STORED_TYPE]
        return {"": pa.StructArray.from_arrays(fields, fields=list(STORED_TYPE), mask=parsed.is_null())}

    def cell_bytes(self, learned: MediaT) -> int | None:
        """Return the mean bytes of a cell if cells are what is stored, else None."""
        return None if self.mode == "eager" else int(learned.file_bytes)

    def carried_bytes(self, learned: MediaT) -> int:
        """Return the mean bytes of a cell that a write carries to its parts, to be decoded there; 0 if none is."""
        return int(learned.file_bytes) if self.mode == "eager" else 0


class _MediaAround(Neighbours):
    """Fills gaps with media that can be decoded: what is to be dropped fills none."""

    def edge(self, parsed: pa.Array, learned: Any = None) -> Edge:
        return Edge.of(sound_cells(parsed))

    def complete(self, parsed: pa.Array, carry: Carry, learned: Any = None) -> pa.Array:
        if not parsed.null_count:
            return parsed
        sound = sound_cells(parsed)
        filled = super().complete(sound, carry, learned)
        return filled if sound is parsed else pc.if_else(parsed.is_valid(), parsed, filled)


def _struct(fields: list[pa.Array], mask: pa.Array) -> pa.StructArray:
    return pa.StructArray.from_arrays(fields, fields=list(PARSED_TYPE), mask=mask)


def sound_cells(parsed: pa.StructArray) -> pa.StructArray:
    """Return cells without those that have an error."""
    broken = pc.struct_field(parsed, "error").is_valid()
    return pc.if_else(broken, pa.scalar(None, PARSED_TYPE), parsed) if pc.any(broken).as_py() else parsed


def _absolute(folder: str) -> str:
    if "://" in folder:
        return folder
    return type(folder)(os.path.abspath(os.path.expanduser(folder)))  # noqa: PTH100, PTH111


def _folder_name(column: str) -> str:
    """Return a name that no file system and no URL misunderstands, one for each column."""
    name = quote(column, safe=" ")
    return name.replace(".", "%2E") if not name.strip(".") else name
