"""ORC files: fragments are stripes, and only the requested columns are decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from daskprep.sources.columnar import check_types
from daskprep.sources.feather import BatchFragment, cheapest_column
from daskprep.sources.locations import File, explain_read_errors


@dataclass(frozen=True)
class OrcFragment(BatchFragment):
    """Stripes of one file."""

    kind: ClassVar[str] = "ORC"

    def read_batches(self, columns: list[str]) -> pa.Table:
        with self.file.open() as handle:
            orc = _open_orc(handle)
            names = columns or [orc.schema[i].name for i in cheapest_column(orc.schema)]
            stripes = [orc.read_stripe(i, names) for i in range(self.first, self.last)]
            schema = stripes[0].schema if stripes else orc.schema
            return pa.Table.from_batches(stripes, schema)

    @staticmethod
    def layout(file: File) -> tuple[pa.Schema, list[int]]:
        with explain_read_errors(file, OrcFragment.kind), file.open() as handle:
            orc = _open_orc(handle)
            check_types(orc.schema)
            if orc.nstripes <= 1:  # the footer has only the total number of rows
                return orc.schema, [orc.nrows] * orc.nstripes
            names = [orc.schema[i].name for i in cheapest_column(orc.schema)]
            return orc.schema, [orc.read_stripe(i, names).num_rows for i in range(orc.nstripes)]


def _open_orc(handle: Any) -> Any:
    from pyarrow.orc import ORCFile  # noqa: PLC0415 - not in every build of Arrow

    return ORCFile(handle)
