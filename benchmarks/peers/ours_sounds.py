"""One run of daskprep's loader on WAV files; prints JSON lines shaped like those of the peers.

    python -m benchmarks.peers.ours_sounds --data bench-data/audio --out bench-data/ours --type fbank

The first second of each sound counts; "fbank" makes 80 logarithms of mel bands of each of its frames, "raw" gives its
samples.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import daskprep as dp
from benchmarks.peers.ours_media import measure, parse_arguments


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--type", choices=["fbank", "raw"], default="fbank")


def main() -> None:
    """Load some epochs and print the figures."""
    arguments = parse_arguments(add_options)
    feature = dp.Audio(audio_file_length_limit_in_s=1.0, type=arguments.type, mode=arguments.mode, pack=arguments.pack)
    files = [str(path) for path in sorted(Path(arguments.data).glob("*.wav"))]
    notes = ", ".join([arguments.type, arguments.mode, *["packed"] * arguments.pack])
    measure(feature, files, arguments, unit="clips", notes=notes)


if __name__ == "__main__":
    main()
