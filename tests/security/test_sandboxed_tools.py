"""Declared tools, hooks and programs that others start run in the sandbox, too (CMD-07.a); so does the document."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from soong.shared.core.config import HookConfig, HooksConfig
from soong.shared.sandbox.bubblewrap.mounts import HostLayout
from soong.shared.sandbox.bubblewrap.runner import BubblewrapRunner
from soong.shared.sandbox.command import CommandAccess
from soong.shared.tools.definition import ToolDefinition
from soong.shared.tools.hooks.command import hooks_of
from soong.shared.tools.result import ErrorType
from soong.shared.toolsets.declarative.running import DeclarativeTools
from tests.architecture.document_examples import Sitting, agrees, perform_warm, sittings
from tests.extra import bubblewrap
from tests.spec_document import ROOT
from tests.unit.tools.parts import make_bench, make_tool
from tests.unit.toolsets.declaring import Declared, make_declared

SANDBOX_PAGE = ROOT / "docs" / "reference" / "sandbox.md"

pytestmark = pytest.mark.usefixtures("has_bubblewrap")

TRY = """
import json, socket
def outcome(attempt):
    try:
        attempt()
    except OSError as error:
        return error.strerror or type(error).__name__
    return 'done'
print(json.dumps({'data': [outcome(lambda: open('made', 'w')), outcome(lambda: open('KEY')),
                           outcome(lambda: socket.create_connection(('127.0.0.1', PORT), 5))]}))
"""


@pytest.fixture(name="has_bubblewrap")
def _has_bubblewrap() -> None:
    bubblewrap()


def runner_of(home: Path) -> BubblewrapRunner:
    shown = tuple(home / name for name in ("tools", "hooks"))
    return BubblewrapRunner(HostLayout(home.parent / "user", own=(home,), shown=shown), is_required=True)


class InSandbox(Declared):
    """Declared tools that are run in a sandbox."""

    def tools(self) -> tuple[ToolDefinition, ...]:
        return DeclarativeTools(self.home, runner_of(self.home), self.config).tools()


@pytest.mark.spec("CMD-07.a", "CMD-07.c")
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"permission": "readonly"}, ["Read-only file system", "No such file or directory", "Connection refused"]),
        ({"permission": "write"}, ["done", "No such file or directory", "Connection refused"]),
        ({"permission": "write", "tags": ["network"]}, ["done", "No such file or directory", "done"]),
    ],
    ids=["readonly", "write", "network"],
)
async def test_a_declared_tool_reaches_what_it_declares(
    tmp_path: Path, fields: dict[str, object], expected: list[str]
) -> None:
    made = make_declared(tmp_path)
    declared = InSandbox(made.home, made.project)
    key = made.home / "signing.key"
    key.write_text("key")
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    declared.python(TRY.replace("KEY", str(key)).replace("PORT", str(port)), **fields)

    result = await declared.call()

    server.close()
    assert result.error is None, result.error
    assert result.data == expected
    assert result.metadata["sandbox"] == "bubblewrap"


@pytest.mark.spec("CMD-07.e")
async def test_a_refusal_of_a_declared_tool_is_told_apart(tmp_path: Path) -> None:
    made = make_declared(tmp_path)
    declared = InSandbox(made.home, made.project)
    declared.write(command="touch", args=["/srv/x"], permission="write")

    kind, message = await declared.error()

    assert kind is ErrorType.SANDBOX_DENIED
    assert "'/srv/x' is not visible in the sandbox" in message
    assert "sandbox: bubblewrap" in declared.target.preview


@pytest.mark.spec("CMD-07.a")
async def test_a_hook_runs_in_the_sandbox_and_sees_its_own_files_and_the_project_only(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    for folder in (home, project):
        folder.mkdir()
    (home / "signing.key").write_text("key")
    (project / "x").write_text("x")
    script = home / "check.py"
    script.write_text(
        "import json, os, sys\ntold = json.load(sys.stdin)\n"
        "project = told['run_dirs']['project']\n"
        f"seen = [os.path.exists(p) for p in (project + '/x', {str(home / 'signing.key')!r}, {str(script)!r})]\n"
        "print(json.dumps({'action': 'deny', 'reason': json.dumps([*seen, os.access(project, os.W_OK)])}))\n"
    )
    config = HooksConfig(pre=(HookConfig(name="check", command=(sys.executable, "-I", str(script))),))
    hooks = hooks_of(config, runner_of(home), home=home)
    bench = make_bench([make_tool()], project=project, hooks=hooks)

    result = await bench.call(make_tool().name, {})

    assert result.error is not None
    assert result.error.type is ErrorType.HOOK_DENIED, result.error
    assert json.dumps([True, False, True, False]) in result.error.message


@pytest.mark.spec("CMD-07.a")
async def test_a_long_lived_program_of_another_starter_is_wrapped(tmp_path: Path) -> None:
    """The seam for agents that speak a protocol on their standard streams."""
    project = tmp_path / "project"
    project.mkdir()
    runner = runner_of(tmp_path / "home")
    code = "import sys, os\nfor line in sys.stdin: print(line.strip(), os.path.exists('/srv'), flush=True)"
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "user")}
    access = CommandAccess(readable=(project,), writable=(project,))
    argv = (sys.executable, "-I", "-c", code)

    agent = await runner.start(argv, access, cwd=project, env=environment)
    said = []
    for word in (b"one\n", b"two\n"):
        agent.input.write(word)
        said.append(await agent.output.readline())

    assert said == [b"one False\n", b"two False\n"]
    assert await agent.stop() == 0


@pytest.mark.spec("CMD-07.f", "CMD-07.b")
@pytest.mark.parametrize("sitting", list(sittings(SANDBOX_PAGE.read_text(encoding="utf-8"))), ids=lambda one: one.title)
def test_what_the_document_shows_is_what_happens(sitting: Sitting, tmp_path: Path) -> None:
    done = perform_warm(sitting, tmp_path / "home")

    assert len(done) == len(sitting.commands)
    wrong = [f"$ {command.line}\n" + "\n".join(said) for command, said in done if not agrees(command.expected, said)]
    assert not wrong, "\n\n".join(wrong)
