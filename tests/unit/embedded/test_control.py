"""The control socket: who is attached, and how the end of a service is told from its death."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from soong.orchestrator.embedded.control import ControlClient, ControlServer, ShutdownState, ask_once
from soong.shared.core.errors import UnavailableError


@pytest.fixture
def folder() -> Iterator[Path]:
    # Short: a unix socket's path has 107 bytes at most, and pytest's own folders can be long.
    path = Path(tempfile.mkdtemp(prefix="soong-c-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def server(folder: Path) -> AsyncIterator[ControlServer]:
    stopped = asyncio.Event()
    one = ControlServer(folder / "control.sock", lambda: {"state": "ready", "pid": 7}, stopped.set, lambda: False)
    await one.start()
    yield one
    await one.close()


async def test_attaching_twice_counts_once(server: ControlServer) -> None:
    client = await ControlClient.open(server.path)
    await client.ask("attach")

    assert (await client.ask("attach"))["ok"] is True

    assert server.attached == 1
    await client.close()


async def test_a_stopping_service_lets_nobody_attach(server: ControlServer) -> None:
    client = await ControlClient.open(server.path)
    assert (await client.ask("hello"))["ok"] is True

    await server.refuse(ShutdownState.STOPPING)

    assert (await client.reader.readline()).rstrip().endswith(b'"event": "stopping"}')
    with pytest.raises(UnavailableError):
        await ControlClient.open(server.path)
    await client.close()


async def test_a_service_that_dies_says_nothing(server: ControlServer) -> None:
    client = await ControlClient.open(server.path)
    await client.ask("attach")

    await server.close()

    assert await client.ended() is ShutdownState.DIED
    await client.close()


async def test_an_unknown_operation_is_refused_by_name(server: ControlServer) -> None:
    assert (await ask_once(server.path, "dance"))["problem"] == "unknown operation 'dance'"
