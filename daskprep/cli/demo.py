"""`daskprep demo`: the way from a file to batches, on rows made on the spot."""

from __future__ import annotations

import csv
import random
import tempfile
from contextlib import nullcontext
from pathlib import Path

import click

import daskprep as dp
from daskprep.cli.console import printable

__all__ = ["demo"]

_ROWS = 600
_CITIES = ["Oslo", "Rome", "Lagos", "Lima", "Hanoi"]
_WORDS = ["calm", "bright", "rooms", "lovely", "quiet", "small", "great", "and", "but", "near", "the", "station"]

_CONFIG = """\
input_features:
  - {name: price, type: number, preprocessing: {normalization: zscore, missing_value_strategy: fill_with_mean}}
  - {name: city, type: category}
  - {name: review, type: text, preprocessing: {max_sequence_length: 16}}
  - {name: listed, type: date}
output_features:
  - {name: sold, type: binary}
preprocessing:
  split: {type: stratify, column: sold, probabilities: [0.7, 0.1, 0.2]}
"""


@click.command(short_help="Go from a made-up file to batches.")
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
def demo(folder: Path | None) -> None:
    """Make a small file and a configuration, write them as a dataset, and load a batch.

    \b
    daskprep demo
    daskprep demo listings    # keeps what it made in a new folder

    With a FOLDER, the commands that are printed can be given again.
    """
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise click.UsageError(f"{printable(str(folder))} is not empty: give a new folder")
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as place:
        _show(Path(place))


def _show(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    data, config, path = folder / "listings.csv", folder / "listings.yaml", folder / "listings.dp"
    _write_rows(data)
    config.write_text(_CONFIG, encoding="utf-8")
    click.echo(f"{_ROWS} rows in {data}, and what its columns are in {config}:\n\n{_CONFIG}")
    click.echo(f"$ daskprep preprocess {config} {data} -o {path}")
    dataset = dp.Preprocessor.from_config(config).fit_write(data, path)
    click.echo(f"{dataset!r}\n\n$ daskprep decode {path} --rows 3")
    click.echo(dataset["train"].head(3).to_csv(index=False))
    click.echo(f'>>> loader = daskprep.open_dataset("{path}")["train"].loader(batch_size=64)')
    click.echo(">>> batch = next(iter(loader))")
    # The loader's threads end with its iterator.
    for batch in dataset["train"].loader(batch_size=64):
        for name, tensor in batch.items():
            click.echo(f"{name:8} {str(tensor.dtype).removeprefix('torch.'):8} {tuple(tensor.shape)}")
        break


def _write_rows(path: Path) -> None:
    """Write rows with missing cells, the same each time."""
    chance = random.Random(0)  # noqa: S311 made-up rows are no secret
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["price", "city", "review", "listed", "sold"])
        for _ in range(_ROWS):
            price = "" if chance.random() < 0.1 else f"{chance.lognormvariate(4, 0.5):.2f}"
            review = " ".join(chance.choices(_WORDS, k=chance.randint(0, 12))).capitalize()
            day = f"2024-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}"
            sold = "yes" if chance.random() < 0.3 else "no"
            writer.writerow([price, chance.choice(_CITIES), review, day, sold])
