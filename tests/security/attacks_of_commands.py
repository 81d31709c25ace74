"""What a hostile program tries: ``python attacks_of_commands.py JSON`` prints how each attempt ended."""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import pty
import socket
import sys
from collections.abc import Callable
from typing import Any

GIVEN: dict[str, Any] = json.loads(sys.argv[1]) if __name__ == "__main__" else {}
LIBC = ctypes.CDLL(None, use_errno=True)


def system_call(name: str, *arguments: int | bytes) -> None:
    if getattr(LIBC, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)


def write(path: str) -> None:
    with open(path, "w") as file:  # noqa: PTH123
        file.write("written")


def read(path: str) -> None:
    with open(path, "rb") as file:  # noqa: PTH123
        file.read(10)


def connect(family: int, address: Any) -> None:
    with socket.socket(family) as client:
        client.settimeout(5)
        client.connect(address)


def type_into_a_terminal() -> None:
    _, terminal = pty.openpty()
    fcntl.ioctl(terminal, 0x5412, b"x")


def see_foreign_processes() -> None:
    own = {name for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208
    if len(own) < 6:
        raise OSError(errno.ESRCH, "only its own")


def hold_foreign_descriptors() -> None:
    kept = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(FileNotFoundError):  # the one of the listing itself
            kept.append(os.readlink(f"/proc/self/fd/{name}"))  # noqa: PTH115
    if not [place for place in kept if not place.startswith(("pipe:", "/dev/null", "/memfd:stdin"))]:
        raise OSError(errno.EBADF, "only the standard three")


def gain_rights() -> None:
    with open("/proc/self/status") as file:  # noqa: PTH123
        if "NoNewPrivs:\t1" in file.read():
            raise OSError(errno.EPERM, "no new privileges")


ATTEMPTS: dict[str, Callable[[], None]] = {
    "write beside the roots": lambda: write(GIVEN["outside"] + "/planted"),
    "overwrite beside the roots": lambda: write(GIVEN["outside"] + "/kept"),
    "write through a link of the project": lambda: write("link/planted"),
    "read a private key": lambda: read(GIVEN["home"] + "/.ssh/id_ed25519"),
    "read the signing key": lambda: read(GIVEN["soong"] + "/signing.key"),
    "read the database": lambda: read(GIVEN["soong"] + "/soong.db"),
    "read what a rule denies": lambda: read("denied/secret"),
    "read another user's passwords": lambda: read("/etc/shadow"),
    "read a file beside the roots": lambda: read(GIVEN["outside"] + "/kept"),
    "connect to the loopback": lambda: connect(socket.AF_INET, ("127.0.0.1", GIVEN["port"])),
    "connect to a socket beside the roots": lambda: connect(socket.AF_UNIX, GIVEN["outside"] + "/s"),
    "connect to an abstract socket": lambda: connect(socket.AF_UNIX, "\0" + GIVEN["abstract"]),
    "read the worker's environment": lambda: read(f"/proc/{GIVEN['worker']}/environ"),
    "signal the worker": lambda: os.kill(GIVEN["worker"], 0),
    "trace the worker": lambda: system_call("ptrace", 0x4206, GIVEN["worker"], 0, 0),
    "see other processes": see_foreign_processes,
    "reach out by the first process": lambda: read(f"/proc/1/root{GIVEN['outside']}/kept"),
    "use inherited descriptors": hold_foreign_descriptors,
    "gain rights by a set-user-ID program": gain_rights,
    "make a user namespace": lambda: system_call("unshare", 0x10000000),
    "type into a terminal": type_into_a_terminal,
    "plant a git hook": lambda: write(".git/hooks/pre-commit"),
    "change the git configuration": lambda: write(".git/config"),
    "exchange the git folder": lambda: system_call("rename", b".git", b"git"),
    "change the MCP servers": lambda: write(".mcp.json"),
    "change a skill of the project": lambda: write(".soong/skills/SKILL.md"),
    "change a module of the worker": lambda: write("steps.py"),
    "write in the project": lambda: write("result.txt"),
    "write a temporary file": lambda: write("/tmp/soong-attack"),
    "write in the home": lambda: write(GIVEN["home"] + "/.profile"),
    "read a key in the project": lambda: read(".env"),
}


def outcome(attempt: Callable[[], None]) -> str:
    try:
        attempt()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    return "done"


if __name__ == "__main__":
    sys.stdout.write(json.dumps({name: outcome(attempt) for name, attempt in ATTEMPTS.items()}))
