"""What an agent's process writes is taken with bounds, whatever it is (ACP-01)."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from soong.worker.acp.transport import MAX_GARBAGE_LINES, AgentProtocolError, ProcessTransport


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
    problems: list[AgentProtocolError]

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
    process, problems, room = PipedProcess(), list[AgentProtocolError](), asyncio.Event()
    room.set()
    return Heard(ProcessTransport(process, lambda: None, problems.append, room), process, problems)


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
