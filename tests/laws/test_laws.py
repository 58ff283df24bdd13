"""Random programs keep the laws of the package; as a script: `python -m tests.laws.test_laws --steps 1000 --seed 1`."""

from __future__ import annotations

import argparse
import os

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.laws.laws import TALLY
from tests.laws.programs import Programs

STEPS = 12  # of a program
PER_SEED = 10  # programs: after the first ten of a seed, Hypothesis draws mostly variants of a few
# Shares of calls that may be refused: `add` to samples and several parts, graphs for most types, cells of a new kind.
REFUSED_SHARES = {"add": 0.8, "to_onnx": 0.7, "encode": 0.4, "encode lazily": 0.5, "join": 0.6, "resume": 0.5}
OTHER_SHARE = 0.4


def run_programs(count: int, seed: int, *, shrink: bool = True) -> None:
    """Run random programs; the same seed draws the same ones."""
    for number, first in enumerate(range(0, count, PER_SEED)):
        chosen = settings(
            max_examples=min(PER_SEED, count - first),
            stateful_step_count=STEPS,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink][: 1 + shrink],
            print_blob=False,
            report_multiple_bugs=False,
        )
        run_state_machine_as_test(hypothesis.seed(seed * 1_000_000 + number)(Programs), settings=chosen)


def check_refusals() -> None:
    """Check that operations are not refused so often that their laws are kept by refusing."""
    shares = {name: TALLY.share_refused(name) for name, calls in TALLY.calls.items() if calls >= 20}
    often = {name: share for name, share in shares.items() if share > REFUSED_SHARES.get(name, OTHER_SHARE)}
    assert not often, f"{often}\n{TALLY.text()}"


def test_programs_keep_laws() -> None:
    run_programs(10, seed=0)
    check_refusals()


@pytest.mark.slow
@pytest.mark.timeout(14_400)
def test_many_programs_keep_laws() -> None:
    run_programs(8_500 if os.environ.get("DASKPREP_THOROUGH") else 20, seed=1)
    print(TALLY.text())
    check_refusals()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run random programs and print a tally.")
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-shrink", action="store_true", help="report the first failing program as it is")
    arguments = parser.parse_args()
    try:
        run_programs(max(1, arguments.steps // STEPS), arguments.seed, shrink=not arguments.no_shrink)
    finally:
        print(TALLY.text())
