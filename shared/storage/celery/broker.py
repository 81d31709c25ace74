"""The dispatcher's broker over Celery and Redis."""

from collections.abc import Sequence

import redis
from celery import Celery
from kombu.exceptions import OperationalError

from soong.shared.core.errors import UnavailableError
from soong.shared.engine.wire.jobs import DISPATCH_TASK, queue_key, queue_of


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
