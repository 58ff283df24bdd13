"""What is known of a column before its type is: counts over all rows that merge, whatever the partitions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from daskprep.summaries.base import Summary
from daskprep.summaries.distinct_values import DistinctValues
from daskprep.summaries.file_sample import FileSample
from daskprep.summaries.lengths import Lengths
from daskprep.summaries.quantiles import Range


@dataclass(frozen=True)
class TextFacts(Summary):
    """How many cells of text have which form."""

    cells: int = 0  # neither blank nor a mark of what is missing
    words: int = 0  # in all of them
    with_spaces: int = 0  # with a space inside; so for the next three
    commas: int = 0
    semicolons: int = 0
    bars: int = 0
    leading_zeros: int = 0  # whole numbers with a needless zero in front, as in "02139"
    dates: int = 0  # with the shape of a date
    day_second: int = 0  # of these, where the second field is above 12, and so a day
    day_first: int = 0
    images: int = 0  # that end like the path of an image
    audio: int = 0
    h3: int = 0  # with the 15 hexadecimal digits of an H3 cell


@dataclass(frozen=True)
class ColumnFacts(Summary):
    """What the rules look at, all of it over all rows; whole numbers are cells."""

    rows: int = 0
    missing: int = 0  # null, NaN or blank
    null_texts: int = 0  # text that spells a missing value, such as "?" and "N/A"; not among `missing`
    numbers: int = 0  # finite numbers, or text of one
    integers: int = 0
    compact_dates: int = 0  # numbers of a day such as 20210305
    range: Range = field(default_factory=Range)  # of the numbers
    sentinel_counts: Counter[float] = field(
        default_factory=Counter
    )  # -9, 99, -999 and the like, which may stand for missing
    range_without_sentinels: Range = field(default_factory=Range)  # of the other numbers
    booleans: int = 0  # that the frame itself has as such
    times: int = 0  # dates or timestamps of the frame itself
    lists: int = 0  # of numbers, in cells or in text
    lists_of_text: int = 0
    lists_with_missing: int = 0  # lists with a missing place
    lists_with_duplicates: int = 0  # lists with an item twice
    lengths: Lengths = field(default_factory=Lengths)  # of all these lists
    items: DistinctValues = field(default_factory=DistinctValues)  # of lists of text
    images: int = 0  # bytes of an image, or structs of its bytes or path
    audio: int = 0
    declared_orders: Counter[tuple[str, ...]] = field(
        default_factory=Counter
    )  # orders of values that the frame itself lists
    image_sample: FileSample = field(default_factory=FileSample)  # some of these, where the cells have bytes
    audio_sample: FileSample = field(default_factory=FileSample)
    unsupported: Counter[str] = field(default_factory=Counter)  # cells that no feature reads, by the name of their type
    text: TextFacts = field(default_factory=TextFacts)
    distinct_null_texts: DistinctValues = field(default_factory=DistinctValues)
    distinct: DistinctValues = field(default_factory=DistinctValues)

    @property
    def present(self) -> int:
        """Cells with a value."""
        return self.rows - self.missing

    @property
    def usable(self) -> int:
        """Cells with a value that does not spell a missing one."""
        return self.present - self.null_texts

    @property
    def sentinels(self) -> list[float]:
        """Numbers of nines, again and again and far from all others: they may stand for a missing one."""
        low, high = self.range_without_sentinels.min, self.range_without_sentinels.max
        margin = max(high - low, 1.0)
        repeated = [
            number
            for number, cells in self.sentinel_counts.items()
            if cells > 1 and not self.range_without_sentinels.empty
        ]
        return sorted(number for number in repeated if not low - margin <= number <= high + margin)

    @property
    def is_unique(self) -> bool:
        """Whether no two cells are equal, as far as the values that are kept tell."""
        return bool(self.usable) and self.distinct.all_unique and self.distinct.total == self.usable
