"""Writes of a dataset for each fold of a `KFold` or `TimeSeriesSplit`, below one manifest.

Rows are read and parsed once. The version folder contains the state learned from all rows, and a folder for each fold,
which is a dataset with the same bytes as a write of that fold alone. If the write is killed, committed folds are kept.
The manifest of all folds is written last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from sklearn.base import clone

from daskprep.features import Learned
from daskprep.passes.table import PartitionContext
from daskprep.split import KFold, TimeSeriesSplit
from daskprep.split.folds import select_fold
from daskprep.storage.checkpoint import read_checkpoint, write_checkpoint
from daskprep.storage.layout import FOLD_PREFIX
from daskprep.storage.manifest import MANIFEST, FileEntry, Manifest, read_manifest
from daskprep.writing.job import PreparedWrite, ScanResult, WriteJob, background_executor
from daskprep.writing.plan import choose_layout
from daskprep.writing.recipe import digest_of_write
from daskprep.writing.versions import commit, finish_cleaning

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
        """Return the job that writes one fold."""
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
        """Run the first passes of all folds; return the same as `_resume_folds`."""
        census, contexts, (full_state, *states) = self._scan()
        entries = self._save_state(full_state)
        prepared: list[PreparedWrite | None] = []
        for number, (job, learned) in enumerate(zip(jobs, states, strict=True)):
            scan_result = ScanResult(census, [_hold_out_fold(context, number) for context in contexts], [learned])
            prepared.append(None if _is_committed(job) else job._prepare(background, scan_result))
        write_checkpoint(self.scratch, _CHECKPOINT_FILE, entries)
        return entries, prepared

    def _commit(
        self, jobs: Sequence[WriteJob], entries: Mapping[str, FileEntry], learned: Mapping[str, Learned]
    ) -> None:
        """Write the manifest of all folds, with the files of their datasets."""
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
