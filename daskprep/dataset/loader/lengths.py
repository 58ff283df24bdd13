"""Lengths of padded rows, and batches cut to their longest row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from daskprep.dataset import Split
from daskprep.errors import ConfigError
from daskprep.features import Feature, Learned, Sequence
from daskprep.features.base import all_outputs, kind_with_article
from daskprep.features.padding import Padding
from daskprep.storage.reading import read_block
from daskprep.storage.threads import map_in_threads

LENGTH = "_length"


def find_paddings(features: Mapping[str, Feature], learned: Mapping[str, Learned]) -> dict[str, Padding]:
    """Return the padding of each output of token ids that has one."""
    sequences = {name: feature for name, feature in features.items() if isinstance(feature, Sequence)}
    return find_all_paddings(sequences, learned, expand=True)


def find_all_paddings(
    features: Mapping[str, Feature], learned: Mapping[str, Learned], *, expand: bool
) -> dict[str, Padding]:
    """Return the padding of each output with padded rows; with `expand`, not of those that become vectors of counts."""
    return {
        name + suffix: padding
        for name, feature in features.items()
        for suffix, padding in feature._paddings(learned[name], expand=expand).items()
    }


def find_padding(split: Split, column: str, option: str, *, expand: bool | None = None) -> Padding:
    """Return the padding of an output of tokens, with `expand` of any that `trim` cuts; ConfigError if none."""
    dataset = split.dataset
    output = split.output(column)
    if expand is None:
        paddings, expected = find_paddings(dataset.features, dataset.learned), "an output of a Sequence or Text"
    else:
        paddings = find_all_paddings(dataset.features, dataset.learned, expand=expand)
        expected = "an output with padded rows"
        if column in paddings and output.stores_cells:
            raise ConfigError(
                f'{option}: "{column}" is decoded while it is loaded: write the dataset with mode="eager"'
            )
    if column in paddings:
        return paddings[column]
    owners = {name + suffix: one for name, one in dataset.features.items() for suffix in all_outputs(one)}
    if isinstance(owners.get(column), Sequence):
        raise ConfigError(f'{option}: the vocabulary of "{column}" has no padding symbol: use a tokenizer that has one')
    kind = kind_with_article(owners[column]) if column in owners else "no feature"
    candidates = f", such as {', '.join(paddings)}" if paddings else ", but this dataset has none"
    raise ConfigError(f'{option}: "{column}" is {kind}: expected {expected}{candidates}')


def read_lengths(split: Split, column: str, padding: Padding) -> np.ndarray:
    """Return the length of each row of a split, in the smallest unsigned type; reads the whole output."""
    smallest = np.min_scalar_type(max(split.output(column).shape))

    def count(block: int) -> np.ndarray:
        part, number = split.locate_block(block)
        ids = read_block(part.block_reader(column), part.block(column, number))
        return padding.lengths(ids).astype(smallest)

    return np.concatenate(map_in_threads(count, range(split.layout.blocks(split.name)), local=split.is_local))


@dataclass(frozen=True)
class Trimming:
    """Cuts the padded outputs of each batch to their longest row, and adds the lengths of the rows."""

    paddings: Mapping[str, Padding]  # by output
    multiple: int = 1  # widths are rounded up to a multiple of this, for kernels that need one

    @classmethod
    def of(
        cls,
        features: Mapping[str, Feature],
        learned: Mapping[str, Learned],
        names: Iterable[str],
        multiple: int | None,
        *,
        expand: bool,
    ) -> Trimming:
        """Return the trimming of the outputs `names`; raise ConfigError for none with padding, or a taken name."""
        names = list(names)
        all_paddings = find_all_paddings(features, learned, expand=expand)
        paddings = {name: padding for name, padding in all_paddings.items() if name in names}
        if not paddings:
            raise ConfigError(
                "trim=True: no output has padded rows, as a Text has: leave trim out, or select one with columns="
            )
        for name in paddings:
            if name + LENGTH in names:
                raise ConfigError(
                    f'trim=True: the lengths of "{name}" would replace the output "{name}{LENGTH}": rename it'
                )
        return cls(paddings, multiple or 1)

    def names(self, names: Iterable[str]) -> list[str]:
        """Return the names of the outputs of batches: `names`, with the name of the lengths after each that is cut."""
        return [one for name in names for one in ((name, name + LENGTH) if name in self.paddings else (name,))]

    def split(
        self, name: str, column: torch.Tensor, sizes: list[int], expand: Callable[[torch.Tensor], torch.Tensor] | None
    ) -> dict[str, list[torch.Tensor]]:
        """Return the batches of `sizes` rows of a column, cut and expanded, and the lengths of their rows, by name."""
        padding = self.paddings[name]
        width = column.shape[2 if padding.is_bag else 1]
        lengths = padding.lengths(column.cpu().numpy())
        starts = np.cumsum([0, *sizes[:-1]])
        longest = np.maximum.reduceat(lengths, starts).tolist()
        batches = []
        for rows, length in zip(column.split(sizes), longest, strict=True):  # type: ignore[no-untyped-call]
            cut = padding.cut(rows, min(width, max(1, -(-length // self.multiple)) * self.multiple))
            batches.append(cut.contiguous() if expand is None else expand(cut))
        all_lengths = torch.from_numpy(lengths.astype(np.int64, copy=False)).to(column.device)
        return {name: batches, name + LENGTH: list(all_lengths.split(sizes))}  # type: ignore[no-untyped-call]


def jagged(rows: torch.Tensor, lengths: torch.Tensor, padding: Literal["left", "right"] = "right") -> torch.Tensor:
    """Return padded rows as a nested tensor without padding (``torch.nested``, layout ``torch.jagged``).

    Parameters
    ----------
    rows : torch.Tensor
        Padded rows of shape (rows, width, ...).
    lengths : torch.Tensor
        The length of each row, as in ``batch["review_length"]`` of a loader with ``trim=True``.
    padding : "left" or "right"
        The side of the padding, as for `Sequence` and `Text`.

    Examples
    --------
    >>> import torch
    >>> import daskprep as dp
    >>> nested = dp.jagged(torch.tensor([[3, 4, 0], [5, 6, 7]]), torch.tensor([2, 3]))
    >>> [row.tolist() for row in nested.unbind()]
    [[3, 4], [5, 6, 7]]
    """
    if padding not in ("left", "right"):
        raise ConfigError(f'padding={padding!r}: expected "left" or "right"')
    if padding == "left":
        # `torch.nested.narrow` returns too long rows if they do not start in the first column.
        columns = torch.arange(rows.shape[1], device=rows.device) - lengths[:, None]
        rows = rows[torch.arange(len(rows), device=rows.device)[:, None], columns % rows.shape[1]]
    return torch.nested.narrow(rows, 1, 0, lengths, layout=torch.jagged).contiguous()
