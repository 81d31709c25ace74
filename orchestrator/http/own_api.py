"""The operations in the command's own process: for a deployment of two URLs, or a home whose service is stopped."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from soong.orchestrator.approvals.approval import provenance_here
from soong.orchestrator.client.bootstrap import open_artifacts, open_client, open_metrics
from soong.orchestrator.client.home_api import ApiProblemError, Document, Query
from soong.orchestrator.embedded.starter import Attachment
from soong.orchestrator.http.app import make_routes
from soong.orchestrator.operations.authentication import local_caller
from soong.orchestrator.operations.calls import DirectCalls
from soong.orchestrator.operations.context import ServiceParts
from soong.shared.core.jsontext import Json

T = TypeVar("T")


class OwnApi:
    """The operations over the rows of a deployment, for the user of this process. Blocks; has a loop of its own."""

    def __init__(self, *, channel: str = "cli") -> None:
        self._channel = channel
        self._attachment: Attachment | None = None
        self._may_start = False
        self._runner = asyncio.Runner()
        self._service: ServiceParts | None = None
        self._calls: DirectCalls | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._runner.run(self._close())
        finally:
            self._runner.close()

    def attach(self, attached: Callable[..., Coroutine[Any, Any, Attachment]], *, may_start: bool) -> None:
        """Hold the service, or the rows alone; again when one is to be started where none was needed before."""
        if self._attachment is None or (may_start and not self._may_start):
            self._runner.run(self._close())
            self._attachment, self._may_start = self._runner.run(attached(may_start=may_start)), may_start

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Json = None,
        headers: Mapping[str, str] | None = None,
    ) -> Document:
        """Return the document that an operation returns. Raises: SoongError."""

        async def work() -> Document:
            return await (await self._opened()).call(method, path, query=query, body=body, headers=headers)

        return self._run(work())

    def text(self, path: str, *, query: Query | None = None) -> str:
        """Return what an operation answers with that sends text. Raises: SoongError."""

        async def work() -> str:
            return await (await self._opened()).text(path, query=query)

        return self._run(work())

    def stream(self, path: str, *, query: Query | None = None) -> Iterator[tuple[str, Document]]:
        """Yield name and data of each event of a stream, until it ends. Raises: SoongError."""
        calls = self._run(self._opened())
        events = aiter(calls.stream(path, query=query))

        async def following() -> tuple[str, Document] | None:
            return await anext(events, None)

        while (event := self._run(following())) is not None:
            yield event

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._runner.run(work)
        except ApiProblemError as problem:
            raise problem.error() from problem

    async def _opened(self) -> DirectCalls:
        if self._calls is None:
            assert self._attachment is not None
            settings = self._attachment.settings
            client = await open_client(settings, is_reading=not self._may_start)
            self._service = ServiceParts(client, open_metrics(settings), open_artifacts(settings))
            provenance = await provenance_here(client.store.sessions)
            caller = local_caller(settings.principal, provenance, self._channel, client.clock.now_us())
            self._calls = DirectCalls(make_routes(self._service), caller)
        return self._calls

    async def _close(self) -> None:
        self._calls = None
        if self._service is not None:
            self._service.stop()
            await self._service.close()
            self._service = None
        if self._attachment is not None:
            await self._attachment.release()
            self._attachment = None
