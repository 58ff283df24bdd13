"""Say what a stream gives, and where it stands, as HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daskprep.display.tables import caption, notebook_table
from daskprep.display.words import count, cut

if TYPE_CHECKING:
    from daskprep.streaming.stream import Stream

__all__ = ["describe_html"]

_MOST_OUTPUTS = 40


def describe_html(stream: Stream, rows: int, rows_given: int) -> str:
    """Return a line on a stream and a table of its settings; nothing is read for it."""
    names = [cut(name) for name in stream.columns]
    more = f", and {len(names) - _MOST_OUTPUTS:,} more" if len(names) > _MOST_OUTPUTS else ""
    order = f"shuffled within windows, seed {stream.seed}" if stream.shuffle else "as in the source"
    table = [
        ("setting", "value"),
        ("batch_size", f"{stream.batch_size:,}{' over all ranks' * (stream.world_size > 1)}"),
        ("order", order),
        ("window", str(stream.window)),
        ("rank", f"{stream.rank} of {stream.world_size}"),
        ("epoch", f"{stream.epoch}, {count(rows_given, 'row')} given"),
        ("device", "in memory" if stream.device is None else str(stream.device)),
        ("outputs", ", ".join(names[:_MOST_OUTPUTS]) + more),
    ]
    return caption(f'Stream of split "{stream.split}": {count(rows, "row")}') + notebook_table(table)
