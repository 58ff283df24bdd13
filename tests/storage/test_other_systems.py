"""Datasets, caches and locks without calls that only Linux has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """if True:
    import ctypes, errno, hashlib, json, os, shutil, sys
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path

    import dask, distributed, numpy as np, pandas as pd, torch  # before parts of what they use are gone
    from PIL import Image

    path, taken_away = Path(sys.argv[1]), sys.argv[2] == "without"
    if taken_away:
        names = ["O_TMPFILE", "O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "pread", "preadv", "pwrite", "posix_fallocate"]
        for name in [*names, "register_at_fork"]:
            delattr(os, name)
        sys.modules["resource"] = None
        load = ctypes.CDLL.__init__
        def no_own_symbols(self, name, *arguments, **named):
            if name is None:
                raise TypeError("a name is needed")
            load(self, name, *arguments, **named)
        ctypes.CDLL.__init__ = no_own_symbols
        shutil._use_fd_functions = False  # as on Windows
        open_file = os.open
        def no_folders(path, *arguments, **named):
            if not isinstance(path, int) and os.path.isdir(path):
                raise PermissionError(errno.EACCES, "no folder is opened", str(path))
            return open_file(path, *arguments, **named)
        os.open = no_folders
    import daskprep as dp
    from daskprep.storage import Folder, local_files
    local_files._OPENS_FOLDERS = not taken_away

    rng = np.random.default_rng(0)
    (path / "photos").mkdir()
    for number in range(12):
        Image.fromarray(rng.integers(0, 255, (20, 20, 3), np.uint8)).save(path / "photos" / f"{number}.png")
    frame = pd.DataFrame({
        "photo": [str(path / "photos" / f"{number}.png") for number in range(12)] * 5,
        "city": ["Rome", "Oslo", None] * 20, "text": [f"row {number}" for number in range(60)],
    })
    features = {"photo": dp.Image(height=16, width=16, mode="lazy_cached"), "city": "category", "text": "text"}
    prep = dp.Preprocessor(features, split=dp.RandomSplit(seed=1))
    dataset = prep.fit_write(frame, path / "out.dp")
    loader = dataset["train"].loader(8, seed=3)
    digests = [hashlib.sha256(b"".join(one.numpy().tobytes() for batch in loader for one in batch.values())).hexdigest()
               for _ in range(2)]
    dataset.cache_media()
    dataset.verify()
    dataset.clear_cache()
    prep.fit_write(frame, path / "out.dp")
    numbers = []
    def hold(number):
        with Folder.open(path / "held").lock():
            numbers.append(number)
            assert numbers[-1] == number
            numbers.append(number)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(hold, range(40)))
    files = {name: os.path.getsize(path / "out.dp" / name) for name in Folder.open(path / "out.dp").sizes()
             if not name.startswith("cache/")}
    print(json.dumps({"batches": digests, "files": files, "pairs": numbers[::2] == numbers[1::2]}))
"""


def answer(folder: Path, mode: str) -> dict[str, object]:
    folder.mkdir()
    command = [sys.executable, "-W", "error", "-c", PROGRAM, str(folder), mode]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_system_without_linux_calls_writes_same_dataset(tmp_path: Path) -> None:
    expected = answer(tmp_path / "with", "with")
    found = answer(tmp_path / "without", "without")
    assert expected["pairs"]
    assert {**found, "files": None} == {**expected, "files": None}
    sizes = [{Path(name).name: size for name, size in one["files"].items()} for one in (found, expected)]
    for one in sizes:
        one.pop("manifest.json")  # holds the paths of the images
    assert sizes[0].keys() - sizes[1].keys() <= {".cache.lock"}


@pytest.mark.skipif(sys.platform != "linux", reason="compares with what Linux has")
def test_linux_calls_are_used_on_linux() -> None:
    from daskprep.storage import local_files

    assert local_files._OPENS_FOLDERS
    assert local_files._pread.__module__ == "posix"
