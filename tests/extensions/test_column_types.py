from __future__ import annotations

import contextlib
import json
import pickle

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.base import clone

import daskprep as dp
from daskprep.columns.summaries import DistinctValues
from daskprep.columns.summaries.column_facts import ColumnFacts
from daskprep.errors import ColumnError, ConfigError
from daskprep.extensions.column_types.column_facts import column_facts
from daskprep.extensions.media.audio import encode_wav
from daskprep.extensions.media.pixels import encode_png

ROWS = 400


def passengers(rows: int = ROWS) -> pd.DataFrame:
    """Return rows that resemble passenger lists and a census."""
    rng = np.random.default_rng(0)
    words = np.array([f"word{i}" for i in range(2000)])
    age = rng.integers(1, 80, rows).astype(float)
    age[::5] = np.nan
    return pd.DataFrame(
        {
            "PassengerId": np.arange(1, rows + 1),
            "survived": rng.integers(0, 2, rows),
            "pclass": rng.choice([1, 2, 3], rows, p=[0.25, 0.2, 0.55]),
            "name": [" ".join(rng.choice(words, 4)) for _ in range(rows)],
            "sex": rng.choice(["male", "female"], rows),
            "age": age,
            "siblings": rng.poisson(0.5, rows),
            "fare": rng.lognormal(3, 1, rows).round(4),
            "embarked": rng.choice(["S", "C", "Q", None], rows),
            "alone": rng.random(rows) < 0.6,
            "boarded": pd.date_range("1912-04-10", periods=rows, freq="7min").astype(str),
            "education": rng.choice([" HS-grad", " Masters", " ?", " 11th"], rows),
            "ship": "Titanic",
        }
    )


EXPECTED = {
    "survived": "binary",
    "pclass": "category",
    "name": "text",
    "sex": "binary",
    "age": "number",
    "siblings": "number",
    "fare": "number",
    "embarked": "category",
    "alone": "binary",
    "boarded": "date",
    "education": "category",
}


def kinds(inferred) -> dict[str, str]:
    return {name: feature.kind for name, feature in inferred.items()}


def guess(cells, name: str = "column") -> str:
    """Return the inferred type of one column, next to a usable second column."""
    frame = pd.DataFrame({name: pd.Series(cells), "other": np.linspace(0.0, 1.0, len(cells))})
    return kinds(dp.infer_features(frame)).get(name, "skipped")


def several(*cells: object) -> list[object]:
    return [cells[i * 7 % len(cells)] for i in range(ROWS)]


def test_mixed_frame_has_the_expected_features():
    inferred = dp.infer_features(passengers())
    assert kinds(inferred) == EXPECTED
    assert list(inferred.skipped) == ["PassengerId", "ship"]
    assert "unique in every row, so this looks like an identifier" in inferred.skipped["PassengerId"]
    assert "constant: 'Titanic' in every row" in inferred.skipped["ship"]
    assert inferred.reasons["age"].endswith("distinct values in 400 rows, 20.0 % missing")


def test_csv_file_has_the_features_of_the_frame(tmp_path):
    passengers().to_csv(tmp_path / "ship.csv", index=False)
    inferred = dp.infer_features(tmp_path / "ship.csv")
    assert kinds(inferred) == EXPECTED
    assert "(read from text):" in inferred.reasons["fare"]


@pytest.mark.parametrize("npartitions", [1, 3, 16])
def test_features_and_reasons_do_not_depend_on_partitions(npartitions):
    rows = 20_000  # more than are kept, so that the number of distinct values is estimated
    frame = passengers(rows).assign(code=[f"{i * 7919 % 15_000:05x} z" for i in range(rows)])
    whole = dp.infer_features(frame)
    parts = dp.infer_features(dd.from_pandas(frame, npartitions=npartitions, sort=False))
    assert "about" in whole.reasons["name"]
    assert parts.reasons == whole.reasons
    assert parts.skipped == whole.skipped


def test_every_dataframe_backend_has_the_same_features(as_frame):
    assert kinds(dp.infer_features(as_frame(passengers()))) == EXPECTED


def test_last_rows_count_as_much_as_first_rows():
    early = several("1", "2", "30")
    assert guess([*early, *early]) == "number"
    assert guess([*early, *several("x", "y")]) == "category"
    assert guess(["2021-05-06"] * 9_000 + ["no date"] * 1_000) == "binary"


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (several("Yes", "no", "YES", "No "), "binary"),
        (several("T", "F", None), "binary"),
        (several(1, -1), "binary"),
        (several("yes", None), "binary"),
        (several("on", "off"), "binary"),
        (several("red", "green", "blue"), "category"),
        (several("I agree with all of it", "I do not agree at all", "No opinion on this"), "category"),
        (several("1", "2", "3+"), "category"),
        (several(*["1", "2"] * 20, "3+"), "category"),
        (several("02139", "10001", "94103"), "category"),
        (several(*range(1, 6)), "category"),
        (several(*range(10)), "category"),
        (several(0, 0, 0, 0, 0, 0, 1, 2, 3, 5), "number"),
        (several(*range(17)), "number"),
        (several(*range(1950, 2020)), "number"),
        ([f"{i / 7:.3f}" for i in range(ROWS)], "number"),
        ([f"{i / 7:.3f}" if i % 9 else "n/a" for i in range(ROWS)], "number"),
        ([i / 7 for i in range(ROWS)], "number"),
        ([2**62 + i for i in range(ROWS)], "skipped"),
        ([f"{i:08x}-ab" for i in range(ROWS)], "skipped"),
        ([None] * ROWS, "skipped"),
        ([f"{1000 * i + 1234:,}" for i in range(ROWS)], "number"),
        ([f"{i},5" for i in range(ROWS)], "number"),
    ],
)
def test_labels_numbers_and_identifiers(cells, kind):
    assert guess(cells) == kind


def test_repeated_integers_with_an_identifier_name_are_categories():
    assert guess(several(*range(1000, 1060)), "customer_id") == "category"
    assert guess(several(*range(1000, 1060)), "paid") == "number"


@pytest.mark.parametrize(
    ("written", "datetime_format"),
    [
        ("%Y-%m-%d %H:%M:%S", None),
        ("%m/%d/%Y", None),
        ("%d/%m/%Y", "%d/%m/%Y"),
        ("%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M"),
        ("%b %d, %Y", None),
        ("%A, %d %B %Y %H:%M:%S", None),
        ("%Y%m%d", "%Y%m%d"),
    ],
)
def test_dates_are_inferred_in_every_format(written, datetime_format):
    days = pd.date_range("2019-12-25", periods=ROWS, freq="D")
    frame = pd.DataFrame({"when": days.strftime(written)})
    feature = dp.infer_features(frame)["when"]
    assert (feature.kind, feature.datetime_format) == ("date", datetime_format)
    assert feature.fit_transform(frame)[:, :3].tolist() == [[d.year, d.month, d.day] for d in days]


def test_ambiguous_dates_follow_their_separator():
    frame = pd.DataFrame({"dots": several("03.05.2021", "04.06.2021"), "slashes": several("03/05/2021", "04/06/2021")})
    inferred = dp.infer_features(frame.iloc[:-1].assign(x=1.5 + frame.index[:-1]))
    assert inferred["dots"].datetime_format == "%d.%m.%Y"
    assert inferred["slashes"].datetime_format is None
    assert "read month first, which no cell contradicts" in inferred.reasons["slashes"]


def test_numbers_that_resemble_dates_are_not_dates():
    assert guess([f"{i % 3 + 1}.{i % 7}.{i % 2}" for i in range(ROWS)]) == "category"
    assert guess([f"10.0.{i % 9}.{i}" for i in range(ROWS)]) == "skipped"
    assert guess(several(*(f"{hour:02d}:00" for hour in range(24)))) == "category"
    assert guess([1_600_000_000 + 977 * i for i in range(ROWS)], "created_at") == "date"


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        ([f"{i / 7:.2f} {i}" for i in range(ROWS)], "vector"),
        ([f"[{i}, {i / 3:.2f}, 1]" for i in range(ROWS)], "vector"),
        ([" ".join(str(j / 3) for j in range(3 + i % 9)) for i in range(ROWS)], "timeseries"),
        ([[float(i), 1.0] for i in range(ROWS)], "vector"),
        ([[1.0] * (1 + i % 4) for i in range(ROWS)], "timeseries"),
        (several(["a", "b"], ["b"], [], ["c", "a"]), "set"),
        (several(["a", "b", "a"], ["b"], ["c", "a"]), "sequence"),
        (several("a b", "b", "a", "c a", "a b c", "c", "b c", ""), "set"),
        (several("red, big", "big", "red", "red, old, big", "old"), "set"),
        (several("red|big", "big", "red", "red|old|big", "old"), "set"),
        (["G A T T A C A G"[: 2 * (i % 6 + 2)] + "ACGT"[i % 4] + f" {'ACGT'[i % 3]}" for i in range(ROWS)], "sequence"),
        (several(*(f"first{i % 9} last{i % 31}" for i in range(279))), "text"),
        (several("Austin, TX", "Boston, MA", "Reno, NV", "Salem, MA"), "category"),
        (several("8928308280fffff", "8928308280bffff", "89283082807ffff"), "h3"),
        (several(622236750694711295, 617700169958293503), "h3"),
        ([f"photos/{i}.JPG" for i in range(ROWS)], "image"),
        ([f"https://sounds.org/{i}.wav" for i in range(ROWS)], "audio"),
    ],
)
def test_lists_sets_and_media(cells, kind):
    assert guess(cells) == kind


def test_media_in_memory_are_inferred_from_first_bytes(tmp_path):
    picture = encode_png(np.zeros((2, 2), np.uint8))
    sound = encode_wav(np.zeros(9, np.float32), 8000)
    cell = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table(
        {
            "photo": [picture, None, picture],
            "sound": pa.array([{"bytes": sound, "path": "x"}] * 3, cell),
            "drawing": pa.array([{"bytes": None, "path": "a.png"}, None, None], cell),
            "shape": pa.array([{"x": 1}] * 3),
        }
    )
    pq.write_table(table, tmp_path / "media.parquet")
    inferred = dp.infer_features(tmp_path / "media.parquet")
    assert kinds(inferred) == {"photo": "image", "sound": "audio", "drawing": "image"}
    assert "struct<x: int64>" in inferred.skipped["shape"]


def test_every_inferred_feature_can_be_fitted():
    frame = passengers()
    arrays = dp.Preprocessor(dp.infer_features(frame)).fit(frame).encode(frame)
    assert set(arrays) == set(EXPECTED)


def test_columns_with_unreadable_cells_are_skipped():
    frame = pd.DataFrame({"price": np.linspace(0, 1, 30), "raw": [{"a": 1}] * 30})
    assert "a cell of type dict cannot be read" in dp.infer_features(frame).skipped["raw"]


def test_frame_without_usable_columns_raises():
    with pytest.raises(ColumnError, match=r'"ship": constant.*name the features yourself'):
        dp.infer_features(pd.DataFrame({"ship": ["Titanic"] * 30}))
    with pytest.raises(ColumnError, match=r'"ship": no rows'):
        dp.infer_features(pd.DataFrame({"ship": []}))


def test_targets_drop_missing_rows_and_are_never_skipped():
    frame = passengers().assign(fare=lambda f: f.fare.where(f.index % 10 > 0))
    inferred = dp.infer_features(frame, targets=["fare", "survived"])
    assert inferred["fare"].missing_value_strategy == inferred["survived"].missing_value_strategy == "drop_row"
    assert inferred["fare"].normalization is None
    assert inferred["age"].missing_value_strategy != "drop_row"
    with pytest.raises(ColumnError, match='"ship" cannot be a target: constant'):
        dp.infer_features(frame, targets="ship")
    with pytest.raises(ColumnError, match='Did you mean "fare"'):
        dp.infer_features(frame, targets="fares")


def test_tables_of_features_show_every_column_and_escape_names():
    inferred = dp.infer_features(passengers().rename(columns={"age": "<b>age</b>"}))
    text, page = repr(inferred), inferred._repr_html_()
    assert text.startswith("11 features, 2 skipped\ncolumn")
    assert "skipped   constant: 'Titanic'" in text
    assert "&lt;b&gt;age&lt;/b&gt;" in page
    assert "<b>age" not in page


# -- Preprocessor("auto")


def test_auto_infers_features_in_fit_and_lists_skipped_columns():
    frame = passengers()
    prep = dp.Preprocessor("auto").fit(frame)
    assert kinds(prep.features_) == EXPECTED
    assert list(prep.inferred_.skipped) == ["PassengerId", "ship"]
    explicit = dp.Preprocessor(dp.infer_features(frame)).fit(frame)
    for name, array in explicit.encode(frame).items():
        np.testing.assert_array_equal(prep.encode(frame)[name], array)


def test_auto_preprocessor_is_saved_with_inferred_features(tmp_path):
    frame = passengers().sample(frac=1, random_state=0)
    prep = dp.Preprocessor("auto", split=dp.RandomSplit()).fit(frame)
    prep.save(tmp_path / "prep.json")
    loaded = dp.Preprocessor.load(tmp_path / "prep.json")
    assert json.dumps(loaded.to_dict()) == json.dumps(prep.to_dict())
    assert kinds(dp.Preprocessor.from_config(prep.to_config()).fit(frame).features_) == EXPECTED
    assert pickle.loads(pickle.dumps(prep)).inferred_.reasons == prep.inferred_.reasons


def test_clones_and_parameters_of_auto_stay_auto():
    prep = dp.Preprocessor("auto", fit_on="all").fit(passengers())
    assert clone(prep).get_params() == prep.get_params()
    assert prep.get_params()["features"] == "auto"
    assert "features_" not in vars(clone(prep))
    assert prep.set_params(fit_on="train").features == "auto"


def test_unfitted_auto_has_no_features():
    prep = dp.Preprocessor("auto")
    with pytest.raises(ConfigError, match="call fit first"):
        prep.to_config()
    assert "not fitted" in prep._repr_html_()


def test_auto_fit_write_writes_the_inferred_features(tmp_path):
    frame = passengers().assign(split=several("train", "test", "train", "val"))
    frame.to_parquet(tmp_path / "rows.parquet")
    prep = dp.Preprocessor("auto", split=dp.FixedSplit())
    dataset = prep.fit_write(tmp_path / "rows.parquet", tmp_path / "rows.dp", memory="2GB")
    assert prep.inferred_.skipped["split"] == "contains the split of each row"
    assert set(dataset.features) == set(EXPECTED)
    assert dp.Preprocessor.from_dataset(dataset).to_dict() == prep.to_dict()


# -- merging


def test_column_facts_of_parts_sum_to_the_whole():
    cells = several("1", "02", "a b", "2021-01-02", "", "?", "1 2 3", None, "x.png")
    whole = column_facts(pa.array(cells))
    parts = sum((column_facts(pa.array(cells[i : i + 7])) for i in range(0, ROWS, 7)), ColumnFacts())
    assert parts == whole
    assert (whole.rows, whole.numbers, whole.text.leading_zeros, whole.lists, whole.text.dates) == (400, 89, 44, 44, 45)


def test_distinct_values_merge_equally_in_any_grouping():
    rng = np.random.default_rng(1)
    keys = rng.integers(0, 60_000, 100_000)
    whole = DistinctValues.of(pa.array(keys), np.ones(len(keys), np.int64))
    cuts = [DistinctValues.of(pa.array(part), np.ones(len(part), np.int64)) for part in np.array_split(keys, 7)]
    left = ((cuts[6] + cuts[2]) + cuts[0]) + (cuts[5] + (cuts[1] + (cuts[4] + cuts[3])))
    assert left == whole
    assert whole.total == len(keys)
    assert abs(whole.count / len(np.unique(keys)) - 1) < 0.03
    kept = dict(zip(whole.texts.to_pylist(), whole.counts, strict=False))
    assert all((keys == int(text)).sum() == count for text, count in list(kept.items())[:50])


def test_large_identifier_is_unique_in_its_sampled_values():
    rows = 40_000
    frame = pd.DataFrame({"id": np.arange(rows), "hash": [f"{i:08x}-" for i in range(rows)], "x": np.arange(rows) / 7})
    inferred = dp.infer_features(frame)
    assert list(inferred) == ["x"]
    assert "all of 16,384 sampled values are distinct, so this looks like an identifier" in inferred.skipped["hash"]
    assert guess([f"{i // 3:08x}-" for i in range(rows)]) == "category"


def test_missing_marker_in_a_category_is_missing():
    work = several(*["Private", "Local", "State"] * 30, " ?", "?", None)
    inferred = dp.infer_features(pd.DataFrame({"work": work, "age": several("31", "42", "?", "53")}))
    reason = inferred.reasons["work"]
    assert reason.endswith("3.2 % missing; '?' is treated as missing")
    assert "3 distinct values" in reason
    fitted = dp.Preprocessor({"work": inferred["work"]}).fit(pd.DataFrame({"work": work}))
    assert set(fitted.learned_["work"].vocabulary.tokens.to_pylist()) == {"<UNK>", "Private", "Local", "State"}
    assert (fitted.learned_["work"].missing, fitted.learned_["work"].invalid) == (13, 0)


KINDS = {
    "float": [f"{i / 7:.2f}" for i in range(200)],
    "count": [str(i * i % 4999) for i in range(200)],
    "grade": [str(i % 5 + 1) for i in range(200)],
    "flag": [str(i % 2) for i in range(200)],
    "sold": ["yes" if i % 3 else "no" for i in range(200)],
    "day": [f"2020-0{i % 9 + 1}-{i % 28 + 1:02}" for i in range(200)],
    "point": [f"{i} {i / 7:.1f}" for i in range(200)],
    "cell": ["8a2a1072b59ffff", "8a2a1072b597fff"] * 100,
    "serial": [str(100_000 + 7 * i) for i in range(200)],
    "code": [f"u{i * 7919 % 10007:05}x" for i in range(200)],
    "city": ["Rome", "Oslo", "Bern", "Rome"] * 50,
}


@pytest.mark.parametrize("mark", ["?", "-", "N/A", "null", "none", "unknown", ".", "", " ", "NaN"])
def test_missing_markers_do_not_change_the_type(mark):
    clean = dp.infer_features(pd.DataFrame(KINDS))
    assert list(clean.skipped) == ["serial", "code"]
    for rows in (1, 30):
        marked = {name: [*values[: 200 - rows], *[mark] * rows] for name, values in KINDS.items()}
        found = dp.infer_features(pd.DataFrame(marked))
        assert {name: one.kind for name, one in found.items()} == {name: one.kind for name, one in clean.items()}
        assert list(found.skipped) == list(clean.skipped)
        assert f"{rows / 2} % missing" in found.reasons["float"]


@pytest.mark.parametrize("name", ["float", "day", "point", "cell", "sold"])
def test_missing_markers_are_reported_and_learned_as_missing(name):
    frame = pd.DataFrame({name: [*KINDS[name][:180], *["?"] * 20]})
    inferred = dp.infer_features(frame)
    assert inferred.reasons[name].endswith("10.0 % missing; '?' is treated as missing")
    inferred[name].set_params(missing_value_strategy="ffill")
    has_null_values = name in ("sold", "float")  # with null_values
    context = contextlib.nullcontext() if has_null_values else pytest.warns(UserWarning, match="20 of 200 cells")
    with context:
        learned = dp.Preprocessor(dict(inferred)).fit(frame).learned_[name]
    assert (learned.rows, learned.missing) == (200, 20)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["yes", "?"], "binary"),
        (["A", "?"], "binary"),
        (["A", "none"], "category"),
        (["A", None], "binary"),
        (["5", "?"], "binary"),
    ],
)
def test_one_value_besides_missing_markers(values, kind):
    inferred = dp.infer_features(pd.DataFrame({"x": several(*values), "y": np.linspace(0, 1, ROWS)}))
    assert inferred["x"].kind == kind


def test_columns_without_values_are_skipped():
    frame = pd.DataFrame({"marks": several("?", "N/A"), "lists": several([], []), "x": np.linspace(0, 1, ROWS)})
    inferred = dp.infer_features(frame)
    assert inferred.skipped["marks"].startswith("no values: all 400 rows only have markers of missing values")
    assert inferred.skipped["lists"].startswith("empty lists in all of 400 rows")


def test_missing_cells_do_not_change_means_with_auto():
    frame = pd.DataFrame({"x": [1.0, 2.0, 6.0, None] * 9, "sold": ["yes", "yes", "no", None] * 9})
    prep = dp.Preprocessor("auto").fit(frame)
    assert prep.learned_["x"].mean == 3.0
    assert prep.encode(frame)["x"][3] == 0.0
    assert prep.encode(frame)["sold"][:4].tolist() == [1, 1, 0, 1]


SIZES = ["tiny", "small", "large"]


def graded(rows: int = 90) -> pd.DataFrame:
    sizes = pd.Categorical(several(*SIZES[1:], None)[:rows], SIZES, ordered=True)
    return pd.DataFrame({"size": sizes, "any": pd.Categorical(several(*"abc")[:rows]), "x": np.linspace(0, 1, rows)})


@pytest.mark.parametrize("kind", ["pandas", "dask", "parquet", "feather"])
def test_ordered_categories_keep_their_order_from_every_source(kind, tmp_path):
    frame: object = graded()
    if kind == "dask":
        frame = dd.from_pandas(graded(), npartitions=3)
    elif kind != "pandas":
        frame = tmp_path / f"rows.{kind}"
        getattr(graded(), f"to_{kind}")(frame, **({"row_group_size": 30} if kind == "parquet" else {}))
    prep = dp.Preprocessor("auto").fit(frame)
    assert prep.inferred_["size"].get_params()["order"] == SIZES
    assert prep.inferred_["any"].get_params()["order"] is None
    assert prep.learned_["size"].vocabulary.tokens.to_pylist() == ["<UNK>", *SIZES]
    assert prep.encode(graded())["size"][:3].tolist() == [2, 3, 0]
    assert dp.Preprocessor.from_config(prep.to_config()).features["size"].order == SIZES


# -- sizes of media


def pictures(*sizes: tuple[int, int]) -> list[bytes]:
    return [encode_png(np.full(size, shade, np.uint8)) for shade, size in enumerate(sizes)]


def sounds(*seconds: float) -> list[bytes]:
    return [encode_wav(np.full(int(length * 1000), 0.001 * i, np.float32), 1000) for i, length in enumerate(seconds)]


def with_media(**columns: list[object]) -> pd.DataFrame:
    return pd.DataFrame(columns).assign(x=np.linspace(0, 1, len(next(iter(columns.values())))))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([(40, 60)] * 3, (None, None)),
        ([(40, 60), (40, 60), (80, 90)], (40, 60)),
        ([(400, 600), (400, 600), (600, 400)], (171, 256)),
        ([(300, 300)] * 3, (256, 256)),
    ],
)
def test_images_of_several_sizes_resize_to_the_median(sizes, expected):
    inferred = dp.infer_features(with_media(photo=pictures(*sizes)))
    feature = inferred["photo"]
    assert (feature.height, feature.width) == expected
    assert ("resized to" in inferred.reasons["photo"]) == (expected != (None, None))


@pytest.mark.parametrize(
    ("seconds", "limit"),
    [
        ([0.5] * 4, 0.5),
        ([0.5, 0.61], 0.7),
        ([*[0.5] * 39, 9.0], 9.0),
        ([0.5, 9.0], 9.0),
        ([31.0] * 2, 30.0),
        ([0.01] * 2, 0.1),
    ],
)
def test_audio_length_covers_all_recordings_up_to_a_bound(seconds, limit):
    inferred = dp.infer_features(with_media(word=sounds(*seconds)))
    assert inferred["word"].audio_file_length_limit_in_s == limit
    assert f"cut at {limit:g} s" in inferred.reasons["word"]


@pytest.mark.parametrize("npartitions", [1, 3])
def test_media_sizes_are_read_from_files_next_to_the_table(tmp_path, npartitions):
    for i, (picture, sound) in enumerate(zip(pictures((4, 6), (4, 6), (8, 9)), sounds(1, 1, 1), strict=True)):
        (tmp_path / f"{i}.png").write_bytes(picture)
        (tmp_path / f"{i}.wav").write_bytes(sound)
    names = {"photo": [f"{i}.png" for i in range(3)], "word": [f"{i}.wav" for i in range(3)]}
    cell = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    structs = pa.array([{"bytes": (tmp_path / name).read_bytes(), "path": name} for name in names["photo"]], cell)
    table = pa.table({**names, "cell": structs, "x": [0.5, 1.0, 1.5]})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=-(-3 // npartitions))
    inferred = dp.infer_features(dp.read_files(tmp_path / "rows.parquet", partition_bytes=1))
    assert (inferred["photo"].height, inferred["cell"].width) == (4, 6)
    assert inferred["word"].audio_file_length_limit_in_s == 1.0
    assert "4 x 6 to 8 x 9 pixels, resized to 4 x 6, the median" in inferred.reasons["photo"]


def test_unreadable_media_keep_default_sizes(tmp_path):
    broken = with_media(photo=[*pictures((4, 6))[0:1], b"\x89PNG\r\n\x1a\nbroken"], word=["no.wav", "none.wav"])
    inferred = dp.infer_features(broken)
    assert (inferred["photo"].height, inferred["word"].audio_file_length_limit_in_s) == (None, None)
    several_folders = [tmp_path / name / "rows.csv" for name in "ab"]
    for file in several_folders:
        file.parent.mkdir()
        file.write_text("photo,x\na.png,1.5\nb.png,2.5\n")
    assert dp.infer_features(several_folders)["photo"].height is None
