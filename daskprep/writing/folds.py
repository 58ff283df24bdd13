"""Write a dataset for each fold of a `KFold` or `TimeSeriesSplit` below one manifest.

Rows are read and parsed once.

The folder of the version holds, besides what was learned from all rows, a folder for each fold, which is a dataset:
the bytes of a write of that fold alone. If the write is killed, folds that are committed stay. The manifest over all of
them comes last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from sklearn.base import clone

from daskprep.features import Learned
from daskprep.features.table import Surroundings
from daskprep.split import KFold, TimeSeriesSplit
from daskprep.split.time_series import held
from daskprep.storage.kept import keep, read_kept
from daskprep.storage.layout import FOLD
from daskprep.storage.manifest import MANIFEST, FileEntry, Manifest, read_manifest
from daskprep.writing.job import Found, Planned, WriteJob, background_threads
from daskprep.writing.plan import choose_layout
from daskprep.writing.recipe import digest_of_write
from daskprep.writing.versions import commit, tidy

_CHECKPOINT = "folds.kept"


@dataclass(frozen=True)
class FoldedJob(WriteJob):
    """The writes of all folds, which share what was parsed."""

    def _run(self) -> list[dict[str, Learned]]:
        assert isinstance(self.recipe.split, KFold | TimeSeriesSplit)
        jobs = [self._of_fold(self.recipe.split, number) for number in range(self.recipe.split.k)]
        with background_threads() as background:
            entries, planned = self._begun(jobs)
            if entries is None:
                self._remove_scratch()
                entries, planned = self._begin(jobs, background)
            for number, (job, plan) in enumerate(zip(jobs, planned, strict=True)):
                self.progress.part = f"fold {number}: "
                if plan is not None:
                    job._write(plan, background)
        learned = [dict(job._saved() if plan is None else plan.saved) for job, plan in zip(jobs, planned, strict=True)]
        self._commit(jobs, entries, whole := dict(self._saved()))
        self.all_scratch.remove_all()
        return [whole, *learned]

    def _of_fold(self, split: KFold | TimeSeriesSplit, number: int) -> WriteJob:
        of_fold: KFold | TimeSeriesSplit = clone(split).set_params(fold=number)
        recipe = dataclasses.replace(
            self.recipe,
            split=of_fold,
            describe=lambda learned: {**self.recipe.describe(learned), "split": of_fold.to_dict()},
        )
        return WriteJob(
            recipe,
            self.source,
            self.version / f"{FOLD}{number}",
            digest_of_write(recipe, self.fingerprint, self.options),
            self.all_scratch / f"{FOLD}{number}",
            self.options,
            self.progress,
            self.fingerprint,
            parsed=self.scratch,
        )

    def _begun(self, jobs: Sequence[WriteJob]) -> tuple[dict[str, FileEntry] | None, list[Planned | None]]:
        """Return what an earlier write had found out, None for a committed fold; nothing if some of it is gone."""
        if (entries := read_kept(self.scratch, _CHECKPOINT)) is None:
            return None, []
        planned = [None if _committed(job) else job._resumed() for job in jobs]
        whole = all(self._is_kept(name, entry) for name, entry in entries.items())
        if not whole or any(plan is None and not _committed(job) for job, plan in zip(jobs, planned, strict=True)):
            return None, []
        return entries, planned

    def _begin(
        self, jobs: Sequence[WriteJob], background: Executor
    ) -> tuple[dict[str, FileEntry], list[Planned | None]]:
        census, told, (whole, *states), _ = self._found()
        entries = self._save_state(whole)
        planned: list[Planned | None] = []
        for number, (job, learned) in enumerate(zip(jobs, states, strict=True)):
            found = Found(census, [_held(one, number) for one in told], [learned], [])
            planned.append(None if _committed(job) else job._planned(background, found))
        keep(self.scratch, _CHECKPOINT, entries)
        return entries, planned

    def _commit(
        self, jobs: Sequence[WriteJob], entries: Mapping[str, FileEntry], learned: Mapping[str, Learned]
    ) -> None:
        files = dict(entries)
        for number, job in enumerate(jobs):
            data = job.root.read(MANIFEST)
            manifest, place = Manifest.from_bytes(data, job.root.url), f"{FOLD}{number}"
            tidy(job.root, manifest)
            files[f"{place}/{MANIFEST}"] = FileEntry.of(MANIFEST, data)
            files |= {f"{place}/{manifest.version}/{name}": entry for name, entry in manifest.files.items()}
        layout = choose_layout(self.recipe.features, learned, {}, self.options)
        settings = {**self.options.settings, "folds": len(jobs)}
        commit(self.root, Manifest(self.name, layout, files, self.fingerprint, settings))


def _held(told: Surroundings, fold: int) -> Surroundings:
    assert told.rows is not None
    return dataclasses.replace(told, rows=held(told.rows, fold), folds=0)


def _committed(job: WriteJob) -> bool:
    manifest = read_manifest(job.root)
    return manifest is not None and manifest.version == job.name
