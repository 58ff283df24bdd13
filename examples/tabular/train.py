"""Train a model on a table, predict new rows, and serve single rows from a second process.

    python examples/tabular/train.py

It creates its own data in a temporary folder, and needs no network.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

import daskprep as dp
from daskprep import serving

ROWS = 20_000


def flats(rows: int, seed: int) -> pd.DataFrame:
    """Create flats with missing values; whether one is sold depends on its size and city."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "size": rng.normal(70, 20, rows).round(),
            "city": rng.choice(["Oslo", "Rome", "Bern"], rows, p=[0.5, 0.3, 0.2]),
            "tags": rng.choice(["sauna", "balcony sauna", "balcony", ""], rows),
        }
    )
    score = frame["size"] + 40 * (frame["city"] == "Rome") + rng.normal(0, 5, rows)
    frame["size"] = frame["size"].mask(rng.random(rows) < 0.05)
    frame["sold"] = np.where(score > 80, "yes", "no")
    return frame


class Model(nn.Module):
    """Predict from size, city and tags whether a flat will be sold."""

    def __init__(self, cities: int, tags: int) -> None:
        super().__init__()
        self.city = nn.Embedding(cities, 4)
        self.layers = nn.Sequential(nn.Linear(1 + 4 + tags, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return a logit for each row."""
        columns = [batch["size"][:, None], self.city(batch["city"]), batch["tags"].float()]
        return self.layers(torch.cat(columns, dim=1)).squeeze(1)


def train(dataset: dp.Dataset) -> tuple[Model, dict[str, int]]:
    """Train for three epochs; return the model and the sizes that it was created with."""
    torch.manual_seed(0)
    sizes = {"cities": dataset["train"].num_embeddings("city"), "tags": dataset["train"].num_embeddings("tags")}
    model = Model(**sizes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = dataset["train"].loader(batch_size=256)
    for epoch in range(3):
        losses = []
        for batch, sold in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(batch), sold.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {np.mean(losses):.3f}")
    return model, sizes


def serve(folder: Path) -> None:
    """Answer POST requests of rows with predictions; print the port first."""
    encoder = serving.load(folder / "flats.json")
    saved = torch.load(folder / "flats.pt", weights_only=True)
    model = Model(**saved["sizes"]).eval()
    model.load_state_dict(saved["weights"])

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            arrays = encoder.encode(rows, expand=True)
            with torch.inference_mode():
                outputs = model({name: torch.as_tensor(array) for name, array in arrays.items()})
            columns = {name: np.asarray(values).tolist() for name, values in encoder.predictions(outputs).items()}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(
                json.dumps({name: np.asarray(values).tolist() for name, values in columns.items()}).encode()
            )

        def log_message(self, *args: object) -> None:
            """Stay silent."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


def ask(folder: Path, rows: list[dict[str, object]]) -> None:
    """Start the service as a second process, send it rows, and print its answer."""
    command = [sys.executable, __file__, "serve", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:  # noqa: S603 our own script
        try:
            assert service.stdout is not None
            url = f"http://127.0.0.1:{int(service.stdout.readline())}"
            request = urllib.request.Request(url, json.dumps(rows).encode())
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 our own server
                print("served:", answer.read().decode())
        finally:
            service.terminate()


def main() -> None:
    """Write a dataset, train, predict a file of new rows, save, and serve."""
    features = {
        "size": dp.Number(missing_value_strategy="fill_with_mean"),
        "city": "category",
        "tags": "set",
        "sold": dp.Binary(missing_value_strategy="drop_row"),
    }
    prep = dp.Preprocessor(features, targets="sold", split=dp.RandomSplit((0.8, 0.0, 0.2)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset = prep.fit_write(flats(ROWS, seed=0), folder / "flats.dp")
        print(dataset, end="\n\n")
        model, sizes = train(dataset)

        new = flats(1_000, seed=1)
        found = prep.predict(new, model)
        print(f"accuracy on new rows: {(found['sold_predictions'] == new['sold']).mean():.3f}")

        prep.save(folder / "flats.json")
        torch.save({"sizes": sizes, "weights": model.state_dict()}, folder / "flats.pt")
        ask(folder, [{"size": 120, "city": "Rome", "tags": "sauna"}, {"size": None, "city": "Paris", "tags": None}])


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(Path(sys.argv[2]))
    else:
        main()
