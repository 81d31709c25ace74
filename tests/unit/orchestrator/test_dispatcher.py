"""Whom the dispatcher calls, and over what."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from soong.orchestrator.owner.dispatcher import Dispatcher
from tests.contract.scene import ContractHarness, open_scene
from tests.model.builders import make_step, make_worker
from tests.model.memory import MemoryBus, MemoryStore

pytestmark = pytest.mark.spec("CARD-2.a")


@dataclass
class RecordedQueue:
    """A queue that nobody reads."""

    sent: list[str] = field(default_factory=list)

    def queued(self, pool: str) -> int:
        return self.sent.count(pool)

    def send(self, pool: str, dispatch_ids: Sequence[str]) -> None:
        self.sent += [pool for _ in dispatch_ids]

    def close(self) -> None: ...


@dataclass
class RecordedBus(MemoryBus):
    """Remembers which workers were called."""

    called: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    async def call_worker(self, worker_id: str) -> None:
        self.called.append(worker_id)


@pytest.fixture
async def scene() -> ContractHarness:
    return await open_scene(MemoryStore())


async def test_a_notified_look_calls_the_worker_with_the_most_free_slots_and_sends_no_message(
    scene: ContractHarness,
) -> None:
    await scene.task("held")
    await scene.claim_one()
    idle, queue, bus = await scene.another_worker(), RecordedQueue(), RecordedBus()
    await scene.task("a")

    assert await Dispatcher(scene.store.claims, scene.store.sessions, queue, bus).dispatch() == 1

    assert (bus.called, queue.sent) == ([idle], [])


async def test_a_sweep_sends_a_message_over_the_queue_that_any_worker_takes(scene: ContractHarness) -> None:
    queue, bus = RecordedQueue(), RecordedBus()
    await scene.task("a")
    dispatcher = Dispatcher(scene.store.claims, scene.store.sessions, queue, bus)

    sent = [await dispatcher.dispatch(is_full=True) for _ in range(2)]

    assert (sent, bus.called, queue.sent) == ([1, 0], [], ["default"])


async def test_workers_that_are_equally_free_are_called_in_turn(scene: ContractHarness) -> None:
    other, bus = await scene.another_worker(), RecordedBus()
    await scene.task("a")
    dispatcher = Dispatcher(scene.store.claims, scene.store.sessions, RecordedQueue(), bus)

    for _ in range(4):
        await dispatcher.dispatch()

    assert sorted(bus.called) == sorted([scene.worker, other] * 2)


async def test_only_workers_that_are_able_are_called(scene: ContractHarness) -> None:
    able = make_worker(capabilities=("gpu",))
    await scene.store.sessions.register_worker(able)
    await scene.task(make_step("a", needs=("gpu",)), make_step("b", needs=("gpu",)))
    bus = RecordedBus()

    await Dispatcher(scene.store.claims, scene.store.sessions, RecordedQueue(), bus).dispatch()

    assert bus.called == [able.id]
