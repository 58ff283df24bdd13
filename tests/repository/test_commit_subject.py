"""The hook of commit messages rejects subjects without an area, and verbs of speech."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

HOOK = Path(__file__).parents[2] / ".ci" / "commit-subject"


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        ("report: sample rows at random for associations", ""),
        ("tests, docs: follow the renamed options", ""),
        ("Sample rows at random", "area and a colon"),
        ("report: let rows be sampled", "no verb of speech"),
        ("docs: Tell of the faults", "no verb of speech"),
        (f"docs: {'word ' * 20}", "100 characters"),
    ],
)
def test_commit_subject_has_area_and_change(tmp_path, subject, message):
    (tmp_path / "message").write_text(f"{subject}\n\nLet the body be free.\n")
    done = subprocess.run([HOOK, tmp_path / "message"], capture_output=True, text=True, check=False)
    assert done.returncode == bool(message)
    assert message in done.stderr
