"""Run pages of the documentation and store the output of their blocks: python -m tests.fill_docs docs/start.md."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path

from tests.repository.test_docs import BLOCK


def filled(page: Path) -> str:
    """Return the page with the output of each Python block below the block."""
    text, end, parts = page.read_text(encoding="utf-8"), 0, []
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(block[1], str(page), "exec"), namespace)
        parts += [text[end : block.start()], f"```python\n{block[1]}```"]
        if printed.getvalue().strip():
            lines = [line.rstrip() for line in printed.getvalue().rstrip().splitlines()]
            parts.append("\n\n```text\n" + "\n".join(lines) + "\n```")
        end = block.end()
    return "".join(parts) + text[end:]


if __name__ == "__main__":
    home = Path.cwd()
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            result = filled(home / name)
            os.chdir(home)
        (home / name).write_text(result, encoding="utf-8")
