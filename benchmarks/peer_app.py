"""The peer: a bare Celery application whose tasks do nothing but tell that they ran. Nothing is durable.

Settings are Celery's own defaults; only the task whose result somebody waits for has one. ``python -P -m
benchmarks.peer_app URL POOL CONCURRENCY NUMBER`` is the ``NUMBER``-th of its workers.
"""

import sys
from urllib.parse import urlsplit

import redis
from celery import Celery

PROCESSES = 2


def counter_of(queue: str) -> tuple[str, str]:
    """Return the keys by which the tasks of a queue count and tell their end."""
    return f"{queue}:count", f"{queue}:done"


def make_app(redis_url: str, queue: str) -> Celery:
    """Build the application of both sides; each peer has a queue of its own."""
    path = urlsplit(redis_url).path
    where = {"broker": f"redis+socket://{path}", "backend": f"redis+socket://{path}"}
    app = Celery("benchmark_peer", set_as_current=False, **where)
    app.conf.update(task_default_queue=queue, broker_connection_retry_on_startup=True)
    client = redis.Redis.from_url(redis_url)
    counter, done = counter_of(queue)

    @app.task(name="count", ignore_result=True)
    def count(target: int) -> None:
        if client.incr(counter) == target:
            client.rpush(done, 1)

    @app.task(name="hop", ignore_result=True)
    def hop(hops_left: int) -> None:
        if hops_left > 1:
            hop.delay(hops_left - 1)
        else:
            client.rpush(done, 1)

    @app.task(name="answer")
    def answer(value: int) -> int:
        return value

    return app


def main(redis_url: str, queue: str, pool: str, concurrency: str, number: str) -> int:
    app = make_app(redis_url, queue)
    options = ["worker", "--pool", pool, "--concurrency", concurrency, "--loglevel", "WARNING"]
    app.worker_main([*options, "--queues", queue, "--hostname", f"peer-{number}@{queue}"])
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
