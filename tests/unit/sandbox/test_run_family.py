"""The mark of a run's processes, and the chain of ancestors (PER-13)."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence

import psutil
import pytest

from soong.shared.sandbox.family import HAS_MARK, MOST_PROGRAM_CHARS, RegisteredWorker, chain_of, is_marked, own_chain

pytestmark = [
    pytest.mark.spec("PER-13.h"),
    pytest.mark.skipif(not HAS_MARK, reason="the kernel of this system has no mark to inherit"),
]

NOBODY = 65_534

MARKED = "from soong.shared.sandbox.family import *; assert mark_family(); assert is_marked()\n"
LOCKS = "import os, resource; LOCKS = 10; FREE = resource.RLIM_INFINITY\n"


def python(code: str, *arguments: str, user: int | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, user=user, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_process_that_nothing_marked_is_no_run() -> None:
    chain = own_chain()

    assert not is_marked()
    assert chain[0].pid == os.getpid()
    assert [process.pid for process in chain[1:]] == [process.pid for process in psutil.Process().parents()]
    assert not any(process.is_run for process in chain)
    assert all(0 < len(process.program) <= MOST_PROGRAM_CHARS for process in chain)


def test_a_mark_stays_over_fork_exec_and_a_new_session() -> None:
    code = MARKED + (
        "import subprocess, sys\n"
        "child = [sys.executable, '-c', 'from soong.shared.sandbox.family import is_marked; print(is_marked())']\n"
        "print(subprocess.check_output(child, start_new_session=True, env={}).decode())"
    )

    assert python(code).strip() == "True"


def test_a_marked_process_shows_in_the_chain_of_its_descendants() -> None:
    code = MARKED + (
        "import json, os\n"
        "read, write = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.write(write, json.dumps([[one.pid, one.is_run] for one in own_chain()]).encode()); os._exit(0)\n"
        "os.wait(); print(os.getpid(), os.read(read, 65536).decode())"
    )

    pid, _, text = python(code).partition(" ")
    chain: Sequence[tuple[int, bool]] = [tuple(one) for one in json.loads(text)]

    assert chain[1] == (int(pid), True)
    assert [is_run for _, is_run in chain][:3] == [True, True, False]


@pytest.mark.skipif(os.geteuid() != 0, reason="root gives up its rights to see that others have none")
def test_a_process_without_privilege_cannot_take_its_mark_away() -> None:
    """Raised, lifted, lowered first: the hard limit only ever goes down."""
    code = LOCKS + (
        "resource.setrlimit(LOCKS, (1 << 62, 1 << 62))\n"
        f"os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        "for limit in (FREE, (1 << 62) + 1):\n"
        "    try:\n"
        "        resource.setrlimit(LOCKS, (limit, limit)); print('taken away')\n"
        "    except (ValueError, OSError):\n"
        "        pass\n"
        "resource.setrlimit(LOCKS, (1, 1))\n"
        "print(resource.getrlimit(LOCKS)[1] != FREE)"
    )

    assert python(code).split() == ["True"]


def test_the_mark_limits_nothing() -> None:
    code = LOCKS + (
        "import fcntl, tempfile\n"
        "resource.setrlimit(LOCKS, (1, 1))\n"
        "files = [tempfile.TemporaryFile() for _ in range(20)]\n"
        "for file in files: fcntl.flock(file, fcntl.LOCK_EX); fcntl.lockf(file, fcntl.LOCK_EX)\n"
        "print('all locked')"
    )

    assert python(code).strip() == "all locked"


def test_a_worker_by_its_row_is_a_run_and_a_later_process_with_its_number_is_none() -> None:
    started_us = round(psutil.Process(os.getppid()).create_time() * 1_000_000)
    registered = RegisteredWorker(os.getppid(), time.time_ns() // 1000)
    ended = RegisteredWorker(os.getppid(), started_us - 60_000_000)

    assert [process.is_run for process in chain_of(os.getpid(), [registered])][:2] == [False, True]
    assert not any(process.is_run for process in chain_of(os.getpid(), [ended]))


def test_a_process_that_has_ended_has_no_chain() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()

    assert chain_of(child.pid) == ()
