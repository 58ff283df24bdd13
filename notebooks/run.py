"""Run notebooks in temporary folders and store their outputs; all by default."""

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
# The kernel itself raises the warning that is ignored, whenever it stops.
STRICT = "import warnings; warnings.simplefilter('error'); " + (
    "warnings.filterwarnings("
    "'ignore', category=PendingDeprecationWarning, module='ipykernel'); "
    "warnings.filterwarnings('ignore', 'information is lost in')"
)


def run(path: Path) -> NotebookNode:
    """Return a notebook with outputs; an error or a warning in a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        # Sockets in the folder: another kernel that starts now may take a port.
        transport = Config(KernelManager={"transport": "ipc", "ip": f"{folder}/kernel"})
        client = NotebookClient(
            notebook,
            timeout=600,
            kernel_name="python3",
            config=transport,
            record_timing=False,
            coalesce_streams=True,  # on a busy machine, a line comes in parts
            extra_arguments=[f"--IPKernelApp.exec_lines={STRICT}"],
            resources={"metadata": {"path": folder}},
        )
        places = {
            "TMPDIR": folder,
            "PYTHONPATH": str(HERE.parent),
            "IPYTHONDIR": folder,
            "TQDM_DISABLE": "1",  # bars would differ from run to run
        }
        client.execute(env=os.environ | places)
        return _without_folder(notebook, folder)


def to_store(notebook: NotebookNode) -> NotebookNode:
    """Remove what differs between runs and machines, such as progress bars."""
    for place, cell in enumerate(notebook.cells):
        cell.id = f"cell-{place}"
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [
                output for output in cell.outputs if output.get("name") != "stderr"
            ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return notebook


def _without_folder(notebook: NotebookNode, folder: str) -> NotebookNode:
    """Make paths relative to the temporary folder that a cell has created."""
    text = re.sub(rf"{re.escape(folder)}/\w+/", "", nbformat.writes(notebook))
    return nbformat.reads(text, as_version=4)


def main(names: list[str]) -> None:
    """Run each notebook, and store it with its outputs."""
    for path in map(Path, names) if names else sorted(HERE.glob("*.ipynb")):
        began = time.perf_counter()
        nbformat.write(to_store(run(path)), path)
        print(
            f"{path.name}: {time.perf_counter() - began:.1f} s",
            f"{path.stat().st_size / 1e3:,.0f} KB",
        )


if __name__ == "__main__":
    main(sys.argv[1:])
