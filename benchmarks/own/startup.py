"""CPU seconds of commands and short scripts on 60 rows in fresh processes, and the large packages that they import.

python -m benchmarks.own.startup [--rounds 5]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROWS = "price,city,review,sold\n" + "".join(f"{i}.5,{['Oslo', 'Rome'][i % 2]},calm {i},{i % 2}\n" for i in range(60))
PACKAGES = ("numpy", "pandas", "pyarrow", "dask", "scipy", "sklearn", "zarr", "distributed", "torch")
FIT = "import pandas as pd, daskprep as dp; dp.Preprocessor({'price': 'number'}).fit(pd.read_csv('a.csv'))"
FIRST = "import daskprep as dp; next(iter(dp.open_dataset('a.dp')['train'].loader(8)))"
JOBS = {
    "`import numpy, pandas, pyarrow`": "import numpy, pandas, pyarrow",
    "`import torch`": "import torch",
    "`import daskprep`": "import daskprep",
    "`daskprep --help`": ["--help"],
    "`daskprep infer`": ["infer", "a.csv"],
    "`daskprep inspect`": ["inspect", "a.dp"],
    "`daskprep verify`": ["verify", "a.dp"],
    "`fit` of a frame": FIT,
    "first batch of a loader": FIRST,
}


def code_of(job: str | list[str]) -> str:
    """Return the code of a job, which then prints the packages that it imported to standard error."""
    command = f"from daskprep.extensions.cli import main; assert main({job}) == 0" if isinstance(job, list) else job
    return f"import sys\n{command}\nprint(*({{*{PACKAGES}}} & {{*sys.modules}}), file=sys.stderr)"


def run(job: str | list[str], folder: Path) -> tuple[float, set[str]]:
    """Return the CPU seconds of a job in a fresh process, and the packages that it imported."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code_of(job)], cwd=folder, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(done.stderr)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, set(done.stderr.split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "a.csv").write_text(ROWS)
        run(["preprocess", "a.csv", "-o", "a.dp"], folder)
        results = {title: [run(job, folder) for _ in range(rounds)] for title, job in JOBS.items()}
    print("| job | CPU seconds | imports |\n|---|---|---|")
    for title, found in results.items():
        imported = ", ".join(sorted(found[0][1], key=PACKAGES.index))
        print(f"| {title} | {min(seconds for seconds, _ in found):.2f} | {imported} |")


if __name__ == "__main__":
    main()
