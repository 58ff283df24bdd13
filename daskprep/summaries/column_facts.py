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
    """How many cells of text have which form.

    Attributes
    ----------
    cells : int
        Cells of text that are neither blank nor a mark of what is missing.
    words : int
        Their words.
    spaced, commas, semicolons, bars : int
        Cells with a space or such a mark inside.
    led_by_zero : int
        Whole numbers with a needless zero in front, as in "02139".
    dates, day_second, day_first : int
        Cells with the shape of a date; those whose second or first field is above 12, and so a day.
    images, sounds : int
        Cells that end like the path of an image or a sound.
    h3 : int
        Cells with the 15 hexadecimal digits of an H3 cell.
    """

    cells: int = 0
    words: int = 0
    spaced: int = 0
    commas: int = 0
    semicolons: int = 0
    bars: int = 0
    led_by_zero: int = 0
    dates: int = 0
    day_second: int = 0
    day_first: int = 0
    images: int = 0
    sounds: int = 0
    h3: int = 0


@dataclass(frozen=True)
class ColumnFacts(Summary):
    """What the rules look at, all of it over all rows.

    Attributes
    ----------
    rows, missing : int
        Rows, and those that are null, NaN or blank.
    marked : int
        Cells of text that spell a missing value, such as "?" and "N/A"; not among `missing`.
    numbers, whole, calendar : int
        Cells that are finite numbers, or text of one; whole ones; and those of a day such as 20210305.
    range : Range
        Of these numbers.
    nines : Counter
        How many of them are -9, or 99, -999 and the like, which may stand for a missing one.
    besides : Range
        Of the others.
    booleans, times : int
        Cells that the frame itself has as booleans, and as dates or timestamps.
    lists, lists_of_text, gaps, repeats : int
        Lists of numbers, in cells or in text; lists of text; lists with a missing place, and with an item twice.
    lengths : Lengths
        How long these lists are.
    items : DistinctValues
        What lists of text hold.
    images, sounds : int
        Cells that are bytes of a medium, or structs of its bytes or path.
    declared : Counter
        The orders in which the frame itself lists the values, and how many cells each is for.
    images_in, sounds_in : FileSample
        Some of these, where the cells have bytes, and what is known of them.
    others : Counter
        Cells that no feature reads, by the name of their type.
    """

    rows: int = 0
    missing: int = 0
    marked: int = 0
    numbers: int = 0
    whole: int = 0
    calendar: int = 0
    range: Range = field(default_factory=Range)
    nines: Counter[float] = field(default_factory=Counter)
    besides: Range = field(default_factory=Range)
    booleans: int = 0
    times: int = 0
    lists: int = 0
    lists_of_text: int = 0
    gaps: int = 0
    repeats: int = 0
    lengths: Lengths = field(default_factory=Lengths)
    items: DistinctValues = field(default_factory=DistinctValues)
    images: int = 0
    sounds: int = 0
    declared: Counter[tuple[str, ...]] = field(default_factory=Counter)
    images_in: FileSample = field(default_factory=FileSample)
    sounds_in: FileSample = field(default_factory=FileSample)
    others: Counter[str] = field(default_factory=Counter)
    text: TextFacts = field(default_factory=TextFacts)
    spelled: DistinctValues = field(default_factory=DistinctValues)
    distinct: DistinctValues = field(default_factory=DistinctValues)

    @property
    def present(self) -> int:
        """Cells with a value."""
        return self.rows - self.missing

    @property
    def typed(self) -> int:
        """Cells with a value that does not spell a missing one."""
        return self.present - self.marked

    @property
    def stand_ins(self) -> list[float]:
        """Numbers of nines, again and again and far from all others: they may stand for a missing one."""
        low, high = self.besides.min, self.besides.max
        far = max(high - low, 1.0)
        repeated = [number for number, cells in self.nines.items() if cells > 1 and not self.besides.empty]
        return sorted(number for number in repeated if not low - far <= number <= high + far)

    @property
    def is_unique(self) -> bool:
        """Whether no two cells are equal, as far as the values that are kept tell."""
        return bool(self.typed) and self.distinct.all_once and self.distinct.total == self.typed
