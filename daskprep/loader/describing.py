"""Say what a loader gives, and where it stands, as HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daskprep.display.tables import caption, notebook_table
from daskprep.display.words import count, cut, printable

if TYPE_CHECKING:
    from daskprep.loader.loader import Loader

__all__ = ["describe_html"]

_MOST_OUTPUTS = 40


def describe_html(loader: Loader, rows_given: int) -> str:
    """Return a line on a loader and a table of its settings; nothing is read for it."""
    split, names = loader.split, [cut(name) for name in loader.names]
    order = f"shuffled, {count(loader.streams, 'stream')}, seed {loader.seed}" if loader.shuffle else "as on disk"
    more = f", and {len(names) - _MOST_OUTPUTS:,} more" if len(names) > _MOST_OUTPUTS else ""
    rows = [
        ("setting", "value"),
        ("batch_size", f"{loader.batch_size:,}{' over all ranks' * (loader.world_size > 1)}"),
        ("order", order),
        ("rank", f"{loader.rank} of {loader.world_size}"),
        ("epoch", f"{loader.epoch}, {count(rows_given, 'row')} given"),
        ("device", "in memory" if loader.device is None else str(loader.device)),
        ("outputs", ", ".join(names[:_MOST_OUTPUTS]) + more),
    ]
    if loader.overfit_batches is not None:
        rows.append(("overfit_batches", f"{loader.overfit_batches:,}"))
    line = f'Loader of split "{split.name}" of {printable(split.dataset.url)}: {count(len(split), "row")}'
    return caption(line) + notebook_table(rows)
