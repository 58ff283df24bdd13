"""Tables that do not match their layout raise before they are decoded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import daskprep as dp
from daskprep.errors import CorruptDatasetError
from daskprep.storage import FileEntry, reading

NAME = "train/table/part-00000.parquet"


def texts(rows: int) -> pa.Array:
    """Return a column that is much larger in memory than in a file."""
    return pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), ["x" * 100_000])


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.set_column(1, "a", texts(len(table))),
        lambda table: table.append_column("a.b", texts(len(table))),
        lambda table: table.append_column("a", texts(len(table))),
        lambda table: pa.concat_tables([table] * 100),
        lambda table: table.slice(1),
        lambda table: table.drop_columns(["a"]),
    ],
    ids=["texts for numbers", "texts beside them", "a column twice", "more rows", "fewer rows", "no column"],
)
def test_table_of_other_layout_raises_before_decoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[pa.Table], pa.Table]
) -> None:
    made = dp.Preprocessor({"a": dp.Number()}).fit_write(pd.DataFrame({"a": np.arange(9.0)}), tmp_path / "a.dp")
    folder, sink = made.files.folder, pa.BufferOutputStream()
    pq.write_table(change(made["train"].table()).combine_chunks(), sink)
    folder.write(NAME, sink.getvalue())
    piece = reading.BlockLocation(NAME, FileEntry.from_data(NAME, sink.getvalue()), len(made["train"]), (0,))
    monkeypatch.setattr(reading, "decode_table", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(CorruptDatasetError, match=r"part-00000\.parquet was altered"):
        reading.read_table(folder, piece, [made["train"].output("a")])
