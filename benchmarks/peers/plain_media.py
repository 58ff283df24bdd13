"""One run of media loading without daskprep: rows of a memory map, or librosa in a loop; prints a JSON line.

    python -m benchmarks.peers.plain_media --way rows --array bench-data/imgcache/x.npy
    python -m benchmarks.peers.plain_media --way librosa --type fbank --data bench-data/audio

"rows" takes a batch out of the memory map at once, or a part of it on each thread, "samples" one after the other, to
be stacked, as Ludwig reads its cache. With --prepare, the arrays are made, and nothing is measured. Needs no daskprep.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from benchmarks.peers import common

SIDE = 224
# The same features as daskprep for the first second: frames of 40 ms, every 20 ms, 80 mel bands.
SECONDS, WINDOW_S, SHIFT_S, BANDS, FLOOR = 1.0, 0.04, 0.02, 80, 1e-10


def decode_image(file: Path) -> np.ndarray:
    """Return an image decoded and resized by Pillow: uint8 (height, width, 3)."""
    from PIL import Image

    return np.asarray(Image.open(file).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def decode_sound(file: Path, kind: str) -> np.ndarray:
    """Return the first second of a recording, padded with zeros: samples, or logarithms of mel bands of frames."""
    import librosa

    wave, rate = librosa.load(file, sr=None, duration=SECONDS)
    window, shift, length = int(WINDOW_S * rate), int(SHIFT_S * rate), int(SECONDS * rate)
    if kind == "raw":
        out = np.zeros((length, 1), np.float32)
        out[: len(wave), 0] = wave
        return out
    wave = librosa.effects.preemphasis(np.pad(wave, (0, max(0, window - len(wave)))))
    bands = librosa.feature.melspectrogram(
        y=wave, sr=rate, n_fft=window, hop_length=shift, window="hamming", center=False, n_mels=BANDS, norm=None
    )
    out = np.zeros((1 + (length - window) // shift, BANDS), np.float32)
    out[: bands.shape[1]] = np.log(np.maximum(bands, FLOOR)).T
    return out


def prepare_images(data: Path, array: Path, copies: int) -> None:
    """Write the decoded images of a folder, repeated, as uint8; and once as float32, channels first."""
    with ThreadPoolExecutor(2) as pool:
        images = np.stack(list(pool.map(decode_image, sorted(data.glob("*.JPEG")))))
    array.parent.mkdir(parents=True, exist_ok=True)
    np.save(array, np.concatenate([images] * copies))
    if copies == 1:
        np.save(array.with_name("float32.npy"), images.transpose(0, 3, 1, 2).astype(np.float32) / 255)


def prepare_sounds(data: Path, array: Path, kind: str) -> None:
    """Write the features of the audio files of a folder."""
    array.parent.mkdir(parents=True, exist_ok=True)
    np.save(array, np.stack([decode_sound(file, kind) for file in sorted(data.glob("*.wav"))]))


def batches_of_array(
    array: np.ndarray, order: np.ndarray, way: str, batch: int, threads: int, *, scale: bool
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield batches of rows of a memory map, with `scale` as float32 from 0 to 1."""
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            if way == "samples":
                found = np.stack([array[row] for row in rows])
            elif threads == 1:
                found = array[rows]
            else:
                found = np.empty((len(rows), *array.shape[1:]), array.dtype)
                parts = zip(np.array_split(rows, threads), np.array_split(found, threads), strict=True)
                list(pool.map(lambda part: array.take(part[0], 0, part[1], "clip"), parts))
            images = torch.from_numpy(found)
            yield {"x": images.float().div_(255) if scale else images, "y": torch.from_numpy(rows)}


def batches_of_files(
    files: list[Path], order: np.ndarray, kind: str, batch: int, threads: int
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield batches of audio decoded sequentially, or by threads."""

    def decode(row: int) -> np.ndarray:
        return decode_sound(files[row], kind)

    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            found = list(map(decode, rows) if threads == 1 else pool.map(decode, rows))
            yield {"x": torch.from_numpy(np.stack(found)), "y": torch.from_numpy(rows)}


def main() -> None:
    """Load some epochs and print the figures."""
    parser = common.parser(batch=64, max_s=120.0)
    parser.add_argument("--way", choices=["rows", "samples", "librosa"], default="rows")
    parser.add_argument("--array", type=Path, help="of rows")
    parser.add_argument("--type", choices=["fbank", "raw"], help="of sounds; images otherwise")
    parser.add_argument("--threads", type=int, default=1, help="that decode sounds or read rows")
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--scale", action="store_true", help="yield images as float32")
    parser.add_argument("--prepare", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = Path(arguments.data)
    if arguments.prepare:
        if arguments.type is None:
            prepare_images(data, arguments.array, arguments.copies)
        else:
            prepare_sounds(data, arguments.array, arguments.type)
        return
    files = sorted(data.glob("*.wav"))
    array = None if arguments.way == "librosa" else np.load(arguments.array, mmap_mode="r")
    rows = len(files) if array is None else len(array)

    def epochs(epoch: int) -> Iterator[dict[str, torch.Tensor]]:
        order = np.random.default_rng(epoch).permutation(rows)
        if array is None:
            return batches_of_files(files, order, arguments.type, arguments.batch, arguments.threads)
        return batches_of_array(array, order, arguments.way, arguments.batch, arguments.threads, scale=arguments.scale)

    if array is None:
        # The first call of librosa imports and compiles for seconds, which is not part of an epoch.
        decode_sound(files[0], arguments.type)
    name = arguments.way if array is None else f"{arguments.array.name}, {arguments.way}"
    common.main(name, arguments, epochs, rows=rows, key="y")


if __name__ == "__main__":
    main()
