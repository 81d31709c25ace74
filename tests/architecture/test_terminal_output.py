"""Text reaches a terminal in one way, and what shows nothing is known in one place."""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator

import pytest

from soong.shared.core.jsontext import is_seen
from tests.spec_document import ROOT

PRODUCT = ("orchestrator", "worker", "shared", "soong")
LIST = "shared/core/jsontext.py"
BOM = "\ufeff"
"""At the head of a file it says how the rest is written."""
MASKS = 0xFF
"""Smaller numbers are masks of bytes."""
JUDGES = {
    LIST: "the list itself",
    "shared/sandbox/redact.py": "escape sequences are syntax: they begin with C1 controls and go as one",
    "shared/engine/tasks/plan/budget.py": "how long a text is as JSON: plain ASCII needs no escapes",
    "shared/sandbox/hosts.py": "what resolvers leave out of a host, and what no URL may hold",
}
"""Who may judge characters by themselves, and why."""

WRITERS = {
    "orchestrator/terminal/console.py": "say, complain, output, emit and emit_text: the ways to a terminal",
    "orchestrator/cli/application.py": "help and version: texts of ours alone, and the streams are inert",
    "orchestrator/cli/main.py": "a traceback with --verbose; the stream is inert",
}
CONSOLES = {"orchestrator/terminal/prompt.py": "the console whose every text is inert"}


def files(*folders: str) -> Iterator[tuple[str, str]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def calls(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of each call and attribute."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.lineno, f"{node.func.id}("


def is_hidden(char: str) -> bool:
    """Say whether a list of what shows nothing could hold it; halves of characters are matters of encodings."""
    return char >= "\x80" and not is_seen(char) and not "\ud800" <= char <= "\udfff"


def unseen_characters(text: str) -> Iterator[int]:
    """Yield lines that write a character that shows nothing: in a text, or as the hexadecimal number of one."""
    if not re.search(r"[^\0-\x7f]|0[xX]|\\[uUxN0-7]", text):
        return  # neither such a character, nor a number or an escape sequence of one
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NUMBER and token.string.lower().startswith("0x"):
            code = int(token.string, 16)
            if MASKS < code <= sys.maxunicode and is_hidden(chr(code)):
                yield token.start[0]
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and any(map(is_hidden, node.value.lstrip(BOM)))
        ):
            yield node.lineno


def test_what_shows_nothing_is_listed_in_one_place() -> None:
    others = [f"{name}:{line}" for name, text in files(*PRODUCT) for line in unseen_characters(text) if name != LIST]

    assert [place for place in others if place.partition(":")[0] not in JUDGES] == []


def test_characters_are_judged_in_one_place() -> None:
    judging = {
        f"{name}:{line} {what}"
        for name, text in files(*PRODUCT)
        if name not in JUDGES and re.search("isprintable|category", text)
        for line, what in calls(text)
        if what.endswith(".isprintable") or what == "unicodedata.category"
    }

    assert judging == set()


def test_commands_write_through_the_console_alone() -> None:
    ways = ("print(", "sys.stdout.write", "sys.stderr.write", "typer.echo", "typer.secho", "traceback.print_exc")
    direct = {
        f"{name}:{line} {what}"
        for name, text in files("orchestrator/cli", "orchestrator/terminal")
        for line, what in calls(text)
        if name not in WRITERS and (what in ways or what.startswith(("sys.stdout.buffer", "sys.__std")))
    }

    assert direct == set()


def test_every_drawing_console_is_inert() -> None:
    direct = {
        f"{name}:{node.lineno}"
        for name, text in files(*PRODUCT)
        if name not in CONSOLES and re.search("Console|print_json", text)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("Console", "print_json"))
    }

    assert {place for place in direct if not is_inert_console(place)} == set()


def is_inert_console(place: str) -> bool:
    name, _, line = place.partition(":")
    return "TerminalConsole(" in (ROOT / name).read_text(encoding="utf-8").splitlines()[int(line) - 1]


@pytest.mark.parametrize(
    "text", ["HIDDEN = {0x200B}", "HIDDEN = '\\u202e'", "x = 'a\\u200c'", "y = range(0xE0100, 0xE01F0)"]
)
def test_a_second_list_would_be_seen(text: str) -> None:
    assert list(unseen_characters(text))
