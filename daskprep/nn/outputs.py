"""A module with a linear head and a loss for each target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 its usual name

from daskprep.errors import ConfigError
from daskprep.features.base import keeps_missing, kind_with_article
from daskprep.nn.fitted import Source, column_of, fitted_state, match_ids, replace_rows
from daskprep.rows.normalization import NORMALIZATIONS
from daskprep.rows.predictions import (
    BinaryDecoder,
    BinDecoder,
    CategoryDecoder,
    NumberDecoder,
    NumberListDecoder,
    OutputDecoder,
    SetDecoder,
    create_decoder,
)


class _Head(torch.nn.Linear):
    """Scores of a target, and their squared errors by row."""

    class_weights: Tensor | None

    def __init__(self, in_features: int, decoder: OutputDecoder, weights: np.ndarray | None = None) -> None:
        self.is_single = not hasattr(decoder, "size")  # one score per row
        super().__init__(in_features, getattr(decoder, "size", 1))
        self.register_buffer("class_weights", None if weights is None else torch.from_numpy(weights), persistent=False)

    def adopt(self, new: _Head, ids: tuple[Tensor, Tensor], optimizer: torch.optim.Optimizer | None) -> None:
        """Take a new head; scores `ids[0]` become the scores `ids[1]`."""
        for parameter, values in zip(self.parameters(), new.parameters(), strict=True):
            replace_rows(parameter, values, *ids, optimizer)
        self.out_features = new.out_features
        if new.class_weights is not None:
            self.class_weights = new.class_weights.to(self.weight.device)

    def scores(self, hidden: Tensor) -> Tensor:
        """Return scores (rows,) or (rows, scores); ConfigError for another width."""
        if hidden.shape[-1:] != (self.in_features,):
            raise ConfigError(
                f"the hidden layer has the shape {tuple(hidden.shape)}, not (rows, in_features={self.in_features})"
            )
        scores = super().forward(hidden)
        return scores.squeeze(1) if self.is_single else scores

    def forward(self, hidden: Tensor) -> Tensor:
        return self.scores(hidden)

    def losses(self, hidden: Tensor, target: Tensor) -> Tensor:
        scores = self.scores(hidden)
        return (scores - target.flatten(1).to(scores.dtype)).square().mean(1)


class _NumberHead(_Head):
    """Scores in standard deviations; predictions in the target's units."""

    def __init__(self, in_features: int, decoder: OutputDecoder, weights: np.ndarray | None = None) -> None:
        super().__init__(in_features, decoder)
        self.center, self.scale = 0.0, 1.0
        mean, std = (decoder.learned.get(name) for name in ("mean", "std"))
        if mean is not None and std:
            normalizer = NORMALIZATIONS[decoder.params["normalization"]](decoder.learned)
            self.center, end = normalizer.transform(np.array([mean, mean + std])).tolist()
            self.scale = end - self.center if end > self.center else 1.0

    def adopt(self, new: _Head, ids: tuple[Tensor, Tensor], optimizer: torch.optim.Optimizer | None) -> None:
        super().adopt(new, ids, optimizer)
        self.center, self.scale = new.center, new.scale  # type: ignore[assignment]

    def forward(self, hidden: Tensor) -> Tensor:
        # Predictions of an unscaled target need more digits than bfloat16 has.
        return self.scores(hidden).float() * self.scale + self.center

    def losses(self, hidden: Tensor, target: Tensor) -> Tensor:
        scores = self.scores(hidden)
        return (scores - ((target.reshape(-1) - self.center) / self.scale).to(scores.dtype)).square()


class _ClassHead(_Head):
    """Cross entropy of class ids."""

    def losses(self, hidden: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.scores(hidden), target.reshape(-1).long(), self.class_weights, reduction="none")


class _BinaryHead(_Head):
    """Binary cross entropy of the score of True."""

    def losses(self, hidden: Tensor, target: Tensor) -> Tensor:
        """Return the cross entropy of each row, by any class weights."""
        scores = self.scores(hidden)
        labels = target.reshape(-1).to(scores.dtype)
        losses = F.binary_cross_entropy_with_logits(scores, labels, reduction="none")
        return losses if self.class_weights is None else losses * self.class_weights[labels.long()]


class _SetHead(_Head):
    """Binary cross entropy of each token (multi-label)."""

    def losses(self, hidden: Tensor, target: Tensor) -> Tensor:
        """Return mean losses over tokens, of a multi-hot target or ids."""
        scores = self.scores(hidden)
        if target.dtype == torch.int64:  # ids, of expand_to="ids"; their padding is id 0, which is never a label
            target = torch.zeros_like(scores).scatter(1, target, 1.0) * (torch.arange(scores.shape[1]) > 0).to(scores)
        return F.binary_cross_entropy_with_logits(scores, target.to(scores.dtype), reduction="none").mean(1)


_HEADS: dict[type[OutputDecoder], type[_Head]] = {
    BinaryDecoder: _BinaryHead, BinDecoder: _ClassHead, CategoryDecoder: _ClassHead, NumberDecoder: _NumberHead,
    NumberListDecoder: _Head, SetDecoder: _SetHead,
}  # fmt: skip


class Outputs(torch.nn.Module):
    """Predict the targets: a linear head and a loss for each.

    Predictions are as ``Preprocessor.predictions`` takes them. Losses are means over rows:

    - number: squared error of the target in standard deviations, which the mean and deviation of the fitted state
      determine; predictions are scaled back. Bins: cross entropy
    - category: cross entropy; binary: binary cross entropy; set: binary cross entropy of each token
    - vector, time series: squared error

    Parameters
    ----------
    source : Preprocessor or Dataset
        A fitted Preprocessor, or a dataset, whose fitted state has the numbers of classes and the scales.
    in_features : int
        Width of the hidden layer.
    targets : str, iterable of str or None
        Features to predict. None: the targets of the Preprocessor.
    class_weights : bool
        Whether losses of categories and binaries are weighted by `class_weights` of the source, against imbalance.

    Attributes
    ----------
    names : tuple of str
        The targets.

    Examples
    --------
    >>> import pandas as pd
    >>> import torch
    >>> import daskprep as dp
    >>> from daskprep.nn import Inputs, Outputs
    >>> frame = pd.DataFrame({"size": [1.0, 2.0, 3.0], "price": [100.0, 200.0, 300.0]})
    >>> features = {"size": "number", "price": dp.Number(normalization=None)}
    >>> prep = dp.Preprocessor(features, targets="price").fit(frame)
    >>> outputs = Outputs(prep, Inputs(prep).width)
    >>> predicted = outputs(torch.zeros(2, 1))  # prep.predictions(predicted) returns a frame
    >>> predicted["price"].shape
    torch.Size([2])
    >>> outputs.loss(torch.zeros(2, 1), torch.tensor([100.0, 300.0])).ndim
    0
    """

    def __init__(
        self,
        source: Source,
        in_features: int,
        *,
        targets: Iterable[str] | str | None = None,
        class_weights: bool = False,
    ) -> None:
        super().__init__()
        features, self._learned, self.names = fitted_state(source, targets)
        self._has_class_weights = class_weights
        if not self.names:
            raise ConfigError("no feature is a target, so there is nothing to predict: pass targets=")
        self.heads = torch.nn.ModuleList()
        for name in self.names:
            feature = features[name]
            saved = {"type": feature.kind, "params": vars(feature), "learned": self._learned[name].to_dict()}
            decoder = create_decoder(name, saved)
            head = _HEADS.get(type(decoder))
            unfit = ['missing_value_strategy="keep"'] * keeps_missing(feature)
            unfit += ['encoding="piecewise_linear"'] * (getattr(feature, "encoding", None) == "piecewise_linear")
            if head is None or unfit:
                noun = " with ".join([kind_with_article(feature), *unfit])
                raise ConfigError(
                    f'target "{name}": Outputs has no head for {noun}: change the feature, or name the other '
                    "targets in targets=, and predict this one with a module of your own"
                )
            is_weighted = class_weights and feature.semantic_type == "classes"
            self.heads.append(head(in_features, decoder, source.class_weights(name) if is_weighted else None))

    def forward(self, hidden: Tensor) -> dict[str, Tensor]:
        """Return predictions: logits, and numbers in encoded units."""
        return {name: head(hidden) for name, head in zip(self.names, self.heads, strict=True)}

    def losses(
        self, hidden: Tensor, batch: Tensor | Mapping[str, Tensor], weights: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return losses by target, as `loss`; ConfigError for one tensor of several."""
        if not isinstance(hidden, Tensor):
            raise ConfigError("the loss needs the hidden layer, not predictions: outputs.loss(hidden(inputs), targets)")
        if isinstance(batch, Tensor) and len(self.names) > 1:
            raise ConfigError(f"pass a mapping with the targets {', '.join(self.names)}, not one tensor")
        targets = {self.names[0]: batch} if isinstance(batch, Tensor) else batch
        by_row = {
            name: head.losses(hidden, column_of(targets, name))  # type: ignore[operator]
            for name, head in zip(self.names, self.heads, strict=True)
        }
        if weights is None:
            return {name: losses.mean() for name, losses in by_row.items()}
        return {name: (losses * weights).sum() / weights.sum() for name, losses in by_row.items()}

    def loss(self, hidden: Tensor, batch: Tensor | Mapping[str, Tensor], weights: Tensor | None = None) -> Tensor:
        """Return the sum of the losses of all targets, to minimize.

        Parameters
        ----------
        hidden : torch.Tensor
            Hidden layer of shape (rows, `in_features`).
        batch : torch.Tensor or mapping of str to torch.Tensor
            Encoded targets by name, such as the second item of a loader's batches; the tensor alone for one target.
        weights : torch.Tensor or None
            Weights of the rows, such as the third item of batches. Losses are then weighted means.
        """
        return torch.stack(list(self.losses(hidden, batch, weights).values())).sum()

    def extend(self, source: Source, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Adopt the classes and scales of a Preprocessor fitted again.

        Parameters
        ----------
        source, optimizer
            As for `Inputs.extend`.

        Raises
        ------
        ConfigError
            A target differs in more than its classes and scale: create new `Outputs`.
        """
        heads: list[_Head] = list(self.heads)  # type: ignore[arg-type]
        new = Outputs(source, heads[0].in_features, targets=self.names, class_weights=self._has_class_weights)
        new_heads: list[_Head] = list(new.heads)  # type: ignore[arg-type]
        ids = []
        for name, head, new_head in zip(self.names, heads, new_heads, strict=True):
            if isinstance(head, _ClassHead | _SetHead) and type(head) is type(new_head):
                ids.append(match_ids(name, self._learned[name], new._learned[name]))
            elif type(head) is type(new_head) and head.out_features == new_head.out_features:
                ids.append((torch.arange(head.out_features), torch.arange(head.out_features)))
            else:
                raise ConfigError(f'target "{name}" has another type or width than before: create new Outputs')
        for head, new_head, rows in zip(heads, new_heads, ids, strict=True):
            head.adopt(new_head, rows, optimizer)
        self._learned = new._learned
