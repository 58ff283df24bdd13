"""Build the wheel and the sdist, and try both in fresh environments: `make release`.

The wheel is installed with the newest versions of what it needs, and the sdist with the lowest that pyproject.toml
allows. torch keeps the version of constraints.txt in both, which has a small CPU build. Arguments are interpreters,
such as python3.13, to try the wheel with.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SMOKE = Path(__file__).with_name("smoke.py")
SOURCES = re.compile(r"daskprep/.*\.(py|css)|daskprep/py\.typed")
PROJECT_FILES = {"LICENSE", "PKG-INFO", "README.md", "CHANGELOG.md", "CITATION.cff", "pyproject.toml", "setup.cfg"}


def build(folder: Path) -> tuple[Path, Path]:
    """Return the wheel and the sdist, which are built in a folder; the wheel is built from the sdist."""
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True, capture_output=True)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def check_contents(wheel: Path, sdist: Path) -> None:
    """Raise SystemExit if one holds other files than the package and its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        packed = [name for name in archive.namelist() if ".dist-info/" not in name]
    with tarfile.open(sdist) as tar:
        unpacked = [name.partition("/")[2] for name in tar.getnames() if tar.getmember(name).isfile()]
    unpacked = [name for name in unpacked if not name.startswith("daskprep.egg-info/")]
    unknown = [name for name in {*packed, *unpacked} - PROJECT_FILES if not SOURCES.fullmatch(name)]
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "daskprep").rglob("*.py")}
    if unknown or modules - set(packed) or modules - set(unpacked):
        raise SystemExit(f"needless: {unknown}; missing: {sorted(modules - set(packed) | modules - set(unpacked))}")


def lowest_versions() -> str:
    """Return constraints with the lowest version of each package that daskprep needs."""
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    bounds = [re.fullmatch(r"([\w-]+)(?:\[.*\])?>=([\d.]+)", line) for line in needed]
    return "".join(f"{found[1]}=={found[2]}\n" for found in bounds if found and found[1] != "torch")


def smoke_test(package: Path, folder: Path, constraints: str = "", python: str = sys.executable) -> None:
    """Install a wheel or an sdist in a new environment, and run the smoke test there."""
    folder.mkdir()
    (torch,) = re.findall(r"^torch==.*$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    (folder / "constraints.txt").write_text(f"{constraints}{torch}\n")
    subprocess.run([python, "-m", "venv", folder / "environment"], check=True)
    installed = folder / "environment/bin/python"
    install = [installed, "-m", "pip", "install", "-qq", "--constraint", folder / "constraints.txt"]
    subprocess.run([*install, torch], check=True)
    subprocess.run([*install, package], check=True)
    # The lowest versions read what the test itself writes, but are refused for data of others.
    subprocess.run([installed, SMOKE], check=True, cwd=folder, env=os.environ | {"DASKPREP_UNSAFE_VERSIONS": "pyarrow"})


def main() -> None:
    """Build, check and try the packages."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel, sdist = build(folder)
        check_contents(wheel, sdist)
        smoke_test(sdist, folder / "lowest", lowest_versions())
        for number, python in enumerate([sys.executable, *sys.argv[1:]]):
            smoke_test(wheel, folder / str(number), python=python)


if __name__ == "__main__":
    main()
