"""The notebooks run without errors and warnings, and their stored outputs have no machine paths."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
QUICKEST = "07_scikit_learn_pipelines"
RUNNER = runpy.run_path(str(FOLDER / "run.py"), run_name="runner")
# Machine folders, memory addresses, and durations.
PRIVATE = re.compile(r"/(?:tmp|home|root|Users|usr|var|work)\b|\b0x[0-9a-f]{6,}|127\.0\.0\.1|\b\d+(?:\.\d+)? m?s\b")


def outputs_of(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def kinds_of(notebook):
    return [(output.output_type, sorted(output.get("data", []))) for output in outputs_of(notebook)]


def stream_text(notebook, name):
    return "".join(output.text for output in outputs_of(notebook) if output.get("name") == name)


def text_of(notebook):
    pictureless = [{**output, "data": {**output.get("data", {}), "image/png": ""}} for output in outputs_of(notebook)]
    return repr(pictureless)


def notebook_of(*sources):
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[] if path.stem == QUICKEST else pytest.mark.slow) for path in NOTEBOOKS],
)
def test_notebook_runs_and_reproduces_stored_outputs(path):
    stored, ran = nbformat.read(path, as_version=4), RUNNER["run"](path)

    assert not re.search("Warning|Traceback|Exception", stream_text(ran, "stderr"))
    assert kinds_of(RUNNER["to_store"](ran)) == kinds_of(stored), f"store it again: python notebooks/run.py {path.name}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_notebooks_do_not_contain_machine_paths(path):
    stored = nbformat.read(path, as_version=4)

    assert any("image/png" in output.get("data", {}) for output in outputs_of(stored))
    assert not stream_text(stored, "stderr")
    assert PRIVATE.findall(text_of(stored)) == []
    assert stored == RUNNER["to_store"](nbformat.read(path, as_version=4)), "store it with notebooks/run.py"


def test_notebooks_are_small():
    assert sum(path.stat().st_size for path in NOTEBOOKS) < 1.5e6


def test_warning_in_a_cell_raises(tmp_path):
    nbformat.write(notebook_of("import warnings", "warnings.warn('odd')"), tmp_path / "odd.ipynb")

    with pytest.raises(CellExecutionError, match="odd"):
        RUNNER["run"](tmp_path / "odd.ipynb")


def test_temporary_paths_become_relative(tmp_path):
    source = "import tempfile\nprint(tempfile.mkdtemp() + '/pets.dp')"
    nbformat.write(notebook_of(source), tmp_path / "paths.ipynb")

    assert stream_text(RUNNER["run"](tmp_path / "paths.ipynb"), "stdout") == "pets.dp\n"


def test_stream_outputs_are_merged(tmp_path):
    nbformat.write(notebook_of("print('one', flush=True)\nprint('two', flush=True)"), tmp_path / "parts.ipynb")

    assert kinds_of(RUNNER["run"](tmp_path / "parts.ipynb")) == [("stream", [])]
