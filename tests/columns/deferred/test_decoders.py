"""The type of files in docs/extending.md: a file of another shape is an error of its row, and never other values."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.errors import MediaError
from daskprep.features import FEATURES

PAGE = Path(__file__).parents[3] / "docs" / "extending.md"
ODD = {"row": np.ones((1, 3)), "scalar": np.float32(5), "wide": np.ones((2, 4)), "deep": np.ones((2, 3, 1))}


@pytest.fixture(scope="module")
def depth():
    """Return the type of the page, and take it out of the registry at the end."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    (block,) = [one for one in blocks if "class DepthDecoder" in one]
    names = {"__name__": "depth_of_the_page"}
    setup = "import numpy as np, pyarrow as pa\nfrom dataclasses import dataclass\n"
    exec(compile(setup + block, str(PAGE), "exec", dont_inherit=True), names)
    yield names["Depth"]
    del FEATURES["depth"]


def write(folder, odd):
    paths = []
    for number in range(6):
        np.save(folder / f"{number}.npy", np.full((2, 3), number, np.float32))
        paths.append(f"{number}.npy")
    (folder / "odd.npy").write_bytes(b"")
    if odd is not None:
        np.save(folder / "odd.npy", odd)
    return pd.DataFrame({"depth": [*paths, "odd.npy"]})


@pytest.mark.filterwarnings("ignore:column .* cannot be decoded")
@pytest.mark.parametrize("odd", [*ODD, "empty"])
@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_file_of_another_shape_is_filled_or_raises(depth, tmp_path, monkeypatch, odd, mode):
    monkeypatch.chdir(tmp_path)
    frame = write(tmp_path, ODD.get(odd))
    good = dp.Preprocessor({"depth": depth(mode=mode)}, split=None).fit(frame[:6])
    with pytest.raises(MediaError, match="odd.npy"):
        list(good.write(frame, tmp_path / "raise.dp", progress=False)["train"].loader(7))
    prep = dp.Preprocessor({"depth": depth(mode=mode, on_error="fill")}, split=None).fit(frame[:6])
    dataset = prep.write(frame, tmp_path / "fill.dp", progress=False)
    (batch,) = dataset["train"].loader(7, shuffle=False)
    assert batch["depth"].mean(dim=(1, 2)).tolist() == [0, 1, 2, 3, 4, 5, 0]
