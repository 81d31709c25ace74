"""Editors that speak the Agent Client Protocol: Soong is their agent."""

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import acp
import psutil
import pytest
from acp import RequestError, schema
from llmock.scenarios import Delay, Match, Reply, ToolCall

from tests.aimock.server import aimock, requests_of
from tests.extra import acp_modules, acp_node, aimock_program, bubblewrap
from tests.system.cli_scene import CONSOLE_SCRIPT, CliHarness, interrupted, until
from tests.system.test_acp_child import answer, questions
from tests.system.test_cli_ask import PLANNER, WORKER, planner, worker
from tests.system.test_worker_families import worker_of
from tests.waiting import others_run
from tests.warm import warm_program
from tests.wires.wire import Wires

pytestmark = pytest.mark.timeout(600)

SCENE = {"models": "openai-chat:gpt-*"}


@dataclass
class Editor:
    """A front end; ``choice`` is the kind of option that its user takes."""

    choice: str = "allow_once"
    updates: list[Any] = field(default_factory=list)
    asked: list[tuple[schema.ToolCallUpdate, list[schema.PermissionOption]]] = field(default_factory=list)
    conn: Any = None

    def on_connect(self, conn: Any) -> None:
        self.conn = conn

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)

    async def request_permission(
        self, session_id: str, tool_call: schema.ToolCallUpdate, options: list[schema.PermissionOption], **_: Any
    ) -> schema.RequestPermissionResponse:
        self.asked.append((tool_call, options))
        chosen = next(one.option_id for one in options if one.kind == self.choice)
        return schema.RequestPermissionResponse(outcome=schema.AllowedOutcome(outcome="selected", option_id=chosen))

    @property
    def said(self) -> str:
        chunks = [one for one in self.updates if isinstance(one, schema.AgentMessageChunk)]
        return "".join(one.content.text for one in chunks if isinstance(one.content, schema.TextContentBlock))

    async def shown_again(self, cli: CliHarness, session_id: str) -> list[str]:
        """Load a session; return what it says that its user has asked."""
        self.updates.clear()
        await self.conn.load_session(cwd=str(cli.folder), session_id=session_id, mcp_servers=[])
        chunks = [one for one in self.updates if isinstance(one, schema.UserMessageChunk)]
        return [one.content.text for one in chunks if isinstance(one.content, schema.TextContentBlock)]

    @property
    def plans(self) -> list[dict[str, str]]:
        """Return the plans that were shown: the status of each entry by its text."""
        plans = [one for one in self.updates if isinstance(one, schema.AgentPlanUpdate)]
        return [{entry.content: entry.status for entry in plan.entries} for plan in plans]


@asynccontextmanager
async def editor(cli: CliHarness, choice: str = "allow_once") -> AsyncIterator[Editor]:
    """Start the command as an editor does."""
    ours = Editor(choice)
    program = warm_program(cli.home / "warm")
    async with acp.spawn_agent_process(
        ours,  # type: ignore[arg-type]  # no files, no terminals
        str(program),
        "acp",
        "--model",
        PLANNER,
        env=cli.env,
        cwd=cli.folder,
        use_unstable_protocol=True,
        transport_kwargs={"stderr": None, "shutdown_timeout": 30.0},
    ) as (conn, _process):
        said = await conn.initialize(acp.PROTOCOL_VERSION)
        assert said.protocol_version == acp.PROTOCOL_VERSION
        assert said.agent_capabilities is not None
        can = said.agent_capabilities.model_dump(by_alias=True, exclude_none=True)
        assert (can["loadSession"], set(can["sessionCapabilities"])) == (True, {"list", "resume", "fork", "close"})
        yield ours


def writing(path: str) -> list[Reply]:
    """Return a plan of one step that writes a file, and what its agents say."""
    step = {"id": "note", "title": "Write it", "instructions": "Write.", "allowed_tools": ["code.write_file"]}
    return [
        planner(ToolCall("agent__task_create", {"title": "notes", "steps": [{**step, "model": WORKER}]})),
        worker(ToolCall("code__write_file", {"path": path, "content": "a note\n"})),
        worker(text="written"),
        planner(ToolCall("agent__dispatch_worker", {})),
        planner(ToolCall("agent__task_complete", {})),
        planner(text="The note is written."),
    ]


async def check_fork(cli: CliHarness, ours: Editor, session_id: str, wires: Wires) -> None:
    """Fork a session of two prompts, in which a write was allowed for the session, and have it write again."""
    fork = (await ours.conn.fork_session(cwd=str(cli.folder), session_id=session_id, mcp_servers=[])).session_id
    await ours.conn.prompt(session_id=fork, prompt=[acp.text_block("Write another one.")])

    assert len(ours.asked) == 2, "a grant is of one session"
    assert "You asked for a note." in str(wires.requests[-1]), "the conversation is in the fork"
    listed = await ours.conn.list_sessions(cwd=str(cli.folder))
    assert [one.session_id for one in listed.sessions] == [fork, session_id]
    assert await ours.shown_again(cli, fork) == ["Write a note.", "What was it?", "Write another one."]


@pytest.mark.spec("ACP-02.a", "ACP-02.b", "ACP-02.c")
async def test_a_prompt_shows_the_plan_asks_with_three_answers_and_ends_with_the_answer(
    cli: CliHarness, wires: Wires
) -> None:
    wires.will(*writing("note.txt"), planner(text="You asked for a note."), *writing("other.txt"))
    await asyncio.to_thread(cli.serve, "ask")
    async with editor(cli, "allow_always") as ours:
        session = await ours.conn.new_session(cwd=str(cli.folder), mcp_servers=[])

        ended = await ours.conn.prompt(session_id=session.session_id, prompt=[acp.text_block("Write a note.")])

        assert ended.stop_reason == "end_turn"
        assert ours.said.endswith("The note is written.")
        assert ours.plans[-1] == {"note: Write it": "completed"}
        call, options = ours.asked[0]
        assert len(ours.asked) == 1
        assert [one.kind for one in options] == ["allow_once", "allow_always", "reject_once"]
        assert options[1].name == f"Allow for this session: code.write_file on {cli.folder}"
        assert call.content
        diff = call.content[0]
        assert isinstance(diff, schema.FileEditToolCallContent)
        assert (diff.path, diff.old_text, diff.new_text) == (str(cli.folder / "note.txt"), None, "a note\n")
        assert (cli.folder / "note.txt").read_text() == "a note\n"

        again = await ours.conn.prompt(session_id=session.session_id, prompt=[acp.text_block("What was it?")])
        assert again.stop_reason == "end_turn"
        assert ours.said.endswith("You asked for a note.")
        assert "Write a note." in str(wires.requests[-1])

        listed = await ours.conn.list_sessions(cwd=str(cli.folder))
        assert [one.session_id for one in listed.sessions] == [session.session_id]
        ours.updates.clear()
        await ours.conn.resume_session(cwd=str(cli.folder), session_id=session.session_id, mcp_servers=[])
        assert not ours.updates
        assert await ours.shown_again(cli, session.session_id) == ["Write a note.", "What was it?"]
        assert "The note is written." in ours.said
        await check_fork(cli, ours, session.session_id, wires)
    cli.assert_nothing_left()


@pytest.mark.spec("ACP-02", "ACP-02.a")
async def test_mistakes_are_said_and_a_cancelled_prompt_ends(cli: CliHarness, wires: Wires) -> None:
    wires.will(Delay(60.0, match=Match(model="gpt-5")), planner(text="never said"))
    async with editor(cli) as ours:
        with pytest.raises(RequestError) as relative:
            await ours.conn.new_session(cwd="here", mcp_servers=[])
        assert "is not an absolute path of a folder" in str(relative.value.data)
        with pytest.raises(RequestError) as unknown:
            await ours.conn.prompt(session_id="sess_x", prompt=[acp.text_block("x")])
        assert unknown.value.code == RequestError.resource_not_found().code
        assert not (cli.home / "service.json").exists(), "nothing was started for it"
        session = await ours.conn.new_session(cwd=str(cli.folder), mcp_servers=[])
        asking = asyncio.create_task(ours.conn.prompt(session_id=session.session_id, prompt=[acp.text_block("Wait.")]))
        await others_run()  # it is sent first
        with pytest.raises(RequestError, match="Invalid request"):
            await ours.conn.prompt(session_id=session.session_id, prompt=[acp.text_block("At the same time.")])
        await asyncio.to_thread(until, cli.task_id, "the ask is there", cli.logs)

        await ours.conn.cancel(session_id=session.session_id)

        assert (await asking).stop_reason == "cancelled"
    refused = cli.run("ask", "x", "--agent", "acp:codex", "--model", PLANNER)
    assert "does steps, and plans none" in refused.stderr


RECORDED = Path(__file__).parents[1] / "acp" / "recorded.py"

SECRET = "the content of a key"


def said(prompt: str, turn: int, **response: Any) -> dict[str, Any]:
    return {"match": {"userMessage": prompt, "turnIndex": turn}, "response": response}


def call(name: str, **arguments: str) -> dict[str, Any]:
    return {"toolCalls": [{"name": name, "arguments": arguments}]}


ALLOWS_ALL = {"permissions": {"allow": ["Bash(*)", "Write", "Edit", "Read"], "defaultMode": "bypassPermissions"}}


def configure(cli: CliHarness, address: str, folder: Path, head: str = "") -> None:
    """Give the home the real Claude Code, which finds its model at this address, and whose user has allowed all."""
    folder.mkdir()
    settings = ALLOWS_ALL["permissions"] | {"defaultMode": "auto"}
    (folder / "settings.json").write_text(json.dumps({"permissions": settings}))
    claude = acp_modules() / "@agentclientprotocol/claude-agent-acp/dist/index.js"
    variables = {
        "ANTHROPIC_BASE_URL": address,
        "ANTHROPIC_API_KEY": "sk-mock",
        "CLAUDE_CONFIG_DIR": str(folder),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    lines = [head, "[tools]", "dangerous = true", "[acp.agents.claude-code]"]
    lines += [f"command = {[acp_node(), str(claude)]!r}", f"state = {[str(folder)]!r}"]
    lines += ["[acp.agents.claude-code.variables]", *(f"{name} = {value!r}" for name, value in variables.items())]
    (cli.home / "config.toml").write_text("\n".join(lines))


@pytest.mark.spec("ACP-01.a", "ACP-01.b", "ACP-01.c")
def test_claude_code_asks_for_everything_in_one_inbox_whatever_its_own_settings_say(
    cli: CliHarness, tmp_path: Path
) -> None:
    files = {name: cli.folder / name for name in ("one.txt", "no.txt", "worker.txt", "ran", "secret.pem")}
    files["secret.pem"].write_text(SECRET)
    (cli.folder / ".claude").mkdir()
    (cli.folder / ".claude" / "settings.json").write_text(json.dumps(ALLOWS_ALL))
    fixtures = [
        said("WRITE-ONE", 0, **call("Write", file_path=str(files["one.txt"]), content="one\n")),
        said("WRITE-ONE", 1, content="I wrote it."),
        said("WRITE-FOUR", 0, **call("Write", file_path=str(files["no.txt"]), content="no\n")),
        said("WRITE-FOUR", 1, content="It was refused."),
        said("RUN-TWO", 0, **call("Bash", command=f"touch {files['ran']}", description="touch")),
        said("RUN-TWO", 1, content="It was refused."),
        said("READ-THREE", 0, **call("Read", file_path=str(files["secret.pem"]))),
        said("READ-THREE", 1, content="It was refused."),
        {"match": {}, "response": {"content": "ok"}},
    ]
    write = {"calls": [{"call": "code.write_file", "with": {"path": str(files["worker.txt"]), "content": "worker"}}]}
    plan = "title: Claude and a worker\nsteps:\n"
    for name, prompt in (("one", "WRITE-ONE"), ("two", "RUN-TWO"), ("three", "READ-THREE"), ("four", "WRITE-FOUR")):
        plan += f"  - {{id: {name}, agent: 'acp:claude-code', instructions: {prompt}}}\n"
    plan += "  - {id: worker, allowed_tools: [code.write_file], script: builtin.calls, "
    plan += f"inputs: {json.dumps(write)}}}\n"
    with aimock(aimock_program(), tmp_path, fixtures) as address:
        configure(cli, address, tmp_path / "claude")
        up = cli.up()
        cli.run("run", cli.plan(plan), "--approvals", "inbox", "--detach")
        asked: dict[str, str] = {}
        refused = ("two acp.claude-code.execute", "three acp.claude-code.read", "four acp.claude-code.edit")

        def have_ended() -> bool:
            for one in answer(cli, *refused):
                asked[f"{one.identity.step_key.partition('/')[2]} {one.tool}"] = f"{one.shown}\n{one.preview}"
            statuses = set(cli.step_statuses().values())
            return bool(statuses) and statuses <= {"completed", "failed"}

        until(have_ended, "all have ended", lambda: f"{cli.step_statuses()} {list(asked)}{cli.logs()}", limit_s=400)

        assert set(asked) >= {"one acp.claude-code.edit", "worker code.write_file", *refused}
        assert "one\n" in asked["one acp.claude-code.edit"]
        assert (files["one.txt"].read_text(), files["worker.txt"].read_text()) == ("one\n", "worker")
        assert not files["ran"].exists()
        assert not files["no.txt"].exists()
        assert SECRET not in json.dumps(requests_of(address))
        shown = {step["id"]: step for step in cli.json("tasks", "show", cli.task_id())["steps"]}
        assert (shown["one"]["status"], shown["one"]["output"]) == ("completed", "I wrote it.")
        interrupted(up)


@pytest.mark.spec("ACP-01.c", "ACP-01.d", "DAG-09")
def test_claude_code_in_a_sandbox_goes_on_after_its_worker_was_killed_and_writes_once(
    cli: CliHarness, tmp_path: Path
) -> None:
    bubblewrap()
    file, folder = cli.folder / "kept.txt", tmp_path / "claude"
    write = call("Write", file_path=str(file), content="kept\n")
    fixtures = [
        {"match": {"userMessage": prompt, "hasToolResult": has_result}, "response": response}
        for prompt in ("WRITE-KEPT", "The connection to you was interrupted")
        for has_result, response in ((False, write), (True, {"content": "It is written."}))
    ]
    plan = "title: t\nsteps:\n  - {id: it, agent: 'acp:claude-code', instructions: WRITE-KEPT}\n"
    with aimock(aimock_program(), tmp_path, [*fixtures, {"match": {}, "response": {"content": "ok"}}]) as address:
        shown = [str(acp_modules()), str(Path(acp_node()).parents[1])]
        configure(cli, address, folder, f"[commands]\nsandbox = 'required'\nsandbox_read = {shown!r}")
        up = cli.up()
        cli.run("run", cli.plan(plan), "--approvals", "inbox", "--detach")
        until(lambda: EDIT in asked_now(cli, answers=RUN), "the write is asked", cli.logs, limit_s=200)
        programs = agents_of(folder)

        worker_of(cli).kill()

        assert programs
        psutil.wait_procs(programs, timeout=20)
        assert not agents_of(folder)
        assert not file.exists()
        until(lambda: bool(agents_of(folder)), "another worker has taken it up", cli.logs, limit_s=120)
        until(
            lambda: not asked_now(cli, answers=EDIT) and cli.step_statuses()["it"] in {"completed", "failed"},
            "it has ended",
            lambda: f"{cli.step_statuses()} {cli.logs()}",
            limit_s=200,
        )
        (ended,) = cli.json("tasks", "show", cli.task_id())["steps"]
        assert (ended["status"], ended["output"]) == ("completed", "It is written.")
        assert file.read_text() == "kept\n"
        assert json.dumps(requests_of(address)[-1]).count("File created successfully") == 1
        interrupted(up)


RUN, EDIT, EXECUTE = (f"acp.claude-code.{kind}" for kind in ("run", "edit", "execute"))


def asked_now(cli: CliHarness, answers: str) -> list[str]:
    """Return the tools that are asked for now; questions about one of them are answered with a yes."""
    asked = questions(cli)
    for request in asked:
        if request.tool == answers:
            cli.run("approvals", "allow", request.id)
    return [request.tool for request in asked]


def agents_of(folder: Path) -> list[psutil.Process]:
    """Return the living processes of the agent whose own folder this is."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_ours = process.environ().get("CLAUDE_CONFIG_DIR") == str(folder)
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


class Acpx:
    """The acpx program, with ``soong acp`` as its agent; what they say to each other is kept in a file."""

    def __init__(self, cli: CliHarness, home: Path, *flags: str) -> None:
        self.folder, self.flags, self.file = str(cli.folder), flags, home / "messages.jsonl"
        self.environment = {**cli.env, "PATH": f"{Path(acp_node()).parent}:{os.environ['PATH']}", "HOME": str(home)}

    def __call__(self, *words: str, **more: str) -> "subprocess.CompletedProcess[str]":
        """Run a command, with more variables."""
        program, recorded = acp_modules() / "acpx/dist/cli.js", (sys.executable, "-P", str(RECORDED), str(self.file))
        ours = shlex.join([*recorded, *CONSOLE_SCRIPT, "acp", "--model", PLANNER])
        self.file.write_text("")
        return subprocess.run(
            [acp_node(), str(program), *self.flags, "--format", "json", "--cwd", self.folder, "--agent", ours, *words],
            env={**self.environment, **more},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Return what was said since the last command began."""
        return [json.loads(line) for line in self.file.read_text().splitlines()]

    @property
    def told(self) -> list[str]:
        """Return the history that the agent has sent: texts of its user and of its own."""
        updates = [one["params"]["update"] for one in self.messages if one.get("method") == "session/update"]
        return [one["content"]["text"] for one in updates if one["sessionUpdate"].endswith("_message_chunk")]

    @property
    def methods(self) -> set[str]:
        return {one["method"] for one in self.messages if "method" in one}


@pytest.mark.spec("ACP-02.a", "ACP-02.b", "ACP-02.c")
@pytest.mark.parametrize(("flag", "is_written"), [("--approve-all", True), ("--deny-all", False)])
def test_acpx_shows_the_plan_and_its_answer_comes_back(
    cli: CliHarness, wires: Wires, tmp_path: Path, flag: str, is_written: bool
) -> None:
    wires.will(*writing("note.txt"))
    acpx = Acpx(cli, tmp_path, flag)

    done = acpx("exec", "Write a note.")
    listed = acpx("sessions", "list")

    assert "note: Write it" in done.stdout, f"{done.stdout}\n{done.stderr}"
    assert "Allow for this session: code.write_file on" in done.stdout
    assert (cli.folder / "note.txt").exists() is is_written
    sessions = re.findall(r"sess_[0-9a-v]{26}", listed.stdout)
    assert len(set(sessions)) == 1, f"{listed.stdout}\n{listed.stderr}"
    assert sessions[0] in done.stdout
    assert "Write a note." in listed.stdout


@pytest.mark.spec("ACP-02.c")
def test_acpx_resumes_a_session_without_its_history_and_loads_it_with_it(
    cli: CliHarness, wires: Wires, tmp_path: Path
) -> None:
    wires.will(planner(text="It is 42."), planner(text="I said 42."))
    acpx = Acpx(cli, tmp_path, "--ttl", "1")
    (session,) = set(re.findall(r"sess_[0-9a-v]{26}", acpx("exec", "What is it?").stdout))

    acpx("sessions", "new", "--resume-session", session)
    assert ("session/resume" in acpx.methods, acpx.told) == (True, [])
    acpx("sessions", "new", "--resume-session", session, NO_RESUME="1")
    assert ("session/load" in acpx.methods, acpx.told) == (True, ["What is it?", "It is 42."])
    said = acpx("prompt", "What did you say?")
    assert "".join(acpx.told) == "I said 42.", f"{said.stdout}\n{said.stderr}"
    assert "It is 42." in str(wires.requests[-1]), "the conversation continues"
    until(lambda: not living(acpx.environment["HOME"]), "acpx has ended what it started", lambda: said.stderr)


def living(home: str) -> list[psutil.Process]:
    """Return the processes whose home this is."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("HOME") == home and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
