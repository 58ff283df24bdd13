"""Known faults, taken back one by one: random programs find each; `python -m tests.laws.mutations --steps 1500`."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest.mock import patch

from daskprep.dataset.writing import adding, deleting, redacting, versions
from daskprep.features.base import Contract
from daskprep.features.parameter_values import make_features
from daskprep.passes import table
from daskprep.passes.state import state_files, state_from_files
from daskprep.rows.base import MISSING
from daskprep.storage.manifest import read_versions
from tests.laws.laws import TALLY, Tally
from tests.laws.test_laws import STEPS, run_programs


def labels_are_invented() -> Any:
    """Impute missing labels of targets by the strategy of their type, as for other features."""
    return patch.object(Contract, "_configure_as_target", lambda self: None)


def keys_of_states_are_renamed() -> Any:
    """Rename the keys of a fitted state that equal removed tokens."""
    redact = redacting.redacted_state

    def rename(part: Any, lost: Mapping[str, Any]) -> dict[str, bytes]:
        if not (files := redact(part, lost)):
            return files
        state = state_from_files(files.__getitem__)
        for name, outputs in lost.items():
            names = {}
            for output, ids in outputs.items():
                tokens = part.learned[name].of_output(output).vocabulary.tokens
                names |= {tokens[one].as_py(): f"<REMOVED {one}>" for one in ids.tolist()}
            state["features"][name] = with_keys(state["features"][name], names)
        return state_files(state)

    return patch.object(redacting, "redacted_state", rename)


def with_keys(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {names.get(key, key): with_keys(one, names) for key, one in value.items()}
    return value


def receipts_are_trusted() -> Any:
    """Finish a purge that was killed after its commit, and nothing else."""
    purge = deleting.purge_rows

    def trust(dataset: Any) -> dict[str, Any]:
        root = deleting.editable_root(dataset, "purge")
        for name in filter(deleting._RECEIPT.fullmatch, root.children()):
            receipt, listed = json.loads(root.read(name)), read_versions(root)
            if receipt["finished"] is None and listed and set(receipt["manifests"]) <= set(listed.digests):
                root.write(name, json.dumps({**receipt, "finished": "now"}).encode())
                return receipt
        return purge(dataset)

    return patch.object(deleting, "purge_rows", trust)


def added_features_ignore_weights() -> Any:
    return patch.object(adding, "make_features", lambda specs, targets, weight: make_features(specs, targets))


def indicators_take_other_columns() -> Any:
    """Take the column that is called as the indicator of another feature, together with that feature."""

    class Shared(dict[str, Any]):
        def pop(self, name: str) -> Any:  # type: ignore[override]
            column = super().pop(name)
            super().pop(name + MISSING, None)
            return column

    complete = table.completed_columns
    return everywhere(complete, lambda *arguments, **options: Shared(complete(*arguments, **options)))


def spellings_are_other_files() -> Any:
    """Compare the paths of files as they were passed."""
    return everywhere(versions.resolved_record, lambda record: record)


@contextlib.contextmanager
def everywhere(function: Callable[..., Any], faulty: Callable[..., Any]) -> Iterator[None]:
    """Replace a function in all modules that import it."""
    with contextlib.ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("daskprep") and getattr(module, function.__name__, None) is function:
                stack.enter_context(patch.object(module, function.__name__, faulty))
        yield


MUTATIONS = (
    labels_are_invented,
    keys_of_states_are_renamed,
    receipts_are_trusted,
    added_features_ignore_weights,
    indicators_take_other_columns,
    spellings_are_other_files,
)


def find(mutation: Callable[[], Any], steps: int, seed: int) -> str:
    """Return the number of steps until a law breaks, and how."""
    vars(TALLY).update(vars(Tally()))
    try:
        with mutation():
            run_programs(steps // STEPS, seed, shrink=False)
    except Exception as error:
        # Hypothesis repeats the program that fails.
        return f"found in {TALLY.steps_before:,} steps: {type(error).__name__}: {error!s:.150}"
    return f"not found in {sum(TALLY.steps.values()):,} steps"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print for each fault the number of steps until a law breaks.")
    parser.add_argument("--steps", type=int, default=1_500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=[one.__name__ for one in MUTATIONS])
    arguments = parser.parse_args()
    for one in MUTATIONS:
        if not arguments.only or one.__name__ in arguments.only:
            print(f"{one.__name__}: {find(one, arguments.steps, arguments.seed)}", flush=True)
