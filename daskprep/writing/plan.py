"""What the passes after learning rest on, kept so that a write that was killed goes on from there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from daskprep.features import Feature, Learned
from daskprep.features.checking import all_empty_arrays
from daskprep.features.media import MediaFeature
from daskprep.storage.arrays import Compression, Output
from daskprep.storage.layout import Layout
from daskprep.storage.manifest import FileEntry
from daskprep.writing.placement import Placement

CHECKPOINT = "checkpoint.json"


def choose_layout(
    features: Mapping[str, Feature],
    learned: Mapping[str, Learned],
    rows: Mapping[str, int],
    block_rows: int | None,
    compression: Compression,
    sharded: bool = False,
) -> Layout:
    """Return how so many rows of each split lie on disk, by what features learned."""
    media = {name: feature for name, feature in features.items() if isinstance(feature, MediaFeature)}
    cell_bytes = {name: feature.cell_bytes(learned[name]) for name, feature in media.items()}
    outputs = [
        Output(name + suffix, str(array.dtype), array.shape[1:], None if suffix else cell_bytes.get(name))
        for name, feature in features.items()
        for suffix, array in all_empty_arrays(feature, learned[name]).items()
    ]
    carried_bytes = sum(feature.carried_bytes(learned[name]) for name, feature in media.items())
    return Layout.choose(
        outputs, rows, block_rows=block_rows, compression=compression, carried_bytes=carried_bytes, sharded=sharded
    )


@dataclass(frozen=True)
class WritePlan:
    """Where rows lie, in scratch and in the dataset, and how many rejects partitions have."""

    layout: Layout
    placement: Placement
    rejects: tuple[int, ...]

    def to_bytes(self, state: Mapping[str, FileEntry]) -> bytes:
        """Return JSON, from which a write that was killed goes on; `state` are the files of what was learned."""
        content = {
            "state": {name: entry.to_list() for name, entry in state.items()},
            "layout": self.layout.to_dict(),
            "source_rows": self.placement.source_rows,
            "counts": self.placement.counts.tolist(),
            "rejects": self.rejects,
        }
        return json.dumps(content).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> tuple[WritePlan, dict[str, FileEntry]]:
        """Return what `to_bytes` was given."""
        content = json.loads(data)
        state = {name: FileEntry(*entry) for name, entry in content["state"].items()}
        placement = Placement.of(content["source_rows"], content["counts"])
        return cls(Layout.from_dict(content["layout"]), placement, tuple(content["rejects"])), state
