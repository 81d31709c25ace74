"""A bench for consent: one session, its broker, and as many worker processes with gates as a test wants, in one loop.

Everything is real but the tools and, by default, the store and the hints, which are the in-memory ones. Time stands
still until a test moves it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from msgspec.structs import replace

from soong.orchestrator.approvals.broker import ApprovalBroker, ApprovalContext
from soong.orchestrator.approvals.deployment_key import DeploymentKey
from soong.orchestrator.client.client import Client
from soong.orchestrator.schemas.approval import ApprovalSchema
from soong.shared.agents.runtime.permission_gate import DecisionInbox, RunGate
from soong.shared.core.jsontext import JsonObject, digest
from soong.shared.core.settings import Settings
from soong.shared.engine.runs.events import Event, EventType
from soong.shared.engine.sessions.session import ApprovalMode, Ownership
from soong.shared.engine.tasks.step import Claim
from soong.shared.engine.wire.bus import MemoryBus
from soong.shared.engine.wire.notifier import Notifier, Subscriber
from soong.shared.permissions.policy import Policy
from soong.shared.permissions.request import Choice, PermissionCallback, PermissionDecision, PermissionRequest, Question
from soong.shared.permissions.signing import Signer
from soong.shared.sandbox.redact import redactor
from soong.shared.storage.store import Store
from soong.shared.tools.definition import Permission, Risk, Target, ToolContext, ToolDefinition, Traits
from soong.shared.tools.ports import GateCall, Verdict
from tests.answering import AnsweringProgram
from tests.model.builders import make_owner, make_session, make_step, make_task, open_session, open_worker, take_turn
from tests.model.clock import FakeClock
from tests.model.memory import MemoryStore
from tests.waiting import others_run, until

LIMIT_S = 60.0
HOME = "/home/someone"
CONFIGURED_SECRET = "correct horse battery"


async def _unused(_context: ToolContext, _input: JsonObject) -> None:
    raise AssertionError("a gate runs no tool")


WRITE_FILE = ToolDefinition(
    name="code.write_file",
    description="Write a file.",
    input_schema={"type": "object"},
    handler=_unused,
    permission=Permission.WRITE,
    tags=frozenset({"code", "filesystem", "write"}),
)


def make_call(claim: Claim, call_id: str = "call_1", folder: str = "/work/out", **overrides: object) -> GateCall:
    """Return a call that writes a file into ``folder``."""
    call_input: JsonObject = {"path": f"{folder}/report.md", "content": "words"}
    call = GateCall(
        identity=claim.identity,
        fence=claim.fence,
        tool_call_id=call_id,
        definition=WRITE_FILE,
        permission_input=call_input,
        input_digest=digest(call_input),
        traits=Traits(),
        target=Target(kind="path", scope=folder, shown=f"{folder}/report.md", precondition="absent", preview="5 bytes"),
        risk=Risk.WRITE,
        cwd="/project",
    )
    return replace(call, **overrides)  # a test names real fields


class BothPorts(Notifier, Subscriber, Protocol):
    """Hints in one object, as the in-memory adapter is."""


@dataclass(slots=True)
class Callback:
    """A person: answers by ``choices`` in turn (the last one for ever), and remembers what was shown."""

    choices: Sequence[Choice] = (Choice.ALLOW_ONCE,)
    shown: list[PermissionRequest] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    gate: asyncio.Event | None = None

    async def __call__(self, request: PermissionRequest) -> PermissionDecision:
        self.shown.append(request)
        choice = self.choices[min(len(self.shown), len(self.choices)) - 1]
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.gate is not None:
                await self.gate.wait()
            await others_run()
        finally:
            self.at_once -= 1
        return PermissionDecision(choice, reason=f"because {choice}")

    def answer(self) -> None:
        """Answer what was kept waiting."""
        assert self.gate is not None
        self.gate.set()


@dataclass(slots=True)
class ConsentHarness:
    """The parts and a few sentences about them."""

    store: Store
    notifier: Notifier
    subscriber: Subscriber
    clock: FakeClock
    settings: Settings
    ownership: Ownership
    signer: Signer
    broker: ApprovalBroker
    claims: list[Claim] = field(default_factory=list)
    inboxes: dict[str, DecisionInbox] = field(default_factory=dict)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    attached: list[asyncio.Task[None]] = field(default_factory=list)
    responders: list[AnsweringProgram] = field(default_factory=list)

    @property
    def session_id(self) -> str:
        return self.ownership.session_id

    @property
    def callback(self) -> Callback:
        callback = self.responders[0].callback
        assert isinstance(callback, Callback)
        return callback

    def gate(self, claim: Claim, worker_id: str, policy: Policy | None = None, *, token: str = "") -> RunGate:
        if worker_id not in self.inboxes:
            self.inboxes[worker_id] = DecisionInbox(self.store.consent, self.subscriber, worker_id)
        return RunGate(
            self.store,
            self.notifier,
            self.inboxes[worker_id],
            self.clock,
            policy if policy is not None else Policy.from_json(claim.policy),
            token or claim.token,
            home=HOME,
        )

    async def claim(self, count: int = 1) -> list[tuple[Claim, str]]:
        """Claim ``count`` steps of one task, each in a worker process of its own."""
        task = make_task(self.session_id, *(make_step(f"s{number}") for number in range(count)))
        await self.store.tasks.create_task(task)
        held = []
        for _ in range(count):
            worker_id = await open_worker(self.store)
            held.append((await self.claim_for(worker_id), worker_id))
        return held

    async def claim_as(self, **identity: Any) -> tuple[Claim, str]:
        """Claim a step whose run has these in its identity, in a process of its own."""
        task = make_task(self.session_id, make_step())
        (step,) = task.steps
        assert step.run is not None
        run = replace(step.run, identity=replace(step.run.identity, **identity))
        await self.store.tasks.create_task(replace(task, steps=(replace(step, run=run),)))
        worker_id = await open_worker(self.store)
        return await self.claim_for(worker_id), worker_id

    async def claim_for(self, worker_id: str) -> Claim:
        advance = await take_turn(self.store, worker_id, now_us=self.clock.now_us())
        return advance.claims[0]

    async def events(self, claim: Claim) -> list[Event]:
        return list(await self.store.runs.events(claim.identity.run_id))

    async def event(self, claim: Claim, type: EventType) -> Event:
        """Return the one event of that type in the run's log."""
        (found,) = [event for event in await self.events(claim) if event.type == type]
        return found

    async def pending(self, count: int = 1) -> list[PermissionRequest]:
        """Wait until exactly ``count`` questions are open."""
        await until(lambda: self._has_pending(count))
        return list(await self.store.consent.pending(self.session_id))

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, in which attached clients live, and have the broker look at what that means."""
        self.clock.advance(timedelta(seconds=seconds))
        if self.attached:
            for responder in await self.store.sessions.responders(self.session_id):
                await self.store.sessions.beat_responder(responder.id)
        await self.broker.review([self.session_id])

    async def settle(self) -> None:
        """Have the broker look, and wait until a whole look has ended that began after this."""
        for _ in range(2):  # the first may have begun before
            await self.broker.review([self.session_id])
            broker = self.broker._of(self.session_id)
            looks = broker.looks
            await until(lambda: broker.looks > looks)  # noqa: B023  # awaited within its turn

    def new_broker(self, owner_id: str) -> ApprovalBroker:
        key = DeploymentKey(self.store, self.signer, self.clock)
        tools = ApprovalContext(self.store, self.notifier, key, self.clock, self.settings, lambda: owner_id, home=HOME)
        return ApprovalBroker(replace(tools, redactor=redactor([CONFIGURED_SECRET])))

    def attach(
        self, callback: PermissionCallback, principal: str = "local", *, channel: str = "terminal"
    ) -> AnsweringProgram:
        """Attach a client; it answers until it is detached or the bench is closed."""
        client = Client(self.store, self.notifier, self.subscriber, self.clock, self.settings)
        responder = AnsweringProgram(client, self.session_id, callback, principal, channel)
        self.responders.append(responder)
        self.attached.append(asyncio.get_running_loop().create_task(responder.run()))
        return responder

    async def detach(self) -> None:
        """Detach every client; what they were being asked waits for another."""
        gone, self.attached = self.attached, []
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)

    async def is_attended(self) -> bool:
        return bool(await self.store.sessions.responders(self.session_id))

    async def _has_pending(self, count: int) -> bool:
        return len(await self.store.consent.pending(self.session_id)) == count


async def verdicts(*asking: Awaitable[Verdict]) -> list[Verdict]:
    """Wait for the verdicts on several calls, made at the same time."""
    async with asyncio.timeout(LIMIT_S):
        return list(await asyncio.gather(*asking))


@asynccontextmanager
async def open_bench(
    callback: PermissionCallback | None = None,
    *,
    policy: Policy | None = None,
    mode: ApprovalMode = ApprovalMode.PROMPT,
    store: Store | None = None,
    notifier: Notifier | None = None,
    subscriber: Subscriber | None = None,
    signer: Signer | None = None,
) -> AsyncIterator[ConsentHarness]:
    """Open a session whose owner's broker hears questions, and attach a client that answers by ``callback``, if given.

    Owners of one ``store`` share its deployment's ``signer``.
    """
    memory = MemoryBus()
    opened = store if store is not None else MemoryStore()
    session = make_session(approval_mode=mode, policy=(policy or Policy()).as_json())
    ownership = await open_session(opened, session)
    bench = ConsentHarness(
        store=opened,
        notifier=notifier or memory,
        subscriber=subscriber or memory,
        clock=FakeClock(),
        settings=Settings(),
        ownership=ownership,
        signer=signer or Signer.generate(),
        broker=None,  # type: ignore[arg-type]  # made of the bench itself, below
    )
    bench.broker = bench.new_broker(ownership.owner_id)
    bench.tasks += [asyncio.get_running_loop().create_task(hear(bench)) for hear in (_hear_questions, _hear_owners)]
    try:
        if callback is not None:
            bench.attach(callback, channel="sdk")
            await until(bench.is_attended)
        yield bench
    finally:
        await bench.detach()
        for task in bench.tasks:
            task.cancel()
        await asyncio.gather(*bench.tasks, return_exceptions=True)
        for inbox in bench.inboxes.values():
            await inbox.close()
        await bench.broker.close()


async def next_owner(bench: ConsentHarness) -> None:
    """Let the owner's process die and another take its session."""
    await bench.broker.close()
    await bench.store.sessions.release_owner(bench.ownership.owner_id)
    successor = make_owner()
    await bench.store.sessions.register_owner(successor)
    (session,) = await bench.store.sessions.adopt_sessions(successor.id)
    bench.ownership, bench.broker = session.ownership, bench.new_broker(successor.id)


async def _hear_questions(bench: ConsentHarness) -> None:
    subscription = await bench.subscriber.subscribe_permissions()
    while True:
        for session_id in await subscription.wait(1.0):
            await bench.broker.review([session_id])


async def _hear_owners(bench: ConsentHarness) -> None:
    subscription = await bench.subscriber.subscribe_owner()
    while True:
        for session_id in await subscription.wait(1.0):
            if session_id:
                await bench.broker.review([session_id])


def documents_of(questions: Sequence[Question]) -> list[dict[str, object]]:
    """Return questions as commands show them."""
    return [ApprovalSchema.of_question(one).model_dump() for one in questions]
