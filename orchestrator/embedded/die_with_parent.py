"""Runs a program that must not outlive its starter: ``python -P -m soong.orchestrator.embedded.die_with_parent
PARENT PROGRAM ARG…``.

On Linux the process asks the kernel to be killed when its parent dies and then becomes the program, so the program has
the pid that the supervisor knows. Elsewhere it stays as the program's parent and watches its own.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1
WATCH_EVERY_S = 0.25


def command(program: Sequence[str]) -> list[str]:
    """Return the argv that runs ``program`` so that it dies with this process."""
    # By path and isolated: neither the current folder nor PYTHONPATH decides what is imported, and start-up is short.
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *program]


def main(arguments: Sequence[str]) -> int:
    parent, program = int(arguments[0]), list(arguments[1:])
    if os.uname().sysname == "Linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            return 1  # it died before the kernel was asked
        os.execv(program[0], program)  # noqa: S606  # an argv, no shell
    return watch(parent, program)


def watch(parent: int, program: Sequence[str]) -> int:
    """Run the program as a child; kill it when ``parent`` is no longer ours. For systems without PDEATHSIG."""
    child = subprocess.Popen(list(program))
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while child.poll() is None:
        if os.getppid() != parent:
            child.kill()
        time.sleep(WATCH_EVERY_S)
    return child.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
