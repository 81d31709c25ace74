"""Which part of a failure the sandbox caused, as far as the program's own last words tell.

A program says an error of the kernel in its own way, and the kernel does not say who refused. Only what cannot come
from elsewhere is named: a read-only place, a path that the sandbox does not show, a network that is not there. A
program that lies gains a wrong explanation of its own failure. Nothing outside is looked at for it: an answer about a
path would tell the program what exists.
"""

import re
from pathlib import Path
from typing import Final

from soong.shared.sandbox.bubblewrap.mounts import SandboxView

_READ_ONLY: Final = "Read-only file system"
_HIDDEN: Final = ("No such file or directory", "Permission denied", "ENOENT", "EACCES")
_NETWORK: Final = (
    "Network is unreachable",
    "Temporary failure in name resolution",
    "Could not resolve host",
    "could not resolve host",
    "Name or service not known",
    "ENETUNREACH",
    "EAI_AGAIN",
    "Network unreachable",
)
_PATH: Final = re.compile(r"(?:^|[\s'\"`(=:])(/[^\s'\"`():,;]+)")
_LAST_LINES: Final = 20


def denial(words: str, view: SandboxView, *, has_network: bool) -> str:
    """Return what the sandbox refused, as one clause, or nothing."""
    for line in reversed(words.splitlines()[-_LAST_LINES:]):
        if _READ_ONLY in line:
            place = (_PATH.findall(line) or [""])[-1]
            return f"{place!r} is read-only in the sandbox" if place else "the place is read-only in the sandbox"
        if not has_network and any(sign in line for sign in _NETWORK):
            return "the sandbox has no network"
        if any(sign in line for sign in _HIDDEN):
            hidden = (path for path in _PATH.findall(line) if view.kind_at(Path(path)) in (None, "empty"))
            if place := next((path for path in hidden if not path.startswith(("/proc", "/dev"))), ""):
                return f"{place!r} is not visible in the sandbox"
    return ""
