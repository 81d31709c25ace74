"""One simulated deployment: the ground all its processes stand on, its clients, its supervisor and its nemesis.

Everything that happens follows from the seed. First there are faults, then calm: whatever was stopped goes on, whatever
died is started again, nothing is lost any more. Every task must then end within a bound.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import Any, Final, Protocol, TypeVar

from msgspec.structs import replace

from soong.orchestrator.client.client import Client, Submission
from soong.shared.core.errors import AlreadyDecidedError, ConflictError, SoongError, UnavailableError
from soong.shared.core.jsontext import Json, dump
from soong.shared.core.settings import Settings
from soong.shared.core.timing import Clock
from soong.shared.engine.sessions.session import ApprovalMode, CommandKind, Ownership, Session
from soong.shared.engine.tasks.new_tasks import new_task
from soong.shared.engine.tasks.spec import ClaimMode, StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Advance, Claim, Lease, Step, StepEnd, Task
from soong.shared.permissions.request import Answer, Choice, PermissionRequest
from soong.shared.storage.store import Store
from tests.model.builders import make_answer, make_session
from tests.model.clock import FakeClock
from tests.model.memory.rows import Rows
from tests.simulation.actors import Actor, OwnerActor, WorkerActor
from tests.simulation.audit import Auditor, BrokenPromiseError, UnjustClaimError, check_end
from tests.simulation.borders import Dice, Fault, LossyBoard, Queues
from tests.simulation.loop import VirtualLoop
from tests.simulation.plans import LABEL, POOLS, quick_plan, random_limits, random_plan
from tests.simulation.work import SimulationHarness

LOG = "log"


class Trace:
    """The story of one run. Two runs of one seed have the same ``digest``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lines: list[tuple[float, str, str, object, object]] = []

    def crossed(self, actor: str, method: str, args: Sequence[Any], outcome: object) -> None:
        self._lines.append((self._clock.monotonic_s(), actor, method, args, outcome))

    def note(self, actor: str, what: str, detail: object = "") -> None:
        self._lines.append((self._clock.monotonic_s(), actor, what, detail, None))

    def log(self, name: str, facts: object) -> None:
        """Note what a process logged: for readers, and no part of the digest (a logger may be another's)."""
        self._lines.append((self._clock.monotonic_s(), LOG, name, facts, None))

    def tail(self, lines: int | None) -> list[str]:
        """Return the last lines as text; None gives all."""
        return [self._text(line) for line in self._lines[-lines if lines else 0 :]]

    def digest(self) -> str:
        """Return a hash over the whole story, without what differs between machines."""
        told = hashlib.sha256()
        for line in self._lines:
            if line[1] == LOG:
                continue
            told.update(self._text(line).encode())
        return told.hexdigest()

    def _text(self, line: tuple[float, str, str, object, object]) -> str:
        at_s, actor, what, detail, outcome = line
        shown = f"{at_s:11.6f} {actor:<14} {what}"
        if detail:
            shown += f" {_shown(detail)}"
        return shown if outcome is None else f"{shown} -> {_shown(outcome)}"


def _shown(value: object) -> str:
    """Return a value in few words; of rows that hold a host or a process id, only the id."""
    match value:
        case Advance() | StepEnd() | Lease() | Ownership():
            return _shown_lease(value)
        case str() | bool() | int() | float() | dict():
            return str(value)
        case tuple() | list():
            return "[" + ", ".join(_shown(item) for item in value[:8]) + "]"
        case frozenset() | set():
            return str(sorted(str(item) for item in value))
        case BaseException():
            return f"{type(value).__name__}: {value}"
    return str(getattr(value, "id", "") or getattr(value, "key", "") or type(value).__name__)


def _shown_lease(value: Advance | StepEnd | Lease | Ownership) -> str:
    match value:
        case Advance():
            claims = [f"{claim.step_key}#{claim.fence}" for claim in value.claims]
            return f"claims {claims} stale {sorted(value.stale)}"
        case StepEnd():
            return f"{value.step_key}#{value.fence} {value.status}"
        case Lease():
            return f"{value.step_key}#{value.fence}"
        case Ownership():
            return f"{value.owner_id}@{value.session_id}:{value.epoch}"


STILL_BOUND_S: Final = 180.0
"""Virtual seconds within which some step moves as long as any is open, once nothing fails any more: a lease, a sweep,
the longest wait for a retry and the longest step together."""

CALM_BOUND_S: Final = 7200.0
"""Virtual seconds within which every task ends once nothing fails any more."""


GOES_ON: Final = frozenset({StepStatus.READY, StepStatus.RUNNING, StepStatus.BLOCKED, StepStatus.EXPANDING})
"""What an assigned step is from the moment when its run may begin; a map step that waits for its items is not."""
A = TypeVar("A", bound=Actor)


class AuditedStore(Store, Protocol):
    """A store that shows its rows to the auditor."""

    @property
    def rows(self) -> Rows: ...


class ClientActor(Actor):
    """A person with a session: submits tasks, and pauses, resumes, cancels and retries them."""

    kind = "client"

    def __init__(self, ground: "Deployment", name: str, session: Session, random: Random) -> None:
        super().__init__(ground, name)
        self._session = session
        self._random = random
        self._client = Client(self.store, self.notifier, ground.board, self.clock, ground.settings)

    async def live(self) -> None:
        for number in range(self._random.choice((1, 2, 3, 4))):
            await asyncio.sleep(self._random.uniform(0.0, 20.0))
            await self._say(self._submit(f"{self.name}-{number}"))
            for _ in range(self._random.choice((0, 0, 1, 2, 4))):
                await asyncio.sleep(self._random.uniform(0.0, 20.0))
                await self._say(self._order())

    async def _say(self, work: Any) -> None:
        try:
            await work
        except (ConflictError, UnavailableError) as error:
            self.ground.note(self.name, "refused", str(error))

    async def _submit(self, title: str) -> None:
        task = new_task(
            random_plan(self._random, title),
            {},
            self._session,
            surface_of=lambda step: {},
            default_model="sim:small",
            now_us=self.clock.now_us(),
        )
        if self._session.id not in {known.id for known in await self.store.sessions.session_page()}:
            await self.store.sessions.open_session(self._session)
        await self.store.tasks.create_task(task)
        await self.notifier.notify_owners([self._session.id])
        if '"claim":"pull"' in dump(task.plan):
            for _ in range(self._random.choice((0, 1, 1, 2))):
                await self._dispatch(await self.store.tasks.task(task.id))

    async def _dispatch(self, task: Task) -> None:
        detail: dict[str, Json] = {"count": self._random.choice((1, 1, 2)), "pool": self._random.choice(POOLS)}
        if most := self._random.choice((0, 1, 3)):
            detail["max_steps"] = most
        await self._client.tasks.ask(CommandKind.DISPATCH, task, detail, limit_s=5.0)

    async def _order(self) -> None:
        tasks = await self.store.tasks.list_tasks(session_id=self._session.id)
        if not tasks:
            return
        task = self._random.choice(list(tasks))
        kind = self._random.choice((CommandKind.PAUSE, CommandKind.RESUME, CommandKind.CANCEL, CommandKind.RETRY))
        await self._client.tasks.ask(kind, task, {"reason": "simulated"}, limit_s=5.0)


class VisitorActor(Actor):
    """A program that has a few tasks done, each in a session of its own that ends with it."""

    kind = "client"

    def __init__(self, ground: "Deployment", random: Random) -> None:
        super().__init__(ground, "visitor")
        self._random = random
        self._client = Client(self.store, self.notifier, ground.board, self.clock, ground.settings)

    async def live(self) -> None:
        for number in range(self._random.choice((0, 1, 2, 4))):
            await asyncio.sleep(self._random.uniform(0.0, 20.0))
            mode = self._random.choice((ApprovalMode.DENY, ApprovalMode.DENY, ApprovalMode.INBOX))
            session = make_session(f"sess_short_{number}", approval_mode=mode, closes_with_task=True)
            plan = quick_plan if self._random.random() < 0.7 else random_plan
            task = new_task(
                plan(self._random, f"{self.name}-{number}"),
                {},
                session,
                surface_of=lambda step: {},
                default_model="sim:small",
                now_us=self.clock.now_us(),
            )
            try:
                await self._client.submit(Submission(session, task))
            except UnavailableError as error:
                self.ground.note(self.name, "refused", str(error))


class Deployment:
    """Implements ``tests.simulation.actors.Ground``. Lives for one run of one seed."""

    def __init__(self, seed: int, store: AuditedStore) -> None:
        self.seed = seed
        self.random = Random(f"{seed}/story")
        self.people = Random(f"{seed}/people")
        self.clock = FakeClock()
        self.loop = VirtualLoop(self.clock, Random(f"{seed}/order"), self.fail)  # type: ignore[abstract]  # it has what these programs ask of a loop
        self.dice = Dice(Random(f"{seed}/faults"))
        self.trace = Trace(self.clock)
        self.store: Store = store
        self.rows: Callable[[], Rows] = lambda: store.rows
        self.board = LossyBoard(self.dice, self.later)
        self.queues = Queues(self.dice, self.later)
        self.bench = SimulationHarness()
        self.settings = Settings(
            sweep_s=self.random.choice((2.0, 5.0, 8.0)),
            max_lost_leases=self.random.choice((3, 3, 100)),
            drain_s=self.random.choice((1.0, 10.0, 30.0)),
            park_after_s=self.random.choice((0.0, 1.0, 5.0)),
            max_parked=self.random.choice((1, 1000)),
        )
        self.auditor = Auditor(self.rows, self.clock.monotonic_s, self.settings.lease_s)
        self.is_database_down = False
        self.is_over = False
        self.broken: str | None = None
        self.borders: Counter[tuple[str, Fault]] = Counter()
        self.stale_acts = 0
        self._actors: list[Actor] = []
        self._asked: set[str] = set()
        self._answering: list[asyncio.Task[None]] = []
        self._numbers = count(1)
        self._over = asyncio.Event()

    # -- what actors ask of their ground
    def ended(self, actor: Actor) -> None:
        """A supervisor starts owners and workers again, after a while."""
        if self.is_over or actor.kind == "client":
            return
        wait_s = 1.0 if self.dice.is_calm else self.random.choice((0.1, 2.0, 30.0))
        if isinstance(actor, WorkerActor):
            self.later(wait_s, lambda: self._start_worker(actor.slots, actor.pools, actor.labels))
        else:
            self.later(wait_s, self._start_owner)

    def struck(self, border: str, fault: Fault) -> None:
        self.borders[border, fault] += 1

    def crossed(
        self, actor: Actor, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], outcome: object
    ) -> None:
        self.trace.crossed(actor.name, method, args, outcome)
        if method == "raise_request" and isinstance(outcome, str) and outcome not in self._asked:
            self._asked.add(outcome)
            self._ask_person(replace(args[0], id=outcome))
        try:
            self.auditor.committed(method, args, kwargs, outcome)
        except (BrokenPromiseError, UnjustClaimError) as error:
            self.fail(str(error))

    def _ask_person(self, request: PermissionRequest) -> None:
        """A person answers every question, many of them at the very moment at which its run parks."""
        border_s = self.settings.park_after_s
        near_s = border_s + self.people.choice((-0.01, 0.0, 0.001, 0.01, 0.05))
        wait_s = self.people.choice((0.0, near_s, near_s, self.people.uniform(0.0, 4 * border_s + 5.0)))
        choice = self.people.choice((Choice.ALLOW_ONCE, Choice.ALLOW_ONCE, Choice.DENY, Choice.ALLOW_FOR_SESSION))
        answer = make_answer(request, choice)
        self.later(max(0.0, wait_s), lambda: self._answering.append(self._begin_to_answer(answer)))

    def _begin_to_answer(self, answer: Answer) -> "asyncio.Task[None]":
        return self.loop.begin(self.loop.world, self._answer(answer))

    async def _answer(self, answer: Answer) -> None:
        try:
            await self.store.consent.answer(answer)
        except AlreadyDecidedError as error:
            self.note("person", "late", str(error))
            return
        request, _ = await self.store.consent.request(answer.request_id)
        self.note("person", "answered", answer.request_id)
        await self.board.permission_raised(answer.request_id, request.identity.session_id)

    def acts(self, actor: WorkerActor, claim: Claim) -> None:
        """Whoever works for a step holds its lease, or has just been let go again; it runs no more than fit."""
        if actor.process.slots.busy > actor.slots:
            self.fail(f"{actor.name} runs {actor.process.slots.busy} steps at once and has {actor.slots} slots")
        step = self.rows().steps[claim.step_key]
        if step.status.is_leased and step.fence == claim.fence:
            return
        self.stale_acts += 1
        if not actor.is_excused:
            self.fail(f"{actor.name} works for {claim.step_key} under the fence {claim.fence}, and the row is {step}")

    def note(self, actor: str, what: str, detail: object = "") -> None:
        self.trace.note(actor, what, detail)

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        self.loop.call_later(delay_s, act, context=self.loop.context_of(self.loop.world))

    def fail(self, what: str) -> None:
        if self.is_over:
            return
        self.broken = what
        self.trace.note("auditor", "BROKEN", what)
        self.is_over = True
        self._over.set()

    # -- the run
    def run(self) -> None:
        """Play the whole story. ``broken`` says what was found, None when every promise was kept."""
        try:
            self.loop.run(self._play())
        finally:
            self.is_over = True
            self.loop.put_down()

    async def _play(self) -> None:
        story = asyncio.ensure_future(self._story())
        over = asyncio.ensure_future(self._over.wait())
        await asyncio.wait({story, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if story.done():
            story.result()
        else:
            story.cancel()

    async def _story(self) -> None:
        random = self.random
        modes = (ApprovalMode.INBOX, ApprovalMode.INBOX, ApprovalMode.PROMPT)
        sessions = [
            make_session(f"sess_{number}", approval_mode=random.choice(modes)) for number in range(random.randint(1, 4))
        ]
        await self.store.claims.set_concurrency_limits(random_limits(random, [session.id for session in sessions]))
        for _ in range(random.choice((1, 1, 2, 3))):
            self._start_owner()
        for number in range(random.randint(1, 4)):
            pools = POOLS if number == 0 else random.choice((POOLS, POOLS[:1], POOLS[1:]))
            labels = (LABEL,) if number == 0 or random.random() < 0.3 else ()
            self._start_worker(random.randint(1, 4), pools, labels)
        for session in sessions:
            self._start(ClientActor(self, f"client-{session.id}", session, Random(f"{self.seed}/{session.id}")))
        self._start(VisitorActor(self, Random(f"{self.seed}/visitor")))
        await self._trouble(random.uniform(30.0, 100.0))
        await self._calm()
        try:
            check_end(self.rows(), self.auditor.given)
        except BrokenPromiseError as broken:
            self.fail(str(broken))
        if repeated := self.bench.effects.repeated():
            self.fail(f"these calls took effect more than once: {repeated}")

    def _start(self, actor: Actor) -> None:
        if not self.is_over:
            self._actors.append(actor)
            actor.start()

    def _start_owner(self) -> None:
        self._start(OwnerActor(self, f"owner{next(self._numbers)}"))

    def _start_worker(self, slots: int, pools: tuple[str, ...], labels: tuple[str, ...]) -> None:
        self._start(WorkerActor(self, f"worker{next(self._numbers)}", slots=slots, pools=pools, labels=labels))

    # -- the nemesis
    async def _trouble(self, for_s: float) -> None:
        random = self.dice.random
        end_s = self.clock.monotonic_s() + for_s
        pace_s = random.choice((2.0, 6.0, 20.0))
        while self.clock.monotonic_s() < end_s:
            await asyncio.sleep(random.expovariate(1 / pace_s))
            if self.dice.outside:
                self._strike(random.choice(self.dice.outside))

    def _strike(self, fault: Fault) -> None:
        random = self.dice.random
        about_lease_s = self.settings.lease_s * random.uniform(0.8, 1.5)
        strikes: dict[Fault, Callable[[], None]] = {
            Fault.DATABASE_DOWN: lambda: self._database_down(random.choice((0.5, 5.0, 30.0))),
            Fault.REDIS_DOWN: lambda: self._redis_down(random.choice((0.5, 5.0, 60.0))),
            Fault.REDIS_EMPTY: self._redis_empty,
            Fault.WORKER_KILLED: lambda: self._at(WorkerActor, WorkerActor.kill),
            Fault.WORKER_PAUSED: lambda: self._at(WorkerActor, WorkerActor.pause, 1.0, about_lease_s, 60.0),
            Fault.WORKER_STALLED: lambda: self._at(WorkerActor, WorkerActor.stall, 5.0, about_lease_s, 60.0),
            Fault.HEARTBEAT_HUNG: lambda: self._at(WorkerActor, WorkerActor.hang_heartbeat, 5.0, 60.0),
            Fault.WORKER_STOPPED: lambda: self._at(WorkerActor, WorkerActor.tell_to_stop),
            Fault.OWNER_KILLED: lambda: self._at(OwnerActor, OwnerActor.kill),
            Fault.OWNER_PAUSED: lambda: self._at(OwnerActor, OwnerActor.pause, 1.0, about_lease_s, 60.0),
            Fault.OWNER_STOPPED: lambda: self._at(OwnerActor, OwnerActor.tell_to_stop),
            Fault.CLOCK_JUMPED: self._clock_jumps,
        }
        self.note("nemesis", fault)
        self.dice.struck[fault] += 1
        strikes[fault]()

    def _at(self, kind: type[A], act: Callable[..., None], *for_s: float) -> None:
        """Let something happen to one living process of a kind, rather to one at work, for one of these times."""
        found = [actor for actor in self._actors if isinstance(actor, kind) and actor.is_alive]
        at_work = [actor for actor in found if actor.is_at_work]
        if found:
            act(self.dice.random.choice(at_work or found), *([self.dice.random.choice(for_s)] if for_s else []))

    def _clock_jumps(self) -> None:
        found = [actor for actor in self._actors if actor.is_alive]
        if found:
            self.dice.random.choice(found).clock.skew_us += self.dice.random.choice((-3_600, 3_600)) * 1_000_000

    def _database_down(self, for_s: float) -> None:
        self.is_database_down = True
        self.later(for_s, self._database_up)

    def _database_up(self) -> None:
        self.is_database_down = False

    def _redis_down(self, for_s: float) -> None:
        self.board.is_down = self.queues.is_down = True
        self.later(for_s, self._redis_up)

    def _redis_up(self) -> None:
        self.queues.is_down = False
        self.queues.deliver()
        self.board.come_back()

    def _redis_empty(self) -> None:
        self.queues.empty()
        self._redis_down(0.5)

    # -- after the faults
    async def _calm(self) -> None:
        """Let everything go on, and wait until every task has ended."""
        self.dice.calm()
        self.note("nemesis", "calm")
        self._database_up()
        self._redis_up()
        for actor in list(self._actors):
            if actor.is_alive:
                actor._let_go(actor.strands)
        calm_s = self.auditor.moved_s = self.clock.monotonic_s()
        while not await self._is_quiet():
            now_s = self.clock.monotonic_s()
            if now_s - self.auditor.moved_s > STILL_BOUND_S or now_s - calm_s > CALM_BOUND_S:
                open_ones = [str(step) for step in self.rows().steps.values() if not step.status.is_terminal]
                self.fail(f"nothing moves, and these have not ended: {open_ones or 'tasks or commands'}")
            await asyncio.sleep(1.0)

    async def _is_quiet(self) -> bool:
        """Say whether all has ended; a task that was left paused is resumed, one without a pull worker gets one."""
        if any(actor.kind == "client" and actor.is_alive for actor in self._actors):
            return False
        rows = self.rows()
        for task in rows.tasks.values():
            if task.status is TaskStatus.PAUSED:
                await self._command(CommandKind.RESUME, task)
            elif not task.status.is_terminal and _waits_for_a_pull_worker(rows.steps_of(task.id)):
                await self._command(CommandKind.DISPATCH, task)
        tasks_ended = all(task.status.is_terminal for task in rows.tasks.values())
        steps_ended = all(step.status.is_terminal for step in rows.steps.values())
        commands_ended = all(command.id in rows.ended_commands for command in rows.commands.values())
        return tasks_ended and steps_ended and commands_ended

    async def _command(self, kind: CommandKind, task: Task) -> None:
        client = Client(self.store, self.board, self.board, self.clock, self.settings)
        try:
            await client.tasks.ask(kind, task, {})
        except SoongError as error:
            self.note("nemesis", f"no {kind}", str(error))


def _waits_for_a_pull_worker(steps: Sequence[Step]) -> bool:
    """Say whether ready steps wait to be pulled while nothing of the task runs that could take them."""
    is_waiting = any(step.status is StepStatus.READY and step.claim_mode is ClaimMode.PULL for step in steps)
    return is_waiting and not any(step.status in GOES_ON and step.claim_mode is ClaimMode.ASSIGNED for step in steps)
