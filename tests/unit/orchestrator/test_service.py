"""The owner's loop: its background work, calls of workers, expired leases, jumps of the clock, commands for asks."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from soong.orchestrator.owner.commands import Commands
from soong.orchestrator.owner.parts import BackgroundWork, Routine
from soong.orchestrator.owner.scheduler import Expander, Scheduler
from soong.orchestrator.owner.workers import HEARD_OF, BeatWatch, Dispatcher
from soong.shared.core.errors import UnavailableError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.timing import SystemClock
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.sessions.session import Command, CommandKind, Ownership
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import NewTask, Step, StepEnd, StepError
from tests.contract.scene import open_scene
from tests.contract.test_asks import ask, planned_by, take_up
from tests.model.builders import make_step, make_worker, open_session, open_task, open_worker
from tests.model.clock import FakeClock
from tests.model.memory import MemoryBus, MemoryStore
from tests.one_loop import OneLoop
from tests.unit.orchestrator.test_look import CountedBroker
from tests.waiting import others_run


@pytest.fixture
async def service() -> AsyncIterator[OneLoop]:
    async with OneLoop(MemoryStore()) as running:
        yield running


def echo(step_id: str, inputs: JsonObject, *depends_on: str, **more: Json) -> dict[str, Json]:
    return {
        "id": step_id,
        "kind": "python",
        "call": "builtin.echo",
        "inputs": inputs,
        "depends_on": list(depends_on),
        **more,
    }


def plan(*steps: JsonObject) -> JsonObject:
    return {"title": "test", "steps": list(steps)}


@pytest.mark.spec("DAG-02.c")
async def test_results_of_dependencies_reach_the_dependents(service: OneLoop) -> None:
    task = await service.run(plan(echo("a", {"x": 1}), echo("b", {"y": "${a.output.x}"}, "a")))

    assert task.status is TaskStatus.COMPLETED
    assert await service.outputs(task.id) == {"a": {"x": 1}, "b": {"y": 1}}


class Journal:
    """Notes the parts that began, and those that were cancelled while they waited."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.cancelled: list[str] = []

    def part(self, name: str) -> Routine:
        async def wait() -> None:
            self.begun.append(name)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.append(name)
                raise

        return wait


async def passes() -> None:
    """Let all that is ready run."""
    await others_run(5)


async def test_nothing_begins_after_the_stop() -> None:
    work, journal = BackgroundWork(), Journal()
    work.begin_later("timer", 0.0, journal.part("from a timer"))
    await work.stop()

    work.begin(journal.part("asked for"))
    await passes()

    assert journal.begun == []


async def test_of_one_name_only_the_last_part_begins() -> None:
    work, journal = BackgroundWork(), Journal()
    work.begin_later("look", 0.0, journal.part("first"))
    work.begin_later("look", 0.0, journal.part("second"))
    work.begin_later("other", 0.0, journal.part("other"))
    work.cancel_later("other")

    await asyncio.sleep(0.001)
    await passes()
    await work.stop()

    assert journal.begun == ["second"]


@pytest.mark.parametrize("error", [UnavailableError("away"), RuntimeError("broken")], ids=["away", "fault"])
async def test_a_part_that_fails_ends_no_other(error: Exception) -> None:
    async def fail() -> None:
        raise error

    work, journal = BackgroundWork(), Journal()
    work.begin(fail)
    work.begin(journal.part("other"))
    await passes()

    assert (journal.begun, journal.cancelled) == (["other"], [])
    await work.stop()


async def a_dispatcher(*workers: str) -> tuple[Dispatcher, MemoryBus, MemoryStore, CountedBroker]:
    store, board, queue = MemoryStore(), MemoryBus(), CountedBroker()
    for worker in workers:
        await store.sessions.register_worker(make_worker(worker))
    return Dispatcher(store.claims, store.sessions, queue, board), board, store, queue


async def test_workers_are_called_in_turn() -> None:
    dispatcher, board, _, _ = await a_dispatcher("wrk_1", "wrk_2")
    await dispatcher.dispatch()
    ears = [await board.subscribe_worker(worker) for worker in ("wrk_1", "wrk_2")]

    called = [await dispatcher.call() for _ in ears]

    assert called == [True, True]
    assert [await ear.wait(0.01) for ear in ears] == [("",), ("",)]


async def test_who_is_not_able_to_is_not_called_though_a_message_may_reach_it() -> None:
    scene = await open_scene(MemoryStore())
    board, queue = MemoryBus(), CountedBroker()
    await scene.store.sessions.register_worker(make_worker("wrk_able", capabilities=("os:linux",)))
    dispatcher = Dispatcher(scene.store.claims, scene.store.sessions, queue, board)
    ears = [await board.subscribe_worker(worker) for worker in (scene.worker, "wrk_able")]
    await scene.task(make_step("a", needs=("os:linux",)))

    await dispatcher.dispatch()

    assert queue.sent == 2
    assert [await ear.wait(0.01) for ear in ears] == [(), ("",)]


async def test_sessions_are_news_once_and_invented_names_take_no_memory() -> None:
    dispatcher, *_ = await a_dispatcher()

    assert dispatcher.news(["sess_1", "sess_2"]) == {"sess_1", "sess_2"}
    assert dispatcher.news(["sess_2", "sess_3"]) == {"sess_3"}
    for number in range(HEARD_OF + 10):
        dispatcher.news([f"sess_{number}"])

    assert len(dispatcher._heard_of) == HEARD_OF


async def waiting_retry(store: MemoryStore, clock: FakeClock) -> tuple[Scheduler, Ownership, str]:
    """Let a step fail and its retry be planned by the clock as it is; return the step's key last."""
    own, worker_id = await open_session(store), await open_worker(store)
    task_id = await open_task(store, own, make_step("a", max_attempts=2))
    advance = await store.claims.advance(
        worker_id, (), claim=1, pools=("default",), capabilities=(), live_workers=1, now_us=clock.now_us()
    )
    claim = advance.claims[0]
    error = StepError("provider_failed", "the provider answered 500", retryable=True)
    end = StepEnd(
        claim.step_key, claim.identity.run_id, claim.fence, StepStatus.FAILED, EndReason.PROVIDER_FAILED, error=error
    )
    await store.claims.advance(
        worker_id, [end], claim=0, pools=("default",), capabilities=(), live_workers=1, now_us=clock.now_us()
    )
    scheduler = Scheduler(store, store, Expander(store, store, clock), clock)
    await scheduler.reconcile(own)
    return scheduler, own, f"{task_id}/a"


async def looked_at(store: MemoryStore, scheduler: Scheduler, own: Ownership, step_key: str) -> Step:
    await scheduler.reconcile(own)
    return await store.tasks.step(step_key)


@pytest.mark.spec("DAG-05")
async def test_a_clock_that_jumps_back_an_hour_delays_no_retry_by_an_hour() -> None:
    store, clock = MemoryStore(), FakeClock()
    scheduler, own, key = await waiting_retry(store, clock)

    clock.jump_wall(timedelta(hours=-1))

    assert (await looked_at(store, scheduler, own, key)).status is StepStatus.READY


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_time_in_which_no_look_succeeded_is_nobodys_silence(clock: FakeClock) -> None:
    watch = BeatWatch(clock, lease_s=20)
    watch.overdue([("wrk_1", 7)])
    clock.advance(timedelta(seconds=5))
    watch.overdue([("wrk_1", 7)])

    clock.advance(timedelta(seconds=60))
    watch.look_failed()
    after_the_outage = watch.overdue([("wrk_1", 7)])
    clock.advance(timedelta(seconds=14.9))
    early = watch.overdue([("wrk_1", 7)])
    clock.advance(timedelta(seconds=0.1))

    assert after_the_outage == []
    assert early == []
    assert watch.overdue([("wrk_1", 7)]) == [("wrk_1", 7)]


class Hasty(MemoryStore):
    """Its agent makes one more task right before its own is changed."""

    def __init__(self) -> None:
        super().__init__()
        self.ask_id = ""
        self.late: NewTask | None = None

    async def pause_task(self, *given: Any, **named: Any) -> frozenset[str]:
        await self._made(given[1])
        return await super().pause_task(*given, **named)

    async def cancel_task(self, *given: Any, **named: Any) -> frozenset[str]:
        await self._made(given[1])
        return await super().cancel_task(*given, **named)

    async def _made(self, task_id: str) -> None:
        if task_id == self.ask_id and self.late is not None:
            late, self.late = self.late, None
            await self.create_task(late)


@pytest.mark.spec("DAG-06", "DAG-08")
@pytest.mark.parametrize(
    ("kind", "status"), [(CommandKind.PAUSE, TaskStatus.PAUSED), (CommandKind.CANCEL, TaskStatus.CANCELLED)]
)
async def test_a_task_that_comes_meanwhile_is_stopped_too(kind: CommandKind, status: TaskStatus) -> None:
    store = Hasty()
    scene = await open_scene(store)
    store.ask_id = await ask(scene)
    claim = await take_up(scene, store.ask_id)
    early, store.late = planned_by(claim), planned_by(claim)
    late = store.late
    await store.create_task(early)
    command = Command("cmd_1", scene.own.session_id, kind, store.ask_id, "local", scene.now_us)
    await store.sessions.send_command(command)

    await Commands(store, store, store, MemoryBus(), SystemClock()).carry_out(scene.own)

    statuses = {task.id: task.status for task in await store.tasks.list_tasks()}
    assert statuses == {store.ask_id: status, early.id: status, late.id: status}
    assert (await store.sessions.command("cmd_1"))[0].refusal == ""
