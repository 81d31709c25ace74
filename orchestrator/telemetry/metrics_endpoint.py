"""The address at which a Prometheus, an autoscaler and a container's probes ask an orchestrator.

``/metrics`` says the metrics, or 503 while the rows cannot be read; ``/healthz`` says that this process's loop runs and
asks nobody, so that a database that is away does not get its clients restarted. Both are read only and tell no names of
sessions, tasks or people; an operator who lets others in puts a proxy in front.
"""

import errno
from collections.abc import Awaitable, Callable
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from soong.orchestrator.telemetry.metrics import CONTENT_TYPE
from soong.shared.core.errors import SoongError, UnavailableError, UsageError
from soong.shared.core.log import get_logger

log = get_logger(__name__)

Read = Callable[[], Awaitable[bytes]]


class MetricsEndpoint:
    """Listens from ``start`` to ``stop`` on the running loop."""

    def __init__(self, read: Read) -> None:
        routes: list[Any] = [(r"/metrics", _MetricsPage, {"read": read}), (r"/healthz", _Health)]
        self._server = HTTPServer(Application(routes, log_function=_log_nothing))

    def start(self, address: str, port: int) -> None:
        """Begin to listen. Raises: UnavailableError when another process does; UsageError, the address is wrong."""
        try:
            self._server.listen(port, address)
        except OSError as error:
            if error.errno not in {errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES}:
                raise
            kind: type[SoongError] = UnavailableError if error.errno == errno.EADDRINUSE else UsageError
            raise kind(f"metrics cannot listen on {address} port {port}: {error.strerror}; choose another") from error

    async def stop(self) -> None:
        self._server.stop()
        await self._server.close_all_connections()


class _MetricsPage(RequestHandler):
    def initialize(self, read: Read) -> None:
        self._read = read

    async def get(self) -> None:
        try:
            body = await self._read()
        except UnavailableError as error:
            log.warning("metrics_unanswered", error=str(error))
            self.set_status(503)
            body = b"the database does not answer\n"
        self.set_header("Content-Type", CONTENT_TYPE)
        self.write(body)


class _Health(RequestHandler):
    def get(self) -> None:
        self.set_header("Content-Type", "text/plain")
        self.write("ok\n")


def _log_nothing(_handler: RequestHandler) -> None:
    """Keep quiet: an address that is asked every few seconds would fill the log."""
