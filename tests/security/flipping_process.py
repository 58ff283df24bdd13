"""Read files of one format with flipped bytes, in a process that may crash, and print each outcome."""

from __future__ import annotations

import io
import random
import resource
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile

from daskprep.columns.deferred.cells import convert_media_column
from daskprep.columns.deferred.reader import MediaReader
from daskprep.errors import CorruptDatasetError, DaskprepError
from daskprep.extensions.media.audio import AudioRecipe, encode_wav
from daskprep.extensions.media.decoders import AudioDecoder
from daskprep.sources import read_files
from daskprep.storage import Output
from daskprep.storage.arrays import CHECKSUM_BYTES, decode_chunk, encode_chunk
from daskprep.storage.checksum import crc32c

ROWS = 200
MEMORY_BYTES = 12 << 30  # of address space: sizes made up by a header must not be allocated
POINT = pa.struct([("a", pa.int64()), ("b", pa.string()), ("c", pa.list_(pa.int64()))])
DEEP = pa.list_(pa.struct([("x", pa.list_(pa.string())), ("z", pa.int8())]))


def columns(chance: random.Random) -> dict[str, pa.Array]:
    def cells(kind: pa.DataType, value: Callable[[int], object]) -> pa.Array:
        return pa.array([None if chance.random() < 0.1 else value(i) for i in range(ROWS)], kind)

    text = cells(pa.string(), lambda i: f"é{i % 9}")
    return {
        "text": text,
        "codes": text.dictionary_encode(),
        "small codes": text.cast(pa.dictionary(pa.int8(), pa.string())),
        "codes of numbers": cells(pa.int64(), lambda i: i % 3).dictionary_encode(),
        "codes of lists": pa.DictionaryArray.from_arrays(pa.array([0, 1] * (ROWS // 2)), pa.array([["a"], ["b"]])),
        "large text": cells(pa.large_string(), lambda i: "x" * (i % 9)),
        "view": cells(pa.string_view(), lambda i: "x" * (i % 30)),
        "bytes": cells(pa.binary(), lambda i: b"\xff" * (i % 5)),
        "large bytes": cells(pa.large_binary(), lambda i: b"\xff" * (i % 5)),
        "fixed bytes": cells(pa.binary(3), lambda i: b"abc"),
        "list": cells(pa.list_(pa.int64()), lambda i: list(range(i % 4))),
        "list of text": cells(pa.list_(pa.string()), lambda i: ["a"] * (i % 4)),
        "large list": cells(pa.large_list(pa.float64()), lambda i: [1.5] * (i % 3)),
        "fixed list": cells(pa.list_(pa.int32(), 3), lambda i: [1, 2, 3]),
        "struct": cells(POINT, lambda i: {"a": i, "b": f"t{i}", "c": [i]}),
        "deep": cells(DEEP, lambda i: [{"x": ["y"], "z": None}]),
        "map": cells(pa.map_(pa.string(), pa.int64()), lambda i: [(f"k{i}", i)]),
        "number": cells(pa.float64(), lambda i: i / 3),
        "flag": cells(pa.bool_(), lambda i: i % 2 == 0),
        "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)] * ROWS, pa.binary(16))),
        "nothing": pa.nulls(ROWS),
    }


def table(chance: random.Random, *without: str) -> pa.Table:
    made = {name: column for name, column in columns(chance).items() if name not in without}
    return pa.table({name: made[name] for name in chance.sample(list(made), chance.choice([1, 2, 4, len(made)]))})


def arrow(new: Callable[..., pa.RecordBatchFileWriter], path: Path, chance: random.Random) -> None:
    rows = table(chance)
    # Only streams can have different codes in each batch.
    options = pa.ipc.IpcWriteOptions(
        compression=chance.choice([None, None, "lz4", "zstd"]), unify_dictionaries=new is pa.ipc.new_file
    )
    with new(path, rows.schema, options=options) as writer:
        writer.write_table(rows, max_chunksize=chance.choice([70, ROWS]))


def parquet(path: Path, chance: random.Random) -> None:
    pq.write_table(
        table(chance, "codes of lists"),  # not supported by Parquet
        path,
        compression=chance.choice(["none", "snappy", "zstd", "lz4", "gzip"]),
        row_group_size=chance.choice([50, ROWS]),
        use_dictionary=chance.choice([True, False]),
        data_page_version=chance.choice(["1.0", "2.0"]),
        store_schema=chance.choice([True, False]),
    )


def sound(path: Path, chance: random.Random) -> None:
    wave = np.random.default_rng(chance.randrange(99)).uniform(-1, 1, (400, chance.choice([1, 2]))).astype(np.float32)
    kind = chance.choice(["ours", "ours", "WAV", "WAVEX", "RF64", "FLAC", "AIFF", "OGG"])
    if kind == "ours":
        path.write_bytes(encode_wav(wave if chance.random() < 0.5 else (wave * 9999).astype(np.int16), 8000))
        return
    made = io.BytesIO()
    soundfile.write(made, wave, 8000, format=kind)
    path.write_bytes(made.getvalue())


CHUNK = Output("vector", "float32", (3,))


def find_compression(path: Path) -> Literal["lz4", "zstd", "none"]:
    choices: tuple[Literal["lz4", "zstd", "none"], ...] = ("lz4", "zstd", "none")
    return choices[int(path.stem) % 3]


def chunk(path: Path, chance: random.Random) -> None:
    rows = np.random.default_rng(chance.randrange(99)).integers(0, 9, (ROWS, 3)).astype(np.float32)
    path.write_bytes(encode_chunk(rows, ROWS, find_compression(path)))


def read_table(path: Path, chance: random.Random) -> None:
    source = read_files(path, partition_bytes=chance.choice([1, 10**9]))
    for i in range(source.npartitions):
        found = source.read(i, source.columns)
        found.to_pylist()
        found.combine_chunks()
        assert source.read(i, []).num_rows == found.num_rows


def read_sound(path: Path, chance: random.Random) -> None:
    recipe = AudioRecipe("raw", sampling_rate=chance.choice([8000, 48000]), length_limit_in_s=0.05)
    decoder = AudioDecoder(MediaReader(), "fill", recipe, missing=0.0, broken=0.0)
    out = np.empty((1, *decoder.shape), np.float32)
    for failure in decoder.decode(convert_media_column([str(path)], "audio"), out):
        raise DaskprepError(f"{failure.cell}: {failure.reason}")
    assert np.isfinite(out).all()


def read_chunk(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    if chance.random() < 0.7:  # by anyone who can compute a checksum
        data = data[:-CHECKSUM_BYTES] + crc32c(data[:-CHECKSUM_BYTES]).to_bytes(CHECKSUM_BYTES, "little")
    try:
        decode_chunk(data, CHUNK, ROWS, find_compression(path))
    except CorruptDatasetError as error:
        raise DaskprepError(f"{path}: {error}") from error


KINDS: dict[str, tuple[str, Callable[..., None], Callable[..., None]]] = {
    "feather": (".feather", lambda path, chance: arrow(pa.ipc.new_file, path, chance), read_table),
    "stream": (".arrow", lambda path, chance: arrow(pa.ipc.new_stream, path, chance), read_table),
    "parquet": (".parquet", parquet, read_table),
    "wav": (".wav", sound, read_sound),
    "chunk": (".chunk", chunk, read_chunk),
}


def flip(path: Path, chance: random.Random) -> None:
    """Flip bytes of a file, as often in its header and footer as anywhere."""
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice([1, 1, 2, 3])):
        place = chance.choice([chance.randrange(len(data)), chance.randrange(2000), -1 - chance.randrange(3000)])
        data[place % len(data)] ^= chance.choice([1 << chance.randrange(8), chance.randrange(1, 256)])
    path.write_bytes(data)


def outcome(path: Path, read: Callable[..., None], chance: random.Random) -> str:
    try:
        read(path, chance)
    except DaskprepError as error:
        return "named" if path.name in str(error) else f"unnamed: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "values"


def main(kind: str, first: int, last: int, folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    suffix, write, read = KINDS[kind]
    for seed in range(first, last):
        chance = random.Random(seed)
        path = folder / f"{seed}{suffix}"
        write(path, chance)
        flip(path, chance)
        print(seed, end=" ", flush=True)
        print(outcome(path, read, chance).splitlines()[0], flush=True)
        path.unlink()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
