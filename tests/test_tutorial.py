"""The tutorial and the shortest ways in, typed word for word into a shell."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_ratchet.app.local.ports import free_port

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/guide/tutorial.md"
WAYS_IN = ("docs/guide/agents.md", "docs/guide/spark-alone.md")
BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^```(?:python|toml)\n# (\w+\.\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A file of the page: its first line is its name. The reader copies it before the first command."""
PORTS = ("19092", "18080")
"""Other tests may have them: the only words of the page that are replaced."""
ONLY_LOOKS = ("ratchet tables", "ratchet why", "ratchet verify", "ratchet sink", "curl ")
"""Commands that may be repeated if they were typed too early."""
PATIENCE_S = 600
END = "::the block has ended "


class Shell:
    """A shell that is typed into."""

    def __init__(self, folder: Path) -> None:
        path = os.pathsep.join([str(ROOT), str(Path(sys.executable).parent), os.environ["PATH"]])
        variables = {name: value for name, value in os.environ.items() if not name.startswith("RATCHET_")}
        kept = {name: os.environ[name] for name in ("RATCHET_CACHE",) if name in os.environ}
        # This environment, whatever made it: `.venv/bin/python` is looked for in it.
        home = {"RATCHET_HOME": str(Path(sys.prefix).parent), "RATCHET_KAFKA_TIMEOUT_S": str(PATIENCE_S)}
        self._shell = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env={**variables, **kept, **home, "PATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def type(self, words: str) -> tuple[str, int]:
        """Type words, and return the shell's output and the last exit code."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f'{words}\ncode=$?; echo; echo "{END}$code"\n')
        self._shell.stdin.flush()
        said = ""
        for line in self._shell.stdout:
            if line.startswith(END):
                return said, int(line.removeprefix(END))
            said += line
        raise AssertionError(f"the shell has ended:\n{said}")

    def end(self) -> None:
        """Kill the shell and all programs started in it."""
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.communicate()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    try:
        yield shell
    finally:
        shell.end()


def steps(page: str) -> list[tuple[str, str]]:
    """Return the typed commands, each with the output that the page shows."""
    found: list[tuple[str, str]] = []
    for kind, words in BLOCK.findall(page):
        if kind == "sh":
            found.append((words, ""))
        else:
            found[-1] = found[-1][0], words
    return found


def is_shown(shown: str, said: str) -> bool:
    """Return True if each line of the page is in the output, in this order; `...` stands for anything."""
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    parts = [".*?".join(map(re.escape, line.split("..."))) for line in lines]
    return (
        re.search(r"[^\n]*\n(?:.*\n)*?[^\n]*".join(parts), "\n".join(" ".join(x.split()) for x in said.splitlines()))
        is not None
    )


@pytest.mark.parametrize(
    ("shown", "said", "right"),
    [
        ("all 4 ... 0\n", "x\n all   4   0  0 \n", True),
        ("all 4 0\n", "all 5 0\n", False),
        ("a\nc\n", "a\nb\nc\n", True),
        ("c\na\n", "a\nb\nc\n", False),
        ("a (b)\n", "a (b)", True),
        ("a ... c\n", "a\nc\n", False),
    ],
)
def test_what_a_page_shows_is_looked_for_line_by_line(shown: str, said: str, *, right: bool) -> None:
    assert is_shown(shown, said) is right


@pytest.mark.long
@pytest.mark.timeout(2 * PATIENCE_S)
def test_the_tutorial_typed_word_for_word_shows_what_it_says(shell: Shell) -> None:
    page = PAGE.read_text("utf-8")
    for port in PORTS:
        page = page.replace(port, str(free_port()))
    (install, _), *rest = steps(page)
    assert install.startswith("./ratchet setup\n")  # what this test runs in has been made so
    assert len(rest) >= 15
    type_and_compare(shell, rest)


@pytest.mark.matrix
@pytest.mark.timeout(2 * PATIENCE_S)
@pytest.mark.parametrize("name", WAYS_IN)
def test_a_way_in_typed_word_for_word_shows_what_it_says(name: str, shell: Shell, tmp_path: Path) -> None:
    page = (ROOT / name).read_text("utf-8")
    for port in PORTS:
        page = page.replace(port, str(free_port()))
    for file, text in FILE.findall(page):
        (tmp_path / file).write_text(text, "utf-8")
    found = steps(page)
    assert len(found) >= 5
    assert sum(bool(shown) for _, shown in found) >= 2
    type_and_compare(shell, found)


def type_and_compare(shell: Shell, found: list[tuple[str, str]]) -> None:
    """Type each step, and compare its output with the page; ask again where the step only looks."""
    for typed, shown in found:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            said, code = shell.type(typed)
            if code == 0 and is_shown(shown, said):
                break
            may_ask_again = typed.startswith(ONLY_LOOKS) and time.monotonic() < deadline
            assert may_ask_again, f"{typed}\nshould say\n{shown}\nand said, with {code}\n{said}"
            time.sleep(0.5)
