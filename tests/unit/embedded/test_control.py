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


async def until_attached(server: ControlServer, count: int) -> None:
    async with asyncio.timeout(5):
        while server.attached != count:
            server.changed.clear()
            await server.changed.wait()


async def test_hello_says_who_answers_and_attaches_nobody(server: ControlServer) -> None:
    answer = await ask_once(server.path, "hello")

    assert (answer["ok"], answer["pid"], server.attached) == (True, 7, 0)


async def test_a_client_is_attached_until_its_connection_ends(server: ControlServer) -> None:
    client = await ControlClient.open(server.path)
    assert (await client.ask("attach"))["ok"] is True
    assert server.attached == 1

    await client.close()

    await until_attached(server, 0)


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


async def test_a_service_that_stops_says_farewell(server: ControlServer) -> None:
    client = await ControlClient.open(server.path)
    await client.ask("attach")

    await server.refuse(ShutdownState.STOPPING)
    await server.close()

    assert await client.ended() is ShutdownState.STOPPING
    await client.close()


async def test_a_service_that_dies_says_nothing(server: ControlServer) -> None:
    client = await ControlClient.open(server.path)
    await client.ask("attach")

    await server.close()

    assert await client.ended() is ShutdownState.DIED
    await client.close()


async def test_nonsense_ends_the_connection_and_nothing_else(server: ControlServer) -> None:
    reader, writer = await asyncio.open_unix_connection(str(server.path))
    writer.write(b"GET / HTTP/1.1\r\n\r\n")

    assert await reader.read() == b""

    writer.close()
    assert (await ask_once(server.path, "hello"))["ok"] is True


async def test_an_unknown_operation_is_refused_by_name(server: ControlServer) -> None:
    assert (await ask_once(server.path, "dance"))["problem"] == "unknown operation 'dance'"


async def test_a_missing_socket_is_unavailable(folder: Path) -> None:
    with pytest.raises(UnavailableError, match="does not answer"):
        await ask_once(folder / "nobody.sock", "hello")
