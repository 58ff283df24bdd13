"""Persons erased from datasets, states and files: nothing of them is left in any byte, and nothing else is lost."""

from __future__ import annotations

import hashlib
import json
import os
import re
import runpy
import shutil
import struct
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import daskprep as dp
from daskprep.dataset.writing.deleting import purge_rows
from daskprep.errors import ConfigError, CorruptDatasetError, MissingColumnError
from daskprep.extensions import erasing
from daskprep.storage.checksum import json_sha256
from tests.amount import one_in

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

WRITER = runpy.run_path(str(Path(__file__).parents[1] / "dataset" / "writing" / "writer_process.py"))
KEY = {"customer": 17}
FRAME = pd.DataFrame(
    {"city": ["Rome", "Oslo", "Rome", "Bern"], "price": [1.0, 2, 3, 400], "customer": [16, 17, 18, 17]}
)
OTHERS = FRAME[FRAME["customer"] != 17]


def make(**options: Any) -> dp.Preprocessor:
    return dp.Preprocessor({"city": "category", "price": "number"}, keys=["customer"], split=None, **options)


def read_all(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files by name; of tables, their cells as well."""
    files = {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    tables = [name for name in files if name.endswith(".parquet")]
    return files | {f"{name} cells": repr(pq.read_table(folder / name).to_pydict()).encode() for name in tables}


def find(needles: list[bytes], folder: Path) -> set[str]:
    """Return the files that have one of the needles."""
    return {name for name, data in read_all(folder).items() if any(needle in data for needle in needles)}


def check_signature(receipt: dict[str, Any]) -> None:
    assert receipt["sha256"] == json_sha256({name: one for name, one in receipt.items() if name != "sha256"})


SECRET, LABEL, EXTREME, DATE = "whistleblower", "gone away", 98765.4321, "1931-02-03"
NEEDLES = [
    SECRET.encode(),
    LABEL.encode(),
    repr(EXTREME).encode(),
    struct.pack("<d", EXTREME),
    struct.pack("<f", EXTREME),
    DATE.encode(),
]


def write_everything(folder: Path) -> pd.DataFrame:
    """Write datasets with many types, versions and parts that have a person, and files that were made of them."""
    rows = 40
    frame = pd.DataFrame({
        "customer": [*range(100, 100 + rows - 2), 17, 17],
        "number": [*(np.arange(rows - 2) / 4), EXTREME, 1.0],
        "binned": [*(np.arange(rows - 2) / 4), EXTREME, 1.0],
        "dirty": [*map(str, range(rows - 2)), SECRET, "1"],
        "date": [*(f"2024-01-{row % 28 + 1:02}" for row in range(rows - 2)), DATE, "2024-01-01"],
        "label": [*(["yes", "no"] * (rows // 2 - 1)), LABEL, "yes"],
        "word": [*([*"ab"] * (rows // 2 - 1)), SECRET, "a"],
        "text": [*(["good bad"] * (rows - 2)), f"good {SECRET}", "bad"],
        "mail": [*(f"{row}@b.c" for row in range(rows - 2)), SECRET, SECRET],
    })  # fmt: skip
    numbers: dict[str, Any] = {
        "number": dp.Number(normalization="minmax", clip_quantiles=[0.0, 1.0]),
        "binned": dp.Number(encoding="bins", bins=4),
        "dirty": dp.Number(),
        "date": dp.Date(),
    }
    tokens: dict[str, Any] = {
        "label": dp.Category(),
        "word": dp.Category(),
        "text": dp.Text(),
        "words": dp.Set(column="text"),
        "target": dp.TargetEncoding(column="word", target="number"),
    }
    options: dict[str, Any] = {"keys": ["customer", "mail"], "split": None}
    prep = dp.Preprocessor(numbers | tokens, targets="label", **options)
    how: dict[str, Any] = {"progress": False, "compression": "none", "block_rows": 8}
    prep.fit_write(frame, folder / "a.dp", **how)
    prep.append(frame[-8:], folder / "a.dp", version="again", progress=False, on_findings="ignore")
    prep.write(frame[frame["customer"] != 17], folder / "b.dp", **how)
    prep.save(folder / "prep.json")
    prep.to_onnx(folder / "model.onnx", columns=["number", "word"])
    dp.Preprocessor({"word": "category"}, **options).fit_write(frame, folder / "c.dp", **how).delete([0])
    return frame


def erase_everything(folder: Path, **options: Any) -> dict[str, Any]:
    files = [folder / "prep.json", folder / "model.onnx"]
    return dp.erase([folder / name for name in ("a.dp", "b.dp", "c.dp")], KEY, files=files, **options)


def test_no_byte_of_any_file_has_the_person_after_states_were_learned_again(tmp_path):
    frame = write_everything(tmp_path)
    found = find(NEEDLES, tmp_path)
    for part in ("a.dp/", "c.dp/", "prep.json", "model.onnx", "metadata.json"):
        assert any(part in name for name in found), part
    assert all(find([needle], tmp_path) for needle in NEEDLES)
    others = frame[frame["customer"] != 17]
    receipt = erase_everything(tmp_path, refit=[others, others[:20], others], progress=False)
    check_signature(receipt)
    assert not find(NEEDLES, tmp_path)
    assert [one["rows"] for one in receipt["datasets"].values()] == [4, 0, 3]  # with a row that was deleted before
    assert not any(one["kept"] for one in receipt["datasets"].values())
    first, second = (dp.open_dataset(tmp_path / name) for name in ("a.dp", "b.dp"))
    assert (len(first["train"]), len(second["train"])) == (38, 20)
    assert dp.open_dataset([tmp_path / "a.dp", tmp_path / "b.dp"])["train"].read("word")["word"].size == 58  # one state
    fitted = dp.Preprocessor.load(tmp_path / "prep.json")
    assert fitted.to_dict() == dp.Preprocessor.from_dataset(first).to_dict()
    fitted.to_onnx(tmp_path / "again.onnx", columns=["number", "word"])
    assert (tmp_path / "model.onnx").read_bytes() == (tmp_path / "again.onnx").read_bytes()


def test_receipt_lists_all_that_still_has_the_person_if_states_stay(tmp_path):
    write_everything(tmp_path)
    before = dp.open_dataset(tmp_path / "b.dp")["train"].read()
    with pytest.warns(UserWarning, match='cells that stay, of "number", "binned", "dirty"'):
        receipt = erase_everything(tmp_path)
    check_signature(receipt)
    left = find(NEEDLES, tmp_path)
    assert {name.rpartition("/")[2] for name in left} == {
        "metadata.json",
        "prep.json",
        "model.onnx",
    }  # no arrays and tables
    for path in [*tmp_path.rglob("metadata.json"), tmp_path / "prep.json"]:
        state, folder = json.loads(path.read_bytes()), path.relative_to(tmp_path).parts[0]
        kept = receipt["datasets"][str(tmp_path / ("a.dp" if folder == "prep.json" else folder))]["kept"]
        for name, feature in state["features"].items():
            feature.pop("golden", None)
            for field in kept.get(name, ()):
                del feature["learned"][field]
        assert not [needle for needle in NEEDLES if needle in json.dumps(state).encode()], path
    assert not find(NEEDLES[:2], tmp_path)
    after = dp.open_dataset(tmp_path / "b.dp")["train"].read()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert len({file.read_bytes() for file in tmp_path.rglob("erased-*.json")}) == 1
    stored = [json.loads(file.read_bytes()) for file in tmp_path.rglob("erased-*.json")]
    assert stored == [receipt] * 3


@pytest.mark.parametrize("cells", [[17], ["17"], [17.0], [None, "a", 17]])
def test_rows_of_erased_keys_are_refused_until_they_are_allowed(tmp_path, cells):
    prep = make()
    prep.fit_write(FRAME, tmp_path / "a.dp")
    dp.erase(tmp_path / "a.dp", KEY)
    again = dp.Preprocessor.from_dataset(tmp_path / "a.dp")
    new = FRAME.iloc[[0] * len(cells)].assign(customer=pd.Series(cells, [0] * len(cells), object))
    before = read_all(tmp_path)
    for write in (again.append, again.write, make().fit_write):
        options = {} if write == again.append else {"overwrite": True}
        with pytest.raises(ConfigError, match=r"1 row of the source have keys \(customer\) that were erased"):
            write(new, tmp_path / "a.dp", **options)
        with pytest.raises(MissingColumnError, match='rows were erased from .* by "customer": pass rows with this'):
            write(new.drop(columns="customer"), tmp_path / "a.dp", **options)
        assert read_all(tmp_path) == before
    assert len(again.append(OTHERS.assign(customer=[19, 20]), tmp_path / "a.dp")["train"]) == 4
    assert len(again.append(new, tmp_path / "a.dp", allow_erased=True)["train"]) == 4 + len(cells)
    assert len(make().fit_write(new, tmp_path / "a.dp", overwrite=True, allow_erased=True)["train"]) == len(cells)
    with pytest.raises(ConfigError, match="were erased"):
        make().fit_write(new, tmp_path / "a.dp", overwrite=True)  # also after rows of another write


def test_rows_that_match_one_of_several_keys_are_not_refused(tmp_path):
    make().fit_write(FRAME, tmp_path / "a.dp")
    dp.erase(tmp_path / "a.dp", {"customer": [17, 18], "city": "Oslo"})
    dp.erase(tmp_path / "a.dp", {"customer": 16})
    dp.erase(tmp_path / "a.dp", lambda rows: rows["price"] > 100)
    assert dp.open_dataset(tmp_path / "a.dp")["train"].read("row_id")["row_id"].tolist() == [2]
    again = dp.Preprocessor.from_dataset(tmp_path / "a.dp")
    assert len(again.append(FRAME.iloc[2:].assign(price=500.0), tmp_path / "a.dp")["train"]) == 3
    for customer, city in ((17, "Oslo"), (18, "Oslo"), (16, "Rome")):
        with pytest.raises(ConfigError, match=r"1 row .* \(customer, city\)"):
            again.append(FRAME[:1].assign(customer=customer, city=city), tmp_path / "a.dp")


def test_statistics_of_all_datasets_of_a_fit_are_listed(tmp_path):
    prep = make()
    prep.fit_write(FRAME, tmp_path / "a.dp")
    prep.write(OTHERS.iloc[[0, 0]], tmp_path / "b.dp")
    dp.Preprocessor({"price": "number"}, keys=["customer"]).fit_write(OTHERS, tmp_path / "c.dp")
    with pytest.warns(UserWarning, match='cells that stay, of "price": the receipt'):
        receipt = dp.erase([tmp_path / name for name in ("c.dp", "b.dp", "a.dp")], {"customer": 18})
    assert [one["rows"] for one in receipt["datasets"].values()] == [1, 0, 1]
    with pytest.warns(UserWarning, match='cells that stay, of "price": the receipt'):
        receipt = dp.erase([tmp_path / name for name in ("b.dp", "a.dp")], {"customer": 17})
    assert [one["kept"].keys() for one in receipt["datasets"].values()] == [{"price"}] * 2
    assert [len(one["purges"]) for one in receipt["datasets"].values()] == [1, 1]
    dp.Preprocessor({"city": "category"}, keys=["customer"]).fit_write(FRAME, tmp_path / "d.dp")
    with warnings.catch_warnings(action="error"):
        receipt = dp.erase(tmp_path / "d.dp", KEY)  # whose state has tokens alone
    assert [one["kept"] for one in receipt["datasets"].values()] == [{}]


def test_digests_do_not_tell_keys_and_differ_by_dataset(tmp_path):
    for name in ("a.dp", "b.dp"):
        make().fit_write(FRAME, tmp_path / name)
    receipt = dp.erase([tmp_path / "a.dp", tmp_path / "b.dp"], {"customer": [17, 16]})
    refused = [one["refused"] for one in receipt["datasets"].values()]
    assert refused[0]["salt"] != refused[1]["salt"]
    assert not {*refused[0]["digests"]} & {*refused[1]["digests"]}
    (tmp_path / "a.dp" / "erased.json").write_text((tmp_path / "a.dp" / "erased.json").read_text().replace("a", "b"))
    with pytest.raises(CorruptDatasetError, match=r"erased.json was altered"):
        make().fit_write(OTHERS, tmp_path / "a.dp", overwrite=True)


@pytest.mark.parametrize(
    "change",
    [
        {"records": []},
        {"records": {"../up": {"columns": [], "digests": []}}},
        {"records": {"0" * 16: {"columns": ["customer"], "digests": ["not hexadecimal"]}}},
        {"records": {"0" * 16: {"columns": ["customer"], "digests": ["f" * 17]}}},
        {"records": {"0" * 16: {"columns": [["customer"]], "digests": []}}},
        {"format": 2},
    ],
)
def test_forged_lists_of_keys_are_refused(tmp_path, change):
    make().fit_write(FRAME, tmp_path / "a.dp")
    body = {"format": 1, "salt": "", "records": {}, **change}
    (tmp_path / "a.dp" / "erased.json").write_text(json.dumps({**body, "sha256": json_sha256(body)}))
    for call in (lambda: dp.erase(tmp_path / "a.dp", KEY), lambda: make().fit_write(FRAME, tmp_path / "a.dp")):
        with pytest.raises(CorruptDatasetError, match=r"erased.json was altered"):
            call()


def test_files_that_only_the_dataset_names_are_not_touched(tmp_path):
    make().fit_write(FRAME, tmp_path / "a.dp").delete([0])
    make().fit(OTHERS).save(tmp_path / "own.json")
    forged = {"columns": ["customer"], "digests": [], "purges": 0, "leaders": [0]}
    forged["files"] = {str(tmp_path / "own.json"): {"dataset": 0, "columns": [], "before": ""}}
    body = {"format": 1, "salt": "", "records": {"0" * 16: forged}}
    (tmp_path / "a.dp" / "erased.json").write_text(json.dumps({**body, "sha256": json_sha256(body)}))
    before = (tmp_path / "own.json").read_bytes()
    receipt = dp.erase(tmp_path / "a.dp", {"customer": []})
    assert receipt["files"] == {}
    assert (tmp_path / "own.json").read_bytes() == before


def test_wrong_calls_change_nothing(tmp_path):
    prep = make()
    prep.fit_write(FRAME, tmp_path / "a.dp")
    dp.Preprocessor({"city": "category"}).fit_write(FRAME, tmp_path / "b.dp")
    dp.Preprocessor({"city": "category"}, split=dp.KFold(2)).fit_write(FRAME, tmp_path / "folds.dp")
    make().fit(OTHERS).save(tmp_path / "other.json")
    make().fit(OTHERS).to_onnx(tmp_path / "other.onnx")
    prep.grow(OTHERS.assign(city="Kyiv"))
    prep.save(tmp_path / "grown.json")
    (tmp_path / "no.onnx").write_bytes(b"no model")
    (tmp_path / "no.html").write_bytes(b"a report")
    before, path = read_all(tmp_path), tmp_path / "a.dp"
    for call, message in (
        (lambda: dp.erase([path, tmp_path / "b.dp"], KEY), "b.dp has no key 'customer'"),
        (lambda: dp.erase([path, tmp_path / "folds.dp"], {"city": "Oslo"}), "has folds"),
        (lambda: dp.erase([path, path], KEY), "several different ones"),
        (lambda: dp.erase([], KEY), "pass one dataset"),
        (lambda: dp.erase(path, {"customer": None}), "missing value"),
        (lambda: dp.erase([path], KEY, refit=OTHERS), "rows of each of the 1 datasets"),
        (lambda: dp.erase(path, KEY, overwrite=True), "leave out overwrite"),
        (lambda: dp.erase(path, KEY, files=[tmp_path / "none.json"]), "there is no file .*none.json"),
        (lambda: dp.erase(path, KEY, files=[tmp_path / "other.json"]), "other.json has another fitted state"),
        (lambda: dp.erase(path, KEY, files=[tmp_path / "other.onnx"]), "other.onnx has another fitted state"),
        (lambda: dp.erase(path, KEY, files=[tmp_path / "grown.json"]), "or tokens that none of them has"),
        (lambda: dp.erase(path, KEY, files=[tmp_path / "no.onnx"]), "not an ONNX model"),
    ):
        with pytest.raises(ConfigError, match=message):
            call()
    with pytest.raises(CorruptDatasetError, match="no.html"):
        dp.erase(path, KEY, files=[tmp_path / "no.html"])
    assert read_all(tmp_path) == before


@pytest.mark.parametrize("has_appended", [False, True])
def test_refit_without_appended_rows_warns(tmp_path, has_appended):
    prep, path = make(), tmp_path / "a.dp"
    prep.fit_write(FRAME, path)
    more = FRAME.assign(customer=20)
    prep.append(more, path)
    refit = pd.concat([OTHERS, more]) if has_appended else OTHERS
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dp.erase(path, KEY, refit=refit)
    lacking = [str(one.message) for one in caught if "rows after refit=" in str(one.message)]
    assert len(dp.open_dataset(path)["train"]) == len(refit)
    assert len(lacking) == (not has_appended)
    assert has_appended or "has 2 rows after refit=, and had 6 without the erased ones" in lacking[0]


def test_source_that_still_has_the_person_is_not_learned_from(tmp_path):
    make().fit_write(FRAME, tmp_path / "a.dp")
    with pytest.raises(ConfigError, match="2 rows of the source have keys"):
        dp.erase(tmp_path / "a.dp", KEY, refit=FRAME)
    assert not find([b"Oslo", b"Bern"], tmp_path)  # the rows are gone
    receipt = dp.erase(tmp_path / "a.dp", KEY, refit=OTHERS)
    assert [one["rows"] for one in receipt["datasets"].values()] == [2]  # by both calls
    assert len([*tmp_path.rglob("erased-*.json")]) == 1


def check_erased(folder: Path, step: Any, rows: list[int]) -> None:
    """Check that datasets, files and receipts are complete after `erase_everything`."""
    datasets = [dp.open_dataset(folder / name) for name in ("a.dp", "b.dp", "c.dp")]
    for dataset in datasets:
        dataset.verify()
        assert not {*dataset["train"].read("customer")["customer"]} & {17}, step
    assert [len(dataset["train"]) for dataset in datasets] == rows, step
    assert not [file.name for file in folder.glob("*.dp/**/*") if ".tmp" in file.name or file.name == "next.json"], step
    receipts = [file.read_bytes() for file in sorted(folder.rglob("erased-*.json"))]
    assert len(receipts) == 3, step
    assert len({*receipts}) == 1, step
    receipt = json.loads(receipts[0])
    check_signature(receipt)
    assert [one["rows"] for one in receipt["datasets"].values()] == [4, 0, 3], step
    for path, digests in receipt["files"].items():
        assert hashlib.sha256(Path(path).read_bytes()).hexdigest() == digests["after"] != digests["before"], step
    for dataset, one in zip(datasets, receipt["datasets"].values(), strict=True):
        assert one["digest"] == dataset.digest, step


@pytest.mark.parametrize(
    "stopped", [pytest.param(0, marks=pytest.mark.slow), 1, pytest.param(2, marks=pytest.mark.slow)]
)
def test_erasure_that_is_interrupted_continues(tmp_path, monkeypatch, stopped):
    frame, calls = write_everything(tmp_path), iter(range(9))

    def purge(*datasets):
        if next(calls) == stopped:
            raise KeyboardInterrupt
        return purge_rows(*datasets)

    monkeypatch.setattr(erasing, "purge_rows", purge)
    with pytest.raises(KeyboardInterrupt):
        erase_everything(tmp_path)
    with pytest.raises(ConfigError, match="were erased"):
        dp.Preprocessor.from_dataset(tmp_path / "b.dp").append(frame, tmp_path / "b.dp")
    erase_everything(tmp_path)
    check_erased(tmp_path, stopped, [44, 38, 37])
    assert not find(NEEDLES[:2], tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("refit", [False, True])
def test_erasure_that_is_killed_at_any_step_continues(tmp_path, refit):
    before, folder = tmp_path / "before", tmp_path / "now"
    others = write_everything(before)[:-2]
    paths = [tmp_path / f"{number}.parquet" for number in range(3)]
    for one, path in zip([others, others[:20], others], paths, strict=True):
        one.to_parquet(path, compression="none")
    datasets, files = (
        [str(folder / name) for name in names] for names in (("a.dp", "b.dp", "c.dp"), ("prep.json", "model.onnx"))
    )
    call = {"datasets": datasets, "where": KEY, "files": files}
    if refit:
        call |= {"refit": [*map(str, paths)], "progress": False, "workers": "threads"}
    rows, needles = ([38, 20, 38], NEEDLES) if refit else ([44, 38, 37], NEEDLES[:2])
    with WRITER["writer_process"]() as writer:

        def erase(**how: Any) -> Any:
            return writer.write(folder, [], erase=call, **how)

        shutil.copytree(before, folder)
        undisturbed = erase()
        assert undisturbed.error is None, undisturbed.message
        check_erased(folder, "undisturbed", rows)
        steps = undisturbed.steps
        finished = max(at for at, step in enumerate(steps) if re.fullmatch("replace .*/a.dp/erased.json", step))
        assert finished > 300
        for number in [*range(0, finished, one_in(int(os.environ.get("KILLS", "41")))), finished]:
            shutil.rmtree(folder)
            shutil.copytree(before, folder)
            assert erase(kill_at=number).returncode == -9
            for dataset in datasets:
                dp.open_dataset(dataset).verify()
            again, step = erase(), (number, steps[number])
            assert again.error is None, (step, again.message)
            check_erased(folder, step, rows)
            assert not find(needles, folder), step


WORDS = [f"word{number}" for number in range(9)]


@st.composite
def tables(draw):
    rows = draw(st.integers(2, 12))
    pick = lambda values: draw(st.lists(st.sampled_from(values), min_size=rows, max_size=rows))  # noqa: E731
    return pd.DataFrame(
        {"customer": pick(range(6)), "word": pick(WORDS), "more": pick([f"other{number}" for number in range(9)])}
    )


def check_tokens(path: Path, erased: set[int], frames: list[pd.DataFrame], states: dict[str, Any]) -> None:
    """Check that tokens of erased rows alone are gone, and that the ids of others and all rows stay."""
    all_rows = pd.concat(frames)
    is_erased = all_rows["customer"].isin(erased)
    for column, old in states.items():
        lost = {*all_rows[column][is_erased]} - {*all_rows[column][~is_erased]}
        new = dp.open_dataset(path).vocabulary(column).tokens.to_pylist()
        expected = [f"<REMOVED {number}>" if word in lost else word for number, word in enumerate(old[: len(new)])]
        assert new == expected
        assert not find([f"{word}{end}".encode() for word in lost for end in ('"', "'")], path)


@settings(max_examples=5 * (13 // one_in(13)), deadline=None)
@given(st.lists(tables(), min_size=1, max_size=3), tables(), st.sets(st.integers(0, 5), min_size=1), st.data())
def test_tokens_are_removed_if_no_dataset_of_the_fit_has_them_elsewhere(tmp_path_factory, frames, other, erased, data):
    folder = tmp_path_factory.mktemp("erased")
    features = {"word": dp.Category(), "more": dp.Text()}
    prep = dp.Preprocessor(features, keys=["customer"], split=None)
    other = pd.concat([other, pd.DataFrame({"customer": [9], "word": ["solo"], "more": ["solo"]})])  # another state
    is_appended = [data.draw(st.booleans()) for _ in frames]
    paths = [folder / "a.dp"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prep.fit(pd.concat(frames)).write(frames[0], paths[0], version="0", progress=False)
        for number, (frame, appended) in enumerate(zip(frames[1:], is_appended, strict=False), start=1):
            if appended:
                prep.append(frame, paths[0], version=str(number), on_findings="ignore")
            else:
                paths.append(folder / f"{number}.dp")
                prep.write(frame, paths[-1], version=str(number), progress=False)
        dp.Preprocessor(features, keys=["customer"], split=None).fit_write(other, folder / "other.dp", progress=False)
        prep.save(folder / "prep.json")
        states = {name: prep.learned_[name].vocabulary.tokens.to_pylist() for name in features}
        alone = dp.open_dataset(folder / "other.dp")
        own_states = {name: alone.vocabulary(name).tokens.to_pylist() for name in features}
        order = data.draw(st.permutations([*paths, folder / "other.dp"]))
        receipt = dp.erase(order, {"customer": sorted(erased)}, files=[folder / "prep.json"])
    counts = Counter({str(path): one["rows"] for path, one in receipt["datasets"].items()})
    assert counts.total() == sum(frame["customer"].isin(erased).sum() for frame in [*frames, other])
    for path in paths:
        check_tokens(path, erased, frames, states)
    check_tokens(folder / "other.dp", erased, [other], own_states)
    fitted = dp.Preprocessor.load(folder / "prep.json")
    assert fitted.to_dict() == dp.Preprocessor.from_dataset(paths[0]).to_dict()
    opened = dp.open_dataset(paths)  # which have one state
    kept = opened.splits["train"].head(99)["word"].tolist() if opened.splits else []
    assert sorted(kept) == sorted(word for one in frames for word in one["word"][~one["customer"].isin(erased)])
    shutil.rmtree(folder)
