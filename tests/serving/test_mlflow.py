"""MLflow loads a model whose preprocessing is JSON with pickle switched off."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import daskprep as dp

PAGE = Path(__file__).parents[2] / "docs/how-to/serve-a-model.md"


def test_mlflow_loads_the_model_of_the_documentation_without_pickle(tmp_path):
    pytest.importorskip("mlflow", minversion="3")
    section = PAGE.read_text().partition("### MLflow")[2]
    code, use = re.findall(r"```python no-run\n(.*?)```", section, re.DOTALL)
    flats = pd.DataFrame({"area": range(20, 120), "city": ["Rome", "Oslo"] * 50})
    prep = dp.Preprocessor({"area": "number", "city": "category"}).fit(flats)
    (tmp_path / "model").mkdir()
    prep.save(tmp_path / "model/prep.json")
    flats.to_json(tmp_path / "flats.json")
    (tmp_path / "model.py").write_text(code)
    *imports, load = use.strip().splitlines()
    lines = [*imports, "import pandas as pd", 'flats = pd.read_json("flats.json")', f"print({load}.tolist())"]
    environment = os.environ | {
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/runs.db",
    }
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    assert done.stdout.splitlines()[-1] == str(prep.encode(flats)["area"].tolist())
    assert not list((tmp_path / "flats").rglob("*.pkl"))
