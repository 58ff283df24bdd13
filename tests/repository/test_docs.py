"""The documentation and the examples work: every Python block in them runs."""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import inspect
import io
import os
import re
import runpy
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

import daskprep
from daskprep.columns.tokenizers import TOKENIZERS
from daskprep.features import FEATURES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = {"reference", "notebooks"}
PAGES = [
    ROOT / "README.md",
    ROOT / "AGENTS.md",
    *(page for page in sorted(DOCS.rglob("*.md")) if page.parent.name not in GENERATED),
]
SLOW_EXAMPLES = {"larger_than_memory", "same_bytes", "demo"}
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
YAML = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CONSOLE = re.compile(r"^```console\n((?:\$ daskprep (?:.*\\\n)*.*\n)+)```$", re.MULTILINE)
REFERENCE_NAME = re.compile(r"^   ([A-Za-z]\w*)$", re.MULTILINE)
PARAMETERS = re.compile(r"^Parameters\n-{10}\n(.*?)(?=^\S[^\n]*\n-{3,}$|\Z)", re.MULTILINE | re.DOTALL)
OPENED = {"Dataset", "FoldedDataset"}  # by `open_dataset`, not by its name


def runnable(text: str) -> str:
    """Convert the commands of ```console blocks to Python."""
    return CONSOLE.sub(lambda block: f"```python\n{_calls(block[1])}```", text)


def _calls(commands: str) -> str:
    lines = commands.replace("\\\n", "").splitlines()
    return "".join(
        f"from daskprep.extensions.cli import main; assert main({shlex.split(line)[2:]}) == 0\n" for line in lines
    )


def python_blocks(text: str) -> list[tuple[int, str, str | None]]:
    """Return (line number, source, text below) of each block, without blocks opened with ```python no-run."""
    return [(text.count("\n", 0, match.start(1)), match[1], match[2]) for match in BLOCK.finditer(text)]


def run_blocks(text: str, filename: str) -> dict[str, object]:
    """Run the blocks in one namespace and check their output; tracebacks show the page and its line."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for line, source, below in python_blocks(text):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile("\n" * line + source, filename, "exec"), namespace)
        if printed.getvalue() and below is not None:
            assert _lines(printed.getvalue()) == _lines(below), f"{filename}:{line}"
    return namespace


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


@pytest.fixture
def registries() -> Iterator[None]:
    """Remove entries that a page adds to registries and the environment, for the sake of other tests."""
    registries: list[dict[str, Any]] = [FEATURES, TOKENIZERS]
    kept = [dict(registry) for registry in registries]
    with mock.patch.dict(os.environ):
        yield
    for registry, before in zip(registries, kept, strict=True):
        registry.clear()
        registry.update(before)


@pytest.mark.usefixtures("registries")
# Lightning 2.6 with torch 2.13.
@pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_python_block_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = runnable(page.read_text(encoding="utf-8"))
    assert "```console" not in text, "a block with more than commands of daskprep"
    run_blocks(text, str(page))
    assert text.count("\n```python") == len(python_blocks(text)) + text.count("\n```python no-run\n")


def test_readme_program_is_short():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    program = next(source for _, source, _ in python_blocks(text) if "daskprep.nn" in source)
    assert "flats.csv" in program
    assert "prep.predict(" in program
    assert len([line for line in program.splitlines() if line]) < 20


def test_every_yaml_block_is_valid():
    blocks = [block for page in PAGES for block in YAML.findall(page.read_text(encoding="utf-8"))]
    assert blocks
    assert all(isinstance(yaml.safe_load(block), dict) for block in blocks)


@pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning")  # of Lightning
@pytest.mark.parametrize(
    "example",
    [
        pytest.param(
            path,
            id=f"{path.parent.name}/{path.name}",
            marks=pytest.mark.slow if {path.parent.name, path.stem} & SLOW_EXAMPLES else [],
        )
        for path in EXAMPLES
    ],
)
def test_example_runs_and_prints(example, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    smaller = ["8"] if example.parent.name == "larger_than_memory" else []
    monkeypatch.setattr("sys.argv", [str(example), *smaller])
    runpy.run_path(str(example), run_name="__main__")
    printed = capsys.readouterr().out.splitlines()
    assert printed
    if example.name == "same_bytes.py":
        digests = [line.split()[-1] for line in printed if not line.endswith("ray is not installed")]
        assert (len(set(digests[:-4])), len(set(digests[-4:]))) == (1, 1)
        assert len(printed) == 9
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


def test_blocks_share_names_and_no_run_is_skipped():
    page = "```python\na = 1\n```\ntext\n```python no-run\n1 / 0\n```\n```python\nb = a + 1\n```\n"
    assert run_blocks(page, "page.md")["b"] == 2


def test_block_output_must_match_text_below():
    page = "```python\nprint(1)\n```\n\n```text\n1\n```\n"
    run_blocks(page, "page.md")
    with pytest.raises(AssertionError, match="page.md:1"):
        run_blocks(page.replace("\n1\n", "\n2\n"), "page.md")


def test_console_blocks_run(capsys):
    run_blocks(runnable("```console\n$ daskprep inspect \\\n  --help\n```\n"), "page.md")
    with pytest.raises(AssertionError):
        run_blocks(runnable("```console\n$ daskprep inspect 'no such.dp'\n```\n"), "page.md")
    assert "no such.dp" in capsys.readouterr().err


def test_block_error_has_the_line_of_the_page():
    with pytest.raises(ZeroDivisionError) as caught:
        run_blocks("# title\n\n```python\nx = 1\n1 / 0\n```\n", "page.md")
    assert caught.traceback[-1].lineno + 1 == 5


def test_install_page_lists_every_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    page = (DOCS / "install.md").read_text(encoding="utf-8")
    assert [extra for extra in extras if f"`{extra}`" not in page] == []


def test_troubleshooting_messages_exist_in_the_package():
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    listed = page.partition("## More errors")[2].partition("## Warnings of Dask")[0]
    cells = [line.split(" | ")[0].strip("| ") for line in listed.splitlines() if line.startswith("| ")]
    messages = [cell for cell in cells if cell != "message"]
    texts = {text for path in (ROOT / "daskprep").rglob("*.py") for text in literals(path)}
    assert len(messages) > 40
    for message in messages:
        for words in filter(None, (part.strip(" ,;:") for part in message.split("..."))):
            assert any(words in text for text in texts), (message, words)


def literals(path: Path) -> Iterator[str]:
    """Yield the strings of a module; adjacent ones are joined, up to formatted values."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def test_every_public_name_is_in_the_reference_once():
    names = REFERENCE_NAME.findall((ROOT / "docs" / "reference.md").read_text(encoding="utf-8"))
    assert sorted(names) == sorted(daskprep.__all__)


def documented_parameters(thing: Any) -> list[str] | None:
    """Return the documented parameter names, sorted; None without a section of parameters.

    ``**options`` that are documented elsewhere are all parameters of their TypedDict.
    """
    section = PARAMETERS.search(inspect.getdoc(thing) or "")
    if section is None:
        return None
    heads = re.findall(r"^(\S.*?)(?: : .*)?$", section[1], re.MULTILINE)
    names = re.findall(r"\w+", " ".join(heads))
    if "**options" in heads:
        code = (thing.__init__ if inspect.isclass(thing) else thing).__code__
        names += set(inspect.signature(thing).parameters) - {
            *code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        }
        names.remove("options")
    return sorted(names)


def parameters_of(thing: Any) -> list[str]:
    """Return the names of the parameters of a class or function, sorted."""
    return sorted(name for name in inspect.signature(thing).parameters if name != "self")


@pytest.mark.parametrize("name", sorted(set(daskprep.__all__) - OPENED))
def test_public_names_document_all_parameters(name):
    thing = getattr(daskprep, name)
    assert (documented_parameters(thing) or []) == parameters_of(thing)


def test_methods_that_document_parameters_document_all():
    things = [getattr(daskprep, name) for name in daskprep.__all__]
    classes = {base for thing in things if isinstance(thing, type) for base in thing.__mro__}
    ours = [one for one in classes if one.__module__.startswith("daskprep.")]
    members = [member for one in ours for member in vars(one).values()]
    by_function = {one: documented_parameters(one) for one in members if inspect.isfunction(one)}
    assert len([names for names in by_function.values() if names]) >= 5
    named = {one: names for one, names in by_function.items() if names is not None}
    assert not [one.__qualname__ for one, names in named.items() if names != parameters_of(one)]


@pytest.mark.parametrize(("given", "names"), [("a, b : int\n    c : no", ["a", "b"]), ("*x\n    d", ["x"])])
def test_documented_parses_parameter_names(given, names):
    def function() -> None: ...

    function.__doc__ = f"Do.\n\nParameters\n----------\n{given}\n\nExamples\n--------\n>>> 1"
    assert documented_parameters(function) == names


EXAMPLED = [path for path in sorted((ROOT / "daskprep").rglob("*.py")) if ">>>" in path.read_text()]


@pytest.mark.parametrize("path", EXAMPLED, ids=lambda path: path.stem)
def test_docstring_examples_pass(path: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert not doctest.testmod(module).failed
