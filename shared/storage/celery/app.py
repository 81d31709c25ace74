"""The Celery app of both sides: the orchestrator sends with it, the worker consumes with it.

Early acknowledgement, no prefetch, no result backend, no remote control, JSON only: rows do what the broker does badly
for hour-long work (docs/decisions), and the broker keeps what it does well.
"""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import redis
from celery import Celery
from kombu.entity import Queue
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from soong.shared.core.errors import UnavailableError
from soong.shared.engine.wire.notifier import DISPATCH_TASK, KEY_PREFIX, queue_key, queue_of


def broker_url(redis_url: str) -> str:
    """Return kombu's form of a Redis URL: it spells unix sockets ``redis+socket://``."""
    parts = urlsplit(redis_url)
    return f"redis+socket://{parts.path}" if parts.scheme == "unix" else redis_url


def make_celery(redis_url: str, *, pools: tuple[str, ...] = (), connections: int = 20) -> Celery:
    """Build the app. ``pools`` are the queues a worker consumes; a sender needs none."""
    app = Celery("soong", broker=broker_url(redis_url), set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        event_serializer="json",
        task_ignore_result=True,
        task_acks_late=False,
        task_queues=[Queue(queue_of(pool)) for pool in pools] or None,  # type: ignore[no-untyped-call]
        worker_disable_prefetch=True,
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        # A Redis that takes no writes (out of memory, its disk full) refuses the consumer's first command: wait for it
        # as for one that is away, instead of ending the process.
        broker_channel_error_retry=True,
        broker_pool_limit=connections,
        broker_transport_options={
            "global_keyprefix": KEY_PREFIX,
            "socket_keepalive": True,
            "socket_timeout": 30,
            "socket_connect_timeout": 5,
            "health_check_interval": 10,
            # Nothing is acknowledged late, so there is nothing to restore: without kombu's books of what is not yet
            # acknowledged a worker's Redis user needs no scripts.
            "ack_emulation": False,
        },
    )
    return app


class CeleryBroker:
    """Sends dispatch messages and reads the queue's length. Not thread-safe: one thread uses it."""

    def __init__(self, app: Celery, client: redis.Redis) -> None:
        self._app = app
        self._client = client

    def queued(self, pool: str) -> int:
        try:
            return int(self._client.llen(queue_key(pool)))
        except redis.RedisError as error:
            raise UnavailableError(f"Redis does not answer: {error}") from error

    def send(self, pool: str, dispatch_ids: Sequence[str]) -> None:
        try:
            with self._app.producer_pool.acquire(block=True, timeout=5) as producer:
                for dispatch_id in dispatch_ids:
                    self._app.send_task(
                        DISPATCH_TASK,
                        (dispatch_id,),
                        queue=queue_of(pool),
                        producer=producer,
                        retry=False,
                        ignore_result=True,
                        argsrepr="()",
                        kwargsrepr="{}",
                    )
        except (OperationalError, redis.RedisError, OSError) as error:
            raise UnavailableError(f"Redis takes no messages: {error}") from error

    def close(self) -> None:
        # Celery's own close forgets its connections without closing them. Apps of one URL share the pool, so it is
        # emptied and not closed.
        pool = self._app.pool
        pool.resize(pool.limit, reset=True)
        self._app.close()
        self._client.close()


class CeleryRunEvents:
    """Sends at once, over a connection of its own; for any thread."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def cancelled(self, run_id: str, node_name: str) -> None:
        """Say that a run was cancelled. Flower lists ``node_name`` among the workers.
        Raises: UnavailableError.
        """
        try:
            with self._app.connection_for_write() as connection:
                dispatcher: Any = self._app.events.Dispatcher(connection, hostname=node_name)
                # The one event that leads out of a state of ours: Celery ranks those behind every state of its own.
                dispatcher.send("task-retried", uuid=run_id, exception="", traceback="")
                dispatcher.send("task-revoked", uuid=run_id, terminated=True, signum=None, expired=False)
                dispatcher.close()
        except (OperationalError, OSError, RedisError) as error:
            raise UnavailableError(f"Redis takes no events: {error}") from error
