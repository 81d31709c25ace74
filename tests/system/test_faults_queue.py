"""What may lie on the queue besides our messages: bad input row 60, doubled and lost messages. Messages are hints."""

import base64
import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import redis as redis_client

from soong.shared.engine.wire.notifier import DISPATCH_TASK, queue_key
from tests.servers import RedisServer
from tests.system.deployment import ON_SQLITE, Deployment
from tests.system.faults.scene import prove, start_workers, waves

pytestmark = ON_SQLITE

QUEUE = queue_key("default")
NO_ARGUMENTS: tuple[list[Any], dict[str, Any], dict[str, Any]] = (["d"], {}, {})


class Bomb:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.touch, (self.path,)


def message(
    body: bytes | None = None, *, content_type: str = "application/json", task: str = DISPATCH_TASK, **headers: Any
) -> bytes:
    """Return a message as kombu would put it on the queue."""
    own = json.dumps(NO_ARGUMENTS).encode() if body is None else body
    return json.dumps(
        {
            "body": base64.b64encode(own).decode(),
            "content-encoding": headers.pop("encoding", "utf-8"),
            "content-type": content_type,
            "headers": {"lang": "py", "task": task, "id": "forged", "root_id": "forged", "retries": 0, **headers},
            "properties": {
                "delivery_info": {"exchange": "", "routing_key": "soong.default"},
                "delivery_tag": "forged",
                "body_encoding": "base64",
            },
        }
    ).encode()


def foreign(marker: Path) -> dict[str, bytes]:
    """Return messages that no part of ours sends."""
    huge = json.dumps([["x" * 50_000_000], {}, {}]).encode()
    bomb = gzip.compress(b"[" + b"0," * 20_000_000 + b"0]")
    return {
        "pickle": message(pickle.dumps(Bomb(marker)), content_type="application/x-python-serialize", encoding="binary"),
        "yaml": message(b"!!python/object/apply:os.getcwd []", content_type="application/x-yaml"),
        "gzip bomb": message(bomb, content_type="application/json", compression="application/x-gzip"),
        "not JSON in a message": message(b"\xff{"),
        "no JSON at all": b"\x80\x04\x95rubbish",
        "JSON that is no message": b"[1, 2]",
        "an empty one": b"",
        "an unknown task": message(task="os.system"),
        "another task of Celery": message(task="celery.backend_cleanup"),
        "wrong arguments": message(json.dumps([[1, 2, 3], {"a": 1}, {}]).encode()),
        "arguments of another kind": message(json.dumps([[{"deep": [None] * 10}], {}, {}]).encode()),
        "no arguments": message(b"null"),
        "fifty megabytes": message(huge),
        "negative retries": message(retries=-1),
        "in the year 9999": message(eta="9999-12-31T23:59:59+00:00"),
        "no time at all": message(eta="tomorrow", expires="never"),
        "a callback": message(json.dumps([["d"], {}, {"callbacks": [{"task": "os.system", "args": ["id"]}]}]).encode()),
    }


async def test_a_worker_bears_whatever_lies_on_its_queue(
    service: Deployment, redis_live: RedisServer, tmp_path: Path
) -> None:
    marker = tmp_path / "unpickled"
    with redis_client.Redis(unix_socket_path=str(redis_live.socket_path)) as queue:
        await start_workers(service, 1, slots=4)
        worker = service.workers[0]

        for name, body in foreign(marker).items():
            queue.lpush(QUEUE, body)
            await service.until(lambda: _is_drained(queue), within_s=20)
            assert worker.poll() is None, name

    await prove(service, await service.submit(waves(4, 3, 0.01)))
    assert not marker.exists()
    assert len(service.workers) == 1


async def test_doubled_and_lost_messages_change_nothing(service: Deployment, redis_live: RedisServer) -> None:
    with redis_client.Redis(unix_socket_path=str(redis_live.socket_path)) as queue:
        await start_workers(service, 2, slots=4)
        lost = await service.submit(waves(4, 4, 0.02))
        queue.delete(QUEUE)
        for _ in range(40):
            queue.lpush(QUEUE, message())
        doubled = await service.submit(waves(4, 4, 0.02))

        await prove(service, lost, doubled)


async def _is_drained(queue: "redis_client.Redis") -> bool:
    return bool(queue.llen(QUEUE) == 0)
