"""Base class of image and audio features: cells are paths or bytes, and are only decoded for arrays."""

from __future__ import annotations

import copy
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import TypeVar

from daskprep.columns.deferred.cells import MediaKind, convert_media_column
from daskprep.columns.deferred.decoders import STORED_TYPE, MediaDecoder, read_content
from daskprep.columns.deferred.reader import MediaReader, save_cell_bytes
from daskprep.columns.kernels import unwrap_mixed_column
from daskprep.columns.summaries import ColumnSummary, FileSample, SampledFile
from daskprep.errors import ConfigError, MediaError, RejectedValueError
from daskprep.features.base import Learned
from daskprep.features.feature import Feature, with_parameters
from daskprep.features.missing import Border, BorderValue, NeighbourImputer
from daskprep.rows.base import Strategy
from daskprep.storage.files import Folder
from daskprep.storage.security import check_trusted_path, redact_url

Mode = Literal["lazy", "lazy_cached", "eager"]
OnError = Literal["raise", "fill", "drop"]

# With on_error="drop", `error` is the reason why a cell cannot be decoded.
PARSED_TYPE = pa.struct([*STORED_TYPE, ("error", pa.string())])
_ABSOLUTE_PATTERN = r"^(/|~|[^/]+://)"
_SAMPLE_THREADS = 8  # files of the sample that are read at a time
_DEFAULT_CELL_BYTES = 64  # estimated bytes of a stored cell for columns without cells


class MediaContent(NamedTuple):
    """Content of a file of the sample."""

    file_bytes: int
    facts: Any = None  # from `MediaFeature.read_facts`; None if the file cannot be decoded
    error: str = ""  # reason why it cannot be decoded; empty if it can


@dataclass(frozen=True, kw_only=True)
class LearnedMedia(Learned):
    """Fitted state of an image or audio column."""

    file_bytes: int = 0  # mean bytes of an undecoded cell: of its path, or of a file in memory or to pack
    base_dir: str | None = None  # absolute folder that relative paths start from
    fill_value: float | None = None


MediaT = TypeVar("MediaT", bound=LearnedMedia, default=Any)


@with_parameters
class MediaFeature(Feature[FileSample, MediaT]):
    """Base class of image and audio features.

    Parsed cells are structs of either `path` or `bytes`, and an `error` if `on_error="drop"` and the cell cannot be
    decoded. A subclass reads facts from the files of a sample, and creates the decoder from the fitted state.
    """

    _has_default_fill = True
    _samples_files = True
    media: ClassVar[MediaKind]
    known_formats: ClassVar[tuple[str, ...]]
    # Parameters that bound the memory of a decoded file, with their maximum in datasets that are not trusted.
    untrusted_limits: ClassVar[Mapping[str, float]] = {}
    _folders: ClassVar[tuple[str, ...]] = ()

    mode: Mode = "lazy"
    pack: bool = False
    prefetch_size: int | None = None
    lazy_cache_dir: str | None = None
    base_dir: str | None = None
    on_error: OnError = "raise"
    formats: Sequence[str] | None = None
    missing_value_strategy: Strategy = "fill_with_const"

    @property
    def _reports_unreadable(self) -> bool:
        return self.invalid != "missing"  # only empty cells are unreadable, which deserve no warning

    def _find_decodable(self, parsed: pa.Array) -> np.ndarray | None:
        """Return a mask of decodable cells; None unless others drop rows."""
        if self.on_error != "drop":
            return None
        decodable: np.ndarray = pc.struct_field(parsed, "error").is_null().to_numpy(zero_copy_only=False)
        return decodable

    def _sample_cells(self, learned: MediaT) -> list[str | None]:
        return []

    # -- methods that a subclass defines

    @abstractmethod
    def decoder(self, learned: MediaT, base_dir: str | None = None) -> MediaDecoder:
        """Return a decoder of cells; relative paths start from `base_dir`, or else from the feature's `base_dir`."""

    @abstractmethod
    def read_facts(self, content: pa.Buffer | bytes) -> Any:
        """Return the facts about a file of the sample that `learn` needs; raise MediaError if it cannot be decoded."""

    @abstractmethod
    def check_decodable(self, content: pa.Buffer | bytes) -> None:
        """Raise MediaError if a file cannot be decoded, in as little time as possible."""

    @property
    @abstractmethod
    def sampled_files(self) -> int:
        """Number of sampled files that `learn` needs, 0 for none."""

    # -- shared methods

    def check(self) -> None:
        """Raise ConfigError for contradictory parameters, and credentials in URLs."""
        name = type(self).__name__
        if self.missing_value_strategy == "fill_with_mode":
            raise ConfigError(
                f'{name}: "fill_with_mode" is not supported: use "fill_with_const", "drop_row", "ffill" or "bfill"'
            )
        if self.pack and self.mode == "eager":
            raise ConfigError(f'{name}: pack=True is for lazy modes, and mode="eager" stores decoded arrays')
        for parameter in ("base_dir", "lazy_cache_dir"):
            url = getattr(self, parameter)
            if url is not None and redact_url(url) != url:
                raise ConfigError(
                    f"{name}: {parameter} contains a password or a signature, which would be written to the dataset: "
                    "remove it, and set credentials in the environment or in fsspec's configuration"
                )
        if self.prefetch_size is not None and self.prefetch_size < 0:
            raise ConfigError(f"{name}: prefetch_size must be at least 0, not {self.prefetch_size}")
        if isinstance(self.formats, str) or (self.formats is not None and not self.formats):
            known = ", ".join(self.known_formats)
            raise ConfigError(f"{name}: formats must be a list of {known}, not {self.formats!r}")

    @property
    def allowed_formats(self) -> tuple[str, ...]:
        return self.known_formats if self.formats is None else tuple(self.formats)

    def _parse_columns(self, names: Sequence[str], *columns: pa.ChunkedArray) -> pa.Array:
        """Parse cells; lazy modes save bytes to `lazy_cache_dir`."""
        cells = convert_media_column(unwrap_mixed_column(columns[0]), self.media, getattr(self, "sampling_rate", None))
        in_memory = pc.struct_field(cells, "bytes").null_count < len(cells)
        if in_memory and self.lazy_cache_dir is not None and self.mode != "eager":
            check_trusted_path(self.lazy_cache_dir, "lazy_cache_dir")
            cells = save_cell_bytes(cells, Folder.open(self.lazy_cache_dir) / _folder_name(names[0]), self.media)
        return self._parse_cells(cells)

    def parse(self, column: pa.Array) -> pa.Array:
        return self._parse_cells(convert_media_column(column, self.media, getattr(self, "sampling_rate", None)))

    def _parse_cells(self, cells: pa.StructArray) -> pa.StructArray:
        """Return cells of PARSED_TYPE, with absolute paths."""
        path, data = (pc.struct_field(cells, name) for name in ("path", "bytes"))
        if self.base_dir is None:
            relative = pc.invert(pc.match_substring_regex(path, _ABSOLUTE_PATTERN))
            if pc.any(relative).as_py():
                base_prefix = pa.scalar(f"{self._find_base_folder(path.filter(relative)[0]).rstrip('/')}/")
                path = pc.if_else(relative, pc.binary_join_element_wise(base_prefix, path, ""), path)
        parsed = _build_parsed([data, path, pa.nulls(len(cells), pa.string())], cells.is_null())
        if self.on_error != "drop":
            return parsed
        reader = self.reader()
        errors = pa.array([self._find_error(cell, reader) for cell in parsed], pa.string())
        return _build_parsed([data, path, errors], cells.is_null())

    def _find_error(self, cell: pa.StructScalar, reader: MediaReader) -> str | None:
        """Return why a cell cannot be decoded; None if it can, or is missing."""
        if cell.is_valid:
            try:
                self.check_decodable(read_content(cell, reader))
            except MediaError as error:
                return str(error)
        return None

    @property
    def absolute_base_dir(self) -> str | None:
        """The base folder as an absolute path, or None."""
        return None if self.base_dir is None else _absolute(self.base_dir)

    def _with_base_folders(self, folders: tuple[str, ...]) -> Self:
        # Resolved in the process that created the source: the current folder of a task may differ.
        copied = copy.copy(self)
        vars(copied)["_folders"] = folders or (os.getcwd(),)  # noqa: PTH109 a Path would normalize it
        return copied

    def _with_errors(self) -> Self:
        """Return a copy with on_error="drop"."""
        copied = copy.copy(self)
        vars(copied)["on_error"] = "drop"
        return copied

    def _find_base_folder(self, path: pa.Scalar) -> str:
        """Return the folder of relative paths, or raise ConfigError."""
        if len(self._folders) > 1:
            raise ConfigError(
                f'"{path}" is a relative path, and the data files are in {len(self._folders)} folders, such as '
                f"{self._folders[0]} and {self._folders[1]}: set base_dir to the folder of relative paths"
            )
        return self._folders[0] if self._folders else os.getcwd()  # noqa: PTH109 as above

    def fingerprint(self) -> str:
        # Without base_dir, the meaning of relative paths depends on the folder.
        return "" if self.base_dir is not None else "\n".join(self._folders) or os.getcwd()  # noqa: PTH109 as above

    def reader(self, base_dir: str | None = None) -> MediaReader:
        """Return a reader of the files that cells name."""
        base = self.base_dir if base_dir is None else base_dir
        extra_bases = () if self.lazy_cache_dir is None else (self.lazy_cache_dir,)
        return MediaReader(None if base is None else _absolute(base), extra_bases=tuple(map(_absolute, extra_bases)))

    def parse_fill(self, value: object) -> pa.Array:
        # The decoder fills missing cells with a color or padding, which no file represents.
        return pa.nulls(1, PARSED_TYPE)

    def _learn_fallback(self, summary: ColumnSummary[FileSample]) -> float:
        return 0

    def _resolve_fill(self, summary: ColumnSummary[FileSample]) -> Any:
        fill = super()._resolve_fill(summary)
        return 0 if fill is None and self.missing_value_strategy == "fill_with_const" else fill

    def summarize(self, parsed: pa.Array) -> FileSample:
        """Sample the cells that can be decoded, and count their bytes."""
        present = mask_undecodable(parsed).drop_null()
        path, data = (pc.struct_field(present, name) for name in ("path", "bytes"))
        return FileSample.of(path, data, self.sampled_files, self._inspect_content)

    def _inspect_content(self, content: pa.Buffer | bytes) -> MediaContent:
        """Return the size and facts of a file, or why it is broken."""
        try:
            return MediaContent(len(content), self.read_facts(content))
        except MediaError as error:
            return MediaContent(len(content), error=str(error))

    def sample(self, summary: FileSample) -> list[MediaContent]:
        """Return the contents of the files of a sample in order, or with their `error`."""
        reader = self.reader()

        def inspect_file(file: SampledFile) -> MediaContent:
            try:
                # Files in memory were inspected by `summarize`.
                return file.facts if not file.path else self._inspect_content(reader.read(file.path))
            except MediaError as error:
                return MediaContent(0, error=str(error))

        with ThreadPoolExecutor(_SAMPLE_THREADS, thread_name_prefix="daskprep-sample") as pool:
            return list(pool.map(inspect_file, summary.files))

    def require_decodable(self, sample: Sequence[MediaContent], remedy: str) -> list[MediaContent]:
        """Return decodable files of the sample; MediaError for none."""
        decodable = [file for file in sample if not file.error]
        if not decodable and sample:
            raise MediaError(
                f"none of {len(sample)} files can be decoded to learn from them, the first because: {sample[0].error}; "
                f"correct the files, set base_dir to their folder, or pass {remedy}. If the cells are not paths, use "
                'another type, such as "text"'
            )
        if not decodable:
            raise MediaError(f"has no {self.kind} to learn from: pass {remedy}")
        return decodable

    def estimate_cell_bytes(self, summary: FileSample, sample: Iterable[MediaContent]) -> int:
        """Return an estimate of the mean bytes of an undecoded cell."""
        sizes = [file.file_bytes for file in sample if file.file_bytes] if self.pack else []
        if sizes:
            return max(1, round(sum(sizes) / len(sizes)))
        return max(1, round(summary.bytes / summary.cells)) if summary.cells else _DEFAULT_CELL_BYTES

    @property
    def imputer(self) -> NeighbourImputer | None:
        return _MediaImputer.of(self.missing_value_strategy)

    @property
    def row_filter(self) -> Callable[[pa.Array, MediaT], np.ndarray] | None:
        """Return a mask of cells that were not decoded; None unless they drop rows."""
        if self.on_error != "drop":
            return None
        return lambda parsed, _: pc.struct_field(parsed, "error").is_valid().to_numpy(zero_copy_only=False)

    @property
    def _lists_filled(self) -> bool:
        return self.on_error == "fill"

    def _explain_drop(self, cell: Any) -> str:
        path = cell["path"]
        name = "bytes in memory" if path is None else redact_url(path)
        return f"{name}: {(cell['error'] or 'is left out').removeprefix(f'{name}: ')}"

    def encode(self, parsed: pa.Array, learned: MediaT) -> np.ndarray:
        return self._decode_cells(parsed, learned)[0]

    def _decode_cells(self, parsed: pa.Array, learned: MediaT) -> tuple[np.ndarray, list[int]]:
        """Return decoded cells, and the rows that failed; with on_error="raise", MediaError."""
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

    def _stored_cells(self, parsed: pa.Array, learned: MediaT) -> dict[str, pa.Array]:
        """Return the cells to store; RejectedValueError if some are unfilled."""
        if parsed.null_count and learned.fill_value is None:
            raise RejectedValueError(
                f"{parsed.null_count} missing cells and no {self.kind} in the column that "
                f'"{self.missing_value_strategy}" could use: use "fill_with_const" with a fill_value'
            )
        fields = [pc.struct_field(parsed, field.name) for field in STORED_TYPE]
        return {"": pa.StructArray.from_arrays(fields, fields=list(STORED_TYPE), mask=parsed.is_null())}

    def cell_bytes(self, learned: MediaT) -> int | None:
        """Return the mean bytes of a stored cell; None if decoded."""
        return None if self.mode == "eager" else int(learned.file_bytes)

    def carried_bytes(self, learned: MediaT) -> int:
        """Return mean bytes of a cell that a write sends to decode."""
        return int(learned.file_bytes) if self.mode == "eager" else 0


class _MediaImputer(NeighbourImputer):
    """Fills missing cells from neighbors that can be decoded."""

    def find_border(self, parsed: pa.Array, learned: Any = None) -> Border:
        return Border.of(mask_undecodable(parsed))

    def complete(self, parsed: pa.Array, border_value: BorderValue, learned: Any = None) -> pa.Array:
        """Fill missing cells from those that can be decoded; broken ones stay."""
        if not parsed.null_count:
            return parsed
        decodable = mask_undecodable(parsed)
        filled = super().complete(decodable, border_value, learned)
        return filled if decodable is parsed else pc.if_else(parsed.is_valid(), parsed, filled)


def _build_parsed(fields: list[pa.Array], mask: pa.Array) -> pa.StructArray:
    return pa.StructArray.from_arrays(fields, fields=list(PARSED_TYPE), mask=mask)


def mask_undecodable(parsed: pa.StructArray) -> pa.StructArray:
    """Return parsed cells, null where they have an error."""
    broken = pc.struct_field(parsed, "error").is_valid()
    return pc.if_else(broken, pa.scalar(None, PARSED_TYPE), parsed) if pc.any(broken).as_py() else parsed


def _absolute(folder: str) -> str:
    """Return a local folder as an absolute path, of the same type; URLs as is."""
    if "://" in folder:
        return folder
    return type(folder)(os.path.abspath(os.path.expanduser(folder)))  # noqa: PTH100, PTH111


def _folder_name(column: str) -> str:
    """Return a folder name for a column, safe in URLs."""
    name = quote(column, safe=" ")
    return name.replace(".", "%2E") if not name.strip(".") else name


def find_regions(features: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Return the names of the images of each output of regions."""
    images = [
        (name, feature.reads(name)[0])
        for name, feature in features.items()
        if isinstance(feature, MediaFeature) and feature.media == "image"
    ]
    return {
        name: frozenset(image for image, column in images if column == feature.image)
        for name, feature in features.items()
        if feature._is_in_images
    }
