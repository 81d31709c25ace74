"""Every store against one small model: whatever is done in whatever order, steps stand as the model says."""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import ClassVar, TypeAlias, TypeVar

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

from soong.shared.core.errors import AlreadyDecidedError, InvalidTransitionError, LeaseLostError, NotOwnerError
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.spec import FailurePolicy
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import Claim, NewStep, StepEnd, StepError
from soong.shared.permissions.request import PermissionRequest, RequestState
from soong.shared.storage.sql.store import open_store
from soong.shared.storage.store import Store
from tests.contract.databases import empty_postgres, sqlite_copy
from tests.contract.scene import cancelled, completed, failed, held
from tests.contract.small_model import Model, Node
from tests.model.builders import (
    make_children,
    make_decision,
    make_map,
    make_owner,
    make_request,
    make_retry,
    make_session,
    make_step,
    make_task,
    make_worker,
)
from tests.model.clock import START_US
from tests.model.memory import MemoryStore
from tests.simulation.planted import FencelessStore

T = TypeVar("T")
Plan: TypeAlias = Sequence[tuple[bool, set[int]]]
OpenOne: TypeAlias = Callable[[Path], Awaitable[Store]]
Owned: TypeAlias = Callable[[Ownership], Coroutine[object, object, T]]

PLANS = st.lists(st.tuples(st.sampled_from([False, False, True]), st.sets(st.integers(0, 4))), min_size=1, max_size=6)
ANY = st.integers(0, 1000)
ENDS = st.sampled_from([completed, completed, completed, failed, cancelled])
NOW = START_US


class StepsStandAsTheModelSays(RuleBasedStateMachine):
    """One session, its owners one after another, and workers that come and go."""

    open_one: ClassVar[OpenOne]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(prefix="soong-model-"))
        self.store: Store = self.runner.run(_opened(type(self).open_one, self.folder))
        self.model = Model()
        self.session = make_session()
        self.own = Ownership(self.session.id, "", 0)
        self.lost: list[Ownership] = []
        self.roots: dict[str, str] = {}
        self.workers: list[str] = []
        self.claims: list[tuple[str, Claim]] = []
        self.requests: dict[str, PermissionRequest] = {}
        self.do(self.store.sessions.open_session(self.session))
        self.take_over()

    def teardown(self) -> None:
        try:
            self.check_logs()
        finally:
            self.do(self.store.close())
            self.runner.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def do(self, work: Coroutine[object, object, T]) -> T:
        return self.runner.run(work)

    def owned(self, act: Owned[T]) -> T:
        """Let every owner that was try first: none of them may."""
        for lost in self.lost[-2:]:
            with pytest.raises(NotOwnerError):
                self.do(act(lost))
        return self.do(act(self.own))

    # -- making
    @initialize(plan=PLANS)
    def begin(self, plan: Plan) -> None:
        self.new_worker()
        self.new_worker()
        self.create(plan)
        self.claim(0, 2)  # most of what is interesting happens to steps that somebody holds

    def new_worker(self) -> None:
        worker = make_worker()
        self.workers.append(worker.id)
        self.do(self.store.sessions.register_worker(worker))

    @precondition(lambda self: len(self.model.tasks) < 3)
    @rule(plan=PLANS)
    def create(self, plan: Plan) -> None:
        task = make_task(self.session.id, *_steps(plan))
        self.roots[task.id] = task.root_run.identity.run_id
        self.do(self.store.tasks.create_task(task))
        self.model.create(task.id, [Node(s.key, task.id, set(s.depends_on), s.run is None) for s in task.steps])

    @precondition(lambda self: self.that_are(StepStatus.EXPANDING))
    @rule(which=ANY, items=st.integers(0, 3))
    def expand(self, which: int, items: int) -> None:
        key = _one(self.that_are(StepStatus.EXPANDING), which)
        step = self.do(self.store.tasks.step(key))
        root = self.do(self.store.runs.run(self.roots[step.task_id])).identity
        children = make_children(step, root, *(f"i{number}" for number in range(items)))
        for is_expanding in (True, False):  # the second time it is none any more
            assert self.owned(lambda own: self.store.tasks.expand(own, key, children, now_us=NOW)) is is_expanding
        assert self.model.expand(key, [child.key for child in children])

    @precondition(lambda self: self.that_are(StepStatus.EXPANDING))
    @rule(which=ANY)
    def fail_expansion(self, which: int) -> None:
        key = _one(self.that_are(StepStatus.EXPANDING), which)
        error = StepError("invalid_input", "it is over no list")
        self.owned(lambda own: self.store.tasks.fail_expansion(own, key, error, now_us=NOW))
        self.model.fail_expansion(key)

    # -- workers
    @rule(which=ANY, count=st.integers(1, 4))
    def claim(self, which: int, count: int) -> None:
        self.advance(_one(self.workers, which), (), count)

    @precondition(lambda self: self.claims)
    @rule(which=ANY, end=ENDS, count=st.integers(0, 2))
    def end(self, which: int, end: Callable[[Claim], StepEnd], count: int) -> None:
        """Report the end of what a worker was once given, held or not, and claim in the same transaction."""
        worker, claim = _one(self.claims, which)
        self.advance(worker, [end(claim)], count)

    @precondition(lambda self: self.held())
    @rule(which=ANY, end=ENDS)
    def end_held(self, which: int, end: Callable[[Claim], StepEnd]) -> None:
        worker, claim = _one(self.held(), which)
        self.advance(worker, [end(claim)], 1)

    def advance(self, worker: str, ends: Sequence[StepEnd], count: int) -> None:
        advance = self.do(
            self.store.claims.advance(
                worker, ends, claim=count, pools=("default",), capabilities=(), live_workers=1, now_us=NOW
            )
        )
        stale = {end.run_id for end in ends if not self.model.holds(worker, end.step_key, end.fence)}
        assert advance.stale == stale
        for end in ends:
            if end.run_id not in stale:
                self.model.end(end.step_key, end.status)
        claimable = self.model.claimable() if worker in self.live() else set()
        assert {claim.step_key for claim in advance.claims} <= claimable
        assert len(advance.claims) == min(count, len(claimable))
        for claim in advance.claims:
            self.model.claim(claim.step_key, worker, claim.identity.run_id)
            assert claim.fence == self.model.nodes[claim.step_key].fence
            self.claims.append((worker, claim))

    @precondition(lambda self: self.claims)
    @rule(which=ANY)
    def release(self, which: int) -> None:
        worker, claim = _one(self.claims, which)
        is_held = self.model.holds(worker, claim.step_key, claim.fence)
        stale = self.do(self.store.claims.release(worker, [held(claim)], reason="drain", now_us=NOW))
        assert stale == (frozenset() if is_held else {claim.identity.run_id})
        if is_held:
            self.model.release(claim.step_key)

    # -- consent
    @precondition(lambda self: self.held())
    @rule(which=ANY, count=st.integers(1, 2), then=st.sampled_from(["it is answered", "it parks", "it waits"]))
    def ask(self, which: int, count: int, then: str) -> None:
        worker, claim = _one(self.held(), which)
        for _ in range(count):
            request = make_request(claim, f"call_{len(self.requests)}")
            assert self.do(self.store.consent.raise_request(request, events=(), now_us=NOW)) == request.id
            self.requests[request.id] = request
            self.model.questions[request.id] = (claim.step_key, claim.identity.run_id)
        asked = self.model.open_of(claim.identity.run_id)
        if then != "it waits":
            self.park(worker, claim, asked)
        if then == "it is answered":
            self.answer(min(asked))
            self.advance(_one(self.workers, which + 1), (), 1)

    @precondition(lambda self: self.requests)
    @rule(which=ANY, whose=ANY)
    def park_late(self, which: int, whose: int) -> None:
        """Park what a worker was once given, held or not, with a question that need be neither its own nor open."""
        worker, claim = _one(self.claims, which)
        self.park(worker, claim, self.model.open_of(claim.identity.run_id) or {_one(sorted(self.requests), whose)})

    def park(self, worker: str, claim: Claim, asked: set[str]) -> None:
        may_park = self.model.may_park(worker, claim.step_key, claim.fence, asked, 2)
        park = self.store.claims.park(worker, held(claim), sorted(asked), max_parked=2, now_us=NOW)
        assert self.do(park) is may_park
        if may_park:
            self.model.park(claim.step_key)

    @precondition(lambda self: self.model.questions)
    @rule(which=ANY)
    def decide(self, which: int) -> None:
        self.answer(_one(sorted(self.model.questions), which))

    def answer(self, request_id: str) -> None:
        request = self.requests[request_id]
        decision = make_decision(request)

        async def act(own: Ownership) -> bool:
            decided = await self.store.consent.decide(own, decision, state=RequestState.DECIDED, events=(), now_us=NOW)
            return decided.was_parked

        if not self.model.is_orphan(request.id):
            assert self.owned(act) is self.model.close(request.id)
        with pytest.raises(AlreadyDecidedError):
            self.do(act(self.own))

    @precondition(lambda self: self.model.questions)
    @rule()
    def withdraw_orphans(self) -> None:
        withdrawn = self.do(self.store.consent.withdraw_orphans(self.session.id, now_us=NOW))
        assert set(withdrawn) == self.model.withdraw_orphans()

    @precondition(lambda self: self.claims)
    @rule(which=ANY)
    def write_to_the_log(self, which: int) -> None:
        worker, claim = _one(self.claims, which)
        events = [NewEvent(EventType.MODEL_REQUESTED), NewEvent(EventType.MODEL_RESPONDED)]
        append = self.store.runs.append(claim.identity.run_id, claim.fence, events=events, now_us=NOW)
        if self.model.holds(worker, claim.step_key, claim.fence):
            self.do(append)
        else:
            with pytest.raises(LeaseLostError):
                self.do(append)

    @precondition(lambda self: self.held())
    @rule(which=ANY, most=st.integers(1, 3))
    def expire(self, which: int, most: int) -> None:
        worker, _ = _one(self.held(), which)
        concerned = self.do(self.store.claims.expire_worker(worker, 0, max_lost_leases=most, now_us=NOW))
        assert concerned == frozenset({self.session.id})
        self.model.expire(worker, most)
        self.new_worker()

    # -- owners
    @rule()
    def take_over(self) -> None:
        """The owner ends, by its will or not, and another adopts its session."""
        if self.own.owner_id:
            self.do(self.store.sessions.release_owner(self.own.owner_id))
            self.lost.append(self.own)
        owner = make_owner()
        self.do(self.store.sessions.register_owner(owner))
        (adopted,) = self.do(self.store.sessions.adopt_sessions(owner.id))
        assert adopted.owner_epoch == self.own.epoch + 1
        self.own = adopted.ownership

    @precondition(lambda self: self.retryable())
    @rule(which=ANY)
    def retry(self, which: int) -> None:
        key = _one(self.retryable(), which)
        last = self.do(self.store.runs.run(self.do(self.store.tasks.step(key)).run_id))
        self.owned(lambda own: self.store.tasks.retry_step(own, key, make_retry(last), not_before_us=NOW, now_us=NOW))
        self.model.retry(key)

    @rule()
    def promote(self) -> None:
        assert self.owned(lambda own: self.store.tasks.promote_due(own, now_us=NOW)) is None
        self.model.promote()

    @precondition(lambda self: self.that_are(StepStatus.FAILED))
    @rule(which=ANY, policy=st.sampled_from(list(FailurePolicy)))
    def settle(self, which: int, policy: FailurePolicy) -> None:
        key = _one(self.that_are(StepStatus.FAILED), which)
        self.owned(lambda own: self.store.tasks.settle_failure(own, key, policy, now_us=NOW))
        assert self.model.settle(key, policy)

    @rule(which=ANY, order=st.sampled_from(["pause", "resume", "resume", "cancel"]))
    def steer(self, which: int, order: str) -> None:
        task = _one(list(self.model.tasks), which)
        is_done: bool = getattr(self.model, order)(task)
        try:
            self.owned(lambda own: self._steer(own, task, order))
        except InvalidTransitionError:
            assert not is_done
        else:
            assert is_done

    async def _steer(self, own: Ownership, task: str, order: str) -> None:
        match order:
            case "pause":
                await self.store.tasks.pause_task(own, task, reason="r", now_us=NOW)
            case "resume":
                await self.store.tasks.resume_task(own, task, now_us=NOW)
            case _:
                await self.store.tasks.cancel_task(own, task, reason="r", now_us=NOW)

    @rule(which=ANY)
    def finish(self, which: int) -> None:
        task = _one(list(self.model.tasks), which)
        assert self.owned(lambda own: self.store.tasks.finish_task(own, task, now_us=NOW)) is self.model.finish(task)

    # -- what must hold after each act
    @invariant()
    def steps_stand_as_the_model_says(self) -> None:
        for task, status in self.model.tasks.items():
            assert self.do(self.store.tasks.task(task)).status is status
            for step in self.do(self.store.tasks.steps(task)):
                node = self.model.nodes[step.key]
                assert (step.key, step.status, step.fence) == (node.key, node.status, node.fence)
                if step.status.is_leased:
                    assert step.worker_id == node.holder
                if step.status in {StepStatus.PENDING, StepStatus.WAITING}:
                    assert step.open_deps == len(node.waits)

    @invariant()
    def leases_and_failures_are_those_of_the_model(self) -> None:
        for worker in self.workers[-3:]:
            leases = {lease.step_key for lease in self.do(self.store.claims.leases(worker))}
            running = self.that_are(StepStatus.RUNNING)
            assert leases == {key for key in running if self.model.nodes[key].holder == worker}
        unsettled = {key for key in self.that_are(StepStatus.FAILED) if not self.model.nodes[key].is_settled}
        assert {step.key for step in self.do(self.store.tasks.failures(self.own))} == unsettled

    @invariant()
    def questions_are_those_of_the_model(self) -> None:
        assert {request.id for request in self.do(self.store.consent.pending(self.session.id))} == self.model.waiting()

    def check_logs(self) -> None:
        for run in self.do(self.store.runs.list_runs(session_id=self.session.id)):
            numbers = [event.seq for event in self.do(self.store.runs.events(run.id))]
            assert numbers == list(range(1, run.last_seq + 1))

    # -- looking at the model
    def that_are(self, status: StepStatus) -> list[str]:
        return [node.key for node in self.model.nodes.values() if node.status is status]

    def held(self) -> list[tuple[str, Claim]]:
        return [
            (worker, claim) for worker, claim in self.claims if self.model.holds(worker, claim.step_key, claim.fence)
        ]

    def retryable(self) -> list[str]:
        return [key for key in self.model.nodes if self.model.may_retry(key)]

    def live(self) -> set[str]:
        return {worker.id for worker in self.do(self.store.sessions.workers())}


def _one(choices: Sequence[T], which: int) -> T:
    return choices[which % len(choices)]


def _steps(plan: Plan) -> list[NewStep]:
    """Return steps that depend on earlier ones only."""
    steps = []
    for number, (is_map, needed) in enumerate(plan):
        depends_on = [f"s{parent}" for parent in sorted(needed) if parent < number]
        make = make_map if is_map else make_step
        steps.append(make(f"s{number}", depends_on=depends_on))
    return steps


async def _opened(open_one: OpenOne, folder: Path) -> Store:
    return await open_one(folder)


@pytest.fixture(params=[("memory", 40), ("sqlite", 15), ("postgres", 5)], ids=lambda param: param[0])
def opening(request: pytest.FixtureRequest) -> tuple[OpenOne, int]:
    """Return what opens an empty store, and how many stories are worth its time."""
    kind, examples = request.param
    if kind == "memory":
        return _open_memory, examples
    if kind == "sqlite":
        template: Path = request.getfixturevalue("sqlite_template")
        return lambda folder: open_store(sqlite_copy(template, folder), migrate=False), examples
    url: str = request.getfixturevalue("postgres_deployment")

    async def open_emptied(_: Path) -> Store:
        empty_postgres(url)
        return await open_store(url, migrate=False)

    return open_emptied, examples


async def _open_memory(_: Path) -> Store:
    return MemoryStore()


@pytest.mark.spec("DAG-03", "DAG-04", "DAG-05", "DAG-06", "DAG-07", "EVT-02", "PER-13")
def test_steps_stand_as_the_model_says(opening: tuple[OpenOne, int]) -> None:
    search(*opening)


def test_a_store_that_takes_stale_ends_does_not_stand_as_the_model_says() -> None:
    async def open_fenceless(_: Path) -> Store:
        return FencelessStore()

    with pytest.raises(AssertionError):
        search(open_fenceless, 600)  # ends with the first story that shows it


def search(open_one: OpenOne, examples: int) -> None:
    """Play so many stories over stores that are opened so. Raises what the first broken one raised."""
    machine = type("Machine", (StepsStandAsTheModelSays,), {"open_one": staticmethod(open_one)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,  # the same stories in every run
            database=None,
            phases=[Phase.generate],  # a failure shows its story in a minute; shrinking it takes ten
            suppress_health_check=list(HealthCheck),
        ),
    )
