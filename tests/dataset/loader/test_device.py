"""Windows gathered in memory on their way to a GPU, with a device that copies only when it is waited for."""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import pytest
import torch

from daskprep.dataset.loader.groups import DeviceTransfer, Group
from tests.dataset.loader.devices import cuda, transferred_by


class FakeEvent:
    """Requested copies, made as late as possible: in `synchronize`."""

    def __init__(self):
        self.copies = []

    def synchronize(self):
        for target, source in self.copies:
            target.copy_(source)
        self.copies = None


class FakeMover(DeviceTransfer):
    """Transfer to a device that uses CPU memory."""

    made = 0

    def __init__(self, _, gathers=False):
        super().__init__(torch.device("cuda"))
        self.events = []

    @property
    def make_array(self):
        return self.pinned

    def pinned(self, group, rows):
        FakeMover.made += 1
        return group.empty(rows)

    def _copy(self, source, stream):
        copied = {group: torch.full_like(tensor, 99) for group, tensor in source.items()}
        event = FakeEvent()
        event.copies = [(copied[group], tensor) for group, tensor in source.items()]
        self.events.append(event)
        return copied, event


@pytest.fixture
def fake_device():
    FakeMover.made = 0
    with transferred_by(FakeMover), cuda():
        yield


@pytest.mark.parametrize("options", [{}, {"prefetch_size": 0}, {"rank": 1, "world_size": 2}, {"drop_last": True}])
def test_device_batches_equal_cpu_batches(train, options):
    with transferred_by(FakeMover), cuda():
        on_device = [
            {name: values.clone() for name, values in batch.items()}
            for batch in train.loader(48, device="cuda", row_ids=True, **options)
        ]
    plain = list(train.loader(48, row_ids=True, **options))
    assert len(on_device) == len(plain) > 0
    for one, other in zip(on_device, plain, strict=True):
        assert list(one) == list(other)
        assert all(torch.equal(one[name], other[name]) for name in other)


@pytest.mark.usefixtures("fake_device")
def test_pinned_memory_is_reused_after_copy(train):
    batches = iter(train.loader(16, device="cuda", columns=["price"]))
    found = torch.cat([batch["price"].clone() for batch in batches])
    np.testing.assert_array_equal(np.sort(found.numpy()), np.sort(train.read(["price"])["price"]))
    assert FakeMover.made <= 6


@pytest.mark.usefixtures("fake_device")
def test_state_excludes_batches_copied_ahead(train):
    loader_ = train.loader(48, device="cuda")
    batches = iter(loader_)
    for number in range(1, 5):
        next(batches)
        assert loader_.state_dict()["rows_given"] == 48 * number
    loader_.audit()


def test_copies_use_own_cuda_stream(train, monkeypatch):
    """Check the order of CUDA calls, all of which are replaced."""
    recorded = []

    class Stream:
        def __init__(self, device):
            assert device.type == "cuda"

        def record_event(self):
            recorded.append("event")
            return FakeEvent()

    class Transfer(DeviceTransfer):
        make_array = staticmethod(Group.empty)

        def __init__(self, device, *, gathers):
            assert gathers
            super().__init__(device)

    @contextlib.contextmanager
    def on_stream(stream):
        recorded.append("stream")
        yield

    plain = torch.Tensor.to
    monkeypatch.setattr(
        torch.Tensor, "to", lambda tensor, *where, **how: recorded.append(how) or plain(tensor.clone(), tensor.dtype)
    )
    with transferred_by(Transfer), cuda(Stream, on_stream):
        batches = train.loader(480, device="cuda", columns=["price"], expand=False)
        found = [batch["price"].clone() for batch in batches]
    assert len(torch.cat(found)) == 1003
    assert recorded[:3] == ["stream", {"non_blocking": True}, "event"]


def test_device_without_streams_receives_copies(train):
    batches = list(train.loader(48, device="meta", columns=["city", "review_word"]))
    assert sum(len(batch["city"]) for batch in batches) == 1003
    assert {values.device.type for batch in batches for values in batch.values()} == {"meta"}


def test_device_cpu(train):
    batch = next(iter(train.loader(48, device="cpu", columns=["price"])))
    assert batch["price"].device.type == "cpu"


def test_threads_use_gpu_of_loader(train):
    threads = []

    class ThirdGPU(FakeMover):
        @property
        def begin_thread(self):
            begin = DeviceTransfer(torch.device("cuda:3")).begin_thread
            return lambda: (threads.append(threading.current_thread().name), begin())

    with transferred_by(ThirdGPU), cuda() as used:
        assert len(list(train.loader(48, device="cuda", threads=3)))
    assert set(map(str, used)) == {"cuda:3"}
    assert len(used) == len(threads)
    assert all(name.startswith("daskprep-load") for name in threads)


def test_threads_use_current_gpu_by_default():
    with cuda():
        assert DeviceTransfer(None).begin_thread is None
    with cuda(current=2) as used:
        for device_ in (None, torch.device("cuda")):
            DeviceTransfer(device_).begin_thread()
    assert used == [2, 2]
