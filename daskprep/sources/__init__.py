"""Sources of rows: frames, Arrow tables and streams, and files, each as an ordered list of partitions.

In: what a user passes as data. Out: partitions as Arrow tables, and a fingerprint. `split`, `balance` and `classes`
place and weigh the rows, and `partitions` runs functions over them.
"""

from daskprep.sources.base import Source
from daskprep.sources.datasets import StreamSource
from daskprep.sources.file_source import FileSource, read_files
from daskprep.sources.frames import (
    DaskSource,
    PandasSource,
    TableSource,
    arrow_table,
    frame_of_array,
    is_array,
    is_frame,
    table_from_pandas,
    table_to_pandas,
)
from daskprep.sources.opening import (
    LazyRows,
    PreparedSource,
    Rows,
    RowsInMemory,
    as_pandas,
    as_source,
    estimate_bytes,
    prepared,
    wrap_single_row,
)
