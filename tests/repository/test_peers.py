"""The scripts of the alternatives in benchmarks do the same work as daskprep's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


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


@pytest.mark.slow
def test_quality_benchmark_resumes_and_shows_all_rows(tmp_path):
    command = [sys.executable, BENCHMARKS / "quality.py", "--results", tmp_path / "found", "--only", "ids"]
    for tools in ("daskprep,by hand", "daskprep,tabular_pipeline,TableVectorizer"):
        subprocess.run([*command, "run", "--models", "linear", "--tools", tools], check=True)
    lines = [json.loads(line) for line in (tmp_path / "found").read_text().splitlines()]
    assert [line["tool"] for line in lines] == ["daskprep", "by hand", "tabular_pipeline", "TableVectorizer"]
    shown = subprocess.run([*command, "show"], capture_output=True, text=True, check=True).stdout
    assert f"{sum(map(sum, lines[0]['scores'])) / 5:.3f}" in shown.splitlines()[2]
    assert "| linear | 1 |" in shown
