"""polars on the job of `ours_prep.py`, by hand: lazy scans, the streaming engine, no Python per row; one JSON line.

python -m benchmarks.peers.peer_polars --data data/1m --rows 1000000 --out bench-out
"""

from __future__ import annotations

import shutil
from typing import Any

import polars as pl

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

WORD = r"\w+|[^\w\s]"
NUMBERS, CATEGORIES = GROUPS["num"], GROUPS["cat"]


def ranked(counts: pl.DataFrame) -> pl.Series:
    """Return tokens, the most frequent first."""
    return counts.sort(["len", "token"], descending=[True, False])["token"]


def ids(tokens: pl.Expr, vocabulary: pl.Series, special: int) -> pl.Expr:
    """Return the ids of tokens; those of missing and unknown ones are the last special id."""
    places = tokens.cast(pl.Enum(vocabulary), strict=False).to_physical().cast(pl.Int32)
    return (places + special).fill_null(special - 1)


def padded(tokens: pl.Expr, vocabulary: pl.Series, length: int) -> pl.Expr:
    """Return the ids of lists of tokens in arrays of one length."""
    found = tokens.list.head(length).list.eval(ids(pl.element(), vocabulary, 2))
    zeros = pl.lit([0] * length, pl.List(pl.Int32))
    return found.list.concat(zeros).list.head(length).list.to_array(length)


def date_parts(time: Any) -> pl.Expr:
    """Return the nine numbers of a time."""
    second_of_day = time.hour().cast(pl.Int32) * 3600 + time.minute().cast(pl.Int32) * 60 + time.second()
    parts = [time.year(), time.month(), time.day(), time.weekday() - 1, time.ordinal_day()]
    parts += [time.hour(), time.minute(), time.second(), second_of_day]
    return pl.concat_arr([part.cast(pl.Int32) for part in parts])


def main() -> None:
    """Do the job once and print its figures."""
    arguments = prep_parser(__doc__.partition("\n")[0]).parse_args()
    groups = groups_of(arguments)
    shutil.rmtree(arguments.out, ignore_errors=True)
    arguments.out.mkdir(parents=True)
    path = arguments.out / "encoded.parquet"
    files = first_files(arguments.data, arguments.rows)

    meter = Meter()
    table = pl.scan_parquet(files)
    tags = pl.col("tags").str.extract_all(r"\S+")
    words = pl.col("text").fill_null("").str.to_lowercase().str.extract_all(WORD)
    cells = {name: pl.col(name) for name in CATEGORIES} | {"tags": tags.explode(), "text": words.explode()}
    chosen = [name for group in groups for name in GROUPS[group]]
    outputs: list[pl.Expr] = []
    if "num" in groups:
        with meter.stage("fit numbers"):
            means = table.select(pl.col(NUMBERS).mean()).collect(engine="streaming").row(0, named=True)
            filled = [pl.col(name).fill_null(means[name]).std(ddof=0) for name in NUMBERS]
            deviations = table.select(filled).collect(engine="streaming").row(0, named=True)
        for name in NUMBERS:
            centered = pl.col(name).fill_null(means[name]) - means[name]
            outputs.append((centered / deviations[name]).cast(pl.Float32))
    with meter.stage("fit vocabularies"):
        # One after the other, so that the counts of one column are held at a time.
        vocabularies = {}
        for name in SPECIAL_IDS:
            if name in chosen:
                counts = table.select(cells[name].alias("token")).drop_nulls().group_by("token").len()
                vocabularies[name] = ranked(counts.collect(engine="streaming"))
    if "text" in vocabularies:
        vocabularies["text"] = vocabularies["text"].head(TEXT_WORDS)
    encoders = {
        "label": lambda: pl.col("label").cast(pl.UInt8),
        "tags": lambda: padded(tags, vocabularies["tags"], SET_LENGTH),
        "text": lambda: padded(words, vocabularies["text"], TEXT_LENGTH),
        "ts": lambda: pl.col("ts").str.split(" ").cast(pl.List(pl.Float32)).list.to_array(SERIES_LENGTH),
        "time": lambda: date_parts(pl.col("time").dt),
    }
    encoders |= {name: lambda name=name: ids(pl.col(name), vocabularies[name], 1) for name in CATEGORIES}
    outputs += [encoders[name]().alias(name) for name in chosen if name in encoders]
    with meter.stage("encode, write"):
        table.select(outputs).sink_parquet(path, compression="lz4", engine="streaming")
    measured = meter.result()

    digest = {}
    for name, vocabulary in vocabularies.items():
        found = pl.read_parquet(path, columns=[name])[name].to_numpy()
        _, total, real = checksum(found, SPECIAL_IDS[name])
        digest[name] = {"vocab": len(vocabulary), "top": vocabulary.head(4).to_list(), "sum": total, "real": real}
    print_run("polars", arguments, meter, measured, digest=digest, notes=f"polars {pl.__version__}, streaming")


if __name__ == "__main__":
    main()
