"""`daskprep demo`: from a file to batches, with made-up rows."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

import click

import daskprep as dp
from daskprep.columns.display import escape_unprintable
from daskprep.extensions.cli.console import show_write_result

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
  split: {type: stratify, column: sold, shares: [0.7, 0.1, 0.2]}
"""


@click.command(short_help="Preprocess and load a made-up file.")
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
def demo(folder: Path | None) -> None:
    """Create a small CSV file and a configuration, write a dataset, and load a batch.

    \b
    daskprep demo
    daskprep demo listings    # keeps the files in a new folder

    With a FOLDER, you can run the printed commands again.
    """
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise click.UsageError(f"{escape_unprintable(str(folder))} is not empty: choose a new folder")
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            _run_demo(Path(temporary))
        return
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _run_demo(folder)
    except BaseException:
        shutil.rmtree(folder)  # otherwise the same command would refuse the folder, since it is not empty
        raise


def _run_demo(folder: Path) -> None:
    """Write a file and a dataset to `folder`; print commands."""
    from daskprep.extensions.cli.row_files import decode_tables, write_rows
    from daskprep.storage import Folder

    data, config, path = folder / "listings.csv", folder / "listings.yaml", folder / "listings.dp"
    storage_folder = Folder.open(folder)
    storage_folder.write(data.name, _make_rows().encode())
    storage_folder.write(config.name, _CONFIG.encode())
    click.echo(f"{_ROWS} rows in {data}, described by {config}:\n\n{_CONFIG}")
    click.echo(f"$ daskprep preprocess {config} {data} -o {path}")
    dataset = dp.Preprocessor.from_config(config).fit_write(data, path)
    show_write_result(dataset)
    click.echo(f"\n$ daskprep decode {path} --rows 3")
    write_rows(decode_tables(dataset["train"], rows=3), "csv", None)
    click.echo()
    click.echo(f'>>> loader = daskprep.open_dataset("{path}")["train"].loader(batch_size=64)')
    click.echo(">>> inputs, sold = next(iter(loader))")
    # A loop and not `next`: at its end the iterator is closed, which stops the threads of the loader.
    for inputs, sold in dataset["train"].loader(batch_size=64):
        for name, tensor in {**inputs, "sold": sold}.items():
            click.echo(f"{name:8} {str(tensor.dtype).removeprefix('torch.'):8} {tuple(tensor.shape)}")
        break


def _make_rows() -> str:
    """Return the same 600 rows as CSV, with missing cells."""
    generator = random.Random(0)  # noqa: S311 made-up rows are no secret
    lines = ["price,city,review,listed,sold"]
    for _ in range(_ROWS):
        price = "" if generator.random() < 0.1 else f"{generator.lognormvariate(4, 0.5):.2f}"
        review = " ".join(generator.choices(_WORDS, k=generator.randint(0, 12))).capitalize()
        day = f"2024-{generator.randint(1, 12):02}-{generator.randint(1, 28):02}"
        sold = "yes" if generator.random() < 0.3 else "no"
        lines.append(",".join([price, generator.choice(_CITIES), review, day, sold]))
    return "\n".join([*lines, ""])
