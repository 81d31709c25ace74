"""What every route works with: the deployment's client, who may come in, what is held open, and when to stop."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from fastapi import Request

from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.client.client import Client
from soong.orchestrator.http.authentication import Authenticator, Caller
from soong.orchestrator.http.edge import CALLER, RequestLimiter
from soong.orchestrator.http.limits import Limits
from soong.orchestrator.http.problems import ProblemCode, ProblemError
from soong.orchestrator.http.responder_leases import ResponderLeases
from soong.orchestrator.http.shared_reads import SharedReads
from soong.orchestrator.http.subscriptions import SubscriptionPool
from soong.orchestrator.http.task_feed import TaskFeeds
from soong.orchestrator.http.watched_reads import WatchedReads
from soong.shared.core import timing
from soong.shared.core.value import Value
from soong.shared.engine.sessions.session import Session
from soong.shared.engine.tasks.metrics import MetricsSource
from soong.shared.engine.tasks.service import TaskService
from soong.shared.engine.wire.notifier import Subscription
from soong.shared.permissions.access.token import Right


class ArtifactReader(Protocol):
    """What is read of the artifact store."""

    async def get(self, digest: str) -> bytes:
        """Return the bytes of a digest.

        Raises: NotFoundError; ForgedError or ForeignEntryError when something else lies in their place.
        """
        ...


class Rhythm(Value):
    """How often somebody who waits is attended to: whether the caller has left, and where wanted, the rows."""

    every_s: float
    looks_anyway: bool
    """Look at the rows without a hint, too."""


EACH_SECOND: Final = Rhythm(1.0, looks_anyway=True)


@dataclass(slots=True)
class Api:
    """One server's parts. Its creator closes it. ``stop`` ends long polls and streams."""

    client: Client
    metrics: MetricsSource
    artifacts: ArtifactReader
    home: str = field(default_factory=lambda: str(Path.home()))
    limits: Limits = field(default_factory=Limits)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    authenticator: Authenticator = field(init=False)
    subscriptions: SubscriptionPool = field(init=False)
    feeds: TaskFeeds = field(init=False)
    attending: ResponderLeases = field(init=False)
    reads: SharedReads = field(default_factory=SharedReads)
    watched: WatchedReads = field(default_factory=WatchedReads)
    requests: RequestLimiter = field(init=False)
    streams: RequestLimiter = field(init=False)
    large_plans: asyncio.Semaphore = field(init=False)
    artifact_reads: asyncio.Semaphore = field(init=False)
    _catalogue: "asyncio.Task[Catalogue] | None" = None
    _looked_s: float = float("-inf")

    def __post_init__(self) -> None:
        self.authenticator = Authenticator(self.client.store.access, self.client.clock)
        self.requests = RequestLimiter(self.limits.requests, self.limits.requests)
        self.streams = RequestLimiter(self.limits.streams, self.limits.streams_each)
        self.large_plans = asyncio.Semaphore(self.limits.large_plans)
        self.artifact_reads = asyncio.Semaphore(self.limits.artifact_reads)
        self.subscriptions = SubscriptionPool(self.client.subscriber)
        self.feeds = TaskFeeds(self.client.store, self.subscriptions)
        self.attending = ResponderLeases(self.client)

    async def catalogue(self) -> Catalogue:
        """Return what plans may name; made when it is first asked for, which takes a moment."""
        if self._catalogue is None or (self._catalogue.done() and self._catalogue.exception() is not None):
            self._catalogue = asyncio.create_task(asyncio.to_thread(Catalogue.of, self.client.settings))
        return await asyncio.shield(self._catalogue)

    async def look_at_rows(self) -> None:
        """Return if the database answers, looking at most once a second. Raises: UnavailableError."""
        if self.client.clock.monotonic_s() - self._looked_s > timing.POLL_ROWS_S:
            await self.client.store.sessions.owners()
            self._looked_s = self.client.clock.monotonic_s()

    def tasks_of(self, caller: Caller) -> TaskService:
        """Return what tasks are asked through, in the name of the caller."""
        client = self.client
        return TaskService(
            client.store,
            client.notifier,
            client.subscriber,
            client.clock,
            client.planner,
            caller.principal,
            may_approve=caller.may(Right.APPROVE),
        )

    def held_open(self, caller: Caller) -> AbstractContextManager[None]:
        """Hold one place for a long poll or a stream of the caller's. Raises: ProblemError (too_busy)."""
        return self.streams.taken(caller.principal)

    def stop(self) -> None:
        """End long polls and streams."""
        self.stopping.set()
        self.watched.wake()

    async def close(self) -> None:
        if self._catalogue is not None:
            self._catalogue.cancel()
            await asyncio.gather(self._catalogue, return_exceptions=True)
        await self.attending.close()
        await self.feeds.close()
        await self.watched.close()
        await self.subscriptions.close()
        await self.metrics.close()
        await self.client.close()


def api_of(request: Request) -> Api:
    """Return the server's parts, for a route."""
    api: Api = request.app.state.api
    return api


class Needs(Value):
    """A route's claim: its caller must carry this right. Gives the route the caller."""

    right: Right

    async def __call__(self, request: Request) -> Caller:
        caller: Caller | None = request.scope.get(CALLER)
        if caller is None:
            raise ProblemError(ProblemCode.UNAUTHENTICATED, "send a token")  # the gate lets no such request in
        caller.require(self.right)
        return caller


def check_steering(caller: Caller, session: Session) -> None:
    """Refuse a caller that controls another's session unless an administrator. Raises: ProblemError (not_yours)."""
    if session.principal != caller.principal and not caller.may(Right.ADMIN):
        detail = f"the session is {session.principal!r}'s; only they, or a token with the right 'admin', may change it"
        raise ProblemError(ProblemCode.NOT_YOURS, detail, {"principal": session.principal})


def check_own(caller: Caller, session: Session) -> None:
    """Refuse everybody but the session's principal, whatever rights they have. Raises: ProblemError (not_yours)."""
    if session.principal != caller.principal:
        detail = f"the session is {session.principal!r}'s; nobody else decides what its runs do and with what"
        raise ProblemError(ProblemCode.NOT_YOURS, detail, {"principal": session.principal})


async def until_changed(
    request: Request,
    api: Api,
    subscription: Subscription,
    is_enough: Callable[[], Awaitable[bool]],
    wait_s: float,
    rhythm: Rhythm = EACH_SECOND,
) -> None:
    """Return when ``is_enough``, or after ``wait_s``, or when the caller has left or the server stops.

    Raises: ProblemError (unauthenticated) when the caller's token was revoked or expired meanwhile.
    """
    await _until_changed(request, api, subscription, is_enough, wait_s, rhythm)
    if not await api.authenticator.still(request.scope[CALLER]):
        raise ProblemError(ProblemCode.UNAUTHENTICATED, "the token was revoked or has expired while this call waited")


async def _until_changed(
    request: Request,
    api: Api,
    subscription: Subscription,
    is_enough: Callable[[], Awaitable[bool]],
    wait_s: float,
    rhythm: Rhythm,
) -> None:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + wait_s
    is_heard = True
    while not (is_heard and await is_enough()):
        left_s = deadline_s - loop.time()
        if left_s <= 0 or api.stopping.is_set() or await request.is_disconnected():
            return
        is_heard = bool(await subscription.wait(min(rhythm.every_s, left_s))) or rhythm.looks_anyway
