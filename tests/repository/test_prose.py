"""What people read is plain English: no sentence too long, none of the phrases below, no code wider than its box.

A small linter of our own. codespell checks the spelling.
"""

from __future__ import annotations

import inspect
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import daskprep

ROOT = Path(__file__).parents[2]
MOST_WORDS, MOST_COLUMNS = 35, 88

# Regular expressions, in which a space is any white space and case does not matter, and what to write instead.
REMEDIES = {
    r"\bsounds?\b": "audio",
    r"\bpictures?\b": "image(s)",
    r"\b(go|goes|going|went) on\b": "resume, continue",
    r"\bby chance\b|\bputs? in another order\b": "at random, shuffled",
    r"\b(type|tokenizer|split|feature|loop|function|model|class|key)s? of (one's|your|our|somebody's) own\b": "custom",
    r"\bbegins?\b|\bbegan\b": "start",
    r"\b(in|from) a shell\b": "on the command line",
    r"\bcut (in|into) (pieces|parts|partitions)\b": "partitioned, split into partitions",
    r"\bwhere the work runs\b": "which scheduler runs it",
    r"\b(a person|people) reads?\b": "human-readable",
    r"\bside by side\b": "as columns",
    r"\bone after the other\b": "in sequence, concatenated",
    r"\bwhat (is|was|were|it|they) learn(s|ed)?\b": "the fitted state, learned state",
    r"\b(of which|thereof|therein|whereof|likewise|anew|hence)\b": "rewrite the sentence",
    r", for (it|they|this|these|people) (is|are|was|were|has|have|can|may|do|does|look)\b": "because",
    r"\b(is|are|was|were) there\b(?! (a|an|any|no)\b|\?)": "exists",
    r"^there (is|are)\b": "start with the subject",
    r"\b(looks|looked) at\b": "inspects, checks, reads",
    r"\b(told|tell|tells) apart\b": "distinguish",
    r"\b(is|are) known to\b(?! be)": "available in, part of",
    r"\b(is an error|are errors)\b": "raises `NameOfError`",
    r"\bin the words of\b": "in … terms, in … format",
    r"\b(read|reads|reading|decode|decodes|decoded|decoding) ahead\b": "prefetch, in the background",
    r"\bby (itself|themselves)\b": "automatically",
    r"\b(is|are|was|were) made (of|from)\b": "created from, built from",
    r"\bhand(s|ed|ing)? (in|over)\b": "pass",
    r"\bask(s|ed|ing)? for\b": "request, call",
    r"\brows of new data\b": "new rows",
    r"\b(lie|lies|lay)\b": "is stored, is located",
    r"\bthings?\b": "name it",
}
FENCED = re.compile(r"^ *(`{3,}|~{3,})(\S*)[^\n]*\n(.*?)^ *\1 *$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(?<!`)(`+)(?!`)((?:(?!\n\n).)+?)(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"!?\[((?:[^\]\n]|\n(?!\n))*)\](\([^)]*\)|\[[^\]\n]*\])")
TAG = re.compile(r"<!--.*?-->|</?[a-z][^>\n]*>", re.DOTALL)
START = re.compile(r"\s*([-*+] |\d+[.)] |#|\||>|:)")  # of an item, a heading, a table, a quotation, an option
END = re.compile(r"(?<!\.\.)(?<!e\.g)(?<!i\.e)(?<!vs)[.!?][\"'*_)]*\s+")


class Block(NamedTuple):
    """A paragraph, an item, a heading or a row of a table, with the number of its first line."""

    line: int
    text: str


def blocks(text: str) -> Iterator[Block]:
    """Yield the prose of Markdown; code is one word, links are their text."""
    text = FENCED.sub(lambda found: "\n" * found[0].count("\n"), text)
    text = CODE.sub(lambda found: "Code" + "\n" * found[0].count("\n"), text)
    text = LINK.sub(lambda found: found[1] + "\n" * found[2].count("\n"), text)
    text = TAG.sub(lambda found: "\n" * found[0].count("\n"), text)
    block: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        indented_code = not block and line.startswith("    ")
        alone = bool(block) and block[0].lstrip().startswith(("#", "|"))
        if block and (not line.strip() or alone or START.match(line)):
            yield Block(number - len(block), "\n".join(block))
            block = []
        if line.strip() and not indented_code:
            block.append(line)


def sentences(block: Block) -> Iterator[Block]:
    """Yield the sentences of a block, each with the number of its first line."""
    starts = [0, *(found.end() for found in END.finditer(block.text)), len(block.text)]
    for start, stop in itertools.pairwise(starts):
        yield Block(block.line + block.text.count("\n", 0, start), block.text[start:stop])


def findings(text: str, name: str) -> list[str]:
    """Return the findings of Markdown as `name:line: phrase -> remedy`."""
    found = []
    for block in blocks(text):
        for sentence in sentences(block):
            plain = re.sub(r"^[\s\-*+>|#(\"]+", lambda mark: "\n" * mark[0].count("\n"), sentence.text).rstrip("| \n")
            words = re.findall(r"\S*\w\S*", plain)
            if len(words) > MOST_WORDS and not block.text.lstrip().startswith("|"):
                beginning = " ".join(words[:5])
                found.append(f"{name}:{sentence.line}: {len(words)} words: {beginning} ... -> at most {MOST_WORDS}")
            for phrase, remedy in REMEDIES.items():
                for match in re.finditer(phrase.replace(" ", r"\s+"), plain, re.IGNORECASE):
                    line = sentence.line + plain.count("\n", 0, match.start())
                    found.append(f"{name}:{line}: {' '.join(match[0].split())} -> {remedy}")
    for fence in FENCED.finditer(text):
        first = text.count("\n", 0, fence.start(3)) + 1
        for line, code in enumerate(fence[3].splitlines(), first):
            if fence[2] in ("python", "text") and len(code) > MOST_COLUMNS:
                found.append(f"{name}:{line}: {len(code)} columns of code -> at most {MOST_COLUMNS}")
    return found


def markdown_files() -> list[str]:
    paths = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "notebooks").iterdir()]
    paths = [path for path in paths if path.suffix in {".md", ".ipynb"} and path.parent != ROOT / "docs" / "notebooks"]
    return sorted(str(path.relative_to(ROOT)) for path in paths)


def findings_of_file(name: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    if not name.endswith(".ipynb"):
        return findings(text, name)
    cells = enumerate(json.loads(text)["cells"], 1)
    texts = [(number, "".join(cell["source"])) for number, cell in cells if cell["cell_type"] == "markdown"]
    return [finding for number, text in texts for finding in findings(text, f"{name} cell {number}")]


@pytest.mark.parametrize("name", markdown_files())
def test_page_is_plain_english(name):
    found = findings_of_file(name)
    assert not found, "\n" + "\n".join(found)


def test_docstrings_of_public_names_are_plain_english():
    documented = {f"daskprep.{name}": getattr(daskprep, name) for name in daskprep.__all__}
    for one in [one for one in documented.values() if isinstance(one, type)]:
        members = inspect.getmembers(one, inspect.isfunction)
        documented |= {f"{each.__module__}.{each.__qualname__}": each for key, each in members if key[0] != "_"}
    first = {name: (inspect.getdoc(one) or "").split("\n\n")[0] for name, one in documented.items()}
    found = [finding for name, text in first.items() for finding in findings(text, name)]
    assert not found, "\n" + "\n".join(found)


LONG = " ".join(["word"] * 36)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Two lines\nof the Pictures.\n", ["p:2: Pictures -> image(s)"]),
        ("# Images and sound\n\nText.", ["p:1: sound -> audio"]),
        ("Good.\n\n- A run that goes\n  on.\n", ["p:3: goes on -> resume, continue"]),
        ("| a | b |\n|---|---|\n| lies here | c |\n", ["p:3: lies -> is stored, is located"]),
        ("It is short. There are\nten.", ["p:1: There are -> start with the subject"]),
        ("A [link\nto pictures](x.md) here", ["p:2: pictures -> image(s)"]),
        (f"One.\n{LONG}.\n", ["p:2: 36 words: word word word word word ... -> at most 35"]),
        (f"- {LONG}\n- Two.", ["p:1: 36 words: word word word word word ... -> at most 35"]),
        (f"```python\nx\ny = {'1' * 85}\n```\n", ["p:3: 89 columns of code -> at most 88"]),
        ("```text\n1\n```\n\nSounds.", ["p:5: Sounds -> audio"]),
    ],
)  # fmt: skip
def test_findings_have_their_line(text, found):
    assert findings(text, "p") == found


@pytest.mark.parametrize(
    "text",
    [
        "`goes on` and [text](sounds.md), in ``lies``.\n",
        f"```sh\npictures {LONG}\n```\n\n    sounds\n",
        f"| {LONG} |\n|---|\n",
        "Is there a way? Which is there? Soundfile's keynote lied.\n",
        f"{LONG[:-5]}. {LONG[:-5]}.\n\n{LONG[:-5]}\n- {LONG[:-5]}\n",
    ],
)
def test_code_addresses_and_plain_sentences_have_no_findings(text):
    assert not findings(text, "p")
