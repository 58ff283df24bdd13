"""Packing for the training of language models: what a loader asks to give rows of joined documents."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from daskprep import features
from daskprep.dataset import Split
from daskprep.errors import ConfigError
from daskprep.features.base import noun_of
from daskprep.loader.device import to_device
from daskprep.loader.joining import Arrays, Documents, Joiner, PackingPosition, Padding
from daskprep.loader.order import Schedule, bounds_of
from daskprep.loader.standing import check_same
from daskprep.permutation import Integers
from daskprep.storage.reading import read_block
from daskprep.storage.threads import in_threads

_BESIDES = ("position_ids", "document_ids")
_STREAMS = 16
_WINDOW_ROWS = 4_000_000


@dataclass(frozen=True)
class Packing:
    """Fill rows of one length with concatenated documents instead of padding each document.

    Parameters
    ----------
    block_size : int
        Length of a row in tokens.
    columns : str or iterable of str
        Output whose rows are the documents; it belongs to a `Sequence` or `Text`.

    Examples
    --------
    >>> import tempfile, pandas as pd
    >>> import daskprep as dp
    >>> frame = pd.DataFrame({"steps": ["a b c", "a", "b c a c b"]})
    >>> train = dp.Preprocessor({"steps": "sequence"}).fit_write(frame, tempfile.mkdtemp() + "/steps.dp")["train"]
    >>> packing = dp.Packing(block_size=4, columns=["steps"])
    >>> for batch in train.loader(batch_size=2, shuffle=False, pack=packing):
    ...     print(batch["steps"].tolist(), batch["position_ids"].tolist(), batch["document_ids"].tolist())
    [[2, 3, 4, 2], [3, 4, 2, 4]] [[0, 1, 2, 0], [0, 1, 2, 3]] [[0, 0, 0, 1], [0, 0, 0, 0]]
    [[3, 0, 0, 0]] [[4, 0, 0, 0]] [[0, -1, -1, -1]]
    """

    block_size: int
    columns: str | Iterable[str]


class Packer:
    """Packs the documents of a split: what a loader asks."""

    def __init__(self, split: Split, packing: Packing, batch_size: int, *, drop_last: bool) -> None:
        self.split = split
        self.block_size = _block_size(packing)
        self.column = _column(split, packing)
        self.output = split.output(self.column)
        self.padding = _padding(split, self.column)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self._counted: tuple[tuple[int, int], int] | None = None

    def settings(self, schedule: Schedule) -> dict[str, Any]:
        """Return what rows depend on, besides the order."""
        return {
            "column": self.column,
            "block_size": self.block_size,
            "batch_size": self.batch_size,
            "world_size": schedule.world_size,
        }

    def batches(
        self, windows: Iterable[Documents], place: PackingPosition, schedule: Schedule
    ) -> Iterator[tuple[Arrays, PackingPosition]]:
        """Give a rank's batches from a place on."""
        joiner = Joiner(self.block_size, self._batch_rows(schedule), self.padding, place)
        return joiner.batches(windows, drop_last=self.drop_last)

    def tensors(self, arrays: Arrays, device: torch.device | None) -> dict[str, torch.Tensor]:
        """Return a batch as it is given."""
        return {self.column if name == "tokens" else name: to_device(one, device) for name, one in arrays.items()}

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each row of the split, in the smallest type; every block of the column is read for them."""
        blocks = range(self.split.layout.blocks(self.split.name))
        smallest = np.min_scalar_type(self.output.shape[0])

        def count(block: int) -> np.ndarray:
            split, number = self.split.located(block)
            ids = read_block(split.block_reader(self.column), split.block(self.column, number))
            return self.padding.lengths(ids).astype(smallest)

        return np.concatenate(in_threads(count, blocks, local=self.split.is_local))

    def count(self, schedule: Schedule) -> int:
        """Return the batches of an epoch, the same for every rank: those of the rank that has the fewest."""
        key = (schedule.blocks.epoch, schedule.world_size)
        if self._counted is None or self._counted[0] != key:
            ranks = [dataclasses.replace(schedule, rank=rank) for rank in range(schedule.world_size)]
            self._counted = key, min(self._count(rank) for rank in ranks)
        return self._counted[1]

    def _count(self, schedule: Schedule) -> int:
        """Return the batches that a rank's documents fill."""
        tokens = sum(int(tokens.sum()) for _, tokens in self._tokens(schedule))
        whole, rest = divmod(tokens, self._batch_tokens(schedule))
        return whole + (rest > 0 and not self.drop_last)

    def place(self, schedule: Schedule, batches: int) -> PackingPosition:
        """Return where a rank stands after some batches, from the order and the lengths of documents alone."""
        given = batches * self._batch_tokens(schedule)
        for window, tokens in self._tokens(schedule):
            if given < tokens.sum():
                ends = np.cumsum(tokens)
                at = int(np.searchsorted(ends, given, side="right"))
                return PackingPosition(window[at], given - int(ends[at] - tokens[at]))
            given -= int(tokens.sum())
        return PackingPosition(len(schedule))

    def _batch_rows(self, schedule: Schedule) -> int:
        start, stop = bounds_of(self.batch_size, schedule.rank, schedule.world_size)
        return stop - start

    def _batch_tokens(self, schedule: Schedule) -> int:
        return self._batch_rows(schedule) * self.block_size

    def _tokens(self, schedule: Schedule) -> Iterator[tuple[range, Integers]]:
        """Give the tokens of each of a rank's batches of rows, in windows."""
        blocks = schedule.blocks
        step = max(1, _WINDOW_ROWS * schedule.world_size // schedule.batch_size)
        everything = range(len(schedule))
        for start in range(0, len(everything), step):
            batches = everything[start : start + step]
            share = schedule.window(batches)
            lengths = np.empty(sum(share.sizes), np.int64)
            for piece in share.pieces:
                lengths[piece.target] = self.lengths[blocks.numbers(piece.place)[piece.within]]
            ends = np.concatenate(([0], np.cumsum(lengths)))[np.cumsum((0, *share.sizes))]
            yield batches, np.diff(ends)

    def state(self, place: PackingPosition, schedule: Schedule) -> dict[str, Any]:
        """Return a rank's place as JSON values."""
        return {**self.settings(schedule), "rank": schedule.rank, "read": place.read, "tokens": place.tokens}

    def place_in(self, state: Mapping[str, Any], schedule: Schedule, batches: int) -> PackingPosition:
        """Return this rank's place in the state of any rank, taken after some batches."""
        if state["rank"] == schedule.rank:
            return PackingPosition(state["read"], state["tokens"])
        return self.place(schedule, batches)


def rows_read(batch_size: int, streams: int | None) -> int:
    """Return how many documents make a batch of rows to read: many enough to be mixed, however few rows are packed."""
    return math.lcm(batch_size, streams or _STREAMS)


def check_options(**given: bool) -> None:
    """Refuse options of a loader that make no sense for packed rows, by whether they are given."""
    remedies = {
        "columns": "Packing(columns=...) says which output is packed",
        "targets": "make them of the tokens with transform=",
        "row_ids": "a packed row has no number; document_ids distinguish documents",
        "expand": "packed tokens are always int64",
        "overfit_batches": "keep the first batches in a list, and iterate over that",
        "augment": "tokens are not augmented",
    }
    for name, remedy in remedies.items():
        if given[name]:
            raise ConfigError(f"{name} cannot be used together with pack: {remedy}")


def check_state(packer: Packer | None, state: Mapping[str, Any] | None, schedule: Schedule) -> None:
    """Refuse a state of rows that were packed otherwise, or not at all."""
    if packer is None or state is None:
        if packer is not None or state is not None:
            was, now = ("with", "without") if packer is None else ("without", "with")
            raise ConfigError(
                f"the state was saved {was} pack=, but this loader was created {now} it: use the same options"
            )
        return
    check_same(state, packer.settings(schedule))


def _block_size(packing: object) -> int:
    if not isinstance(packing, Packing):
        raise ConfigError(f'pack={packing!r}: expected Packing(block_size=512, columns=["review"])')
    size = packing.block_size
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ConfigError(f"Packing: block_size={size!r}: expected a whole number from 1")
    return size


def _column(split: Split, packing: Packing) -> str:
    columns = [packing.columns] if isinstance(packing.columns, str) else list(packing.columns)
    if len(columns) != 1:
        raise ConfigError(
            f"Packing: columns={columns!r}: expected one output, because documents differ in length between outputs; "
            "create a loader for each, or join their texts in one column before writing"
        )
    output = split.output(columns[0])
    if output.name in _BESIDES:
        raise ConfigError(f'Packing: batches already have a tensor "{output.name}": rename the feature')
    return output.name


def _padding(split: Split, column: str) -> Padding:
    dataset = split.dataset
    outputs = {name + suffix: feature for name, feature in dataset.features.items() for suffix in feature.outputs}
    feature = outputs.get(column)
    if not isinstance(feature, features.Sequence):
        kind = "no feature" if feature is None else noun_of(feature)
        fitting = [name for name, one in outputs.items() if isinstance(one, features.Sequence)]
        raise ConfigError(
            f'Packing: "{column}" is {kind}: expected an output of a Sequence or Text'
            + (f", such as {', '.join(fitting)}" if fitting else ", of which this dataset has none")
        )
    token = dataset.vocabulary(column).specials.padding_id
    if token is None:
        raise ConfigError(
            f'Packing: the vocabulary of "{column}" has no padding symbol, so that padding cannot be told from tokens: '
            "give its tokenizer one, and write the dataset again"
        )
    return Padding(token, feature.padding == "left")
