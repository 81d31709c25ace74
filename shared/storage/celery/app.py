"""The Celery app of both sides: the orchestrator sends with it, the worker consumes with it.

Early acknowledgement, no prefetch, no result backend, no remote control, JSON only: rows do what the broker does badly
for hour-long work (docs/decisions), and the broker keeps what it does well.
"""

from urllib.parse import urlsplit

from celery import Celery
from kombu.entity import Queue

from soong.shared.engine.wire.jobs import KEY_PREFIX, queue_of


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
