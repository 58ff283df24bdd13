"""A dataset of another author opens nothing outside its folder without trust."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner
from PIL import Image
from sklearn.base import clone
from tokenizers import Tokenizer, models

import daskprep as dp
from daskprep import serving
from daskprep.columns import pretrained
from daskprep.columns.deferred.reader import MediaReader
from daskprep.errors import ConfigError, MediaError
from daskprep.extensions.cli import program
from daskprep.storage.security import UntrustedPath


def written(folder: Path, pictures: Path, **parameters: Any) -> dp.Dataset:
    """Write a dataset that refers to two images."""
    pictures.mkdir(parents=True)
    for i in range(2):
        Image.new("RGB", (4, 4), (i, 0, 0)).save(pictures / f"{i}.png")
    paths = [f"{i}.png" for i in range(2)] if "base_dir" in parameters else [str(pictures / f"{i}.png") for i in (0, 1)]
    image = dp.Image(height=4, width=4, num_channels=3, mode="lazy", **parameters)
    return dp.Preprocessor({"photo": image}).fit_write(pd.DataFrame({"photo": paths}), folder)


def test_images_outside_the_dataset_require_trust_or_base_dir(tmp_path: Path) -> None:
    made = written(tmp_path / "a.dp", tmp_path / "pictures")
    pixels = made["train"].read("photo")["photo"]
    with pytest.raises(ConfigError, match=r"pictures/[01]\.png.* is outside .*a\.dp, .*base_dir=.*trusted=True"):
        dp.open_dataset(tmp_path / "a.dp")["train"].read("photo")
    for options in ({"trusted": True}, {"base_dir": tmp_path / "pictures"}, {"base_dir": tmp_path, "trusted": True}):
        found = dp.open_dataset(tmp_path / "a.dp", **options)["train"].read("photo")["photo"]
        assert (found == pixels).all()


def test_stored_base_dir_requires_trust(tmp_path: Path) -> None:
    made = written(tmp_path / "a.dp", tmp_path / "pictures", base_dir=str(tmp_path / "pictures"))
    assert made["train"].read("photo")["photo"].any()
    with pytest.raises(ConfigError, match=r'"0\.png" is outside'):
        dp.open_dataset(tmp_path / "a.dp")["train"].read("photo")
    (tmp_path / "pictures").rename(tmp_path / "a.dp" / "pictures")
    inside = dp.open_dataset(tmp_path / "a.dp", base_dir=tmp_path / "a.dp" / "pictures")
    assert inside["train"].read("photo")["photo"].any()


def test_untrusted_base_dir_is_not_written_again(tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    written(tmp_path / "a.dp", pictures, base_dir=str(pictures))
    frame = pd.DataFrame({"photo": ["0.png", "1.png"]})
    received = dp.Preprocessor.from_dataset(dp.open_dataset(tmp_path / "a.dp"))
    for write in (
        lambda: received.write(frame, tmp_path / "b.dp"),
        lambda: clone(received).fit_write(frame, tmp_path / "b.dp"),
        lambda: received.save(tmp_path / "b.json"),
    ):
        with pytest.raises(ConfigError, match=r'"photo": base_dir "/.*pictures" is named by .* trusted=True'):
            write()
    assert not list(tmp_path.glob("b.json*"))
    trusted = dp.Preprocessor.from_dataset(dp.open_dataset(tmp_path / "a.dp", trusted=True))
    assert trusted.write(frame, tmp_path / "b.dp")["train"].read("photo")["photo"].any()


def test_images_inside_the_dataset_need_no_trust(tmp_path: Path) -> None:
    written(tmp_path / "a.dp", tmp_path / "a.dp.pictures")
    (tmp_path / "a.dp.pictures").rename(tmp_path / "a.dp" / "pictures")
    frame = pd.DataFrame({"photo": [str(tmp_path / "a.dp" / "pictures" / f"{i}.png") for i in range(2)]})
    image = dp.Image(height=4, width=4, num_channels=3, mode="lazy")
    dp.Preprocessor({"photo": image}).fit_write(frame, tmp_path / "a.dp", overwrite=True)
    assert dp.open_dataset(tmp_path / "a.dp")["train"].read("photo")["photo"].any()
    (tmp_path / "outside.png").write_bytes((tmp_path / "a.dp" / "pictures" / "1.png").read_bytes())
    (tmp_path / "a.dp" / "pictures" / "1.png").unlink()
    (tmp_path / "a.dp" / "pictures" / "1.png").symlink_to(tmp_path / "outside.png")
    with pytest.raises(ConfigError, match="is outside"):
        dp.open_dataset(tmp_path / "a.dp")["train"].read("photo")


def test_untrusted_paths_are_not_replaced_by_fill_values(tmp_path: Path) -> None:
    written(tmp_path / "a.dp", tmp_path / "pictures", on_error="fill")
    with pytest.raises(ConfigError, match="is not trusted"):
        dp.open_dataset(tmp_path / "a.dp")["train"].read("photo")
    with pytest.raises(ConfigError, match="is not trusted"):
        list(dp.open_dataset(tmp_path / "a.dp")["train"].loader(2))


@pytest.mark.parametrize("trusted", [False, True])
def test_trust_is_kept_by_pickles_and_splits(tmp_path: Path, *, trusted: bool) -> None:
    written(tmp_path / "a.dp", tmp_path / "pictures")
    split = pickle.loads(pickle.dumps(dp.open_dataset(tmp_path / "a.dp", trusted=trusted)["train"]))
    assert split.dataset.trusted is trusted
    if trusted:
        assert len(list(split.loader(2))) == 1
    else:
        with pytest.raises(ConfigError, match="is not trusted"):
            list(split.loader(2))


def test_cache_command_requires_trust(tmp_path: Path) -> None:
    written(tmp_path / "a.dp", tmp_path / "pictures")
    command = ["cache", "-q", str(tmp_path / "a.dp")]
    refused = CliRunner().invoke(program, command)
    assert isinstance(refused.exception, ConfigError)
    assert CliRunner().invoke(program, [*command, "--trusted"]).exit_code == 0
    assert CliRunner().invoke(program, [*command, "--base-dir", str(tmp_path / "pictures")]).exit_code == 0


def test_tokenizer_path_of_a_dataset_is_not_opened_without_trust(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("good\nbad\n", encoding="utf-8")
    frame = pd.DataFrame({"review": ["good", "bad", "good"]})
    prep = dp.Preprocessor({"review": dp.Text(vocab_file=str(words))})
    prep.fit_write(frame, tmp_path / "a.dp")
    received = dp.open_dataset(tmp_path / "a.dp")
    assert list(received["train"].head()["review"]) == list(frame["review"])
    with pytest.raises(ConfigError, match=r'vocab_file ".*words.txt" is named by a dataset that is not trusted'):
        dp.Preprocessor.from_dataset(received).fit(frame)
    trusted = dp.open_dataset(tmp_path / "a.dp", trusted=True)
    assert dp.Preprocessor.from_dataset(trusted).fit(frame).to_dict() == prep.to_dict()
    words.unlink()  # the learned state has its words
    assert list(dp.open_dataset(tmp_path / "a.dp", trusted=True)["train"].head()["review"]) == list(frame["review"])


@pytest.mark.parametrize("tokenizer", ["hf_tokenizer", "sentencepiece"])
def test_untrusted_tokenizer_name_raises_before_lookup(tokenizer: str) -> None:
    feature = dp.Text(tokenizer=tokenizer, pretrained_model_name_or_path=UntrustedPath("somebody/tokenizer"))
    with pytest.raises(ConfigError, match="somebody/tokenizer.* not trusted"):
        dp.Preprocessor({"review": feature}).fit(pd.DataFrame({"review": ["a"]}))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Replace transformers; return its calls for a model, which is not in its cache."""
    trained = Tokenizer(models.WordLevel({"[UNK]": 0, "good": 1, "bad": 2}, unk_token="[UNK]"))
    trained.save(str(tmp_path / "tokenizer.json"))
    requests = []

    def from_pretrained(name: str, **options: Any) -> Any:
        requests.append((name, options))
        if options["local_files_only"]:
            raise OSError("We couldn't connect to 'https://huggingface.co' and couldn't find it in the cached files")
        return types.SimpleNamespace(backend_tokenizer=trained, pad_token_id=None, unk_token_id=0)

    fake = types.SimpleNamespace(AutoTokenizer=types.SimpleNamespace(from_pretrained=from_pretrained))
    monkeypatch.setitem(sys.modules, "transformers", fake)
    monkeypatch.chdir(tmp_path)
    return requests


def test_model_of_a_saved_preprocessor_is_downloaded_only_with_trust(hub: list[Any]) -> None:
    text = dp.Text(tokenizer="hf_tokenizer", pretrained_model_name_or_path="somebody/model", fill_value="[UNK]")
    frame = pd.DataFrame({"review": ["good", "bad", "bad"]})
    dp.Preprocessor({"review": text}).fit(frame).save("saved.json")
    row, remedy = {"review": "good"}, '"somebody/model", which a saved Preprocessor names.*trusted=True'
    state = json.loads(Path("saved.json").read_text(encoding="utf-8"))
    for load in (dp.Preprocessor.load, dp.Preprocessor.from_dict, serving.load, serving.Encoder):
        made: Any = state if load in (dp.Preprocessor.from_dict, serving.Encoder) else "saved.json"
        rows: Any = [row] if "serving" in load.__module__ else pd.DataFrame([row])
        pretrained.load_model.cache_clear()
        with pytest.raises(ConfigError, match=remedy):
            load(made).encode(rows)
        assert hub[-1] == ("somebody/model", {"local_files_only": True, "trust_remote_code": False})
        assert load(made, trusted=True).encode(rows)["review"][0, 0] == 1
    with pytest.raises(ConfigError, match=remedy):
        pickle.loads(pickle.dumps(clone(dp.Preprocessor.load("saved.json")))).fit(frame)
    Path("somebody/model").mkdir(parents=True)
    shutil.copy("tokenizer.json", "somebody/model/tokenizer.json")
    hub.clear()
    assert serving.load("saved.json").encode(row)["review"][0, 0] == 1
    assert not hub


def test_repair_requires_trust_for_recorded_files(tmp_path: Path) -> None:
    pd.DataFrame({"price": [1.0, 2.0]}).to_parquet(tmp_path / "rows.parquet")
    dataset = dp.Preprocessor({"price": "number"}).fit_write(str(tmp_path / "rows.parquet"), tmp_path / "a.dp")
    next(Path(dataset.url).rglob("part-*.parquet")).write_bytes(b"")
    with pytest.raises(ConfigError, match="is not trusted.*pass the rows as frame, or trusted=True"):
        dp.repair(tmp_path / "a.dp")
    assert dp.repair(tmp_path / "a.dp", trusted=True).trusted


@pytest.mark.parametrize(
    "url",
    [
        "reference://x", "zip://a::file:///etc/hostname", "tar://a::memory://b", "simplecache::file:///etc/hostname",
        "filecache::http://127.0.0.1/x", "blockcache::memory://x", "dir::file:///etc", "github://a:b@c/d", "git://x",
        "libarchive://x", "jupyter://x", "data:text/plain,x", "data://x", "ssh://h/x", "sftp://h/x", "smb://h/x",
        "memory://a::file:///etc/hostname", "http://127.0.0.1/a::file:///etc/hostname", "dask::file:///x", "generic://x",
        "file::memory://x", "local::zip://x", "MEMORY://x", "python://x",
    ],
)  # fmt: skip
def test_chained_urls_raise(url: str) -> None:
    with pytest.raises(MediaError, match=r"is not a URL that data may contain|no such file"):
        MediaReader().read(url)
    if "://" in url:
        with pytest.raises(ConfigError, match="is not a URL that data may contain"):
            MediaReader(url).read("cat.png")


def test_chained_urls_in_a_manifest_raise(tmp_path: Path) -> None:
    rows = pd.DataFrame({"price": [1.0, 2.0]})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    url = f"simplecache::file://{tmp_path}/rows.csv"
    dataset = dp.Preprocessor({"price": "number"}).fit_write(url, tmp_path / "a.dp")
    next(Path(dataset.url).rglob("part-*.parquet")).write_bytes(b"")
    with pytest.raises(ConfigError, match="is not a URL that data may contain|give the frame"):
        dp.repair(tmp_path / "a.dp", trusted=True)


def write_two_datasets(tmp_path: Path, second: list[str]) -> list[Path]:
    """Write two datasets with one Preprocessor: one refers to images of its folder, and one to the given paths."""
    image = dp.Image(height=4, width=4, num_channels=3, mode="lazy")
    for number, name in enumerate("ab"):
        folder = tmp_path / name / "pictures"
        folder.mkdir(parents=True)
        for i in range(2):
            Image.new("RGB", (4, 4), (100 * number + 50 * i, 0, 0)).save(folder / f"{i}.png")
    first = [str(tmp_path / "a" / "pictures" / f"{i}.png") for i in (0, 1)]
    prep = dp.Preprocessor({"photo": image}).fit(pd.DataFrame({"photo": first}))
    for name, paths in (("a", first), ("b", second)):
        prep.write(pd.DataFrame({"photo": paths}), tmp_path / f"{name}.dp", block_rows=2)
    for name in "ab":
        (tmp_path / name / "pictures").rename(tmp_path / f"{name}.dp" / "pictures")
        (tmp_path / name).rmdir()
        (tmp_path / f"{name}.dp").rename(tmp_path / name)
    return [tmp_path / "a", tmp_path / "b"]


LOADED: list[dict[str, Any]] = [{}, {"cache": True}, {"shuffle": False, "cache": False}]


@pytest.mark.parametrize("options", LOADED)
def test_joined_datasets_can_read_their_own_folders(tmp_path: Path, options: Any) -> None:
    paths = write_two_datasets(tmp_path, [str(tmp_path / "b" / "pictures" / f"{i}.png") for i in (0, 1)])
    train = dp.open_dataset(paths)["train"]
    for _ in range(2):
        [batch] = train.loader(4, expand=False, row_ids=True, **options)
        assert sorted(batch["photo"][:, 0, 0, 0].tolist()) == [0, 50, 100, 150]
    assert train.read("photo")["photo"][:, 0, 0, 0].tolist() == [0, 50, 100, 150]


@pytest.mark.parametrize("options", LOADED)
@pytest.mark.parametrize("based", [False, True])
def test_joined_datasets_cannot_read_the_folders_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any, based: bool
) -> None:
    stolen = tmp_path / "a" / "pictures" / "0.png"
    paths = write_two_datasets(tmp_path, [str(stolen)] * 2)
    base = tmp_path / "files" if based else None
    loader = dp.open_dataset(paths, base_dir=base)["train"].loader(2, **{**options, "shuffle": False})
    read: list[str] = []
    original = MediaReader._read_local
    monkeypatch.setattr(MediaReader, "_read_local", lambda *given: read.append(given[1].path) or original(*given))
    with pytest.raises(ConfigError, match=r"0\.png\" is outside .*/b, and the dataset"):
        list(loader)
    assert set(read) <= {str(tmp_path / "a" / "pictures" / f"{i}.png") for i in (0, 1)}
    assert read.count(str(stolen)) <= 1


def test_relative_paths_of_joined_datasets_stay_in_base_dir(tmp_path: Path) -> None:
    files = tmp_path / "files"
    for number, name in enumerate("ab"):
        (files / name).mkdir(parents=True)
        Image.new("RGB", (4, 4), (100 * number, 0, 0)).save(files / name / "0.png")
    Image.new("RGB", (4, 4)).save(tmp_path / "outside.png")
    image = dp.Image(height=4, width=4, num_channels=3, mode="lazy", base_dir=str(files))
    prep = dp.Preprocessor({"photo": image}).fit(pd.DataFrame({"photo": ["a/0.png"]}))
    for name, path in (("a", "a/0.png"), ("b", "b/0.png"), ("c", "../outside.png")):
        prep.write(pd.DataFrame({"photo": [path]}), tmp_path / f"{name}.dp")
    files.rename(tmp_path / "moved")
    a, b, c = (tmp_path / f"{name}.dp" for name in "abc")
    [batch] = dp.open_dataset([a, b], base_dir=tmp_path / "moved")["train"].loader(2, expand=False, shuffle=False)
    assert batch["photo"][:, 0, 0, 0].tolist() == [0, 100]
    with pytest.raises(ConfigError, match=r"outside\.png\" is outside"):
        list(dp.open_dataset([a, c], base_dir=tmp_path / "moved")["train"].loader(2))


def test_file_stamps_are_read_only_with_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "a.dp", tmp_path / "pictures")
    seen = []
    monkeypatch.setattr("daskprep.dataset.cache._make_stamp", seen.append)
    dp.open_dataset(tmp_path / "a.dp")["train"].cache("photo")
    assert seen == [None, None]
    dp.open_dataset(tmp_path / "a.dp", trusted=True)["train"].cache("photo")
    assert seen[2:] == [str(tmp_path / "pictures" / f"{i}.png") for i in range(2)]


def test_raised_max_pixels_requires_trust(tmp_path: Path) -> None:
    written(tmp_path / "a.dp", tmp_path / "pictures", max_pixels=100_000_001)
    received = dp.open_dataset(tmp_path / "a.dp", base_dir=tmp_path / "pictures")
    with pytest.raises(ConfigError, match=r"max_pixels=100,000,001 is more than 100,000,000, .* trusted=True"):
        received["train"].read("photo")
    assert dp.open_dataset(tmp_path / "a.dp", trusted=True)["train"].read("photo")["photo"].any()
