"""Model glue for torch: batches to one tensor of inputs, and heads with losses for the targets.

In: a fitted Preprocessor or a dataset, then batches of its loader. Out: modules. They hold sizes and scales, no rows.
"""

from __future__ import annotations

from daskprep.nn.inputs import Inputs
from daskprep.nn.outputs import Outputs

__all__ = ["Inputs", "Outputs"]


def __dir__() -> list[str]:
    return __all__
