"""The passes of one write: scan, learn, assign splits, encode, write parts, commit; and of the writes of all folds.

The folds of a `KFold` or `TimeSeriesSplit` are below one manifest. Rows are read and parsed once. The version folder
contains the state learned from all rows, and a folder for each fold, which is a dataset with the same bytes as a write
of that fold alone. If the write is killed, committed folds are kept. The manifest of all folds is written last.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from daskprep.columns.parametrized import clone
from daskprep.dataset.writing.duplicates import HASHES, ComparedOutputs, HashedPart, count_duplicates
from daskprep.dataset.writing.encoded import Encode, EncodedRows
from daskprep.dataset.writing.parts import NewFile, Part, PartWriter, count_losses, read_receipts, write_file
from daskprep.dataset.writing.plan import CHECKPOINT_FILE, Placement, SavedLearned, WritePlan, choose_layout
from daskprep.dataset.writing.rejects import AssignSplits, join_rejects, warn_about_broken_media
from daskprep.dataset.writing.versions import (
    SCRATCH,
    Options,
    Recipe,
    commit,
    digest_of_partitioning,
    digest_of_write,
    finish_cleaning,
)
from daskprep.errors import ColumnError, StorageFullError
from daskprep.features import Feature, Learned
from daskprep.features.base import may_drop_rows
from daskprep.passes.assignment import Assignment
from daskprep.passes.contexts import ContextPlan, assignment_columns, census_of_rows, fold_columns
from daskprep.passes.engine import PartitionReader
from daskprep.passes.scanning import Scan, ScanPlan, scan_source
from daskprep.passes.scratch import scratch_name, scratch_reader
from daskprep.passes.state import state_files
from daskprep.passes.table import PartitionContext
from daskprep.sources import Source, partitions
from daskprep.sources.partitions.progress import Progress
from daskprep.sources.split import KFold, TimeSeriesSplit
from daskprep.sources.split.folds import select_fold
from daskprep.storage.checkpoint import is_intact, read_checkpoint, write_checkpoint
from daskprep.storage.checksum import Buffer
from daskprep.storage.files import Folder
from daskprep.storage.layout import FOLD_PREFIX
from daskprep.storage.manifest import (
    MANIFEST,
    FileEntry,
    Manifest,
    Receipt,
    read_manifest,
)
from daskprep.storage.tables import REJECTS
from daskprep.storage.threads import InlineExecutor

# One waits for the disk while the other saves the fitted state.
_SAVING_THREADS = 2

_Files = dict[str, FileEntry]


class PreparedWrite(NamedTuple):
    """The result of the passes before rows are encoded."""

    saved: SavedLearned  # the learned states
    plan: WritePlan
    contexts: list[PartitionContext]  # by partition, for its encoding
    state_future: Future[_Files]  # the entries of the files with the fitted state, once they are written


@dataclass(frozen=True)
class WriteJob:
    """One write of a source as a version of a dataset."""

    recipe: Recipe
    source: Source
    root: Folder  # of the dataset
    name: str  # of the version folder
    scratch_root: Folder
    options: Options
    progress: Progress
    fingerprint: Mapping[str, Any] | None  # the record of the source, which the manifest stores
    # The folder of the parsed rows, if several writes share them; None: the scratch folder.
    parsed: Folder | None = None

    @property
    def version(self) -> Folder:
        return self.root / self.name

    def run(self) -> list[dict[str, Learned]]:
        """Run all passes that are not done yet, commit, and return the learned states, as `scan_source`."""
        try:
            return self._run()
        except StorageFullError as error:
            raise StorageFullError(f"{error}. Finished work is kept: run it again to resume") from error

    def _run(self) -> list[dict[str, Learned]]:
        """Run the passes, from the checkpoint of a killed write if there is one, and commit; return the states."""
        # The executor saves and flushes files while tasks compute. No two threads write the same file, and the manifest
        # is written last, after all of them have finished.
        with background_executor() as background:
            resumed = self._resume()
            if resumed is None:
                self._remove_scratch()
            prepared = resumed or self._prepare(background)
            self._write(prepared, background)
        self.scratch_root.remove_all()
        return [dict(prepared.saved)]

    def _write(self, prepared: PreparedWrite, background: Executor) -> None:
        """Write the parts without a valid receipt, metadata and rejects; then write the manifest, which commits."""
        plan, state_future = prepared.plan, prepared.state_future
        if state_future.done():
            state_future.result()
        parts = [Part(split, number) for split in plan.layout.rows for number in range(plan.layout.parts(split))]
        compared = ComparedOutputs.of(self.recipe.features, self.recipe.targets) if len(plan.layout.rows) > 1 else None
        written_receipts = read_receipts(self.version)
        if compared is not None:
            hashed = {part.receipt for part in parts if part.receipt in written_receipts and self._has_hashes(part)}
            written_receipts = {name: receipt for name, receipt in written_receipts.items() if name in hashed}
        missing = [part for part in parts if part.receipt not in written_receipts]
        metadata = background.submit(self._write_metadata, plan)
        if metadata.done():
            metadata.result()
        written = [part for part in parts if part.receipt in written_receipts]
        receipts = [written_receipts[part.receipt] for part in written]
        # The process that wrote these parts may have been killed before it flushed them.
        flushed = background.submit(self.version.sync, [name for receipt in receipts for name in receipt.files])
        receipts += self._write_rows(prepared, missing, background, compared)
        duplicates = None
        if compared is not None:
            splits = list(plan.layout.rows)
            hashed_parts = [
                HashedPart(part.hashes, len(plan.layout.part_range(part.split, part.number)), splits.index(part.split))
                for part in parts
            ]
            duplicates = count_duplicates(self.scratch_root, hashed_parts, splits)
        files = {name: entry for receipt in receipts for name, entry in receipt.files.items()}
        files |= {**state_future.result(), **metadata.result(), **self._write_rejects(plan, receipts)}
        flushed.result()
        missing_cells = tuple(sorted(cell for receipt in receipts for cell in receipt.missing_cells))
        counted = missing_cells, duplicates, count_losses([*written, *missing], receipts)
        commit(self.root, Manifest(self.name, plan.layout, files, self.fingerprint, self.options.settings, *counted))

    def _has_hashes(self, part: Part) -> bool:
        """Return whether the scratch folder has the hashes of a written part; a copy in an object store is fetched."""
        if not self.version.is_local and not is_intact(self.scratch_root, part.hashes):
            with contextlib.suppress(FileNotFoundError):
                self.scratch_root.write(part.hashes, (self.version / SCRATCH).read(part.hashes), durable=False)
        return is_intact(self.scratch_root, part.hashes)

    def _scan(self) -> Scan:
        """Read and parse every partition once, and learn in the same pass unless training rows depend on the census."""
        recipe = self.recipe
        if self.source.row_counts is not None and not sum(self.source.row_counts):
            raise ColumnError("the data has no rows: there is nothing to write")
        plan = ScanPlan(
            recipe.features,
            recipe.split,
            fits_all=recipe.fit_on != "train",
            columns=recipe.raw_columns,
            learned=recipe.learned,
            compares=recipe.learned is not None,
            on_findings=recipe.on_findings,
        )
        return scan_source(
            plan,
            self.source,
            spill=self.scratch,
            kept=self.scratch,
            scratch=self.scratch.path if self.scratch.is_local else self.options.scratch,
            progress=self.progress,
        )

    def _prepare(self, background: Executor, scan: Scan | None = None) -> PreparedWrite:
        """Assign rows to splits, save the fitted state, and plan the files; `scan` None: scan the source."""
        recipe = self.recipe
        [learned], contexts, census = scan or self._scan()
        rows = [partition.rows for partition in census]
        saved = self._saved_learned(learned)
        # Tasks of other processes read the fitted state from a file, which must exist first.
        state_future = background.submit(self._save_state, learned)
        if state_future.done() or not (partitions.is_in_process() or saved.save_checkpoint()):
            state_future.result()
        assignment = Assignment(recipe.features, recipe.split, recipe.balance, saved)
        assign_splits = None
        if self._stores_assignments:
            assign_splits = AssignSplits(assignment.dropping, self.scratch, recipe.split)
        # Learning has counted the rows of each split, unless it learned from all rows.
        is_counted = recipe.fit_on == "train" and all(partition.counts for partition in census)
        if self._stores_assignments or self._imputed_features or not is_counted:
            reader = self._parsed_rows(rows)
            contexts, census = assignment.count_partitions(
                reader,
                assignment.add_repeats(reader, contexts, self.scratch),
                self._imputed_features,
                assign_splits,
                self.scratch,
            )
        if self._stores_assignments:  # encoding reads splits and repeats from scratch
            contexts = [replace(context, assignment=None, repeats=None) for context in contexts]
        placement = Placement.from_counts(rows, [partition.counts for partition in census])
        if not placement.rows:
            raise ColumnError(
                "every row is left out, by features that drop rows or by the split: nothing is left to write"
            )
        layout = choose_layout(recipe.features, learned, placement.rows, self.options)
        plan = WritePlan(layout, placement, tuple(partition.rejects for partition in census))
        if not self._imputed_features:
            # A write with this file resumes from here, so it is saved after the state and after all scratch files.
            state_future = background.submit(self._save_checkpoint, plan, state_future)
        return PreparedWrite(saved, plan, contexts, state_future)

    def _save_checkpoint(self, plan: WritePlan, state_future: Future[_Files]) -> _Files:
        entries = state_future.result()
        write_checkpoint(self.scratch, CHECKPOINT_FILE, (plan, entries))
        return entries

    def _resume(self) -> PreparedWrite | None:
        """Return the prepared write of an earlier process that was killed; None if there is none, or files are lost."""
        if (checkpoint := read_checkpoint(self.scratch, CHECKPOINT_FILE)) is None:
            return None
        plan, entries = checkpoint
        if not all(self._is_intact(name, entry) for name, entry in entries.items()):
            return None
        rows = plan.placement.source_rows
        if not all(self._is_usable(plan, number) for number in range(len(rows))):
            return None
        state_future: Future[_Files] = Future()
        state_future.set_result(entries)
        split = None if self._stores_assignments else self.recipe.split
        context_plan = ContextPlan({}, split, self.recipe.features)
        contexts = context_plan.make_contexts(self._parsed_rows(rows), census_of_rows(rows))
        return PreparedWrite(self._saved_learned(), plan, contexts, state_future)

    def _is_usable(self, plan: WritePlan, number: int) -> bool:
        """Return whether scratch has the encoded rows of a partition, or all files that are needed to encode them."""
        if plan.rejects[number] and not is_intact(self.scratch, scratch_name("rejects", number)):
            return False
        if not self._needs_all_partitions and is_intact(self.scratch, scratch_name("outputs", number)):
            return True
        is_assigned = not self._stores_assignments or is_intact(self.scratch, scratch_name("placed", number))
        return is_assigned and is_intact(self.parsed or self.scratch, scratch_name("parsed", number))

    def _saved_learned(self, learned: Mapping[str, Learned] | None = None) -> SavedLearned:
        types = {name: feature.learned_type for name, feature in self.recipe.features.items()}
        return SavedLearned(self.version, self.scratch, types, learned=learned)

    @functools.cached_property
    def scratch(self) -> Folder:
        """The scratch folder for the current partitions of the source: it cannot be used with other partitions."""
        return self.scratch_root / digest_of_partitioning(self.source)

    def _parsed_rows(self, rows: Sequence[int]) -> PartitionReader:
        """Return a reader of the parsed rows; `rows` are the numbers of rows of the partitions."""
        return scratch_reader(self.parsed or self.scratch, rows, list(self.recipe.features), self.recipe.raw_columns)

    @property
    def _imputed_features(self) -> dict[str, Feature]:
        """The features whose missing values are imputed from other rows when they are encoded."""
        return {name: feature for name, feature in self.recipe.features.items() if feature.imputer is not None}

    @property
    def _needs_all_partitions(self) -> bool:
        """Whether encoding reads parsed rows of other partitions, so that all are kept until the end."""
        return bool(self._imputed_features or fold_columns(self.recipe.features))

    @property
    def _stores_assignments(self) -> bool:
        """Whether splits and repeats depend on cells and are stored in scratch, not computed from row numbers."""
        columns = assignment_columns(self.recipe.split, self.recipe.balance)
        return bool(columns) or any(map(may_drop_rows, self.recipe.features.values()))

    def _remove_scratch(self) -> None:
        """Remove scratch files but results of finished tasks of the first passes with the same partitions, and hashes.

        The hashes of a part are valid while its receipt is.
        """
        own_prefix = f"{digest_of_partitioning(self.source)}/"
        kinds = ("parsed-", "scan-", "learn-") if self.source.files else ()
        kept_prefixes = tuple(own_prefix + kind for kind in kinds)
        self.scratch_root.remove(
            *(
                name
                for name in self.scratch_root.sizes()
                if not name.startswith(kept_prefixes) and not name.rpartition("/")[2].startswith(HASHES)
            )
        )

    def _save_state(self, learned: Mapping[str, Learned]) -> _Files:
        """Write the files of the fitted state and return their entries."""
        return {name: self._write_file(name, data) for name, data in state_files(self.recipe.describe(learned)).items()}

    def _is_intact(self, name: str, entry: FileEntry) -> bool:
        return self.version.size(name) == entry.bytes and entry.matches(name, self.version.read(name))

    def _write_rows(
        self,
        prepared: PreparedWrite,
        parts: Sequence[Part],
        background: Executor,
        compared: ComparedOutputs | None = None,
    ) -> list[Receipt]:
        """Encode the partitions with the rows of `parts`, write these parts, and return their receipts.

        The outputs in `compared` are hashed.
        """
        plan, saved = prepared.plan, prepared.saved
        seed = self.options.seed if self.options.shuffle else None
        losses = tuple(
            (name, cause)
            for name, feature in self.recipe.features.items()
            for cause in ("missing", "unreadable", *feature._loss_remedies)
        )
        rows = EncodedRows(plan.layout, plan.placement, seed, losses, frozenset(self.recipe.media))
        in_process = partitions.is_in_process()
        writer = PartWriter(
            self.version,
            self.scratch,
            rows,
            self.recipe.features,
            saved,
            syncs=not in_process,
            compared=compared,
            hashes=self.scratch_root,
        )
        flushed = []

        # Called by one thread at a time; all files are flushed before the manifest lists them.
        def flush(result: tuple[int, Receipt]) -> None:
            if in_process:
                flushed.append(background.submit(self.version.sync, list(result[1].files), folders=False))
            advance(rows=result[0])

        # If rows are shuffled, every part has rows of every partition.
        source_parts = parts if rows.seed is None else [Part(split, 0) for split in {part.split for part in parts}]
        numbers = sorted({i for part in source_parts for i in rows.partitions_of(part.split, part.number)})
        removes_parsed = not self._needs_all_partitions and self.parsed is None
        encode = Encode(
            self.recipe.features,
            saved,
            rows,
            self._parsed_rows(rows.placement.source_rows),
            self.scratch,
            assignments_stored=self._stores_assignments,
            removes_parsed=removes_parsed,
        )
        contexts = [prepared.contexts[number] for number in numbers]
        if in_process and rows.seed is None:
            # A part has rows of a few partitions at most, which can stay in memory.
            advance = self.progress.stage("encoding and writing", total=len(parts), unit="parts")
            task_indices = {number: index for index, number in enumerate(numbers)}
            dependencies = [
                [(task_indices[run.partition], part.split) for run in rows.runs_of_part(part.split, part.number)]
                for part in parts
            ]
            results = partitions.run_two_stages(
                "encode", encode.encode_by_split, contexts, "write", writer, parts, dependencies, advance=flush
            )
        else:
            advance_encoding = self.progress.stage("encoding", total=len(numbers), unit="partitions")
            partitions.run_tasks(
                "encode", operator.call, encode, contexts, advance=lambda count: advance_encoding(rows=count)
            )
            advance = self.progress.stage("writing", total=len(parts), unit="parts")
            results = partitions.run_tasks("write", operator.call, writer, parts, advance=flush)
        receipts = [receipt for _, receipt in results]
        for future in flushed:
            future.result()
        if in_process:  # once each, as parts share folders
            self.version.sync((name for receipt in receipts for name in receipt.files), contents=False)
        return receipts

    def _write_metadata(self, plan: WritePlan) -> _Files:
        """Write the metadata files of the arrays, and return their entries."""
        metadata = [file for split in plan.layout.rows for file in plan.layout.metadata_files(split).items()]
        return {name: self._write_file(name, data) for name, data in metadata}

    def _write_rejects(self, plan: WritePlan, receipts: Sequence[Receipt]) -> _Files:
        """Write the table of rejects, dropped rows and media with a fill value, and return its entry."""
        filled = [medium for receipt in receipts for medium in receipt.filled]
        partitions_with_rejects = [number for number, count in enumerate(plan.rejects) if count]
        join = functools.partial(join_rejects, self.scratch, filled)
        [data] = (
            partitions.run_tasks("rejects", operator.call, join, [partitions_with_rejects])
            if partitions_with_rejects
            else [join([])]
        )
        warn_about_broken_media(data, self.recipe.features)
        return {REJECTS: self._write_file(REJECTS, data, sum(plan.rejects) + len(set(filled)))}

    def _write_file(self, name: str, data: Buffer, rows: int | None = None) -> FileEntry:
        return write_file(self.version, NewFile(name, data, rows))


def background_executor() -> Executor:
    """Return an executor that saves and flushes files while tasks run; without threads if tasks have only one."""
    if partitions.worker_threads() == (1, 1):
        return InlineExecutor()
    return ThreadPoolExecutor(_SAVING_THREADS, thread_name_prefix="daskprep-save")


_CHECKPOINT_FILE = "folds.kept"


@dataclass(frozen=True)
class FoldedJob(WriteJob):
    """The writes of all folds, which share the parsed rows."""

    def _run(self) -> list[dict[str, Learned]]:
        """Write all folds, then the manifest; return the learned states of all rows, then without each fold."""
        assert isinstance(self.recipe.split, KFold | TimeSeriesSplit)
        jobs = [self._make_fold_job(self.recipe.split, number) for number in range(self.recipe.split.k)]
        with background_executor() as background:
            entries, prepared = self._resume_folds(jobs)
            if entries is None:
                self._remove_scratch()
                entries, prepared = self._plan_folds(jobs, background)
            for number, (job, plan) in enumerate(zip(jobs, prepared, strict=True)):
                self.progress.prefix = f"fold {number}: "
                if plan is not None:
                    job._write(plan, background)
        learned = [
            dict(job._saved_learned() if plan is None else plan.saved) for job, plan in zip(jobs, prepared, strict=True)
        ]
        self._commit(jobs, entries, full_state := dict(self._saved_learned()))
        self.scratch_root.remove_all()
        return [full_state, *learned]

    def _make_fold_job(self, split: KFold | TimeSeriesSplit, number: int) -> WriteJob:
        """Return the job that writes one fold to its folder, from the parsed rows that all folds share."""
        fold_split: KFold | TimeSeriesSplit = clone(split).set_params(fold=number)
        recipe = dataclasses.replace(
            self.recipe,
            split=fold_split,
            describe=lambda learned: {**self.recipe.describe(learned), "split": fold_split.to_dict()},
        )
        return WriteJob(
            recipe,
            self.source,
            self.version / f"{FOLD_PREFIX}{number}",
            digest_of_write(recipe, self.fingerprint, self.options),
            self.scratch_root / f"{FOLD_PREFIX}{number}",
            self.options,
            self.progress,
            self.fingerprint,
            parsed=self.scratch,
        )

    def _resume_folds(self, jobs: Sequence[WriteJob]) -> tuple[dict[str, FileEntry] | None, list[PreparedWrite | None]]:
        """Return the entries of the state files and the prepared write of each fold from a write that was killed.

        The write is None for a committed fold. Without a usable checkpoint, return None and an empty list.
        """
        if (entries := read_checkpoint(self.scratch, _CHECKPOINT_FILE)) is None:
            return None, []
        prepared = [None if _is_committed(job) else job._resume() for job in jobs]
        is_complete = all(self._is_intact(name, entry) for name, entry in entries.items())
        if not is_complete or any(
            plan is None and not _is_committed(job) for job, plan in zip(jobs, prepared, strict=True)
        ):
            return None, []
        return entries, prepared

    def _plan_folds(
        self, jobs: Sequence[WriteJob], background: Executor
    ) -> tuple[dict[str, FileEntry], list[PreparedWrite | None]]:
        """Scan the source, save the state, prepare each fold's write (None if committed); return entries and writes."""
        (full_state, *states), contexts, census = self._scan()
        entries = self._save_state(full_state)
        prepared: list[PreparedWrite | None] = []
        for number, (job, learned) in enumerate(zip(jobs, states, strict=True)):
            scan = Scan([learned], [_hold_out_fold(context, number) for context in contexts], census)
            prepared.append(None if _is_committed(job) else job._prepare(background, scan))
        write_checkpoint(self.scratch, _CHECKPOINT_FILE, entries)
        return entries, prepared

    def _commit(
        self, jobs: Sequence[WriteJob], entries: Mapping[str, FileEntry], learned: Mapping[str, Learned]
    ) -> None:
        """Remove the remains of each fold's write, and commit a manifest with `entries` and the files of all folds."""
        files = dict(entries)
        for number, job in enumerate(jobs):
            data = job.root.read(MANIFEST)
            manifest, fold_folder = Manifest.from_bytes(data, job.root.url), f"{FOLD_PREFIX}{number}"
            finish_cleaning(job.root, manifest)
            files[f"{fold_folder}/{MANIFEST}"] = FileEntry.from_data(MANIFEST, data)
            files |= {f"{fold_folder}/{manifest.version}/{name}": entry for name, entry in manifest.files.items()}
        layout = choose_layout(self.recipe.features, learned, {}, self.options)
        settings = {**self.options.settings, "folds": len(jobs)}
        commit(self.root, Manifest(self.name, layout, files, self.fingerprint, settings))


def _hold_out_fold(context: PartitionContext, fold: int) -> PartitionContext:
    """Return the context of a partition with the splits of one fold."""
    assert context.assignment is not None
    return dataclasses.replace(context, assignment=select_fold(context.assignment, fold), n_folds=0)


def _is_committed(job: WriteJob) -> bool:
    manifest = read_manifest(job.root)
    return manifest is not None and manifest.version == job.name
