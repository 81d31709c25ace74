"""The parts that every route uses: the deployment's client, callers' rights, limits, held requests, and the stop."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Protocol, TypeAlias, TypeVar

from fastapi import Depends, Request

from soong.orchestrator.approvals.decide import TargetChecker
from soong.orchestrator.approvals.responders import ResponderLease
from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.client.client import Client
from soong.orchestrator.operations.authentication import Authenticator, Caller
from soong.orchestrator.operations.feeds import Feeds, Following, SubscriptionPool
from soong.orchestrator.operations.problems import ProblemCode, ProblemError
from soong.shared.core import timing
from soong.shared.core.amounts import read_age
from soong.shared.core.errors import UsageError
from soong.shared.core.settings import Settings
from soong.shared.core.value import Value
from soong.shared.engine.sessions.session import Session
from soong.shared.engine.tasks.metrics import MetricsSource
from soong.shared.engine.tasks.service import TaskService
from soong.shared.permissions.access.token import Right
from soong.shared.permissions.configured import configured_write_roots
from soong.shared.storage.store import Store

T = TypeVar("T")

CHANNEL: Final = "http"


CALLER: Final = "soong.caller"
"""The key of a request's sender in its scope."""


class Limits(Value):
    """Constants of the product; tests move them instead of waiting."""

    body_bytes: int = 2 * 1024 * 1024
    large_plan_bytes: int = 64 * 1024
    large_plans: int = 2
    """Checked at once: each may take 150 MiB and seconds of CPU time. Smaller ones do not wait for them."""
    artifact_reads: int = 2
    """At once: each may hold 256 MiB."""
    body_s: float = 20.0
    """From the end of the headers to the end of the body."""
    headers_s: float = 15.0
    """From the connection, or the first byte of another request, to the end of its headers."""
    idle_s: int = 30
    """Between two requests of a connection."""
    connections: int = 896
    """Below the 1,024 open files that a process has by default."""
    requests: int = 768
    """Held at once, long polls and streams among them."""
    streams: int = 640
    """Long polls and streams, so that ordinary requests always find room. A browser with the console holds two."""
    streams_each: int = 128
    """Per principal: none takes all."""
    stop_s: float = 8.0
    """From the stop of the server to the end of what is under way then."""
    keep_alive_s: float = 15.0
    """Between two signs of life on a stream; so often its caller's token is checked, too."""


@dataclass(slots=True)
class RequestLimiter:
    """How much is held at once. A request beyond it is refused at once: nothing waits in line unseen."""

    most: int
    most_each: int
    held: Counter[str] = field(default_factory=Counter)
    total: int = 0

    @contextmanager
    def taken(self, who: str = "") -> Iterator[None]:
        """Hold one place. Raises: ProblemError (too_busy)."""
        if self.total >= self.most or self.held[who] >= self.most_each:
            detail = "as many are open as are held at once; close some, or try again"
            raise ProblemError(ProblemCode.TOO_BUSY, detail, headers={"Retry-After": "2"})
        self.held[who] += 1
        self.total += 1
        try:
            yield
        finally:
            self.total -= 1
            self.held[who] -= 1
            if not self.held[who]:
                del self.held[who]


@dataclass(slots=True)
class _KeptLease:
    """One principal's presence: until when, by session, on the loop's clock."""

    lease: ResponderLease
    until_s: dict[str, float] = field(default_factory=dict)
    keeping: asyncio.Task[None] | None = None

    async def keep(self) -> None:
        """Be there until the last lease has run out; then take the rows back."""
        loop = asyncio.get_running_loop()
        beating = loop.create_task(self.lease.run())
        try:
            while self.until_s:
                self.lease.attend(self.until_s)
                await asyncio.sleep(timing.POLL_ROWS_S)
                self.until_s = {name: until_s for name, until_s in self.until_s.items() if until_s > loop.time()}
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)


@dataclass(slots=True)
class ResponderLeases:
    """The responders that are present through one server."""

    client: Client
    _kept: dict[str, _KeptLease] = field(default_factory=dict)

    def stay(self, principal: str, session_ids: Iterable[str]) -> None:
        """Keep the principal present in these sessions for one responder's lease from now on."""
        lease_s = self.client.settings.responder_lease_s
        until_s = dict.fromkeys(session_ids, asyncio.get_running_loop().time() + lease_s)
        if not until_s:
            return
        kept = self._kept.get(principal)
        if kept is None:
            lease = ResponderLease(self.client.store.sessions, self.client.notifier, principal, CHANNEL, lease_s)
            kept = self._kept[principal] = _KeptLease(lease)
        kept.until_s.update(until_s)
        if kept.keeping is None or kept.keeping.done():
            kept.keeping = asyncio.get_running_loop().create_task(kept.keep())
        kept.lease.attend(kept.until_s)

    @property
    def present(self) -> tuple[str, ...]:
        """The principals that are there just now."""
        return tuple(name for name, kept in self._kept.items() if kept.keeping is not None and not kept.keeping.done())

    async def close(self) -> None:
        keeping = [kept.keeping for kept in self._kept.values() if kept.keeping is not None]
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)


class ArtifactReader(Protocol):
    """The artifact store, as operations read it."""

    async def get(self, digest: str) -> bytes:
        """Return the bytes of a digest.

        Raises: NotFoundError; ForgedError or ForeignEntryError when something else lies in their place.
        """
        ...


@dataclass(slots=True)
class ServiceParts:
    """One server's parts. Its creator closes it. ``stop`` ends long polls and streams."""

    client: Client
    metrics: MetricsSource
    artifacts: ArtifactReader
    takes_modules: bool = False
    """All callers are the user of this machine, whose plans may name the modules that the deployment has."""
    home: str = field(default_factory=lambda: str(Path.home()))
    limits: Limits = field(default_factory=Limits)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    store: Store = field(init=False)
    authenticator: Authenticator = field(init=False)
    subscriptions: SubscriptionPool = field(init=False)
    feeds: Feeds = field(default_factory=Feeds)
    attending: ResponderLeases = field(init=False)
    requests: RequestLimiter = field(init=False)
    streams: RequestLimiter = field(init=False)
    large_plans: asyncio.Semaphore = field(init=False)
    artifact_reads: asyncio.Semaphore = field(init=False)
    _catalogue: "asyncio.Task[Catalogue] | None" = None
    _looked_s: float = float("-inf")

    def __post_init__(self) -> None:
        self.store = self.client.store
        self.authenticator = Authenticator(self.client.store.access, self.client.clock)
        self.requests = RequestLimiter(self.limits.requests, self.limits.requests)
        self.streams = RequestLimiter(self.limits.streams, self.limits.streams_each)
        self.large_plans = asyncio.Semaphore(self.limits.large_plans)
        self.artifact_reads = asyncio.Semaphore(self.limits.artifact_reads)
        self.subscriptions = SubscriptionPool(self.client.subscriber)
        self.attending = ResponderLeases(self.client)

    async def catalogue(self) -> Catalogue:
        """Return what plans may name; made when it is first asked for, which takes a moment."""
        if self._catalogue is None or (self._catalogue.done() and self._catalogue.exception() is not None):
            settings = self.client.settings

            def make() -> Catalogue:
                made = Catalogue.of(settings)
                return made.with_deployed_modules(settings) if self.takes_modules else made

            self._catalogue = asyncio.create_task(asyncio.to_thread(make))
        return await asyncio.shield(self._catalogue)

    def settings_of(self, caller: Caller) -> Settings:
        settings = self.client.settings
        return settings.of_user if caller.is_local else settings

    async def target_checker(self) -> TargetChecker:
        """Return what looks at the targets of questions on this machine."""
        catalogue, settings = await self.catalogue(), self.client.settings
        return TargetChecker(catalogue.tools, settings.runs, configured_write_roots(catalogue.config))

    async def look_at_rows(self) -> None:
        """Return if the database answers, looking at most once a second. Raises: UnavailableError."""
        if self.client.clock.monotonic_s() - self._looked_s > timing.POLL_ROWS_S:
            await self.client.store.sessions.owners()
            self._looked_s = self.client.clock.monotonic_s()

    def tasks_of(self, caller: Caller) -> TaskService:
        """Return what tasks are asked through, in the name of the caller."""
        return self.client.tasks_of(caller.principal, may_approve=caller.may(Right.APPROVE))

    def held_open(self, caller: Caller, *, is_waiting: bool = True) -> AbstractContextManager[None]:
        """Hold one place for a long poll or a stream of the caller's. Raises: ProblemError (too_busy)."""
        return self.streams.taken(caller.principal) if is_waiting else nullcontext()

    def stop(self) -> None:
        """End long polls and streams."""
        self.stopping.set()
        self.feeds.wake()

    async def close(self) -> None:
        if self._catalogue is not None:
            self._catalogue.cancel()
            await asyncio.gather(self._catalogue, return_exceptions=True)
        await self.attending.close()
        await self.feeds.close()
        await self.subscriptions.close()
        await self.metrics.close()
        await self.client.close()


async def service_of(request: Request) -> ServiceParts:
    """Return the parts that a request's operation works with. A plain function would take a thread as a dependency."""
    service: ServiceParts = request.app.state.service
    return service


class Needs(Value):
    """A route's claim: its caller must carry this right. Gives the route the caller."""

    right: Right

    async def __call__(self, request: Request) -> Caller:
        caller: Caller | None = request.scope.get(CALLER)
        if caller is None:
            raise ProblemError(ProblemCode.UNAUTHENTICATED, "send a token")  # the gate lets no such request in
        caller.require(self.right)
        return caller


async def _leaving(request: Request) -> "HasLeft":
    return request.is_disconnected


HasLeft = Callable[[], Awaitable[bool]]
"""Says whether the caller waits no longer."""
Service: TypeAlias = Annotated[ServiceParts, Depends(service_of)]
Left: TypeAlias = Annotated[HasLeft, Depends(_leaving)]
Reader: TypeAlias = Annotated[Caller, Depends(Needs(Right.READ))]
Runner: TypeAlias = Annotated[Caller, Depends(Needs(Right.RUN))]
Approver: TypeAlias = Annotated[Caller, Depends(Needs(Right.APPROVE))]
Administrator: TypeAlias = Annotated[Caller, Depends(Needs(Right.ADMIN))]


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


async def until_enough(
    service: ServiceParts,
    caller: Caller,
    has_left: HasLeft,
    following: Following[T],
    is_enough: Callable[[T], Awaitable[bool]],
    wait_s: float,
    every_s: float = timing.POLL_ROWS_S,
) -> None:
    """Return when a value ``is_enough``, or after ``wait_s``, or when the caller has left or the server stops.

    ``every_s`` is how often the caller is looked for, and the value looked at again.

    Raises: ProblemError (unauthenticated) when the caller's token was revoked or expired meanwhile.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + wait_s
    value = await following.next()
    while not await is_enough(value):
        left_s = deadline_s - loop.time()
        if left_s <= 0 or service.stopping.is_set() or await has_left():
            break
        with suppress(TimeoutError):
            async with asyncio.timeout(min(every_s, left_s)):
                value = await following.next()
    if wait_s and not await service.authenticator.still(caller):
        raise ProblemError(ProblemCode.UNAUTHENTICATED, "the token was revoked or has expired while this call waited")


def made_since_us(service: ServiceParts, age: str) -> int:
    """Return the time before which nothing of this age was made; 0 for no age. Raises: ProblemError (invalid_input)."""
    try:
        return max(0, service.client.clock.now_us() - read_age(age, "since") * 1_000_000) if age else 0
    except UsageError as error:
        raise ProblemError(ProblemCode.INVALID_INPUT, str(error)) from error
