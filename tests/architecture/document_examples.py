"""The examples of a document, run as a reader would: files are written, commands typed, outputs compared.

A section (``##``) is one sitting in a home of its own. ``<!-- file: ~/PATH -->`` before a fenced block writes the block
to that file; of a ``console`` block each line that begins with ``$`` is typed into one shell, and the lines after it
are what it says. In those, ``…`` stands for any text, and alone on a line for any lines.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.warm import warm_program

_FENCE = re.compile(
    r"(?:<!-- file: (?P<path>\S+) -->\n)?```(?P<language>\w*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE
)
_MARK = "--- end of output ---"
_LIMIT_S = 120
PROGRAMS = Path(sys.executable).parent
SHOWN_HOME = "/home/ada"
"""What a document calls the home that a sitting really has."""


@dataclass(frozen=True, slots=True)
class Command:
    """A typed line and what it is said to answer."""

    line: str
    expected: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sitting:
    """A section with something to run."""

    title: str
    files: tuple[tuple[str, str], ...] = ()
    commands: tuple[Command, ...] = ()


@dataclass(slots=True)
class _Reading:
    files: list[tuple[str, str]] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)


def sittings(text: str) -> Iterator[Sitting]:
    """Yield the sections of a document that have commands, in order."""
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        reading = _Reading()
        for block in _FENCE.finditer(body):
            if block["path"]:
                reading.files.append((block["path"], block["body"]))
            elif block["language"] == "console":
                reading.commands += _commands(block["body"])
        if reading.commands:
            yield Sitting(title, tuple(reading.files), tuple(reading.commands))


def files(text: str) -> Iterator[tuple[str, str]]:
    """Yield each file that a document shows: its path and its content."""
    for block in _FENCE.finditer(text):
        if block["path"]:
            yield block["path"], block["body"]


def perform_warm(sitting: Sitting, home: Path) -> list[tuple[Command, list[str]]]:
    """Do a sitting, with its commands of ours forked."""
    return perform(sitting, home, warm_program(home / "warm").parent, PROGRAMS)


def perform(sitting: Sitting, home: Path, *programs: Path) -> list[tuple[Command, list[str]]]:
    """Do a sitting in a home; return what each command really said, on either stream.

    ``programs`` are the folders in which the shell finds ours.
    """
    home.mkdir(exist_ok=True)
    for name, body in sitting.files:
        path = home / name.removeprefix("~/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body.replace(SHOWN_HOME, str(home)), encoding="utf-8")
    project = home / "project"
    project.mkdir(exist_ok=True)
    script = "\n".join(
        f"{{ {command.line.replace(SHOWN_HOME, str(home))}\n}} 2>&1\necho; echo '{_MARK}'"
        for command in sitting.commands
    )
    search = ":".join([*map(str, programs or [PROGRAMS]), os.defpath])
    done = subprocess.run(
        ["/bin/bash", "--norc", "-c", script],
        cwd=project,
        env={"PATH": search, "HOME": str(home), "TERM": "dumb", "COLUMNS": "120"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    said = done.stdout.replace(str(home), SHOWN_HOME).split(f"\n{_MARK}\n")
    return [(command, _lines(text)) for command, text in zip(sitting.commands, said, strict=False)]


def agrees(expected: Sequence[str], said: Sequence[str]) -> bool:
    """Say whether an output is what the document shows."""
    pattern = "\n".join(".*" if line.strip() == "…" else re.escape(line).replace("…", "[^\n]*") for line in expected)
    return re.fullmatch(pattern, "\n".join(said), re.DOTALL) is not None


def _commands(body: str) -> Iterator[Command]:
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        line, _, rest = part.partition("\n")
        while line.endswith("\\"):
            more, _, rest = rest.partition("\n")
            line = f"{line}\n{more}"
        yield Command(line, tuple(_lines(rest)))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]
