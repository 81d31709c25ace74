"""What an agent's process writes is taken with bounds, whatever it is (ACP-01)."""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from acp import schema

from soong.shared.agents.acp_agents import AcpAgent, OwnKind
from soong.shared.agents.definition import AgentLimits
from soong.shared.sandbox.command import CommandAccess
from soong.shared.sandbox.paths import PathPolicy
from soong.shared.tools.definition import ToolContext
from soong.worker.acp.calls import UsageMeter
from soong.worker.acp.connection import (
    MAX_GARBAGE_LINES,
    AgentConnection,
    AgentFailedError,
    AgentProgram,
    ProcessTransport,
)
from soong.worker.acp.own_tools import own_tools
from tests.unit.agents.test_charging import Purse
from tests.unit.tools.parts import echo, make_identity, make_run_dirs, make_tool
from tests.waiting import others_run


@dataclass
class PipedProcess:
    """A process of which only the output is there."""

    output: asyncio.StreamReader = field(default_factory=lambda: asyncio.StreamReader(limit=1000))
    last_errors: str = ""

    @property
    def input(self) -> asyncio.StreamWriter:
        raise AssertionError("nothing is written")

    def kill(self) -> None: ...

    async def end(self) -> None: ...


@dataclass
class Heard:
    transport: ProcessTransport
    process: PipedProcess
    problems: list[AgentFailedError]

    async def all(self, *lines: bytes) -> list[Any]:
        """Return the messages that these lines give."""
        for line in lines:
            self.process.output.feed_data(line)
        self.process.output.feed_eof()
        found = []
        while (message := await self.transport.receive()) is not None:
            found.append(message)
        return found


@pytest.fixture
async def heard() -> Heard:
    process, problems, room = PipedProcess(), list[AgentFailedError](), asyncio.Event()
    room.set()
    return Heard(ProcessTransport(cast(Any, process), lambda: None, problems.append, room), process, problems)


def message(**more: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": "m", **more}).encode() + b"\n"


@pytest.mark.spec("ACP-01.a")
async def test_lines_that_are_no_messages_are_passed_over_until_there_are_too_many(heard: Heard) -> None:
    garbage = [b"hello\n", b"\n", b"[1]\n", b"\xff\xfe\n", b"[" * 900 + b"\n", message(method=3), message(id=[1])]

    assert await heard.all(*garbage, message(id=1)) == [{"jsonrpc": "2.0", "method": "m", "id": 1}]
    assert not heard.problems


@pytest.mark.spec("ACP-01.a")
@pytest.mark.parametrize(
    ("lines", "says"),
    [([b"x\n"] * (MAX_GARBAGE_LINES + 1), "not messages"), ([b"x" * 2000 + b"\n"], "too long")],
    ids=["garbage", "a huge message"],
)
async def test_a_process_that_does_not_keep_to_the_protocol_ends_the_connection(
    heard: Heard, lines: list[bytes], says: str
) -> None:
    assert await heard.all(*lines, message()) == []
    (problem,) = heard.problems
    assert says in str(problem)


class AskingProcess(PipedProcess):
    """An agent that asks to read a file as soon as it is started, and remembers each line that it hears."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Any] = []

    @property
    def input(self) -> Any:
        return self

    def write(self, line: bytes) -> None:
        said = json.loads(line)
        self.heard.append(said.get("method", "an answer"))
        if said.get("method") == "initialize":
            read = {"sessionId": "s", "path": "/a"}
            self.output.feed_data(message(method="fs/read_text_file", id=7, params=read))
            result = json.dumps({"jsonrpc": "2.0", "id": said["id"], "result": {"protocolVersion": 1}})
            self.output.feed_data(result.encode() + b"\n")

    async def drain(self) -> None: ...


class SlowClient:
    """Answers a read when the test says so."""

    def __init__(self) -> None:
        self.room, self.asked, self.may_answer = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.room.set()

    def on_connect(self, conn: Any) -> None: ...

    async def read_text_file(self, **_: Any) -> schema.ReadTextFileResponse:
        self.asked.set()
        await self.may_answer.wait()
        return schema.ReadTextFileResponse(content="x")


@pytest.mark.spec("ACP-01.c", "PER-13")
@pytest.mark.parametrize("is_killed", [True, False])
async def test_an_agent_that_is_being_ended_hears_no_answer_that_it_would_remember(
    tmp_path: Path, is_killed: bool
) -> None:
    process, client = AskingProcess(), SlowClient()

    class Launcher:
        async def start(self, *_: object, **__: object) -> AskingProcess:
            return process

        def confinement(self, access: object) -> str:
            return ""

    agent, nothing = AcpAgent("a", ("a",)), lambda *_: None
    connection = AgentConnection(agent, client, Launcher(), nothing, nothing)  # type: ignore[arg-type]  # what it uses
    await connection.start(AgentProgram(("/a",), {}, tmp_path, CommandAccess()), schema.ClientCapabilities())
    await client.asked.wait()

    if is_killed:
        connection.kill()
    client.may_answer.set()
    await others_run(10)

    assert process.heard == ["initialize"] + ([] if is_killed else ["an answer"])
    await connection.close()


# -- what an agent of others is charged
@pytest.mark.spec("DIS-11.a", "ACP-01.c")
async def test_less_than_a_millionth_of_a_dollar_is_charged_as_one() -> None:
    purse = Purse()
    meter = UsageMeter(AgentLimits(), purse)
    await meter.begin(0)

    meter.tell(
        schema.UsageUpdate(session_update="usage_update", used=1, size=10, cost={"amount": 1e-7, "currency": "USD"})
    )
    await meter.charge(1)

    assert [charge.microusd for _, charge in purse.settled] == [1]


# -- what a call of another agent's own tool touches, as a question and the policy see it (ACP-01)
@pytest.mark.spec("ACP-01.b", "FS-07")
@pytest.mark.parametrize("kind", [OwnKind.READ, OwnKind.EDIT])
@pytest.mark.parametrize(("names", "expected"), [(("a", "b"), True), (("a", "../b"), False), (("../a", "b"), False)])
def test_a_call_over_several_files_is_inside_only_if_all_of_them_are(
    tmp_path: Path, kind: OwnKind, names: tuple[str, ...], expected: bool
) -> None:
    surface = [make_tool("code.read_file"), make_tool("code.write_file")]
    agent = AcpAgent("scripted", ("agent",))
    tools = {tool.name: tool for tool in own_tools(agent, surface, PathPolicy(), echo, echo)}
    (tmp_path / "project").mkdir()
    place = make_run_dirs(tmp_path / "project")
    context = ToolContext(make_identity(), place, "c", "e", 1, None)  # type: ignore[arg-type]  # no progress is made

    target = tools[agent.tool(kind)].target
    assert target is not None

    assert target(context, {"title": "x", "kind": kind.value, "paths": list(names)}).is_inside_roots is expected
