"""Components of text: the same bytes for any partitioning and BLAS, the same bits in a service, typos near."""

from __future__ import annotations

import base64
import json
import os
import string
import subprocess
import sys

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy.sparse import csr_array
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline

import daskprep as dp
from daskprep.columns.summaries import DistinctTexts
from daskprep.errors import ConfigError, CorruptDatasetError, RejectedValueError
from daskprep.features.directions import eigenvectors, leading_directions
from daskprep.serving import Encoder
from tests.arrow_columns import encode_columns

JOBS = ["software engineer", "data scientist", "registered nurse", "truck driver", "school teacher", "office clerk"]
ODD_CELLS = [
    "", " ", None, "a", "ab", "?!", "😀 ok", "漢字仮名交じり文", "e\u0301", "ΟΔΟΣ", "İstanbul", "\0", "a\u2003b\u3000c",
    "x" * 300_000, "truck " * 50_000, 3, 2.5, True, "\U0010ffff\U0010ffff\U0010ffff",
]  # fmt: skip


def misspelled(rows: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    titles = []
    for number in rng.integers(0, len(JOBS), rows):
        title = list(JOBS[number])
        for _ in range(rng.integers(0, 3)):
            title[rng.integers(0, len(title))] = rng.choice(list(string.ascii_lowercase))
        titles.append("".join(title))
    return titles


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return pd.DataFrame({"job": misspelled(1_500)})


@pytest.fixture(scope="module")
def prep(frame) -> dp.Preprocessor:
    return dp.Preprocessor({"job": dp.TextComponents()}).fit(frame)


def encode(prep, *cells) -> np.ndarray:
    return prep.encode(pd.DataFrame({"job": pd.Series(cells, dtype=object)}))["job"]


def cosine(left: np.ndarray, right: np.ndarray) -> float:
    return float(left @ right / np.linalg.norm(left) / np.linalg.norm(right))


def test_output_is_float32_of_the_size(prep, frame):
    encoded = prep.encode(frame)["job"]
    assert (encoded.dtype, encoded.shape) == (np.float32, (1_500, 30))
    assert prep.encode(frame.drop_duplicates())["job"].var(axis=0).sum() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("partitions", [1, 7, 64])
def test_state_does_not_depend_on_partitions(prep, frame, partitions):
    parts = dd.from_pandas(frame.sample(frac=1, random_state=partitions), npartitions=partitions, sort=False)
    fitted = dp.Preprocessor({"job": dp.TextComponents()}).fit(parts)
    assert json.dumps(fitted.to_dict()) == json.dumps(prep.to_dict())


_FIT = """
import sys, hashlib, json, pandas as pd, daskprep as dp
sys.path.insert(0, {folder!r})
from test_text_components import misspelled
prep = dp.Preprocessor({{"job": dp.TextComponents()}}).fit(pd.DataFrame({{"job": misspelled(1_500)}}))
print(hashlib.sha256(json.dumps(prep.to_dict()).encode()).hexdigest())
"""


@pytest.mark.slow
def test_state_does_not_depend_on_blas_kernels_and_threads():
    digests = set()
    for kernel, threads in (("Prescott", "1"), ("Haswell", "2"), ("SkylakeX", "1"), ("", "2")):
        env = {**os.environ, "OPENBLAS_CORETYPE": kernel, "OPENBLAS_NUM_THREADS": threads}
        code = _FIT.format(folder=os.path.dirname(__file__))  # noqa: PTH120
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        digests.add(done.stdout)
    assert len(digests) == 1


def test_a_row_in_a_service_has_the_bits_of_the_column(frame):
    features = {"job": dp.TextComponents(size=7, missing_indicator=True, null_values=["?!"])}
    prep = dp.Preprocessor(features).fit(frame)
    cells = [*ODD_CELLS, *frame["job"][:50], *misspelled(50, seed=1)]
    service = Encoder(prep.to_dict())
    column = encode_columns(prep, pd.DataFrame({"job": pd.Series(cells, dtype=object)}))
    rows = [service.encode([{"job": cell}]) for cell in cells]
    together = service.encode([{"job": cell} for cell in cells])
    for name, expected in column.items():
        np.testing.assert_array_equal(np.concatenate([row[name] for row in rows]), expected)
        np.testing.assert_array_equal(together[name], expected)


def test_misspelled_texts_are_near(prep):
    nurse, typo, upper, driver = encode(
        prep, "registered nurse", "rregistered nurze", "REGISTERED NURSE", "truck driver"
    )
    assert cosine(nurse, typo) > 0.7
    assert cosine(nurse, driver) < 0.3
    assert (nurse == upper).all()
    by_case = dp.Preprocessor({"job": dp.TextComponents(lowercase=False)}).fit(BUSES)
    assert not encode(by_case, "BUS").any()


BUSES = pd.DataFrame({"job": ["bus", "bus", "tram"]})


def test_empty_and_missing_texts_are_zeros_and_unknown_ones_are_counted(tmp_path):
    new = pd.DataFrame({"job": ["", None, "qqqqqqq zzz", "nurse", "the bus"]})
    prep = dp.Preprocessor({"job": dp.TextComponents(size=2)}).fit(BUSES)
    encoded = prep.encode(new)["job"]
    assert encoded.any(axis=1).tolist() == [False] * 4 + [True]
    assert prep.cell_counts(new).loc["job", ["missing", "unseen"]].tolist() == [1, 2]
    _, cells = Encoder(prep.to_dict()).encode(new.to_dict("records"), report=True)
    assert list(cells["job"]["unseen"]) == [2, 3]
    losses = prep.write({"test": new}, tmp_path / "new.dp").losses()
    assert losses.set_index("cause")["cells"].to_dict() == {"missing": 1, "unknown": 2}


def test_fill_value_is_a_text(frame):
    prep = dp.Preprocessor({"job": dp.TextComponents(fill_value="nurse")}).fit(frame)
    missing, nurse = encode(prep, None, "nurse")
    assert (missing == nurse).all()
    assert nurse.any()


@pytest.mark.parametrize("texts", [[], ["a"], ["same"] * 5, ["", " "], ["ab cd", "ab ce", "xy"]])
def test_few_texts_have_zeros_in_the_last_components(texts):
    frame = pd.DataFrame({"job": pd.Series([*texts, None], dtype=object)})
    encoded = dp.Preprocessor({"job": dp.TextComponents(size=4)}).fit(frame).encode(frame)["job"]
    assert np.isfinite(encoded).all()
    assert not encoded[:, len(set(texts)) :].any()


def test_rare_grams_are_left_out_of_many_rows():
    texts = ["common words here"] * 400 + ["zzzzzz"] * 2
    state = dp.Preprocessor({"job": dp.TextComponents(size=2)}).fit(pd.DataFrame({"job": texts})).learned_["job"]
    assert len(state.grams) == len(
        dp.TextComponents(size=2).fit(pd.DataFrame({"job": texts[:400]})).learned_["job"].grams
    )


def test_half_a_surrogate_pair_is_refused(prep):
    with pytest.raises(RejectedValueError, match="job"):
        Encoder(prep.to_dict()).encode([{"job": "\ud800"}])


def test_size_is_limited_and_saved_sizes_must_fit(prep, frame, tmp_path):
    with pytest.raises(ConfigError, match="size=257 is more than 256"):
        dp.Preprocessor({"job": dp.TextComponents(size=257)}).fit(frame)
    state = prep.to_dict()
    for name, value in (
        ("size", 29),
        ("directions", ""),
        ("weights", "AAA="),
        ("grams", base64.b64encode(b"\xff" * 10)),
    ):
        altered = json.loads(json.dumps(state))
        part = "params" if name == "size" else "learned"
        altered["features"]["job"][part][name] = value if isinstance(value, str | int) else value.decode()
        with pytest.raises(CorruptDatasetError):
            dp.Preprocessor.from_dict(altered)


def test_state_has_no_text_and_stays_the_same(prep, frame):
    learned = prep.learned_["job"]
    text = json.dumps(learned.to_dict())
    assert not any(title in text for title in frame["job"])
    assert learned.redact({}) == learned
    assert learned.grow(learned) == (learned, {})
    assert len(text) <= 8192 * (4 + 2 * 30) * 4 / 3 + 300


def test_decode_returns_the_components(prep, frame):
    encoded = prep.encode(frame[:3])
    np.testing.assert_array_equal(np.stack(prep.decode(encoded)["job"]), encoded["job"])


def test_onnx_is_refused(prep, tmp_path):
    pytest.importorskip("onnx")
    with pytest.raises(ConfigError, match='"job": type text_components'):
        prep.to_onnx(tmp_path / "rows.onnx")


@pytest.mark.slow
def test_scores_are_those_of_tfidf_with_a_truncated_svd():
    titles, rng = misspelled(1_500, seed=3), np.random.default_rng(0)
    pay = np.array([rng.normal(60, 20) for _ in JOBS])
    nearest = [min(range(len(JOBS)), key=lambda one: sum(map(str.__ne__, JOBS[one], title))) for title in titles]
    target = pay[nearest] + rng.normal(0, 3, len(titles))
    tfidf = make_pipeline(TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 4)), TruncatedSVD(30, random_state=0))
    ours, theirs = (
        cross_val_score(make_pipeline(encoder, RidgeCV()), rows, target, cv=3).mean()
        for encoder, rows in ((dp.TextComponents(), pd.DataFrame({"job": titles})), (tfidf, titles))
    )
    assert ours > theirs - 0.01


# -- the sample of texts


def test_sample_merges_to_the_same_texts_in_any_order(sizes):
    sizes(sampled_text_bytes=2_000)
    rng = np.random.default_rng(0)
    texts = ["x" * int(length) + str(number) for number, length in enumerate(rng.integers(0, 90, 400))]
    rows = rng.choice(texts, 3_000)

    def summary(part):
        values, counts = np.unique(part, return_counts=True)
        return DistinctTexts.of(pa.array(values.tolist()), counts)

    whole = summary(rows)
    assert 0 < len(whole.texts) < 400
    assert sum(len(text) for text in whole.texts.to_pylist()) <= 2_000
    for parts in (7, 64):
        pieces = [summary(part) for part in np.array_split(rng.permutation(rows), parts)]
        assert sum(pieces, DistinctTexts()) == whole
    for text, count in zip(whole.texts.to_pylist(), whole.counts[: len(whole.texts)].tolist(), strict=True):
        assert count == (rows == text).sum()


def test_sample_is_bounded():
    texts = pa.array([f"{number:09d}" * 200 for number in range(30_000)])
    sample = DistinctTexts.of(texts, np.ones(30_000, np.int64))
    sample += DistinctTexts.of(texts, np.ones(30_000, np.int64))
    assert sample.texts.nbytes <= (4 << 20) + (4 << 14)
    assert len(sample.hashes) == 1 << 14


# -- directions


def test_directions_are_singular_vectors():
    rng = np.random.default_rng(0)
    table = np.rint(rng.normal(size=(300, 20)) @ np.diag(0.6 ** np.arange(20)) @ rng.normal(size=(20, 50)) * 300)
    directions = leading_directions(csr_array(table), 6) / 2**15
    expected = np.linalg.svd(table)[2][:6].T
    np.testing.assert_allclose(np.abs((directions * expected).sum(axis=0)), 1, atol=1e-3)
    assert (directions.max(axis=0) >= -directions.min(axis=0)).all()


@pytest.mark.parametrize("size", [1, 2, 5, 8, 31])
def test_eigenvectors_of_a_symmetric_matrix(size):
    table = np.random.default_rng(size).normal(size=(size, size))
    table += table.T
    values, vectors = eigenvectors(table)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(table)[::-1], atol=1e-8)
    np.testing.assert_allclose(vectors @ np.diag(values) @ vectors.T, table, atol=1e-8)
