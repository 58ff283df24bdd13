"""Checks of rows that arrive after the fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd

from daskprep.columns.parametrized import check_is_fitted
from daskprep.dataset.writing import Options, on_workers, plan_source
from daskprep.errors import ConfigError, MissingColumnError, did_you_mean
from daskprep.features.base import Contract
from daskprep.passes.checking import KINDS, CheckResult, Severity, compare_tallies, tally_source
from daskprep.passes.table import source_columns
from daskprep.rows.base import CELL_KINDS
from daskprep.sources import Rows, wrap_single_row
from daskprep.sources.partitions import Workers

if TYPE_CHECKING:
    from daskprep.preprocessor import Preprocessor


ContractT = TypeVar("ContractT", bound=Contract)


def count_cells(prep: Preprocessor, frame: Rows) -> pd.DataFrame:
    """Return a table of missing, unreadable and unseen cells, as `Preprocessor.cell_counts` does."""
    check_is_fitted(prep)
    features, source = prep._open_new_rows(prep._as_rows(frame), Options(scratch=prep._scratch))
    _, tallies = tally_source(features, prep.learned_, source, all_rows=True)
    counts = [[getattr(tallies[name], key) for key in ("rows", *CELL_KINDS)] for name in features]
    return pd.DataFrame(counts, pd.Index(features, dtype=object), ["rows", *CELL_KINDS], dtype=np.int64)


def check(
    prep: Preprocessor,
    frame: Rows,
    raise_on: Severity | None,
    columns: str | Iterable[str] | None,
    ignore: str | Iterable[str],
    workers: Workers,
    storage_options: Mapping[str, Any] | None,
) -> CheckResult:
    """Return findings on new rows, as `Preprocessor.check` does; ConfigError for an unknown `raise_on`."""
    check_is_fitted(prep)
    if raise_on not in (None, "error", "warning"):
        raise ConfigError(f'check: raise_on={raise_on!r}: expected "error", "warning" or None')
    options = Options(workers=workers, storage_options=storage_options, scratch=prep._scratch)
    frame = wrap_single_row(frame)
    with on_workers(frame, workers, sent=prep.get_params(deep=False), **options.source_options):
        features = {name: feature for name, feature in prep.features_.items() if feature._is_input}
        features, ignored = _select_checked(features, columns, ignore)
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
        present = {name: feature for name, feature in expected.items() if name not in absent}
        rows, tallies = tally_source(present, prep.learned_, source)
        result = compare_tallies(expected, prep.learned_, rows, tallies, absent, ignored)
    if raise_on is not None:
        result.raise_for(raise_on)
    return result


def _select_checked(
    features: Mapping[str, ContractT], columns: str | Iterable[str] | None, ignore: str | Iterable[str]
) -> tuple[dict[str, ContractT], set[str]]:
    """Return the features to check, and the kinds of findings to leave out; ConfigError for unknown names."""
    names = [[one] if isinstance(one, str) else list(one) for one in (columns or (), ignore)]
    read = {column: name for name, feature in features.items() for column in feature.reads(name)}
    known = read | {name: name for name in features}
    for option, kinds, listed in zip(("columns", "ignore"), ((), KINDS), names, strict=True):
        for name in listed:
            if name not in known and name not in kinds:
                also = f", nor a kind of finding: {', '.join(kinds)}" if kinds else ""
                hint = did_you_mean(name, [*known, *kinds])
                raise ConfigError(f"check: {option}={name!r} is no feature or column{also}.{hint}")
    chosen, ignored = ({known[name] for name in listed if name in known} for listed in names)
    kept = {name: one for name, one in features.items() if name not in ignored and (columns is None or name in chosen)}
    return kept, {name for name in names[1] if name not in known}
