"""One run of daskprep on the table that the peers' scripts work on; prints one JSON line shaped like theirs.

    python -m benchmarks.peers.ours_prep --data data/1m --rows 1000000 --out bench-out [--cols num,label,...]

`digest` holds, per column, the vocabulary's size, its first tokens, the sum of the ids and how many are not
special, as the peers print it: equal digests are equal work. Mode fit_write writes a dataset, as the peers write
their files, and reads it again for the digest, outside the time that is measured. Nothing is written in mode
fit_encode: every array is computed, one partition at a time, and summed, so that no work is left out.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
from dask.delayed import delayed

import daskprep as dp
from benchmarks.peers.common import (
    GROUPS,
    SERIES_LENGTH,
    SET_LENGTH,
    SPECIAL_IDS,
    TEXT_LENGTH,
    TEXT_WORDS,
    Meter,
    checksum,
    first_files,
    groups_of,
    prep_parser,
    print_run,
)


def feature_of(group: str) -> dp.Feature:
    """Return the feature with the same preprocessing as the peers for the columns of a group."""
    match group:
        case "num":
            return dp.Number(normalization="zscore", missing_value_strategy="fill_with_mean")
        case "label":
            return dp.Binary()
        case "cat":
            return dp.Category(most_common=None)
        case "set":
            return dp.Set(max_size=SET_LENGTH, most_common=None)
        case "text":
            return dp.Text(
                tokenizer="space_punct",
                lowercase=True,
                most_common=TEXT_WORDS,
                max_sequence_length=TEXT_LENGTH,
                fill_value="",
            )
        case "ts":
            return dp.Timeseries(timeseries_length_limit=SERIES_LENGTH)
        case _:
            return dp.Date()


def consume(arrays: dict[str, Any]) -> dict[str, tuple[int, float, int]]:
    """Compute every array by partition, and keep only sums."""
    # If optimized separately, each array would encode all columns of every partition again.
    sums = {
        name: [
            delayed(checksum)(block, SPECIAL_IDS.get(name)) for block in array.to_delayed(optimize_graph=False).ravel()
        ]
        for name, array in arrays.items()
    }
    (computed,) = dask.compute(sums)
    totals = {}
    for name, parts in computed.items():
        rows, total, real = (sum(column) for column in zip(*parts, strict=True))
        totals[name] = (rows, total, real)
    return totals


def digest_of(prep: dp.Preprocessor, totals: dict[str, tuple[int, float, int]]) -> dict[str, dict[str, Any]]:
    """Return digests of columns with a vocabulary, as the peers print them."""
    digest = {}
    for name, special in SPECIAL_IDS.items():
        if name in totals:
            tokens = prep.learned_[name].vocabulary.tokens
            _, total, real = totals[name]
            digest[name] = {
                "vocab": len(tokens) - special,
                "top": tokens.slice(special, 4).to_pylist(),
                "sum": int(total),
                "real": real,
            }
    return digest


def fit_encode(prep: dp.Preprocessor, files: list[str], meter: Meter) -> dict[str, tuple[int, float, int]]:
    """Learn, then encode everything; each reads the source once."""
    with meter.stage("fit"):
        prep.fit(files)
    with meter.stage("encode"):
        return consume(prep.encode(files))


def fit_write(prep: dp.Preprocessor, files: list[str], out: Path, meter: Meter) -> dp.Dataset:
    """Learn and write a dataset, reading the source once."""
    with meter.stage("fit_write"):
        return prep.fit_write(files, out, progress=False)


def written(dataset: dp.Dataset) -> dict[str, tuple[int, float, int]]:
    """Read a dataset by block, and keep only sums."""
    split, sums = dataset["train"], {}
    for name in split.columns:
        blocks = (dataset.layout.block_range("train", i) for i in range(dataset.layout.blocks("train")))
        parts = (split.read([name], rows.start, rows.stop)[name] for rows in blocks)
        sums[name] = checksum_sum(checksum(part, SPECIAL_IDS.get(name)) for part in parts)
    return sums


def checksum_sum(parts: Iterator[tuple[int, float, int]]) -> tuple[int, float, int]:
    """Add the sums of all blocks."""
    rows, total, real = (sum(column) for column in zip(*parts, strict=True))
    return rows, total, real


def main() -> None:
    """Run the job once and print its figures."""
    parser = prep_parser(__doc__.partition("\n")[0])
    parser.add_argument("--mode", choices=["fit_write", "fit_encode"], default="fit_write")
    arguments = parser.parse_args()
    groups = groups_of(arguments)
    shutil.rmtree(arguments.out, ignore_errors=True)
    files = first_files(arguments.data, arguments.rows)
    prep = dp.Preprocessor({name: feature_of(group) for group in groups for name in GROUPS[group]})

    meter = Meter()
    if arguments.mode == "fit_write":
        dataset = fit_write(prep, files, arguments.out, meter)
        measured = meter.result()
        totals = written(dataset)
    else:
        totals = fit_encode(prep, files, meter)
        measured = meter.result()

    if any(rows != arguments.rows for rows, _, _ in totals.values()):
        raise SystemExit(f"rows were lost: {totals}")
    digest = digest_of(prep, totals)
    print_run("daskprep", arguments, meter, measured, mode=arguments.mode, digest=digest)


if __name__ == "__main__":
    main()
