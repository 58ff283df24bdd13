"""The files of a release agree with one another."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

import daskprep

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA_NAMES = {"dask[dataframe,distributed]": "dask", "soundfile": "pysoundfile", "torch": "pytorch"}


def test_versions_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    recipe = (ROOT / "packaging/recipe.yaml").read_text()
    newest = re.search(r"^## \[([\d.]+)\] - ([\d-]+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest.groups() == (PROJECT["version"], str(citation["date-released"]))
    assert PROJECT["version"] == daskprep.__version__ == citation["version"]
    assert f'version: "{PROJECT["version"]}"' in recipe


def test_conda_recipe_needs_what_the_package_needs():
    needed = [re.fullmatch(r"(.*?)(>=.*)", line).groups() for line in PROJECT["dependencies"]]
    wanted = {f"{CONDA_NAMES.get(name, name)} {bound}" for name, bound in needed}
    recipe = (ROOT / "packaging/recipe.yaml").read_text()
    listed = re.findall(r"^    - (\S+ >=[\d.]+)$", recipe.partition("  run:")[2], re.MULTILINE)
    assert set(listed) == wanted


def test_classifiers_and_workflow_name_the_same_versions_of_python():
    named = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)}
    workflow = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())
    assert set(workflow["jobs"]["tests"]["strategy"]["matrix"]["python"]) == named
    assert min(named) == PROJECT["requires-python"].removeprefix(">=")


def test_no_page_installs_the_package_from_an_index():
    """It is not on one yet."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert not [page.name for page in pages if re.search(r"(pip|conda|uv) (install|add) \"?daskprep", page.read_text())]
