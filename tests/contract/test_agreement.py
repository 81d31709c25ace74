"""The model and an SQL store are given the same random story and must tell it alike."""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import ClassVar, TypeAlias, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import asdict, replace

from soong.shared.core.errors import SoongError
from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.runs.events import Event, EventType, NewEvent
from soong.shared.engine.runs.record import Run
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.change import TaskChange
from soong.shared.engine.tasks.new_tasks import retried_step
from soong.shared.engine.tasks.rerun import is_loss, rerun
from soong.shared.engine.tasks.spec import FailurePolicy, StepKind, StepStatus, TaskStatus
from soong.shared.engine.tasks.step import (
    Advance,
    Claim,
    ConcurrencyLimit,
    Interrupt,
    NewStep,
    NewTask,
    Step,
    StepEnd,
    StepError,
    Task,
)
from soong.shared.engine.tasks.verdict import FailStep, GrowMap, OpenStep, SkipStep, StepVerdict
from soong.shared.permissions.request import PermissionRequest, RequestState
from soong.shared.storage.sql.store import open_store
from soong.shared.storage.store import Store
from tests.contract.databases import empty_postgres, sqlite_copy
from tests.contract.scene import cancelled, completed, failed, held
from tests.model.builders import (
    make_children,
    make_decision,
    make_more,
    make_owner,
    make_request,
    make_retry,
    make_session,
    make_step,
    make_task,
    make_worker,
)
from tests.model.clock import FakeClock
from tests.model.memory import MemoryStore

T = TypeVar("T")
Plan: TypeAlias = Sequence[tuple[StepKind, set[int], int, JsonObject]]
End: TypeAlias = Callable[[Claim], StepEnd]
Act: TypeAlias = Callable[[Store], Coroutine[object, object, T]]

KINDS = st.sampled_from([StepKind.PYTHON, StepKind.PYTHON, StepKind.MAP])
GATES = st.sampled_from([{}, {}, {}, {"when": "true"}, {"join": "any"}, {"join": "done"}])
PLANS = st.lists(
    st.tuples(KINDS, st.sets(st.integers(0, 4), max_size=3), st.integers(0, 2), GATES), min_size=1, max_size=5
)
VERDICTS = st.sampled_from([None, None, SkipStep("its condition is false"), FailStep(StepError("x", "x"))])
"""None: the step opens, or grows its items."""
ANY = st.integers(0, 1000)
POLICIES = st.sampled_from(list(FailurePolicy))
ORDERS = st.sampled_from(["interrupt", "pause", "resume", "resume", "cancel"])
ENDS = st.sampled_from([completed, completed, failed, cancelled])


class StoresAgree(RuleBasedStateMachine):
    """Drives two stores with the same acts. Choices among what has happened so far are indices, taken modulo."""

    fresh_url: ClassVar[Callable[[Path], str]]
    """Returns the URL of an empty, migrated database; what it needs on disk is in the folder given."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(prefix="soong-agree-"))
        self.model = MemoryStore()
        self.subject: Store = self.runner.run(open_store(type(self).fresh_url(self.folder), migrate=False))
        self.clock = FakeClock()
        session = make_session(owner_id="own_1")
        self.own: Ownership = session.ownership
        self.workers: list[str] = []
        self.tasks: list[NewTask] = []
        self.claims: list[tuple[str, Claim]] = []
        self.requests: dict[str, PermissionRequest] = {}
        self.both(lambda store: store.sessions.register_owner(make_owner("own_1")))
        self.both(lambda store: store.sessions.open_session(session))
        self.both(lambda store: store.claims.set_concurrency_limits([ConcurrencyLimit("definition:limited", 2)]))

    def teardown(self) -> None:
        try:
            for run_id in self.model.rows.runs:
                self.both(lambda store, run_id=run_id: store.runs.events(run_id))  # type: ignore[misc]
                self.both(lambda store, run_id=run_id: store.runs.nodes(run_id))  # type: ignore[misc]
        finally:
            self.close()

    def close(self) -> None:
        self.runner.run(self.subject.close())
        self.runner.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- what both are given
    def both(self, act: Act[T]) -> T | None:
        """Let both stores act; return the model's outcome, None when both refused alike."""
        expected, expected_error = self.runner.run(_outcome(act(self.model)))
        actual, actual_error = self.runner.run(_outcome(act(self.subject)))
        assert actual_error == expected_error
        assert _plain(actual) == _plain(expected)
        if isinstance(expected, Advance) and isinstance(actual, Advance):
            # A look too many does no harm, one too few would leave work lying.
            assert actual.ready_left or not expected.ready_left
        return expected

    @property
    def now_us(self) -> int:
        return self.clock.now_us()

    # -- acts
    @initialize(plan=PLANS)
    def begin(self, plan: Plan) -> None:
        self.new_worker()
        self.new_worker()
        self.create(plan)

    def new_worker(self) -> None:
        worker = make_worker()
        self.workers.append(worker.id)
        self.both(lambda store: store.sessions.register_worker(worker))

    @precondition(lambda self: len(self.tasks) < 3)
    @rule(plan=PLANS)
    def create(self, plan: Plan) -> None:
        task = make_task(self.own.session_id, *_steps(plan))
        self.tasks.append(task)
        self.both(lambda store: store.tasks.create_task(task))

    @rule(which=ANY, count=st.integers(1, 4), live=st.integers(1, 3))
    def claim(self, which: int, count: int, live: int) -> None:
        self.advance(self.workers[-1 - which % 2], (), count, live)

    @precondition(lambda self: self.leased())
    @rule(which=ANY, ends=st.lists(ENDS, min_size=1, max_size=3), claim=st.integers(0, 3))
    def work(self, which: int, ends: Sequence[End], claim: int) -> None:
        """Let a worker end some of what it holds and claim again."""
        worker_id, _ = _one(self.leased(), which)
        given = [claim for holder, claim in self.leased() if holder == worker_id]
        self.advance(worker_id, [end(claim) for end, claim in zip(ends, given, strict=False)], claim, 1)

    @precondition(lambda self: self.leased())
    @rule(which=ANY, claim=st.integers(1, 3))
    def succeed(self, which: int, claim: int) -> None:
        worker_id, lease = _one(self.leased(), which)
        self.advance(worker_id, [completed(lease, lease.identity.step_title)], claim, 1)

    @precondition(lambda self: self.claims)
    @rule(which=ANY, end=ENDS)
    def end_late(self, which: int, end: End) -> None:
        """Report the end of what a worker was once given, held or not."""
        worker_id, claim = _one(self.claims, which)
        self.advance(worker_id, [end(claim)], 0, 1)

    def advance(self, worker_id: str, ends: Sequence[StepEnd], claim: int, live: int) -> None:
        def act(store: Store) -> Coroutine[object, object, Advance]:
            return store.claims.advance(
                worker_id, ends, claim=claim, pools=("default",), capabilities=(), live_workers=live, now_us=self.now_us
            )

        advance = self.both(act)
        assert advance is not None
        self.claims += [(worker_id, claim) for claim in advance.claims]

    @precondition(lambda self: self.claims)
    @rule(which=ANY)
    def release(self, which: int) -> None:
        worker_id, claim = _one(self.claims, which)
        self.both(lambda store: store.claims.release(worker_id, [held(claim)], reason="drain", now_us=self.now_us))

    @precondition(lambda self: self.leased())
    @rule(which=ANY, most=st.integers(1, 2))
    def expire(self, which: int, most: int) -> None:
        worker_id, _ = _one(self.leased(), which)
        self.both(lambda store: store.claims.expire_worker(worker_id, 0, max_lost_leases=most, now_us=self.now_us))
        self.new_worker()

    @precondition(lambda self: self.steps_that_are(StepStatus.EXPANDING))
    @rule(which=ANY, items=st.integers(0, 3), verdict=VERDICTS)
    def judge(self, which: int, items: int, verdict: StepVerdict | None) -> None:
        """Open, skip or fail a step that its owner decides; expand a map."""
        step = _one(self.steps_that_are(StepStatus.EXPANDING), which)
        root = next(task.root_run.identity for task in self.tasks if task.id == step.task_id)
        grown = GrowMap(tuple(make_children(step, root, *(f"i{number}" for number in range(items)))))
        given = verdict or (grown if step.kind is StepKind.MAP else OpenStep())
        self.both(lambda store: store.tasks.write_verdict(self.own, step.key, given, now_us=self.now_us))

    @precondition(lambda self: self.steps_that_are(StepStatus.FAILED))
    @rule(which=ANY, policy=POLICIES)
    def settle(self, which: int, policy: FailurePolicy) -> None:
        key = _one(self.steps_that_are(StepStatus.FAILED), which).key
        self.both(lambda store: store.tasks.settle_failure(self.own, key, policy, now_us=self.now_us))

    @precondition(lambda self: self.attempts_that_failed())
    @rule(which=ANY)
    def retry(self, which: int) -> None:
        step = _one(self.attempts_that_failed(), which)
        run = make_retry(self.run_of(step))
        self.both(
            lambda store: store.tasks.retry_step(self.own, step.key, run, not_before_us=self.now_us, now_us=self.now_us)
        )
        self.both(lambda store: store.tasks.promote_due(self.own, now_us=self.now_us))

    @rule(which=ANY)
    def finish(self, which: int) -> None:
        task_id = _one(self.tasks, which).id
        self.both(lambda store: store.tasks.finish_task(self.own, task_id, now_us=self.now_us))

    @precondition(lambda self: len(self.claims) > 3)
    @rule(which=ANY, order=ORDERS)
    def order(self, which: int, order: str) -> None:
        task_id, own, now_us = _one(self.tasks, which).id, self.own, self.now_us
        if order == "cancel":
            self.both(lambda store: store.tasks.cancel_task(own, task_id, reason="r", now_us=now_us))
        elif order != "resume":
            self.both(lambda store: store.tasks.pause_task(own, task_id, reason="r", now_us=now_us))
        for worker_id in self.workers[-2:]:
            self.both(lambda store, worker=worker_id: _interrupts(store, worker))  # type: ignore[misc]
        if order in {"interrupt", "resume"}:
            self.both(lambda store: store.tasks.resume_task(own, task_id, now_us=now_us))

    @precondition(lambda self: self.ended_badly())
    @rule(which=ANY)
    def start_again(self, which: int) -> None:
        task_id = _one(self.ended_badly(), which)
        steps = [step for step in self.steps() if step.task_id == task_id and is_loss(step)]
        runs = [make_retry(self.run_of(step)) for step in steps if step.run_id]
        self.both(lambda store: store.tasks.retry_task(self.own, task_id, runs, now_us=self.now_us))

    @precondition(lambda self: self.tasks)
    @rule(which=ANY, plan=PLANS, needed=st.sets(ANY, max_size=2))
    def grow(self, which: int, plan: Plan, needed: set[int]) -> None:
        """Add steps, the first of which waits for some that stand, and let one that stands wait for the last."""
        task = _one(self.tasks, which)
        standing = [step for step in self.steps() if step.task_id == task.id]
        if len(standing) > 12:
            return
        number = len(standing)
        news = make_more(self.model.rows.tasks[task.id], task.root_run.identity, *_steps(plan[:2], f"g{number}_"))
        parents = tuple(dict.fromkeys(_one(standing, one).key for one in sorted(needed)))
        grown = (replace(news[0], depends_on=parents), *news[1:])
        edges = ((_one(standing, which).key, news[-1].key),) if which % 3 == 0 else ()
        self.change(task.id, TaskChange(steps=grown, edges=edges))
        self.both(lambda store: store.tasks.recount(self.own, task.id, now_us=self.now_us))

    @precondition(lambda self: self.tasks)
    @rule(which=ANY, how=st.sampled_from(["skipped", "cancelled"]))
    def take_out(self, which: int, how: str) -> None:
        step = _one(self.steps(), which)
        keys = (step.key,)
        is_skipped = how == "skipped"
        self.change(step.task_id, TaskChange(skipped=keys) if is_skipped else TaskChange(cancelled=keys))

    @precondition(lambda self: self.attempts_that_failed())
    @rule(which=ANY)
    def try_again(self, which: int) -> None:
        step = _one(self.attempts_that_failed(), which)
        attempt = retried_step(step, self.run_of(step), None, lambda _: {})
        self.change(step.task_id, TaskChange(attempts=(attempt,), priorities={step.key: which % 3}))

    def change(self, task_id: str, change: TaskChange) -> None:
        self.both(lambda store: store.tasks.update_task(self.own, task_id, change, now_us=self.now_us))

    @precondition(lambda self: self.ended())
    @rule(which=ANY, start=ANY)
    def start_from(self, which: int, start: int) -> None:
        task_id = _one(self.ended(), which)
        steps = [step for step in self.steps() if step.task_id == task_id]
        again = rerun(steps, _one(steps, start).step_id)
        runs = [make_retry(self.run_of(step)) for step in again.attempts]
        self.both(
            lambda store: store.tasks.retry_task(
                self.own, task_id, runs, again=again.again, regrown=again.regrown, now_us=self.now_us
            )
        )

    # -- consent, logs and owners
    @precondition(lambda self: self.leased())
    @rule(which=ANY, count=st.integers(1, 2), then=st.sampled_from(["waits", "parks", "is answered"]))
    def ask(self, which: int, count: int, then: str) -> None:
        worker_id, claim = _one(self.leased(), which)
        for _ in range(count):
            request = make_request(claim, f"call_{len(self.requests)}")
            self.requests[request.id] = request
            self.both(lambda store, raised=request: store.consent.raise_request(raised, events=(), now_us=self.now_us))  # type: ignore[misc]
        if then != "waits":
            self.park(worker_id, claim)
        if then == "is answered":
            self.decide(len(self.requests) - 1)

    @precondition(lambda self: self.requests)
    @rule(which=ANY, whose=ANY)
    def park_late(self, which: int, whose: int) -> None:
        """Park what a worker was once given, held or not, with a question that need be neither its own nor open."""
        self.park(*_one(self.claims, which), _one(sorted(self.requests), whose))

    def park(self, worker_id: str, claim: Claim, other: str = "") -> None:
        states, run_id = self.model.rows.request_states, claim.identity.run_id
        own = [key for key, one in self.requests.items() if one.identity.run_id == run_id]
        asked = sorted(key for key in own if states[key] is RequestState.PENDING) or [other]
        self.both(lambda store: store.claims.park(worker_id, held(claim), asked, max_parked=2, now_us=self.now_us))

    @precondition(lambda self: self.requests)
    @rule(which=ANY)
    def decide(self, which: int) -> None:
        decision, own = make_decision(_one(list(self.requests.values()), which)), self.own
        self.both(
            lambda store: store.consent.decide(own, decision, state=RequestState.DECIDED, events=(), now_us=self.now_us)
        )

    @precondition(lambda self: self.requests)
    @rule()
    def withdraw_orphans(self) -> None:
        self.both(lambda store: store.consent.withdraw_orphans(self.own.session_id, now_us=self.now_us))

    @precondition(lambda self: self.claims)
    @rule(which=ANY)
    def write_to_the_log(self, which: int) -> None:
        _, claim = _one(self.claims, which)
        events = [NewEvent(EventType.MODEL_REQUESTED), NewEvent(EventType.MODEL_RESPONDED)]
        self.both(
            lambda store: store.runs.append(claim.identity.run_id, claim.fence, events=events, now_us=self.now_us)
        )

    @rule(which=ANY)
    def take_over(self, which: int) -> None:
        """The owner leaves, another adopts its session, and the former one writes no more."""
        former, owner, task_id = self.own, make_owner(), _one(self.tasks, which).id
        self.both(lambda store: store.sessions.release_owner(former.owner_id))
        self.both(lambda store: store.sessions.register_owner(owner))
        adopted = self.both(lambda store: store.sessions.adopt_sessions(owner.id))
        assert adopted is not None
        self.own = adopted[0].ownership
        self.both(lambda store: store.tasks.pause_task(former, task_id, reason="r", now_us=self.now_us))

    # -- what must be alike after each act
    @invariant()
    def rows_are_alike(self) -> None:
        session_id = self.own.session_id
        self.both(lambda store: store.tasks.list_tasks(session_id=session_id))
        for task in self.tasks:
            self.both(lambda store, task_id=task.id: store.tasks.steps(task_id))  # type: ignore[misc]
        self.both(lambda store: store.runs.list_runs(session_id=session_id))
        self.both(lambda store: store.tasks.failures(self.own))
        self.both(lambda store: store.claims.backlog())
        self.both(lambda store: store.consent.questions(session_id=session_id, include_closed=True))

    # -- looking at the model
    def leased(self) -> list[tuple[str, Claim]]:
        now = {(step.worker_id, step.key, step.fence) for step in self.steps() if step.status.is_leased}
        return [
            (worker_id, claim) for worker_id, claim in self.claims if (worker_id, claim.step_key, claim.fence) in now
        ]

    def steps(self) -> list[Step]:
        return list(self.model.rows.steps.values())

    def steps_that_are(self, status: StepStatus) -> list[Step]:
        return [step for step in self.steps() if step.status is status]

    def attempts_that_failed(self) -> list[Step]:
        return [step for step in self.steps_that_are(StepStatus.FAILED) if step.run_id]

    def ended_badly(self) -> list[str]:
        bad = {TaskStatus.FAILED, TaskStatus.CANCELLED}
        return [task.id for task in self.model.rows.tasks.values() if task.status in bad]

    def ended(self) -> list[str]:
        return [task.id for task in self.model.rows.tasks.values() if task.status.is_terminal]

    def run_of(self, step: Step) -> Run:
        return self.model.rows.runs[step.run_id]


def _one(choices: Sequence[T], which: int) -> T:
    return choices[which % len(choices)]


def _steps(plan: Plan, prefix: str = "s") -> list[NewStep]:
    """Return steps that depend on earlier ones only; every third function counts in a concurrency limit."""
    steps = []
    for number, (kind, needed, priority, gate) in enumerate(plan):
        depends_on = [f"{prefix}{parent}" for parent in sorted(needed) if parent < number]
        step = make_step(f"{prefix}{number}", kind=kind, depends_on=depends_on, spec=gate)
        is_limited = number % 3 == 0
        steps.append(
            step if kind is StepKind.MAP else replace(step, priority=priority, definition="limited" * is_limited)
        )
    return steps


async def _outcome(act: Coroutine[object, object, T]) -> tuple[T | None, str]:
    try:
        return await act, ""
    except SoongError as error:
        return None, type(error).__name__


async def _interrupts(store: Store, worker_id: str) -> list[Interrupt]:
    # They come in no promised order.
    return sorted(await store.claims.interrupts(worker_id), key=lambda interrupt: interrupt.step_key)


def _plain(value: object) -> object:
    """Return a value in a form that two stores must agree on: words for people and details of events may differ."""
    if isinstance(value, Step):
        told = value.error.type if value.error else None
        return {**_fields(replace(value, error=None)), "error": told}
    if isinstance(value, Task):
        return {**_fields(replace(value, reason="")), "has_reason": bool(value.reason)}
    if isinstance(value, Interrupt):
        return _fields(replace(value, reason=""))
    if isinstance(value, Event):
        return value.seq, str(value.type), value.time_us
    if isinstance(value, Advance):
        return [*map(_plain, value.claims), value.stale, value.owner_sessions]
    if isinstance(value, msgspec.Struct):
        return _fields(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _fields(value: object) -> dict[str, object]:
    assert isinstance(value, msgspec.Struct)
    return asdict(value)


@pytest.fixture(params=["sqlite", "postgres"])
def fresh_url(request: pytest.FixtureRequest) -> Callable[[Path], str]:
    if request.param == "sqlite":
        template: Path = request.getfixturevalue("sqlite_template")
        return lambda folder: sqlite_copy(template, folder)
    url: str = request.getfixturevalue("postgres_deployment")

    def emptied(_: Path) -> str:
        empty_postgres(url)
        return url

    return emptied


@pytest.mark.spec("DAG-03", "DAG-04", "DAG-05", "DAG-06", "DAG-07", "EVT-02", "PER-13")
def test_model_and_store_tell_the_same_story(fresh_url: Callable[[Path], str]) -> None:
    story = type("Story", (StoresAgree,), {"fresh_url": staticmethod(fresh_url)})

    run_state_machine_as_test(
        story,
        settings=settings(
            max_examples=8,
            stateful_step_count=30,
            deadline=None,
            # The same stories in every run: a search that finds something new belongs to whoever looks for it.
            derandomize=True,
            database=None,
            # Without shrinking: a failure shows its story in a minute, not in ten.
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
