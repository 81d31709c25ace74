"""The servers that other tests stand on."""

import subprocess
import sys
from pathlib import Path

import psutil

_HOLDS_SERVER = """
import sys
from tests.servers import redis_server
with redis_server() as server:
    print(server.socket_path, flush=True)
    sys.stdin.read()
"""


def test_a_killed_starter_leaves_no_server() -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", _HOLDS_SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    socket_path = Path(starter.stdout.readline().strip())
    children = psutil.Process(starter.pid).children(recursive=True)
    assert [child for child in children if "redis-server" in child.name()]

    starter.kill()
    starter.communicate()

    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    assert not socket_path.parent.exists()
