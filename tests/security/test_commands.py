"""Bad inputs 36 to 44 against ``code.run_command``, through the whole pipeline with real programs."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from soong.shared.core.config import CommandsConfig
from soong.shared.core.jsontext import dump
from soong.shared.permissions.rules import offered_scope
from soong.shared.sandbox.redact import redactor
from soong.shared.tools.result import ErrorType, ToolResult
from tests.security.scene import GrantingGate, granting
from tests.unit.sandbox.families import is_alive
from tests.unit.tools.parts import text_of
from tests.unit.toolsets.commands import Commands, make_commands

SECRET = "canary-6f1d-" + "secret" * 3
PEM = "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n" * 20 + "-----END PRIVATE KEY-----\n"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"
MB = 1024 * 1024
LIMIT_S = 60


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    monkeypatch.setenv("MODEL_API_KEY", SECRET)
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    made = make_commands(tmp_path, redactor=redactor([SECRET]), progress_every=timedelta(milliseconds=100))
    yield made
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    # A database server of other tests, which was there before, makes processes when it likes.
    assert not [child for child in left if is_alive(child.pid) and child.ppid() not in before]


def check_nothing(_commands: Commands, _result: ToolResult) -> None:
    """The outcome says it all."""


def not_asked(commands: Commands, _result: ToolResult) -> None:
    assert not commands.bench.gate.asked


def says(*texts: str) -> Callable[[Commands, ToolResult], None]:
    def check(_commands: Commands, result: ToolResult) -> None:
        everything = repr((result.content, result.error))
        assert all(text in everything for text in texts), everything

    return check


def shows(text: str) -> Callable[[Commands, ToolResult], None]:
    def check(commands: Commands, _result: ToolResult) -> None:
        assert text.format(root=commands.root) in commands.target.shown

    return check


def everybody_is_gone(commands: Commands, _result: ToolResult) -> None:
    found = [int(word) for path in commands.root.glob("*.pids") for word in path.read_text().split()]
    assert found
    assert not any(map(is_alive, found))


def no_escape(commands: Commands, result: ToolResult) -> None:
    shown = repr((text_of(result), commands.bench.log.notes))
    assert not any(char in shown for char in "\x1b\x07\r\x9b\u202e")
    assert not any(escape in text_of(result) for escape in ("]52;", "]8;;", "[31m"))


def limited(commands: Commands, result: ToolResult) -> None:
    assert len(text_of(result)) <= 12_000
    assert sum(map(len, commands.bench.artifacts.stored)) < 8 * MB


@dataclass(frozen=True)
class Row:
    """One bad input. Programs named in ``files`` stand in the project, executable."""

    id: str
    argv: Any
    expected: str
    check: Callable[[Commands, ToolResult], None] = check_nothing
    more: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


def script(text: str) -> dict[str, Any]:
    """Return a row's program: a shell script in a file of the project, which is no command string."""
    return {"argv": ["sh", "run.sh"], "files": {"run.sh": text}}


def python(text: str) -> dict[str, Any]:
    return {"argv": [sys.executable, "-I", "-S", "run.py"], "files": {"run.py": text}}


SHORT = {"timeout_ms": 2500}
LIVING_ON = "setsid sleep 1000 & echo $! > a.pids; (sleep 1000 & echo $! > b.pids); exit 0"
DEAF = "exec >&- 2>&-; sleep 1000 & echo $! $$ > a.pids; wait"
BOMB = """
import os, sys, time
for _ in range(50):
    if os.fork() == 0:
        os.setsid()
        open(f'{os.getpid()}.pids', 'w').write(str(os.getpid()))
        time.sleep(1000)
time.sleep(1000)
"""
"""Fifty and no more: the machine must live even where the feature does not."""
PAINT = r"printf '\033[31mred\033[0m \033]52;c;ZXZpbA==\a\033]8;;http://evil\033\\link\033]8;;\033\\ evil\rgood\n'"

ROWS = (
    Row("row-36-empty-list", [], "invalid_input", not_asked),
    Row("row-36-empty-word", [""], "invalid_input", not_asked),
    Row("row-36-string", "ls -la", "invalid_input", not_asked),
    Row("row-36-number", ["ls", 3], "invalid_input", not_asked),
    Row("row-36-nothing", None, "invalid_input", not_asked),
    Row("row-36-nul", ["ls", "a\0b"], "invalid_input", not_asked),
    Row("row-36-surrogate", ["ls", "\ud800"], "invalid_input", not_asked),
    Row("row-36-3-mb", ["ls", "x" * 3 * MB], "invalid_input", says("file")),
    Row("row-36-many", ["ls", *["x"] * 5000], "invalid_input", not_asked),
    Row("row-36-shell-string", ["sh", "-c", "id"], "shell_not_allowed", not_asked),
    Row("row-36-shell-behind", ["timeout", "5", "env", "bash", "-lc", "id"], "shell_not_allowed", not_asked),
    Row("row-37-env", ["true"], "invalid_input", not_asked, {"env": {"LD_PRELOAD": "/x.so"}}),
    Row("row-37-cwd-root", ["true"], "path_outside_roots", not_asked, {"cwd": "/"}),
    Row("row-37-cwd-dots", ["true"], "path_outside_roots", not_asked, {"cwd": "../outside"}),
    Row("row-37-cwd-proc", ["true"], "not_regular_file", not_asked, {"cwd": "/proc/self/cwd"}),
    Row("row-37-timeout", ["true"], "ok", shows(", at most 60 s"), {"timeout_ms": 10**9}),
    Row("row-37-no-time", ["true"], "invalid_input", not_asked, {"timeout_ms": 0}),
    Row("row-38-planted-by-path", ["./ls"], "ok", shows("{root}/ls in"), files={"ls": "#!/bin/sh\necho planted"}),
    Row("row-39-environ", **python(
        "import os\nfor pid in (os.getppid(), os.getpid()): print(open(f'/proc/{pid}/environ').read())"
    ), expected="ok", check=says("PATH=")),
    Row("row-40-setsid", **script(LIVING_ON), expected="ok", check=everybody_is_gone),
    Row("row-40-fork-bomb", **python(BOMB), expected="timeout", check=everybody_is_gone, more=SHORT),
    Row("row-40-yes", ["yes"], "timeout", limited, SHORT),
    Row("row-40-closed-output", **script(DEAF), expected="timeout", check=everybody_is_gone, more=SHORT),
    Row("row-41-stdin", ["cat"], "ok", says("no output")),
    Row("row-41-tty", **script("read word < /dev/tty || echo no terminal"), expected="ok", check=says("no terminal")),
    Row("row-41-password", **python("import getpass, sys\ntry: getpass.getpass()\nexcept EOFError: sys.exit(7)"),
        expected="execution_failed", check=says("exit code 7")),
    Row("row-42-10-gb", ["head", "-c", "10000000000", "/dev/zero"], "timeout", limited, SHORT),
    Row("row-42-binary", **python("import sys\nsys.stdout.buffer.write(bytes(range(256)) * 200)"), expected="ok",
        check=no_escape),
    Row("row-42-paint", **script(PAINT), expected="ok", check=no_escape),
    Row("row-42-hidden-by-return", **script(PAINT), expected="ok", check=says("evil\\ngood", "red", "link")),
    Row("row-42-bidi", **script("printf 'a\\342\\200\\256b'"), expected="ok", check=no_escape),
)  # fmt: skip


@pytest.mark.spec("CMD-01.b", "CMD-01.d", "CMD-05")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
async def test_a_bad_command_ends_as_it_must(commands: Commands, row: Row) -> None:
    for name, text in row.files.items():
        commands.program(name, text)

    async with asyncio.timeout(LIMIT_S):
        result = await commands.bench.call("code.run_command", {"argv": row.argv, **row.more})

    assert (result.error.type.value if result.error else "ok") == row.expected, result
    row.check(commands, result)
    everything = repr((result, commands.bench.log.ends, commands.bench.log.notes, commands.bench.artifacts.stored))
    assert SECRET not in everything
    assert "Traceback" not in repr(result.error)
    assert dump([result.summary, result.data, dict(result.metadata), text_of(result)])


@pytest.mark.spec("CMD-01")
@pytest.mark.parametrize("path", [".:{PATH}", "{root}:{PATH}", ":{PATH}", "bin:{PATH}"], ids=ascii)
async def test_row_38_a_planted_program_is_not_found_by_its_name(
    commands: Commands, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.program("ls")
    commands.program("bin/ls")
    monkeypatch.chdir(commands.root)
    monkeypatch.setenv("PATH", path.format(PATH=os.environ["PATH"], root=commands.root))

    result = await commands.run("ls")

    assert "planted" not in text_of(result)
    assert str(commands.root / "ls") not in commands.target.shown
    assert "." not in text_of(await commands.run("printenv", "PATH")).strip().split(":")


@pytest.mark.spec("CMD-01")
async def test_row_40_endless_output_does_not_grow_the_process(commands: Commands) -> None:
    await commands.run("true")
    before = psutil.Process().memory_info().rss

    result = await commands.run("yes", timeout_ms=2000)

    assert result.error is not None
    assert psutil.Process().memory_info().rss - before < 64 * MB


@pytest.mark.spec("RES-03")
async def test_row_42_the_raw_output_is_in_the_artifact_and_nowhere_else(commands: Commands) -> None:
    code = "import sys\nsys.stdout.write('\\x1b[31mred\\x1b[0m\\r\\u202e' * 5000 + '\\n')"

    result = await commands.python(code)

    assert b"\x1b[31mred\x1b[0m\r\xe2\x80\xae" in commands.bench.artifacts.stored[0]
    stored_result = repr((result, commands.bench.log.ends))
    assert "\\x1b" not in stored_result.replace(repr(code)[1:-1], "")
    assert result.artifacts[0].size_bytes == len(commands.bench.artifacts.stored[0])


@pytest.mark.spec("RES-03")
async def test_row_42_bytes_that_are_no_text_are_kept_as_they_are(commands: Commands) -> None:
    result = await commands.python("import sys\nsys.stdout.buffer.write(bytes(range(256)) * 100)")

    assert commands.bench.artifacts.stored == [bytes(range(256)) * 100]
    assert "25600 bytes of other data than text" in text_of(result)
    assert result.artifacts[0].media_type == "application/octet-stream"


SPLIT = """
import sys, time
for place in range(0, len(TEXT), STEP):
    sys.stdout.write(TEXT[place:place + STEP]); sys.stdout.flush(); time.sleep(PAUSE)
"""


@pytest.mark.spec("EVT-05")
@pytest.mark.parametrize(
    ("secret", "piece"),
    [(SECRET, "canary-6f"), ("AKIAIOSFODNN7EXAMPLE", "AKIAIOS"), (JWT, JWT[:12]), (PEM, "MIIEvQIBADAN")],
    ids=["value", "aws", "jwt", "pem"],
)
@pytest.mark.parametrize("step", [7, 64])
async def test_row_43_a_secret_in_pieces_is_in_no_result_event_log_or_artifact(
    commands: Commands, secret: str, piece: str, step: int
) -> None:
    text = f"before\n{secret}\nbetween {secret} after\n"
    code = SPLIT.replace("STEP", str(step)).replace("PAUSE", str(1.0 * step / len(text)))
    commands.program("secret", text)
    code = f"TEXT = open('secret').read()\n{code}print('x' * 20000)\nsys.exit(1)"

    result = await commands.python(code)

    everything = repr((result, commands.bench.log.ends, commands.bench.log.notes, commands.bench.artifacts.stored))
    assert commands.progress
    assert piece not in everything
    assert "[redacted]" in everything


@pytest.mark.spec("EVT-05")
@pytest.mark.parametrize("kept", [2_000, 4_096, 9_000, 40_000, 100_000])
async def test_row_43_no_piece_of_a_secret_is_where_output_was_cut(tmp_path: Path, kept: int) -> None:
    commands = make_commands(tmp_path, redactor=redactor([SECRET]), config=CommandsConfig(max_output_bytes=kept))
    commands.program("secret", f"{SECRET} {PEM}")

    result = await commands.python("import sys\nsys.stdout.write(open('secret').read() * 3000)")

    everything = repr((result, commands.bench.log.ends, commands.bench.artifacts.stored))
    assert "bytes left out" in everything
    for piece in (SECRET[:9], SECRET[-9:], "MIIEvQ", "BADANBgkq"):
        assert piece not in everything


@pytest.fixture
def granted(commands: Commands) -> GrantingGate:
    return granting(commands.bench)


@pytest.mark.spec("PER-08.b", "PER-08.d", "PER-04")
@pytest.mark.parametrize(
    "argv",
    [
        ["git", "-c", "core.pager=x", "status"],
        ["git", "push"],
        ["git", "diff", "--output=/x"],
        ["git", "status", "--short"],
        ["git"],
        ["git", "status "],
        ["env", "git", "status"],
    ],
    ids=" ".join,
)
async def test_row_44_a_grant_for_git_status_is_one_for_nothing_else(
    commands: Commands, granted: GrantingGate, argv: list[str]
) -> None:
    await commands.run("git", "status")
    await commands.run("git", "status")
    assert len(granted.asked) == 1

    failure = await commands.failure(*argv)

    assert failure.type is ErrorType.PERMISSION_NO_CALLBACK
    assert len(granted.asked) == 2


@pytest.mark.spec("PER-08", "PER-04.b")
async def test_row_44_a_grant_does_not_reach_another_folder(commands: Commands, granted: GrantingGate) -> None:
    (commands.root / "below").mkdir()
    await commands.run("ls")
    assert (await commands.run("ls", "-l")).error is None

    failure = await commands.failure("ls", cwd="below")

    assert failure.type is ErrorType.PERMISSION_NO_CALLBACK


@pytest.mark.spec("PER-08", "PER-04")
async def test_a_star_in_a_command_is_a_star_and_no_grant_ever_holds_one(commands: Commands) -> None:
    """mattmezza/humux#67: a literal `*` that was allowed once became a wildcard for everything."""
    kept, star = commands.root / "kept", commands.root / "*"
    kept.write_text("x")
    star.write_text("x")
    await commands.run("rm", "kept ")
    plain = offered_scope(commands.target, str(Path.home()))

    assert (await commands.run("rm", "*")).error is None

    assert (star.exists(), kept.exists()) == (False, True)
    assert (bool(plain), offered_scope(commands.target, str(Path.home()))) == (True, "")


@pytest.mark.spec("PER-08", "CMD-01")
async def test_a_compound_command_is_no_way_to_a_grant_for_what_is_in_it(
    commands: Commands, granted: GrantingGate
) -> None:
    """anthropics/claude-code#95614: "always" to a compound command was widened to every `rm`."""
    (commands.root / "kept").write_text("x")
    compound = await commands.failure("sh", "-c", "cd . && rm gone")
    words = await commands.failure("rm", "gone", "&&", "true")

    alone = await commands.failure("rm", "kept")

    assert compound.type is ErrorType.SHELL_NOT_ALLOWED
    assert words.type is ErrorType.EXECUTION_FAILED
    assert alone.type is ErrorType.PERMISSION_NO_CALLBACK
    assert len(granted.book) == 1
    assert (commands.root / "kept").exists()
