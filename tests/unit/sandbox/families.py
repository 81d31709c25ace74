"""Programs with awkward families, and ways to see that nobody of them is left."""

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil

from soong.shared.sandbox.command import ChildCommand
from tests.waiting import until, wait_until

DOUBLE_FORK = """
import os, sys, time
def note(name):
    open(os.path.join(sys.argv[1], name + '.tmp'), 'w').write(str(os.getpid()))
    os.rename(os.path.join(sys.argv[1], name + '.tmp'), os.path.join(sys.argv[1], name + '.pid'))
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        note('orphan'); time.sleep(300)
    os._exit(0)
os.wait()
if os.fork() == 0:
    os.setsid(); note('session'); time.sleep(300)
if os.fork() == 0:
    note('child'); time.sleep(300)
note('program')
while len([n for n in os.listdir(sys.argv[1]) if n.endswith('.pid')]) < 4: time.sleep(0.01)
print('ready', flush=True)
"""
"""Starts a child, a child in a session of its own and an orphan in yet another, says ``ready`` and ends."""

STAYING = DOUBLE_FORK + "time.sleep(300)\n"
"""The same, but does not end."""


def command(folder: int, tmp_path: Path, *argv: str, **overrides: Any) -> ChildCommand:
    options: dict[str, Any] = {"timeout": timedelta(seconds=30), "max_stdout_bytes": 1_000_000, "env": {}, **overrides}
    return ChildCommand(argv, folder, tmp_path, **options)


def python(folder: int, tmp_path: Path, code: str, *arguments: str, **overrides: Any) -> ChildCommand:
    return command(folder, tmp_path, sys.executable, "-I", "-S", "-c", code, *arguments, **overrides)


def pids(folder: Path) -> dict[str, int]:
    return {path.stem: int(path.read_text()) for path in folder.glob("*.pid")}


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def until_ended(pid: int, limit_s: float = 20) -> None:
    """Wait for the end of a process that nobody here waits for: its files are closed a moment before it has ended."""
    wait_until(lambda: not is_alive(pid), limit_s, f"the end of process {pid}")


async def all_gone(found: dict[str, int]) -> None:
    assert len(found) == 4, found
    try:
        await until(lambda: not any(map(is_alive, found.values())))
    finally:
        for pid in filter(is_alive, found.values()):
            os.kill(pid, 9)  # a failed test leaves nobody behind either
