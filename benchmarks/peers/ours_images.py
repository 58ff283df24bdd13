"""One run of daskprep's loader on JPEGs, 224 by 224 pixels, uint8; prints JSON lines shaped like those of the peers.

python -m benchmarks.peers.ours_images --data bench-data/images --out bench-data/ours --mode lazy_cached
"""

from __future__ import annotations

import argparse
from pathlib import Path

import daskprep as dp
from benchmarks.peers.ours_media import measure, parse_arguments

SIDE = 224


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--decoder", choices=["pillow", "opencv"], default="pillow")


def main() -> None:
    """Load some epochs and print the figures."""
    arguments = parse_arguments(add_options)
    feature = dp.Image(
        height=SIDE,
        width=SIDE,
        num_channels=3,
        mode=arguments.mode,
        pack=arguments.pack,
        jpeg_decoder=arguments.decoder,
    )
    files = [str(path) for path in sorted(Path(arguments.data).glob("*.JPEG"))]
    notes = ", ".join([arguments.mode, arguments.decoder, *["packed"] * arguments.pack])
    measure(feature, files, arguments, unit="images", notes=notes)


if __name__ == "__main__":
    main()
