"""A service that is started before its command knows that one is needed.

A service imports for two seconds of CPU on a slow machine, and its command reads and checks a plan for half a second
before that, the models of it for three more. So the command starts the process first. It imports and **waits for an
order**: it makes no folder, no file and no connection until the command has found the plan to be good. A command that
ends without an order, however it ends, takes the process with it
(docs/decisions/0047-a-service-imports-while-a-plan-is-read.md).

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

_early: list["subprocess.Popen[bytes]"] = []
"""The process that waits for this command's order, if there is one."""


@contextmanager
def early_start(home: Path, *, is_wanted: bool = True) -> Iterator[None]:
    """Have a process wait to become the service of this home by :func:`order`, unless there may be one.

    ``is_wanted`` is what the command knows of it: with a deployment it starts no service.

    A process that got no order within the block is ended.
    """
    if is_wanted and not (_early or any(map(os.environ.get, DECIDES)) or (home / "service.json").exists()):
        with suppress(OSError):  # the start that is ordered later meets it again, and says what is wrong
            _early.append(_started())
    try:
        yield
    finally:
        drop()


def drop() -> None:
    """End the process that waits, if there is one: its command works with another service, or with none."""
    while _early:
        _end(_early.pop())


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


def import_also(modules: Sequence[str]) -> None:
    """Have the process that waits, if there is one, import these as well before it becomes anything."""
    for process in _early:
        with suppress(OSError):  # it has ended, as the order will find out
            _write(process, {"modules": [*modules]})


def order(
    arguments: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path
) -> "subprocess.Popen[bytes] | None":
    """Have the process that waits become ``soong ARGUMENTS``; None when none waits, or it has ended."""
    if not _early:
        return None
    process = _early.pop()
    words = {"arguments": [*arguments], "environment": {**environment}, "folder": str(folder), "log": str(log)}
    assert process.stdin is not None
    try:
        with process.stdin:
            _write(process, words)
    except OSError:
        _end(process)
        return None
    return process


def _write(process: "subprocess.Popen[bytes]", line: Mapping[str, object]) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{json.dumps(line)}\n".encode())
    process.stdin.flush()
