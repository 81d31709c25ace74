"""``soong acp`` as an editor uses it: the SDK's client talks to the command, whose workers write (ACP-02)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import acp
import pytest
from acp import RequestError, schema
from llmock.scenarios import Delay, Match, Reply, ToolCall

from tests.system.cli_scene import CONSOLE_SCRIPT, CliHarness, until
from tests.waiting import others_run
from tests.wires.wire import Wires

SCENE = {"models": "openai-chat:gpt-*"}

PLANNER, WORKER = "openai-chat:gpt-5", "openai-chat:gpt-5-mini"
pytestmark = pytest.mark.timeout(240)


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
    command = [*CONSOLE_SCRIPT, "acp", "--model", PLANNER]
    async with acp.spawn_agent_process(
        ours,  # type: ignore[arg-type]  # no files, no terminals
        *command,
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


def planner(*calls: ToolCall, text: str = "") -> Reply:
    return Reply(**({"tool_calls": calls} if calls else {"text": text}), match=Match(model="gpt-5"))


def worker(*calls: ToolCall, text: str = "") -> Reply:
    return Reply(**({"tool_calls": calls} if calls else {"text": text}), match=Match(model="gpt-5-mini"))


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


@pytest.mark.spec("ACP-02.a")
async def test_a_cancelled_prompt_ends_and_the_next_one_begins_anew(cli: CliHarness, wires: Wires) -> None:
    wires.will(Delay(60.0, match=Match(model="gpt-5")), planner(text="never said"), planner(text="Hello."))
    async with editor(cli) as ours:
        session = await ours.conn.new_session(cwd=str(cli.folder), mcp_servers=[])
        asking = asyncio.create_task(ours.conn.prompt(session_id=session.session_id, prompt=[acp.text_block("Wait.")]))
        await others_run()  # it is sent first
        with pytest.raises(RequestError, match="Invalid request"):
            await ours.conn.prompt(session_id=session.session_id, prompt=[acp.text_block("At the same time.")])
        await asyncio.to_thread(until, cli.task_id, "the ask is there", cli.logs)

        await ours.conn.cancel(session_id=session.session_id)

        assert (await asking).stop_reason == "cancelled"


@pytest.mark.spec("ACP-02")
async def test_what_an_editor_gets_wrong_is_said(cli: CliHarness) -> None:
    async with editor(cli) as ours:
        with pytest.raises(RequestError) as relative:
            await ours.conn.new_session(cwd="here", mcp_servers=[])
        assert "is not an absolute path of a folder" in str(relative.value.data)
        with pytest.raises(RequestError) as unknown:
            await ours.conn.prompt(session_id="sess_x", prompt=[acp.text_block("x")])
        assert unknown.value.code == RequestError.resource_not_found().code
    assert not (cli.home / "service.json").exists(), "nothing was started for it"
    refused = cli.run("ask", "x", "--agent", "acp:codex", "--model", PLANNER)
    assert "does steps, and plans none" in refused.stderr
