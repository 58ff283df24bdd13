"""Copy a few real images and audio files, each several times under different names, to the folders of benchmarks.

    python -m benchmarks.peers.media_data --media media --out bench-data

`media` holds `images/` and `audio/`. Copies are read and decoded as if they were different files, which a cache of the
names or contents of files would notice.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path


def copy_times(files: list[Path], folder: Path, count: int, suffix: str) -> int:
    """Copy files to a folder up to a number, and return their bytes; other files in it are removed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number in range(count):
        file = files[number % len(files)]
        shutil.copyfile(file, folder / f"{file.stem}_{number // len(files)}{suffix}")
    return sum(path.stat().st_size for path in folder.iterdir())


def found(folder: Path, suffixes: set[str]) -> list[Path]:
    """Return the files of a folder with one of the suffixes, in order."""
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in suffixes)
    if not files:
        raise SystemExit(f"{folder} has no files that end in {', '.join(sorted(suffixes))}")
    return files


def main() -> None:
    """Copy both kinds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--media", type=Path, required=True, help="folder with images/ and audio/")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--sounds", type=int, default=3000)
    arguments = parser.parse_args()
    images = found(arguments.media / "images", {".jpeg", ".jpg"})
    sounds = found(arguments.media / "audio", {".wav"})
    line = {
        "images": arguments.images,
        "image_bytes": copy_times(images, arguments.out / "images", arguments.images, ".JPEG"),
        "sounds": arguments.sounds,
        "sound_bytes": copy_times(sounds, arguments.out / "audio", arguments.sounds, ".wav"),
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
