"""An owner calls a worker for a session that it hears of for the first time: a guess, made good by messages."""

from soong.orchestrator.owner.workers import HEARD_OF, Dispatcher
from tests.contract.scene import open_scene
from tests.model.builders import make_step, make_worker
from tests.model.memory import MemoryBus, MemoryStore
from tests.unit.orchestrator.test_look import CountedBroker


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


async def test_nobody_is_called_before_workers_are_known_or_where_none_has_a_slot() -> None:
    dispatcher, _, store, _ = await a_dispatcher()
    assert not await dispatcher.call()

    await store.sessions.register_worker(make_worker("wrk_full", slots=0))
    await dispatcher.dispatch()

    assert not await dispatcher.call()


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
