"""One write, pass by pass: scan, learn, place, encode, write parts, commit."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from daskprep import partitions
from daskprep.assignment import Counted
from daskprep.errors import ColumnError, CorruptDatasetError, StorageFullError
from daskprep.features import Feature, Learned
from daskprep.features.fitting import learn_rows
from daskprep.features.surroundings import (
    Question,
    Rows,
    ask,
    fold_columns,
    surveyed,
    tell_folds,
    told_after,
    told_by_numbers,
    told_unread,
)
from daskprep.features.table import PartitionCensus, Surroundings, take_census
from daskprep.inline import InlineExecutor
from daskprep.progress import Progress
from daskprep.sources import Source
from daskprep.state import state_files
from daskprep.storage.checksum import Buffer
from daskprep.storage.files import Folder
from daskprep.storage.kept import Kept, intact, keep, read_kept
from daskprep.storage.manifest import FileEntry, Manifest, Receipt
from daskprep.storage.tables import REJECTS
from daskprep.writing.encoded import EncodedRows
from daskprep.writing.parts import Part, PartWriter, read_receipts, write_file
from daskprep.writing.passes import Encode, Place, Scan, scan_and_summarize
from daskprep.writing.placement import Placement
from daskprep.writing.plan import CHECKPOINT, SavedLearned, WritePlan, choose_layout
from daskprep.writing.recipe import Options, Recipe, digest_of_cutting
from daskprep.writing.rejects import joined_rejects
from daskprep.writing.scratch import ScannedRows, ScratchSource, scratch_name
from daskprep.writing.versions import commit

# One waits for the disk while another saves what was learned.
_SAVING_THREADS = 2

_NO_ROWS = "the data has no rows: there is nothing to write"

_Files = dict[str, FileEntry]


class Planned(NamedTuple):
    """What is known before rows are encoded."""

    saved: SavedLearned  # what was learned
    plan: WritePlan  # what goes where
    told: list[Surroundings]  # what each partition must know to be encoded
    state: Future[_Files]  # the files in which what was learned is saved, once they are written


class Found(NamedTuple):
    """What was found out about the rows of a source; what is empty is not known yet."""

    census: list[PartitionCensus]
    told: list[Surroundings]  # what to tell each partition
    states: Sequence[Mapping[str, Learned]]
    counted: list[Counted]  # what each partition gives


@dataclass(frozen=True)
class WriteJob:
    """Everything that the passes of one write share.

    `expected` are the files of a committed version of which some are made again; None for a new version. `parsed` is
    the folder of the parsed rows, if they are those of several writes; None for the scratch of this one.
    """

    recipe: Recipe
    source: Source
    root: Folder
    name: str
    all_scratch: Folder
    options: Options
    progress: Progress
    fingerprint: Mapping[str, Any] | None
    expected: Mapping[str, FileEntry] | None = None
    parsed: Folder | None = None

    @property
    def version(self) -> Folder:
        return self.root / self.name

    def run(self) -> list[dict[str, Learned]]:
        """Do every pass that is still to be done, then commit; return what was learned, as `learn_source`."""
        try:
            return self._run()
        except StorageFullError as error:
            raise StorageFullError(f"{error}. {self._space()} Finished work is kept: run it again to resume") from error

    def _space(self) -> str:
        """Say how much room the write takes, as far as it is known by now."""
        if kept := read_kept(self.scratch, CHECKPOINT):
            plan, _ = kept
            # Once as scratch, parsed or encoded, and once as parts, which compression makes smaller.
            nbytes = 2 * sum(plan.layout.rows.values()) * plan.layout.row_bytes
        elif self.source.files:
            nbytes = 3 * sum(piece.nbytes for piece in self.source.pieces)
        else:
            return "How much room the write takes is not known yet."
        return f"The write takes up to {nbytes:,} bytes there until it is committed."

    def _run(self) -> list[dict[str, Learned]]:
        # Saves and flushes while tasks compute: state, checkpoint, fixed files and parts, none of which is written by
        # two. The manifest comes last, when all of them have been waited for.
        with background_threads() as background:
            resumed = self._resumed()
            if resumed is None:
                self._remove_scratch()
            planned = resumed or self._planned(background)
            self._write(planned, background)
        self.all_scratch.remove_all()
        return [dict(planned.saved)]

    def _write(self, planned: Planned, background: Executor) -> None:
        """Write the parts that are still missing, and commit."""
        plan, state = planned.plan, planned.state
        if state.done():
            state.result()
        parts = [Part(split, number) for split in plan.layout.rows for number in range(plan.layout.parts(split))]
        written = read_receipts(self.version)
        missing = [part for part in parts if part.receipt not in written]
        fixed = background.submit(self._write_fixed, plan)
        if fixed.done():
            fixed.result()
        receipts = [written[part.receipt] for part in parts if part.receipt in written]
        # Whoever wrote them may have been killed before they were flushed.
        flushed = background.submit(self.version.sync, [name for one in receipts for name in one.files])
        receipts += self._write_rows(planned, missing, background)
        files = {name: entry for one in receipts for name, entry in one.files.items()}
        files |= {**state.result(), **fixed.result(), **self._write_rejects(plan, receipts)}
        flushed.result()
        gaps = tuple(sorted(gap for one in receipts for gap in one.gaps))
        commit(self.root, Manifest(self.name, plan.layout, files, self.fingerprint, self.options.settings, gaps))

    def repair(self, committed: Manifest, damaged: Set[str]) -> None:
        """Make damaged files of a committed version again, byte by byte as they were."""
        with background_threads() as background:
            planned = self._planned(background)
            plan = planned.plan
            if plan.layout != committed.layout:
                raise CorruptDatasetError(
                    f"the source has other rows than the dataset was made of ({dict(plan.layout.rows)}, not "
                    f"{dict(committed.layout.rows)} by split): give the very source, or write again with overwrite=True"
                )
            self._write_fixed(plan, damaged)
            # What could not be decoded is only known once it was tried again.
            every = REJECTS in damaged and bool(self.recipe.media)
            parts = [
                Part(split, number)
                for split in plan.layout.rows
                for number in range(plan.layout.parts(split))
                if every or not damaged.isdisjoint(plan.layout.part_files(split, number))
            ]
            receipts = self._write_rows(planned, parts, background)
            if REJECTS in damaged:
                self._write_rejects(plan, receipts)
        self.all_scratch.remove_all()

    # -- until it is known what goes where

    def _found(self) -> Found:
        found = self._scan()
        scanned = self._scanned([one.rows for one in found.census])
        if not found.told:
            told = told_after(found.census, self.recipe.features, self.recipe.split, scanned)
            found = found._replace(told=tell_folds(scanned, self.recipe.features, told))
        return found if found.states else found._replace(states=self._learn(scanned, found.told))

    def _planned(self, background: Executor, found: Found | None = None) -> Planned:
        recipe = self.recipe
        census, told, [learned], counted = found or self._found()
        scanned = self._scanned([one.rows for one in census])
        saved = self._saved(learned)
        # Tasks of this process are handed what was learned; those of others read a file, which must be there first.
        state = background.submit(self._save_state, learned)
        if state.done() or not (partitions.is_in_process() or saved.is_kept()):
            state.result()
        assignment = recipe.assignment(saved)
        place = None
        if self._places:
            place = Place(assignment.dropping, saved, self.scratch, _starts(census), recipe.split)
        if not counted:
            told, counted = assignment.counted(scanned, assignment.balanced(scanned, told), self._around, place)
        if self._places:  # what chose splits and repeats is of no use any more: they lie in scratch
            told = [dataclasses.replace(one, rows=None, repeats=None) for one in told]
        placement = Placement.of([one.rows for one in counted], [one.counts for one in counted])
        if not placement.rows:
            raise ColumnError(
                "every row is left out, by features that drop rows or by the split: nothing is left to write"
            )
        layout = choose_layout(recipe.features, learned, placement.rows, self.options)
        plan = WritePlan(layout, placement, tuple(one.rejects for one in counted))
        if not self._around:
            # It says that a write can go on from here: after the state, and after all scratch that the passes left.
            state = background.submit(self._save_checkpoint, plan, state)
        return Planned(saved, plan, told, state)

    def _save_checkpoint(self, plan: WritePlan, state: Future[_Files]) -> _Files:
        entries = state.result()
        keep(self.scratch, CHECKPOINT, (plan, entries))
        return entries

    def _resumed(self) -> Planned | None:
        """Return what an earlier write of this version had found out before it was killed, if all of it is whole."""
        if (kept := read_kept(self.scratch, CHECKPOINT)) is None:
            return None
        plan, entries = kept
        if not all(self._is_kept(name, entry) for name, entry in entries.items()):
            return None
        rows = plan.placement.source_rows
        if not all(self._usable(plan, number) for number in range(len(rows))):
            return None
        state: Future[_Files] = Future()
        state.set_result(entries)
        told = told_by_numbers(rows, None if self._places else self.recipe.split)
        told = tell_folds(self._scanned(rows), self.recipe.features, told)
        return Planned(self._saved(), plan, told, state)

    def _usable(self, plan: WritePlan, number: int) -> bool:
        """Tell whether a partition is encoded, or can be encoded, from what lies in scratch."""
        if plan.rejects[number] and not intact(self.scratch, scratch_name("rejects", number)):
            return False
        if not self._looks_around and intact(self.scratch, scratch_name("encoded", number)):
            return True
        placed = not self._places or intact(self.scratch, scratch_name("placed", number))
        return placed and intact(self.parsed or self.scratch, scratch_name("parsed", number))

    def _saved(self, learned: Mapping[str, Learned] | None = None) -> SavedLearned:
        types = {name: feature.learned_type for name, feature in self.recipe.features.items()}
        return SavedLearned(self.version, self.scratch, types, learned=learned)

    @functools.cached_property
    def scratch(self) -> Folder:
        """The scratch of this cutting of the source: files of another one are of no use."""
        return self.all_scratch / digest_of_cutting(self.source)

    def _scanned(self, rows: Sequence[int]) -> ScannedRows:
        folder, names = self.parsed or self.scratch, list(self.recipe.features)
        return ScannedRows(ScratchSource(folder, rows, names, self.recipe.assigning))

    @property
    def _around(self) -> dict[str, Feature]:
        """The features whose columns other partitions complete when they are encoded."""
        return {name: one for name, one in self.recipe.features.items() if one.around is not None}

    @property
    def _looks_around(self) -> bool:
        """Whether encoding takes parsed rows of all partitions, so that they stay until the end."""
        return bool(self._around or fold_columns(self.recipe.features))

    @property
    def _places(self) -> bool:
        """Whether cells decide where rows go, so that it is kept in scratch; else their numbers say all."""
        return not self.recipe.assignment(self._saved()).by_numbers

    def _scan(self) -> Found:
        """Read every partition once; learn at once, if no census must say first from which rows."""
        recipe, source = self.recipe, self.source
        states: Sequence[Mapping[str, Learned]] = [] if recipe.learned is None else [recipe.learned]
        if source.row_counts is not None and not sum(source.row_counts):
            raise ColumnError(_NO_ROWS)
        rows = Rows(source, Scan(recipe.assigning, self.scratch))
        looked_at, counted = surveyed(recipe.features, recipe.split), list[Counted]()
        split = recipe.split if recipe.fit_on == "train" else None
        told = told_unread(rows, recipe.features, split)
        if not states and told is not None:
            advance = self.progress.stage("reading and learning", total=source.npartitions, unit="partitions")
            found: dict[int, tuple[int, PartitionCensus, Counted | None]] = {}

            # One thread at a time calls it, as partitions come, in any order.
            def note(scanned: tuple[int, PartitionCensus, Counted | None]) -> None:
                found[scanned[0]] = scanned
                advance(rows=scanned[1].rows)

            counts = split is recipe.split and not (self._places or self._around or (split and split.folds))
            question: Question = functools.partial(scan_and_summarize, recipe.features, looked_at, recipe.split, counts)
            kept = self._kept("scan")
            states = self._learned(rows, recipe.assigning, told, question=question, kept=kept, advance=note)
            in_order = [found[number] for number in range(source.npartitions)]
            census, counted = [one for _, one, _ in in_order], [one for *_, one in in_order if one is not None]
        else:
            advance = self.progress.stage("reading", total=source.npartitions, unit="partitions")
            question = functools.partial(take_census, looked_at, recipe.split)
            census = ask(
                rows,
                "scan",
                question,
                recipe.features,
                recipe.assigning,
                kept=self._kept("scan"),
                advance=lambda one: advance(rows=one.rows),
            )
        if not sum(one.rows for one in census):
            raise ColumnError(_NO_ROWS)
        return Found(census, told or [] if split is recipe.split else [], states, counted)

    def _learn(self, scanned: ScannedRows, told: Sequence[Surroundings]) -> list[dict[str, Learned]]:
        if self.recipe.fit_on == "all":
            told = [dataclasses.replace(one, rows=None) for one in told]
        advance = self.progress.stage("learning", total=len(told), unit="partitions")
        return self._learned(scanned, self.recipe.assigning, told, kept=self._kept("learn"), advance=advance)

    def _remove_scratch(self) -> None:
        """Remove all scratch but what finished tasks of the first passes left, if the source is known to be cut so."""
        own = f"{digest_of_cutting(self.source)}/"
        stays = (f"{own}parsed-", f"{own}scan-", f"{own}learn-")
        if not self.source.files:
            self.all_scratch.remove_all()
        self.all_scratch.remove(*(name for name in self.all_scratch.sizes() if not name.startswith(stays)))

    def _kept(self, name: str) -> Kept:
        """Return the results of a pass of which every task leaves, or has left, parsed rows."""
        return Kept(self.scratch, name, functools.partial(scratch_name, "parsed"))

    def _learned(
        self, rows: Rows, columns: Sequence[str], told: Sequence[Surroundings], **how: Any
    ) -> list[dict[str, Learned]]:
        folder = self.scratch.path if self.scratch.is_local else self.options.scratch
        return learn_rows(rows, self.recipe.features, columns, told, scratch=folder, **how)

    # -- state

    def _save_state(self, learned: Mapping[str, Learned]) -> _Files:
        if self.expected is not None:
            return {}
        return {name: self._write_file(name, data) for name, data in state_files(self.recipe.describe(learned)).items()}

    def _is_kept(self, name: str, entry: FileEntry) -> bool:
        return self.version.size(name) == entry.bytes and entry.is_of(name, self.version.read(name))

    # -- rows

    def _write_rows(self, planned: Planned, parts: Sequence[Part], background: Executor) -> list[Receipt]:
        """Encode the partitions that some parts take their rows from, and write the parts."""
        plan, saved = planned.plan, planned.saved
        seed = self.options.seed if self.options.shuffle else None
        rows = EncodedRows(plan.layout, plan.placement, seed, frozenset(self.recipe.media))
        here = partitions.is_in_process()
        features, expected = self.recipe.features, self.expected
        writer = PartWriter(self.version, self.scratch, rows, features, saved, syncs=not here, expected=expected)
        flushed = []

        # One thread at a time calls it, and all are flushed before the manifest says that the parts are there.
        def flush(written: tuple[int, Receipt]) -> None:
            if here:
                flushed.append(background.submit(self.version.sync, list(written[1].files)))
            advance(rows=written[0])

        # Shuffled, a part takes rows from every partition.
        sources = parts if rows.seed is None else [Part(split, 0) for split in {part.split for part in parts}]
        numbers = sorted({i for part in sources for i in rows.partitions_of(part.split, part.number)})
        scanned = self._scanned(rows.placement.source_rows)
        frees = not self._looks_around and self.parsed is None
        encode = Encode(self.recipe.features, saved, rows, scanned, self.scratch, placed=self._places, frees=frees)
        told = [planned.told[number] for number in numbers]
        if here and rows.seed is None:
            # A part waits for the rows of a few partitions at most: they need not be written in between.
            advance = self.progress.stage("encoding and writing", total=len(parts), unit="parts")
            places = {number: place for place, number in enumerate(numbers)}
            needs = [
                [(places[run.partition], part.split) for run in rows.pieces_of(part.split, part.number)]
                for part in parts
            ]
            results = partitions.chained("encode", encode.by_split, told, "write", writer, parts, needs, advance=flush)
        else:
            encoded = self.progress.stage("encoding", total=len(numbers), unit="partitions")
            partitions.run("encode", operator.call, encode, told, advance=lambda count: encoded(rows=count))
            advance = self.progress.stage("writing", total=len(parts), unit="parts")
            results = partitions.run("write", operator.call, writer, parts, advance=flush)
        for future in flushed:
            future.result()
        return [receipt for _, receipt in results]

    def _write_fixed(self, plan: WritePlan, wanted: Set[str] | None = None) -> _Files:
        """Write the metadata of the arrays, or some of these files."""
        fixed = [file for split in plan.layout.rows for file in plan.layout.fixed_files(split).items()]
        return {name: self._write_file(name, data) for name, data in fixed if wanted is None or name in wanted}

    def _write_rejects(self, plan: WritePlan, receipts: Sequence[Receipt]) -> _Files:
        """Write the list of what could not be used: rows that were left out, and media that were filled."""
        filled = [one for receipt in receipts for one in receipt.filled]
        rejecting = [number for number, count in enumerate(plan.rejects) if count]
        join = functools.partial(joined_rejects, self.scratch, filled)
        [data] = partitions.run("rejects", operator.call, join, [rejecting]) if rejecting else [join([])]
        return {REJECTS: self._write_file(REJECTS, data, sum(plan.rejects) + len(set(filled)))}

    def _write_file(self, name: str, data: Buffer, rows: int | None = None) -> FileEntry:
        return write_file(self.version, name, data, rows, self.expected)


def background_threads() -> Executor:
    """Return what saves and flushes beside the tasks; after one another, if tasks run so too."""
    if partitions.worker_threads() == (1, 1):
        return InlineExecutor()
    return ThreadPoolExecutor(_SAVING_THREADS, thread_name_prefix="daskprep-save")


def _starts(census: Sequence[PartitionCensus]) -> np.ndarray:
    return np.concatenate(([0], np.cumsum([one.rows for one in census], dtype=np.int64)))
