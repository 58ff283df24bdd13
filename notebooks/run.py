"""Run notebooks in temporary folders, and store what they show; without names, all of this folder."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from traitlets.config import Config

HERE = Path(__file__).parent
# The kernel itself gives the one that is left out, whenever it stops.
STRICT = "import warnings; warnings.simplefilter('error'); " + (
    "warnings.filterwarnings('ignore', category=PendingDeprecationWarning, module='ipykernel')"
)


def run(path: Path) -> NotebookNode:
    """Return a notebook as it is after a run; an error or a warning in a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        # Sockets in a folder of their own: ports may be taken by another kernel that starts at the same time.
        transport = Config(KernelManager={"transport": "ipc", "ip": f"{folder}/kernel"})
        client = NotebookClient(
            notebook,
            timeout=600,
            kernel_name="python3",
            config=transport,
            record_timing=False,
            extra_arguments=[f"--IPKernelApp.exec_lines={STRICT}"],
            resources={"metadata": {"path": folder}},
        )
        places = {"TMPDIR": folder, "PYTHONPATH": str(HERE.parent), "IPYTHONDIR": folder}
        client.execute(env=os.environ | places)
        return _without_folder(notebook, folder)


def to_store(notebook: NotebookNode) -> NotebookNode:
    """Take out what differs between runs and machines: progress bars, and what Python it was."""
    for place, cell in enumerate(notebook.cells):
        cell.id = f"cell-{place}"
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return notebook


def _without_folder(notebook: NotebookNode, folder: str) -> NotebookNode:
    """Make the paths relative that lie in a folder which a cell made in `folder`."""
    text = re.sub(rf"{re.escape(folder)}/\w+/", "", nbformat.writes(notebook))
    return nbformat.reads(text, as_version=4)


def main(names: list[str]) -> None:
    """Run each notebook, and store it with its outputs."""
    for path in map(Path, names) if names else sorted(HERE.glob("*.ipynb")):
        began = time.perf_counter()
        nbformat.write(to_store(run(path)), path)
        print(f"{path.name}: {time.perf_counter() - began:.1f} s, {path.stat().st_size / 1e3:,.0f} KB")


if __name__ == "__main__":
    main(sys.argv[1:])
