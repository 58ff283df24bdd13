"""Manifest, parameters and fitted state of a dataset, and its comparison with the manifest, byte by byte."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa

from daskprep.columns.deferred.decoders import MediaDecoder
from daskprep.columns.deferred.reader import MediaReader
from daskprep.columns.display import format_count
from daskprep.columns.vocabulary import Vocabulary
from daskprep.dataset.segments import Segment
from daskprep.errors import ConfigError, CorruptDatasetError, FormatVersionError, did_you_mean
from daskprep.features import Feature, Learned
from daskprep.features.arrays import decode_arrays
from daskprep.features.base import all_outputs, kind_with_article
from daskprep.features.media import MediaFeature
from daskprep.passes.losses import count_left_out, tabulate_losses
from daskprep.passes.state import METADATA, mark_received_paths, restore, state_from_files
from daskprep.rows.base import MISSING
from daskprep.rows.metrics import prometheus_text
from daskprep.rows.saved import parse_state, read_targets
from daskprep.storage import FileEntry, Folder, Layout, Manifest, read_manifest
from daskprep.storage.layout import CACHE_FOLDER, FOLD_PREFIX
from daskprep.storage.local_files import NOT_REGULAR_FILE
from daskprep.storage.manifest import (
    CHECKSUM_READ_BYTES,
    MANIFEST,
    NEXT,
    DuplicateRows,
    LossCounts,
    add_losses,
    part_folder,
)
from daskprep.storage.reading import VersionFiles
from daskprep.storage.threads import map_in_threads

_MAX_NAMED = 5
# Files that a writer removes after the commit; if it was killed in between, the next write removes them.
_LEFTOVER = re.compile(rf"({FOLD_PREFIX}[0-9]+/)?(receipts|scratch|{CACHE_FOLDER})/|.*\.[0-9a-f]{{32}}\.tmp$")


@dataclass(frozen=True)
class Damage:
    """Damaged file of a dataset: its path relative to the dataset, and the problem."""

    file: str
    problem: str


def find_damage(root: Folder, manifest: Manifest) -> list[Damage]:
    """Return missing, altered and stray files, after comparing every byte with the manifest at opening."""
    folder = root / manifest.version
    sizes = folder.sizes()
    check = functools.partial(_check_file, folder, sizes)
    names = sorted(manifest.files.items())
    problems = zip(names, map_in_threads(check, names, local=folder.is_local), strict=True)
    damage = [Damage(f"{manifest.version}/{name}", problem) for (name, _), problem in problems if problem]
    strays = sorted(name for name in set(sizes) - set(manifest.files) if not _LEFTOVER.match(name))
    damage += [Damage(f"{manifest.version}/{name}", "is not part of the dataset") for name in strays]
    return _check_manifest(root, manifest) + damage


def raise_damage(url: str, damage: list[Damage]) -> None:
    """Raise CorruptDatasetError with the first damaged files; do nothing if there are none."""
    if not damage:
        return
    first = "; ".join(f"{one.file} {one.problem}" for one in damage[:_MAX_NAMED])
    more = f"; and {len(damage) - _MAX_NAMED:,} more" if len(damage) > _MAX_NAMED else ""
    raise CorruptDatasetError(
        f"{url}: {format_count(len(damage), 'damaged file')}: {first}{more}. damaged() lists all; restore "
        "them from a copy, write them again with daskprep.repair, or write the dataset again with overwrite=True"
    )


def _check_manifest(root: Folder, manifest: Manifest) -> list[Damage]:
    """Return a list with one `Damage` if the manifest on disk is missing, altered or replaced; else an empty list."""
    try:
        current = read_manifest(root)
    except (CorruptDatasetError, FormatVersionError) as error:
        return [Damage(MANIFEST, f"was altered: {error}")]
    if current is None:
        return [Damage(MANIFEST, "is missing")]
    if current != manifest and read_manifest(root, NEXT) != manifest:
        return [Damage(MANIFEST, "was replaced since the dataset was opened: open it again")]
    return []


def _check_file(folder: Folder, sizes: dict[str, int], item: tuple[str, FileEntry]) -> str | None:
    """Return the problem of a file (name and manifest entry), or None; `sizes` has the bytes of all existing files."""
    name, entry = item
    if name not in sizes:
        return "is missing"
    if sizes[name] == NOT_REGULAR_FILE:
        return "is a link, a pipe or a device"
    if sizes[name] != entry.bytes:
        return f"has {sizes[name]:,} bytes, not {entry.bytes:,}"
    try:
        # Read instead of mapped: a bad sector under a mapping kills the process.
        buffer = np.empty(min(entry.bytes, CHECKSUM_READ_BYTES), np.uint8)
        with folder.open_reader(name) as read_into:

            def read(start: int, stop: int) -> np.ndarray:
                view = buffer[: stop - start]
                read_into(start, view.data)
                return view

            matches_checksums = entry.matches_checksums(name, read)
    except (OSError, EOFError, CorruptDatasetError) as error:
        return f"cannot be read: {error}"
    return None if matches_checksums else "was altered: its checksum differs from the manifest"


class Metadata(dict[str, Any]):
    """Content of metadata.json. Names of features also return Ludwig metadata, built at first access by `describe`."""

    def __init__(self, values: Mapping[str, Any], describe: Callable[[str], dict[str, Any]]) -> None:
        super().__init__(values)
        self._describe, self._descriptions = describe, dict[str, Any]()

    def __missing__(self, name: str) -> dict[str, Any]:
        if name not in self._descriptions:
            self._descriptions[name] = self._describe(name)
        return self._descriptions[name]


class StoredDataset:
    """Base class of `Dataset` with the parts that its splits use: files, layout, features and fitted state."""

    splits: Mapping[str, Any]

    def __init__(
        self, segments: Sequence[Segment] | Callable[[], Sequence[Segment]], state: Segment | None = None
    ) -> None:
        """Read segments as one, with the fitted state of one of them, which has all tokens; None: of the last.

        A function that returns the segments is called at their first use.
        """
        self._open_segments, self._chosen_state = segments, state

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(self._open_segments() if callable(self._open_segments) else self._open_segments)

    @property
    def _state(self) -> Segment:
        return self._chosen_state or self.segments[-1]

    @property
    def files(self) -> VersionFiles:
        return self._state.files

    @property
    def root(self) -> Folder:
        return self.segments[0].root

    @property
    def manifest(self) -> Manifest:
        return self.segments[0].manifest

    @property
    def base_dir(self) -> str | None:
        return self.segments[0].base_dir

    @property
    def trusted(self) -> bool:
        return self.segments[0].trusted

    @cached_property
    def datasets(self) -> tuple[Self, ...]:
        """The rows of each write as a dataset: of those that are opened as one, and of each append."""
        return (self,) if len(self.segments) == 1 else tuple(type(self)([one]) for one in self.segments)

    @cached_property
    def _stored(self) -> Self:
        """The dataset with rows that are deleted, but still stored."""
        if not any(one.hidden for one in self.segments):
            return self
        segments = [dataclasses.replace(one, hidden={}) for one in self.segments]
        return type(self)(segments, segments[self.segments.index(self._state)])

    @property
    def is_joined(self) -> bool:
        """Whether segments are of several datasets, not parts of one."""
        parts = [(self.root / part_folder(number)).path for number in range(1, len(self.segments))]
        return [one.root.path for one in self.segments[1:]] != parts

    @property
    def url(self) -> str:
        return ", ".join(one.root.url for one in self.segments) if self.is_joined else self.root.url

    @property
    def version(self) -> str:
        return ", ".join(one.manifest.version for one in self.segments)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the manifests, which identify the contents; a later write may use the same version name."""
        digests = [one.digest for one in self.segments]
        return digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()

    @property
    def manifests(self) -> list[Manifest]:
        """Manifests of the files, one of each segment."""
        return [one.manifest for one in self.segments]

    @property
    def file_entries(self) -> list[tuple[str, FileEntry]]:
        """Name within its version and manifest entry of each file; of several datasets, all of them."""
        return [item for manifest in self.manifests for item in manifest.files.items()]

    @property
    def duplicates(self) -> dict[str, DuplicateRows] | None:
        """Rows of each split whose encoded inputs another split has too; splits without such rows are left out.

        None if rows were not compared: in datasets of an older version, with a single split, with cross-fitted
        features, with appended parts, and after rows were deleted.
        """
        [*others, segment] = self.segments
        is_known = segment.manifest.duplicates is not None and not others and not segment.hidden
        return dict(segment.manifest.duplicates or {}) if is_known else None

    @property
    def missing_counts(self) -> Mapping[str, Mapping[str, int]] | None:
        """Number of missing and unreadable cells by split and feature.

        Features without such cells are left out. None in older datasets, and after rows were deleted or features added.
        """
        if (losses := self.loss_counts) is None:
            return None
        return {
            split: {
                name: count
                for name, causes in counts.items()
                if (count := causes.get("missing", 0) + causes.get("unreadable", 0))
            }
            for split, counts in losses.items()
        }

    @property
    def loss_counts(self) -> Mapping[str, LossCounts] | None:
        """The counts behind `losses`, by split, feature and cause, missing cells of all features included."""
        totals: dict[str, LossCounts] = {}
        for one in self.segments:
            if (counts := one.loss_counts) is None:
                return None
            totals |= {split: add_losses(totals.get(split, {}), own) for split, own in counts.items()}
        return totals

    def losses(self) -> pd.DataFrame | None:
        """Return the number of cells whose encoding lacks information of the cell, by feature, split and cause.

        Causes are "missing", "unreadable", "unknown" (no separate id), "cut", "clipped", "rounded", "padded" (a
        window without all its rows) and "left out" (rows, in no split). "share" is the share of the cells of the split.
        A cell may have several causes. None in datasets of older versions, and after rows were deleted.

        Examples
        --------
        >>> import pandas as pd
        >>> import daskprep as dp
        >>> frame = pd.DataFrame({"city": ["Rome", "Rome", "Oslo", "Oslo", "Bern"]})
        >>> prep = dp.Preprocessor({"city": dp.Category(most_common=2)}, split=None)
        >>> prep.fit_write(frame, "cities.dp").losses()  # doctest: +SKIP
          feature  split    cause  cells  share
        0    city  train  unknown      1    0.2
        """
        if (counts := self.loss_counts) is None:
            return None
        rows = self.layout.rows
        left_out = count_left_out(self.features, self.rejects(), sum(rows.values()))
        return tabulate_losses(self.features, self.learned, counts, rows, left_out)

    def to_prometheus(self) -> str:
        """Return `losses` in the text format of Prometheus, as the gauge ``daskprep_lost_cells``."""
        table = self.losses()
        rows = [] if table is None else table[["feature", "split", "cause", "cells"]].itertuples(index=False)
        samples = [({"feature": name, "split": split, "cause": cause}, cells) for name, split, cause, cells in rows]
        return prometheus_text("daskprep_lost_cells", "gauge", "Cells whose encoding lacks information.", samples)

    @cached_property
    def layout(self) -> Layout:
        """Rows and blocks of all segments; only the layout of each manifest locates files."""
        if len(self.segments) == 1:
            return self.segments[0].layout
        return Layout.concatenate([one.layout for one in self.segments], self._state.layout.outputs)

    def single_dataset_error(self, call: str) -> ConfigError:
        """Return the error for a `call` that only a single dataset supports."""
        return ConfigError(
            f"{call} needs a single dataset, not {len(self.segments)} ({self.url}): use one of dataset.datasets"
        )

    @cached_property
    def metadata(self) -> Metadata:
        """Parameters and fitted state, as stored in metadata.json.

        A vocabulary too large for JSON is only referenced there; `vocabulary` returns it. The name of a feature or an
        output, unless it is a key of the file, returns its metadata in Ludwig's format, vocabulary included.
        """
        return Metadata(parse_state(self.files.read(METADATA), METADATA), self._to_ludwig)

    def _to_ludwig(self, name: str) -> dict[str, Any]:
        """Return learned values and "preprocessing" parameters of a feature or output, with Ludwig's keys."""
        feature, learned = self._find_learned(name)
        own = {key: value for key, value in learned.to_dict().items() if key not in Learned.__dataclass_fields__}
        params = feature.get_params(deep=False)
        for role, symbol in own.get("special_symbols", {}).items():
            own |= {f"{role}_symbol": symbol} | ({"pad_idx": own["str2idx"][symbol]} if role == "padding" else {})
        if isinstance(feature, MediaFeature):
            params |= {key: own[key] for key in own.keys() & params.keys()}
            own["reshape"] = list(feature.decoder(learned).shape)
        return own | {"preprocessing": params | {"computed_fill_value": learned.fill_value}}

    @cached_property
    def _restored(self) -> tuple[dict[str, Feature], dict[str, Learned]]:
        """Features and their learned states by name; CorruptDatasetError if the manifest lists other outputs."""
        features, learned = restore(self.state())
        outputs = [name + suffix for name, feature in features.items() for suffix in all_outputs(feature)]
        stored = {output.name: output for output in self.layout.outputs}
        if learned.keys() != features.keys() or set(outputs) != stored.keys():
            raise self._mismatch_error(f"outputs {', '.join(outputs)}, but the manifest lists {', '.join(stored)}")
        for name, output in stored.items():
            feature = features.get(name)
            if isinstance(feature, MediaFeature):
                decoder = feature.decoder(learned[name])
                if (decoder.shape, decoder.dtype) != (output.shape, output.dtype):
                    raise self._mismatch_error(
                        f'"{name}" with shape {decoder.shape}, but the manifest with {output.shape}'
                    )
            elif output.stores_cells:
                raise self._mismatch_error(f'"{name}" as neither images nor audio, but the manifest as one of them')
        return features, learned

    def _mismatch_error(self, contents: str) -> CorruptDatasetError:
        return CorruptDatasetError(
            f"{self.files.folder.url}/{METADATA} describes {contents}: one of them belongs to another dataset; restore "
            "both from a copy, or write the dataset again"
        )

    def state(self) -> dict[str, Any]:
        """Return the state from `Preprocessor.to_state` at the write; file names are included only if trusted."""
        state = state_from_files(self.files.read, parsed=dict(self.metadata))
        return state if self.trusted else mark_received_paths(state)

    @property
    def features(self) -> dict[str, Feature]:
        """Features by name."""
        return self._restored[0]

    @property
    def learned(self) -> dict[str, Learned]:
        """Learned state of each feature, by name."""
        return self._restored[1]

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """Names of the features that a model predicts; loaders separate them from the inputs."""
        return read_targets(self.metadata, self.features)

    def vocabulary(self, feature: str) -> Vocabulary:
        """Return the vocabulary (tokens and ids) of a feature or output; ConfigError without one."""
        owner, learned = self._find_learned(feature)
        vocabulary = getattr(learned, "vocabulary", None)
        if not isinstance(vocabulary, Vocabulary):
            with_ids = [one for one, state in self.learned.items() if hasattr(state, "vocabulary")]
            raise ConfigError(
                f'"{feature}" is {kind_with_article(owner)}, which has no vocabulary'
                + (f"; these have one: {', '.join(with_ids)}" if with_ids else "")
            )
        return vocabulary

    def _find_learned(self, output: str) -> tuple[Feature, Learned]:
        """Return the feature and the learned state of an output; ConfigError if it does not exist."""
        origins = {name + suffix: (name, suffix) for name, one in self.features.items() for suffix in all_outputs(one)}
        if output not in origins:
            several = [one for one, (name, _) in origins.items() if name == output]
            hint = f" Its outputs are: {', '.join(several)}" if several else did_you_mean(output, origins)
            raise ConfigError(f'no output "{output}" in {self.url}.{hint}')
        name, suffix = origins[output]
        return self.features[name], Learned() if suffix == MISSING else self.learned[name].of_output(suffix)

    def decoder(self, output: str) -> MediaDecoder:
        """Return the decoder of an output of images or audio.

        ConfigError for other outputs, and for parameters beyond the limits of a dataset that is not trusted.
        """
        feature = self.features.get(output)
        if not isinstance(feature, MediaFeature):
            media = [name for name, one in self.features.items() if isinstance(one, MediaFeature)]
            raise ConfigError(
                f'"{output}" is not an output of images or audio.{did_you_mean(output, media)} '
                f"Those are: {', '.join(media) or 'none'}"
            )
        decoder = feature.decoder(self.learned[output], self.base_dir)
        if self.trusted:
            reader = dataclasses.replace(decoder.reader, stored_in=self.url)
            return dataclasses.replace(decoder, reader=reader)
        for name, maximum in feature.untrusted_limits.items():
            if (value := getattr(feature, name, 0)) > maximum:
                raise ConfigError(
                    f'"{output}": {name}={value:,} is more than {maximum:,}, the maximum for a dataset that is not '
                    "trusted: open it with trusted=True if you trust its author"
                )
        base = self.base_dir if self.base_dir is None else decoder.reader.base
        return dataclasses.replace(decoder, reader=MediaReader(base, dataset=self.root, stored_in=self.url))

    def decode(self, arrays: Mapping[str, Any]) -> pd.DataFrame:
        """Return encoded arrays by output as a frame of human-readable values; features without arrays are left out."""
        return decode_arrays(self.features, self.learned, arrays)

    def rejects(self) -> pa.Table:
        """Return the rows that could not be used, with "row_id", "column" and "reason".

        If several datasets are opened as one, "dataset" is the index of the one whose source has the row.
        """
        tables = [one.rejects() for one in self.segments]
        if len(tables) == 1:
            return tables[0]
        numbers = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
        return pa.concat_tables(tables).add_column(0, "dataset", pa.array(numbers))
