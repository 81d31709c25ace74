"""Promised times, held exactly: the product's own owners and workers on a clock that no busy machine can slow down.

Nothing fails here. What a step waits for takes virtual time; what programs compute takes none.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count

import pytest

from soong.orchestrator.client.client import Client
from soong.shared.core.identity import ids_from
from soong.shared.core.jsontext import Json
from soong.shared.engine.sessions.session import ApprovalMode, CommandKind
from soong.shared.engine.tasks.new_tasks import new_task
from soong.shared.engine.tasks.plan.plan import PlanNames
from soong.shared.engine.tasks.plan.reader import plan_from_json
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Step, Task
from soong.shared.permissions.request import PermissionRequest
from tests.model.builders import make_session
from tests.model.memory import MemoryStore
from tests.simulation.actors import Actor, OwnerActor, WorkerActor
from tests.simulation.deployment import Deployment
from tests.simulation.plans import POOLS

SEEDS = range(1, 9)
"""Each orders what is ready at one time in another way, and draws another sweep and another parking time."""

CANCEL_S = 1.0
LONG_S = 3600.0


def step(step_id: str, does: str = "ok", *, pause_s: float = LONG_S, **more: Json) -> dict[str, Json]:
    """Return a step that writes nothing, pauses once and then does what its word says."""
    script: dict[str, Json] = {
        "does": does, "first": 1, "writes": 0, "pause_s": pause_s, "items": 0, "asks": 1, "from_ids": [], "from": [],
    }  # fmt: skip
    return {"id": step_id, "instructions": "Do what the script says.", "inputs": script, **more}


class Quiet(Deployment):
    """A deployment without faults; ``tell`` is its story. Nobody answers a question."""

    def __init__(self, seed: int, tell: "Callable[[Quiet], Awaitable[None]]") -> None:
        super().__init__(seed, MemoryStore())
        self.dice.calm()
        self._tell = tell
        self._person = Actor(self, "person")

    async def _story(self) -> None:
        await self._tell(self)

    def _ask_person(self, request: PermissionRequest) -> None:
        self.note("person", "sleeps", request.id)

    def acts(self, actor: WorkerActor, claim: object) -> None: ...

    def ended(self, actor: Actor) -> None: ...

    @property
    def now_s(self) -> float:
        return self.clock.monotonic_s()

    def start_owner(self) -> OwnerActor:
        self._start_owner()
        owner = self._actors[-1]
        assert isinstance(owner, OwnerActor)
        return owner

    def start_worker(self, slots: int = 8) -> WorkerActor:
        self._start_worker(slots, POOLS, ())
        worker = self._actors[-1]
        assert isinstance(worker, WorkerActor)
        return worker

    @property
    def client(self) -> Client:
        return Client(self._person.store, self._person.notifier, self.board, self.clock, self.settings)

    async def submit(self, steps: Sequence[dict[str, Json]]) -> Task:
        session = make_session("sess_1", approval_mode=ApprovalMode.INBOX)
        plan = plan_from_json({"title": "t", "steps": list(steps)}, "t", PlanNames())
        task = new_task(
            plan, {}, session, surface_of=lambda _: {}, default_model="sim:small", now_us=self.clock.now_us()
        )
        await self._person.store.sessions.open_session(session)
        await self._person.store.tasks.create_task(task)
        await self._person.notifier.notify_owners([session.id])
        return await self._person.store.tasks.task(task.id)

    def steps(self) -> dict[str, Step]:
        return {each.step_id: each for each in self.rows().steps.values()}

    async def until(self, holds: Callable[[], bool], *, within_s: float = 600.0) -> float:
        """Wait in virtual time, looking every 10 ms; return the time that it took."""
        began_s = self.now_s
        while not holds():
            assert self.now_s - began_s < within_s, f"not within {within_s} s: {self.steps()}"
            await asyncio.sleep(0.01)
        return self.now_s - began_s

    def statuses(self) -> dict[str, StepStatus]:
        return {name: each.status for name, each in self.steps().items()}

    def ended_steps(self) -> set[str]:
        return {name for name, each in self.steps().items() if each.status.is_terminal}


def play(seed: int, tell: Callable[[Quiet], Awaitable[None]]) -> None:
    numbers = count(1)
    with ids_from(lambda: f"{next(numbers):06}"):
        deployment = Quiet(seed, tell)
        deployment.run()
    assert deployment.broken is None, deployment.broken


@pytest.mark.spec("DAG-06.a", "DAG-06.b", "DAG-06.c")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("after_s", [1.0, 60.0], ids=["while it asks", "when it has parked"])
def test_a_cancel_ends_what_is_queued_runs_asks_and_waits_within_a_second(seed: int, after_s: float) -> None:
    async def story(quiet: Quiet) -> None:
        quiet.start_owner()
        quiet.start_worker(slots=3)
        task = await quiet.submit([
            step("runs"),
            step("runs_too"),
            step("asks", "asks", pause_s=0.0),
            step("queued_for_a_slot", priority=-1),
            step("queued_for_another_slot", priority=-1),
            step("queued_for_a_label", needs=["nobody-has-it"]),
            step("waits", depends_on=["runs", "asks"]),
        ])  # fmt: skip
        await quiet.until(lambda: quiet.statuses()["runs"].is_leased and bool(quiet.rows().requests))
        await asyncio.sleep(after_s)
        before = quiet.statuses()

        cancelling = asyncio.ensure_future(quiet.client.tasks.cancel(task, reason="enough"))
        took_s = await quiet.until(lambda: len(quiet.ended_steps()) == len(before))
        await cancelling

        assert quiet.ended_steps() == before.keys()
        assert {before[name] for name in ("runs", "runs_too")} == {StepStatus.RUNNING}
        assert before["queued_for_a_label"] is StepStatus.READY
        assert before["waits"] is StepStatus.PENDING
        assert set(quiet.statuses().values()) == {StepStatus.CANCELLED}
        assert took_s <= CANCEL_S

    play(seed, story)


@pytest.mark.spec("DAG-06.b")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_single_step_is_cancelled_within_a_second_on_any_worker(seed: int) -> None:
    async def story(quiet: Quiet) -> None:
        quiet.start_owner()
        quiet.start_worker()
        pulled = step("pulled", claim="pull")
        pulled["inputs"] = {**dict(pulled["inputs"]), "is_unreported": False, "is_greedy": False}  # type: ignore[arg-type]  # an object
        task = await quiet.submit([step("claimed"), pulled])
        await quiet.client.tasks.ask(CommandKind.DISPATCH, task, {"count": 1, "pool": POOLS[0]})
        await quiet.until(lambda: all(quiet.statuses()[name].is_leased for name in ("claimed", "pulled")))

        detail: dict[str, Json] = {"cancel_steps": ["claimed", "pulled"], "reason": "not needed"}
        cancelling = asyncio.ensure_future(quiet.client.tasks.ask(CommandKind.UPDATE, task, detail))
        took_s = await quiet.until(lambda: {"claimed", "pulled"} <= quiet.ended_steps())
        await cancelling

        assert {quiet.statuses()[name] for name in ("claimed", "pulled")} == {StepStatus.CANCELLED}
        assert took_s <= CANCEL_S

    play(seed, story)


@pytest.mark.spec("DAG-07.a", "DAG-03.c")
@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_killed_worker_held_is_taken_over_after_a_lease_and_two_sweeps(seed: int) -> None:
    async def story(quiet: Quiet) -> None:
        quiet.start_owner()
        workers = [quiet.start_worker() for _ in range(2)]
        await quiet.submit([step(f"s{number}") for number in range(8)])
        await quiet.until(lambda: all(status.is_leased for status in quiet.statuses().values()))
        victim = next(worker for worker in workers if worker.worker_id == quiet.steps()["s0"].worker_id)
        held = {name: each for name, each in quiet.steps().items() if each.worker_id == victim.worker_id}
        await asyncio.sleep(quiet.random.uniform(0.0, 10.0))

        victim.kill()
        took_s = await quiet.until(
            lambda: all(
                quiet.steps()[name].fence > each.fence and quiet.statuses()[name].is_leased
                for name, each in held.items()
            )
        )

        assert held
        assert took_s <= quiet.settings.lease_s + 2 * quiet.settings.sweep_s

    play(seed, story)


@pytest.mark.spec("DAG-07.b", "CARD-1.b")
@pytest.mark.parametrize("seed", SEEDS)
def test_the_sessions_of_a_killed_owner_are_taken_over_after_a_lease_and_two_sweeps(seed: int) -> None:
    async def story(quiet: Quiet) -> None:
        owners = [quiet.start_owner() for _ in range(2)]
        quiet.start_worker()
        task = await quiet.submit([step("runs")])
        session = quiet.rows().sessions[task.session_id]
        await quiet.until(lambda: quiet.statuses()["runs"].is_leased)
        owner_id = quiet.rows().sessions[session.id].owner_id
        victim = next(owner for owner in owners if owner.orchestrator.owner_id == owner_id)
        await asyncio.sleep(quiet.random.uniform(0.0, 10.0))

        victim.kill()
        took_s = await quiet.until(lambda: quiet.rows().sessions[session.id].owner_id not in {"", owner_id})

        assert took_s <= quiet.settings.lease_s + 2 * quiet.settings.sweep_s

    play(seed, story)
