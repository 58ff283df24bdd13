"""Train on a table with text, images and audio with Lightning.

    python examples/multimodal/train.py

It creates its own data in a temporary folder, and needs no network. Lightning is in an extra:
pip install ".[lightning]".
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import nn

import daskprep as dp
from daskprep.extensions.media.audio import encode_wav

ROWS, RATE = 600, 8_000
WORDS = np.array(["calm", "bright", "small", "great", "quiet", "rooms", "garden", "and", "near", "station"])


def listings(folder: Path) -> pd.DataFrame:
    """Create rows with an image and a recording each; what is sold has warmer images and quieter recordings."""
    rng = np.random.default_rng(0)
    sold = rng.random(ROWS) < 0.4
    for row in range(ROWS):
        pixels = rng.integers(0, 200, (48, 64, 3), dtype=np.uint8)
        pixels[..., 0] += np.uint8(40 * sold[row])
        Image.fromarray(pixels).save(folder / f"{row}.png")
        samples = rng.normal(size=RATE // 4).astype(np.float32) / (16 if sold[row] else 8)
        (folder / f"{row}.wav").write_bytes(encode_wav(samples, RATE))
    return pd.DataFrame(
        {
            "price": pd.Series(rng.lognormal(4, 0.5, ROWS)).mask(rng.random(ROWS) < 0.1),
            "review": [" ".join(rng.choice(WORDS, rng.integers(3, 12))) for _ in range(ROWS)],
            "photo": [f"{row}.png" for row in range(ROWS)],
            "street": [f"{row}.wav" for row in range(ROWS)],
            "sold": sold,
        }
    )


class Net(nn.Module):
    """Combine number, text, image and spectrogram in one logit."""

    def __init__(self, words: int, bands: int) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(words, 8, padding_idx=0)
        self.photo = nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.street = nn.Linear(bands, 8)
        self.last = nn.Linear(1 + 8 + 8 + 8, 1)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return a logit for each row."""
        street = self.street(batch["street"].mean(dim=1))
        parts = [batch["price"][:, None], self.words(batch["review"]), self.photo(batch["photo"]), street]
        return self.last(torch.cat(parts, dim=1)).squeeze(1)


def train(dataset: dp.Dataset, folder: Path) -> None:
    """Train for three epochs and validate after each."""
    import lightning  # noqa: PLC0415 an extra

    from daskprep.lightning import DataModule  # noqa: PLC0415 as above

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            train = dataset["train"]
            self.net = Net(train.num_embeddings("review"), train.shape("street")[1])

        def training_step(self, batch: tuple[dict[str, torch.Tensor], torch.Tensor], _: int) -> torch.Tensor:
            inputs, sold = batch
            return nn.functional.binary_cross_entropy_with_logits(self.net(inputs), sold.float())

        def validation_step(self, batch: tuple[dict[str, torch.Tensor], torch.Tensor], _: int) -> None:
            inputs, sold = batch
            right = ((self.net(inputs) > 0) == sold).float().mean()
            self.log("accuracy", right, batch_size=len(sold))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=0.01)

    lightning.seed_everything(0, verbose=False)
    augment = {"photo": dp.Mirror()}
    data = DataModule(
        {"train": {"sold": dp.Manager(dataset, batch_size=32, augment=augment)}, "val": {"sold": dp.Manager(dataset)}}
    )
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=folder,
    )
    trainer.fit(Classifier(), datamodule=data)
    print(f"validation accuracy: {float(trainer.callback_metrics['accuracy']):.3f}")


def main() -> None:
    """Write a dataset whose media are decoded while loading and cached, and train on it."""
    if importlib.util.find_spec("lightning") is None:
        print('this example needs Lightning: pip install ".[lightning]"')
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        media = {"mode": "lazy_cached", "base_dir": str(folder)}
        prep = dp.Preprocessor(
            {
                "price": dp.Number(missing_value_strategy="fill_with_mean"),
                "review": dp.Text(max_sequence_length=16),
                "photo": dp.Image(height=48, width=64, num_channels=3, **media),
                "street": dp.Audio(audio_file_length_limit_in_s=0.25, **media),
                "sold": "binary",
            },
            targets="sold",
            split=dp.StratifiedSplit("sold", (0.8, 0.2, 0.0)),
        )
        dataset = prep.fit_write(listings(folder), folder / "listings.dp")
        print(dataset, end="\n\n")
        train(dataset, folder)


if __name__ == "__main__":
    main()
