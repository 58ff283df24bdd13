"""Files of paths, globs, folders and URLs, and their names in messages."""

from __future__ import annotations

import os
import pickle
import re
import socket
from pathlib import Path
from unittest import mock

import fsspec
import pyarrow as pa
import pytest

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError
from daskprep.sources import FileSource, read_files
from daskprep.sources.locations import redact_url


def csv(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"a\n{Path(name).stem}\n")
    return folder


def test_file_name_may_be_only_a_suffix(tmp_path: Path) -> None:
    csv(tmp_path, ".csv")
    assert cells(read_files(tmp_path / ".csv")) == [".csv"]


def cells(source: FileSource, column: str = "a") -> list[str | None]:
    return [cell for i in range(source.npartitions) for cell in source.read(i, [column])[column].to_pylist()]


def test_folders_and_globs_sort_naturally(tmp_path: Path) -> None:
    csv(tmp_path, "part-10.csv", "part-2.csv", "part-1.csv", "deep/part-3.csv")
    assert cells(read_files(tmp_path)) == ["part-3", "part-1", "part-2", "part-10"]
    assert cells(read_files(str(tmp_path / "part-*.csv"))) == ["part-1", "part-2", "part-10"]
    assert cells(read_files(str(tmp_path / "**" / "part-[23].csv"))) == ["part-3", "part-2"]
    assert cells(read_files(tmp_path.as_uri() + "/part-?.csv")) == ["part-1", "part-2"]


def test_list_of_paths_preserves_order(tmp_path: Path) -> None:
    csv(tmp_path, "b.csv", "a.csv", "more/c.csv", "more/d.csv")
    assert cells(read_files([tmp_path / "b.csv", tmp_path / "more", str(tmp_path / "a.*")])) == [
        "b",
        "c",
        "d",
        "a",
    ]


@pytest.mark.parametrize("second", ["a.csv", "./a.csv", "../{}/a.csv", "*.csv", "."])
def test_duplicate_paths_raise(second: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    csv(tmp_path, "a.csv", "b.csv")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"/a\.csv: the paths contain it twice, .* remove one"):
        read_files(["a.csv", second.format(tmp_path.name)])
    assert cells(read_files(["a.csv", "b.csv"])) == ["a", "b"]


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("location", ["data", "data/*", "data/**/*.json*", "memory"])
def test_nested_datasets_are_skipped(
    location: str, killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = f"memory://{tmp_path.name}{killed}" if location == "memory" else "data"
    with fsspec.open(f"{rows}/a.jsonl", "w") as file:
        file.write('{"a": 1}\n{"a": 2}\n')
    source = dp.read_files(rows if location == "memory" else location)
    prep = dp.Preprocessor({"a": "number"})
    prep.fit_write(source, f"{rows}/deep/out.dp")
    if killed:
        filesystem, root = fsspec.core.url_to_fs(f"{rows}/deep/out.dp")
        [version] = [one for one in filesystem.ls(root, detail=False) if not one.endswith("manifest.json")]
        filesystem.rm(f"{root}/manifest.json")
        filesystem.makedirs(f"{version}/receipts")
        filesystem.pipe(f"{version}/receipts/0.json", b"{}")
    second = dp.read_files(rows if location == "memory" else location)
    assert second.fingerprint() == source.fingerprint()


def test_reading_dataset_folder_raises(tmp_path: Path) -> None:
    csv(tmp_path, "a.csv")
    dp.Preprocessor({"a": "category"}).fit_write(tmp_path / "a.csv", tmp_path / "a.dp")
    with pytest.raises(ConfigError, match=r"a\.dp. is a dataset of encoded rows: read it with open_dataset"):
        read_files(tmp_path / "a.dp")


def test_folder_named_like_version_is_read(tmp_path: Path) -> None:
    csv(tmp_path, "0123456789abcdef/train/a.csv", "b.csv")
    assert cells(read_files(tmp_path)) == ["a", "b"]


def test_hidden_and_unknown_files_are_skipped(tmp_path: Path) -> None:
    csv(tmp_path, "a.csv", "_SUCCESS.csv", ".b.csv", "README.md", "_temporary/c.csv", ".git/d.csv")
    assert cells(read_files(tmp_path)) == ["a"]
    assert cells(read_files(str(tmp_path / "*.md"), format="csv")) == ["README"]


def test_path_with_glob_characters(tmp_path: Path) -> None:
    csv(tmp_path, "data[1].csv", "data1.csv")
    assert cells(read_files(tmp_path / "data[1].csv")) == ["data[1]"]


def test_home_and_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    csv(tmp_path, "a.csv")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    source = read_files("~/a.csv")
    assert source.fingerprint() == read_files("a.csv").fingerprint()
    assert source.fingerprint()[0][0] == str(tmp_path / "a.csv")


def test_hive_folders_become_columns(tmp_path: Path) -> None:
    csv(
        tmp_path,
        "city=Rome/year=2020/x.csv",
        "city=S%C3%A3o Paulo/year=2021/y.csv",
        "city=__HIVE_DEFAULT_PARTITION__/year=1/z.csv",
    )
    for path in (tmp_path, str(tmp_path / "*" / "*" / "*.csv"), str(tmp_path / "city=*")):
        source = read_files(path, partition_bytes=1)
        table = pa.concat_tables([source.read(i, ["city", "a", "year"]) for i in range(3)])
        assert table.schema.types == [source.schema.field(name).type for name in table.column_names]
        found = sorted(map(tuple, (row.values() for row in table.to_pylist())), key=str)
        assert found == [("Rome", "x", "2020"), ("São Paulo", "y", "2021"), (None, "z", "1")]
        assert sorted(cells(source, "year")) == ["1", "2020", "2021"]
    assert read_files(tmp_path / "city=Rome/year=2020/x.csv").columns == ["a"]


def test_files_inside_and_outside_hive_folders_raise(tmp_path: Path) -> None:
    csv(tmp_path, "city=Rome/x.csv", "y.csv")
    with pytest.raises(ColumnError, match=r'"city" is in the names of folders .*y\.csv is not in such a folder'):
        read_files(tmp_path)
    (tmp_path / "y.csv").write_text("a,city\n1,Oslo\n")
    with pytest.raises(ColumnError, match=r'"city" is in the names of folders .*y\.csv is not in such a folder'):
        read_files(tmp_path)


def test_missing_file_error_suggests_sibling(tmp_path: Path) -> None:
    csv(tmp_path, "train.csv")
    with pytest.raises(ConfigError, match=r'no file or folder ".*/trian\.csv"\. Did you mean "train\.csv"'):
        read_files(tmp_path / "trian.csv")
    with pytest.raises(ConfigError, match="no file or folder"):
        read_files(tmp_path / "nowhere" / "train.csv")
    with pytest.raises(ConfigError, match=r'"memory://nowhere/x\.csv"'):
        read_files("memory://nowhere/x.csv")


def test_no_files_raises(tmp_path: Path) -> None:
    csv(tmp_path, "notes/README.md")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r'\*\.csv" matches no file'):
        read_files(str(tmp_path / "*.csv"))
    with pytest.raises(ConfigError, match="has no file that can be read among its 0 files"):
        read_files(tmp_path / "empty")
    with pytest.raises(ConfigError, match="has no file that can be read among its 1 files"):
        read_files(tmp_path / "notes")
    with pytest.raises(ConfigError, match="the list of paths is empty"):
        read_files([])


def test_mixed_or_unknown_formats_raise(tmp_path: Path) -> None:
    csv(tmp_path, "a.csv", "b.tsv", "c.xyz")
    with pytest.raises(ConfigError, match="1 of csv and 1 of tsv; .* append files of another format after"):
        read_files(tmp_path)
    with pytest.raises(
        ConfigError, match=r"c\.xyz: its name does not show its format: use read_files.*suffixes \.parquet"
    ):
        read_files(tmp_path / "c.xyz")
    csv(tmp_path, "d.csv.xz")
    with pytest.raises(ConfigError, match=r"d\.csv\.xz: its name does not show its format"):
        read_files(tmp_path / "d.csv.xz")
    assert cells(read_files([tmp_path / "a.csv", tmp_path / "b.tsv"], format="csv")) == ["a", "b"]


@pytest.mark.parametrize("name", ["a.xlsx", "A.DTA", "a.sav", "a.pkl.gz"])
def test_unsupported_formats_raise_with_remedy(name: str, tmp_path: Path) -> None:
    csv(tmp_path, name)
    with pytest.raises(ConfigError, match=re.escape(name) + ".* with pandas, such as by pandas.read_excel, and pass"):
        read_files(tmp_path / name)
    assert cells(read_files(csv(tmp_path, "b.xls") / "b.xls", format="csv")) == ["b"]


def test_fsspec_urls_are_read() -> None:
    for i in (10, 2):
        with fsspec.open(f"memory://bucket/part-{i}.csv", "wb") as handle:
            handle.write(b"a,b\n" + b'x,"1\n2"\n' * i)
    for partition_bytes in (5, 1000):
        source = read_files("memory://bucket/*.csv", partition_bytes=partition_bytes)
        assert cells(source, "b") == ["1\n2"] * 12
    with fsspec.open("memory://bucket/a.jsonl", "wb") as handle:
        handle.write(b'{"a": 1}\n' * 9)
    assert cells(read_files("memory://bucket/a.jsonl", partition_bytes=20)) == [1] * 9
    ((name, size, stamp),) = read_files("memory://bucket/a.jsonl").fingerprint()
    assert name.endswith("bucket/a.jsonl")
    assert size == 81
    assert stamp


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("ftp://user:secret@host:21/a.csv", "ftp://host:21/a.csv"),
        ("https://user:secret@host/a.csv", "https://host/a.csv"),
        ("s3://bucket/a@b?c.csv", "s3://bucket/a@b?c.csv"),
        ("zip://a.csv::ftp://user:secret@host/a.zip", "zip://a.csv::ftp://host/a.zip"),
        ("/data/a@b.csv", "/data/a@b.csv"),
    ],
)
def test_redact_url_removes_credentials(url: str, shown: str) -> None:
    assert redact_url(url) == shown


def test_redact_url_hashes_query() -> None:
    one, other = (redact_url(f"https://host/a.csv?token={token}") for token in ("secret1", "secret2"))
    assert one.startswith("https://host/a.csv?")
    assert one != other
    assert "secret" not in one + other


def test_credentials_are_not_shown() -> None:
    with fsspec.open("memory://private/a.csv", "wb") as handle:
        handle.write(b"a\n1\n")
    source = read_files("memory://private/a.csv", storage_options={"token": "secret"})
    shown = [
        repr(source),
        repr(source.fragments),
        repr(source.files),
        str(source.fingerprint()),
        str(source.settings),
    ]
    assert not any("secret" in text for text in shown)
    assert pickle.loads(pickle.dumps(source.fragments[0])).read(["a"])["a"].to_pylist() == ["1"]


def test_unknown_protocol_or_missing_package_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r'"memroy://x.csv" cannot be opened: .*Did you mean "memory"'):
        read_files("memroy://x.csv")

    def missing(*args: object, **options: object) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("daskprep.storage.security.url_to_fs", missing)
    with pytest.raises(ConfigError, match='reading "s3" needs a package: pip install s3fs'):
        read_files("s3://bucket/x.csv")


def test_listing_error_hides_original_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("https://user:secret@host refused")

    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.info", fail)
    with pytest.raises(ConfigError, match=r"cannot be listed \(RuntimeError\)") as caught:
        read_files("memory://x.csv")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("error", [OSError, EOFError, RuntimeError])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.csv.gz", "a.parquet", "a.feather"])
def test_read_error_hides_original_message(monkeypatch: pytest.MonkeyPatch, name: str, error: type[Exception]) -> None:
    def fail(*args: object, **options: object) -> None:
        raise error("https://user:secret@host refused")

    fsspec.filesystem("memory").pipe(f"/refused/{name}", b'{"a": 1}\n')
    for method in ("cat_file", "open"):
        monkeypatch.setattr(f"fsspec.implementations.memory.MemoryFileSystem.{method}", fail)
    with pytest.raises(ConfigError, match=rf"{name}: cannot be read as .* \({error.__name__}\); check") as caught:
        read_files(f"memory://refused/{name}", storage_options={"attempts": 1})
    assert "secret" not in str(caught.value)


def test_fingerprint_depends_on_modification_time(tmp_path: Path) -> None:
    csv(tmp_path, "a.csv")
    before = read_files(tmp_path).fingerprint()
    assert before == read_files(tmp_path).fingerprint()
    os.utime(tmp_path / "a.csv", ns=(1, 1))
    assert read_files(tmp_path).fingerprint() != before


def test_deleted_file_raises_on_read(tmp_path: Path) -> None:
    source = read_files(csv(tmp_path, "a.csv"))
    (tmp_path / "a.csv").unlink()
    with pytest.raises(ConfigError, match=r"a\.csv: cannot be found any more, or not from here"):
        source.read(0, ["a"])


def test_repr_shows_first_files(tmp_path: Path) -> None:
    source = read_files(csv(tmp_path, *(f"{i}.csv" for i in range(5))), partition_bytes=1)
    assert repr(source).startswith(f'<FileSource: 5 partitions, 1 columns of csv: "{tmp_path}/0.csv", ')
    assert repr(source).endswith(" and 2 more>")
    assert source.settings["encoding"] == "utf-8"


def test_invalid_path_type_raises() -> None:
    with pytest.raises(ConfigError, match="not a int"):
        read_files(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected a path or a list of paths, not a int"):
        read_files(["a.csv", 3])  # type: ignore[list-item]


def test_listing_cache_is_invalidated(monkeypatch: pytest.MonkeyPatch) -> None:
    with fsspec.open("memory://relisted/a.csv", "wb") as handle:
        handle.write(b"a\n1\n")
    dropped = mock.Mock()
    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.invalidate_cache", dropped)
    read_files("memory://relisted/*.csv")
    dropped.assert_called_once_with()


def test_pipes_sockets_devices_and_broken_links_raise(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "device.csv").symlink_to("/dev/null")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket.csv"))
        for name in ("pipe", "device", "socket"):
            with pytest.raises(ConfigError, match=rf"{name}\.csv: is a pipe, a socket or a device"):
                read_files(tmp_path / f"{name}.csv")
    with pytest.raises(ConfigError, match="is a pipe, a socket or a device"):
        read_files(tmp_path)
    (tmp_path / "loop.csv").symlink_to(tmp_path / "loop.csv")
    (tmp_path / "broken.csv").symlink_to(tmp_path / "nothing")
    with pytest.raises(ConfigError, match=r"loop\.csv"):
        read_files(tmp_path / "loop.csv")
    with pytest.raises(ConfigError, match=r"broken\.csv: cannot be read: No such file"):
        read_files(str(tmp_path / "b*.csv"))


def test_circular_folder_links_are_read_once(tmp_path: Path) -> None:
    csv(tmp_path, "a.csv")
    (tmp_path / "second").symlink_to(tmp_path)
    assert cells(read_files(tmp_path)) == cells(read_files(str(tmp_path / "**/*.csv"))) == ["a"]
