"""Commands that show or change a dataset."""

from __future__ import annotations

import json
import re
import shutil

import pytest

import daskprep as dp

# -- showing a dataset


def test_inspect_shows_splits_vocabularies_and_missing_rates(call, files):
    ended = call("inspect", files / "rows.dp")
    dataset = dp.open_dataset(files / "rows.dp")
    assert re.search(r"^train +210 ", ended.out, re.MULTILINE)
    assert f"{dataset.vocabulary('city').tokens[1].as_py()!r}" in ended.out
    learned = dataset.learned["price"]
    assert f"{learned.missing} ({100 * learned.missing / learned.rows:.1f} %)" in ended.out


def test_inspect_json_is_valid(call, files):
    inspected = json.loads(call("inspect", files / "rows.dp", "--json").out)
    dataset = dp.open_dataset(files / "rows.dp")
    price, city = dataset.learned["price"], dataset.vocabulary("city")
    assert inspected["splits"] == {"train": 210, "validation": 30, "test": 60}
    assert inspected["features"]["price"]["missing_rate"] == price.missing / price.rows > 0.05
    assert inspected["features"]["price"]["learned"]["mean"] == price.mean
    assert inspected["vocabularies"]["city"]["size"] == len(city)
    assert [one["token"] for one in inspected["vocabularies"]["city"]["head"]] == city.tokens.to_pylist()
    assert inspected["outputs"]["demand"] == {"dtype": "float32", "shape": [4]}


def test_inspect_html_writes_the_report(call, files, tmp_path):
    ended = call("inspect", files / "rows.dp", "--html", tmp_path / "a.html")
    assert ended == (0, "", f"wrote {tmp_path}/a.html\n")
    assert (tmp_path / "a.html").read_text() == dp.open_dataset(files / "rows.dp").report().html


def test_verify_lists_damage_that_repair_fixes(call, files, tmp_path, tree):
    path = tmp_path / "a.dp"
    shutil.copytree(files / "rows.dp", path)
    assert call("verify", path).status == 0
    damaged = next(path.glob("*/train/table/*.parquet"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    ended = call("verify", path)
    assert ended.status == 1
    assert ended.out.startswith(damaged.relative_to(path).as_posix())
    ended.check_line(f"daskprep repair {path}")
    ended = call("repair", path, "--trusted")
    assert ended.status == 0
    assert ended.out.startswith(f"repaired {damaged.relative_to(path).as_posix()}, which ")
    assert re.search(r"^1 repaired: \d+ files verified$", ended.out, re.MULTILINE)
    assert tree(path) == tree(files / "rows.dp")
    assert call("repair", path, "-q", "--trusted") == (0, "", "")
    assert call("repair", path, "--trusted").out.startswith("nothing repaired: ")


def test_extra_files_are_neither_damage_nor_removed(call, files, tmp_path):
    path = tmp_path / "my rows.dp"
    shutil.copytree(files / "rows.dp", path)
    (path / "README.md").touch()
    assert call("verify", path).status == 0
    next(path.glob("*/train/table/*.parquet")).unlink()
    call("decode", path).check_line("write them again with daskprep repair")
    call("verify", path).check_line(f"daskprep repair '{path}' DATA")
    assert call("repair", path, "--trusted").status == 0
    assert (path / "README.md").exists()


@pytest.mark.parametrize("width", [60, 100])
def test_tables_fit_the_terminal_and_are_complete_in_a_pipe(call, files, monkeypatch, width):
    whole = call("inspect", files / "rows.dp").out
    assert max(map(len, whole.splitlines())) > 100
    monkeypatch.setenv("COLUMNS", str(width))
    narrow = call("inspect", files / "rows.dp", terminal="stdout").out.split("\n\n")[1]
    assert 0 < max(map(len, narrow.splitlines()[2:])) <= width
    assert "vocab" in narrow


# -- images


def test_cache_decodes_the_media_of_loaders(call, photos):
    cache = dp.open_dataset(photos, trusted=True)["train"].cache("photo")
    assert not cache.complete
    assert call("cache", photos, "-q", "--trusted") == (0, "", "")
    assert cache.complete
    assert call("cache", photos, "--clear").status == 0
    assert cache.present() == []


def test_cache_of_a_dataset_without_media_fails(call, files):
    ended = call("cache", files / "rows.dp")
    assert ended.status == 1
    ended.check_line("no images or audio")


def test_decode_writes_paths_of_images(call, photos):
    rows = json.loads(call("decode", photos, "--format", "json", "--rows", 2).out)
    assert [row["photo"] for row in rows] == ["0.png", "1.png"]


# -- demo


def test_demo_prints_a_batch_and_reproducible_commands(call, tmp_path, tree):
    ended = call("demo", tmp_path / "demo")
    assert ended.status == 0, ended.error
    assert re.search(r"^price +float32 +\(64,\)$", ended.out, re.MULTILINE)
    [command] = re.findall(r"^\$ daskprep (preprocess .*)$", ended.out, re.MULTILINE)
    before = tree(tmp_path / "demo")
    assert call(*command.split()).status == 0
    assert tree(tmp_path / "demo") == before
    [command] = re.findall(r"^\$ daskprep (decode .*)$", ended.out, re.MULTILINE)
    assert call(*command.split()).out in ended.out
    call("demo", tmp_path / "demo").check_line("is not empty")


def test_demo_removes_its_temporary_files(call, temporary):
    assert call("demo").status == 0
    assert list(temporary.iterdir()) == []


def test_check_prints_findings_and_exits_with_1(call, files, tmp_path, rows):
    new = rows(300)
    new.to_csv(tmp_path / "same.csv", index=False)
    new.assign(price=new["price"] * 1_000).to_csv(tmp_path / "other.csv", index=False)
    same = call("check", files / "rows.dp", tmp_path / "same.csv")
    assert (same.status, same.out.splitlines()[0]) == (0, "0 findings in 300 rows")
    dp.Preprocessor.from_dataset(str(files / "rows.dp")).save(tmp_path / "prep.json")
    other = call("check", tmp_path / "prep.json", tmp_path / "other.csv", "--json", "--partitions", 2)
    assert other.status == 1
    assert {one["feature"] for one in json.loads(other.out)["findings"]} == {"price"}
    assert call("check", tmp_path / "prep.json", tmp_path / "none.csv").status == 2


def test_report_writes_the_page_next_to_the_dataset(call, files, tmp_path, monkeypatch):
    page = dp.open_dataset(files / "rows.dp").report().html
    assert call("report", files / "rows.dp", "-o", tmp_path / "a.html") == (0, "", f"wrote {tmp_path}/a.html\n")
    monkeypatch.chdir(files)
    assert call("report", "rows.dp/") == (0, "", "wrote rows.html\n")
    assert (tmp_path / "a.html").read_text() == (files / "rows.html").read_text() == page
    ended = call("report", "s3://bucket/rows.dp")
    assert ended.status == 2
    ended.check_line("use -o FILE")


def test_decode_prints_ten_rows_on_a_terminal(call, files):
    train = dp.open_dataset(files / "rows.dp")["train"]
    ended = call("decode", files / "rows.dp", "--column", "sold", terminal="stdout")
    assert len(ended.out.splitlines()) == 11
    assert ended.error == f"10 of {len(train)} rows: --rows {len(train)} prints all of them\n"
    ended = call("decode", files / "rows.dp", "--column", "sold", "--rows", 12, terminal="stdout")
    assert len(ended.out.splitlines()) == 13


@pytest.mark.parametrize("name", ["val", "Valid", "dev", "validation"])
def test_decode_accepts_split_aliases(call, files, name):
    ended = call("decode", files / "rows.dp", "--split", name, "--column", "sold")
    assert len(ended.out.splitlines()) == 1 + len(dp.open_dataset(files / "rows.dp")["validation"])


def test_other_files_and_unsupported_formats_fail(call, files, tmp_path):
    for command in ("inspect", "decode", "report", "verify"):
        ended = call(command, files / "rows.csv")
        assert ended.status == 1
        ended.check_line("rows.csv is a file, not a dataset", f"daskprep infer {files}/rows.csv")
    ended = call("decode", files / "rows.dp", "-o", tmp_path / "a.xlsx")
    assert ended.status == 2
    ended.check_line(".xlsx files cannot be written")
    assert list(tmp_path.iterdir()) == []
