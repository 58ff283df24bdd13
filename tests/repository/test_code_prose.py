"""Docstrings, comments, messages and names of the package have no banned phrase or word and no long sentence.

python tests/repository/test_code_prose.py daskprep/dataset/loader    # prints the findings of some files or folders
"""

from __future__ import annotations

import ast
import collections
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.repository.test_prose import findings

ROOT = Path(__file__).parents[2]
FILES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "daskprep").rglob("*.py"))

# Regular expressions, as in `REMEDIES`, for phrases of code.
CODE_REMEDIES = {
    r"\b(return|yield|raise|write|read|count|add|keep)s? (what|which|who)\b": "the noun: Return a reader of ...",
    r"\bwho(ever|m)?\b": "the noun",
    r"\b(told|tells?|telling|said|saying|asked|asks?|asking|knows?)\b": "pass, return, is, requests, has",
    r"\bsuch as (it|they) (is|are)\b|\bas (it|they) (is|are)\b": "unchanged, or the noun",
    r"\bso many\b": "n, a number of",
    r"\bthe others\b|\bsome rows\b": "the noun: the selected rows",
    r"\b(that|those) of\b": "the noun",
    r"\bgaps?\b(?!=)": "missing value(s)",
    r"\bodd\b": "unreadable, invalid, rare",
    r"\bstands? (in )?for\b|\bstand-in\b": "represents, replaces",
    r"\bthe like\b|\band so on\b": "name them",
    r"\bhand(s|ed)?\b(?!-)": "pass",
    r"\bgives?\b": "return, yield, pass",
    r"\b(goes|comes|went|came) (by|to|from)\b": "uses, results in, is read from",
    r"\bof (its|their) own\b": "separate, custom",
    r"\blets?\b": "allows; or the verb",
    r"\beverything\b|\bsomething\b|\banything\b": "the noun",
}  # fmt: skip

# Vague parts of names. Public parameters and keys of saved files are allowed below.
BANNED_NAMES = set(
    """told untold tell telling ask asked asks asking say said beside besides among whole how stretch found odd doubt
    doubtful around surroundings place places piece pieces given holds goes thing things something anything whatever
    sound sounds coming""".split()  # noqa: SIM905 shorter than a list
)
# Parameters and attributes that users write, and keys of saved files and of batches.
ALLOWED_NAMES = {"tell", "Whole"}
PARTICIPLES = re.compile(
    r"^_*[a-z]+(?<!ne)ed$|^_*(given|taken|made|found|told|kept|known|held|seen|written|drawn|shown)$"
)
ALLOWED_PARTICIPLES = {"prepared", "damaged", "jagged"}
FIRST_WORDS = re.compile(r"(tell|give|say|let|ask|what|who|how|of|for|by|as|that|those|this|these)\b", re.IGNORECASE)


def plain_text(docstring: str) -> str:
    """Return a docstring as Markdown, without examples, tables of numpydoc and code."""
    text = re.sub(r"^ *(>>>|\.\.\.)[^\n]*(\n(?! *\n)[^\n]*)*", "", docstring, flags=re.MULTILINE)
    text = re.sub(r"^(.*)\n *-{3,} *$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^ *[\w, *]+ : [^\n]*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\n +", "\n", text)
    return re.sub(r"::\n\n(?:.+\n?)*", ".\n", text)


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str, ast.AST]]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node, clean=False)
            if text is not None:
                yield node.body[0].lineno, text, node


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments of a file; consecutive lines of comments are joined."""
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or re.match(r"#\s*(noqa|type:|fmt:|pragma|!)", token.string):
            continue
        text = re.sub(r"#\s*(noqa|type:|fmt:)\S*[\w, ]*", "", token.string).lstrip("# ")
        if block and token.start[0] == last + 1:
            block.append(text)
        else:
            if block:
                yield first, "\n".join(block)
            block, first = [text], token.start[0]
        last = token.start[0]
    if block:
        yield first, "\n".join(block)


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield strings of at least four words, such as messages and texts of reports; formatted values become code."""
    nodes = list(ast.walk(tree))
    seen = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings
    seen |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(one.value) if isinstance(one, ast.Constant) else "`x`" for one in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in seen:
            text = node.value
        else:
            continue
        if len(re.findall(r"[A-Za-z]{2,}", text)) > 3 and not re.search(r"<\w|\w:\w", text):  # HTML and CSS
            yield node.lineno, text


def phrases(text: str, name: str, line: int) -> list[str]:
    found = []
    for block in findings(text, ""):
        at, rest = block[1:].split(":", 1)
        found.append(f"{name}:{line + int(at) - 1}:{rest}")
    plain = re.sub(r"`+[^`]+`+", "Code", text)
    for phrase, remedy in CODE_REMEDIES.items():
        for match in re.finditer(phrase.replace(" ", r"\s+"), plain, re.IGNORECASE):
            at = line + plain.count("\n", 0, match.start())
            found.append(f"{name}:{at}: {' '.join(match[0].split())} -> {remedy}")
    return found


def names_of(tree: ast.AST) -> Iterator[tuple[int, str, ast.AST]]:
    """Yield the names that a file defines: classes, functions, parameters and variables."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield node.lineno, node.name, node
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg, node
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id, node


def findings_of_file(name: str) -> list[str]:
    source = (ROOT / name).read_text(encoding="utf-8")
    tree = ast.parse(source)
    found = []
    for line, text, node in docstrings(tree):
        found += phrases(plain_text(text), name, line)
        if not isinstance(node, ast.Module) and (first := FIRST_WORDS.match(text.strip())):
            found.append(f"{name}:{line}: starts with {first[0]!r} -> Return, Yield, Raise, a verb, or a noun")
    for line, text in [*comments(source), *strings(tree)]:
        found += phrases(text, name, line)
    for line, text, node in names_of(tree):
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower().strip("_").split("_")
        banned = set(words) & BANNED_NAMES
        if banned and text not in ALLOWED_NAMES:
            found.append(f"{name}:{line}: name {text}: {', '.join(sorted(banned))} -> a noun or a verb")
        if re.search(r"(?:^|_)(MOST|LARGEST|LONGEST|LEAST|SMALLEST)(?:_|$)", text):
            found.append(f"{name}:{line}: name {text} -> MAX_ or MIN_")
        is_function = isinstance(node, ast.FunctionDef) and not any(
            "property" in ast.unparse(one) for one in node.decorator_list
        )
        if is_function and PARTICIPLES.match(text) and text not in ALLOWED_PARTICIPLES:
            found.append(f"{name}:{line}: function {text} -> a verb")
    return sorted(set(found), key=lambda one: int(one.split(":")[1]))


@pytest.mark.parametrize("name", FILES)
def test_file_is_plain_english(name):
    found = findings_of_file(name)
    assert not found, "\n" + "\n".join(found)


def test_class_names_are_unique():
    homes = collections.defaultdict(list)
    for name in FILES:
        for node in ast.parse((ROOT / name).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(name)
    # The public name of both: one is the other for Lightning.
    assert {name for name, where in homes.items() if len(where) > 1} == {"DataModule"}


if __name__ == "__main__":
    wanted = [
        name for name in FILES if not sys.argv[1:] or any(name.startswith(one.rstrip("/")) for one in sys.argv[1:])
    ]
    print("\n".join(one for name in wanted for one in findings_of_file(name)))
