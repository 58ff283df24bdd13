"""Rows of joined documents, compared with joining in plain Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import daskprep as dp
from daskprep.dataset import Split
from daskprep.dataset.loader.packing import Joiner, PackingPosition, Padding
from daskprep.errors import ConfigError

PADDING = 0
BLOCK = 7
PACKING = dp.Packing(block_size=BLOCK, columns=["review"])


def rows_of(documents: list[list[int]], block_size: int) -> list[list[tuple[int, int, int]]]:
    """Join documents in plain Python: (token, position, document) for each place of each row."""
    flat = [(token, place, number) for number, one in enumerate(documents) for place, token in enumerate(one)]
    rows = []
    for start in range(0, len(flat), block_size):
        row = flat[start : start + block_size]
        numbers = {number: index for index, number in enumerate(dict.fromkeys(number for _, _, number in row))}
        known = [(token, place, numbers[number]) for token, place, number in row]
        rows.append(known + [(PADDING, 0, -1)] * (block_size - len(row)))
    return rows


def rows_in(batch: dict, column: str = "review") -> list[list[tuple[int, int, int]]]:
    """Return a batch in the form of `rows_of`."""
    apart = [batch[name].tolist() for name in (column, "position_ids", "document_ids")]
    return [list(zip(*row, strict=True)) for row in zip(*apart, strict=True)]


# -- Joiner


def padded(documents: list[list[int]], width: int, *, left: bool) -> np.ndarray:
    rows = [[PADDING] * (width - len(one)) * left + one for one in documents]
    return np.array([row + [PADDING] * (width - len(row)) for row in rows], np.uint8).reshape(-1, width)


def windows(ids: np.ndarray, size: int, most: int, first: int = 0) -> Iterator[tuple[np.ndarray, list[int]]]:
    """Cut documents into batches of `size`, and these into windows of `most`, from a batch on."""
    for start in range(first * size, len(ids), size * most):
        window = ids[start : start + size * most]
        yield window, [len(window[at : at + size]) for at in range(0, len(window), size)]


@settings(max_examples=60)
@given(
    documents=st.lists(st.lists(st.integers(1, 9), max_size=9), max_size=14),
    left=st.booleans(),
    block_size=st.integers(1, 12),
    rows=st.integers(1, 3),
    size=st.integers(1, 4),
    most=st.integers(1, 3),
)
def test_joiner_equals_plain_python_from_every_position(documents, left, block_size, rows, size, most):
    ids, padding = padded(documents, 9, left=left), Padding(PADDING, left)
    joiner = Joiner(block_size, rows, padding, PackingPosition())
    batches = list(joiner.batches(windows(ids, size, most), drop_last=False))
    expected = rows_of(documents, block_size)
    found = [rows_in(batch, "tokens") for batch, _ in batches]
    assert found == [expected[start : start + rows] for start in range(0, len(expected), rows)]
    for number, (_, place) in enumerate(batches, start=1):
        again = Joiner(block_size, rows, padding, place)
        rest = again.batches(windows(ids, size, most, place.read), drop_last=False)
        assert [rows_in(batch, "tokens") for batch, _ in rest] == found[number:]


def test_joiner_splits_large_windows():
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 1_001, 700)
    inside = np.arange(1_000) < lengths[:, None]
    ids = (rng.integers(1, 60_000, inside.shape) * inside).astype(np.uint16)
    assert ids.size > 2 * 2**18
    joiner = Joiner(128, 16, Padding(PADDING), PackingPosition())
    batches = [batch for batch, _ in joiner.batches([(ids, [700])], drop_last=False)]
    tokens, places = (np.concatenate([batch[name].ravel() for batch in batches]) for name in ("tokens", "position_ids"))
    total = lengths.sum()
    assert np.array_equal(tokens[:total], ids[ids != PADDING])
    assert np.array_equal(places[:total], np.concatenate([np.arange(length) for length in lengths]))


def test_padding_id_inside_document_is_a_token():
    ids = np.array([[3, 0, 4, 0, 0], [0, 5, 0, 0, 0], [0, 0, 0, 0, 0]])
    assert Padding(0).lengths(ids).tolist() == [3, 2, 0]
    assert Padding(0, left=True).lengths(ids).tolist() == [5, 4, 0]


def test_position_skips_empty_documents():
    ids = padded([[1, 2], [], [], [3]], 2, left=False)
    (_, place), _ = Joiner(2, 1, Padding(PADDING), PackingPosition()).batches(windows(ids, 1, 4), drop_last=False)
    assert place == PackingPosition(3, 0)


# -- in the loader


@pytest.fixture(scope="module", params=["right", "left"])
def train(request, tmp_path_factory) -> Split:
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(list("abcdefgh"), count)) for count in rng.integers(0, 24, 301)]
    frame = pd.DataFrame({"review": texts, "rare": rng.random(301) < 0.2})
    review = dp.Sequence(padding=request.param, max_sequence_length=20, fill_value="<PAD>")
    prep = dp.Preprocessor({"review": review, "rare": "binary"})
    return prep.fit_write(frame, tmp_path_factory.mktemp("packing") / "a.dp", block_rows=16)["train"]


def documents_of(split: Split, read: int = 16, epoch: int = 0, **options) -> list[list[int]]:
    """Return the documents in the order of a loader, without their padding."""
    loader = split.loader(read, columns=["review"], **options)
    loader.set_epoch(epoch)
    return [[token for token in row if token != PADDING] for batch in loader for row in batch["review"].tolist()]


def batches_of(loader) -> list[list[list[tuple[int, int, int]]]]:
    return [rows_in(batch) for batch in loader]


def in_batches(rows: list, size: int) -> list[list]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def test_documents_are_empty_and_longer_than_blocks(train):
    lengths = [len(document) for document in documents_of(train)]
    assert 0 in lengths
    assert max(lengths) > 2 * BLOCK


@pytest.mark.parametrize("shuffle", [True, False])
def test_packed_rows_equal_joined_documents(train, shuffle):
    loader = train.loader(8, shuffle=shuffle, pack=PACKING)
    expected = in_batches(rows_of(documents_of(train, shuffle=shuffle), BLOCK), 8)
    assert batches_of(loader) == expected
    assert len(loader) == len(expected)
    assert loader.audit()["rows"] == len(train)


def test_each_epoch_has_its_own_order_and_length(train):
    loader = train.loader(4, pack=PACKING)
    epochs = [batches_of(loader) for _ in range(2)]
    assert epochs[1] == in_batches(rows_of(documents_of(train, epoch=1), BLOCK), 4)
    assert epochs[0] != epochs[1]
    loader.set_epoch(0)
    assert batches_of(loader) == epochs[0]


def test_packed_batch_is_int64(train):
    batch = next(iter(train.loader(8, pack=PACKING)))
    assert {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in batch.items()} == dict.fromkeys(
        ("review", "position_ids", "document_ids"), (torch.int64, (8, BLOCK))
    )


def test_drop_last_yields_only_full_batches_of_full_rows(train):
    loader = train.loader(8, pack=PACKING, drop_last=True)
    found = batches_of(loader)
    assert found == in_batches(rows_of(documents_of(train), BLOCK), 8)[:-1]
    assert len(loader) == len(found)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_ranks_pack_own_rows_and_stop_together(train, world, shuffle, drop_last):
    own = 8 // world
    places = [{"shuffle": shuffle, "rank": rank, "world_size": world} for rank in range(world)]
    documents = [documents_of(train, **place) for place in places]
    tokens = min(sum(map(len, one)) for one in documents)
    fewest = tokens // (own * BLOCK) if drop_last else -(-tokens // (own * BLOCK))
    for place, one in zip(places, documents, strict=True):
        loader = train.loader(8, pack=PACKING, drop_last=drop_last, **place)
        assert len(loader) == fewest
        assert batches_of(loader) == in_batches(rows_of(one, BLOCK), own)[:fewest]
        loader.audit()


def test_uneven_ranks_pack_batches(train):
    ranks = [{"rank": rank, "world_size": 3, "uneven": True} for rank in range(3)]
    packed = [[rows_of(documents_of(train, **rank), BLOCK), own] for rank, own in zip(ranks, (2, 3, 3), strict=True)]
    fewest = min(-(-len(rows) // own) for rows, own in packed)
    for rank, (rows, own) in zip(ranks, packed, strict=True):
        loader = train.loader(8, pack=PACKING, **rank)
        assert len(loader) == fewest
        assert batches_of(loader) == in_batches(rows, own)[:fewest]
        resumed = train.loader(8, pack=PACKING, **rank)
        next(batches := iter(loader))
        resumed.load_state_dict(loader.state_dict())
        assert batches_of(resumed) == batches_of(batches)


@pytest.mark.parametrize("options", [{}, {"prefetch_size": 0}, {"prefetch_size": 1, "threads": 1}])
def test_packing_does_not_depend_on_prefetch(train, options):
    assert batches_of(train.loader(8, pack=PACKING, **options)) == batches_of(train.loader(8, pack=PACKING))


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "world"), [(0, 1), (1, 2), (3, 4)])
def test_packing_resumes_after_every_batch(train, rank, world):
    options = {"pack": PACKING, "rank": rank, "world_size": world, "prefetch_size": 0}
    whole = batches_of(train.loader(32, **options))
    for done in range(len(whole) + 1):
        loader = train.loader(32, **options)
        assert [rows_in(batch) for batch in islice(loader, done)] == whole[:done]
        state = json.dumps(loader.state_dict())
        other = train.loader(32, **options)
        other.load_state_dict(json.loads(state))
        assert batches_of(other) == whole[done:]
        assert len(state) < 1_000


def test_packing_resumes_repeatedly_into_next_epoch(train):
    options = {"pack": PACKING, "prefetch_size": 0}
    one = train.loader(32, **options)
    whole = batches_of(one) + batches_of(one)
    found, state = [], train.loader(32, **options).state_dict()
    while len(found) < len(whole):
        loader = train.loader(32, **options)
        loader.load_state_dict(state)
        # A state at the end of an epoch yields no batches; the next iteration is the next epoch.
        taken = [rows_in(batch) for batch in islice(loader, 3)]
        found += taken or [rows_in(batch) for batch in islice(loader, 3)]
        state = loader.state_dict()
    assert found == whole


def test_packing_resume_rereads_at_most_one_batch(train):
    loader = train.loader(8, pack=PACKING, shuffle=False)
    list(islice(loader, len(loader) - 2))
    other = train.loader(8, pack=PACKING, shuffle=False)
    other.load_state_dict(loader.state_dict())
    batches = batches_of(other)
    tokens = sum(number >= 0 for batch in batches for row in batch for _, _, number in row)
    assert len(batches) == 2
    assert other.audit()["rows"] < 16 + tokens


def test_packing_state_of_one_rank_resumes_other_ranks(train):
    ranks = [train.loader(8, pack=PACKING, rank=rank, world_size=2) for rank in range(2)]
    wholes = [batches_of(loader) for loader in ranks]
    for done in (0, 1, 5, len(wholes[0])):
        first = train.loader(8, pack=PACKING, rank=0, world_size=2)
        list(islice(first, done))
        second = train.loader(8, pack=PACKING, rank=1, world_size=2)
        second.load_state_dict(first.state_dict())
        assert batches_of(second) == wholes[1][done:]


@pytest.mark.parametrize("workers", [1, 2])
def test_packing_in_workers_preserves_order(train, workers):
    loader = train.loader(8, pack=PACKING)
    whole = batches_of(train.loader(8, pack=PACKING))
    list(islice(loader, 5))
    rest = train.loader(8, pack=PACKING)
    rest.load_state_dict(loader.state_dict())
    assert batches_of(DataLoader(rest, batch_size=None, num_workers=workers)) == whole[5:]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_packing_resumes_in_stateful_data_loader(train):
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    whole = batches_of(train.loader(8, pack=PACKING))

    def loader():
        return torchdata.StatefulDataLoader(train.loader(8, pack=PACKING), batch_size=None, num_workers=2)

    first = loader()
    batches = iter(first)
    found = [rows_in(next(batches)) for _ in range(5)]
    second = loader()
    second.load_state_dict(first.state_dict())
    assert found + batches_of(second) == whole


def test_packing_with_oversampling(train):
    options = {"balance": dp.Oversample("rare", ratio=1.0)}
    loader = train.loader(8, pack=PACKING, **options)
    expected = in_batches(rows_of(documents_of(train, **options), BLOCK), 8)
    assert batches_of(loader) == expected
    assert len(loader) == len(expected)
    loader.audit()


def test_packing_one_level_of_text(tmp_path):
    frame = pd.DataFrame({"review": ["ab c", "d"]})
    train = dp.Preprocessor({"review": dp.Text(level="both")}).fit_write(frame, tmp_path / "a.dp")["train"]
    batch = next(iter(train.loader(1, shuffle=False, pack=dp.Packing(5, "review_char"))))
    vocabulary = train.dataset.vocabulary("review_char")
    assert "".join(vocabulary.decode(batch["review_char"][0].numpy()).to_pylist()) == "ab cd"
    assert batch["document_ids"].tolist() == [[0, 0, 0, 0, 1]]


def test_packing_fewer_documents_than_streams(tmp_path):
    frame = pd.DataFrame({"steps": ["a b c", "b", "c a"]})
    train = dp.Preprocessor({"steps": "sequence"}).fit_write(frame, tmp_path / "a.dp")["train"]
    for world in (1, 2):
        loaders = [train.loader(2, pack=dp.Packing(1, ["steps"]), rank=r, world_size=world) for r in range(world)]
        batches = [list(loader) for loader in loaders]
        assert {len(one) for one in batches} == {len(loaders[0])}
    assert len(train.loader(2, pack=dp.Packing(1, ["steps"]))) == 3


def test_transform_is_applied_to_packed_batch(train):
    loader = train.loader(8, pack=PACKING, transform=lambda batch: batch["review"][:, 1:])
    assert next(iter(loader)).shape == (8, BLOCK - 1)


# -- errors


@pytest.mark.parametrize(
    ("pack", "message"),
    [
        (dp.Packing(0, ["review"]), "block_size=0: expected an integer from 1"),
        (dp.Packing(8, ["review", "rare"]), "expected one output.*create a loader for each"),
        (dp.Packing(8, []), "expected one output"),
        (dp.Packing(8, "rare"), '"rare" is a binary: expected an output of a Sequence or Text, such as review'),
        (dp.Packing(8, "row_id"), '"row_id" is no feature'),
        (dp.Packing(8, "revew"), 'no output "revew".*Did you mean "review"'),
        (512, r"pack=512: expected Packing\("),
    ],
)
def test_invalid_packing_raises(train, pack, message):
    with pytest.raises(ConfigError, match=message):
        train.loader(8, pack=pack)


def test_packing_vocabulary_without_padding_raises(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = dp.Sequence(tokenizer="hf_tokenizer", pretrained_model_name_or_path=str(tmp_path / "tokenizer.json"))
    frame = pd.DataFrame({"review": ["a a", "a"]})
    train = dp.Preprocessor({"review": text}).fit_write(frame, tmp_path / "a.dp")["train"]
    with pytest.raises(ConfigError, match='"review" has no padding symbol'):
        train.loader(2, pack=PACKING)


@pytest.mark.parametrize(
    "option",
    [{"overfit_batches": 2}, {"targets": "rare"}, {"row_ids": True}, {"columns": ["review"]}, {"expand": False}],
)
def test_options_incompatible_with_packing_raise(train, option):
    with pytest.raises(ConfigError, match=f"{next(iter(option))} cannot be used together with pack: "):
        train.loader(8, pack=PACKING, **option)


def test_packing_state_mismatch_raises(train):
    state = train.loader(8, pack=PACKING).state_dict()
    for options, message in [
        ({"pack": dp.Packing(9, "review")}, "block_size=7"),
        ({"pack": PACKING, "rank": 0, "world_size": 2}, "world_size=1"),
        ({}, "with pack=, but this loader was created without it"),
    ]:
        loader = train.loader(8, **options)
        with pytest.raises(ConfigError, match=message):
            loader.load_state_dict(state)
        assert loader.state_dict()["epoch"] == 0
    with pytest.raises(ConfigError, match="without pack=, but this loader was created with it"):
        train.loader(8, pack=PACKING, streams=8).load_state_dict(train.loader(8).state_dict())
