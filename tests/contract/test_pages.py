"""Lists that are read page by page: nothing is left out, nothing comes twice, whatever is inserted meanwhile."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import pytest
from msgspec.structs import replace

from soong.shared.engine.runs.events import NewEvent, NewNode, NodeKind
from soong.shared.engine.runs.record import ListFilter, Run, RunStatus
from soong.shared.engine.sessions.session import Session
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Task
from soong.shared.engine.tasks.store import StepSnapshot
from soong.shared.permissions.request import RequestState
from soong.shared.storage.store import Store
from tests.contract.scene import ContractHarness, completed, failed
from tests.model.builders import make_decision, make_request, make_session, make_task
from tests.model.clock import START_US

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


# -- steps read page by page: each once, in the order in which they were made, whatever their number
async def test_pages_have_every_step_once(scene: ContractHarness) -> None:
    await scene.task("x")
    task_id = await scene.task(*(f"s{number}" for number in range(7)))
    tasks = scene.store.tasks

    pages, after = [], ""
    while page := await tasks.step_page(task_id, after=after, limit=3):
        pages.append([step.step_id for step in page])
        after = page[-1].key

    assert pages == [["s0", "s1", "s2"], ["s3", "s4", "s5"], ["s6"]]


async def test_only_steps_in_the_named_statuses_are_read(scene: ContractHarness) -> None:
    task_id = await scene.task("a", "b", "c")
    first, second, _ = await scene.claim()
    await scene.fail(first)
    await scene.complete(second)
    tasks = scene.store.tasks

    failed = await tasks.step_page(task_id, statuses=(StepStatus.FAILED,))
    others = await tasks.step_page(task_id, statuses=(StepStatus.COMPLETED, StepStatus.RUNNING), limit=1)

    assert [step.key for step in failed] == [first.step_key]
    assert [step.key for step in others] == [second.step_key]
    assert await tasks.step_page(task_id, after=others[0].key, statuses=(StepStatus.FAILED,)) == []


# -- the narrow reading of a task's steps says what the full one says
@pytest.mark.spec("OPS-04.d")
async def test_states_are_those_of_the_steps_in_their_order_and_an_unknown_task_has_none(
    scene: ContractHarness,
) -> None:
    task = await scene.task("a", "b", "c", "d")
    first, second, _ = await scene.claim(3)
    await scene.advance([completed(first, {"text": "long " * 100}), failed(second)])

    states = await scene.store.tasks.step_states(task)

    assert states == [StepSnapshot.of(step) for step in await scene.store.tasks.steps(task)]
    assert [str(state.status) for state in states] == ["completed", "failed", "running", "ready"]

    assert list(await scene.store.tasks.step_states("task_unknown")) == []


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (ListFilter(), "cba"),
        (ListFilter(title="NIGHTLY"), "cb"),
        (ListFilter(title="%"), "b"),
        (ListFilter(tag="team:data"), "ca"),
        (ListFilter(tag="team"), ""),
        (ListFilter(statuses=("cancelled",)), "a"),
        (ListFilter(statuses=("running", "paused"), title="nightly"), "cb"),
        (ListFilter(since_us=START_US + 2), "c"),
    ],
    ids=repr,
)
async def test_lists_show_what_meets_a_filter(scene: ContractHarness, only: ListFilter, expected: str) -> None:
    names = {}
    for number, (name, title, tags) in enumerate(
        [("a", "Report", ("team:data",)), ("b", "100 % nightly", ()), ("c", "Nightly", ("blue", "team:data"))]
    ):
        new = make_task(scene.own.session_id, "x")
        await scene.store.tasks.create_task(replace(new, title=title, tags=tags, created_us=START_US + number))
        names[new.id] = name
    (cancelled, *_) = names
    await scene.store.tasks.cancel_task(scene.own, cancelled, reason="", now_us=scene.now_us)

    tasks = await scene.store.tasks.list_tasks(only=only)
    runs = await scene.store.runs.run_page(only=replace(only, statuses=(), since_us=0))

    assert "".join(names[task.id] for task in tasks) == expected
    assert all(("team:data" in task.tags) is (names[task.id] != "b") for task in tasks)
    unfiltered = {"a", "b", "c"} if not (only.title or only.tag) else set[str]()
    assert {names[run.identity.task_id] for run in runs} == unfiltered | set(expected)


async def test_runs_are_filtered_by_their_own_status_and_time(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    later = replace(make_task(scene.own.session_id, "b"), created_us=START_US + 5)
    await scene.store.tasks.create_task(later)

    running = await scene.store.runs.run_page(only=ListFilter(("running",)))

    assert claim.identity.run_id in {run.id for run in running}
    assert {run.status for run in running} == {RunStatus.RUNNING}
    assert await scene.store.runs.run_page(only=ListFilter(since_us=scene.now_us + 1_000_000)) == []
