"""Whether Bubblewrap works on this machine, found out once by running it: a kernel or container may refuse it.

The program is taken from the system's own folders only: a file that a run wrote would be no sandbox.
"""

import subprocess
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from soong.shared.core import timing
from soong.shared.core.value import Value
from soong.shared.sandbox.programs import programs_of_the_system

PROGRAM: Final = "bwrap"
INSTALL: Final = "install bubblewrap (Debian, Ubuntu: apt install bubblewrap; Fedora: dnf install bubblewrap)"
ISOLATION: Final = (
    *("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
    *("--proc", "/proc", "--ro-bind-try", "/proc/sys", "/proc/sys", "--dev", "/dev"),
)
"""No namespace of the host, no capability, its own processes and devices; the sandbox dies with its parent.

Files of /proc/sys belong to root, and a worker that is root is the same root inside; Bubblewrap leaves them writable.
"""


class BubblewrapProbe(Value):
    """What was found. ``problem`` is empty where it works."""

    program: Path | None = None
    problem: str = ""
    hint: str = ""
    binds_descriptors: bool = False
    """It mounts what a descriptor is open on, so that no exchanged link can put another folder in its place."""

    @property
    def works(self) -> bool:
        return not self.problem


@lru_cache(maxsize=1)
def probe() -> BubblewrapProbe:
    """Look for it and try it; blocks for some ten milliseconds the first time."""
    found = programs_of_the_system(PROGRAM)
    if not found:
        return BubblewrapProbe(problem="there is no bwrap program in the folders of the system", hint=INSTALL)
    program = found[0]
    trial = (str(program), "--ro-bind", "/", "/", *ISOLATION, "--", "/bin/true")
    try:
        tried, known = _said(trial), _said((str(program), "--help"))
    except (OSError, subprocess.TimeoutExpired) as error:
        return BubblewrapProbe(program, f"{program} cannot be run: {error}", INSTALL)
    if tried.returncode != 0:
        words = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
        hint = "allow unprivileged user namespaces here (in a container: docs/reference/sandbox.md has the options)"
        return BubblewrapProbe(program, f"{program} does not work here: {words}", hint)
    return BubblewrapProbe(program, binds_descriptors="--bind-fd" in known.stdout + known.stderr)


def _said(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=timing.EXCHANGE_LIMIT_S,
        check=False,
        env={},
        stdin=subprocess.DEVNULL,
    )
