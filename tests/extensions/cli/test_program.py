"""Output of the program before a command runs: help, completion, usage errors."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

import daskprep as dp
from daskprep.extensions.cli import program
from daskprep.extensions.cli.console import messages_as_lines, paths_as_typed

# -- help, version, completion


@pytest.mark.parametrize("command", program.commands)
def test_help_of_every_command_has_examples(call, command):
    ended = call(command, "--help")
    assert ended.status == 0
    assert len(re.findall(rf"daskprep {command} ", ended.out.split("Options:")[0])) >= 2


def test_help_and_completion_import_nothing_heavy(run_process):
    code = (
        "import sys; from daskprep.extensions.cli import main, program\n"
        "for name in program.commands: assert main([name, '--help']) == 0\n"
        "assert main(['--help']) == main(['--completion', 'zsh']) == 0\n"
        "print({'numpy', 'pandas', 'torch', 'dask', 'pyarrow', 'sklearn', 'fsspec', 'yaml'} & set(sys.modules))"
    )
    assert run_process(code=code).out.endswith("\nset()\n")


def test_contents_of_a_dataset_are_shown_without_dask(run_process, tmp_path):
    frame = pd.DataFrame({"price": [1.0, 2.0]})
    dp.Preprocessor({"price": "number"}, split=dp.HashSplit("price")).fit_write(frame, tmp_path / "a.dp")
    code = (
        "import sys; from daskprep.extensions.cli import main\n"
        "assert main(['verify', 'a.dp']) == main(['inspect', 'a.dp']) == main(['inspect', 'a.dp', '--json']) == 0\n"
        "print({'torch', 'dask', 'sklearn'} & set(sys.modules))"
    )
    assert run_process(code=code, cwd=tmp_path).out.endswith("\nset()\n")


def test_unknown_command_suggests_the_closest_one(call):
    call("inferr", "a.csv").check_line("No such command 'inferr'. Did you mean 'infer'? See: daskprep --help")
    call("write", "a.dp").check_line("No such command 'write'. Did you mean 'preprocess'? See: daskprep --help")
    call("inspect", "a.dp", "--htm", "x").check_line("Did you mean '--html'? See: daskprep inspect --help")
    call("infer", "a.csv", "--targets", "x").check_line("'--targets'. Did you mean '--target'? See")
    call("inspect").check_line("Missing argument 'DATASET'. See: daskprep inspect --help")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "listing.dp"], 'no dataset "listing.dp": .* Did you mean "listings.dp"?'),
        (["verify", "x"], 'no dataset "x": '),
        (["decode", "x"], 'no dataset "x": '),
        (["cache", "x"], 'no dataset "x": '),
        (["repair", "x"], 'no dataset "x": '),
        (["infer", "a.csv"], 'no file or folder "a.csv"'),
        (["preprocess", "a.yaml", "listings.dp"], 'no file or folder "a.yaml"'),
        (["preprocess", "auto", "--train", "a.csv", "-o", "x"], 'no file or folder "a.csv"'),
    ],
)
def test_missing_path_fails_before_heavy_imports(run_process, tmp_path, arguments, message):
    (tmp_path / "listings.dp").mkdir()
    code = (
        "import sys; from daskprep.extensions.cli import main\n"
        f"assert main({arguments}) == 1\n"
        "print({'numpy', 'pandas', 'torch', 'dask', 'pyarrow', 'sklearn', 'fsspec', 'yaml'} & set(sys.modules))"
    )
    ended = run_process(code=code, cwd=tmp_path)
    assert ended.out == "set()\n", ended.error
    assert re.match(f"error: {message}", ended.error)


@pytest.mark.parametrize(
    ("is_terminal", "plain", "coloured"), [(True, {}, True), (True, {"NO_COLOR": "1"}, False), (False, {}, False)]
)
def test_errors_are_colored_only_on_terminals(call, monkeypatch, is_terminal, plain, coloured):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in plain.items():
        monkeypatch.setenv(name, value)
    ended = call("inspect", "x", terminal="stderr" if is_terminal else "")
    assert ("\x1b[31m" in ended.error) == coloured


def test_python_m_equals_the_command(run_process):
    assert run_process("--version") == (0, f"daskprep {dp.__version__}\n", "")


def test_no_arguments_print_the_help(call):
    assert call() == call("--help")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_is_printed_for_a_shell(call, shell):
    assert "_DASKPREP_COMPLETE" in call("--completion", shell).out


def test_completion_lists_commands_and_options(run_process):
    environment = {"_DASKPREP_COMPLETE": "zsh_complete", "COMP_WORDS": "daskprep preprocess --dr", "COMP_CWORD": "2"}
    assert "--dry-run" in run_process(env=environment).out


# -- usage errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspekt", "x"], "inspekt"),
        (["inspect", "x", "--jso"], "--json"),
        (["preprocess", "a.yaml"], "DATA"),
        (["preprocess", "a.yaml", "a.csv", "b.csv"], "--dry-run"),
        (["preprocess", "a.yaml", "a.csv", "-o", "x", "--memory", "lots"], '"2GB"'),
        (["preprocess", "a.yaml", "a.csv", "-o", "x", "--workers", "0"], "--workers"),
        (["preprocess", "a.yaml", "a.csv", "-o", "x", "--workers", "1", "--scheduler", "tcp://h:1"], "--scheduler"),
        (["inspect", "x", "--json", "--html", "y"], "not both"),
        (["inspect", "x", "--storage-option", "key"], "KEY=VALUE"),
        (["decode", "x", "--format", "parquet"], "-o FILE"),
        (["decode", "x", "-o", "r.jsonl"], ".jsonl files cannot be written: use .csv, .json or .parquet"),
        (["decode", "x", "-o", "r.yaml"], ".yaml files cannot be written"),
        (["decode", "x", "-o", "r.csv.gz"], ".gz files cannot be written"),
        (["predict", "x", "o.npy", "-o", "r.parquet.gz"], ".gz files cannot be written"),
        (["predict", "x", "o.npy", "--threshold", "2"], "--threshold"),
        (["preprocess", "a.csv", "a.yaml", "-o", "x"], "CONFIG comes first, as in daskprep preprocess a.yaml a.csv"),
        (["preprocess", "auto", "a.yaml", "-o", "x"], "CONFIG comes first, as in daskprep preprocess a.yaml DATA"),
        (["preprocess", "a.csv", "--sample-ratio", "1.5"], "--sample-ratio"),
        (["preprocess", "a.csv", "--sample-size", "0"], "--sample-size"),
    ],
)
def test_usage_error_prints_one_line_and_exits_with_2(call, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.yaml", "a.csv", "b.csv"):
        Path(name).touch()
    ended = call(*arguments)
    assert ended.status == 2
    ended.check_line(message, "--help")
    assert not ended.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--encoding", "latin-0"], 'encoding "latin-0" is unknown'),
        (["--decimal", "comma"], "'comma' is not a decimal mark or thousands separator"),
        (["--thousands", "price=."], "decimal and thousands are both '.'"),
        (["--names", "a,b"], "pass --no-header too"),
        (["--delimiter", "ab"], "--delimiter"),
    ],
)
def test_invalid_options_of_files_exit_with_1(call, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("a,b\n1,2\n")
    ended = call("infer", "a.csv", *arguments)
    assert ended.status == 1
    ended.check_line(message)


def test_invalid_storage_option_is_not_printed(call):
    ended = call("inspect", "x", "--storage-option", "client_kwargs={secret")
    assert ended.status == 2
    ended.check_line("client_kwargs")
    assert "secret" not in ended.error


# -- paths


def test_paths_are_printed_as_typed(call, files, tmp_path, rows, monkeypatch):
    (tmp_path / "sales").mkdir()
    monkeypatch.chdir(tmp_path)
    rows().to_csv("sales/a.csv", index=False)
    for typed in ("sales/a", "./sales/a", "sales/../sales/a", f"{tmp_path}/sales/a"):
        written = call("preprocess", files / "rows.yaml", f"{typed}.csv", "--overwrite")
        shown = call("inspect", f"{typed}.dp/")
        assert written.out.startswith(f"Dataset at {typed}.dp: ")
        assert shown.out.startswith(f"Dataset at {typed}.dp: ")
        call("decode", f"{typed}.dp", "--column", "cit").check_line(f'no feature "cit" in {typed}.dp. Did you mean')
    monkeypatch.chdir("sales")
    assert call("inspect", "../sales/a.dp").out.startswith("Dataset at ../sales/a.dp: ")
    assert call("inspect", "a.dp").out.startswith("Dataset at a.dp: ")
    monkeypatch.chdir("a.dp")
    assert call("inspect", ".").out.startswith("Dataset at .: ")


def test_only_whole_paths_are_printed_as_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.csv").touch()
    with messages_as_lines(["a.csv", "--output=b.dp", "s3://bucket/c.csv"]):
        text = f"{tmp_path}/a.csv, {tmp_path}/b.dp. {tmp_path}-old/a.csv, /old{tmp_path}/a.csv, {tmp_path}"
        assert paths_as_typed(text) == f"a.csv, b.dp. {tmp_path}-old/a.csv, /old{tmp_path}/a.csv, ."
    assert paths_as_typed("s3://bucket/c.csv") == "s3://bucket/c.csv"
