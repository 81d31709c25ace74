"""Calls of declared tools: real programs, from the model's words to the result."""

import asyncio
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from soong.shared.core.config import parse_config
from soong.shared.core.identity import Role
from soong.shared.core.jsontext import JsonObject
from soong.shared.permissions.scope import offered_scope
from soong.shared.tools.definition import ToolContext
from soong.shared.tools.execution import PROGRESS_EVENT
from soong.shared.tools.ports import ToolCall, Verdict
from soong.shared.tools.result import ErrorType, ToolResult
from soong.shared.tools.surface import SurfaceRequest, compute_surface
from tests.unit.sandbox.families import is_alive
from tests.unit.tools.parts import make_bench, make_identity, make_run_dirs
from tests.unit.toolsets.declaring import Declared, make_declared
from tests.waiting import until

SAY_ALL = """
import json, os, sys
print(json.dumps({"data": {"stdin": json.load(sys.stdin), "cwd": os.getcwd(), "env": dict(os.environ),
                           "argv": sys.argv[1:]}}))
"""


class Unheard:
    """Progress of a call outside a pipeline."""

    async def report(self, message: str, data: JsonObject | None = None) -> None:
        pass


@pytest.fixture
def declared(tmp_path: Path) -> Declared:
    return make_declared(tmp_path)


def is_gone(pid: int) -> bool:
    return not is_alive(pid)


@pytest.mark.spec("CMD-03.a", "CMD-05.c")
async def test_a_program_gets_its_arguments_on_stdin_and_runs_in_the_sessions_folder(declared: Declared) -> None:
    declared.python(SAY_ALL, "--text={{text}}", "{{more}}")

    said = await declared.data(text="héllo\n", number=3)

    assert said["stdin"] == {"text": "héllo\n", "number": 3}
    assert said["argv"] == ["--text=héllo\n"]
    assert said["cwd"] == str(declared.project)


@pytest.mark.spec("CMD-05.a")
async def test_a_program_gets_the_default_variables_the_configured_ones_and_its_own(
    declared: Declared, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SHARED", "OWN", "OTHER", "SECRET", "DECLARED_SECRET", "TMPDIR"):
        monkeypatch.setenv(name, f"value of {name}")
    declared.config = parse_config(
        '[commands]\nenv = ["SHARED", "SECRET", "DECLARED_SECRET"]\nsecret_env = ["SECRET", "DECLARED_SECRET"]\n'
    )
    declared.python(SAY_ALL, env_allowlist=["OWN", "DECLARED_SECRET", "NOT_SET"])

    variables = (await declared.data())["env"]

    variables.pop("LC_CTYPE", None)  # Python's own, when it is started without a locale
    assert set(variables) == {"PATH", "HOME", "TMPDIR", "SHARED", "OWN", "DECLARED_SECRET", "SOONG_EFFECT_ID"}


@pytest.mark.spec("CMD-05.c")
async def test_a_working_dir_of_the_definition_is_used_while_it_stays_inside_the_roots(
    declared: Declared, tmp_path: Path
) -> None:
    place = tmp_path / "roots" / "place"
    place.mkdir(parents=True)
    declared.config = parse_config(f"[paths]\nallowed_write_roots = [{str(place.parent)!r}]\n")
    declared.python(SAY_ALL, working_dir=str(place))
    assert (await declared.data())["cwd"] == str(place)
    bench = make_bench(declared.tools(), project=declared.project)

    place.rmdir()
    place.symlink_to("/etc")
    result = await bench.call("team.tool")

    assert result.error is not None
    assert result.error.type is ErrorType.PATH_OUTSIDE_ROOTS


@pytest.mark.spec("CMD-05.c")
async def test_the_model_has_no_say_in_where_with_what_and_how_long(declared: Declared) -> None:
    declared.python(SAY_ALL)

    for field in ("cwd", "working_dir", "env", "timeout_ms", "command", "args"):
        assert (await declared.error(**{field: "/"}))[0] is ErrorType.INVALID_INPUT


@pytest.mark.spec("CMD-04")
async def test_a_shell_line_takes_each_value_as_one_word(declared: Declared) -> None:
    declared.config = parse_config("[tools]\nshell = true\n")
    (declared.project / "names").write_text("a b\na\nb\n")
    declared.sh("printf '{\"data\": %s}'", "$(grep -c --", "{{text}}", "names | cat)")

    assert await declared.data(text="a b") == 1


@pytest.mark.spec("CMD-03.d")
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import sys; sys.exit('it went wrong')", "exit code 1\nstderr:\nit went wrong"),
        ("import sys; print('{\"data\": 1}'); sys.exit(7)", "exit code 7"),
        ("import os; os.kill(os.getpid(), 9)", "ended by signal SIGKILL"),
    ],
)
async def test_a_program_that_ends_badly_is_an_error_with_its_code_and_the_end_of_its_log(
    declared: Declared, code: str, expected: str
) -> None:
    declared.python(code)

    assert await declared.error() == (ErrorType.EXECUTION_FAILED, expected)


@pytest.mark.spec("CMD-03.d")
async def test_the_log_of_a_program_that_ends_well_is_kept_beside_the_result(declared: Declared) -> None:
    declared.python("import sys; print('\\x1b[31mcareful\\x1b[0m', file=sys.stderr); print('{\"summary\": \"ok\"}')")

    result = await declared.call()

    assert result.ok
    assert result.metadata == {"stderr": "careful", "stderr_bytes": 17, "sandbox": "none"}


async def test_more_log_than_is_kept_does_not_end_a_program(declared: Declared) -> None:
    code = "import sys; [print('x' * 99, file=sys.stderr) for _ in range(10_000)]; print('{\"summary\": \"ok\"}')"
    declared.python(code, stderr_limit_bytes=1000)

    result = await declared.call()

    assert result.ok
    assert result.metadata["stderr_bytes"] == 1_000_000
    assert result.metadata["stderr"] == "\n".join(["[…]", *["x" * 99] * 40])


@pytest.mark.spec("CMD-03")
async def test_a_program_that_prints_more_than_its_limit_is_ended(declared: Declared) -> None:
    code = "import os; open('pid', 'w').write(str(os.getpid()))\nwhile True: print('y' * 10_000)"
    declared.python(code, stdout_limit_bytes=100_000)

    type_, message = await declared.error()

    assert (type_, "more than 100000 bytes" in message) == (ErrorType.LIMIT_EXCEEDED, True)
    assert is_gone(int((declared.project / "pid").read_text()))


@pytest.mark.spec("EXE-07")
async def test_an_aborted_call_leaves_no_process(declared: Declared) -> None:
    declared.python("import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(100)")
    bench = make_bench(declared.tools(), project=declared.project)
    call = asyncio.ensure_future(bench.pipeline.execute(ToolCall("call_1", "team.tool", {})))
    pid = declared.project / "pid"
    await until(lambda: pid.exists() and bool(pid.read_text()))

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert is_gone(int(pid.read_text()))
    assert bench.ended.error is not None
    assert bench.ended.error.type is ErrorType.ABORTED


@pytest.mark.spec("EXE-09")
async def test_a_program_that_runs_long_gives_signs_of_life(declared: Declared) -> None:
    declared.python('import time; time.sleep(2); print(\'{"summary": "ok"}\')')

    await declared.call()

    assert declared.bench is not None
    signs = [data["message"] for type_, data in declared.bench.log.notes if type_ == PROGRESS_EVENT]
    assert signs
    assert all(str(sign).startswith("running for ") for sign in signs)


@pytest.mark.parametrize(
    ("fields", "type_", "expected"),
    [
        ({"command": "no-such-program-here"}, ErrorType.FILE_NOT_FOUND, "not a program on PATH"),
        ({"command": "/no/such/program"}, ErrorType.FILE_NOT_FOUND, "does not lead to a program"),
        ({"command": "/etc/passwd"}, ErrorType.INVALID_INPUT, "not executable"),
        ({"command": "/tmp"}, ErrorType.NOT_REGULAR_FILE, "not a regular file"),
    ],
)
async def test_a_program_that_is_not_there_is_named(
    declared: Declared, fields: dict[str, Any], type_: ErrorType, expected: str
) -> None:
    declared.write(**fields)

    found, message = await declared.error()

    assert (found, expected in message) == (type_, True)


async def test_a_script_without_interpreter_is_distinguished_from_one_that_fails(
    declared: Declared, tmp_path: Path
) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    declared.write(command=str(script))

    type_, message = await declared.error()

    assert type_ is ErrorType.EXECUTION_FAILED
    assert "cannot be started" in message


@pytest.mark.spec("PER-04", "PER-06")
async def test_permission_is_asked_for_the_exact_line_and_remembered_by_program_and_folder(
    declared: Declared, tmp_path: Path
) -> None:
    program = _program(tmp_path / "bin" / "deploy")
    declared.write(command=str(program), args=["--to={{text}}"])

    await declared.call(text="a b")
    first = declared.target
    await declared.call(text="other")

    assert (first.kind, first.shown) == ("command", f"{program} '--to=a b'")
    assert first.scope == declared.target.scope == f"{declared.project}: {program}"
    assert offered_scope(first, "/home/nobody") == first.scope
    assert "PATH" in first.preview
    assert str(declared.home) in first.preview


@pytest.mark.spec("PER-08")
@pytest.mark.parametrize("kind", ["dangerous", "interpreter", "shell", "value alone"])
async def test_where_an_argument_can_be_a_program_a_grant_holds_for_the_same_input_alone(
    declared: Declared, tmp_path: Path, kind: str
) -> None:
    declared.config = parse_config("[tools]\nshell = true\n")
    match kind:
        case "dangerous":
            declared.write(command=str(_program(tmp_path / "bin" / "deploy")), tags=["dangerous"])
        case "value alone":
            declared.write(command=str(_program(tmp_path / "bin" / "deploy")), args=["--", "{{text}}"])
        case "interpreter":
            declared.python('print(\'{"summary": "ok"}\')')
        case _:
            declared.sh("echo", "{{text}}")

    await declared.call(text="a")
    first = declared.target.scope
    await declared.call(text="b")
    second = declared.target.scope
    await declared.call(text="a")

    assert first != second
    assert declared.target.scope == first


@pytest.mark.spec("PER-04")
async def test_what_was_shown_is_what_runs_or_nothing_does(declared: Declared, tmp_path: Path) -> None:
    program = _program(tmp_path / "bin" / "deploy")
    declared.write(command=str(program))
    bench = make_bench(declared.tools(), project=declared.project)

    async def swap() -> None:
        program.unlink()
        _program(program, "touch swapped")

    bench.gate.before = swap
    result = await bench.call("team.tool")

    assert result.error is not None
    assert result.error.type is ErrorType.PATH_CONFLICT
    assert not (declared.project / "swapped").exists()


@pytest.mark.spec("PER-02")
async def test_a_program_that_the_run_itself_can_write_is_asked_for_even_when_it_only_reads(
    declared: Declared, tmp_path: Path
) -> None:
    for folder, expected in ((declared.project, "ask"), (tmp_path / "bin", "none")):
        declared.write(command=str(_program(folder / "lint")), permission="readonly")

        await declared.call()

        assert declared.bench is not None
        assert declared.bench.gate.asked[-1].hook_result == expected


@pytest.mark.spec("PER-02")
@pytest.mark.parametrize("is_here", [True, False])
async def test_a_program_that_a_link_has_in_the_project_is_asked_for(
    declared: Declared, tmp_path: Path, is_here: bool
) -> None:
    places = declared.project / "lint", tmp_path / "bin" / "lint"
    file, link = places if is_here else reversed(places)
    _program(file)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(file)
    declared.write(command=str(link), permission="readonly")

    await declared.call()

    assert declared.bench is not None
    assert declared.bench.gate.asked[-1].hook_result == "ask"


@pytest.mark.spec("PER-02")
@pytest.mark.parametrize(
    ("command", "arguments", "expected"),
    [
        ("python3", ["lint.py"], "ask"),
        ("sh", ["{{text}}"], "ask"),
        ("make", ["-n"], "ask"),
        ("env", ["make", "-n"], "ask"),
        ("cat", ["{{text}}"], "none"),
        ("python3", ["-c", "print(1)"], "none"),
    ],
    ids=str,
)
async def test_a_script_of_the_project_is_asked_for_even_when_its_tool_only_reads(
    declared: Declared, command: str, arguments: list[str], expected: str
) -> None:
    for name in ("lint.py", "Makefile"):
        (declared.project / name).write_text("")
    declared.write(command=command, args=arguments, permission="readonly")

    await declared.call(text="lint.py")

    assert declared.bench is not None
    assert declared.bench.gate.asked[-1].hook_result == expected


@pytest.mark.spec("PER-04", "PER-12")
async def test_a_script_that_is_rewritten_after_it_was_shown_is_not_run(declared: Declared) -> None:
    script = declared.project / "deploy.py"
    script.write_text("print(1)")
    declared.write(command="python3", args=["deploy.py"])
    bench = make_bench(declared.tools(), project=declared.project)

    def rewrite() -> None:
        script.write_text("open('EVIL', 'w')")

    async def before() -> None:
        rewrite()

    bench.gate.before = before
    result = await bench.call("team.tool")
    shown = bench.gate.asked[-1].target

    assert result.error is not None
    assert result.error.type is ErrorType.PATH_CONFLICT
    assert not (declared.project / "EVIL").exists()
    assert shown.preview.startswith("file deploy.py: sha256 ")
    assert ", files sha256:" in shown.scope


async def test_a_program_by_name_is_not_found_in_the_project(
    declared: Declared, monkeypatch: pytest.MonkeyPatch
) -> None:
    _program(declared.project / "deploy-it")
    monkeypatch.setenv("PATH", f"{declared.project}{os.pathsep}{os.environ['PATH']}")
    declared.write(command="deploy-it")

    assert (await declared.error())[0] is ErrorType.FILE_NOT_FOUND


@pytest.mark.spec("EXE-01")
async def test_a_call_that_is_not_permitted_starts_nothing(declared: Declared) -> None:
    declared.options = {"verdict": Verdict(is_allowed=False, author="person", error=ErrorType.PERMISSION_DENIED)}
    declared.python("open('ran', 'w')")

    assert (await declared.error())[0] is ErrorType.PERMISSION_DENIED
    assert not (declared.project / "ran").exists()


@pytest.mark.spec("CMD-06.b")
async def test_a_shell_line_is_outside_every_surface_until_it_is_enabled(declared: Declared) -> None:
    declared.sh("echo", name="team.tool")
    declared.write("team.risky", tags=["dangerous"])

    def surface(text: str, *, is_dangerous_enabled: bool) -> tuple[str, ...]:
        declared.config = parse_config(text)
        request = SurfaceRequest(Role.MAIN, is_dangerous_enabled=is_dangerous_enabled)
        return compute_surface(declared.tools(), request).tools

    assert surface("", is_dangerous_enabled=False) == ()
    assert surface("[tools]\nshell = true\n", is_dangerous_enabled=False) == ("team.tool",)
    assert surface("", is_dangerous_enabled=True) == ("team.risky",)


async def test_arguments_that_are_together_too_long_are_invalid_input(declared: Declared) -> None:
    declared.write(args=["{{text}}"] * 40)

    type_, message = await declared.error(text="x" * 130_000)

    assert (type_, "command line" in message) == (ErrorType.INVALID_INPUT, True)


@pytest.mark.spec("EXE-08")
async def test_a_handler_keeps_to_its_time_without_a_pipeline(declared: Declared) -> None:
    declared.python("import time; print('half', flush=True); time.sleep(100)", timeout_ms=1500)
    (tool,) = declared.tools()
    context = ToolContext(make_identity(), make_run_dirs(declared.project), "call_1", "effect", 1, Unheard())

    result = await tool.handler(context, {})

    assert isinstance(result, ToolResult)
    assert result.error is not None
    assert result.error.type is ErrorType.TIMEOUT
    assert result.metadata == {"stdout": "half", "stdout_bytes": 5, "partial": True}


def _program(path: Path, line: str = "true") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\n{line}\necho \'{{"summary": "ok"}}\'\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path
