"""The peer: a bare Celery application whose tasks tell that they ran. Nothing is durable.

Tasks do nothing, or run an agent. Settings are Celery's own defaults; only the task whose result somebody waits for has
one. ``python -P -m benchmarks.peer_app URL QUEUE POOL CONCURRENCY NUMBER`` is the ``NUMBER``-th of its workers; with
``FOLDER`` at the end its tasks are agents that look into the folder.
"""

import sys
from collections.abc import Callable
from urllib.parse import urlsplit

import redis
from celery import Celery

PROCESSES = 2


def counter_of(queue: str) -> tuple[str, str]:
    """Return the keys by which the tasks of a queue count and tell their end."""
    return f"{queue}:count", f"{queue}:done"


def nothing(calls: int) -> None:
    """Do nothing, whatever an agent would do."""


def make_app(redis_url: str, queue: str, work: Callable[[int], None] = nothing) -> Celery:
    """Build the application of both sides; each peer has a queue of its own.

    A worker's tasks do ``work``, with the number of calls that they are sent.
    """
    path = urlsplit(redis_url).path
    where = {"broker": f"redis+socket://{path}", "backend": f"redis+socket://{path}"}
    app = Celery("benchmark_peer", set_as_current=False, **where)
    app.conf.update(task_default_queue=queue, broker_connection_retry_on_startup=True)
    client = redis.Redis.from_url(redis_url)
    counter, done = counter_of(queue)

    @app.task(name="count", ignore_result=True)
    def count(target: int, calls: int = 0) -> None:
        work(calls)
        if client.incr(counter) == target:
            client.rpush(done, 1)

    @app.task(name="hop", ignore_result=True)
    def hop(hops_left: int, calls: int = 0) -> None:
        work(calls)
        if hops_left > 1:
            hop.delay(hops_left - 1, calls)
        else:
            client.rpush(done, 1)

    @app.task(name="answer")
    def answer(value: int, calls: int = 0) -> int:
        work(calls)
        return value

    return app


def _work_in(folder: str) -> Callable[[int], None]:
    if not folder:
        return nothing
    # Only here: a worker of tasks that do nothing imports no Pydantic AI.
    from benchmarks.peer_agent import look_of

    return look_of(folder)


def main(redis_url: str, queue: str, pool: str, concurrency: str, number: str, folder: str = "") -> int:
    app = make_app(redis_url, queue, _work_in(folder))
    options = ["worker", "--pool", pool, "--concurrency", concurrency, "--loglevel", "WARNING"]
    app.worker_main([*options, "--queues", queue, "--hostname", f"peer-{number}@{queue}"])
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
