"""librosa in a loop over WAV files, which keeps nothing that it makes: samples, or log-mel spectra; two JSON lines.

python -m benchmarks.peers.audio --data bench-data/audio
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.peers.common import fastest
from benchmarks.peers.plain_media import decode_sound


def run(files: list[Path], kind: str, threads: int) -> None:
    """Load all files on so many threads."""
    with ThreadPoolExecutor(threads) as pool:
        over = map if threads == 1 else pool.map
        for _ in over(decode_sound, files, [kind] * len(files)):
            pass


def main() -> None:
    """Print clips a second, the better of two times."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--n", type=int, default=3000)
    arguments = parser.parse_args()
    files = sorted(arguments.data.glob("*.wav"))[: arguments.n]
    for kind in ("raw", "fbank"):
        # The first call of librosa imports and compiles for seconds.
        decode_sound(files[0], kind)
        line: dict[str, object] = {"peer": kind}
        for threads in (1, 2):
            rate, others = fastest(lambda kind=kind, threads=threads: run(files, kind, threads), len(files))
            line |= {f"clips_per_s_{threads}t": round(rate, 1), "cpus_of_others": others}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
