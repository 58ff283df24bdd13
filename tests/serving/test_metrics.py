"""Counts in the text format of Prometheus."""

from __future__ import annotations

import pandas as pd
import pytest

import daskprep as dp

parser = pytest.importorskip("prometheus_client.parser")

ODD = 'a "b"\\ \n c'


def parse(text: str) -> dict[tuple[str, ...], float]:
    """Return the samples of a text by their labels."""
    (family,) = parser.text_string_to_metric_families(text)
    return {tuple(sample.labels.values()): sample.value for sample in family.samples}


def test_counts_of_services_loaders_and_datasets_are_read_by_prometheus(tmp_path):
    frame = pd.DataFrame({ODD: ["x", "x", "y", "z"], "n": [1.0, 2.0, 3.0, 4.0]})
    prep = dp.Preprocessor({ODD: dp.Category(most_common=1), "n": "number"})
    dataset = prep.fit_write(frame, tmp_path / "rows.dp", progress=False)
    encoder = dp.serving.Encoder(prep.fit(frame).to_dict())
    encoder.encode([{ODD: None, "n": 9}, {ODD: "x", "n": 1}])
    seen = {(name, kind): count for name, counts in encoder.seen.items() for kind, count in counts.items()}
    assert parse(encoder.to_prometheus()) == seen
    assert parse(dataset.to_prometheus()) == {(ODD, "train", "unknown"): 2}
    loader = dataset["train"].loader(2)
    assert len(list(loader)) == 2
    assert parse(loader.to_prometheus()) == {(name, "0"): value for name, value in loader.stats().items()}
