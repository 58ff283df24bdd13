"""Each part that is no part of the core can be taken out of the package, and all of them together."""

from __future__ import annotations

import ast
import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest

from tests.structure import EXTENSIONS, PACKAGE, extension_of, find_circles, join_imports, read_imports

CALLS = {
    "media": "dp.Image()",
    "reports": "dataset.report()",
    "command line": "__import__('daskprep.extensions.cli')",
    "inference of types": "dp.infer_features(frame)",
    "streams": "prep.stream(frame)",
    "mixtures": "dp.Mix",
    "packing": "dataset['train'].loader(pack=1)",
    "checks of new rows": "prep.check(frame)",
    "growing and deleting": "prep.append(frame, folder / 'a.dp')",
    "training": "dp.Manager",
    "ONNX": "prep.to_onnx(folder / 'a.onnx')",
    "predictions": "prep.predictions([0.5])",
    "Ludwig and YAML": "prep.to_config()",
    "object stores": "dp.open_dataset('memory://a.dp')",
    "time series and places": "dp.Timeseries()",
    "testing": "__import__('daskprep.testing')",
}
"""For each part, a call that needs it; the names are those of `core_jobs`."""


def test_every_extension_is_taken_out():
    assert CALLS.keys() == EXTENSIONS.keys()
    extensions = {extension_of(path) for path in PACKAGE.rglob("*.py")}
    assert extensions == {*EXTENSIONS, "core"}


def test_no_module_imports_what_imports_it():
    assert find_circles(join_imports(read_imports())) == []


@pytest.mark.slow
@pytest.mark.parametrize("extension", [*EXTENSIONS, "all"])
def test_core_works_without(extension, tmp_path):
    copy = tmp_path / "daskprep"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    chosen = {*EXTENSIONS} if extension == "all" else {extension}
    removed = [one for one in PACKAGE.rglob("*.py") if extension_of(one) in chosen]
    for path in removed:
        (copy / path.relative_to(PACKAGE)).unlink()
    for folder in sorted((one for one in copy.rglob("*") if one.is_dir()), reverse=True):
        if not any(folder.rglob("*.py")):
            shutil.rmtree(folder)
    calls = list(CALLS.values()) if extension == "all" else [CALLS[extension]]
    # Without the finder of an editable installation, which would find the modules that were taken out.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *site.getsitepackages()])}
    command = [sys.executable, "-S", str(Path(__file__).parents[1] / "core_jobs.py"), *calls]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    *lacking, last = done.stdout.splitlines() or [""]
    assert last == "passed", done.stderr
    assert len(lacking) == len(calls), (lacking, done.stderr)
    modules = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in removed]
    for name in lacking:
        assert any(one.removesuffix(".__init__") == name or one.startswith(f"{name}.") for one in modules), name


def test_package_has_few_entries_and_each_folder_begins_with_what_goes_in_and_out():
    entries = [one for one in PACKAGE.iterdir() if one.name[0] != "_" and one.name != "py.typed"]
    assert len(entries) <= 14
    for path in PACKAGE.glob("**/__init__.py"):
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert path.parent == PACKAGE or ("In: " in text and "Out: " in text), path
