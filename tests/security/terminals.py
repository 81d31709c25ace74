"""Commands on a pseudo terminal, and what reaches it."""

import os
import pty
import re
import subprocess
import sys
import tty
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.warm import ROOT, WarmProcess, warm_parent

LIMIT_S = 60.0
COLOURS = re.compile(r"\x1b\[[0-9;]*m")

ATTACK = (
    "\x1b]52;c;cm0gLXJmIH4=\x07"  # fills the clipboard
    "\x1b]0;title\x1b\\\x1b[2J\x1bc\b\r"  # retitles, clears, resets
    "\x9b31m\x9d0;title\x9c\x85"  # the same by C1 controls
    "\u202egpj.exe\u2066\u061c"  # turns the reading direction around
    "\u200b\u3164\u2800\U0001d159\U000e0041\ufe0f"  # shows nothing
)
OBEYED = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe0f\U0001d159\U000e0041]"
)
"""What no terminal may get but as a colour of ours; line feeds and tabs are no attack."""


@dataclass(frozen=True)
class Shown:
    """What a command wrote to its terminal, byte by byte, and its exit code."""

    code: int
    text: str

    @property
    def obeyed(self) -> set[str]:
        """Characters that the terminal obeys or hides."""
        return set(OBEYED.findall(COLOURS.sub("", self.text)))


def run_on_terminal(script: str, *, env: Mapping[str, str], cwd: Path) -> Shown:
    """Run a Python script of ours in the same way."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    command = [sys.executable, script]
    folder = {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env={**env, **folder}, cwd=cwd, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        return Shown(*_heard(ours, process))


def on_terminal(arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> Shown:
    """Run ``soong`` with both outputs on a terminal that passes bytes through."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)  # no carriage returns of the line discipline
    process = warm_parent().start("soong.orchestrator.cli", arguments, env=env, cwd=cwd, stdout=theirs, stderr=theirs)
    os.close(theirs)
    return Shown(*_heard(ours, process))


def _heard(descriptor: int, process: "WarmProcess | subprocess.Popen[bytes]") -> tuple[int, str]:
    said = bytearray()
    try:
        while piece := _read(descriptor):
            said += piece
        return process.wait(LIMIT_S), said.decode()
    finally:
        process.kill()
        os.close(descriptor)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # EIO: nobody has the other end any more
        return b""
