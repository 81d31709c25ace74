"""A command that hands its connection on and ends leaves no rights to the next process with its id (PER-13)."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spec_document import ROOT

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
