"""The port of the HTTP API after a service was killed: a former child is waited for, another program is not."""

import asyncio
import os
import socket
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from soong.orchestrator.embedded.listening import (
    HttpLock,
    PortHeldError,
    former_child,
    listen,
    listen_after_former,
    sign,
)
from soong.shared.core.settings import Settings
from tests.waiting import until


def settings_of(home: Path, listener: socket.socket) -> Settings:
    return Settings(agent_home=home, http_port=listener.getsockname()[1])


async def test_the_port_of_a_former_child_is_waited_for(tmp_path: Path) -> None:
    former, listener = HttpLock(tmp_path), listen("127.0.0.1", 0, ())
    with capture_logs() as logged:
        waiting = asyncio.create_task(listen_after_former(settings_of(tmp_path, listener)))
        await until(lambda: bool(logged))

    assert [one["event"] for one in logged] == ["http_port_awaited"]
    assert not waiting.done()
    listener.close()
    former.close()
    (await waiting).close()


async def test_a_former_child_that_does_not_leave_is_named(tmp_path: Path) -> None:
    former, listener = HttpLock(tmp_path), listen("127.0.0.1", 0, ())
    sign(former.descriptor)

    with pytest.raises(PortHeldError, match=f"process {os.getpid()}, the HTTP API of a former service of"):
        await listen_after_former(settings_of(tmp_path, listener), limit_s=0.0)

    listener.close()
    former.close()


async def test_the_port_of_another_program_is_not_waited_for(tmp_path: Path) -> None:
    listener = listen("127.0.0.1", 0, ())

    with pytest.raises(PortHeldError, match="another program listens there; end that program, or choose another port"):
        await listen_after_former(settings_of(tmp_path, listener))

    listener.close()


def test_the_lock_is_held_until_the_last_process_that_has_it_ends(tmp_path: Path) -> None:
    lock = HttpLock(tmp_path)
    inherited = os.dup(lock.descriptor)

    lock.close()
    assert former_child(tmp_path) is not None
    os.close(inherited)

    assert former_child(tmp_path) is None
