"""Every reader of foreign text takes time that grows with the text, and not faster: an event loop waits for it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from soong.orchestrator.notifications.consumer import one_line
from soong.orchestrator.terminal.console import folded
from soong.shared.agents.definition_files import claude_file
from soong.shared.core.errors import SoongError
from soong.shared.core.jsontext import front_matter_of, inert, parse_strict
from soong.shared.engine.tasks.plan.yaml_document import read_document
from soong.shared.sandbox.hosts import host_of_url
from soong.shared.sandbox.names import SENSITIVE, STEERING, is_control, is_sensitive
from soong.shared.sandbox.redact import KeyBlocks, Redactor, inert_text, is_key
from soong.shared.tools.foreign_schema import input_schema
from soong.shared.tools.naming import name_matches
from soong.shared.tools.schema import validate
from soong.shared.toolsets.code import write_file
from soong.shared.toolsets.code.exact_edits import Edit, apply_edits
from soong.shared.toolsets.code.unified_diff import apply_diff, parse_diff
from soong.shared.toolsets.mcp.forms import asks_for_secret, form_of
from soong.shared.toolsets.mcp.intake import Intake
from soong.shared.toolsets.skills.toolset import read_skill
from soong.shared.toolsets.web.fetch import TextPage, is_allowed

FACTOR: Final = 4
MOST: Final = 9.0
"""Times as long for an input four times as large: four is linear, sixteen the square."""
LEAST_S: Final = 0.02
"""An input that takes less is not judged: it is small, whatever it grows like."""
REFUSED: Final = (SoongError, ValueError)

Row = tuple[Callable[[Any], object], Callable[[int], Any], int]


def robots(text: str) -> bool:
    return is_allowed(text.encode(), "soong", "http://a.example/" + "a" * 2000)


def blocks(data: bytes) -> None:
    found = KeyBlocks()
    for at in range(0, len(data), 997):
        found.feed(data[at : at + 997])


def streamed(text: str) -> None:
    stream = Redactor(("s3cr3t-value",)).stream()
    for at in range(0, len(text), 97):
        stream.feed(text[at : at + 97])


def diff_of(n: int) -> bytes:
    hunks = "".join(f"@@ -{at},1 +{at},1 @@\n-x\n+y\n" for at in range(1, n + 1))
    return f"--- a/f\n+++ b/f\n{hunks}".encode()


def patched(n_lines: int) -> object:
    return apply_diff(b"x\n" * n_lines, parse_diff(diff_of(n_lines)))


def edited(n: int) -> object:
    edits = [Edit(b"old%d\n" % at, b"new\n") for at in range(min(n, 100))]
    return apply_edits(b"".join(b"old%d\n" % at for at in range(n)), edits, replaces_all=False, max_bytes=10**9)


def printed(lines: list[str]) -> None:
    intake = Intake()
    for line in lines:
        intake.line(line.encode())


def chain(n: int) -> dict[str, Any]:
    names = {f"d{at}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/d{at + 1}"}}} for at in range(n)}
    definitions = {**names, f"d{n}": {"type": "string"}}
    return {"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": definitions}


def wide(n: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(n)}}


def checked(values: list[Any]) -> object:
    return validate({"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}, values)


ROWS: Final[dict[str, Row]] = {
    "robots: agents times rules": (robots, lambda n: "User-agent:*\n" * n + "Allow:/\n" * n, 500),
    "robots: different rules": (
        robots, lambda n: "User-agent:*\n" + "".join(f"Allow:/a*{at}\n" for at in range(n)), 1_000),
    "robots: stars": (robots, lambda n: "User-agent:*\n" + f"Disallow:/{'*a' * 900}$\n" * n, 100),
    "page: one line": (lambda text: TextPage.of(text, 1, 100), lambda n: "a" * n, 100_000),
    "page: many lines": (lambda text: TextPage.of(text, 1, 100), lambda n: "é\n" * n, 1_000),
    "terminal: introducers": (inert_text, lambda n: "\x1b[" * n, 1_000),
    "terminal: strings without an end": (inert_text, lambda n: "\x1b]x" * n, 1_000),
    "terminal: digits without an end": (inert_text, lambda n: "\x1b[" + "0;" * n, 1_000),
    "terminal: C1": (inert_text, lambda n: "\x9b0 " * n, 1_000),
    "terminal: a line in pieces": (lambda line: folded(line, 80), lambda n: "a漢" * n, 1_000),
    "inert: marks on one letter": (inert, lambda n: "a" + "\u0301" * n, 1_000),
    "inert: joiners": (inert, lambda n: "\u200d" * n, 1_000),
    "front matter: no end": (front_matter_of, lambda n: "---\n" + "--- \n" * n, 1_000),
    "front matter: blank lines": (front_matter_of, lambda n: "---\n" + "\n" * n, 1_000),
    "skill": (lambda text: read_skill(text, "x"), lambda n: "---\nname: x\n" + "# y\n" * n + "---\n", 1_000),
    "yaml: nesting": (lambda text: read_document(text, "p"), lambda n: "[" * n, 2_000),
    "yaml: keys": (lambda text: read_document(text, "p"), lambda n: "".join(f"a{at}: 1\n" for at in range(n)), 200),
    "json: nesting": (parse_strict, lambda n: "[" * n, 1_000),
    "json: keys": (parse_strict, lambda n: "{" + ",".join(f'"{at}":1' for at in range(n)) + "}", 500),
    "json: digits": (parse_strict, lambda n: "9" * n, 500),
    "json: escapes": (parse_strict, lambda n: '"' + "\\u0041" * n + '"', 1_000),
    "schema: values": (checked, lambda n: ["a"] * n, 1_000),
    "schema: values that do not fit": (checked, lambda n: [{"c": "d"}] * n, 1_000),
    "schema: chain of references": (input_schema, chain, 50),
    "schema: many properties": (input_schema, wide, 200),
    "diff: hunks": (parse_diff, diff_of, 1_000),
    "diff: hunks put on a file": (patched, lambda n: n, 500),
    "edits of a file": (edited, lambda n: n, 2_000),
    "redactor: markers": (Redactor().text, lambda n: "-----BEGIN PRIVATE KEY-----" * n, 500),
    "redactor: beginnings of a key": (Redactor().text, lambda n: "-----BEGIN A" + "PRIVATE KEY" * n, 500),
    "redactor: tokens": (Redactor().text, lambda n: "eyJaaaaaaaa.eyJaaaaaaaa." * n + "sk-sk-" * n + "://a:" * n, 2_000),
    "redactor: putty": (Redactor().text, lambda n: "Private-Lines: 1\n" + "1\t1 " * n, 500),
    "redactor: a stream": (streamed, lambda n: "-----BEGIN PRIVATE KEY-----sk-" * n, 2_000),
    "keys: the head": (is_key, lambda n: b'"a_access_token": "' * n, 400),
    "keys: lines": (is_key, lambda n: b"a-a-a-client_secret:" + b" " * n + b"x\n" * n, 2_000),
    "keys: blocks": (blocks, lambda n: b"-----BEGIN PRIVATE KEY-----\n" * n, 500),
    "names: sensitive": (lambda path: is_sensitive(path, (*SENSITIVE, *STEERING)), lambda n: "id_rsa/.a_" * n, 1_000),
    "names: dots": (lambda path: is_sensitive(path, SENSITIVE), lambda n: "." * n + "a", 2_000),
    "names: controls": (lambda parts: is_control(tuple(parts)), lambda n: [".claude", "worktrees"] * n, 2_000),
    "url: labels": (host_of_url, lambda n: "http://" + "a." * n, 2_000),
    "url: other scripts": (host_of_url, lambda n: "http://" + "ｱ" * n, 2_000),
    "url: a long number": (host_of_url, lambda n: "http://" + "9" * n, 2_000),
    "form: words": (asks_for_secret, lambda n: "pass word_" * n + "passe mot de " * n, 1_000),
    "form: fields": (
        lambda words: form_of({"properties": {"a": {"type": "string"}, "b": {"type": "string"}}}, "").answer_of(words),
        lambda n: "a " * n + "a   " * n, 500),
    "notification": (one_line, lambda n: "a.b://" * n + "1.2.3.4." * n, 1_000),
    "globs of tools": (lambda n: name_matches("*a" * n + "b", "a" * n), lambda n: n, 50),
    "mcp: lines of one message": (printed, lambda n: ["{"] + ['"a": [1],'] * n + ["}"], 2_000),
    "mcp: strings without an end": (printed, lambda n: ['{"a' + '\\"' * n], 2_000),
    "mcp: brackets": (printed, lambda n: ["[" * n], 2_000),
    "mcp: messages in one list": (printed, lambda n: ["[" + '{"method":"x"},' * n + "1]"], 1_000),
    "definition of another program": (
        claude_file, lambda n: "---\nname: x: y\n" + "z\n" * n + "---\nx", 4_000),
}  # fmt: skip


def cpu_s(read: Callable[[Any], object], value: Any, runs: int, enough: float = 0.0) -> float:
    """Return the least of so many runs, or the first that is enough: a slow one may be the machine's."""
    best = float("inf")
    while runs and best >= enough:
        runs -= 1
        begun = time.process_time()
        try:
            read(value)
        except REFUSED:
            pass
        except RecursionError:
            pytest.fail("the reader's depth grows with the text")
        best = min(best, time.process_time() - begun)
    return best


@pytest.mark.parametrize("name", ROWS)
def test_four_times_the_text_takes_about_four_times_as_long(name: str, tmp_path: Path) -> None:
    read, make, size = ROWS[name]

    def input_of(n: int) -> Any:
        if read is not ROWS["definition of another program"][0]:
            return make(n)
        path = tmp_path / f"{n}.md"
        path.write_text(make(n), encoding="utf-8")
        return path

    before, factor = 0.0, 1
    while factor <= FACTOR**4:  # as far as the reader's own limits let its time be judged
        is_judged, most = before >= LEAST_S / FACTOR, max(LEAST_S, before * MOST)
        taken = cpu_s(read, input_of(size * factor), 3, most if is_judged else 0.0)
        if is_judged:
            assert taken < most, f"{before:.4f} s, then {taken:.4f} s"
            break
        before, factor = taken, factor * FACTOR


@pytest.mark.parametrize("kinds", [1, 2, 51, 101, 200, 2_000])
def test_a_preview_of_the_worst_lines_is_made_in_a_moment(kinds: int) -> None:
    """Comparing lines costs more than their number: their number is bounded, and so is the work."""
    most = write_file.MAX_COMPARED_LINES
    old, new = [f"{at % kinds}\n" for at in range(most)], [f"{(most - at) % kinds}\n" for at in range(most)]

    assert cpu_s(lambda lines: write_file._diff(lines[0], lines[1], "x"), (old, new), 2, 0.6) < 0.6
