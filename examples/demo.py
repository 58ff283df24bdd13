"""Write a small dataset of mixed columns, images and audio, read it back, and train a model on it."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import nn

import daskprep as dp
from daskprep.media.audio import encode_wav

ROWS = 1_000
CITIES = np.array(["Oslo", "Rome", "Lagos", "Lima", "Hanoi"])
TAGS = np.array(["sauna", "view", "pool", "garden", "lift"])
WORDS = np.array(["calm", "bright", "rooms", "are", "Lovely", "and", "quiet", "but", "small", "great"])
SOUND_RATE = 8_000


def blank(values: np.ndarray, share: float, rng: np.random.Generator) -> pd.Series:
    """Remove a share of the values."""
    column = pd.Series(values)
    return column.mask(rng.random(len(column)) < share)


def joined(choices: np.ndarray, fewest: int, most: int, rng: np.random.Generator) -> list[str]:
    """Join a random number of random choices with spaces, once per row."""
    return [" ".join(rng.choice(choices, rng.integers(fewest, most + 1))) for _ in range(ROWS)]


def photograph(path: Path, sold: bool, rng: np.random.Generator) -> str:
    """Make a photo as large as a phone's preview; those of what was sold are a little warmer."""
    coarse = rng.integers(0, 200, (6, 8, 3), dtype=np.uint8)
    coarse[..., 0] += np.uint8(40 * sold)
    Image.fromarray(coarse).resize((640, 480), Image.Resampling.BICUBIC).save(path, quality=90)
    return path.name


def record(path: Path, rng: np.random.Generator) -> str:
    """Make half a second of sound."""
    samples = rng.normal(size=SOUND_RATE // 2).astype(np.float32) / 8
    path.write_bytes(encode_wav(samples, SOUND_RATE))
    return path.name


def listings(folder: Path) -> pd.DataFrame:
    """Make the rows: every kind of column, with missing values where real data has them."""
    rng = np.random.default_rng(0)
    nights = rng.normal(size=(ROWS, 7)).cumsum(axis=1)
    sold = rng.random(ROWS) < 0.3
    return pd.DataFrame(
        {
            "price": blank(rng.lognormal(4, 0.5, ROWS).round(2), 0.1, rng),
            "city": blank(rng.choice(CITIES, ROWS, p=[0.4, 0.3, 0.15, 0.1, 0.05]), 0.02, rng),
            "tags": joined(TAGS, 0, 4, rng),
            "review": blank(np.array([f"{text}." for text in joined(WORDS, 3, 12, rng)]), 0.05, rng),
            "demand": [" ".join(f"{value:.2f}" for value in row) for row in nights],
            "listed": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 365 * 24, ROWS), unit="h"),
            "photo": [photograph(folder / f"{row}.jpg", bool(sold[row]), rng) for row in range(ROWS)],
            "street": [record(folder / f"{row}.wav", rng) for row in range(ROWS)],
            "sold": sold,
        }
    )


def preprocessor(media: Path) -> dp.Preprocessor:
    """Say what each column is."""
    return dp.Preprocessor(
        {
            "price": dp.Number(normalization="zscore", missing_value_strategy="fill_with_mean"),
            "city": dp.Category(),
            "tags": dp.Set(),
            "review": dp.Text(max_sequence_length=12),
            "demand": dp.Timeseries(),
            "listed": dp.Date(),
            "photo": dp.Image(height=48, width=64, num_channels=3, mode="lazy_cached", base_dir=str(media)),
            "street": dp.Audio(audio_file_length_limit_in_s=0.5, mode="lazy_cached", base_dir=str(media)),
            "sold": "binary",
        },
        split=dp.StratifiedSplit("sold", seed=0),
    )


def shown(value: object) -> str:
    """Cut long values short."""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = " ".join(value) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def learned_lines(prep: dp.Preprocessor) -> list[str]:
    """Tell in one line per feature what was learned of it."""
    telling = ("mean", "std", "idx2str", "max_set_size", "max_sequence_length", "max_timeseries_length")
    telling += ("first", "last", "height", "width", "sampling_rate", "bool2str")
    lines = []
    for name, learned in prep.learned_.items():
        facts = {key: shown(value) for key, value in learned.to_dict().items() if key in telling}
        missing = f"{learned.missing} of {learned.rows:,} missing"
        lines.append(f"{name:8} {missing:21} " + ", ".join(f"{key}: {value}" for key, value in facts.items()))
    return lines


def show_dataset(dataset: dp.Dataset) -> None:
    """Show what was written, as it lies on disk and as a person reads it."""
    print(dataset, end="\n\n")
    train = dataset["train"]
    print("The first training row, encoded:")
    for name, array in train.read(stop=1).items():
        print(f"{name:8} {array.dtype!s:8} {f'an array of {array.shape[1:]}' if array.ndim > 2 else str(array[0])}")
    rows = train.head(3).drop(columns=["photo", "street"])  # arrays, and no text
    print("\nThe first training rows, decoded:", rows.T.to_string(max_colwidth=50), sep="\n", end="\n\n")


class Model(nn.Module):
    """Tell from a photo, the sound of the street, the price and the city whether something will be sold."""

    def __init__(self, cities: int, bands: int) -> None:
        super().__init__()
        self.photo = nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.city = nn.Embedding(cities, 4)
        self.last = nn.Linear(32 + 4 + bands + 1, 1)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return a logit for each row."""
        parts = [self.photo(batch["photo"]), self.city(batch["city"]), batch["street"].mean(1), batch["price"][:, None]]
        return self.last(torch.cat(parts, 1))[:, 0]


def train_model(dataset: dp.Dataset) -> None:
    """Train for two epochs: the first decodes the media and keeps them, the second reads what was kept."""
    torch.manual_seed(0)
    train = dataset["train"]
    model = Model(train.num_embeddings("city"), train.shape("street")[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = train.loader(batch_size=64, targets="sold", augment={"photo": dp.Mirror()})
    print("Training:")
    for epoch, how in enumerate(("decoding images and audio", "from the cache")):
        began, losses = time.perf_counter(), []
        for inputs, sold in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(inputs), sold.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        seconds = time.perf_counter() - began
        print(f"epoch {epoch}, {how:27} {seconds:5.2f} s, loss {np.mean(losses):.3f}")
    assert train.cache("photo").complete


def main() -> None:
    """Write rows to Parquet, learn from them, write them as a dataset, show what came of it, and train."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        media, source, path = folder / "media", folder / "listings.parquet", folder / "listings.dp"
        media.mkdir()
        frame = listings(media)
        print("The first rows:", frame.head(3).T.to_string(max_colwidth=50), sep="\n", end="\n\n")
        frame.to_parquet(source, row_group_size=250)
        prep = preprocessor(media)
        prep.fit_write(source, path, shuffle=True, seed=0)
        print("Learned from the training rows:", *learned_lines(prep), sep="\n", end="\n\n")
        dataset = dp.open_dataset(path, base_dir=media)
        show_dataset(dataset)
        train_model(dataset)


if __name__ == "__main__":
    main()
