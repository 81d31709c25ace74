"""A stream over the socket of the home: its end is told, and any other end of it is a service that has gone."""

import json
import socket
import threading
from pathlib import Path

import pytest

from soong.orchestrator.client.home_api import HomeApi, HomeUnreachableError

EVENT = b'id: 1\ndata: {"id": "1"}\n\n'
END = b"event: end\ndata: {}\n\n"


def answering(folder: Path, body: bytes) -> HomeApi:
    """Return the operations of a home whose service sends this stream once."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "api.sock"))
    listener.listen()
    (folder / "service.json").write_text(json.dumps({"control": str(folder / "control.sock")}))

    def answer() -> None:
        with listener, listener.accept()[0] as connection:
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + body)

    threading.Thread(target=answer, daemon=True).start()
    return HomeApi(folder)


async def test_a_stream_that_was_ended_is_complete(tmp_path: Path) -> None:
    events = answering(tmp_path, EVENT + END).stream("/v1/runs/run_1/stream")

    assert [event async for event in events] == [("", {"id": "1"})]


async def test_a_stream_that_breaks_off_is_no_end(tmp_path: Path) -> None:
    events = answering(tmp_path, EVENT).stream("/v1/runs/run_1/stream")

    assert await anext(events) == ("", {"id": "1"})
    with pytest.raises(HomeUnreachableError):
        await anext(events)
