"""Model glue for torch: batches to one tensor of inputs, and heads with losses for the targets."""

from __future__ import annotations

from daskprep.nn.inputs import Inputs
from daskprep.nn.outputs import Outputs

__all__ = ["Inputs", "Outputs"]
