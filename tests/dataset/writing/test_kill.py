from __future__ import annotations

import itertools
import json
import random
import re
import runpy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daskprep.dataset import open_dataset
from daskprep.errors import ConfigError, IncompleteDatasetError
from tests.amount import one_in

WRITER = runpy.run_path(str(Path(__file__).with_name("writer_process.py")))
content = WRITER["content"]
SITUATIONS = ["nothing", "older"]


def check_killed(undisturbed: Any, path: Path, situation: str) -> str:
    """Check that a dataset after a kill is intact or unfinished, and return its kind."""
    try:
        dataset = open_dataset(path)
    except IncompleteDatasetError:
        assert situation == "nothing"
        return "unfinished"
    except ConfigError as error:
        assert situation == "nothing"
        assert "no dataset at" in str(error)  # noqa: PT017 not to raise at all is right as well
        return "none"
    dataset.verify()
    assert sum(len(split.read("row_id")["row_id"]) for split in dataset.splits.values()) > 3_000
    found: str = undisturbed.versions[dataset.version]
    assert found == "new" or situation == "older"
    return found


def check_rerun(undisturbed: Any, path: Path, step: Any, **how: Any) -> None:
    result = undisturbed.writer.write(path, undisturbed.source, **how)
    assert result.error is None, (step, result.message)
    found, expected = content(path), undisturbed.files
    differing = [name for name in {**found, **expected} if found.get(name, "") != expected.get(name, "")]
    assert not differing, (step, differing)


@pytest.fixture(scope="module")
def undisturbed_writes(tmp_path_factory) -> Iterator[Any]:
    with WRITER["undisturbed_writes"](tmp_path_factory.mktemp("undisturbed")) as write:
        yield write


@pytest.fixture(params=["ordered", pytest.param("shuffled", marks=pytest.mark.slow)])
def undisturbed(request, undisturbed_writes) -> Any:
    return undisturbed_writes(request.param)


PLACES = ["scratch", "receipts", "table", "zarr.json", "arrays.zarr", "vocab", "metadata.json", "rejects", "manifest"]


def ends_of_kinds(steps: list[str]) -> list[int]:
    """Return the first and the last step of every call on files of every kind; those between repeat them."""
    kinds: dict[tuple[str, str], list[int]] = {}
    for number, step in enumerate(steps):
        place = next((place for place in PLACES if place in step), "")
        kinds.setdefault((step.split()[0], place), []).append(number)
    return sorted({end for numbers in kinds.values() for end in (numbers[0], numbers[-1])})


# Possible results of kills, from the first step of a write to its last.
LEFT_BY_KILLS = {"nothing": {"none", "unfinished", "new"}, "older": {"older", "new"}}


def check_kills(undisturbed: Any, path: Path, situation: str, kill_at: Any) -> None:
    found = set()
    for number in kill_at:
        undisturbed.prepare(path, situation)
        result = undisturbed.write(path, kill_at=number)
        assert result.returncode == -9
        found.add(check_killed(undisturbed, path, situation))
        check_rerun(undisturbed, path, (number, undisturbed.steps[situation][number]))
    assert found == LEFT_BY_KILLS[situation]


@pytest.mark.slow
@pytest.mark.parametrize("situation", SITUATIONS)
def test_write_killed_at_some_steps_resumes(undisturbed, tmp_path, situation):
    last = len(undisturbed.steps[situation]) - 1
    check_kills(undisturbed, tmp_path / "a.dp", situation, [0, 2 * last // 3, last])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_write_killed_at_step_of_every_kind_resumes(undisturbed, tmp_path, situation):
    ends = ends_of_kinds(undisturbed.steps[situation])
    check_kills(undisturbed, tmp_path / "a.dp", situation, sorted({*ends[:: one_in(3)], ends[-1]}))


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize(
    "kills", [1, pytest.param(30 // one_in(3), marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_write_killed_at_random_moment_resumes(undisturbed, tmp_path, situation, kills):
    moments, path, done = random.Random(kills), tmp_path / "a.dp", 0
    for _ in range(5 * kills):
        undisturbed.prepare(path, situation)
        moment = moments.uniform(0, undisturbed.seconds)
        result = undisturbed.write(path, kill_after=moment, scheduler="threads")
        if result.returncode == 0:
            continue  # it was faster
        assert result.returncode == -9
        check_killed(undisturbed, path, situation)
        check_rerun(undisturbed, path, moment, scheduler="threads")
        done += 1
        if done == kills:
            return
    pytest.fail(f"only {done} writes were killed")


def test_write_killed_repeatedly_completes(undisturbed, tmp_path):
    path, kills = tmp_path / "a.dp", 0
    undisturbed.prepare(path, "older")
    # Each write gets some steps further than the one before, whose files it reuses.
    for more in itertools.count(20, 120):
        result = undisturbed.write(path, kill_at=more)
        if result.returncode == 0:
            break
        kills += 1
        check_killed(undisturbed, path, "older")
    assert kills > 3
    assert content(path) == undisturbed.files


@pytest.mark.parametrize("file", ["vocab/", "checkpoint.kept", "receipts/"])
def test_temporary_files_are_removed_after_second_kill(undisturbed, tmp_path, file):
    path = tmp_path / "a.dp"
    assert undisturbed.write(path, kill_on=f"replace .*{file}").returncode == -9
    assert [name for name in content(path) if file in name and name.endswith(".tmp")]
    assert undisturbed.write(path, kill_on="replace .*receipts/test-00001").returncode == -9
    check_rerun(undisturbed, path, file)


def stamps(path: Path) -> dict[str, tuple[int, int]]:
    """Return inode and modification time of each file."""
    files = {file.relative_to(path).as_posix(): file.stat() for file in path.rglob("*") if file.is_file()}
    return {name: (status.st_ino, status.st_mtime_ns) for name, status in files.items()}


def receipted(version: Path) -> set[str]:
    """Return the files of finished parts."""
    receipts = [json.loads(file.read_bytes())["receipt"] for file in (version / "receipts").glob("*.json")]
    return {f"{version.name}/{name}" for receipt in receipts for name in receipt["files"]}


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_parts_with_receipts_are_not_rewritten(undisturbed, tmp_path, share):
    path, steps = tmp_path / "a.dp", undisturbed.steps["nothing"]
    receipts = [n for n, step in enumerate(steps) if step.startswith("replace") and "/receipts/" in step]
    done = round(share * len(receipts))
    assert undisturbed.write(path, kill_at=receipts[done - 1] + 1).returncode == -9
    [version] = path.iterdir()
    before, kept = stamps(path), receipted(version)
    assert len(list((version / "receipts").glob("*.json"))) == done
    result = undisturbed.write(path)
    after = stamps(path)
    assert {name for name in before.keys() & after.keys() if before[name] == after[name]} >= kept
    written = [step for step in result.steps if step.startswith("replace") and "/table/" in step]
    assert len(written) == len(receipts) - done
    assert content(path) == undisturbed.files


def test_finished_write_writes_nothing(undisturbed, tmp_path):
    undisturbed.write(tmp_path / "a.dp")
    assert undisturbed.write(tmp_path / "a.dp").steps == []


def nameless(path: Path) -> dict[str, Any]:
    """Return the content of a dataset without the name of its version."""
    version, files = open_dataset(path).version, content(path)
    manifest = json.loads(files.pop("manifest.json"))["manifest"]
    assert manifest.pop("version") == version
    return {"manifest": manifest} | {name.replace(version, "version"): data for name, data in files.items()}


def every(steps: list[str], count: int) -> list[int]:
    return [*np.linspace(0, len(steps) - 1, count).astype(int).tolist()]


@pytest.mark.slow
def test_killed_overwrite_leaves_old_or_new_dataset(undisturbed, tmp_path):
    path = tmp_path / "a.dp"
    undisturbed.write(path)
    old = open_dataset(path).version
    shutil.copytree(path, tmp_path / "old.dp")
    steps = undisturbed.write(path, overwrite=True).steps
    expected, seen = content(path), set()
    commit = steps.index(f"replace {path}/manifest.json")
    for number in [0, commit, commit + 1, len(steps) - 1]:
        shutil.rmtree(path)
        shutil.copytree(tmp_path / "old.dp", path)
        assert undisturbed.write(path, overwrite=True, kill_at=number).returncode == -9
        dataset = open_dataset(path)
        dataset.verify()
        assert dataset.version == (old if number <= commit else f"{old}-1")
        seen.add(dataset.version)
        undisturbed.write(path, overwrite=True)
        # After the commit of the new version, the rerun writes another one.
        assert number > commit or content(path) == expected
        assert nameless(path) == nameless(tmp_path / "old.dp")
    assert len(seen) == 2


def test_killed_overwrite_is_discarded_by_later_write(undisturbed, tmp_path):
    path = tmp_path / "a.dp"
    undisturbed.write(path)
    assert undisturbed.write(path, overwrite=True, kill_on="replace .*/receipts/").returncode == -9
    assert content(path) != undisturbed.files
    check_rerun(undisturbed, path, "overwrite")


@pytest.mark.slow
@pytest.mark.parametrize("fitted", [False, True])
def test_killed_write_of_frame_restarts(undisturbed, tmp_path, fitted):
    path, how = tmp_path / "a.dp", {"frame": [1000, 1000, 1000], "fitted": fitted}
    steps = undisturbed.write(path, **how).steps
    expected = nameless(path)
    for number in every(steps, 3):
        shutil.rmtree(path)
        assert undisturbed.write(path, **how, kill_at=number).returncode == -9
        undisturbed.write(path, **how)
        open_dataset(path).verify()
        assert nameless(path) == expected


def test_killed_write_of_other_frame_is_not_reused(undisturbed, tmp_path):
    path, how = tmp_path / "a.dp", {"frame": [1500, 1500]}
    undisturbed.write(path, **how)
    expected = nameless(path)
    shutil.rmtree(path)
    others = [*undisturbed.source[1:], undisturbed.source[0]]
    assert undisturbed.writer.write(path, others, **how, kill_on="replace .*receipts/test-00001").returncode == -9
    undisturbed.write(path, **how)
    assert nameless(path) == expected


def frame_of(*partitions: int) -> dict[str, Any]:
    return {"frame": list(partitions), "version": "v1"}


CUTTINGS = [
    ({"partition_bytes": 200_000}, {"partition_bytes": 100_000}),
    (frame_of(1000, 1000, 1000), frame_of(600, 600, 600, 600, 600)),
    # Row counts of partitions of a Dask frame are unknown before they are read.
    (frame_of(1000, 2000), frame_of(2000, 1000)),
]


@pytest.mark.parametrize("filling", [False, pytest.param(True, id="filling")])
@pytest.mark.parametrize(("cutting", "other"), CUTTINGS)
def test_rerun_with_other_partitions_writes_same_files(undisturbed, tmp_path, cutting, other, filling):
    path, lost = tmp_path / "a.dp", "*-000001.*" if filling else "checkpoint.kept"
    undisturbed.write(path, **cutting, filling=filling)
    expected = content(path)
    shutil.rmtree(path)
    assert undisturbed.write(path, **cutting, filling=filling, kill_on="open .*/receipts/").returncode == -9
    # A loss of power may remove any scratch file, such as the checkpoint.
    for file in path.glob(f"*/scratch/**/{lost}"):
        file.unlink()
    undisturbed.write(path, **other, filling=filling)
    assert content(path) == expected


def test_killed_repair_is_completed_by_next(undisturbed, tmp_path):
    path = tmp_path / "a.dp"
    undisturbed.write(path)
    broken = [path / open_dataset(path).version / name for name in open_dataset(path).manifest.files if "c.1" in name]
    broken.append(path / open_dataset(path).version / "rejects.parquet")

    def damage() -> None:
        for file in broken:
            file.write_bytes(b"")

    damage()
    steps = undisturbed.write(path, repair=True).steps
    assert content(path) == undisturbed.files
    for number in every(steps, 4):
        damage()
        assert undisturbed.write(path, repair=True, kill_at=number).returncode == -9
        assert open_dataset(path).version in undisturbed.versions
        undisturbed.write(path, repair=True)
        assert content(path) == undisturbed.files


def damages(data: bytes) -> Iterator[bytes | None]:
    yield b""
    yield None
    yield data[: len(data) // 2]
    for place in (len(data) // 2, len(data) // 4, len(data) - 5):
        yield data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]


LEFT = ["placed", "rejects", "checkpoint", "metadata", "vocab", "receipts", "table"]


@pytest.mark.parametrize(
    ("undisturbed", "kind"),
    [pytest.param("shuffled", "outputs", marks=pytest.mark.slow), *(("ordered", kind) for kind in ["parsed", *LEFT])],
    indirect=["undisturbed"],
)
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow, id="all")])
def test_files_damaged_by_power_loss_are_rewritten(undisturbed, tmp_path, kind, step):
    path, left = tmp_path / "a.dp", tmp_path / "left.dp"
    assert undisturbed.write(left, kill_on="replace .*receipts/train-00002").returncode == -9
    name = next(file.relative_to(left) for file in sorted(left.rglob("*.*")) if file.is_file() and kind in str(file))
    for damaged in itertools.islice(damages((left / name).read_bytes()), 0, None, step):
        undisturbed.prepare(path, "nothing")
        shutil.copytree(left, path)
        (path / name).unlink() if damaged is None else (path / name).write_bytes(damaged)
        check_rerun(undisturbed, path, (str(name), damaged and len(damaged)))


def test_files_are_flushed_before_manifest(undisturbed, tmp_path):
    path = tmp_path / "deep" / "a.dp"
    steps = undisturbed.write(path).steps
    dataset, manifest = open_dataset(path), path / "manifest.json"
    last = {re.sub(r"\.[0-9a-f]{32}\.tmp", "", step): number for number, step in enumerate(steps)}
    commit = last[f"replace {manifest}"]
    for file in (path / dataset.version / name for name in dataset.manifest.files):
        assert last[f"fsync {file}"] < commit, file
        assert last[f"replace {file}"] < last[f"fsync {file.parent}"] < commit, file
    assert last[f"fsync {manifest}"] < commit < last[f"fsync {path}"]


def test_new_folders_are_flushed_in_parent(undisturbed, tmp_path):
    path = tmp_path / "deep" / "a.dp"
    steps = undisturbed.write(path).steps
    last = {step: number for number, step in enumerate(steps)}
    made = [Path(step.partition(" ")[2]) for step in steps if step.startswith("mkdir")]
    kept = [folder for folder in made if folder.exists()]
    assert path in kept
    assert not [one for one in kept if last.get(f"fsync {one.parent}", -1) < last[f"mkdir {one}"]]


@pytest.fixture(scope="module")
def before_append(undisturbed_writes, tmp_path_factory) -> tuple[Any, Path, Any, dict[str, Any], list[str]]:
    """A dataset of half of the files, and files and steps of an undisturbed append of the other half."""
    folder, whole = tmp_path_factory.mktemp("append"), undisturbed_writes("ordered")
    first, second = whole.source[:2], whole.source[2:]
    assert whole.writer.write(folder / "first.dp", first).error is None
    shutil.copytree(folder / "first.dp", folder / "all.dp")
    done = whole.writer.write(folder / "all.dp", second, append=True)
    assert done.error is None, done.message
    return whole.writer, folder / "first.dp", second, content(folder / "all.dp"), done.steps


def check_killed_append(before_append: Any, path: Path, number: int) -> int:
    """Kill an append at a step, and return the rows that readers see; the same append then has the same result."""
    writer, first, source, files, _ = before_append
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(first, path)
    assert writer.write(path, source, append=True, kill_at=number).returncode == -9
    dataset = open_dataset(path)
    dataset.verify()
    rows = sum(len(split.read("row_id")["row_id"]) for split in dataset.splits.values())
    result = writer.write(path, source, append=True)
    assert result.error is None, result.message
    found = content(path)
    assert [name for name in {**found, **files} if found.get(name, "") != files.get(name, "")] == []
    return rows


@pytest.mark.slow
def test_killed_append_is_atomic(before_append, tmp_path):
    steps = before_append[-1]
    listed = next(number for number, step in enumerate(steps) if "replace" in step and "appended.json" in step)
    rows = [check_killed_append(before_append, tmp_path / "a.dp", number) for number in (listed // 2, listed)]
    rows.append(check_killed_append(before_append, tmp_path / "a.dp", len(steps) - 1))
    assert rows[0] == rows[1]
    assert rows[2] in {rows[0], sum(len(split) for split in open_dataset(tmp_path / "a.dp").splits.values())}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_append_killed_at_steps_of_many_kinds_is_atomic(before_append, tmp_path):
    kill_at = ends_of_kinds(before_append[-1])[:: one_in(4)]
    whole = {check_killed_append(before_append, tmp_path / "a.dp", number) for number in kill_at}
    assert len(whole) <= 2


@pytest.fixture(scope="module")
def before_purge(before_append, tmp_path_factory) -> tuple[Any, Path, Path]:
    """A dataset of two parts with deleted rows in both, and the same one purged."""
    writer, first, source, *_ = before_append
    path, purged = (tmp_path_factory.mktemp("purge") / name for name in ("deleted.dp", "purged.dp"))
    shutil.copytree(first, path)
    assert writer.write(path, source, append=True).error is None
    for part in (0, 1):
        dataset = open_dataset(path)
        ids = dataset.datasets[part]["train"].read("row_id")["row_id"][:40:3]
        dataset.delete(ids, part=part)
    shutil.copytree(path, purged)
    done = writer.write(purged, source, purge=True)
    assert done.error is None, done.message
    return writer, path, purged


def shown(path: Path) -> dict[str, list[int]]:
    dataset = open_dataset(path)
    dataset.verify()
    return {name: split.read("row_id")["row_id"].tolist() for name, split in dataset.splits.items()}


def without_times(path: Path) -> dict[str, Any]:
    return {name: data for name, data in content(path).items() if not name.startswith("purge-")}


def check_killed_purge(before_purge: Any, path: Path, number: int) -> None:
    """Kill a purge at a step: readers see the same rows, and the next purge has the result of an undisturbed one."""
    writer, deleted, purged = before_purge
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(deleted, path)
    assert writer.write(path, [], purge=True, kill_at=number).returncode == -9
    assert shown(path) == shown(deleted), number
    result = writer.write(path, [], purge=True)
    assert result.error is None, result.message
    assert without_times(path) == without_times(purged), number
    receipts = [json.loads((one / "purge-00001.json").read_bytes()) for one in (path, purged)]
    assert [receipt.pop("finished") is None for receipt in receipts] == [False, False]
    assert receipts[0] == receipts[1], number


@pytest.mark.slow
def test_killed_purge_is_completed_by_next(before_purge, tmp_path):
    writer, deleted, _ = before_purge
    shutil.copytree(deleted, tmp_path / "whole.dp")
    steps = writer.write(tmp_path / "whole.dp", [], purge=True).steps
    listed = next(number for number, step in enumerate(steps) if "replace" in step and "appended.json" in step)
    for number in (listed // 2, listed, listed + 1, (listed + len(steps)) // 2, len(steps) - 1):
        check_killed_purge(before_purge, tmp_path / "a.dp", number)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_purge_killed_at_steps_of_many_kinds_is_completed(before_purge, tmp_path):
    writer, deleted, _ = before_purge
    shutil.copytree(deleted, tmp_path / "whole.dp")
    steps = writer.write(tmp_path / "whole.dp", [], purge=True).steps
    for number in ends_of_kinds(steps)[:: one_in(16)]:
        check_killed_purge(before_purge, tmp_path / "a.dp", number)


@pytest.mark.slow
def test_killed_delete_is_atomic(before_append, tmp_path):
    writer, first, *_ = before_append
    path, before = tmp_path / "a.dp", shown(first)
    rows = before["train"][:30]
    after = {name: [row for row in ids if row not in rows] for name, ids in before.items()}
    shutil.copytree(first, path)
    steps = writer.write(path, [], delete=rows).steps
    assert shown(path) == after
    for number in range(0, len(steps), 3):
        shutil.rmtree(path)
        shutil.copytree(first, path)
        assert writer.write(path, [], delete=rows, kill_at=number).returncode == -9
        assert shown(path) in (before, after), number
        assert writer.write(path, [], delete=rows).error is None
        assert shown(path) == after
