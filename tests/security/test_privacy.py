"""What a command can learn of the process that runs it."""

import os
import subprocess
import sys

import pytest

NOBODY = 65534

SERVICE = """
import os, subprocess, sys
{guard}
os.setgroups([]); os.setgid(65534); os.setuid(65534)
{late_guard}
done = subprocess.run(["/bin/cat", f"/proc/{{os.getpid()}}/environ"], capture_output=True, env={{}})
sys.stdout.buffer.write(done.stdout + done.stderr)
"""


def environment_seen_by_a_child(late_guard: str) -> bytes:
    code = SERVICE.format(
        guard="from soong.shared.sandbox.family import forbid_inspection",
        # The kernel forbids inspection by itself when a process changes its user; a service did that before its exec.
        late_guard=f"import ctypes; ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)\n{late_guard}",
    )
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env={**os.environ, "API_KEY": "canary-77aa"}, check=True
    ).stdout


@pytest.mark.spec("CMD-05")
@pytest.mark.skipif(not sys.platform.startswith("linux") or os.getuid() != 0, reason="has to become another user")
def test_a_child_cannot_read_the_environment_of_a_guarded_process() -> None:
    assert b"canary-77aa" in environment_seen_by_a_child("")

    seen = environment_seen_by_a_child("forbid_inspection()")

    assert b"canary-77aa" not in seen
    assert b"Permission denied" in seen


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="dumpable is Linux's")
def test_a_worker_forbids_inspection_before_it_does_anything_else() -> None:
    code = "import sys; sys.argv = ['worker', '--slots', 'none']\nimport ctypes, soong.worker.__main__ as w\n"
    code += "try: w.main()\nexcept SystemExit: pass\nprint(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "0\n"
