"""What the clock of a zone shows at a time."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

# Arrow knows the summer times of a zone only as far as the tables of most systems go; their rules go on.
_TABLES_END = dt.datetime(2037, 1, 1, tzinfo=dt.UTC)
_PYTHON_ENDS = dt.datetime(9999, 12, 30, tzinfo=dt.UTC)


def local_clock(times: pa.TimestampArray) -> pa.TimestampArray:
    """Return the clock of their zone at each of some times, without a zone."""
    clock = pc.local_timestamp(times)
    late = is_late(times)
    if not pc.any(late).as_py():
        return clock
    moments = times.filter(late).cast(pa.timestamp(times.type.unit)).to_numpy(zero_copy_only=False)
    shown = pd.DatetimeIndex(moments, tz="UTC").tz_convert(times.type.tz).tz_localize(None)
    return pc.replace_with_mask(clock, late, pa.array(np.asarray(shown), clock.type))


def is_late(times: pa.TimestampArray) -> pa.BooleanArray:
    """Tell which times Arrow may not know the clock of."""
    is_after = pc.greater_equal(times, pa.scalar(_TABLES_END, times.type))
    if times.type.unit != "ns":  # which end in 2262
        is_after = pc.and_(is_after, pc.less(times, pa.scalar(_PYTHON_ENDS, times.type)))
    return pc.fill_null(is_after, fill_value=False)
