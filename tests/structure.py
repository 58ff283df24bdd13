"""Figures of the structure: lines, the way of a cell, circles of imports, and what usual jobs reach.

    python tests/structure.py

prints a table. Whoever changes the structure puts it into the message of the commit, with the digests of
`tests/sameness.py` and the ratios of `benchmarks/own/against.py`.
"""

from __future__ import annotations

import ast
import itertools
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "daskprep"
TESTS = ROOT / "tests"

EXTENSIONS = {
    "media": "extensions/media/* dataset/loader/augment.py",
    "reports": "extensions/report/* extensions/summary_html.py",
    "command line": "extensions/cli/* __main__.py",
    "inference of types": "extensions/column_types/*",
    "streams": "extensions/streaming/*",
    "mixtures": "dataset/loader/mix.py dataset/loader/mixing.py",
    "packing": "dataset/loader/packing.py",
    "checks of new rows": "extensions/checks.py",
    "growing and deleting": "extensions/growing.py extensions/erasing.py dataset/writing/append.py"
    " dataset/writing/adding.py dataset/writing/deleting.py dataset/writing/redacting.py",
    "training": "extensions/training/* lightning.py nn/*",
    "ONNX": "extensions/onnx.py",
    "predictions": "extensions/predictions.py",
    "Ludwig and YAML": "extensions/ludwig.py extensions/config.py",
    "object stores": "storage/remote_files.py",
    "time series and places": "features/timeseries.py features/history.py features/h3.py rows/h3.py",
    "testing": "testing.py",
}
"""Patterns of the files of each part that is not of the core."""

Edges = dict[str, set[str]]


def extension_of(path: Path) -> str:
    """Return the extension that a file of the package belongs to, or "core"."""
    name = path.relative_to(PACKAGE).as_posix()
    return next(
        (extension for extension, patterns in EXTENSIONS.items() if any(fnmatch(name, p) for p in patterns.split())),
        "core",
    )


def count_lines() -> tuple[int, int]:
    """Return the number of lines of all files, and of those of the core."""
    lines = {path: len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    return sum(lines.values()), sum(count for path, count in lines.items() if extension_of(path) == "core")


def read_imports() -> dict[str, Edges]:
    """Return, for each kind of import, the modules of the package that each module imports.

    Kinds are "eager", "late" (in functions) and "types" (for annotations).
    """
    modules = {_module(path): path for path in PACKAGE.rglob("*.py")}
    edges: dict[str, Edges] = {kind: {name: set() for name in modules} for kind in ("eager", "late", "types")}

    def walk(node: ast.AST, name: str, kind: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                edges[kind][name].update({alias.name for alias in child.names} & set(modules) - {name})
            elif isinstance(child, ast.ImportFrom):
                full = {f"{child.module}.{alias.name}" for alias in child.names}
                edges[kind][name].update((full & set(modules) or {str(child.module)} & set(modules)) - {name})
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                walk(child, name, "types")
            else:
                in_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and kind == "eager"
                walk(child, name, "late" if in_function else kind)

    for name, path in modules.items():
        walk(ast.parse(path.read_text()), name, "eager")
    return edges


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def join_imports(imports: dict[str, Edges]) -> Edges:
    """Return the imports of all kinds, without those of `dataset.methods`, which open what imports it."""
    joined: Edges = {name: set().union(*(edges[name] for edges in imports.values())) for name in imports["eager"]}
    return joined | {"daskprep.dataset.methods": set()}


def find_circles(edges: Edges) -> list[list[str]]:
    """Return groups of modules that import each other, the largest first, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    circles = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(edges[name]):
            if other not in index:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == index[name]:
            start = stack.index(name)
            if len(stack) - start > 1:
                circles.append(sorted(stack[start:]))
            del stack[start:]

    for name in sorted(edges):
        if name not in index:
            visit(name)
    return sorted(circles, key=len, reverse=True)


def ignored_edges() -> int:
    """Return the number of imports that the contracts on layers and circles ignore."""
    import tomllib

    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return len({edge for c in contracts if c["id"] in ("layers", "circles") for edge in c.get("ignore_imports", [])})


def private_names() -> set[str]:
    """Return the names with a leading underscore that the package defines, but for those of IPython and Python."""
    names = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.id if isinstance(node, ast.Name) else node.attr)
    return {name for name in names if name.startswith("_") and not name.endswith("_")}


def ties_of_tests() -> tuple[int, dict[Path, set[str]]]:
    """Return the number of patches in tests, and the private names of the package that each file of tests uses.

    A name counts if it is imported, an attribute, as in `loader._buffers`, the name in a patch, or the end of a path.
    """
    private, patches = private_names(), 0
    ties: dict[Path, set[str]] = {}
    for path in TESTS.rglob("*.py"):
        used: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("daskprep"):
                used |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
                used.add(node.attr)
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".setattr", "patch", "patch.object")):
                patches += 1
                used |= {one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)}
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "._" in node.value:
                used.add(node.value[node.value.rfind("._") + 1 :])
        if used & private:
            ties[path] = used & private
    return patches, ties


class Trace:
    """Functions of the package that run in all threads, in order of the first call of each."""

    def __init__(self) -> None:
        self.calls: dict[Any, str] = {}

    def _record(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event == "call" and code not in self.calls and code.co_filename.startswith(str(PACKAGE)):
            self.calls[code] = Path(code.co_filename).relative_to(PACKAGE).parts[0]

    def run(self, job: Callable[[], object]) -> None:
        threading.setprofile(self._record)
        sys.setprofile(self._record)
        try:
            job()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @property
    def folder_changes(self) -> int:
        """Number of times that the next function lies in another folder."""
        folders = list(self.calls.values())
        return sum(a != b for a, b in itertools.pairwise(folders))


def trace_cell(folder: Path) -> Trace:
    """Return the trace of a column of categories from a CSV file to the first batch."""
    import daskprep as dp
    import daskprep.dataset.loader
    import daskprep.extensions.streaming.stream

    (folder / "cell.csv").write_text("city\n" + "Rome\nOslo\nBern\n\n" * 50)

    def job() -> None:
        dataset = dp.Preprocessor({"city": dp.Category()}).fit_write(
            folder / "cell.csv", folder / "cell.dp", progress=False
        )
        next(iter(dataset["train"].loader(16)))

    trace = Trace()
    trace.run(job)
    return trace


def trace_jobs(folder: Path) -> Trace:
    """Return the trace of eleven usual jobs on six types."""
    import numpy as np
    import pandas as pd

    import daskprep as dp
    from daskprep import serving

    rows, rng = 600, np.random.default_rng(0)
    words = [" ".join(rng.choice(list("abcdef"), 5)) for _ in range(rows)]
    columns: dict[str, Any] = {
        "city": rng.choice(["Rome", "Oslo", "Bern", ""], rows),
        "price": rng.random(rows) * 9,
        "sold": rng.choice(["yes", "no"], rows),
        "when": pd.date_range("2024-01-01", periods=rows, freq="h").astype(str),
        "note": words,
        "tags": [word[:3] for word in words],
    }
    frame = pd.DataFrame(columns)
    frame.to_csv(folder / "a.csv", index=False)
    frame.to_parquet(folder / "a.parquet")
    types = dict(zip(columns, ("category", "number", "binary", "date", "text", "set"), strict=True))
    preprocessor = dp.Preprocessor(types, targets="sold", split=dp.StratifiedSplit("sold"))

    def job() -> None:
        dataset = preprocessor.fit_write(frame, folder / "frame.dp", progress=False)
        list(dataset["train"].loader(64))
        dataset = preprocessor.fit_write(folder / "a.csv", folder / "csv.dp", progress=False)
        preprocessor.write(folder / "a.parquet", folder / "parquet.dp", progress=False)
        dp.infer_features(frame, targets="sold")
        preprocessor.transform(frame)
        preprocessor.save(folder / "state.json")
        serving.load(folder / "state.json").encode({name: values[0] for name, values in columns.items()})
        list(preprocessor.stream(folder / "a.parquet", 64))
        loader = dataset["train"].loader(64)
        next(iter(loader))
        again = dataset["train"].loader(64)
        again.load_state_dict(loader.state_dict())
        list(again)
        dataset.report()
        preprocessor.append({"train": frame.head(50)}, folder / "csv.dp", progress=False)
        dp.open_dataset(folder / "csv.dp", trusted=True).delete([3], part=0)
        preprocessor.check(frame.head(200))

    trace = Trace()
    trace.run(job)
    return trace


def function_lines() -> dict[tuple[str, int], int]:
    """Return the number of lines of each function, by its file and first line."""
    lines = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                lines[str(path), first] = (node.end_lineno or first) - first + 1
    return lines


def main() -> None:
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(ROOT))
    import dask

    dask.config.set(scheduler="synchronous")
    (lines, core_lines), imports = count_lines(), read_imports()
    circles = [len(circle) for circle in find_circles(join_imports(imports))]
    with tempfile.TemporaryDirectory() as name:  # the cell first: later jobs find results of cached functions
        cell, jobs = trace_cell(Path(name)), trace_jobs(Path(name))
    functions = function_lines()
    patches, ties = ties_of_tests()
    reached = sum(functions.get((code.co_filename, code.co_firstlineno), 0) for code in jobs.calls)
    for title, figure in {
        "lines; of the core": f"{lines:,}; {core_lines:,}",
        "a Category cell: functions; changes of the folder": f"{len(cell.calls):,}; {cell.folder_changes}",
        "circles with late imports and those for types, without `dataset.methods`": f"{len(circles)} of {circles} files"
        if circles
        else "0",
        "late imports; for types": f"{_count(imports['late'])}; {_count(imports['types'])}",
        "imports that the contracts ignore": str(ignored_edges()),
        "lines of functions that eleven jobs reach": f"{reached:,} of {sum(functions.values()):,}",
        "patches in tests; files of tests that use private names": f"{patches}; {len(ties)}",
        "entries of the package": str(sum(p.name[0] not in "_." for p in PACKAGE.iterdir())),
    }.items():
        print(f"| {title} | {figure} |")


def _count(edges: Edges) -> int:
    return sum(map(len, edges.values()))


if __name__ == "__main__":
    main()
