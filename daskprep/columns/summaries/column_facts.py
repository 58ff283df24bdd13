"""Facts that the inference of column types uses: counts over all rows, independent of the partitioning."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from daskprep.columns.summaries.base import Summary
from daskprep.columns.summaries.quantiles import Lengths, Range
from daskprep.columns.summaries.samples import DistinctValues, FileSample


@dataclass(frozen=True)
class TextFacts(Summary):
    """Counts of text cells by their form."""

    cells: int = 0  # neither blank nor a mark of a missing value
    words: int = 0  # words of all cells
    with_spaces: int = 0  # cells with a space inside; the next three count cells with their character
    commas: int = 0
    semicolons: int = 0
    bars: int = 0
    leading_zeros: int = 0  # integers with a leading zero, as in "02139"
    dates: int = 0  # cells with the form of a date
    day_second: int = 0  # dates with a second field above 12, which is a day
    day_first: int = 0
    images: int = 0  # cells with the extension of an image
    audio: int = 0
    h3: int = 0  # cells with the 15 hexadecimal digits of an H3 cell


@dataclass(frozen=True)
class ColumnFacts(Summary):
    """Facts about all rows of a column; integers count cells."""

    rows: int = 0
    missing: int = 0  # null, NaN or blank
    null_texts: int = 0  # texts for missing values, such as "?" and "N/A"; not counted by `missing`
    numbers: int = 0  # finite numbers, or text of one
    integers: int = 0
    compact_dates: int = 0  # numbers such as 20210305
    range: Range = field(default_factory=Range)  # range of the numbers
    sentinel_counts: Counter[float] = field(default_factory=Counter)  # cells by -9, 99, -999 etc.: see `sentinels`
    range_without_sentinels: Range = field(default_factory=Range)
    booleans: int = 0  # cells of boolean type
    times: int = 0  # cells of date or timestamp type
    lists: int = 0  # lists of numbers, also as text
    lists_of_text: int = 0
    lists_with_missing: int = 0  # lists with a missing item
    lists_with_duplicates: int = 0  # lists with repeated items
    lengths: Lengths = field(default_factory=Lengths)  # lengths of both kinds of lists
    items: DistinctValues = field(default_factory=DistinctValues)  # items of lists of text
    images: int = 0  # bytes of an image, or structs of its bytes or path
    audio: int = 0
    declared_orders: Counter[tuple[str, ...]] = field(default_factory=Counter)  # orders of categorical types
    image_sample: FileSample = field(default_factory=FileSample)  # sample of images, if the cells have bytes
    audio_sample: FileSample = field(default_factory=FileSample)
    unsupported: Counter[str] = field(default_factory=Counter)  # cells that no feature type reads, by type name
    text: TextFacts = field(default_factory=TextFacts)
    distinct_null_texts: DistinctValues = field(default_factory=DistinctValues)
    distinct: DistinctValues = field(default_factory=DistinctValues)

    @property
    def present(self) -> int:
        return self.rows - self.missing

    @property
    def usable(self) -> int:
        """Number of cells that are neither missing nor a text for missing values."""
        return self.present - self.null_texts

    @property
    def sentinels(self) -> list[float]:
        """Repeated numbers of nines far outside the range of other numbers."""
        low, high = self.range_without_sentinels.min, self.range_without_sentinels.max
        margin = max(high - low, 1.0)
        if self.range_without_sentinels.empty:
            return []
        repeated = (number for number, cells in self.sentinel_counts.items() if cells > 1)
        return sorted(number for number in repeated if not low - margin <= number <= high + margin)

    @property
    def is_unique(self) -> bool:
        """Whether no two cells are equal, judged by a sample."""
        return bool(self.usable) and self.distinct.all_unique and self.distinct.total == self.usable
