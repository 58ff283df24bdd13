"""The scripts of the alternatives in benchmarks do the same work as daskprep's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


def run(script, *options):
    command = [sys.executable, "-m", f"benchmarks.peers.{script}", "--rows", "2000", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_polars_peer_has_the_same_vocabularies_and_ids(tmp_path):
    pytest.importorskip("polars")
    data = ["--data", tmp_path / "data"]
    run("gen", *data)
    ours, theirs = (
        json.loads(run(script, *data, "--out", tmp_path / "out"))["digest"] for script in ("ours_prep", "peer_polars")
    )
    # Sets of daskprep have each item once; polars keeps duplicates within a row.
    for digest in (ours, theirs):
        assert digest["tags"].pop("sum") > digest["tags"].pop("real") > 0
    assert theirs == ours
    assert list(ours) == ["c10", "c1k", "c100k", "c2m", "tags", "text"]


@pytest.mark.slow
def test_quality_benchmark_resumes_and_shows_all_rows(tmp_path):
    command = [sys.executable, "-m", "benchmarks.peers.quality", "--results", tmp_path / "found", "--only", "ids"]
    for tools in ("daskprep,by hand", "daskprep,tabular_pipeline,TableVectorizer"):
        subprocess.run([*command, "run", "--models", "linear", "--tools", tools], check=True)
    lines = [json.loads(line) for line in (tmp_path / "found").read_text().splitlines()]
    assert [line["tool"] for line in lines] == ["daskprep", "by hand", "tabular_pipeline", "TableVectorizer"]
    shown = subprocess.run([*command, "show"], capture_output=True, text=True, check=True).stdout
    assert f"{sum(map(sum, lines[0]['scores'])) / 5:.3f}" in shown.splitlines()[2]
    assert "| linear | 1 |" in shown


def test_page_lists_every_benchmark():
    root = Path(__file__).parents[2] / "benchmarks"
    scripts = [p for p in root.glob("*/**/*.py") if ".venv" not in p.parts and "__pycache__" not in p.parts]
    listed = (root / "README.md").read_text()
    assert [p.name for p in scripts if f"`{p.relative_to(root).as_posix().partition('/')[2]}`" not in listed] == []
    assert {p.relative_to(root).parts[0] for p in scripts} == {"own", "peers", "machines"}
