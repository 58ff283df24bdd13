"""Requests that hang are tried once more, and others for a minute."""

from __future__ import annotations

from itertools import count

import pytest

from daskprep.storage import retries


@pytest.mark.parametrize(("seconds", "calls"), [(61.0, 2), (10.0, 7), (0.1, retries.ATTEMPTS)])
def test_hanging_request_is_retried(monkeypatch, seconds, calls):
    clock, made = [0.0], count(1)

    def hang():
        clock[0] += seconds
        next(made)
        raise TimeoutError

    monkeypatch.setattr(retries.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(retries.time, "sleep", lambda _: None)
    with pytest.raises(TimeoutError) as error:
        retries.call_with_retries(hang, retries.ATTEMPTS)
    assert error.value.attempts == calls == next(made) - 1
