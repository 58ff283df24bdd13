"""Windows gathered on a device from its copies of blocks, with a stream that works only when it is waited for."""

from __future__ import annotations

import contextlib
import threading
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import daskprep as dp
from daskprep.dataset.loader import loader
from daskprep.dataset.loader.groups import DeviceTransfer
from tests.dataset.loader.devices import cuda, transferred_by

ROWS = 603
PARTS = {"aten::copy_", "aten::index_select", "aten::cat"}


class LateStream:
    """Ordered work that runs as late as possible: when an event or the stream is synchronized."""

    def __init__(self):
        self.work, self.done, self._lock = [], 0, threading.RLock()

    def record_event(self):
        return LateEvent(self, len(self.work))

    def synchronize(self):
        self.run(len(self.work))

    def run(self, stop):
        with self._lock:
            while self.done < stop:
                self.work[self.done]()
                self.work[self.done] = None
                self.done += 1

    def pending(self):
        return len(self.work) - self.done


class LateEvent:
    """A position in the work of a stream."""

    def __init__(self, stream, position):
        self._stream, self._position = stream, position

    def synchronize(self):
        self._stream.run(self._position)


class OnStream(TorchDispatchMode):
    """Copies and gathers of the thread that enters this are put off; until then, their results are 99."""

    def __init__(self, stream):
        super().__init__()
        self._stream = stream

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function._schema.name not in PARTS:
            return function(*args, **(kwargs or {}))
        if function._schema.name == "aten::copy_":
            target, source = args[:2]
            self._stream.work.append(lambda: target.copy_(source))
            return target
        # Filled before it is appended: another thread may do the work at once.
        result = function(*args).fill_(99)
        self._stream.work.append(lambda: result.copy_(function(*args)))
        return result


class LateDevice(DeviceTransfer):
    """A device whose memory is that of the CPU, with a late stream; `instances` has all that were made."""

    instances: ClassVar[list[LateDevice]] = []

    def __init__(self, _, *, gathers):
        super().__init__(torch.device("cpu"))
        self.gathers = True
        self.stream = self._stream = LateStream()
        self.instances.append(self)


class PlainDevice(DeviceTransfer):
    """The CPU as a device without streams."""

    def __init__(self, _, *, gathers):
        super().__init__(torch.device("cpu"))
        self.gathers = True


@pytest.fixture(scope="module", autouse=True)
def devices():
    with cuda(on_stream=lambda stream: OnStream(stream) if stream else torch.no_grad()):
        yield


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Outputs of all kinds of types, in blocks of 20 rows."""
    folder, rng = tmp_path_factory.mktemp("device"), np.random.default_rng(0)
    (folder / "pictures").mkdir()
    from PIL import Image

    for number in range(5):
        Image.fromarray(rng.integers(0, 256, (9, 8, 3), np.uint8)).save(folder / f"pictures/{number}.png")
    paths = [str(folder / f"pictures/{number}.png") for number in range(5)]
    frame = pd.DataFrame({"plain": rng.normal(size=ROWS)})
    frame["gaps"] = np.where(rng.random(ROWS) < 0.2, np.nan, rng.normal(size=ROWS))
    frame["steps"] = frame["bins"] = rng.normal(size=ROWS)
    frame["city"] = rng.choice(["Rome", "Oslo", "Bern"], ROWS)
    frame["many"] = rng.integers(0, 400, ROWS).astype(str)
    frame["tags"] = rng.choice(["a b", "b", "c d e"], ROWS)
    frame["review"] = [" ".join(f"w{word}" for word in rng.integers(0, 300, 4)) for _ in range(ROWS)]
    frame["when"] = pd.date_range("2020-01-01", periods=ROWS, freq="7h")
    frame["vector"] = list(rng.normal(size=(ROWS, 3)).astype(np.float32))
    frame["stored"] = frame["lazy"] = frame["cached"] = rng.choice(paths, ROWS)
    frame["sold"] = rng.choice([True, False], ROWS, p=[0.2, 0.8])
    features = {
        "plain": dp.Number(),
        "gaps": dp.Number(missing_indicator=True),
        "steps": dp.Number(encoding="piecewise_linear", bins=7),
        "bins": dp.Number(encoding="bins", bins=300),
        "city": dp.Category(),
        "many": dp.Category(),
        "tags": dp.Set(),
        "review": dp.Text(level="both"),
        "when": dp.Date(),
        "vector": dp.Vector(),
        "stored": dp.Image(height=9, width=8, num_channels=3, mode="eager", pixel_statistics="channels"),
        "lazy": dp.Image(height=4, width=4, num_channels=3, mode="lazy"),
        "cached": dp.Image(height=4, width=4, num_channels=3, mode="lazy_cached"),
        "sold": dp.Binary(),
    }
    prep = dp.Preprocessor(features)
    prep.fit_write(frame, folder / "rows.dp", block_rows=20)
    return dp.open_dataset(folder / "rows.dp", trusted=True)


@pytest.fixture(scope="module")
def train(dataset):
    return dataset["train"]


MEDIA = ("lazy", "cached")
NAMES = ("plain", "gaps", "gaps_missing", "steps", "bins", "city", "many", "tags", "review_word", "when", "vector")


def batches_of(train, device, state, rank, stop=None, **options):
    """Return copies of batches, the strides of their tensors, states after each, and the audit; also on a device."""
    with transferred_by(device) if device else contextlib.nullcontext():
        made = train.loader(rank=rank[0], world_size=rank[1], row_ids=True, **options)
        if state is not None:
            made.load_state_dict(state)
        batches = []
        for number, batch in enumerate(iterator := iter(made)):
            copies = {name: values.clone() for name, values in batch.items()}
            batches.append((copies, {name: values.stride() for name, values in batch.items()}, made.state_dict()))
            if number + 1 == stop:
                break
        iterator.close()
        return batches, made.audit(), made


def assert_same(found, expected):
    assert len(found) == len(expected) > 0
    for (batch, strides, state), (other, other_strides, other_state) in zip(found, expected, strict=True):
        assert (list(batch), strides, state) == (list(other), other_strides, other_state)
        for name, values in other.items():
            assert batch[name].dtype == values.dtype
            assert batch[name].numpy().tobytes() == values.numpy().tobytes(), name


options_of_loaders = st.fixed_dictionaries(
    {
        "batch_size": st.sampled_from([30, 48, 96, 600]),
        "shuffle": st.booleans(),
        "seed": st.integers(0, 9),
        "drop_last": st.booleans(),
        "expand": st.booleans(),
        "threads": st.sampled_from([1, 3]),
    },
    optional={
        "streams": st.sampled_from([1, 2, 6]),
        "prefetch_size": st.sampled_from([0, 1, 4]),
        "columns": st.sampled_from([NAMES, ("plain",), ("many", "stored"), MEDIA, ("cached", "bins")]),
        "balance": st.just(dp.Oversample("sold", 0.8)),
    },
)


@pytest.mark.slow
@pytest.mark.parametrize("device", [LateDevice, PlainDevice])
@settings(max_examples=10)
@given(
    options=options_of_loaders,
    rank=st.sampled_from([(0, 1), (1, 2), (2, 3)]),
    resume=st.integers(0, 3),
    epoch=st.integers(0, 1),
)
def test_device_gather_equals_cpu_gather(train, device, options, rank, resume, epoch):
    state = None
    if resume:
        first, *_ = batches_of(train, None, None, (0, 1), resume, **options)
        state = first[-1][2]
    else:
        state = train.loader(**options).state_dict() | {"epoch": epoch}
    expected, audit, _ = batches_of(train, None, state, rank, **options)
    found, same_audit, _ = batches_of(train, device, state, rank, **options)
    assert_same(found, expected)
    assert audit == same_audit


def shifted(images):
    return images + torch.randint(0, 3, (len(images), 1, 1, 1), dtype=torch.uint8)


@pytest.mark.parametrize(
    "steps",
    [
        dp.RandomCrop(5, 4),
        [dp.RandomCrop(8, 8, padding=2), dp.Mirror()],
        [dp.Mirror(0.3), dp.Normalize()],
        [shifted, dp.RandomCrop(3, 3), dp.MeanSubtraction([0.5, 0.25, 0.0])],
    ],
)
@pytest.mark.parametrize("expand", [True, False])
def test_device_augmentation_equals_cpu_augmentation(train, steps, expand):
    options = {"batch_size": 48, "augment": {"stored": steps}, "columns": ["stored", "plain"], "expand": expand}
    expected, *_ = batches_of(train, None, None, (0, 1), **options)
    found, *_ = batches_of(train, LateDevice, None, (0, 1), **options)
    assert_same(found, expected)


@pytest.mark.parametrize("step", [dp.RandomCrop(3, 3, padding=1), dp.Mirror()])
@pytest.mark.parametrize("removed", [0, 2])
def test_complete_cache_blocks_are_gathered_on_device(train, tmp_path, step, removed):
    """Blocks removed after the cache was found complete are decoded once more."""
    options = {"batch_size": 48, "columns": ["cached", "plain"], "augment": {"cached": step}, "cache_dir": tmp_path}
    expected, *_ = batches_of(train, None, None, (0, 1), **options)
    chunks = sorted(tmp_path.glob("*/*/c.*"))
    gathered = set()
    complete = loader.CachePolicy.decoded_caches

    class RecordingDevice(LateDevice):
        def gather(self, tensors, indices):
            gathered.update(group.name for group in tensors)
            return super().gather(tensors, indices)

    def removing(policy, split, groups):
        caches = complete(policy, split, groups)
        for chunk in chunks[:removed]:
            chunk.unlink()
        return caches

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader.CachePolicy, "decoded_caches", removing)
        found, *_ = batches_of(train, RecordingDevice, None, (0, 1), **options)
    assert_same(found, expected)
    assert chunks
    assert gathered == {"cached", "plain", "row_id"}


def test_device_blocks_stay_within_pool_slots(train):
    """A pool that has to grow is replaced by a larger one, and nothing is pending after each iteration."""
    options = {"batch_size": 600, "streams": 1, "prefetch_size": 1, "seed": 3, "columns": NAMES}
    expected, *_ = batches_of(train, None, None, (0, 1), **options)
    sizes = []

    class CountingDevice(LateDevice):
        def mirror(self, arrays):
            sizes.append(len(next(iter(arrays.values()))))
            return super().mirror(arrays)

    found, *_ = batches_of(train, CountingDevice, None, (0, 1), **options)
    assert_same(found, expected)
    assert sizes[-1] > sizes[0]
    assert not LateDevice.instances[-1].stream.pending()


def test_epochs_share_stream_without_pending_work(train):
    before = len(LateDevice.instances)
    with transferred_by(LateDevice):
        made = train.loader(48, columns=["plain", "many"])
        with cuda(on_stream=torch.cuda.stream, current=0):
            for _ in range(3):
                assert len([batch["many"].sum() for batch in made]) == len(made)
            iterator = iter(made)
            next(iterator)
            iterator.close()
            assert len(LateDevice.instances) == before + 1
        with cuda(on_stream=torch.cuda.stream, current=1):
            next(iter(made))
            assert len(LateDevice.instances) == before + 2
    assert not any(device.stream.pending() for device in LateDevice.instances[before:])
