"""Versions of a dataset: their recipe, options, digest and name, their commit, and differences between two of them."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from daskprep.columns.display import format_count
from daskprep.dataset.opening import find_differences
from daskprep.dataset.options import Options
from daskprep.errors import ConfigError, CorruptDatasetError, DatasetExistsError, FormatVersionError
from daskprep.features import Feature, Learned
from daskprep.features.media import MediaFeature
from daskprep.passes.contexts import unparsed_columns
from daskprep.passes.reviewing import OnFindings
from daskprep.passes.state import METADATA, state_files
from daskprep.sources import Source
from daskprep.sources.balance import Balance
from daskprep.sources.split import Splitter
from daskprep.storage.checksum import json_sha256
from daskprep.storage.files import Folder
from daskprep.storage.layout import CACHE_FOLDER, FOLD_PREFIX, SPLITS
from daskprep.storage.manifest import (
    APPENDED,
    ERASED,
    MANIFEST,
    NEXT,
    RECEIPT,
    FileEntry,
    Manifest,
    Versions,
    part_folder,
    read_manifest,
    read_versions,
)
from daskprep.storage.tables import REJECTS

# Increase it when the same features and rows result in other bytes than before: then digests differ, too.
ENCODING_VERSION = 1


@dataclass(frozen=True)
class Recipe:
    """The preprocessing of the rows: the parameters and states of a Preprocessor."""

    features: Mapping[str, Feature]
    split: Splitter | None
    balance: Balance | None
    fit_on: str
    learned: Mapping[str, Learned] | None  # None: learn the states from the rows
    # Returns the JSON state of the Preprocessor for learned states, or for None.
    describe: Callable[[Mapping[str, Learned] | None], dict[str, Any]]
    targets: tuple[str, ...] = ()
    on_findings: OnFindings | None = None  # for appended rows that differ from the rows of the fit

    @property
    def media(self) -> dict[str, MediaFeature]:
        """The media features: their cells are decoded when parts are written, or by the loader."""
        return {name: feature for name, feature in self.features.items() if isinstance(feature, MediaFeature)}

    @property
    def raw_columns(self) -> list[str]:
        """The columns that are needed unparsed: for split, balance and folds, and to learn."""
        return unparsed_columns(self.features, self.split, self.balance, is_fitted=self.learned is not None)


def resolved_record(record: Any) -> Any:
    """Return the record of a source with the resolved paths of local files, which do not depend on their spelling."""
    if not isinstance(record, Mapping):
        return record
    resolved = dict(record)
    if "splits" in record:
        resolved["splits"] = {name: resolved_record(one) for name, one in record["splits"].items()}
    if "files" in record:
        resolved["files"] = [
            [name if "://" in name else os.path.realpath(name), *stamp] for name, *stamp in record["files"]
        ]
    return resolved


def digest_of_write(recipe: Recipe, fingerprint: Mapping[str, Any] | None, options: Options) -> str:
    """Return a digest of all inputs that determine the bytes of the dataset: features, states, source and options."""
    state = recipe.describe(recipe.learned)
    learned = {}
    if recipe.learned is not None:
        learned = {name: hashlib.sha256(data).hexdigest() for name, data in state_files(state).items()}
        state = recipe.describe(None)
    description = {
        "encoding": ENCODING_VERSION,
        # As text, because order matters: of features, for the outputs, and of special symbols, for their ids.
        "state": json.dumps(state, ensure_ascii=True, allow_nan=False),
        "learned": learned,
        "files": {name: feature.fingerprint() for name, feature in recipe.features.items()},
        "source": fingerprint,
        "settings": options.settings,
    }
    return short_digest(description)


def digest_of_partitioning(source: Source) -> str:
    """Return a digest of the partitions of a source: their number, rows and bytes."""
    sizes = [fragment.nbytes for fragment in source.fragments] if source.files else None
    return short_digest({"rows": source.row_counts, "partitions": source.npartitions, "bytes": sizes})


# Folders in the folder of a version that is being written.
RECEIPTS, SCRATCH = "receipts", "scratch"

_DIGEST_DIGITS = 16
_VERSION = re.compile(rf"[0-9a-f]{{{_DIGEST_DIGITS}}}(-[0-9]+)?")
_VERSION_CHILD = re.compile(
    rf"({re.escape(METADATA)}|{re.escape(REJECTS)})(\.[0-9a-f]+\.tmp)?|probe-.*|vocab"
    rf"|{'|'.join([*SPLITS, RECEIPTS, SCRATCH, CACHE_FOLDER])}|{FOLD_PREFIX}[0-9]+"
)
_CACHE_PATH = re.compile(rf"({FOLD_PREFIX}[0-9]+/)?{CACHE_FOLDER}/")
# Files that a killed write may leave next to the manifest.
_LISTS = (
    rf"{'|'.join(map(re.escape, (MANIFEST, APPENDED, NEXT, ERASED)))}"
    r"|deleted-[0-9a-f]+\.parquet|purge-[0-9]+\.json|erased-[0-9a-f]+\.json"
)
_TEMPORARY = re.compile(rf"({_LISTS})\.[0-9a-f]+\.tmp")
_LIST = re.compile(_LISTS)
_DELETED = re.compile(r"deleted-[0-9a-f]+\.parquet")
_PART = re.compile(r"part-[0-9]{5,}")


def short_digest(description: Mapping[str, Any]) -> str:
    """Return a short digest of JSON values as hexadecimal digits."""
    return json_sha256(description)[:_DIGEST_DIGITS]


def choose_version(
    root: Folder, digest: str, *, repeatable: bool, overwrite: bool, differences: Callable[[Manifest], str]
) -> tuple[str, Manifest | None]:
    """Return the name of the version to write, and None; or the committed version and its manifest, if it is the same.

    The name of a version is its digest. If a committed version is written again, a number is appended, so that readers
    keep the old one until the new one is complete. Without `repeatable`, equal digests do not imply equal rows. A
    finished dataset that may differ raises DatasetExistsError, unless `overwrite` is set; the message contains the
    result of `differences`.
    """
    try:
        roll_forward(root)
        committed = read_manifest(root)
    except (CorruptDatasetError, FormatVersionError) as error:
        if not overwrite:
            raise type(error)(f"{error}; overwrite=True writes the dataset again") from error
        committed = None
    if committed is None:
        if foreign_files := sorted(name for name in root.children() if not _is_ours(root, name)):
            shown = ", ".join(f'"{name}"' for name in foreign_files[:3])
            raise ConfigError(
                f"{root.url} is not a dataset and has other files, such as {shown}: use a new or empty folder"
            )
        return digest, None
    name = committed.version.partition("-")[0]
    if not overwrite:
        if name == digest and repeatable:
            return committed.version, committed
        raise DatasetExistsError(
            f"{root.url} holds a dataset that differs: {differences(committed)}. Write to another path, or replace it "
            "with overwrite=True"
        )
    return (next_version(committed.version) if name == digest else digest), None


def _is_ours(root: Folder, name: str) -> bool:
    """Return whether an entry of the folder of a dataset has a name, and content, that only daskprep writes."""
    if _PART.fullmatch(name):
        return all(_is_ours(root / name, child) for child in (root / name).children())
    if not _VERSION.fullmatch(name):
        return bool(name == CACHE_FOLDER or _LIST.fullmatch(name) or _TEMPORARY.fullmatch(name))
    # A partly removed version lacks some of these files, but never has other files.
    return all(_VERSION_CHILD.fullmatch(child) for child in (root / name).children())


def is_purged(root: Folder, versions: Versions) -> bool:
    """Return whether rows may have been purged: a compaction removes versions as well, but writes no receipt."""
    return None in versions.states and any(map(RECEIPT.fullmatch, root.children()))


def next_version(name: str) -> str:
    """Return the name of the version that replaces one with the same rows, sources and settings."""
    digest, _, number = name.partition("-")
    return f"{digest}-{int(number or 0) + 1}"


def check_committed(root: Folder, manifest: Manifest) -> None:
    """Raise ConfigError if another version was committed since the manifest was read; the folder must be locked."""
    current = read_manifest(root)
    if current is None or current.to_bytes() != manifest.to_bytes():
        raise ConfigError(f"{root.url} was written again meanwhile: open it again")


def commit(root: Folder, manifest: Manifest) -> None:
    """Check that the files of the manifest are complete, then write it, which makes its version the dataset.

    All other versions are removed. Raise CorruptDatasetError if a file is missing or has another size.
    """
    sizes = (root / manifest.version).sizes()
    if lost := [name for name, entry in manifest.files.items() if sizes.get(name) != entry.bytes]:
        raise lost_files_error(root, lost)
    root.write(MANIFEST, manifest.to_bytes())
    clean(root, manifest, sizes)


def lost_files_error(root: Folder, names: Sequence[str]) -> CorruptDatasetError:
    """Return the error for files that were written and that another process removed before the commit."""
    return CorruptDatasetError(
        f"{root.url}: {len(names):,} files that were just written are gone, such as {names[0]}: did two processes "
        "write to one path without locks, as in object stores and some network file systems? Nothing was committed; "
        "write again"
    )


def clean(root: Folder, manifest: Manifest, names: Iterable[str] | None = None) -> None:
    """Remove other versions, scratch files, receipts and unlisted files; the cache of media is kept.

    `names` are all files of the version; None: list them.
    """
    _remove_others(root, manifest)
    version = root / manifest.version
    (version / SCRATCH).remove_all()
    names = version.sizes() if names is None else names
    leftovers = [name for name in names if name not in manifest.files and not _CACHE_PATH.match(name)]
    version.remove(*(name for name in leftovers if not name.startswith((f"{RECEIPTS}/", f"{SCRATCH}/"))))
    (version / RECEIPTS).remove_all()  # last: while it exists, `finish_cleaning` looks for other files


def finish_cleaning(root: Folder, manifest: Manifest) -> None:
    """Remove other versions, and `clean` if a write that was killed right after its commit left its folders."""
    if {RECEIPTS, SCRATCH} & set((root / manifest.version).children()):
        clean(root, manifest)
    else:
        _remove_others(root, manifest)


def _remove_others(root: Folder, manifest: Manifest) -> None:
    """Remove the folders of versions other than the manifest's and their appended parts, and temporary manifests."""
    names = root.children()
    parts = list(filter(_PART.fullmatch, names))
    listed = _count_parts(root, manifest) if parts or APPENDED in names else 0
    if not listed and (parts or APPENDED in names):
        root.remove(APPENDED)  # first: it lists the parts
        root.remove(*filter(_DELETED.fullmatch, names))
    for name in parts:
        if int(name.partition("-")[2]) >= max(1, listed) and _is_ours(root, name):
            (root / name).remove_all()
    for name in names:
        if _VERSION.fullmatch(name) and name != manifest.version and _is_ours(root, name):
            (root / name).remove_all()
        elif _TEMPORARY.fullmatch(name):
            root.remove(name)


def _count_parts(root: Folder, manifest: Manifest) -> int:
    """Return the number of parts that are listed with this manifest; 0 if it is not."""
    with suppress(CorruptDatasetError):
        versions = read_versions(root)
        if versions is not None and versions.digests[0] == manifest.digest:
            return len(versions.digests)
    return 0


def roll_forward(root: Folder, parts: int | None = None) -> None:
    """Replace the manifests of the first `parts` by the next ones that `APPENDED` lists; the folder must be locked.

    This completes a change of several parts, which the list commits: until then, readers use the next manifests.
    """
    if (versions := read_versions(root)) is None:
        return
    for number, digest in enumerate(versions.digests[:parts]):
        part = root / part_folder(number) if number else root
        if (following := read_manifest(part, NEXT)) is None:
            continue
        if following.digest == digest:
            part.write(MANIFEST, following.to_bytes())
        if (manifest := read_manifest(part)) is not None:
            clean(part, manifest)
        part.remove(NEXT)  # last: while it exists, the next call cleans


_PARAMETERS = ("split", "balance", "targets", "weight", "sample", "sample_seed", "fit_on")
_MAX_LISTED = 3


def describe_differences(
    root: Folder, committed: Manifest, recipe: Recipe, source: Mapping[str, Any] | None, options: Options
) -> str:
    """Return the differences between a finished dataset and a write as text: rows, features, parameters, options."""
    stored: dict[str, Any] = {}
    with suppress(FileNotFoundError, ValueError):  # a damaged file is reported when the dataset is read
        stored = json.loads((root / committed.version).read(METADATA))
    requested = json.loads(json.dumps(recipe.describe(None)))
    before, now = (
        {name: state.get(name) for name in _PARAMETERS}
        | {name: settings.get(name) for name in options.settings}
        | {
            "features": {
                name: {"type": one["type"], **one["params"]} for name, one in state.get("features", {}).items()
            }
        }
        for state, settings in ((stored, committed.settings), (requested, options.settings))
    )
    differences = list(find_differences(before, now))
    messages = [*_compare_sources(committed.source, source), *differences[:_MAX_LISTED]]
    if len(differences) > _MAX_LISTED:
        messages.append(format_count(len(differences) - _MAX_LISTED, "more difference"))
    if not differences and list(before["features"]) != list(now["features"]):
        messages.append("its features have another order")
    if not messages and recipe.learned is not None:
        fitted = state_files(recipe.describe(recipe.learned))[METADATA]
        if committed.files.get(METADATA) != FileEntry.from_data(METADATA, fitted):
            messages = ["its fitted state differs"]
    return "; ".join(messages) or "another version of daskprep wrote it, or its features read other files"


def _compare_sources(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the differences between the records of two sources as text."""
    before, now = resolved_record(before), resolved_record(now)
    if now is None:
        yield "the rows cannot be compared with its rows (version=... names them)"
    elif before == now:
        return
    elif any(not stamp for _, _, *stamps in now.get("files", ()) for stamp in stamps):
        yield "the rows of a stream cannot be compared with its rows (version=... names them)"
    elif (old := _file_stamps(before)).keys() & (new := _file_stamps(now)).keys():
        yield from _compare_files(old, new, "the table" if "table" in now else "[the new files]")
    elif before is None or describe_source(before) != describe_source(now):
        old_source = "rows that were not recorded" if before is None else describe_source(before)
        yield f"it was written from {old_source}, not from {describe_source(now)}"
    else:
        yield f"it was written from {describe_source(before)} with other cells or columns"


def _file_stamps(record: Mapping[str, Any] | None) -> dict[str, list[Any]]:
    return {name: stamp for name, *stamp in (record or {}).get("files", ())}


def _compare_files(before: Mapping[str, Any], now: Mapping[str, Any], new: str) -> Iterator[str]:
    """Yield the names of files that were added, removed and changed, whose stamps are `before` and `now`, as text."""
    added = [name for name in now if name not in before]
    removed = [name for name in before if name not in now]
    changed = [name for name in now if before.get(name, now[name]) != now[name]]
    for names, verb in ((added, "added"), (removed, "removed"), (changed, "changed")):
        if names:
            yield f"{format_count(len(names), 'file')} {verb} since it was written: {join_names(names)}"
    if added and not removed and not changed:
        yield f"append({new}, path) adds their rows"
    elif not (added or removed or changed):
        yield "its files were read with other options"


def describe_source(record: Mapping[str, Any]) -> str:
    """Return a phrase for the rows of a source record, such as names of files or "5 rows in memory"."""
    if "parts" in record:
        return f"{len(record['parts'])} merged parts"
    if "splits" in record:
        return ", ".join(f"{describe_source(one)} ({name})" for name, one in record["splits"].items())
    if "table" in record:
        return f"the table {record['table']}"
    if "files" in record:
        return join_names([name for name, *_ in record["files"]])
    if "version" in record:
        return f'version="{record["version"]}"'
    if "fingerprint" in record:
        return "a Hugging Face dataset"
    return f"{format_count(record['rows'], 'row')} in memory" if "rows" in record else f"rows of {record!s:.100}"


def join_names(names: Sequence[str]) -> str:
    """Return the first names in quotes, and the number of further ones."""
    shown = ", ".join(f'"{name}"' for name in names[:_MAX_LISTED])
    return f"{shown} and {len(names) - _MAX_LISTED:,} more" if len(names) > _MAX_LISTED else shown
