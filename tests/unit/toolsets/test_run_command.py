import asyncio
import itertools
import shutil
import sys
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from soong.shared.core.config import CommandsConfig
from soong.shared.sandbox.command import ChildCommand, CommandAccess, Finished
from soong.shared.sandbox.process import ProcessRunner
from soong.shared.sandbox.redact import redactor
from soong.shared.tools.definition import Permission, Traits
from soong.shared.tools.result import ErrorType
from soong.shared.toolsets.code.named_files import quoted
from soong.shared.toolsets.code.run_command import PROGRESS_EVERY
from soong.shared.toolsets.code.toolset import CodeTools
from tests.model.clock import FakeClock
from tests.simulation.loop import VirtualLoop
from tests.unit.sandbox.families import STAYING, is_alive, pids
from tests.unit.tools.parts import error_of, text_of
from tests.unit.toolsets.commands import Commands, data_of, make_commands
from tests.waiting import until


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    return make_commands(tmp_path)


@pytest.mark.spec("CMD-01.a", "CMD-01.e", "CMD-06")
def test_the_tool_writes_is_dangerous_has_two_minutes_and_may_reach_out() -> None:
    tool = next(tool for tool in CodeTools().tools() if tool.name == "code.run_command")

    assert (tool.permission, tool.timeout) == (Permission.WRITE, timedelta(milliseconds=120_000))
    assert {"code", "write", "dangerous"} <= tool.tags
    assert tool.traits_of({"argv": ["curl", "https://example.org"]}) == Traits(is_open_world=True)
    assert tool.traits_of({"argv": ["ls"]}) == Traits()


@pytest.mark.spec("CMD-01.h")
async def test_a_command_says_what_it_printed_and_how_it_ended(commands: Commands) -> None:
    result = await commands.run("/bin/sh", commands.program("hello", "echo hello; echo careful >&2\n").name)

    assert result.error is None, result.error
    assert text_of(result) == "hello\n\nstderr:\ncareful\n"
    data = data_of(result)
    assert data.pop("duration_ms") > 0
    assert data.pop("sandbox") == "none"
    assert data == {"exit_code": 0, "ended": "exited", "stdout_bytes": 6, "stderr_bytes": 8, "truncated": False}


@pytest.mark.spec("CMD-01.c")
@pytest.mark.parametrize("way", ["absolute", "dots", "link"])
async def test_no_command_starts_outside_the_roots(commands: Commands, way: str) -> None:
    (commands.root / "link").symlink_to(commands.outside)
    cwd = {"absolute": str(commands.outside), "dots": "../outside", "link": "link"}[way]

    failure = await commands.failure("touch", "made", cwd=cwd)

    assert failure.type is ErrorType.PATH_OUTSIDE_ROOTS
    assert str(commands.root) in failure.hint
    assert not list(commands.outside.iterdir())
    assert not commands.bench.gate.asked


@pytest.mark.parametrize(
    ("cwd", "expected"), [("absent", ErrorType.FILE_NOT_FOUND), ("file", ErrorType.INVALID_INPUT)], ids=str
)
async def test_a_folder_that_is_none_is_refused(commands: Commands, cwd: str, expected: ErrorType) -> None:
    (commands.root / "file").touch()

    assert (await commands.failure("pwd", cwd=cwd)).type is expected


@pytest.mark.spec("CMD-01.h")
@pytest.mark.parametrize("code", [1, 3, 127])
async def test_another_exit_code_than_zero_is_an_error_with_code_and_stderr(commands: Commands, code: int) -> None:
    result = await commands.python(f"import sys; print('out'); print('it broke', file=sys.stderr); sys.exit({code})")

    assert error_of(result).type is ErrorType.EXECUTION_FAILED
    assert f"exit code {code}: it broke" in error_of(result).message
    assert error_of(result).details == {"exit_code": code, "stderr": "it broke"}
    assert data_of(result)["exit_code"] == code
    assert "out\n" in text_of(result)
    assert "stderr:\nit broke" in text_of(result)


async def test_an_end_by_a_signal_is_named(commands: Commands) -> None:
    failure = await commands.failure("/bin/sh", commands.program("x", "kill -SEGV $$").name)

    assert "signal 11 (SIGSEGV)" in failure.message


@pytest.mark.spec("CMD-01")
@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["no-such-program"], ErrorType.FILE_NOT_FOUND),
        (["./broken"], ErrorType.FILE_NOT_FOUND),
        (["./garbage"], ErrorType.EXECUTION_FAILED),
    ],
    ids=str,
)
async def test_a_program_that_cannot_be_run_is_a_named_error(
    commands: Commands, argv: list[str], expected: ErrorType
) -> None:
    commands.program("broken", "#!/no/such/interpreter\n")
    commands.program("garbage", "\x7fELF but not really")

    assert (await commands.failure(*argv)).type is expected


@pytest.mark.spec("CMD-01.a", "PER-06")
async def test_the_whole_command_is_shown_as_it_will_be_executed(commands: Commands) -> None:
    await commands.run("ls", "a b", "$(id)", "new\nline", "\u202etxt", timeout_ms=5000)

    where = f"in {commands.root}, at most 5 s"
    assert commands.target.kind == "command"
    assert commands.target.shown.endswith(f"ls 'a b' '$(id)' $'new\\nline' $'\\U0000202etxt' {where}")
    assert commands.target.shown.startswith("/")
    assert "environment: HOME, PATH" in commands.target.preview


def test_words_are_quoted_so_that_different_commands_look_different() -> None:
    words = [["a", "b"], ["a b"], ["a\nb"], ["a\\nb"], ["$'a\\nb'"], ["'a'", "b"], ["", "a", "b"], ["a\u200bb"], ["ab"]]

    assert len({quoted(each) for each in words}) == len(words)


@pytest.mark.spec("PER-08")
async def test_what_the_run_itself_can_write_is_granted_with_its_very_words(commands: Commands) -> None:
    shutil.copy("/bin/true", commands.root / "tool")
    scopes = []
    for word in "a", "b":
        await commands.run("./tool", word)
        scopes.append(commands.target.scope)

    assert scopes[0] != scopes[1]
    assert "can write" in commands.target.preview


@pytest.mark.spec("PER-08")
@pytest.mark.parametrize("is_here", [True, False])
async def test_a_link_from_or_to_what_the_run_can_write_is_shown_as_such(commands: Commands, is_here: bool) -> None:
    places = commands.root / "tool", commands.outside / "tool"
    file, link = places if is_here else reversed(places)
    shutil.copy("/bin/true", file)
    link.symlink_to(file)

    await commands.run(str(link))

    assert "the program lies where this run can write" in commands.target.preview


async def test_a_command_too_long_to_be_read_is_not_granted_for_a_session(commands: Commands) -> None:
    await commands.run(sys.executable, "-c", "#" * 5000)

    assert commands.target.scope == ""


@pytest.mark.spec("CMD-01")
@pytest.mark.parametrize("what", ["program", "folder"])
async def test_a_program_or_folder_replaced_after_the_permission_is_not_run(commands: Commands, what: str) -> None:
    tool = commands.program("tool", "#!/bin/sh\necho asked for\n")
    folder = commands.root / "below"
    folder.mkdir()

    async def replace_it() -> None:
        if what == "program":
            commands.program("new", "#!/bin/sh\ntouch evil\n").replace(tool)
        else:
            folder.rename(commands.root / "old")
            folder.mkdir()

    commands.bench.gate.before = replace_it

    failure = await commands.failure(str(tool), cwd="below")

    assert failure.type is ErrorType.PATH_CONFLICT
    assert not list(folder.iterdir())


@pytest.mark.spec("CMD-01.g", "EXE-08.f")
async def test_time_is_over_for_the_whole_family_and_the_partial_output_is_kept(commands: Commands) -> None:
    result = await commands.python(STAYING, str(commands.root), timeout_ms=4000)

    assert error_of(result).type is ErrorType.TIMEOUT
    assert "4 s" in error_of(result).message
    assert result.metadata["partial"] is True
    assert "ready" in text_of(result)
    assert len(pids(commands.root)) == 4
    assert not any(map(is_alive, pids(commands.root).values()))


@pytest.mark.spec("EXE-08.c", "CMD-01.e")
@pytest.mark.parametrize(("asked", "shown"), [(1500, "1.5 s"), (10**9, "60 s"), (60_001, "60 s")])
async def test_a_model_can_ask_for_less_time_and_never_for_more(commands: Commands, asked: int, shown: str) -> None:
    await commands.run("true", timeout_ms=asked)

    assert commands.target.shown.endswith(f"at most {shown}")


@pytest.mark.spec("CMD-01.g", "EXE-07")
async def test_an_abort_ends_the_whole_family_and_keeps_the_partial_output(commands: Commands) -> None:
    task = asyncio.ensure_future(commands.python(STAYING, str(commands.root)))
    await until(lambda: len(pids(commands.root)) == 4 or task.done())
    await asyncio.sleep(0.2)  # its last word is on the way

    task.cancel("the user pressed stop")
    with pytest.raises(asyncio.CancelledError):
        await task

    ended = commands.bench.ended
    assert (error_of(ended).type, ended.metadata["partial"]) == (ErrorType.ABORTED, True)
    assert ended.metadata["abort_reason"] == "the user pressed stop"
    assert "ready" in text_of(ended)
    assert not any(map(is_alive, pids(commands.root).values()))


@pytest.mark.spec("EXE-09")
async def test_a_running_command_reports_what_it_says(tmp_path: Path) -> None:
    commands = make_commands(tmp_path, progress_every=timedelta(milliseconds=100))
    code = "import os, time; print('step one', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)"

    task = asyncio.ensure_future(commands.python(code))
    await until(lambda: any("step one" in each["message"] for each in commands.progress) or task.done())
    (commands.root / "go").touch()
    await task

    report = next(each for each in commands.progress if "step one" in each["message"])
    assert report["data"]["stdout"] == ["step one"]
    assert report["data"]["stdout_bytes"] == 9
    assert report["data"]["elapsed_ms"] >= 100


class SilentHalfMinute(ProcessRunner):
    """Runs nothing: a command that says nothing for half a minute of the loop's time."""

    async def run(self, command: ChildCommand) -> Finished:
        await asyncio.sleep(30)
        return Finished(0, b"", b"", "exited")

    def confinement(self, access: CommandAccess) -> str:
        del access
        return ""


@pytest.mark.spec("EXE-09.b")
def test_a_command_that_says_nothing_is_reported_at_least_every_two_seconds(tmp_path: Path) -> None:
    commands = make_commands(tmp_path, runner=SilentHalfMinute(), progress_every=PROGRESS_EVERY)
    lost: list[str] = []
    loop = VirtualLoop(FakeClock(), Random(1), lost.append)  # type: ignore[abstract]  # it has what a call asks of a loop

    result = loop.run(commands.run("/bin/true"))

    assert (result.error, lost) == (None, [])
    reports_ms = [0, *(report["data"]["elapsed_ms"] for report in commands.progress), 30_000]
    assert max(later - earlier for earlier, later in itertools.pairwise(reports_ms)) <= 2_000


async def test_a_report_that_cannot_be_written_ends_the_command(tmp_path: Path) -> None:
    commands = make_commands(tmp_path, progress_every=timedelta(milliseconds=50))

    class LostError(Exception):
        pass

    async def lose(type: str, data: object) -> None:
        if len(pids(commands.root)) == 4:
            raise LostError

    commands.bench.log.note = lose  # type: ignore[method-assign]  # a log whose run is no longer ours

    result = await commands.python(STAYING, str(commands.root))

    assert result.error is not None
    assert not any(map(is_alive, pids(commands.root).values()))


@pytest.mark.spec("CMD-05.a", "CMD-01.d")
async def test_the_configured_variables_are_passed_and_secret_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PASSED", "HIDDEN", "OTHER"):
        monkeypatch.setenv(name, f"value-of-{name}")
    commands = make_commands(tmp_path, config=CommandsConfig(env=("PASSED", "HIDDEN"), secret_env=("HIDDEN",)))

    result = await commands.run("env")

    names = {line.partition("=")[0] for line in text_of(result).splitlines()}
    assert "PASSED" in names
    assert names <= {"PATH", "HOME", "TMPDIR", "PASSED"}


@pytest.mark.spec("EVT-05", "CMD-01.f")
async def test_a_secret_is_in_no_result_report_or_artifact_whole_or_in_pieces(tmp_path: Path) -> None:
    secret = "canary-" + "k3y" * 10
    several_lines = "first-half-of-it\nsecond-half-of-it"
    commands = make_commands(
        tmp_path, redactor=redactor([secret, several_lines]), progress_every=timedelta(milliseconds=40)
    )
    code = f"""
import sys, time
def say(text):
    sys.stdout.write(text); sys.stdout.flush(); time.sleep(0.15)
for char in range(0, {len(secret)}, 5): say({secret!r}[char:char + 5])
say('\\nkey: AKIA'); say('IOSFODNN7EXAMPLE\\n')
say('first-half-of-it\\n'); say('second-half-of-it\\n')
say('-----BEGIN RSA PRIVATE KEY-----\\n'); say('MIIEpAIBAAKCAQEA\\n'); say('-----END RSA PRIVATE KEY-----\\n')
print({secret!r} * 3000)
"""

    result = await commands.run(sys.executable, commands.program("say.py", code).name)

    everything = repr((result, commands.bench.log.notes, commands.bench.log.ends, commands.bench.artifacts.stored))
    assert len(commands.progress) > 3
    for piece in ("canary-k3", "k3yk3y", "AKIAIOS", "MIIEpA", "first-half", "second-half"):
        assert piece not in everything
    assert "[redacted]" in text_of(result)


async def test_a_process_stopped_by_the_command_is_ended_too(commands: Commands) -> None:
    stopping = "import os, signal, subprocess\np = subprocess.Popen(['/bin/sleep', '300'])"

    result = await commands.python(f"{stopping}\nos.kill(p.pid, signal.SIGSTOP)\nprint(p.pid)")

    assert not is_alive(int(text_of(result)))


@pytest.mark.spec("CMD-06.e")
@pytest.mark.parametrize(
    "switch",
    [
        *("dangerouslyDisableSandbox", "sandbox", "sandbox_permissions", "require_escalated", "run_in_background"),
        *("env", "tty"),
    ],
)
async def test_no_input_switches_a_sandbox_off_or_changes_how_a_command_runs(commands: Commands, switch: str) -> None:
    error = await commands.failure("true", **{switch: True})

    assert error.type is ErrorType.INVALID_INPUT
    assert switch in error.message
    assert commands.bench.gate.asked == []
