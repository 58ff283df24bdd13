"""Batches cut to their longest row, and rows of similar length in one batch."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import daskprep as dp
from daskprep.errors import ConfigError
from daskprep.extensions.media.audio import encode_wav

ROWS, WIDTH = 2_003, 60


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    lengths = np.minimum(np.exp(rng.normal(1.8, 0.7, ROWS)).astype(int), WIDTH)
    lengths[:3] = 0, 1, WIDTH
    texts = [" ".join(f"w{word}" for word in rng.integers(0, 300, length)) or None for length in lengths]
    return pd.DataFrame({"review": texts, "steps": [text and text[:20] for text in texts], "x": rng.normal(size=ROWS)})


def write(rows, folder, **options):
    features = {"review": dp.Text(max_sequence_length=WIDTH, **options), "steps": dp.Sequence(**options), "x": "number"}
    return dp.Preprocessor(features, split=None).fit_write(rows, folder, block_rows=64)["train"]


@pytest.fixture(scope="module")
def train(rows, tmp_path_factory):
    return write(rows, tmp_path_factory.mktemp("lengths") / "rows.dp")


def as_rows(batch):
    """Return the tokens of each row without padding, by row number."""
    parts = zip(batch["row_id"].tolist(), batch["review"].tolist(), batch["review_length"].tolist(), strict=True)
    return {row: ids[:length] for row, ids, length in parts}


@pytest.mark.parametrize("expand", [True, False])
def test_trim_cuts_batches_to_longest_row(train, expand):
    whole = train.loader(48, seed=1, expand=expand)
    cut = train.loader(48, seed=1, expand=expand, trim=True)
    for expected, batch in zip(whole, cut, strict=True):
        for name in ("review", "steps"):
            width = batch[name].shape[1]
            padded = expected[name].to(torch.int64) == 0
            lengths = batch[name + "_length"]
            assert lengths.tolist() == (~padded).sum(1).tolist()
            assert width == max(1, int(lengths.max()))
            assert batch[name].dtype == expected[name].dtype
            assert batch[name].is_contiguous()
            assert torch.equal(batch[name].to(torch.int64), expected[name][:, :width].to(torch.int64))
            assert not expected[name].to(torch.int64)[:, width:].any()
        assert list(batch) == ["review", "review_length", "steps", "steps_length", "x"]


def test_trim_left_padding(rows, tmp_path):
    train = write(rows, tmp_path / "left.dp", padding="left")
    for expected, batch in zip(train.loader(32, seed=1), train.loader(32, seed=1, trim=True), strict=True):
        assert torch.equal(batch["review"], expected["review"][:, -batch["review"].shape[1] :])
        assert batch["review_length"].tolist() == (expected["review"] != 0).sum(1).tolist()


def test_pad_to_multiple_of(train):
    widths = {batch["review"].shape[1] for batch in train.loader(48, trim=True, pad_to_multiple_of=8)}
    assert len(widths) > 2
    assert all(width % 8 == 0 or width == WIDTH for width in widths)


def test_trim_in_stream(rows, tmp_path):
    rows.to_parquet(tmp_path / "rows.parquet")
    prep = dp.Preprocessor({"review": dp.Text(max_sequence_length=WIDTH), "x": "number"}, split=None).fit(rows)
    seen = {}
    for batch in prep.stream(str(tmp_path / "rows.parquet"), 48, trim=True, row_ids=True, epochs=1):
        assert batch["review"].shape[1] == max(1, int(batch["review_length"].max()))
        seen |= as_rows(batch)
    expected = prep.encode(rows)["review"].tolist()
    assert {row: ids + [0] * (WIDTH - len(ids)) for row, ids in seen.items()} == dict(enumerate(expected))


@pytest.fixture(scope="module")
def series():
    rng = np.random.default_rng(1)
    sizes = np.append(rng.integers(1, 20, 149), 40)
    numbers = [(1 + rng.random(size)).tolist() for size in sizes]
    words = [[f"w{n}" for n in rng.permutation(30)[: size % 9]] for size in sizes]
    clips = [encode_wav(rng.normal(size=200 * size).astype(np.float32) / 8, 8_000) for size in sizes]
    columns = {"pulse": numbers, "late": numbers, "tags": words, "shown": words, "words": words}
    return pd.DataFrame(columns | {"clip": clips, "raw": clips}), sizes


@pytest.mark.parametrize("mode", ["eager", "lazy", "lazy_cached"])
@pytest.mark.parametrize("expand", [True, False])
def test_trim_timeseries_sets_and_audio(series, tmp_path, mode, expand):
    frame, sizes = series
    audio = {"mode": mode, "audio_file_length_limit_in_s": 1.0}
    features = {
        "pulse": dp.Timeseries(),
        "late": dp.Timeseries(padding="left", padding_value=-1.5),
        "tags": dp.Set(),
        "shown": dp.Set(expand_to="ids"),
        "words": dp.Bag(),
        "clip": dp.Audio(**audio),
        "raw": dp.Audio(type="raw", **audio),
    }
    train = dp.Preprocessor(features, split=None).fit_write(frame, tmp_path / "rows.dp", block_rows=32)["train"]
    options = {"seed": 1, "expand": expand, "row_ids": True}
    whole, cut = train.loader(16, **options), train.loader(16, trim=True, **options)
    frames = 1 + -(-np.maximum(200 * sizes - 320, 0) // 160)  # windows of 40 ms, which start every 20 ms
    counts = np.array([len(tags) for tags in frame["tags"]])
    expected = {"pulse": sizes, "late": sizes, "shown": counts, "clip": frames, "raw": 200 * sizes}
    if not expand:
        expected |= {"tags": counts, "words": counts}
    for full, batch in zip(whole, cut, strict=True):
        assert {name for name in batch if name.endswith("_length")} == {name + "_length" for name in expected}
        for name, lengths in expected.items():
            assert batch[name + "_length"].tolist() == lengths[batch["row_id"]].tolist()
            axis = 2 if name == "words" else 1
            width = max(1, int(batch[name + "_length"].max()))
            start = full[name].shape[axis] - width if name == "late" else 0
            assert torch.equal(batch[name], full[name].narrow(axis, start, width))
        for name in {"tags", "words"} - expected.keys():
            assert torch.equal(batch[name], full[name])


@pytest.mark.parametrize("name", ["pulse", "late", "shown", "words", "clip", "raw"])
def test_group_by_length_for_every_type(series, tmp_path, name):
    feature = {
        "pulse": dp.Timeseries(),
        "late": dp.Timeseries(padding="left", padding_value=-1.5),
        "shown": dp.Set(expand_to="ids"),
        "words": dp.Bag(),
        "clip": dp.Audio(mode="eager", audio_file_length_limit_in_s=1.0),
        "raw": dp.Audio(mode="eager", type="raw", audio_file_length_limit_in_s=1.0),
    }[name]
    prep = dp.Preprocessor({name: feature}, split=None)
    train = prep.fit_write(series[0], tmp_path / "rows.dp", block_rows=32)["train"]
    options = {"seed": 1, "trim": True, "expand": False, "row_ids": True}

    def read(**grouping):
        batches = [(batch["row_id"], batch[f"{name}_length"]) for batch in train.loader(8, **options, **grouping)]
        rows, lengths = (torch.cat(parts) for parts in zip(*batches, strict=True))
        assert sorted(rows.tolist()) == list(range(len(train)))
        return dict(zip(rows.tolist(), lengths.tolist(), strict=True)), sum(8 * int(part.max()) for _, part in batches)

    (lengths, padded), (grouped_lengths, grouped) = read(), read(group_by_length=name)
    assert grouped_lengths == lengths
    assert grouped < 0.8 * padded


def test_trim_timeseries_window_raises(tmp_path):
    frame = pd.DataFrame({"load": range(9)})
    train = dp.Preprocessor({"load": dp.Timeseries(window_size=3)}, split=None).fit_write(frame, tmp_path / "a.dp")
    with pytest.raises(ConfigError, match="has padded rows"):
        train["train"].loader(2, trim=True)


def join_short(batches, batch_size):
    """Return batches with the last two as one if four ranks share the last rows in another way than one does."""
    return [*batches[:-2], batches[-2] | batches[-1]] if ROWS % batch_size < 4 else batches


@pytest.mark.slow
@settings(max_examples=15)
@given(
    batch_size=st.sampled_from([16, 32, 48, 96]),
    streams=st.sampled_from([4, 8, 16]),
    seed=st.integers(0, 9),
    epoch=st.integers(0, 2),
    world=st.sampled_from([1, 2, 3, 4]),
    stops=st.lists(st.integers(1, 30), max_size=3),
    drop_last=st.booleans(),
    prefetch_size=st.sampled_from([0, 1, None]),
)
def test_group_by_length_yields_each_row_once_across_ranks_and_resumes(
    train, batch_size, streams, seed, epoch, world, stops, drop_last, prefetch_size
):
    options = {
        "streams": streams,
        "seed": seed,
        "drop_last": drop_last,
        "row_ids": True,
        "prefetch_size": prefetch_size,
    }
    options |= {"group_by_length": "review", "columns": ["review"], "trim": True, "uneven": True}
    loader = train.loader(batch_size, **options)
    loader.set_epoch(epoch)
    expected = [as_rows(batch) for batch in loader]
    loader.audit()
    seen = sorted(row for batch in expected for row in batch)
    assert seen == sorted(set(seen))
    assert len(seen) == (ROWS // batch_size * batch_size if drop_last else ROWS)
    batches, state = [], train.loader(batch_size, **options).state_dict() | {"epoch": epoch}
    for stop in [*stops, None]:
        ranks = [train.loader(batch_size, rank=rank, world_size=world, **options) for rank in range(world)]
        for one in ranks:
            one.load_state_dict(state)
        for number, parts in enumerate(zip(*ranks, strict=True), start=1):
            batches.append({})
            for part in parts:
                batches[-1] |= as_rows(part)
            if number == stop:
                break
        state, world = ranks[0].state_dict(), world % 4 + 1
        if len(batches) == len(expected):
            break
        if ROWS - state["rows_given"] < 4:  # too few rows for the next ranks
            world = 1
    assert join_short(batches, batch_size) == join_short(expected, batch_size)


@pytest.mark.slow
@settings(max_examples=12)
@given(
    batch_size=st.sampled_from([8, 12, 24, 28]),  # 3, 11, 11 and 15 rows are left after the parts
    tokens=st.sampled_from([11 * WIDTH, 15 * WIDTH, 28 * WIDTH, 6_000]),
    multiple=st.sampled_from([None, 4]),
    epoch=st.integers(0, 2),
    world=st.sampled_from([1, 2, 3, 4]),
    stops=st.lists(st.integers(1, 30), max_size=3),
    drop_last=st.booleans(),
    prefetch_size=st.sampled_from([0, 1, None]),
)
def test_batch_tokens_yields_each_row_once_across_ranks_and_resumes(
    train, batch_size, tokens, multiple, epoch, world, stops, drop_last, prefetch_size
):
    options = {"streams": 4, "seed": 1, "drop_last": drop_last, "row_ids": True, "prefetch_size": prefetch_size}
    options |= {"group_by_length": "review", "batch_tokens": max(tokens, (batch_size + 3) * WIDTH)}
    options |= {"columns": ["review"], "trim": True, "pad_to_multiple_of": multiple, "uneven": True}
    loader = train.loader(batch_size, **options)
    loader.set_epoch(epoch)
    parts = list(loader)
    loader.audit()
    assert len(parts) == len(loader)
    assert max(batch["review"].numel() for batch in parts) <= options["batch_tokens"]
    assert all(len(batch["review"]) % batch_size == 0 for batch in parts[:-1])
    expected = [as_rows(batch) for batch in parts]
    seen = sorted(row for batch in expected for row in batch)
    assert seen == sorted(set(seen))
    assert len(seen) == (ROWS // batch_size * batch_size if drop_last else ROWS)
    batches, state = [], train.loader(batch_size, **options).state_dict() | {"epoch": epoch}
    for stop in [*stops, None]:
        ranks = [train.loader(batch_size, rank=rank, world_size=world, **options) for rank in range(world)]
        for one in ranks:
            one.load_state_dict(state)
        for number, shares in enumerate(zip(*ranks, strict=True), start=1):
            assert (
                sum(share["review"].shape[0] for share in shares) * max(share["review"].shape[1] for share in shares)
                <= options["batch_tokens"]
            )
            batches.append({})
            for share in shares:
                batches[-1] |= as_rows(share)
            if number == stop:
                break
        state, world = ranks[0].state_dict(), world % 4 + 1
        if state["epoch"] > epoch or state["rows_given"] == ROWS:
            break
        if ROWS - state["rows_given"] < 4:  # too few rows for the next ranks
            world = 1
    assert join_short(batches, batch_size) == join_short(expected, batch_size)


def test_batch_tokens_in_workers(train):
    options = {"trim": True, "group_by_length": "review", "batch_tokens": 2_000, "row_ids": True}
    expected = [as_rows(batch) for batch in train.loader(16, **options)]
    workers = torch.utils.data.DataLoader(train.loader(16, **options), batch_size=None, num_workers=2)
    assert [as_rows(batch) for batch in workers] == expected
    schedule = train.loader(16, **options)._make_schedule()
    for batches in (range(0, 9, 2), range(1, len(schedule), 7)):
        plan = schedule.window(batches)
        single = [schedule.window(batches[n : n + 1]) for n in range(len(batches))]
        assert plan.sizes.tolist() == [one.sizes[0] for one in single]
        assert plan.block_positions == sorted({position for one in single for position in one.block_positions})
        assert {*plan.block_positions} <= {*schedule.block_positions(batches)}
    for batch in range(len(schedule)):
        mask = schedule.mask_unread(np.arange(len(schedule.blocks.order)), batch)
        assert mask[schedule.block_positions(range(batch, batch + 1))].all()


def test_batch_tokens_yields_more_short_rows(train):
    loader = train.loader(16, trim=True, group_by_length="review", batch_tokens=2_000, columns=["review"])
    shapes = [tuple(batch["review"].shape) for batch in loader]
    assert max(rows for rows, width in shapes if width < 8) > 200
    assert max(rows for rows, width in shapes if width > 30) <= 64
    assert np.mean([rows * width for rows, width in shapes]) > 1_000
    few = train.loader(2_048, trim=True, group_by_length="review", batch_tokens=200_000, columns=["review"])
    assert [len(batch["review"]) for batch in few] == [ROWS]


def test_group_by_length_reduces_padding(train):
    def padded(**options):
        tokens = width = 0
        widths = []
        for batch in train.loader(32, trim=True, seed=3, columns=["review"], **options):
            tokens += int(batch["review_length"].sum())
            width += batch["review"].numel()
            widths.append(batch["review"].shape[1])
        return 1 - tokens / width, widths

    (shuffled, _), (grouped, widths) = padded(), padded(group_by_length="review")
    assert shuffled > 0.5
    assert grouped < 0.25
    # Batches of one length do not follow each other.
    assert np.corrcoef(widths, np.arange(len(widths)))[0, 1] < 0.5


def test_group_by_length_with_oversampling(train, rows, tmp_path):
    rows = rows.assign(sold=np.arange(ROWS) % 5 == 0)
    prep = dp.Preprocessor({"review": "text", "sold": "binary"}, split=None)
    split = prep.fit_write(rows, tmp_path / "sold.dp", block_rows=64)["train"]
    loader = split.loader(32, group_by_length="review", balance=dp.Oversample("sold", 0.8), row_ids=True)
    numbers = [row for batch in loader for row in batch["row_id"].tolist()]
    assert set(numbers) == set(range(ROWS))
    assert len(numbers) > ROWS
    loader.audit()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_by_length": "x"}, 'group_by_length=.x.: "x" is a number: expected an output with padded rows'),
        ({"group_by_length": "review", "shuffle": False}, "cannot be used together with shuffle=False"),
        ({"group_by_length": "review", "overfit_batches": 2}, "cannot be used together with overfit_batches"),
        ({"group_by_length": "review", "streams": 5}, "batch_size=32 is no multiple of streams=5"),
        ({"batch_tokens": 99, "trim": True}, "batch_tokens=99 needs trim=True and group_by_length="),
        ({"batch_tokens": 99, "group_by_length": "review"}, "batch_tokens=99 needs trim=True and group_by_length="),
        ({"batch_tokens": 0}, "batch_tokens=0: expected an integer from 1"),
        ({"trim": True, "columns": ["x"]}, "no output has padded rows"),
        ({"trim": "yes"}, "trim='yes': expected True or False"),
        ({"pad_to_multiple_of": 8}, "pad_to_multiple_of=8 needs trim=True"),
        ({"pad_to_multiple_of": 0, "trim": True}, "pad_to_multiple_of=0: expected an integer from 1"),
        ({"trim": True, "pack": dp.Packing(8, "review")}, "trim cannot be used together with pack"),
        ({"group_by_length": "review", "pack": dp.Packing(8, "review")}, "cannot be used together with pack"),
    ],
)
def test_incompatible_length_options_raise(train, options, message):
    with pytest.raises(ConfigError, match=message):
        train.loader(32, **options)


def test_group_by_length_of_lazy_audio_raises(series, tmp_path):
    prep = dp.Preprocessor({"clip": dp.Audio(mode="lazy")}, split=None)
    train = prep.fit_write(series[0], tmp_path / "rows.dp")["train"]
    with pytest.raises(ConfigError, match='"clip" is decoded while it is loaded.*mode="eager"'):
        train.loader(8, group_by_length="clip")


def test_trim_with_existing_length_output_raises(tmp_path):
    frame = pd.DataFrame({"review": ["a b"] * 4, "review_length": range(4)})
    train = dp.Preprocessor({"review": "text", "review_length": "number"}).fit_write(frame, tmp_path / "a.dp")["train"]
    with pytest.raises(ConfigError, match='would replace the output "review_length"'):
        train.loader(2, trim=True)


def test_group_by_length_state_mismatch_raises(train):
    state = train.loader(32, group_by_length="review").state_dict()
    for other in (
        train.loader(32),
        train.loader(64, group_by_length="review"),
        train.loader(32, group_by_length="steps"),
    ):
        with pytest.raises(ConfigError, match="group_by_length and batch_size"):
            other.load_state_dict(state)


def test_batch_tokens_too_small_or_changed_raises(train):
    options = {"trim": True, "group_by_length": "review"}
    with pytest.raises(ConfigError, match="batch_tokens=900: a batch of 16 rows with the longest, 60 tokens, has 960"):
        len(train.loader(16, batch_tokens=900, **options))
    with pytest.raises(ConfigError, match="a batch of 7 rows with the longest, 60 tokens, has 420"):
        iter(train.loader(4, batch_tokens=400, world_size=4, rank=0, **options))
    loader = train.loader(16, batch_tokens=2_000, **options)
    next(iter(loader))
    state = loader.state_dict()
    for others in ({"batch_tokens": 3_000}, {"batch_tokens": 2_000, "pad_to_multiple_of": 8}, {}):
        with pytest.raises(ConfigError, match="group_by_length and batch_size"):
            train.loader(16, **others, **options).load_state_dict(state)
    with pytest.raises(ConfigError, match="rows_given=1: no batch of the epoch starts after these rows"):
        loader.load_state_dict(state | {"rows_given": 1})


def test_jagged_returns_nested_tensor_without_padding(train):
    for batch in train.loader(64, trim=True, columns=["review"]):
        nested = dp.jagged(batch["review"], batch["review_length"])
        parts = zip(batch["review"], batch["review_length"].tolist(), nested.unbind(), strict=True)
        assert all(row[:length].tolist() == part.tolist() for row, length, part in parts)
    left = dp.jagged(torch.tensor([[0, 3, 4], [5, 6, 7], [0, 0, 0]]), torch.tensor([2, 3, 0]), padding="left")
    assert [row.tolist() for row in left.unbind()] == [[3, 4], [5, 6, 7], []]
    with pytest.raises(ConfigError, match="padding='both': expected"):
        dp.jagged(left, left, padding="both")


@pytest.mark.parametrize("batch_size", [32, 512])
def test_group_by_length_limits_open_blocks(train, batch_size):
    schedule = train.loader(batch_size, streams=2, group_by_length="review")._make_schedule()
    for number in range(len(schedule) - 1):
        # A stream has 16 or 256 rows of a batch, and a group of more batches has at most two blocks of 64 rows.
        assert len(schedule.window(range(number, number + 1)).block_positions) <= {32: 2 * 3, 512: 2 * 5}[batch_size]
