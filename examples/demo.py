"""Write a dataset of mixed columns, images and audio, train a network on it, and test the network on other rows."""

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
from daskprep.extensions.media.audio import encode_wav
from daskprep.nn import Inputs, Outputs

ROWS = 2_000
CITIES = np.array(["Oslo", "Rome", "Lagos", "Lima", "Hanoi"])
TAGS = np.array(["sauna", "view", "pool", "garden", "lift"])
WORDS = np.array(["calm", "bright", "rooms", "are", "lovely", "and", "quiet", "but", "small", "great"])
SAMPLING_RATE = 8_000


def write_photo(path: Path, warm: bool, rng: np.random.Generator) -> str:
    """Write a JPEG file, with more red if it is warm, and return its name."""
    coarse = rng.integers(0, 180, (6, 8, 3), dtype=np.uint8)
    coarse[..., 0] += np.uint8(60 * warm)
    Image.fromarray(coarse).resize((320, 240), Image.Resampling.BICUBIC).save(path, quality=90)
    return path.name


def write_audio(path: Path, loud: bool, rng: np.random.Generator) -> str:
    """Write a WAV file of half a second, and return its name."""
    samples = rng.normal(size=SAMPLING_RATE // 2).astype(np.float32) / (8 if loud else 80)
    path.write_bytes(encode_wav(samples, SAMPLING_RATE))
    return path.name


def create_listings(folder: Path) -> pd.DataFrame:
    """Return the rows: flats, and whether they were sold, which depends on the price, the photo and the street."""
    rng = np.random.default_rng(0)
    price, city = rng.lognormal(4, 0.5, ROWS).round(2), rng.choice(CITIES, ROWS, p=[0.4, 0.3, 0.15, 0.1, 0.05])
    warm, loud = rng.random(ROWS) < 0.5, rng.random(ROWS) < 0.3
    appeal = 3 * warm - 3 * loud - (price - 55) / 20 + (city == "Rome") + rng.normal(0, 0.5, ROWS)
    frame = pd.DataFrame(
        {
            "price": price,
            "city": city,
            "tags": [" ".join(rng.choice(TAGS, rng.integers(0, 5))) for _ in range(ROWS)],
            "review": [f"{' '.join(rng.choice(WORDS, rng.integers(3, 13)))}." for _ in range(ROWS)],
            "listed": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 365 * 24, ROWS), unit="h"),
            "photo": [write_photo(folder / f"{row}.jpg", bool(warm[row]), rng) for row in range(ROWS)],
            "street": [write_audio(folder / f"{row}.wav", bool(loud[row]), rng) for row in range(ROWS)],
            "sold": np.where(appeal > 0, "yes", "no"),
        }
    )
    frame.loc[rng.random(ROWS) < 0.1, "price"] = None
    frame.loc[rng.random(ROWS) < 0.05, "review"] = None
    return frame


def train_model(dataset: dp.Dataset) -> nn.Module:
    """Train a network for six epochs: the first decodes the media, the others read them from the cache."""
    torch.manual_seed(0)
    photo = nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
    street = nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.ReLU())
    street(torch.zeros(dataset["train"].shape("street")).unsqueeze(0))  # sets its size
    inputs = Inputs(dataset, modules={"photo": photo, "street": street})
    hidden = nn.Sequential(inputs, nn.Linear(inputs.width, 64), nn.ReLU())
    outputs = Outputs(dataset, in_features=64)
    optimizer = torch.optim.Adam([*hidden.parameters(), *outputs.parameters()], lr=0.003)
    loader = dataset["train"].loader(batch_size=64, augment={"photo": dp.Mirror()})
    for epoch in range(6):
        started, losses = time.perf_counter(), []
        for batch, labels in loader:
            loss = outputs.loss(hidden(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        how = "from the cache" if epoch else "decoding media"
        print(f"epoch {epoch}, {how}: {time.perf_counter() - started:.2f} s, loss {np.mean(losses):.3f}")
    started = time.perf_counter()
    rows = sum(len(labels) for _, labels in loader)
    print(f"The loader alone: {rows / (time.perf_counter() - started):,.0f} rows/s from the cache")
    return nn.Sequential(hidden, outputs)


def main() -> None:
    """Write rows to Parquet and to a dataset, train a network on it, and predict the test rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        media = folder / "media"
        media.mkdir()
        listings = create_listings(media)
        print("Two of the rows:", listings.head(2).T.to_string(max_colwidth=40), sep="\n", end="\n\n")
        listings.to_parquet(folder / "listings.parquet", row_group_size=500)

        features = {
            "price": dp.Number(normalization="zscore"),
            "city": "category",
            "tags": "set",
            "review": dp.Text(max_sequence_length=12),
            "listed": "date",
            "photo": dp.Image(height=48, width=64, num_channels=3, mode="lazy_cached", base_dir=str(media)),
            "street": dp.Audio(audio_file_length_limit_in_s=0.5, mode="lazy_cached", base_dir=str(media)),
            "sold": "binary",
        }
        prep = dp.Preprocessor(features, targets="sold", split=dp.StratifiedSplit("sold", seed=0))
        started = time.perf_counter()
        dataset = prep.fit_write(folder / "listings.parquet", folder / "listings.dp", shuffle=True, seed=0)
        print(dataset, f"Fitted and written in {time.perf_counter() - started:.2f} s", sep="\n", end="\n\n")

        model = train_model(dataset)
        test = listings[prep.assign(listings)["split"] == 2]
        predicted = prep.predict(test, model)["sold_predictions"]
        accuracy, most_frequent = np.mean(predicted == test["sold"]), test["sold"].value_counts(normalize=True).max()
        print(f"Accuracy on {len(test)} test rows: {accuracy:.3f} (the most frequent label: {most_frequent:.3f})")


if __name__ == "__main__":
    main()
