"""A service that is started before its command knows that one is needed.

A service imports for two seconds of CPU on a slow machine, and its command reads and checks a plan for half a second
before that. So the command starts the process first. It imports and **waits for an order**: it makes no folder, no file
and no connection until the command has found the plan to be good. A command that ends without an order, however it
ends, takes the process with it (docs/decisions/0047-a-service-imports-while-a-plan-is-read.md).

It takes the standard library only: what else a command needs is imported while this one runs.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

MODULE: Final = "soong.orchestrator.cli.early"
DECIDES: Final = ("PYTHONPATH", "SOONG_DATABASE_URL", "SOONG_DATABASE_URL_FILE")
"""With the first the folders of a service depend on its settings; with the others there is a deployment."""

_waiting: list["subprocess.Popen[bytes]"] = []
"""The process that waits for this command's order, if there is one."""


@contextmanager
def begun(home: Path) -> Iterator[None]:
    """Have a process wait to become the service of this home by :func:`order`, unless there may be one.

    A process that got no order within the block is ended.
    """
    if not (_waiting or any(map(os.environ.get, DECIDES)) or (home / "service.json").exists()):
        with suppress(OSError):  # the start that is ordered later meets it again, and says what is wrong
            _waiting.append(_started())
    try:
        yield
    finally:
        while _waiting:
            _end(_waiting.pop())


def _started() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE, "up", "--ephemeral"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    assert process.stdin is not None
    with suppress(OSError):  # what it did not read is lost
        process.stdin.close()


def order(
    arguments: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path
) -> "subprocess.Popen[bytes] | None":
    """Have the process that waits become ``soong ARGUMENTS``; None when none waits, or it has ended."""
    if not _waiting:
        return None
    process = _waiting.pop()
    text = json.dumps(
        {
            "arguments": [*arguments],
            "environment": {**environment},
            "folder": str(folder),
            "log": str(log),
        }
    )
    assert process.stdin is not None
    try:
        with process.stdin as pipe:
            pipe.write(f"{text}\n".encode())
    except OSError:
        _end(process)
        return None
    return process
