"""Events of runs that no worker holds, for Flower: those of held runs their workers send."""

from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from soong.shared.core.errors import UnavailableError


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
