"""The peer: a bare Celery application whose tasks do nothing but tell that they ran. Nothing is durable.

Settings are Celery's own defaults but for the result, which nobody wants. ``python -P -m benchmarks.peer_app URL`` is
its worker: prefork, two processes unless a number follows.
"""

import sys
from urllib.parse import urlsplit

import redis
from celery import Celery

QUEUE = "benchmark-peer"
COUNTER = "benchmark-peer:count"
DONE = "benchmark-peer:done"
PROCESSES = 2


def make_app(redis_url: str) -> Celery:
    """Build the application of both sides."""
    socket_path = urlsplit(redis_url).path
    app = Celery("benchmark_peer", broker=f"redis+socket://{socket_path}", set_as_current=False)
    app.conf.update(task_ignore_result=True, task_default_queue=QUEUE, broker_connection_retry_on_startup=True)
    client = redis.Redis.from_url(redis_url)

    @app.task(name="count")
    def count(target: int) -> None:
        if client.incr(COUNTER) == target:
            client.rpush(DONE, 1)

    @app.task(name="hop")
    def hop(hops_left: int) -> None:
        if hops_left > 1:
            hop.delay(hops_left - 1)
        else:
            client.rpush(DONE, 1)

    return app


def main(redis_url: str, processes: int = PROCESSES) -> int:
    app = make_app(redis_url)
    options = ["worker", "--pool", "prefork", "--concurrency", str(processes), "--loglevel", "WARNING"]
    app.worker_main([*options, "--queues", QUEUE, "--hostname", "peer@benchmark"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
