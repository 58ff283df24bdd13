"""The scripts of the alternatives in benchmarks do the same work as daskprep's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def run(script, *options):
    command = [sys.executable, BENCHMARKS / script, "--rows", "2000", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_polars_peer_has_the_same_vocabularies_and_ids(tmp_path):
    pytest.importorskip("polars")
    data = ["--data", tmp_path / "data"]
    run("peers/gen.py", *data)
    ours, theirs = (
        json.loads(run(script, *data, "--out", tmp_path / "out"))["digest"]
        for script in ("ours_prep.py", "peers/peer_polars.py")
    )
    # Sets of daskprep have each item once; polars keeps duplicates within a row.
    for digest in (ours, theirs):
        assert digest["tags"].pop("sum") > digest["tags"].pop("real") > 0
    assert theirs == ours
    assert list(ours) == ["c10", "c1k", "c100k", "c2m", "tags", "text"]
