"""From files to a dataset: inference, plans, written datasets, and errors for invalid data."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

import daskprep as dp

# -- invalid data


def test_missing_path_prints_one_line_and_exits_with_1(run_process, files, tmp_path):
    config, data = files / "rows.yaml", files / "rows.csv"
    commands = [
        f"{name} none.dp" for name in ("inspect", "inspect --html a.html", "decode", "verify", "repair", "cache")
    ]
    commands += ["infer none.csv", "preprocess auto none.csv -o a.dp", f"preprocess {config} none.csv -o a.dp"]
    commands += [f"preprocess none.yaml {data} -o a.dp", f"demo {data}/none"]
    code = "import sys; from daskprep.extensions.cli import main\nfor line in sys.argv[1:]: print(main(line.split()))"
    ended = run_process(*commands, code=code, cwd=tmp_path)
    lines = ended.error.splitlines()
    assert ended.out.split() == ["1"] * len(commands) == ["1"] * len(lines)
    assert all(re.match("error: .*none", line) for line in lines), lines
    assert list(tmp_path.iterdir()) == []


def test_unknown_configuration_key_suggests_the_closest_one(call, files, tmp_path, config):
    (tmp_path / "a.yaml").write_text(config.replace("normalization:", "normalisation:"))
    ended = call("preprocess", tmp_path / "a.yaml", files / "rows.csv", "-o", tmp_path / "a.dp")
    assert ended.status == 1
    ended.check_line("input_features[0].preprocessing.normalisation", 'Did you mean "normalization"?')


def test_dropped_rows_are_counted(call, tmp_path):
    pd.DataFrame({"x": ["a", "b"] * 20, "sold": ["yes", "no", "?", None] * 10}).to_csv(tmp_path / "a.csv", index=False)
    written = call("preprocess", "auto", tmp_path / "a.csv", "--target", "sold", "-o", tmp_path / "a.dp")
    assert "\n20 rows left out; Dataset.rejects() in Python lists them" in written.out


def test_json_configuration_after_the_data_suggests_the_order(call, files, tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(yaml.safe_load(config)))
    command = ["preprocess", files / "rows.csv", tmp_path / "config.json", "--skip-save"]
    call(*command).check_line(f"as in daskprep preprocess {tmp_path}/config.json {files}/rows.csv")
    assert call("preprocess", tmp_path / "config.json", files / "rows.csv", "--skip-save", "-q").status == 0


def test_configuration_file_needs_no_suffix(call, files, tmp_path, config):
    (tmp_path / "config").write_text(config)
    assert call("preprocess", tmp_path / "config", files / "rows.csv", "--skip-save").status == 0
    ended = call("preprocess", tmp_path / "nowhere", files / "rows.csv", "--skip-save")
    ended.check_line("nowhere")


def test_missing_column_suggests_the_closest_name(call, files, tmp_path, config):
    (tmp_path / "a.yaml").write_text(config.replace("name: city", "name: cities"))
    ended = call("preprocess", tmp_path / "a.yaml", files / "rows.csv", "-o", tmp_path / "a.dp")
    assert ended.status == 1
    ended.check_line('"cities"', 'Did you mean "city"?')


def test_control_characters_in_messages_are_escaped(call, files, tmp_path):
    (tmp_path / "a.yaml").write_text('input_features: [{name: "x\\n\\e[2Jy", type: number}]')
    ended = call("preprocess", tmp_path / "a.yaml", files / "rows.csv", "-o", tmp_path / "a.dp")
    assert ended.status == 1
    ended.check_line("\\x1b[2J")


@pytest.mark.filterwarnings("default")
def test_warning_is_one_line_without_a_code_location(call, tmp_path):
    (tmp_path / "a.csv").write_text("price\n1\n2\ncheap\n")
    (tmp_path / "a.yaml").write_text("input_features: [{name: price, type: number}]\npreprocessing: {split: null}")
    ended = call("preprocess", tmp_path / "a.yaml", tmp_path / "a.csv", "--skip-save")
    assert ended.status == 0
    ended.check_line("price", "cheap")
    assert ".py" not in ended.error


def test_unreachable_scheduler_prints_one_line(call, files, sizes):
    sizes(connect_seconds=0.5)
    where = "tcp://127.0.0.1:9"
    ended = call("preprocess", files / "rows.yaml", files / "rows.csv", "--skip-save", "--scheduler", where)
    assert ended.status == 1
    ended.check_line(where)


# -- progress


@pytest.mark.parametrize(
    ("command", "stages"),
    [
        (["infer", "rows.csv"], ["guessing types"]),
        (["preprocess", "rows.yaml", "rows.csv", "--skip-save"], ["learning"]),
        (["preprocess", "auto", "rows.csv", "--skip-save"], ["guessing types", "learning"]),
    ],
)
def test_progress_is_shown_on_terminals_unless_quiet(call, files, tmp_path, monkeypatch, command, stages):
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    quiet = call(*command, "-q")
    shown = call(*command, terminal="stderr")
    assert shown.out.startswith(quiet.out)
    assert not quiet.error
    assert all(f"{stage}: 100%" in shown.error for stage in stages), shown.error


# -- infer and preprocess


def make_adult(path: Path) -> None:
    """Write rows like the census: numbers, categories, a space after each comma, "?" for missing cells."""
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        file.write("age,workclass,education_num,hours_per_week,native_country,income\n")
        for _ in range(400):
            work, place = rng.choice(["Private", "State-gov", "?"]), rng.choice(["United-States", "Cuba"])
            numbers = rng.integers(17, 90), rng.integers(1, 16), rng.integers(1, 99)
            income = "<=50K" if rng.random() < 0.7 else ">50K"
            file.write(f"{numbers[0]}, {work}, {numbers[1]}, {numbers[2]}, {place}, {income}\n")


def test_inferred_configuration_is_valid(call, tmp_path):
    make_adult(tmp_path / "adult.csv")
    inferred = call("infer", tmp_path / "adult.csv", "--target", "income")
    assert inferred.status == 0, inferred.error
    (tmp_path / "adult.yaml").write_text(inferred.out)
    assert call("preprocess", tmp_path / "adult.yaml", tmp_path / "adult.csv", "-o", tmp_path / "a.dp").status == 0
    dataset = dp.open_dataset(tmp_path / "a.dp")
    kinds = {name: feature.kind for name, feature in dataset.features.items()}
    assert kinds["age"] == "number"
    assert kinds["native_country"] in ("category", "binary")
    assert dataset.features["income"].missing_value_strategy == "drop_row"
    assert len(dataset["train"]) == 280


def test_inferred_configuration_has_a_reason_per_column(call, files):
    lines = call("infer", files / "rows.csv").out.splitlines()
    names = [number for number, line in enumerate(lines) if line.startswith("  - name:")]
    assert len(names) == len(yaml.safe_load("\n".join(lines))["input_features"]) >= 5
    assert all(lines[number - 1].startswith("  # ") for number in names)


def test_inferred_configuration_accepts_any_name(call, tmp_path):
    names = ["yes", "12", "a: #b", "line\u2028break", "tab\there", "é"]
    pd.DataFrame({name: np.arange(50) * 1.5 + i for i, name in enumerate(names)}).to_parquet(tmp_path / "a.parquet")
    (tmp_path / "a.yaml").write_text(call("infer", tmp_path / "a.parquet").out)
    assert list(dp.Preprocessor.from_config(tmp_path / "a.yaml").features) == names


def test_auto_and_standard_input_equal_the_inferred_configuration(call, files, tmp_path, tree):
    inferred = call("infer", files / "rows.csv").out
    assert call("preprocess", "-", files / "rows.csv", "-o", tmp_path / "a.dp", stdin=inferred).status == 0
    assert call("preprocess", "auto", files / "rows.csv", "-o", tmp_path / "b.dp").status == 0
    assert tree(tmp_path / "a.dp") == tree(tmp_path / "b.dp")


def test_preprocess_prints_the_dataset_unless_quiet(call, files, tmp_path):
    command = ["preprocess", files / "rows.yaml", files / "rows.csv", "-o", tmp_path / "a.dp"]
    assert call(*command).out == f"{dp.open_dataset(tmp_path / 'a.dp')!r}\n"
    assert call(*command).out.startswith("unchanged: ")
    assert call(*command, "-q") == (0, "", "")


@pytest.mark.parametrize("name", ["rows.csv", "rows.v2.csv.gz", "rows.CSV"])
def test_default_output_is_next_to_the_file(call, files, tmp_path, rows, name):
    rows().to_csv(tmp_path / name, index=False)
    ended = call("preprocess", files / "rows.yaml", tmp_path / name)
    path = tmp_path / f"{name[:-7] if name.endswith('.gz') else name[:-4]}.dp"
    assert ended == (0, f"{dp.open_dataset(path)!r}\n", "")
    assert str(path) in ended.out
    assert f"writes   {path}" in call("preprocess", files / "rows.yaml", tmp_path / name, "--dry-run").out


def test_default_output_of_a_folder_is_next_to_it(call, files, tmp_path):
    (tmp_path / "sales.2024").mkdir()
    shutil.copy(files / "rows.csv", tmp_path / "sales.2024")
    assert call("preprocess", files / "rows.yaml", f"{tmp_path}/sales.2024/").status == 0
    assert dp.open_dataset(tmp_path / "sales.2024.dp").splits


@pytest.mark.parametrize("output", [[], ["-o", "a.dp"]])
def test_dataset_of_another_file_is_not_replaced_without_overwrite(call, files, tmp_path, rows, output, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows().to_csv("a.csv", index=False)
    rows().to_parquet("a.parquet")
    command = ["preprocess", files / "rows.yaml", "-q"]
    assert call(*command, "a.csv", *output).status == 0
    before = dp.open_dataset("a.dp").version
    ended = call(*command, "a.parquet", *output)
    assert ended.status == 1
    assert 'it was written from "a.csv", not from "a.parquet"' in ended.error
    assert "Write to another path, or replace it with --overwrite" in ended.error
    assert dp.open_dataset("a.dp").version == before
    rows()[1:].to_csv("a.csv", index=False)
    assert "changed since it was written" in call(*command, "a.csv", *output).error
    for name in ("a.csv", "a.parquet"):
        assert call(*command, name, *output, "--overwrite").status == 0
        assert dp.open_dataset("a.dp").version != before


@pytest.mark.parametrize("data", [("a.csv", "b.csv"), ("*.csv",), ("..",)])
def test_several_inputs_require_an_output(call, files, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.csv", "b.csv"):
        Path(name).touch()
    ended = call("preprocess", files / "rows.yaml", *data)
    assert ended.status == 2
    assert "use -o DATASET, since DATA" in ended.error


def test_overwrite_writes_a_new_version(call, files, tmp_path):
    command = ["preprocess", files / "rows.yaml", files / "rows.csv", "-o", tmp_path / "a.dp", "-q"]
    versions = []
    for more in ([], [], ["--overwrite"]):
        assert call(*command, *more).status == 0
        versions.append(dp.open_dataset(tmp_path / "a.dp").version)
    assert versions[0] == versions[1] != versions[2]


def test_shuffle_permutes_rows(call, files, tmp_path):
    command = ["preprocess", files / "rows.yaml", files / "rows.csv", "-o", tmp_path / "a.dp", "--shuffle"]
    call(*command, "--seed", 3)
    numbers = dp.open_dataset(tmp_path / "a.dp")["train"].read("row_id")["row_id"].tolist()
    assert numbers != sorted(numbers) == dp.open_dataset(files / "rows.dp")["train"].read("row_id")["row_id"].tolist()


def test_several_files_are_one_dataset(call, files, tmp_path):
    for name in "ab":
        shutil.copy(files / "rows.csv", tmp_path / f"{name}.csv")
    call("preprocess", files / "rows.yaml", tmp_path / "a.csv", tmp_path / "b.csv", "-o", tmp_path / "a.dp")
    assert sum(map(len, dp.open_dataset(tmp_path / "a.dp").splits.values())) == 600


def test_skip_save_prints_the_learned_state_and_writes_nothing(call, files, tmp_path):
    ended = call("preprocess", files / "rows.yaml", files / "rows.csv", "-o", tmp_path / "a.dp", "--skip-save")
    learned = dp.open_dataset(files / "rows.dp").learned["price"]
    assert f"mean {learned.mean:.6g}" in ended.out
    assert list(tmp_path.iterdir()) == []


def test_columns_read_only_in_fit_are_accepted(call, tmp_path):
    frame = pd.DataFrame({"city": list("abcab") * 8, "price": range(40), "user": range(40)})
    frame.to_csv(tmp_path / "a.csv", index=False)
    feature = dp.TargetEncoding(target="price", fold_group="user")
    prep = dp.Preprocessor({"city": feature})
    (tmp_path / "a.json").write_text(json.dumps(prep.to_config()))
    assert call("preprocess", tmp_path / "a.json", tmp_path / "a.csv", "-o", tmp_path / "a.dp").status == 0
    assert dp.open_dataset(tmp_path / "a.dp").learned["city"] == prep.fit(frame).learned_["city"]
    assert call("inspect", tmp_path / "a.dp").status == 0


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_dry_run_shows_rows_bytes_and_memory(call, files, tmp_path, kind, rows):
    data = files / "rows.csv"
    if kind == "parquet":
        data = tmp_path / "rows.parquet"
        rows().to_parquet(data)
    ended = call("preprocess", files / "rows.yaml", data, "-o", tmp_path / "a.dp", "--dry-run")
    assert ended.status == 0
    assert re.search(r"^rows +(about )?300\b", ended.out, re.MULTILINE)
    row_bytes = dp.open_dataset(files / "rows.dp").layout.row_bytes
    assert f"{row_bytes:,} bytes a row" in ended.out
    assert re.search(r"^memory +up to \d+\.\d MB", ended.out, re.MULTILINE)
    assert not (tmp_path / "a.dp").exists()


def test_file_options_describe_unusual_files(call, files, tmp_path, tree, rows):
    text = rows().to_csv(index=False, header=False, sep=";", decimal=",", na_rep="-")
    (tmp_path / "odd.txt").write_text(f"a title\n# more\n{text}", encoding="utf-16")
    how = [
        "--format",
        "csv",
        "--encoding",
        "utf-16",
        "--delimiter",
        ";",
        "--no-header",
        "--skip-rows",
        1,
        "--comment",
        "#",
    ]
    how += ["--names", ",".join(rows().columns), "--decimal", "price=,", "--null-value", "price=-", "--partitions", 3]
    assert call("preprocess", files / "rows.yaml", tmp_path / "odd.txt", "-o", tmp_path / "a.dp", *how).status == 0
    assert call("decode", tmp_path / "a.dp").out == call("decode", files / "rows.dp").out
    next((tmp_path / "a.dp").rglob("part-00000.parquet")).write_bytes(b"")
    assert call("repair", tmp_path / "a.dp", tmp_path / "odd.txt", *how).status == 0
    next((tmp_path / "a.dp").rglob("part-00000.parquet")).write_bytes(b"")
    assert call("repair", tmp_path / "a.dp", "--trusted").status == 0
    assert yaml.safe_load(call("infer", tmp_path / "odd.txt", *how).out)["input_features"][0]["name"] == "price"


def test_file_options_apply_to_all_or_single_columns(call, tmp_path):
    (tmp_path / "a.csv").write_text("a;b\n" + "".join(f"{i},5;-\n{i},25;x\n" for i in range(20)))
    ended = call("infer", tmp_path / "a.csv", "--decimal", ",", "--null-value", "-", "--quote", "")
    assert yaml.safe_load(ended.out)["input_features"][0]["type"] == "number"
    ended = call("infer", tmp_path / "a.csv", "--decimal", ",", "--decimal", "a=,")
    assert ended.status == 2
    ended.check_line("use it for all columns, or as COLUMN=TEXT")


def test_partitions_do_not_change_bytes(call, files, tmp_path, tree):
    for number in (1, 5):
        command = ["preprocess", files / "rows.yaml", files / "rows.csv", "-o", tmp_path / f"{number}.dp", "-q"]
        assert call(*command, "--partitions", number, "--partition-bytes", "1MB").status == 0
        assert tree(tmp_path / f"{number}.dp") == tree(files / "rows.dp")


def test_insufficient_memory_fails(call, files, tmp_path):
    ended = call("preprocess", files / "rows.yaml", files / "rows.csv", "-o", tmp_path / "a.dp", "--memory", "50MB")
    assert ended.status == 1
    ended.check_line("is not enough")


def test_storage_options_apply_to_data_and_dataset(call, files, tmp_path, s3, rows):
    options = []
    for key, value in s3.storage_options.items():
        options += ["--storage-option", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
    rows().to_csv(f"{s3.url}/cli/rows.csv", index=False, storage_options=s3.storage_options)
    data, path = f"{s3.url}/cli/rows.csv", f"{s3.url}/cli/rows.dp"
    assert call("preprocess", files / "rows.yaml", data, "-o", path, *options).status == 0
    decoded = call("decode", path, "--rows", 5, *options)
    assert decoded.out == call("decode", files / "rows.dp", "--rows", 5).out
    assert call("verify", path, *options).status == 0


@pytest.mark.slow
@pytest.mark.cluster
def test_workers_write_the_same_bytes(call, files, tmp_path, tree):
    command = ["preprocess", files / "rows.yaml", files / "rows.csv", "-o", tmp_path / "a.dp", "--workers", 2]
    with socket.socket() as taken:
        with suppress(OSError):  # the port of Dask's dashboard: another process may use it
            taken.bind(("127.0.0.1", 8787))
            taken.listen()
        ended = call(*command)
    assert ended.status == 0, ended.error
    assert not ended.error
    assert tree(tmp_path / "a.dp") == tree(files / "rows.dp")


# -- separate splits, and samples


@pytest.fixture
def separate_files(files, tmp_path):
    rows = pd.read_csv(files / "rows.csv")
    rows[:200].to_csv(tmp_path / "train.csv", index=False)
    rows[200:].to_parquet(tmp_path / "test.parquet")
    return ["--train", tmp_path / "train.csv", "--test", tmp_path / "test.parquet"]


def test_files_of_separate_splits_are_written_and_repaired(call, files, separate_files, tmp_path):
    ended = call("preprocess", files / "rows.yaml", *separate_files, "-o", tmp_path / "a.dp", "-q")
    assert ended.status == 0, ended.error
    dataset = dp.open_dataset(tmp_path / "a.dp")
    assert {name: len(split) for name, split in dataset.splits.items()} == {"train": 200, "test": 100}
    next((tmp_path / "a.dp").rglob("test/table/part-00000.parquet")).write_bytes(b"")
    assert call("repair", tmp_path / "a.dp", *separate_files).status == 0
    assert dataset.damaged() == []


def test_auto_accepts_separate_splits_and_a_sample(call, separate_files, tmp_path):
    options = ["--target", "sold", "--sample-ratio", 0.5, "-o", tmp_path / "a.dp", "-q"]
    assert call("preprocess", "auto", *separate_files, *options).status == 0
    dataset = dp.open_dataset(tmp_path / "a.dp")
    assert sum(map(len, dataset.splits.values())) == 150
    assert "split" not in dataset.features


def test_dry_run_counts_the_sample(call, files, separate_files):
    ended = call("preprocess", files / "rows.yaml", *separate_files, "--dry-run", "--sample-size", 120)
    assert ended.status == 0, ended.error
    assert re.search("rows     120;", ended.out)
    assert "split: FixedSplit(column='split')" in ended.out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["rows.csv", "--test", "rows.csv"], "use either DATA or --test"),
        ([], "pass DATA, or CONFIG and then DATA or the files of each split"),
        (["rows.csv", "--sample-size", "5", "--sample-ratio", "0.5"], "use either --sample-ratio or --sample-size"),
    ],
)
def test_conflicting_or_missing_data_is_a_usage_error(call, files, more, message):
    ended = call("preprocess", files / "rows.yaml", *more, "--skip-save")
    assert ended.status == 2
    ended.check_line(message)


def test_infer_style_sets_encodings(call, files):
    styled = call("infer", files / "rows.csv", "--style", "trees").out
    plain = call("infer", files / "rows.csv").out
    assert "for trees: " in styled
    assert "for trees: " not in plain
    assert yaml.safe_load(styled)["input_features"] != yaml.safe_load(plain)["input_features"]


def test_auto_accepts_a_style(call, files):
    done = call("preprocess", "auto", files / "rows.csv", "--target", "sold", "--style", "trees", "--skip-save")
    assert not done.status
    assert "transform_to='ordinal'" in done.out
    call("preprocess", files / "rows.yaml", files / "rows.csv", "--style", "trees", "--skip-save").check_line("--style")


def test_inferred_positive_label_is_printed(call, tmp_path):
    labels = ["fraud"] * 3 + ["ok"] * 37
    pd.DataFrame({"x": range(40), "z": labels}).to_csv(tmp_path / "rows.csv", index=False)
    ended = call("preprocess", "auto", str(tmp_path / "rows.csv"), "--target", "z", "--skip-save", "-q")
    ended.check_line(
        "target \"z\": 'fraud' is taken as the positive label", "the configuration that daskprep infer writes"
    )
    config = call("infer", str(tmp_path / "rows.csv"), "--target", "z").out
    assert "positive: fraud" in config


def test_data_without_a_configuration_uses_auto(call, files, tmp_path):
    line = "types are inferred, as with auto"
    for first in ([], ["auto"]):
        ended = call("preprocess", *first, files / "rows.csv", "-o", tmp_path / f"{len(first)}.dp")
        assert ended.status == 0, ended.error
        assert (line in ended.error) == (not first)
    one, two = (dp.open_dataset(tmp_path / f"{number}.dp").digest for number in (0, 1))
    assert one == two
    (tmp_path / "more.csv").write_bytes((files / "rows.csv").read_bytes())
    ended = call("preprocess", files / "rows.csv", tmp_path / "more.csv", "-o", tmp_path / "twice.dp", "-q")
    assert (ended.status, ended.error) == (0, "")
    assert sum(map(len, dp.open_dataset(tmp_path / "twice.dp").splits.values())) == 600
    ended = call("preprocess", "--train", files / "rows.csv", "-o", tmp_path / "train.dp")
    assert (ended.status, line in ended.error) == (0, True)
    ended = call("preprocess", files / "rows.csv", "--train", files / "rows.csv", "-o", tmp_path / "both.dp")
    assert ended.status == 2
    ended.check_line("use either DATA, which")
    assert not (tmp_path / "both.dp").exists()


def test_empty_standard_input_fails(call, files, tmp_path):
    ended = call("preprocess", "-", files / "rows.csv", "-o", tmp_path / "a.dp", stdin="")
    ended.check_line("standard input is empty")


@pytest.mark.slow
def test_closed_standard_output_is_not_an_error(run_process, files, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    code = "import os, sys; from daskprep.extensions.cli import main; os.dup2(int(sys.argv[1]), 1)"
    code += "; sys.exit(main(sys.argv[2:]))"
    command = ("preprocess", files / "rows.yaml", files / "rows.csv", "-o", tmp_path / "a.dp")
    ended = run_process(writer, *command, code=code, pass_fds=[writer])
    os.close(writer)
    lines = [line for line in ended.error.splitlines() if "information is lost in" not in line]
    assert (ended.status, lines) == (0, [])
    assert dp.open_dataset(tmp_path / "a.dp").damaged() == []
