"""An output added to a written dataset: encoded separately, and committed next to the files of the other outputs."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from daskprep.columns.display import format_count, join_names
from daskprep.columns.permutation import Integers
from daskprep.dataset import Dataset
from daskprep.dataset.dataset import open_single
from daskprep.dataset.opening import open_folder
from daskprep.dataset.segments import REJECTED
from daskprep.dataset.split import Split
from daskprep.dataset.stored import StoredDataset
from daskprep.dataset.writing.deleting import editable_root
from daskprep.dataset.writing.encoded import EncodedOrCells
from daskprep.dataset.writing.memory import on_workers, plan_source
from daskprep.dataset.writing.parts import NewFile, encode_part
from daskprep.dataset.writing.rewriting import StoredPart, read_recipe, read_row_ids, write_next_version
from daskprep.dataset.writing.versions import SCRATCH, Options, Recipe, commit, next_version, roll_forward
from daskprep.dataset.writing.write import fit_source, write_again
from daskprep.errors import ColumnError, ConfigError, MissingColumnError, warn
from daskprep.features import Feature, Learned
from daskprep.features.base import all_outputs, may_drop_rows
from daskprep.features.parameter_values import make_features, match_folds_to_split
from daskprep.passes.assignment import Assignment
from daskprep.passes.contexts import assignment_columns
from daskprep.passes.losses import warn_about_losses
from daskprep.passes.state import feature_params, state_files, state_from_files
from daskprep.passes.table import learning_columns, source_columns
from daskprep.rows import saved
from daskprep.sources import Source
from daskprep.sources.balance import Undersample
from daskprep.sources.classes import Mask, RowCounts, data_changed_error
from daskprep.sources.frames import frame_of_columns, is_cell, table_from_pandas
from daskprep.sources.partitions.progress import Progress
from daskprep.sources.split import DROPPED, TRAIN, Splitter, TimeSeriesSplit
from daskprep.sources.split.base import ReadAgain, SplitArray
from daskprep.storage.arrays import ROW_ID, Output
from daskprep.storage.files import Folder
from daskprep.storage.layout import SPLITS, Layout
from daskprep.storage.manifest import APPENDED, NEXT, Manifest, add_losses, read_versions

_GATHERED_BYTES = 64_000_000  # of new outputs, whose rows are read at a time
_NO_ROWS = np.empty(0, np.int64)


def add_output(dataset: Dataset, name: str, feature: Feature | str, rows: Any, options: Options) -> Dataset:
    """Fit a feature, and add its outputs to all rows of a dataset; `Dataset.add` has the parameters.

    The outputs are written as a separate dataset in the scratch folder of the new version, which the same call
    continues if it is killed. Then the other files are linked, and the manifest is written last.
    """
    options.check()
    root = editable_root(dataset, "add")
    with root.lock():
        roll_forward(root)
        current = open_folder(root, dataset.base_dir, trusted=dataset.trusted)
        parts = current._stored.datasets
        rules = read_recipe(current)
        features = match_folds_to_split(
            make_features({name: feature}, [], current.metadata.get("weight")), rules.split, rules.fit_on
        )
        _check_addable(current, parts, name, features[name], rules, is_computed=callable(rows))
        stored, is_computed = parts[0], callable(rows)
        if is_computed:
            own, others = source_columns({name: features[name]}), source_columns(features, learning_columns(features))
            rows = _ComputedSource(stored, own, [one for one in others if one not in own], rows)
        members = _find_members(current, stored, by_position=is_computed)
        folder = root / next_version(stored.version) / SCRATCH / "added"
        with on_workers(rows, options.workers, options.memory, features[name], **options.source_options):
            if is_computed:
                source, training = rows, members.as_training() if rules.fit_on == "all" else members
            else:
                source, members, training = _open_source(rows, features, rules, members, options)
            added = _write_added(name, features, source, members, training, folder, options)
        manifest = _join(stored, added, members, by_position=is_computed)
        if (versions := read_versions(root)) is None:
            commit(root, manifest)
        else:
            root.write(NEXT, manifest.to_bytes())
            root.write(APPENDED, dataclasses.replace(versions, digests=(manifest.digest,)).to_bytes())
            roll_forward(root)
        return open_folder(root, dataset.base_dir, trusted=dataset.trusted)


def _leaves_out(rules: Recipe) -> bool:
    """Return whether a feature learns also from rows that are neither in the dataset nor among its rejects."""
    in_no_period = rules.fit_on == "all" and isinstance(rules.split, TimeSeriesSplit)
    return in_no_period or isinstance(rules.balance, Undersample)


def _open_source(
    rows: Any, features: Mapping[str, Feature], rules: Recipe, members: _Members, options: Options
) -> tuple[Source, _Members, _Members]:
    """Return a source, the members to write, and those that a write with the feature learns from.

    The latter are also rows that it leaves out after learning: for values that the fitted state excludes, and by
    balance or split. Rows that `Undersample` drops are written, too, as values of other rows may depend on them. The
    source has the columns of features, and of those that decide which rows they learn from.
    """
    reads_rules = _leaves_out(rules) or bool(len(members.left_out))
    dropping = {name: one for name, one in rules.features.items() if may_drop_rows(one)} if reads_rules else {}
    deciding = assignment_columns(rules.split, rules.balance) if reads_rules else []
    columns = source_columns({**dropping, **features}, [*learning_columns(features), *deciding])
    try:
        source = plan_source(rows, columns, options.memory, options.source_options, features)
    except MissingColumnError as error:
        raise MissingColumnError(
            f"add: {error}. A write with the feature reads {join_names(columns, 10)}, also to find the rows that "
            "the feature learns from"
        ) from error
    training = members.as_training() if rules.fit_on == "all" else members
    if not reads_rules:
        return source, members, training
    fit_split = None if rules.fit_on == "all" else rules.split
    assigned = np.asarray(Assignment(dropping, fit_split).arrays(source)["split"])
    if not _leaves_out(rules):
        if len(assigned) == len(members.splits):  # else the write of the members warns, or raises an error
            training = _Members(training.splits.copy(), members.url)
            training.splits[members.left_out] = assigned[members.left_out]
        return source, members, training
    if members.deleted is None:
        raise ConfigError(
            f"add: rows of {members.url} were purged, and balance or split left out others, which a feature learns "
            "from, too: write it again with this feature"
        )
    written = Assignment(dropping, rules.split, rules.balance, rules.learned).arrays(source)
    expected = np.full(len(assigned), DROPPED, np.uint8)
    expected[: len(members.splits)] = members.splits[: len(assigned)]
    splits, is_written = np.asarray(written["split"]), np.asarray(written["repeats"]) > 0
    is_written[members.deleted[members.deleted < len(assigned)]] = False
    if len(assigned) < len(members.splits) or (np.where(is_written, splits, DROPPED) != expected).any():
        raise ConfigError(
            f"add: these are not the rows of {members.url}, since split and balance choose others among them: "
            "pass the rows that it was written from, in the same order"
        )
    splits[members.deleted] = assigned[members.deleted] = DROPPED
    return source, _Members(splits, members.url), _Members(assigned, members.url)


def _check_addable(
    current: Dataset, parts: Sequence[Dataset], name: str, feature: Feature, rules: Recipe, *, is_computed: bool
) -> None:
    """Raise ConfigError for names that are taken, for datasets whose rows cannot be joined, and for lazy media."""
    problem = None
    taken = {output.name for output in current.layout.outputs}
    if name in current.features:
        problem = f'it has a feature "{name}" already: pass another name, and column= of the feature'
    elif len(parts) > 1:
        problem = f"it has {len(parts)} parts, of appended rows: write it again with this feature"
    elif "parts" in (current.manifest.source or {}) and not is_computed:
        problem = "compact has merged its parts: pass a function of decoded rows, or write it again with this feature"
    elif current.metadata.get("sample") is not None:
        problem = "it has a sample of its rows: write it again with this feature"
    elif _leaves_out(rules) and is_computed:
        problem = "a feature learns also from the rows that balance or split left out: pass all rows, not a function"
    elif clash := next((name + output for output in all_outputs(feature) if name + output in taken), None):
        problem = f'it has an output "{clash}" already: pass another name, and column= of the feature'
    elif getattr(feature, "mode", "eager") != "eager":
        problem = 'media that are decoded while they are loaded cannot be added: use mode="eager"'
    if problem:
        raise ConfigError(f'add: "{name}" cannot be added to {current.url}: {problem}')


@dataclass(frozen=True)
class _Assignment:
    """The splits of the rows of one partition."""

    splits: SplitArray

    def assign(self, table: pa.Table, keep: Mask | None) -> SplitArray:
        """Return the split of every row, DROPPED where not `keep`; ColumnError for another number of rows."""
        if table.num_rows != len(self.splits):
            raise data_changed_error("The number of rows")
        return self.splits if keep is None else np.where(keep, self.splits, np.uint8(DROPPED))


class _Members(Splitter):
    """The split of each row of the source in a dataset, `DROPPED` for rows that it does not have."""

    type = "members"

    def __init__(
        self, splits: SplitArray, url: str, left_out: Integers = _NO_ROWS, deleted: Integers | None = _NO_ROWS
    ) -> None:
        """Take the split of each row, the rows that the write left out, and those deleted; None: rows were purged."""
        self.splits, self.url, self.left_out, self.deleted = splits, url, left_out, deleted

    def as_training(self) -> _Members:
        """Return the members with all rows for training."""
        splits = np.where(self.splits == DROPPED, np.uint8(DROPPED), np.uint8(TRAIN))
        return _Members(splits, self.url)

    def plan(self, censuses: Sequence[RowCounts], read_again: ReadAgain = None) -> list[_Assignment]:
        """Return the splits of each partition; ConfigError for too few rows, and a warning for more of them."""
        starts = list(accumulate((census.rows for census in censuses), initial=0))
        total, known = starts[-1], len(self.splits)
        if total < known:
            raise ConfigError(
                f"add: the rows are {total:,}, but {self.url} has row {known - 1:,}: pass the rows that it was written "
                "from, in the same order"
            )
        if total > known:
            warn(
                f"add: {format_count(total - known, 'row')} after row {known - 1:,} are left out, since {self.url} has "
                "none of them: check that these are the rows that it was written from, in the same order"
            )
        splits = np.concatenate([self.splits, np.full(total - known, DROPPED, np.uint8)])
        return [_Assignment(splits[start : start + one.rows]) for start, one in zip(starts, censuses, strict=False)]

    def to_dict(self) -> dict[str, Any]:
        return {"type": self.type, "digest": hashlib.sha256(self.splits.tobytes()).hexdigest()}

    def positions(self, ids: Integers, split: int) -> Integers:
        """Return the positions of rows of a split, among the rows of this split in the order of the source."""
        if split not in self._rows:
            self._rows[split] = np.flatnonzero(self.splits == split)
        return np.searchsorted(self._rows[split], ids)

    @functools.cached_property
    def _rows(self) -> dict[int, Integers]:
        return {}


def _find_members(current: Dataset, stored: Dataset, *, by_position: bool) -> _Members:
    """Return the split of each row of the source, or with `by_position` of each stored row, split after split.

    Deleted rows, and the places of rows that were purged, are not in a dataset.
    """
    deleted, is_purged = [_NO_ROWS], False
    hidden = current.segments[0].hidden
    rejects = stored.rejects()[ROW_ID.name].to_numpy()
    rows = sum(stored.manifest.layout.rows.values())
    splits = np.full(rows if by_position else int(rejects.max(initial=-1)) + 1, DROPPED, np.uint8)
    for name, start, ids in read_row_ids(stored):
        positions = np.arange(start, start + len(ids))
        kept = (ids >= 0) & ~np.isin(positions, hidden.get(name, ()))
        numbers = positions + _offset(stored, name) if by_position else ids
        if (highest := int(numbers.max(initial=-1))) >= len(splits):
            splits = np.concatenate([splits, np.full(highest + 1 - len(splits), DROPPED, np.uint8)])
        splits[numbers[kept]] = SPLITS.index(name)
        deleted.append(ids[(ids >= 0) & ~kept])
        is_purged |= bool((ids < 0).any())
    left_out = np.unique(current.rejects()[ROW_ID.name].to_numpy())
    gone = None if is_purged else np.concatenate([*deleted, hidden.get(REJECTED, _NO_ROWS)])
    return _Members(splits, stored.url, left_out[splits[left_out] == DROPPED] if not by_position else _NO_ROWS, gone)


def _offset(stored: StoredDataset, split: str) -> int:
    """Return the number of stored rows in the splits before a split."""
    rows = stored.manifest.layout.rows
    return sum(rows[name] for name in list(rows)[: list(rows).index(split)])


class _ComputedSource(Source):
    """The columns that a function computes from the decoded rows of a dataset: a partition per block of each split."""

    def __init__(
        self, stored: Dataset, computed: list[str], decoded: list[str], function: Callable[[pd.DataFrame], Any]
    ) -> None:
        layout = stored.manifest.layout
        self.stored, self.columns, self.computed, self.function = stored, [*computed, *decoded], computed, function
        self.blocks = [(name, block) for name in layout.rows for block in range(layout.blocks(name))]
        self.row_counts = [len(layout.block_range(*block)) for block in self.blocks]
        self.inputs = [output.name for output in layout.outputs if not output.stores_cells]

    def read_rows(self, partition: int, columns: list[str]) -> pa.Table:
        name, block = self.blocks[partition]
        rows = self.stored.manifest.layout.block_range(name, block)
        decoded = self.stored.decode(self.stored[name]._read(self.inputs, rows))
        if absent := [one for one in columns if one not in self.computed and one not in decoded]:
            raise ColumnError(
                f'add: the feature learns from column "{absent[0]}", but the decoded rows have '
                f"{join_names(list(map(str, decoded)), 10)}: pass the rows that the dataset was written from"
            )
        result = self.function(decoded.copy(deep=False))
        cells = result if isinstance(result, pd.DataFrame | Mapping) else {self.computed[0]: result}
        if absent := [one for one in self.computed if one not in cells]:
            raise ConfigError(
                f'add: the function returned a {type(result).__name__} without "{absent[0]}": it must return one value '
                f"for each row, or a frame with {join_names(self.computed, 10)}"
            )
        for column in self.computed:
            if is_cell(cells[column]) or len(cells[column]) != len(rows):
                shown = f"{cells[column]!r:.80}" if is_cell(cells[column]) else f"{len(cells[column]):,} values"
                raise ConfigError(
                    f"add: the function returned {shown} for {len(rows):,} rows: it must return one value for each"
                )
        values = {one: cells[one] if one in self.computed else decoded[one] for one in columns}
        return table_from_pandas(frame_of_columns(values), columns)


def _write_added(
    name: str,
    features: Mapping[str, Feature],
    source: Source,
    members: _Members,
    training: _Members,
    folder: Folder,
    options: Options,
) -> Dataset:
    """Return the dataset of a feature that is fitted on the training rows of `training`, and has all members.

    `features` are the feature, and the weight of rows if there is one. Rows are in the order of the source.
    """
    feature = features[name]

    def describe(learned: Mapping[str, Learned] | None) -> dict[str, Any]:
        state = {"type": feature.kind, "params": feature_params(name, feature)}
        state |= {} if learned is None else {"learned": learned[name].to_state()}
        common = {"format": saved.PLAIN_FORMAT, "balance": None, "fit_on": "train", "split": members.to_dict()}
        return {**common, "features": {name: state}}

    learned = None
    if len(features) > 1 or not np.array_equal(training.splits == TRAIN, members.splits == TRAIN):
        with Progress(options.progress) as progress:
            fit = Recipe(features, training, None, "train", None, describe)
            [states] = fit_source(fit, source, options.scratch, progress)
        learned = {name: states[name]}
    recipe = Recipe({name: feature}, members, None, "train", learned, describe)
    write_again(recipe, source, folder, options)
    added = open_single(folder, None, trusted=True)
    expected = sum(int(np.count_nonzero(members.splits == split)) for split in range(len(SPLITS)))
    if missing := expected - sum(added.layout.rows.values()):
        raise ConfigError(
            f'add: "{name}" drops {format_count(missing, "row")} that the dataset has: use another '
            "missing_value_strategy"
        )
    if (losses := added.losses()) is not None:
        rows, call = added.layout.rows, "dataset.losses()"
        warn_about_losses(losses, added.features, added.learned, fitted=True, rows=rows, call=call)
    return added


def _join(stored: Dataset, added: Dataset, members: _Members, *, by_position: bool) -> Manifest:
    """Write the next version of a dataset, with added outputs, and return its manifest."""
    old = stored.manifest
    outputs = (*old.layout.outputs, *added.layout.outputs)
    layout = Layout.from_dict(dataclasses.replace(old.layout, outputs=outputs).to_dict())  # which checks block_rows
    state = state_from_files(stored.files.read)  # with the names of files also if the dataset is not trusted
    state["features"] |= state_from_files(added.files.read)["features"]

    def list_files() -> Iterator[NewFile]:
        yield from itertools.starmap(NewFile, state_files(state).items())
        for name in layout.rows:
            if added.layout.matrices:
                yield from itertools.starmap(NewFile, layout.metadata_files(name).items())
            yield from _encode_files(stored[name], layout, added, members, by_position=by_position)

    losses = None
    # With copies of rows, or after rows were purged, the losses of the added feature have other numbers of cells.
    if old.losses is not None and added.manifest.losses is not None and old.layout.rows == added.layout.rows:
        losses = {split: add_losses(counts, added.manifest.losses[split]) for split, counts in old.losses.items()}
    return write_next_version(stored, list_files(), layout=layout, losses=losses)


def _gather(added: Dataset, members: _Members, ids: Integers) -> dict[str, np.ndarray]:
    """Return the added outputs of rows of the source; zeros for rows that are deleted or purged."""
    arrays = {output.name: output.empty(len(ids)) for output in added.layout.outputs}
    splits = np.where(ids < 0, np.uint8(DROPPED), members.splits[ids])
    for array in arrays.values():
        array[splits == DROPPED] = 0
    for name, split in added.splits.items():
        at = np.flatnonzero(splits == SPLITS.index(name))
        if len(at):
            positions, inverse = np.unique(members.positions(ids[at], SPLITS.index(name)), return_inverse=True)
            is_range = positions[-1] - positions[0] == len(positions) - 1
            rows = range(int(positions[0]), int(positions[-1]) + 1) if is_range else positions
            for output, values in split._read(None, rows).items():
                arrays[output][at] = values[inverse]
    return arrays


def _encode_files(
    split: Split, layout: Layout, added: Dataset, members: _Members, *, by_position: bool
) -> Iterator[NewFile]:
    """Yield the files of a split that have added outputs: its tables, if some are scalars, and chunks or shards."""
    name, new = split.name, added.layout
    parts = max(1, _GATHERED_BYTES // max(1, new.row_bytes * layout.block_rows * layout.part_blocks))
    for first in range(0, layout.parts(name), parts):
        stored = [StoredPart(split, number) for number in range(first, min(first + parts, layout.parts(name)))]
        rows = range(stored[0].range.start, stored[-1].range.stop)
        if by_position:
            ids = np.arange(rows.start, rows.stop) + _offset(split.dataset, name)
        else:
            ids = split._read(ROW_ID.name, rows)[ROW_ID.name]
        arrays = _gather(added, members, ids)
        for number, part in enumerate(stored, start=first):
            own = {output: array[part.range.start - rows.start :] for output, array in arrays.items()}
            yield from encode_part(layout, name, number, functools.partial(_read_with, part, own), new.outputs)


def _read_with(
    part: StoredPart, added: Mapping[str, np.ndarray], output: Output, start: int, stop: int
) -> EncodedOrCells:
    """Return rows of an output for `encode_part`, from the stored part or the `added` outputs of its rows."""
    return added[output.name][start:stop] if output.name in added else part.read(output, start, stop)
