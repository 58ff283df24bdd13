"""Summary of the unreadable cells of a column."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.summaries.base import Summary

MAX_SAMPLES = 5
# Samples are shown in warnings and pickled with every summary, so long cells are truncated.
MAX_SAMPLE_CHARACTERS = 200


@dataclass(frozen=True)
class Rejects(Summary):
    """Number of unreadable cells, and samples: the first five distinct ones in row order.

    `samples` are pairs of global row number and text, truncated to 200 characters.

    Examples
    --------
    >>> import numpy as np, pyarrow as pa
    >>> late = Rejects.of(np.array([7, 8]), pa.array(["n/a", "?"]))
    >>> early = Rejects.of(np.array([2]), pa.array(["?"]))
    >>> (late + early).samples
    ((2, '?'), (7, 'n/a'))
    """

    count: int = 0
    samples: tuple[tuple[int, str], ...] = ()

    @classmethod
    def of(cls, rows: np.ndarray, values: pa.StringArray) -> Rejects:
        """Summarize the unreadable `values` of the rows with the global numbers `rows`."""
        order = np.argsort(rows, kind="stable")
        texts = pc.utf8_slice_codeunits(values.take(pa.array(order)), 0, MAX_SAMPLE_CHARACTERS)
        # A dictionary lists its values in the order in which they first occur.
        first = texts.dictionary_encode().dictionary.slice(0, MAX_SAMPLES)
        samples = [(int(rows[order[texts.index(text).as_py()]]), text.as_py()) for text in first]
        return cls(len(rows), tuple(samples))

    @property
    def texts(self) -> tuple[str, ...]:
        """The sample texts in row order."""
        return tuple(text for _, text in self.samples)

    def __mul__(self, times: int) -> Rejects:
        return Rejects(self.count * times, self.samples) if times else Rejects()

    def __add__(self, other: Rejects) -> Rejects:
        first: dict[str, int] = {}
        for row, text in sorted(self.samples + other.samples):
            first.setdefault(text, row)
        samples = sorted((row, text) for text, row in first.items())
        return Rejects(self.count + other.count, tuple(samples[:MAX_SAMPLES]))
