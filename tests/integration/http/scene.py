"""A deployment behind a real HTTP server on the loopback interface: SQL, Redis, an owner, workers' gates.

The owner and the server live in the test's own loop, over one store; time stands still until a test moves it.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import httpx
from msgspec.structs import asdict

from soong.orchestrator.client.bootstrap import open_artifacts, open_metrics
from soong.orchestrator.client.client import Client
from soong.orchestrator.embedded.listening import address_of, listen
from soong.orchestrator.http.app import make_app, make_routes
from soong.orchestrator.http.edge import RequestPolicy
from soong.orchestrator.http.mcp_endpoint import McpEndpoint
from soong.orchestrator.http.server import BoundedConnection, until_stopped
from soong.orchestrator.mcp.server import TOOLS, ToolEntry, make_server
from soong.orchestrator.operations.context import Limits, ServiceParts
from soong.orchestrator.owner.commands import Commands
from soong.shared.core.settings import Settings
from soong.shared.engine.runs.events import NewEvent
from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.engine.tasks.planner import Planner
from soong.shared.engine.tasks.step import Claim
from soong.shared.permissions.access.token import Right, make_token
from soong.shared.permissions.request import PermissionRequest
from soong.shared.storage.redis.client import RedisClients, RedisNotifier
from soong.shared.storage.redis.subscriptions import RedisSubscriber
from soong.shared.storage.sql.store import open_store
from soong.shared.tools.ports import Verdict
from tests.integration.consent import ConsentHarness, make_call, open_bench
from tests.waiting import until

ALL = tuple(Right)
ADA, BOB = "ada", "bob"


class _OnceMade(ToolEntry):
    """A tool that is described once for all servers of a process: that of all takes 80 ms."""

    made = cache(ToolEntry.made)


_TOOLS = tuple(_OnceMade(**asdict(entry)) for entry in TOOLS)


@dataclass(slots=True)
class HttpHarness:
    """What a test speaks through. ``caller`` has every right and is the principal ``ada``."""

    bench: ConsentHarness
    api: ServiceParts
    address: str
    port: int
    stop: asyncio.Event
    """Set it and the server stops."""
    owner: asyncio.Task[None]
    """Carries out what clients ask of sessions; cancel it and nobody does."""
    caller: httpx.AsyncClient = field(init=False)
    clients: list[httpx.AsyncClient] = field(default_factory=list)
    asking: list[asyncio.Task[Verdict]] = field(default_factory=list)

    async def token(self, principal: str = ADA, rights: Sequence[Right] = ALL, expires_us: int | None = None) -> str:
        """Make a token as `soong tokens create` does; return its text."""
        token, text = make_token(principal, rights, now_us=self.bench.clock.now_us(), expires_us=expires_us)
        await self.bench.store.access.add_token(token)
        return text

    async def someone(self, principal: str = BOB, *rights: Right) -> httpx.AsyncClient:
        """Return a client of another principal, or with fewer rights."""
        return self.with_token(await self.token(principal, rights or ALL))

    def with_token(self, text: str, **headers: str) -> httpx.AsyncClient:
        given = {**({"Authorization": f"Bearer {text}"} if text else {}), **headers}
        # There is no TLS here, and to load the certificates of all authorities takes 20 ms.
        client = httpx.AsyncClient(base_url=self.address, headers=given, timeout=30, trust_env=False, verify=False)
        self.clients.append(client)
        return client

    async def ask(self, call_id: str = "call_1", folder: str = "/work/out") -> PermissionRequest:
        """Let a worker ask for a write; return the question as it stands."""
        before = {one.request.id for one in await self.bench.store.consent.questions()}
        ((claim, worker_id),) = await self.bench.claim()
        gate = self.bench.gate(claim, worker_id)
        self.asking.append(asyncio.get_running_loop().create_task(gate.decide(make_call(claim, call_id, folder))))
        found: list[PermissionRequest] = []

        async def is_asked() -> bool:
            found.extend(
                one.request for one in await self.bench.store.consent.questions() if one.request.id not in before
            )
            return bool(found)

        await until(is_asked)
        return found[0]

    async def verdict(self, number: int = 0) -> Verdict:
        """Return what became of a question for the worker that asked it."""
        async with asyncio.timeout(10):
            return await self.asking[number]

    async def run_with(self, count: int) -> Claim:
        """Return a claimed run with ``count`` events of its own in its log."""
        ((claim, _),) = await self.bench.claim()
        await self.append(claim, count)
        return claim

    async def append(self, claim: Claim, count: int, start: int = 0) -> None:
        events = [NewEvent("tool_progress", {"number": start + number}) for number in range(count)]
        now_us = self.bench.clock.now_us()
        await self.bench.store.runs.append(claim.identity.run_id, claim.fence, events=events, now_us=now_us)
        await self.bench.notifier.notify_runs([claim.identity.run_id])

    async def raw(self, request: bytes) -> bytes:
        """Send bytes as they are on a connection of their own; return all that comes back until it ends."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        async with asyncio.timeout(20):
            said = await reader.read()
        writer.close()
        return said


def code_of(response: httpx.Response) -> str:
    """Return the code of a problem, which is one in every respect."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    document: dict[str, Any] = response.json()
    assert document["status"] == response.status_code
    assert document["type"] == f"urn:soong:problem:{document['code']}"
    assert document["detail"]
    return str(document["code"])


@dataclass(frozen=True, slots=True)
class Sent:
    """One server-sent event."""

    id: str = ""
    event: str = ""
    data: Any = None


async def events_of(response: httpx.Response) -> AsyncIterator[Sent]:
    """Yield the events of a stream as a browser would; comments are left out."""
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        if "data" in fields:
            yield Sent(fields.get("id", ""), fields.get("event", ""), json.loads(fields["data"]))
        fields = {}


@asynccontextmanager
async def open_scene(
    url: str,
    redis_url: str,
    home: Path,
    mode: ApprovalMode = ApprovalMode.INBOX,
    limits: Limits | None = None,
    server_url: str = "",
    **settings: Any,
) -> AsyncIterator[HttpHarness]:
    """Serve the deployment at these addresses until the context ends; ``server_url`` is for the server alone."""
    loaded = Settings(agent_home=home, database_url=url, redis_url=redis_url, **settings)
    clients = RedisClients.of(redis_url)
    notifier, subscriber, store = (
        RedisNotifier(clients.commands),
        RedisSubscriber(clients.blocking),
        await open_store(url),
    )
    served = await open_store(server_url) if server_url else store
    stop = asyncio.Event()
    async with open_bench(mode=mode, store=store, notifier=notifier, subscriber=subscriber) as bench:
        listener = listen("127.0.0.1", 0, ())
        client = Client(served, notifier, subscriber, bench.clock, loaded)
        api = ServiceParts(client, open_metrics(loaded), open_artifacts(loaded), limits=limits or Limits())
        loop = asyncio.get_running_loop()
        owner = loop.create_task(_carry_out(bench))
        bench.tasks.append(owner)
        scene = HttpHarness(bench, api, address_of(listener), listener.getsockname()[1], stop, owner)
        scene.caller = await scene.someone(ADA)
        serving = loop.create_task(_serve(api, loaded, listener, stop))
        try:
            yield scene
        finally:
            stop.set()
            for task in scene.asking:
                task.cancel()
            await asyncio.gather(serving, *scene.asking, return_exceptions=True)
            await api.close()
            for one in scene.clients:
                await one.aclose()
    await notifier.close()
    await clients.close()
    await served.close()
    await store.close()


async def _serve(api: ServiceParts, settings: Settings, listener: socket.socket, stop: asyncio.Event) -> None:
    """Serve as the service does."""
    mcp = McpEndpoint(api, make_routes(api), partial(make_server, tools=_TOOLS))
    app = make_app(api, RequestPolicy.of(settings.http_allow_hosts, settings.http_origins), mcp)
    async with mcp.running():
        await until_stopped(api, app, BoundedConnection, listener, stop.wait)


async def _carry_out(bench: ConsentHarness) -> None:
    """Carry out what clients ask of sessions, as their owner: adopt new ones first."""
    subscription = await bench.subscriber.subscribe_owner()
    commands = Commands(
        bench.store.sessions, bench.store.tasks, bench.store.runs, bench.notifier, bench.clock, Planner()
    )
    while True:
        await subscription.wait(0.2)
        await bench.store.sessions.adopt_sessions(bench.ownership.owner_id)
        for session in await bench.store.sessions.session_page():
            if session.ownership.owner_id == bench.ownership.owner_id:  # one that came since is adopted next time
                await commands.carry_out(session.ownership)
