"""The servers that other tests stand on."""

import subprocess
import sys
from pathlib import Path

import psutil
import psycopg
import redis

from tests.servers import RedisServer, redis_server

_HOLDS_SERVER = """
import sys
from tests.servers import redis_server
with redis_server() as server:
    print(server.socket_path, flush=True)
    sys.stdin.read()
"""


def test_redis_answers_on_both_addresses(redis_live: RedisServer) -> None:
    over_socket = redis.Redis.from_url(redis_live.socket_url)
    over_tcp = redis.Redis.from_url(redis_live.tcp_url)

    over_socket.set("written", "here")

    assert over_tcp.get("written") == b"here"
    over_socket.close()
    over_tcp.close()


def test_each_test_gets_an_empty_postgresql_18(postgres_url: str) -> None:
    with psycopg.connect(postgres_url.replace("+psycopg", "")) as connection:
        tables = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
        version = connection.execute("SHOW server_version_num").fetchone()

    assert tables == (0,)
    assert version is not None
    assert version[0].startswith("18")


def test_a_stopped_server_leaves_no_folder() -> None:
    with redis_server() as server:
        folder = server.socket_path.parent

    assert not folder.exists()


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
