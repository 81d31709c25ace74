"""Lists that are read page by page: nothing is left out, nothing comes twice, whatever is inserted meanwhile."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from soong.shared.engine.runs.events import NewEvent, NewNode, NodeKind
from soong.shared.engine.runs.record import Run
from soong.shared.engine.sessions.session import Session
from soong.shared.engine.tasks.step import Task
from soong.shared.permissions.request import RequestState
from soong.shared.storage.store import Store
from tests.contract.scene import ContractHarness
from tests.model.builders import make_decision, make_request, make_session

T = TypeVar("T", Session, Task, Run)


async def read_all(page: Callable[[str], Awaitable[Sequence[T]]]) -> list[str]:
    """Read a list to its end, each page from the last id of the one before."""
    ids: list[str] = []
    while found := await page(ids[-1] if ids else ""):
        ids += [row.id for row in found]
    return ids


async def test_sessions_are_read_from_the_newest_on(store: Store) -> None:
    made = [replace(make_session(), is_closed=number == 3) for number in range(6)]
    for session in made:
        await store.sessions.open_session(session)

    ids = await read_all(lambda before: store.sessions.session_page(before=before, limit=2))
    every = await read_all(lambda before: store.sessions.session_page(before=before, limit=4, include_closed=True))

    assert every == [session.id for session in reversed(made)]
    assert ids == [session.id for session in reversed(made) if not session.is_closed]
    assert await store.sessions.session_page(before="sess_unknown") == []


async def test_a_task_that_comes_meanwhile_moves_no_page(scene: ContractHarness) -> None:
    made = [await scene.task("a") for _ in range(3)]
    first = await scene.store.tasks.list_tasks(limit=2)
    await scene.task("a")

    second = await scene.store.tasks.list_tasks(before=first[-1].id, limit=2)

    assert [task.id for task in (*first, *second)] == made[::-1]


async def test_runs_are_read_from_the_newest_on_and_by_task(scene: ContractHarness) -> None:
    task = await scene.task("a", "b", "c")
    await scene.task("a")
    store = scene.store

    ids = await read_all(lambda before: store.runs.run_page(task_id=task, before=before, limit=2))

    assert ids == [run.id for run in reversed(await store.runs.list_runs(task_id=task))]
    assert len(ids) == 4
    whole = await store.runs.run_page(session_id=scene.own.session_id)
    assert [run.id for run in whole] == [run.id for run in reversed(await store.runs.list_runs())]


async def test_nodes_go_on_after_a_number(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    run_id = claim.identity.run_id
    nodes = [NewNode(NodeKind.USER, {"v": 1, "text": str(number)}) for number in range(5)]
    await scene.store.runs.append(run_id, claim.fence, nodes=nodes, now_us=scene.now_us)

    pages = [await scene.store.runs.node_page(run_id, after=after, limit=2) for after in (0, 2, 4, 5)]

    assert [[node.number for node in page] for page in pages] == [[1, 2], [3, 4], [5], []]
    assert [node for page in pages for node in page] == list(await scene.store.runs.nodes(run_id))


async def test_questions_go_on_beyond_the_last_one_seen(scene: ContractHarness) -> None:
    await scene.task("a", "b", "c")
    store, asked = scene.store, []
    for claim in await scene.claim():
        request = make_request(claim)
        asked.append(await store.consent.raise_request(request, events=(), now_us=scene.now_us))
    decision = make_decision((await store.consent.request(asked[1]))[0])
    decided = [NewEvent("permission_decided")]
    await store.consent.decide(scene.own, decision, state=RequestState.DECIDED, events=decided, now_us=scene.now_us)

    later = await store.consent.questions(beyond=asked[0])
    earlier = await store.consent.questions(include_closed=True, beyond=asked[2], limit=1)

    assert [question.request.id for question in later] == [asked[2]]
    assert [question.request.id for question in earlier] == [asked[1]]
    assert await store.consent.questions(beyond="req_unknown") == []
    assert await store.consent.questions(beyond="req_unknown", include_closed=True) == []
