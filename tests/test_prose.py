"""Gate for plain technical English: counted habits may only become fewer.

`tests/prose_baseline.json` holds the number of each habit. After a clean-up, lower the numbers in that file:
`python -m tests.test_prose` prints today's. The rules are in CONTRIBUTING, under "Language".
"""

from __future__ import annotations

import ast
import json
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.folders import ROOT, TOOLS, package_files, python_files

BASELINE: Final = Path(__file__).with_name("prose_baseline.json")
LONGEST_FIRST_SENTENCE: Final = 20
LONGEST_SENTENCE: Final = 35
"""Words."""
LONGEST_PAGE_LINE: Final = 100
"""Characters, outside of blocks of code."""
ADDRESS: Final = re.compile(r"\[\w+\]: https?://\S+")
"""Definition of a link: an address cannot be wrapped."""
DOCSTRING_STARTS: Final = {
    "docstring that begins with a clause": (
        r"(What|Which|Whether|How|Whose|Who|Whom|When|Where|Why|Until|So that|That)\b"
    ),
    "docstring that begins with a preposition": (
        r"(Of|By|In|As|Or|And|But|For|From|With|Between|Behind|Before|After|To|On|At|Under|Than)\b"
    ),
}
HABITS: Final = {
    "whose": r"\bwhose\b",
    "nobody, somebody": r"\b(nobody|somebody|anybody|whoever|no one|a person|people)\b",
    "beside, anew": r"\b(besides?|behind|anew|thereby|meanwhile|by itself|by themselves)\b",
    "is said, is told": r"\b(is|are|was|were|be|been) (said|told|asked|heard|looked|gone|given back|known of)\b",
    "that is": r"\bthat (is|are|was|were|has|have|had)\b",
    "what is": r"\bwhat (is|was|are|were|has|have|it|they|he|one|a|an|the|nobody|somebody)\b",
    "of which": r"\b(of|by|from|in|to|with|for) (which|whom)\b",
}


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield the docstrings of a module, its classes and functions, and of assignments."""
    for node in ast.walk(tree):
        found = getattr(node, "body", None)
        body: list[ast.AST] = found if isinstance(found, list) else []
        for index, child in enumerate(body):
            if not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
                continue
            text = child.value.value
            owns = index == 0 and isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            follows = index > 0 and isinstance(body[index - 1], ast.Assign | ast.AnnAssign)
            if isinstance(text, str) and (owns or follows):
                yield text.strip()


def comments(path: Path) -> Iterator[str]:
    """Yield the text of each comment line."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.string.lstrip("# ")


def page_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a page outside code blocks."""
    is_code = False
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield line.strip()


def habits_of(text: str) -> Counter[str]:
    """Count the habits of one docstring, comment or line."""
    found = Counter({name: len(re.findall(pattern, text, re.IGNORECASE)) for name, pattern in HABITS.items()})
    sentences = re.split(r"(?<=[.!?])\s+", text.replace("\n", " "))
    found["sentence that is too long"] = sum(
        len(sentence.split()) > LONGEST_SENTENCE for sentence in sentences if "|" not in sentence
    )
    return found


def count() -> Counter[str]:
    """Count the habits of the product's code and pages."""
    found: Counter[str] = Counter()
    for path in [*package_files(), *python_files(*TOOLS)]:
        for text in docstrings(ast.parse(path.read_text(encoding="utf-8"))):
            first = re.split(r"(?<=[.:!?])\s|\n\s*\n", text, maxsplit=1)[0]
            found.update(name for name, pattern in DOCSTRING_STARTS.items() if re.match(pattern, first))
            found["docstring with a long first sentence"] += len(first.split()) > LONGEST_FIRST_SENTENCE
            found += habits_of(text)
        for text in comments(path):
            found += habits_of(text)
    docs = [path for path in (ROOT / "docs").rglob("*.md") if "decisions" not in path.parts]
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *docs]:
        for text in page_lines(path):
            found["page line that is too long"] += len(text) > LONGEST_PAGE_LINE and not ADDRESS.fullmatch(text)
            found += habits_of(text)
    return found


def test_no_habit_becomes_more_frequent() -> None:
    baseline: dict[str, int] = json.loads(BASELINE.read_text(encoding="utf-8"))
    now = count()
    more = {name: (most, now[name]) for name, most in baseline.items() if now[name] > most}
    assert not more, f"habits of language, before and now: {more}. CONTRIBUTING, 'Language', has the rules"
    assert set(now) <= set(baseline)


@pytest.mark.parametrize(
    ("text", "habit"),
    [
        ("What is read.", "what is"),
        ("Nobody waits for it.", "nobody, somebody"),
        ("It is said once.", "is said, is told"),
        (" ".join(["word"] * 36), "sentence that is too long"),
    ],
)
def test_a_habit_is_counted(text: str, habit: str) -> None:
    assert habits_of(text)[habit] == 1


if __name__ == "__main__":
    print(json.dumps(dict(sorted(count().items())), indent=2))
