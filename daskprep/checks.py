"""Checks of rows that arrive after the fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from daskprep.errors import ConfigError, MissingColumnError
from daskprep.parametrized import check_is_fitted
from daskprep.partitions import Workers
from daskprep.passes import checking
from daskprep.passes.checking import (
    CheckResult,
    Severity,
    check_source,
    select_checked,
)
from daskprep.passes.table import source_columns
from daskprep.sources import Rows, wrap_single_row
from daskprep.writing import Options, on_workers, plan_source

if TYPE_CHECKING:
    from daskprep.preprocessor import Preprocessor


def count_cells(prep: Preprocessor, frame: Rows) -> pd.DataFrame:
    """Return a table of missing, unreadable and unseen cells, as `Preprocessor.cell_counts` does."""
    check_is_fitted(prep)
    features, source = prep._open_new_rows(prep._as_rows(frame), Options(scratch=prep._scratch))
    return checking.count_cells(features, prep.learned_, source)


def check(
    prep: Preprocessor,
    frame: Rows,
    raise_on: Severity | None,
    columns: str | Iterable[str] | None,
    ignore: str | Iterable[str],
    workers: Workers,
    storage_options: Mapping[str, Any] | None,
) -> CheckResult:
    """Return findings on new rows, as `Preprocessor.check` does."""
    check_is_fitted(prep)
    if raise_on not in (None, "error", "warning"):
        raise ConfigError(f'check: raise_on={raise_on!r}: expected "error", "warning" or None')
    options = Options(workers=workers, storage_options=storage_options, scratch=prep._scratch)
    frame = wrap_single_row(frame)
    with on_workers(frame, workers, sent=prep.get_params(deep=False), **options.source_options):
        features = {name: feature for name, feature in prep.features_.items() if name != prep.weight}
        features, ignored = select_checked(features, columns, ignore)
        try:
            source = plan_source(frame, source_columns(features), None, options.source_options)
        except MissingColumnError:
            source = plan_source(frame, None, None, options.source_options)
        absent = {
            name: column
            for name, feature in features.items()
            for column in feature.reads(name)
            if column not in source.columns
        }
        expected = {name: one for name, one in features.items() if name in prep._inputs or name not in absent}
        result = check_source(expected, prep.learned_, source, absent, ignored)
    if raise_on is not None:
        result.raise_for(raise_on)
    return result
