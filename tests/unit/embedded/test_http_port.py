"""The port of the HTTP API after a service was killed: the new service waits for it for a short time."""

import asyncio
import socket
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from soong.orchestrator.embedded.listening import PortHeldError, listen, listen_after_former
from soong.shared.core.settings import Settings
from tests.waiting import until


def settings_of(home: Path, listener: socket.socket) -> Settings:
    return Settings(agent_home=home, http_port=listener.getsockname()[1])


async def test_the_port_of_a_former_child_is_waited_for(tmp_path: Path) -> None:
    listener = listen("127.0.0.1", 0, ())
    with capture_logs() as logged:
        waiting = asyncio.create_task(listen_after_former(settings_of(tmp_path, listener)))
        await until(lambda: bool(logged))

    assert [one["event"] for one in logged] == ["http_port_awaited"]
    assert not waiting.done()
    listener.close()
    (await waiting).close()


async def test_the_port_of_another_program_is_refused_after_a_while(tmp_path: Path) -> None:
    listener = listen("127.0.0.1", 0, ())

    with pytest.raises(PortHeldError, match="another program listens there; end that program, or choose another port"):
        await listen_after_former(settings_of(tmp_path, listener), limit_s=0.0)

    listener.close()
