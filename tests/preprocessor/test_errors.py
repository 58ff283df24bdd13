"""Error messages: the closest name for an unknown one, swapped arguments, and their length."""

from __future__ import annotations

import inspect
import pickle
import warnings
from pathlib import Path

import pandas as pd
import pytest
from torch.utils.data import DataLoader

import daskprep as dp
from daskprep.dataset import Split
from daskprep.errors import MAX_MESSAGE_CHARACTERS, ConfigError, DaskprepError, StorageFullError, warn


@pytest.fixture
def frame() -> pd.DataFrame:
    return pd.DataFrame({"price": [1.0, 2.0, 3.0, 4.0], "city": ["a", "b", "a", None]})


@pytest.fixture
def prep() -> dp.Preprocessor:
    return dp.Preprocessor({"price": "number", "city": "category"})


def test_unknown_parameter_error_names_it(frame, prep, tmp_path):
    for call in (
        dp.Number,
        dp.RandomSplit,
        lambda **options: prep.fit_write(frame, tmp_path / "a.dp", **options),
        lambda **options: prep.fit(frame).stream(frame, **options),
    ):
        with pytest.raises(TypeError, match="unexpected keyword argument 'odd'"):
            call(odd=1)


@pytest.mark.parametrize(
    ("function", "option", "default"),
    [
        (Split.loader, "trim", False),
        (Split.loader, "group_by_length", ...),
        (dp.Mix, "to", "torch"),
        (dp.Preprocessor.stream, "window", ...),
        (dp.Preprocessor.fit_write, "compression", "lz4"),
        (dp.Preprocessor.append, "block_rows", None),
    ],
)
def test_signature_lists_options(function, option, default):
    parameters = inspect.signature(function).parameters
    assert parameters[option].default == default
    assert parameters[option].kind == inspect.Parameter.KEYWORD_ONLY
    assert parameters[option].annotation
    assert "options" not in parameters


def test_unknown_option_error_suggests_closest_name(frame, prep, tmp_path):
    train = prep.fit_write(frame, tmp_path / "a.dp")["train"]
    path = tmp_path / "b.dp"
    calls = [
        ("loader", train.loader, "group_by_lengths", "group_by_length"),
        ("stream", lambda **options: prep.stream(frame, **options), "epoch", "epochs"),
        ("fit_write", lambda **options: prep.fit_write(frame, path, **options), "block_row", "block_rows"),
        ("write", lambda **options: prep.write(frame, path, **options), "shard", "shards"),
        ("append", lambda **options: prep.append(frame, tmp_path / "a.dp", **options), "versions", "version"),
        ("Mix", lambda **options: dp.Mix({"a": train}, **options), "shuffles", "shuffle"),
    ]
    for name, call, option, meant in calls:
        message = rf"{name}\(\) got an unexpected keyword argument '{option}'. Did you mean \"{meant}\""
        with pytest.raises(TypeError, match=message):
            call(**{option: 1})
    with pytest.raises(TypeError, match="'num_workers'. Did you mean \"threads\""):
        train.loader(num_workers=2)
    with pytest.raises(TypeError, match="'pinned'. Options are: shuffle, seed"):
        train.loader(pinned=True)


def test_unknown_package_attribute_error_suggests_closest_name():
    with pytest.raises(AttributeError, match="no attribute 'Categorical'. Did you mean \"Category\""):
        _ = dp.Categorical


def test_swapped_arguments_raise(frame, prep, tmp_path):
    for write in (prep.fit_write, prep.fit(frame).write):
        with pytest.raises(ConfigError, match="expected the path or URL of a folder, not a DataFrame: rows are first"):
            write(tmp_path / "a.dp", frame)
    with pytest.raises(ConfigError, match="or .auto., not a DataFrame; pass the rows to fit"):
        dp.Preprocessor(frame).fit(frame)
    for features in (prep, {"price": dp.Number()}):
        with pytest.raises(ConfigError, match="expected rows, not features"):
            prep.fit(features)
    with pytest.raises(ConfigError, match="the path or URL of a dataset, not DataFrame"):
        dp.open_dataset(frame)


@pytest.mark.parametrize("workers", [0, 1])
def test_loader_in_dataloader_with_batch_size_raises(frame, prep, tmp_path, workers):
    loader = prep.fit_write(frame, tmp_path / "a.dp")["train"].loader(batch_size=2)
    with pytest.raises(ConfigError, match=r"pass batch_size to loader\(batch_size=\.\.\.\)"):
        next(iter(DataLoader(loader, batch_size=2, num_workers=workers)))
    assert len(next(iter(DataLoader(loader, batch_size=None, num_workers=workers)))["price"]) == 2


def test_stream_in_dataloader_with_batch_size_raises(frame, prep):
    with pytest.raises(ConfigError, match="would collate batches"):
        next(iter(DataLoader(prep.fit(frame).stream(frame, 2), batch_size=2)))


@pytest.mark.slow
def test_error_messages_are_short_for_long_names_and_many_columns(prep):
    long = "x" * 10_000
    many = pd.DataFrame({f"column {number} {'y' * 100}": [1.0] for number in range(2_000)})
    for fit in (
        lambda: prep.fit(many),
        lambda: dp.Preprocessor({long: dp.Number()}).fit(many),
        lambda: dp.Preprocessor({long: dp.Number(invalid="raise")}).fit(pd.DataFrame({long: ["a", "b"]})),
        lambda: dp.Preprocessor(dict.fromkeys(many.columns, "number"), targets="sold").fit(many),
    ):
        with pytest.raises(DaskprepError) as caught:
            fit()
        assert len(str(caught.value)) <= MAX_MESSAGE_CHARACTERS


def test_warnings_are_short_for_3000_columns(tmp_path):
    names = [f"column {number} {'y' * 100}" for number in range(3_000)]
    config = {"input_features": [{"name": name, "type": "number", "odd": 1} for name in names]}
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(",".join(f"{row}{'7' * 20}{place}" for place in range(3_000)) for row in (1, 2)))
    frame = pd.DataFrame({name: ["1.0", "odd" * 1_000, "2.0"] for name in names[:3]} | {names[3]: [None, None, "x"]})
    features = dict.fromkeys(names[:3], "number") | {names[3]: dp.Category(missing_value_strategy="drop_row")}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dp.Preprocessor.from_config(config)
        dp.read_files(path)
        list(dp.Preprocessor(features, split=None).fit(frame).stream(frame, 1))
    messages = [str(one.message) for one in caught]
    assert len(messages) >= 4
    assert MAX_MESSAGE_CHARACTERS - 1 <= max(map(len, messages)) <= MAX_MESSAGE_CHARACTERS


def test_long_message_is_truncated_in_the_middle():
    message = str(ConfigError("what is wrong: " + "x" * 10_000 + "; what to do"))
    assert message.startswith("what is wrong: xx")
    assert message.endswith("xx; what to do")
    assert len(message) <= MAX_MESSAGE_CHARACTERS


def test_os_errors_keep_errno_when_pickled():
    error = pickle.loads(pickle.dumps(StorageFullError(28, "no room")))
    assert (error.errno, error.strerror) == (28, "no room")


def test_warnings_point_to_the_calling_line():
    frame = pd.DataFrame({"x": ["1", "2", "many"]})
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        dp.Preprocessor({"x": "number"}).fit(frame)
        dp.Number().fit(frame)
        dp.Number().fit_transform(frame)
    assert {Path(one.filename).name for one in warned} == {"test_errors.py"}
    assert len({one.lineno for one in warned}) == 3


def test_warn_works_in_code_without_a_module_name():
    with pytest.warns(UserWarning, match="odd"):
        exec("warn('odd')", {"warn": warn})


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda: dp.Preprocessor({"price": "float32"}).fit({"price": [1.0]}), "number"),
        (lambda: dp.Preprocessor({"price": "str"}).fit({"price": ["a"]}), 'category" or "text'),
        (lambda: dp.Preprocessor({"x": dp.Number(missing_value_strategy="mean")}).fit({"x": [1.0]}), "fill_with_mean"),
        (lambda: dp.RandomSplit(test_size=0.2), "shares"),
        (lambda: dp.KFold(n_splits=5), "k"),
        (lambda: dp.Text(vocab_size=100), "most_common"),
        (lambda: dp.Text(max_len=100), "max_sequence_length"),
        (lambda: dp.Preprocessor({}, target="sold"), "targets"),
        (lambda: dp.Oversample("sold", ratoi=0.5), "ratio"),
    ],
)
def test_parameter_names_of_other_libraries_suggest_ours(call, meant):
    with pytest.raises((TypeError, ConfigError), match=f'Did you mean "{meant}"'):
        call()


def test_attributes_of_a_split_name_it(frame, prep, tmp_path):
    dataset = prep.fit_write(frame, tmp_path / "a.dp")
    for name, message in (
        ("loader", r'Dataset has no attribute .loader.: use dataset\["train"\]\.loader'),
        ("train", r'use dataset\["train"\]'),
        ("other", "'Dataset' object has no attribute 'other'"),
    ):
        with pytest.raises(AttributeError, match=message):
            getattr(dataset, name)
    for name, hint in (("to_pandas", 'Did you mean "head"'), ("redd", 'Did you mean "read"'), ("zzz", "$")):
        with pytest.raises(AttributeError, match=f"'Split' object has no attribute '{name}'. ?{hint}"):
            getattr(dataset["train"], name)


@pytest.mark.parametrize(
    ("device", "message"),
    [("gpu", 'not a torch device. Did you mean "cuda"'), (3.5, "not a torch device"), ("mps", "cannot be used here")],
)
def test_unavailable_device_raises(frame, prep, tmp_path, device, message):
    train = prep.fit_write(frame, tmp_path / "a.dp")["train"]
    for call in (
        lambda: next(iter(train.loader(2, device=device))),
        lambda: next(iter(prep.stream(frame, 2, device=device))),
    ):
        with pytest.raises(ConfigError, match=message):
            call()
