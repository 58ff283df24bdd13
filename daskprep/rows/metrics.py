"""Numbers in the text format of Prometheus, which monitoring reads from a URL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def prometheus_text(
    name: str, kind: str, description: str, samples: Iterable[tuple[Mapping[str, object], float]]
) -> str:
    """Return a metric with its samples, pairs of labels and a value, one a line.

    `kind` is "counter" for numbers that only grow, or "gauge".
    """
    lines = [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        pairs = ",".join(f'{label}="{str(text).translate(_ESCAPES)}"' for label, text in labels.items())
        lines.append(f"{name}{{{pairs}}} {value}")
    return "\n".join(lines) + "\n"
