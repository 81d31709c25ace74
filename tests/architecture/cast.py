"""``make cast`` records the first minute with Soong in a real terminal, for README: docs/pictures/first-minute.svg.

A shell on a terminal of its own is typed into as a person would; what it shows is kept with its times as an asciicast
(version 2), which termtosvg draws as an animated SVG. Nothing is made up: also the question is asked and answered.
"""

import fcntl
import json
import os
import pty
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Any, Final

from tests.spec_document import ROOT

COLUMNS: Final = 100
ROWS: Final = 28
KEY_S: Final = 0.04
LIMIT_S: Final = 120.0
PROMPT: Final = b"$ "
QUESTION: Final = b"> \x1b[0m"
PROGRAM: Final = "def append(item, to=[]):\n    to.append(item)  # TODO: a new list for each call\n    return to\n"
TYPED: Final = (
    ("soong demo hello --input name=Ada", PROMPT),
    ("clear; soong demo audit --project src", QUESTION),
    ("1", PROMPT),
    ("clear; head -12 report.md; soong tasks list", PROMPT),
)
PICTURE: Final = ROOT / "docs" / "pictures" / "first-minute.svg"


def record(folder: Path) -> list[list[Any]]:
    """Type into a shell in this folder; return the events of an asciicast: seconds, "o", text."""
    pid, terminal = pty.fork()
    if pid == 0:
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.defpath}",
            "HOME": str(folder.parent),
            "PS1": "$ ",
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
        }
        os.chdir(folder)
        os.execve("/bin/bash", ["bash", "--norc", "--noprofile"], environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    events: list[list[Any]] = []
    began_s = time.monotonic()
    _read(terminal, events, began_s, PROMPT)
    for line, end in TYPED:
        for key in line:
            os.write(terminal, key.encode())
            _read(terminal, events, began_s)
            time.sleep(KEY_S)
        os.write(terminal, b"\n")
        _read(terminal, events, began_s, end)
        time.sleep(2.0)
    os.close(terminal)
    os.waitpid(pid, 0)
    return events


def _read(terminal: int, events: list[list[Any]], began_s: float, end: bytes = b"") -> None:
    """Keep what is shown, until it ends so; without an end what is there now. Raises: TimeoutError."""
    shown = b""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        if select.select([terminal], [], [], 0.3 if end else 0)[0]:
            data = os.read(terminal, 65536)
            shown += data
            events.append([round(time.monotonic() - began_s, 3), "o", data.decode(errors="replace")])
        elif shown.endswith(end):
            return
    raise TimeoutError(f"the terminal did not show {end!r}:\n{shown.decode(errors='replace')[-2000:]}")


def main() -> None:
    home = Path(tempfile.gettempdir()) / "ada"
    (home / "project" / "src").mkdir(parents=True)
    try:
        (home / "project" / "src" / "shop.py").write_text(PROGRAM)
        events = record(home / "project")
        head = {"version": 2, "width": COLUMNS, "height": ROWS}
        cast = home / "first-minute.cast"
        cast.write_text("\n".join(json.dumps(one) for one in (head, *events)) + "\n")
        draw = (
            sys.argv[1],
            "render",
            str(cast),
            str(PICTURE),
            "-M",
            "2500",
            "-m",
            "80",
            "-D",
            "4000",
            "-t",
            "window_frame",
        )
        subprocess.run(draw, check=True)
    finally:
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
