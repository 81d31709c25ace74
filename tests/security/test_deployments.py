"""What a form of deployment holds and what it does not, as docs/security.md names it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spec_document import ROOT
from tests.unit.toolsets.commands import make_commands

WRITE = "import sys; open(sys.argv[1], 'a').write(sys.argv[2])"


@pytest.mark.spec("OPS-12")
@pytest.mark.parametrize("name", ["config.toml", "signing.key", "soong.db", "tools/x.json"])
async def test_an_allowed_command_writes_what_its_user_may(tmp_path: Path, name: str) -> None:
    """In embedded mode one user owns everything, so consent is the only thing between a command and the home."""
    commands = make_commands(tmp_path)
    place = commands.outside / name
    place.parent.mkdir(exist_ok=True)
    place.write_text("ours\n")

    result = await commands.python(WRITE, str(place), "not ours\n")

    assert result.error is None
    assert len(commands.bench.gate.asked) == 1
    assert place.read_text() == "ours\nnot ours\n"


NAMESPACE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")


def can_unshare() -> bool:
    if not shutil.which("unshare"):
        return False
    script = "echo 50 > /proc/sys/kernel/ns_last_pid"
    return subprocess.run([*NAMESPACE, "sh", "-c", script], check=False, capture_output=True).returncode == 0


@pytest.mark.skipif(not can_unshare(), reason="no pid namespace that may choose its next process id")
@pytest.mark.spec("PER-13.b")
def test_a_reused_process_id_gets_nothing_of_a_connection(tmp_path: Path) -> None:
    program = [sys.executable, "-P", "-m", "tests.security.reused_peer", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    ended = subprocess.run(
        [*NAMESPACE, *program], check=False, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=120
    )

    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == {"stays": True, "gone": False, "reused": False}


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
