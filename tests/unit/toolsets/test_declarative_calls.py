"""Calls of declared tools: real programs, from the model's words to the result."""

import stat
from pathlib import Path

import pytest

from soong.shared.core.config import parse_config
from soong.shared.core.identity import Role
from soong.shared.permissions.rules import offered_scope
from soong.shared.tools.execution import PROGRESS_EVENT
from soong.shared.tools.result import ErrorType
from soong.shared.tools.surface import SurfaceRequest, compute_surface
from tests.unit.tools.parts import error_of, make_bench
from tests.unit.toolsets.declaring import Declared, make_declared

SAY_ALL = """
import json, os, sys
print(json.dumps({"data": {"stdin": json.load(sys.stdin), "cwd": os.getcwd(), "env": dict(os.environ),
                           "argv": sys.argv[1:]}}))
"""


@pytest.fixture
def declared(tmp_path: Path) -> Declared:
    return make_declared(tmp_path)


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

    assert error_of(result).type is ErrorType.PATH_OUTSIDE_ROOTS


@pytest.mark.spec("CMD-05.c")
async def test_the_model_has_no_say_in_where_with_what_and_how_long(declared: Declared) -> None:
    declared.python(SAY_ALL)

    for field in ("cwd", "working_dir", "env", "timeout_ms", "command", "args"):
        assert (await declared.error(**{field: "/"}))[0] is ErrorType.INVALID_INPUT


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


@pytest.mark.spec("EXE-09")
async def test_a_program_that_runs_long_gives_signs_of_life(declared: Declared) -> None:
    declared.python('import time; time.sleep(2); print(\'{"summary": "ok"}\')')

    await declared.call()

    assert declared.bench is not None
    signs = [data["message"] for type_, data in declared.bench.log.notes if type_ == PROGRESS_EVENT]
    assert signs
    assert all(str(sign).startswith("running for ") for sign in signs)


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

    assert error_of(result).type is ErrorType.PATH_CONFLICT
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

    assert error_of(result).type is ErrorType.PATH_CONFLICT
    assert not (declared.project / "EVIL").exists()
    assert shown.preview.startswith("file deploy.py: sha256 ")
    assert ", files sha256:" in shown.scope


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
    declared.write(args=["{{text}}"] * 20)

    type_, message = await declared.error(text="x" * 130_000)

    assert (type_, "command line" in message) == (ErrorType.INVALID_INPUT, True)


def _program(path: Path, line: str = "true") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\n{line}\necho \'{{"summary": "ok"}}\'\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path
