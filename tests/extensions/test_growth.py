"""Growing vocabularies, and rows appended to a dataset."""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError, CorruptDatasetError, DatasetExistsError
from daskprep.storage import Folder
from daskprep.storage.checksum import crc32c
from daskprep.storage.manifest import read_versions

pytestmark = pytest.mark.filterwarnings("ignore:append. the new rows differ")
FEATURES = {
    "city": "category",
    "tags": "set",
    "steps": "sequence",
    "review": dp.Text(level="both", max_sequence_length=12),
    "bag": "bag",
    "price": "number",
    "sold": "category",
}


def day(number, rows=60, labels=("yes", "no")):
    """Return rows with some tokens of earlier days."""
    rng = np.random.default_rng(number)
    words = np.array([f"w{word}" for word in range(5 + 8 * number)])
    texts = [" ".join(rng.choice(words, 3)) for _ in range(rows)]
    return pd.DataFrame(
        {
            "city": rng.choice([f"city{i}" for i in range(3 + 200 * number)], rows),
            "tags": texts,
            "steps": texts,
            "review": texts,
            "bag": texts,
            "price": rng.normal(size=rows),
            "sold": rng.choice(labels, rows),
            "row": np.arange(rows),
        }
    )


def fitted(folder, split=None, **options):
    prep = dp.Preprocessor(FEATURES, targets="sold", split=split)
    return prep, prep.fit_write(day(0), folder / "days.dp", block_rows=16, progress=False, **options)


def test_existing_ids_stay_and_new_ids_follow_by_frequency(tmp_path):
    prep, _ = fitted(tmp_path)
    before = {name: prep.learned_[name] for name in FEATURES}
    old_arrays, new = prep.encode(day(0)), prep.grow(day(3, labels=["no", "maybe"]))
    assert set(new) == {"city", "tags", "steps", "review_word", "review_char", "bag", "sold"}
    for output in ("city", "steps", "review_word"):
        counts = list(new[output].values())
        assert counts == sorted(counts, reverse=True)
    for name, array in prep.encode(day(0)).items():
        assert np.array_equal(array, old_arrays[name]), name
    for name in ("city", "tags", "steps", "bag", "sold"):
        tokens, grown = before[name].vocabulary.tokens, prep.learned_[name].vocabulary
        assert grown.tokens.slice(0, len(tokens)).equals(tokens)
        assert grown.tokens.slice(len(tokens)).to_pylist() == list(new[name])
        assert prep.learned_[name].extends(before[name])
        assert not before[name].extends(prep.learned_[name])
    assert prep.learned_["price"].extends(before["price"])
    assert prep.decode(prep.encode(day(3)))["city"].tolist() == day(3)["city"].tolist()
    assert prep.grow(day(3, labels=["no", "maybe"])) == {}


def test_growth_does_not_depend_on_partitions(tmp_path):
    import dask.dataframe as dd

    prep, _ = fitted(tmp_path)
    prep.save(tmp_path / "prep.json")
    expected = prep.grow(day(2))
    for count in (1, 7):
        again = dp.Preprocessor.load(tmp_path / "prep.json")
        assert again.grow(dd.from_pandas(day(2), npartitions=count)) == expected
        assert again.to_dict() == prep.to_dict()
        assert list(again.learned_["city"].vocabulary.frequencies[-3:]) == [0, 0, 0]


@pytest.mark.parametrize(
    "feature",
    [
        dp.Category(order=["city0", "city1"], handle_unknown="unk"),
        dp.Category(hash_buckets=10),
        dp.Category(oov_buckets=2),
        dp.Category(transform_to="one_hot"),
        dp.Number(),
        dp.TargetEncoding(target="price"),
    ],
)
def test_features_whose_ids_would_change_do_not_grow(feature):
    name = "price" if isinstance(feature, dp.Number) else "city"
    prep = dp.Preprocessor({name: feature}).fit(day(0))
    learned = prep.learned_[name]
    assert prep.grow(day(3)) == {}
    assert prep.learned_[name].extends(learned)


def test_grown_integer_category_with_text_decodes_as_text():
    prep = dp.Preprocessor({"code": "category"}).fit(pd.DataFrame({"code": [1, 2, 2]}))
    before = prep.learned_["code"]
    assert prep.grow(pd.DataFrame({"code": [3, 3]})) == {"code": {"3": 2}}
    assert prep.decode(prep.encode(pd.DataFrame({"code": [3, 1]})))["code"].tolist() == [3, 1]
    prep.grow(pd.DataFrame({"code": ["x"]}))
    assert prep.decode(prep.encode(pd.DataFrame({"code": ["3", "x"]})))["code"].tolist() == ["3", "x"]
    assert prep.learned_["code"].extends(before)


def test_appended_parts_read_as_one_dataset(tmp_path):
    """Ids change from one byte to two."""
    prep, dataset = fitted(tmp_path)
    path = tmp_path / "days.dp"
    versions = [dataset]
    days = [day(number, rows=150, labels=["yes", f"maybe{number}"]) for number in (1, 2, 3)]
    for one in days:
        prep.grow(one)
        versions.append(prep.append(one, path, progress=False))
    frame = pd.concat([day(0), *days], ignore_index=True)
    opened = dp.open_dataset(path)
    train = opened["train"]
    assert [len(one["train"]) for one in versions] == [60, 210, 360, 510]
    assert {one["train"].output("city").dtype for one in opened.datasets} == {"uint8", "uint16"}
    assert train.num_embeddings("city") == len(prep.learned_["city"].vocabulary)
    decoded = opened.decode(train.read())
    assert decoded["city"].tolist() == frame["city"].tolist()
    assert decoded["steps"].tolist() == frame["steps"].tolist()
    assert decoded["sold"].tolist() == frame["sold"].tolist()
    city = train.read(["city"])["city"]
    assert np.array_equal(train.table(["city"])["city"].to_numpy(), city)
    assert np.array_equal(pl.DataFrame(train)["city"].to_numpy(), city)
    assert np.array_equal(train.to_dask(["city"])["city"].compute(), city)
    assert np.array_equal(train.to_dask(["steps"])["steps"].compute(), train.read(["steps"])["steps"])
    assert opened.url == str(path)
    assert str(opened).startswith(f"Dataset at {path}")


@pytest.mark.parametrize("threads", [1, 3])
def test_loader_yields_the_rows_of_all_parts(tmp_path, threads):
    prep, dataset = fitted(tmp_path)
    kept = dataset["train"].loader(16, threads=threads, row_ids=True)
    for number in (1, 3):
        prep.grow(day(number))
        prep.append(day(number), tmp_path / "days.dp", progress=False)
    opened = dp.open_dataset(tmp_path / "days.dp")
    expected = opened["train"].read()
    seen = [(batch, sold) for batch, sold in opened["train"].loader(16, threads=threads, shuffle=False)]
    assert np.array_equal(np.concatenate([batch["city"] for batch, _ in seen]), expected["city"])
    assert np.array_equal(np.concatenate([batch["steps"] for batch, _ in seen]), expected["steps"])
    assert np.array_equal(np.concatenate([sold for _, sold in seen]), expected["sold"])
    assert seen[0][0]["tags"].shape[1] == len(prep.learned_["tags"].vocabulary)
    shuffled = np.concatenate([batch["city"] for batch, _ in opened["train"].loader(16, threads=threads)])
    assert sorted(shuffled) == sorted(expected["city"].tolist())
    assert sum(len(sold) for _, sold in kept) == 60  # a loader keeps the version that it opened


def test_datasets_with_a_common_vocabulary_prefix_open_as_one(tmp_path):
    prep, first = fitted(tmp_path)
    prep.grow(day(1))
    second = prep.write(day(1), tmp_path / "second.dp", progress=False)
    for order in ([first, second], [second, first]):
        joined = dp.open_dataset([one.url for one in order])
        assert joined.learned["city"] == prep.learned_["city"]
        assert len(joined["train"]) == 120
    other = dp.Preprocessor(FEATURES, targets="sold").fit_write(day(2), tmp_path / "other.dp", progress=False)
    with pytest.raises(ConfigError, match="different Preprocessors"):
        dp.open_dataset([first.url, other.url])


def test_versions_open_by_number(tmp_path):
    prep, first = fitted(tmp_path)
    for number in (1, 2):
        prep.append(day(number), tmp_path / "days.dp", progress=False)
    path = tmp_path / "days.dp"
    assert [len(dp.open_dataset(path, version=one)["train"]) for one in (1, 2, 3)] == [60, 120, 180]
    assert dp.open_dataset(path, version=1).digest == first.digest
    for wrong in (0, 4, -1):
        with pytest.raises(ConfigError, match="its versions are 1 to 3"):
            dp.open_dataset(path, version=wrong)
    for wrong in ("1", True, 1.0):
        with pytest.raises(ConfigError, match="version="):
            dp.open_dataset(path, version=wrong)
    with pytest.raises(ConfigError, match="single dataset"):
        dp.open_dataset([path, path], version=1)
    assert pickle.loads(pickle.dumps(dp.open_dataset(path))).digest == dp.open_dataset(path).digest
    assert dp.open_dataset(path).damaged() == []


def test_same_files_are_appended_once(tmp_path):
    prep, _ = fitted(tmp_path)
    day(1).to_parquet(tmp_path / "monday.parquet")
    path = tmp_path / "days.dp"
    once = prep.append(str(tmp_path / "monday.parquet"), path, progress=False)
    with pytest.warns(UserWarning, match="has these rows already"):
        assert prep.append(str(tmp_path / "monday.parquet"), path, progress=False).digest == once.digest
    prep.append(day(2), path, version="tuesday", progress=False)
    with pytest.warns(UserWarning, match="has these rows already"):
        assert len(prep.append(day(2), path, version="tuesday", progress=False)["train"]) == 180
    assert len(prep.append(day(2), path, progress=False)["train"]) == 240


SPELLINGS = {
    "absolute": str,
    "path": lambda path: path,
    "relative": lambda path: path.name,
    "dot": lambda path: f"./{path.name}",
    "parent": lambda path: f"{path.parent}/../{path.parent.name}/{path.name}",
    "url": lambda path: f"file://{path}",
    "link": lambda path: path.parent / "link.parquet",
    "folder": lambda path: path.parent.parent / "linked" / path.name,
    "list": lambda path: [path.name],
    "by split": lambda path: {"train": path.name},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"), [*(("absolute", one) for one in SPELLINGS), ("link", "folder"), ("folder", "link")]
)
def test_file_under_another_spelling_is_one_source(tmp_path, monkeypatch, first, second):
    folder = tmp_path / "days"
    folder.mkdir()
    day(1).to_parquet(folder / "monday.parquet")
    (folder / "link.parquet").symlink_to("monday.parquet")
    (tmp_path / "linked").symlink_to("days")
    monkeypatch.chdir(folder)
    one, other = (SPELLINGS[name](folder / "monday.parquet") for name in (first, second))
    prep, path = dp.Preprocessor(FEATURES, split=None), tmp_path / "days.dp"
    written = prep.fit_write(one, path, progress=False)
    if second == "by split":
        with pytest.raises(ConfigError, match=r"has the rows of .* already"):
            prep.append(other, path, progress=False)
        return
    made = (path / "manifest.json").stat().st_mtime_ns
    assert dp.Preprocessor(FEATURES, split=None).fit_write(other, path, progress=False).version == written.version
    assert prep.write(other, tmp_path / "b.dp").version == prep.write(one, tmp_path / "b.dp").version
    assert (path / "manifest.json").stat().st_mtime_ns == made
    with pytest.warns(UserWarning, match="has these rows already"):
        assert len(prep.append(other, path, progress=False)["train"]) == 60
    assert len(prep.append(other, path, progress=False, version="again")["train"]) == 120
    with pytest.raises(ConfigError, match="contain it twice"):
        prep.append([folder / "monday.parquet", folder / "link.parquet"], path, progress=False)
    day(1, rows=61).to_parquet(folder / "monday.parquet")
    with pytest.raises(DatasetExistsError, match="1 file changed since"):
        dp.Preprocessor(FEATURES, split=None).fit_write(other, path, progress=False)
    assert len(prep.append(other, path, progress=False)["train"]) == 181


@pytest.mark.parametrize("carrier", [pd.DataFrame, pa.Table.from_pandas, lambda frame: frame.to_dict("list")])
def test_equal_frame_is_appended_once_or_by_name(tmp_path, carrier):
    prep, _ = fitted(tmp_path)
    path = tmp_path / "days.dp"
    prep.append(carrier(day(1)), path, progress=False)
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"has these rows already.*another version="):
            assert len(prep.append(carrier(day(1)), path, progress=False)["train"]) == 120
    assert len(prep.append(carrier(day(1)), path, version="again", progress=False)["train"]) == 180


def test_loaded_preprocessor_appends(tmp_path):
    fitted(tmp_path)
    path = tmp_path / "days.dp"
    prep = dp.Preprocessor.from_dataset(path)
    prep.grow(day(1))
    prep.append(day(1), path, progress=False)
    again = dp.Preprocessor.from_dataset(path)
    assert again.to_dict() == prep.to_dict()
    assert len(again.append(day(2), path, progress=False)["train"]) == 180


def test_each_appended_part_is_split(tmp_path):
    prep, _ = fitted(tmp_path, split=dp.RandomSplit((0.5, 0.25, 0.25)))
    grown = prep.append(day(1, rows=400), tmp_path / "days.dp", progress=False)
    sizes = {name: len(split) for name, split in grown.splits.items()}
    assert sum(sizes.values()) == 460
    assert 180 < sizes["train"] < 280


@pytest.mark.parametrize(
    ("split", "match"),
    [
        (dp.GroupSplit("row"), r'group of "row" may be in several splits: use HashSplit\("row"\)'),
        (dp.KFold(2, group="city", fold=0), 'group of "city" may be in several splits'),
        (dp.DatetimeSplit("price"), "test rows may be older than training rows: name the split"),
        (dp.TimeSeriesSplit("price", 2, fold=1), "test rows may be older than training rows"),
    ],
)
def test_split_of_only_new_rows_warns(tmp_path, split, match):
    prep, dataset = fitted(tmp_path, split=split)
    before = {name: len(rows) for name, rows in dataset.splits.items()}
    grown = prep.append({"train": day(1), "test": day(2, rows=7)}, dataset.url, progress=False)
    added = {name: len(rows) - before.get(name, 0) for name, rows in grown.splits.items()}
    assert (added["train"], added["test"]) == (60, 7)
    assert dp.Preprocessor.from_dataset(dataset.url).split.to_dict() == split.to_dict()
    with pytest.warns(UserWarning, match=match):
        prep.append(day(3), dataset.url, progress=False)


def test_windows_of_appended_rows_warn(tmp_path):
    frame = pd.DataFrame({"load": np.arange(1.0, 9)})
    prep = dp.Preprocessor({"lag": dp.Timeseries(column="load", window_size=3)}, split=None)
    prep.fit_write(frame[:6], tmp_path / "load.dp", progress=False)
    with pytest.warns(UserWarning, match='windows of "lag" do not reach from appended rows to earlier ones'):
        dataset = prep.append(frame[4:], tmp_path / "load.dp", progress=False)
    dataset = dataset.delete([0, 1], part=1)  # the rows that the windows need
    np.testing.assert_array_equal(dataset["train"].read("lag")["lag"], prep.encode(frame)["lag"])


def test_overwrite_removes_all_parts(tmp_path):
    prep, first = fitted(tmp_path)
    prep.append(day(1), tmp_path / "days.dp", progress=False)
    again = prep.fit_write(day(0), tmp_path / "days.dp", block_rows=16, overwrite=True, progress=False)
    assert len(again["train"]) == len(dp.open_dataset(first.url)["train"]) == 60
    assert not list((tmp_path / "days.dp").glob("part-*"))
    assert not (tmp_path / "days.dp/appended.json").exists()


def test_repeated_write_keeps_the_parts(tmp_path):
    day(0).to_parquet(tmp_path / "sunday.parquet")
    prep = dp.Preprocessor(FEATURES, targets="sold")
    path = tmp_path / "days.dp"
    prep.fit_write(str(tmp_path / "sunday.parquet"), path, progress=False)
    prep.append(day(1), path, progress=False)
    assert len(prep.fit_write(str(tmp_path / "sunday.parquet"), path, progress=False)["train"]) == 60
    assert len(dp.open_dataset(path)["train"]) == 120


def test_append_reads_as_many_files_at_any_part(tmp_path, monkeypatch):
    prep, _ = fitted(tmp_path)
    names = []
    for call in ("read", "read_buffer", "size", "sizes", "children"):
        original = getattr(Folder, call)
        monkeypatch.setattr(
            Folder, call, lambda *values, _call=original, **named: (names.append(values), _call(*values, **named))[1]
        )
    counts = []
    for number in range(1, 9):
        names.clear()
        prep.append(day(number, rows=20), tmp_path / "days.dp", progress=False)
        counts.append(len(names))
    assert len(set(counts[1:])) == 1


def test_list_of_older_version_without_sources(tmp_path):
    prep, _ = fitted(tmp_path)
    path = tmp_path / "days.dp"
    for number in (1, 2):
        prep.append(day(number), path, progress=False)
    listed = read_versions(Folder.open(path))
    (path / "appended.json").write_bytes(dataclasses.replace(listed, sources=None).to_bytes())
    for number in range(3):
        with pytest.warns(UserWarning, match="has these rows already"):
            prep.append(day(number), path, progress=False)
    prep.append(day(3), path, progress=False)
    now = read_versions(Folder.open(path))
    assert set(listed.sources) < set(now.sources)
    assert len(now.sources) == 4


def test_appended_dataset_is_of_its_version(tmp_path):
    prep, _ = fitted(tmp_path)
    path = tmp_path / "days.dp"
    datasets = [prep.append(day(number), path, progress=False) for number in (1, 2, 3)]
    assert [len(one["train"]) for one in datasets] == [120, 180, 240]
    late = prep.append(day(4), path, progress=False)
    prep.fit_write(day(0), path, overwrite=True, progress=False)
    for number in range(1, 5):
        prep.append(day(10 + number), path, progress=False)
    with pytest.raises(ConfigError, match="was written again meanwhile"):
        len(late["train"])


def test_unfinished_append_is_ignored_and_replaced(tmp_path):
    prep, first = fitted(tmp_path)
    path = tmp_path / "days.dp"
    prep.append(day(1), path, progress=False)
    (path / "appended.json").unlink()  # as if the process was killed before it was written
    assert len(dp.open_dataset(path)["train"]) == 60
    grown = prep.append(day(2), path, progress=False)
    assert grown.decode(grown["train"].read())["city"].tolist() == [*day(0)["city"], *_known(prep, day(2)["city"])]
    assert len(list(path.glob("part-*"))) == 1
    del first


def _known(prep, values):
    tokens = set(prep.learned_["city"].vocabulary.tokens.to_pylist())
    return [value if value in tokens else "<UNK>" for value in values]


def test_damaged_files_of_parts_are_reported(tmp_path):
    prep, _ = fitted(tmp_path)
    path = tmp_path / "days.dp"
    prep.append(day(1), path, progress=False)
    prep.append(day(2), path, progress=False)
    listed = (path / "appended.json").read_bytes()
    (path / "appended.json").write_bytes(listed.replace(b'"format":1', b'"format":2'))
    with pytest.raises(CorruptDatasetError, match=r"appended\.json is damaged"):
        dp.open_dataset(path)
    (path / "appended.json").write_bytes(listed)
    shutil.move(path / "part-00001", tmp_path / "away")
    shutil.copytree(path / "part-00002", path / "part-00001")
    with pytest.raises(CorruptDatasetError, match=r"part-00001 is not the part .* version=1"):
        dp.open_dataset(path)
    shutil.rmtree(path / "part-00001")
    shutil.move(tmp_path / "away", path / "part-00001")
    file = next((path / "part-00001").rglob("part-00000.parquet"))
    file.write_bytes(b"")
    [damage] = dp.open_dataset(path).damaged()
    assert "part-00001" in damage.file
    assert dp.repair(path, day(1)).damaged() == []


@pytest.mark.parametrize("body", [{"digests": 5}, {"digests": [5]}, {"digests": {"a": 1}}, {}])
def test_invalid_part_list_raises(tmp_path, body):
    _, dataset = fitted(tmp_path)
    text = json.dumps({"format": 1, **body}, sort_keys=True, separators=(",", ":"))
    sealed = f'{{"checksum":"{crc32c(text.encode()):08x}","appended":{text}}}\n'
    (tmp_path / "days.dp/appended.json").write_text(sealed)
    with pytest.raises(CorruptDatasetError, match=r"appended\.json is damaged"):
        dp.open_dataset(dataset.url)


def test_symbolic_link_as_a_part_raises(tmp_path):
    prep, dataset = fitted(tmp_path)
    prep.append(day(1), dataset.url, progress=False)
    shutil.move(tmp_path / "days.dp/part-00001", tmp_path / "elsewhere")
    (tmp_path / "days.dp/part-00001").symlink_to(tmp_path / "elsewhere")
    with pytest.raises((ConfigError, CorruptDatasetError)):
        dp.open_dataset(dataset.url)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda prep: prep.fit(day(2)), 'the fitted state of "city"'),
        (lambda prep: prep.set_params(features={"city": "category"}, targets=None).fit(day(0)), "other features"),
        (
            lambda prep: prep.set_params(features={**FEATURES, "city": dp.Category(lowercase=True)}).fit(day(0)),
            'feature "city" has other parameters',
        ),
    ],
)
def test_append_with_another_preprocessor_raises(tmp_path, change, match):
    prep, dataset = fitted(tmp_path)
    change(prep)
    with pytest.raises(ConfigError, match=match):
        prep.append(day(1), dataset.url)


def test_append_and_grow_misuse_raises(tmp_path):
    prep, dataset = fitted(tmp_path)
    with pytest.raises(ColumnError, match=r'lack "sold"'):
        prep.append(day(1).drop(columns="sold"), dataset.url)
    with pytest.raises(ConfigError, match="overwrite"):
        prep.append(day(1), dataset.url, overwrite=True)
    with pytest.raises(ConfigError, match="no dataset at"):
        prep.append(day(1), tmp_path / "nothing.dp")
    assert not (tmp_path / "nothing.dp").exists()
    folds = dp.Preprocessor(FEATURES, targets="sold", split=dp.KFold(2))
    folds.fit_write(day(0), tmp_path / "folds.dp", progress=False)
    with pytest.raises(ConfigError, match="append needs one fold"):
        folds.append(day(1), tmp_path / "folds.dp")
    with pytest.raises(ConfigError, match="has folds"):
        prep.append(day(1), tmp_path / "folds.dp")
    with pytest.raises(ConfigError, match="grow needs one fold"):
        folds.grow(day(1))
    assert len(dp.open_dataset(dataset.url)["train"]) == 60


@pytest.mark.parametrize("mode", ["lazy", "lazy_cached", "eager"])
def test_images_of_all_parts_are_decoded_and_reported(tmp_path, mode):
    from PIL import Image

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, 8, 9, 3), np.uint8)
    for number, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    frame = pd.DataFrame({"photo": [str(tmp_path / f"{number}.png") for number in range(6)], "n": np.arange(6.0)})
    features = {"photo": dp.Image(height=8, width=9, num_channels=3, mode=mode), "n": dp.Number(normalization=None)}
    prep = dp.Preprocessor(features, split=None)
    prep.fit_write(frame[:4], tmp_path / "photos.dp", block_rows=3, progress=False)
    grown = prep.append(frame[4:], tmp_path / "photos.dp", progress=False)
    loader = grown["train"].loader(2, expand=False)
    for _ in range(2):
        for batch in loader:
            assert np.array_equal(batch["photo"].numpy(), images[batch["n"].int()].transpose(0, 3, 1, 2))
    if mode == "lazy_cached":
        grown.cache_media(progress=False)
    assert np.array_equal(grown["train"].read("photo")["photo"], images.transpose(0, 3, 1, 2))
    assert "cannot be decoded" not in grown.report().html


def test_files_of_an_earlier_append_are_appended_once(tmp_path):
    files = [tmp_path / f"{number}.parquet" for number in range(4)]
    for number, file in enumerate(files):
        day(number).to_parquet(file)
    prep = dp.Preprocessor(FEATURES, split=None)
    prep.fit_write(str(files[0]), tmp_path / "days.dp", progress=False)
    prep.append([str(files[1]), str(files[2])], tmp_path / "days.dp", progress=False)
    names = rf'"{files[0]}", "{files[2]}" already, but not of all files: pass only "{files[3]}"'
    with pytest.raises(ConfigError, match=names):
        prep.append([str(files[number]) for number in (0, 2, 3)], tmp_path / "days.dp", progress=False)
    with pytest.raises(ConfigError, match=r"2.parquet\" already, but not of all files: pass only .*3.parquet"):
        prep.append({"train": str(files[3]), "validation": str(files[2])}, tmp_path / "days.dp", progress=False)
    with pytest.raises(ConfigError, match=r"1.parquet\" already: pass new files"):
        prep.append([str(files[0]), str(files[1])], tmp_path / "days.dp", progress=False)
    day(9).to_parquet(files[2])  # other rows at the same path
    assert len(prep.append(str(files[2]), tmp_path / "days.dp", progress=False)["train"]) == 240
    again = prep.append(str(files[2]), tmp_path / "days.dp", version="again", progress=False)
    assert len(again["train"]) == 300
