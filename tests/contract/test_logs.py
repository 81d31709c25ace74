"""Logs and lists, read page by page: nothing is left out, nothing comes twice."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import pytest
from msgspec.structs import replace

from soong.shared.core.errors import AlreadyConsumedError, LeaseLostError
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import NewEvent, NewNode, Node, NodeKind
from soong.shared.engine.runs.lines import LineRow
from soong.shared.engine.runs.record import ListFilter, Run, RunStatus
from soong.shared.engine.runs.store import CallRow, CallStatus
from soong.shared.engine.sessions.session import Session
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Claim, Task
from soong.shared.engine.tasks.store import StepSnapshot
from soong.shared.permissions.request import RequestState
from soong.shared.storage.store import Store
from tests.contract.conftest import OpenStore
from tests.contract.scene import ContractHarness, completed, failed
from tests.model.builders import make_call, make_decision, make_map, make_request, make_session, make_step, make_task
from tests.model.clock import START_US


async def append(
    scene: ContractHarness, claim: Claim, *events: NewEvent, nodes: tuple[NewNode, ...] = ()
) -> tuple[int, int]:
    appended = await scene.store.runs.append(
        claim.identity.run_id, claim.fence, nodes=nodes, events=events, now_us=scene.now_us
    )
    return appended.last_seq, appended.last_node


@pytest.mark.spec("EVT-02.a", "EVT-02.d")
async def test_events_are_numbered_from_one_without_a_gap_and_replayed_from_any_number(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    run_id = claim.identity.run_id
    await append(scene, claim, NewEvent("one"), NewEvent("two"))
    last_seq, _ = await append(scene, claim, NewEvent("three"))

    events = await scene.store.runs.events(run_id)
    assert [event.seq for event in events] == list(range(1, last_seq + 1))
    assert (await scene.store.runs.run(run_id)).last_seq == last_seq
    assert await append(scene, claim) == (last_seq, 0), "an empty one tells the present numbers"

    later = await scene.store.runs.events(run_id, after_seq=last_seq - 3)
    page = await scene.store.runs.events(run_id, after_seq=1, limit=2)
    assert [event.type for event in later] == ["one", "two", "three"]
    assert [event.seq for event in page] == [2, 3]


@pytest.mark.spec("EVT-02.a", "EVT-01")
async def test_appends_at_once_leave_neither_gap_nor_double(scene: ContractHarness, open_another: OpenStore) -> None:
    claim = await scene.start("a")
    stores = [await open_another() for _ in range(3)]
    node = NewNode(NodeKind.ASSISTANT, {"v": 1})

    async def write(number: int) -> None:
        for turn in range(4):
            await stores[number % 3].runs.append(
                claim.identity.run_id,
                claim.fence,
                nodes=[node, node],
                events=[NewEvent("note", {"writer": number, "turn": turn, "part": part}) for part in range(3)],
                now_us=scene.now_us,
            )

    await asyncio.gather(*map(write, range(6)))

    events = await scene.store.runs.events(claim.identity.run_id)
    notes = [event.data for event in events if event.type == "note"]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    # What one append wrote stands together, and the appends of one writer in its order.
    assert [note["part"] for note in notes] == [0, 1, 2] * 24
    assert all(
        [note["turn"] for note in notes if note["writer"] == number] == sorted([0, 1, 2, 3] * 3) for number in range(6)
    )
    assert [node.number for node in await scene.store.runs.nodes(claim.identity.run_id)] == list(range(1, 49))


@pytest.mark.spec("EVT-02")
async def test_event_keeps_its_data_and_its_time_or_gets_the_writers(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    data: dict[str, Json] = {"text": "größer \u0001 ☃", "list": [1, 2.5, None, True], "deep": {"x": {}}}
    await append(scene, claim, NewEvent("timed", data, time_us=17), NewEvent("untimed"))

    timed, untimed = (await scene.store.runs.events(claim.identity.run_id))[-2:]

    assert (timed.data, timed.time_us) == (data, 17)
    assert (untimed.data, untimed.time_us) == ({}, scene.now_us)
    assert timed.envelope()["source"] == f"/runs/{claim.identity.run_id}"


@pytest.mark.spec("EVT-01.a")
async def test_nodes_hang_under_the_last_one_or_where_they_say(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    plain, branch = NewNode(NodeKind.USER, {"v": 1}), NewNode(NodeKind.ASSISTANT, {"v": 1, "text": "x"}, parent=1)
    await append(scene, claim, nodes=(plain, plain))
    _, last_node = await append(scene, claim, nodes=(branch, plain))

    nodes = await scene.store.runs.nodes(claim.identity.run_id)

    assert [(node.number, node.parent) for node in nodes] == [(1, 0), (2, 1), (3, 1), (4, 3)]
    assert (nodes[2].kind, nodes[2].payload, nodes[2].created_us) == (branch.kind, branch.payload, scene.now_us)
    assert last_node == 4


async def test_runs_are_listed_by_session_and_by_task(scene: ContractHarness) -> None:
    task_id = await scene.task("a", make_step("b", depends_on=("a",)))
    other = await scene.another_session()
    await scene.task("a", own=other)

    of_task = await scene.store.runs.list_runs(task_id=task_id)
    of_session = await scene.store.runs.list_runs(session_id=scene.own.session_id)

    assert [run.identity.step_key for run in of_task] == ["", f"{task_id}/a", f"{task_id}/b"], "the root run first"
    assert len(of_session) == 3
    assert len(await scene.store.runs.list_runs(limit=2)) == 2


# -- calls
@pytest.mark.spec("DAG-09.a", "PER-19", "EXE-06.b")
async def test_call_is_in_the_ledger_before_its_result_which_comes_with_node_and_event(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    run_id, call = claim.identity.run_id, make_call(claim)
    await scene.store.runs.start_call(call, claim.fence, events=[NewEvent("tool_started")], now_us=scene.now_us)

    assert await scene.store.runs.calls(run_id) == [call]
    assert (await scene.event_types(run_id))[-1] == "tool_started"

    await end_call(scene, claim, "call_1")

    (ended,) = await scene.store.runs.calls(run_id)
    assert (ended.status, ended.result) == (CallStatus.ENDED, {"is_error": False})
    assert [node.kind for node in await scene.store.runs.nodes(run_id)] == [NodeKind.TOOL_RESULT]
    assert (await scene.event_types(run_id))[-1] == "tool_completed"


@pytest.mark.spec("PER-19", "EXE-02.c")
async def test_end_of_a_call_that_is_not_in_the_ledger_writes_its_node_and_the_row_that_it_brings(
    scene: ContractHarness,
) -> None:
    claim = await scene.start("a")
    row = make_call(claim, "call_read", is_write=False)

    await end_call(scene, claim, "call_unknown")
    assert await scene.store.runs.calls(claim.identity.run_id) == []
    await end_call(scene, claim, "call_read", row)

    (kept,) = await scene.store.runs.calls(claim.identity.run_id)
    assert kept == replace(row, status=CallStatus.ENDED, result={"is_error": False})
    assert len(await scene.store.runs.nodes(claim.identity.run_id)) == 2


@pytest.mark.spec("EVT-05.d")
@pytest.mark.parametrize("brings_row", [True, False])
async def test_a_whole_input_is_kept_with_the_answer_and_gone_with_the_end(
    scene: ContractHarness, brings_row: bool
) -> None:
    claim = await scene.start("a")
    row = replace(make_call(claim, is_write=False), open_input={"arguments": {"key": "whole"}})
    run_id = claim.identity.run_id

    await scene.store.runs.append(
        run_id, claim.fence, nodes=[NewNode(NodeKind.ASSISTANT, {"v": 1})], calls=[row], now_us=scene.now_us
    )
    before = await scene.store.runs.calls(run_id)
    await end_call(scene, claim, "call_1", row if brings_row else None)
    (after,) = await scene.store.runs.calls(run_id)

    assert before == [row]
    assert before[0].open_input == {"arguments": {"key": "whole"}}
    assert (after.open_input, after.status) == (None, CallStatus.ENDED)


@pytest.mark.spec("EVT-05.d")
async def test_a_whole_input_is_gone_when_its_call_starts_as_a_write(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    row = replace(make_call(claim, is_write=False), open_input={"arguments": {"key": "whole"}})
    await scene.store.runs.append(claim.identity.run_id, claim.fence, calls=[row], now_us=scene.now_us)

    await scene.store.runs.start_call(make_call(claim), claim.fence, events=(), now_us=scene.now_us)

    (started,) = await scene.store.runs.calls(claim.identity.run_id)
    assert (started.open_input, started.is_write) == (None, True)


async def end_call(scene: ContractHarness, claim: Claim, tool_call_id: str, call: CallRow | None = None) -> None:
    await scene.store.runs.end_call(
        claim.identity.run_id,
        claim.fence,
        tool_call_id,
        result={"is_error": False},
        nodes=[NewNode(NodeKind.TOOL_RESULT, {"v": 1})],
        events=[NewEvent("tool_completed")],
        now_us=scene.now_us,
        call=call,
    )


@pytest.mark.spec("DAG-09")
async def test_call_without_a_result_is_found_by_the_next_holder(scene: ContractHarness) -> None:
    first = await scene.start("a")
    await scene.store.runs.start_call(make_call(first), first.fence, events=(), now_us=scene.now_us)

    claim = await scene.lost_fence(first)

    (call,) = await scene.store.runs.calls(claim.identity.run_id)
    assert (call.status, call.effect_id) == (CallStatus.STARTED, make_call(first).effect_id)


async def decided(scene: ContractHarness, claim: Claim) -> str:
    """Let a call ask and be allowed; return the id of the decision."""
    request = await scene.raised(make_request(claim))
    decision = make_decision(request)
    await scene.store.consent.decide(scene.own, decision, state=RequestState.DECIDED, events=(), now_us=scene.now_us)
    return decision.id


@pytest.mark.spec("PER-12.c")
async def test_of_calls_at_once_one_consumes_the_decision(scene: ContractHarness, open_another: OpenStore) -> None:
    claim = await scene.start("a")
    decision_id = await decided(scene, claim)
    stores = [await open_another() for _ in range(4)]

    outcomes = await asyncio.gather(
        *(
            store.runs.start_call(
                make_call(claim, decision_id=decision_id),
                claim.fence,
                events=[NewEvent("tool_started")],
                now_us=scene.now_us,
            )
            for store in stores
        ),
        return_exceptions=True,
    )

    assert [type(outcome) for outcome in outcomes if outcome is not None] == [AlreadyConsumedError] * 3
    assert len(await scene.store.runs.calls(claim.identity.run_id)) == 1
    assert (await scene.event_types(claim.identity.run_id)).count("tool_started") == 1


@pytest.mark.spec("PER-12.c")
async def test_a_call_whose_decision_was_used_stops_none_of_those_that_start_with_it(scene: ContractHarness) -> None:
    used, lost, *held = [await scene.start(name) for name in "abcd"]
    decisions = {claim.run_fence: await decided(scene, claim) for claim in (used, lost, *held)}

    async def start(claim: Claim, fence: int) -> None:
        call = make_call(claim, decision_id=decisions[claim.run_fence])
        await scene.store.runs.start_call(call, fence, events=[NewEvent("tool_started")], now_us=scene.now_us)

    await start(used, used.fence)
    outcomes = await asyncio.gather(
        start(held[0], held[0].fence),
        start(used, used.fence),
        start(lost, lost.fence + 1),
        start(held[1], held[1].fence),
        return_exceptions=True,
    )

    assert [type(outcome) for outcome in outcomes] == [type(None), AlreadyConsumedError, LeaseLostError, type(None)]
    started = [(await scene.event_types(each.identity.run_id)).count("tool_started") for each in (used, lost, *held)]
    assert started == [1, 0, 1, 1]


# -- the result node of a run whose worker gave none: what its step gave, whatever becomes of the step
async def results(scene: ContractHarness, *run_ids: str) -> list[Node]:
    return [(await scene.store.runs.nodes(run_id))[-1] for run_id in run_ids]


@pytest.mark.spec("EVT-01")
async def test_a_result_stays_with_its_run_when_the_step_is_tried_again(scene: ContractHarness) -> None:
    task_id = await scene.task("a", make_step("b", depends_on=("a",)))
    for number in (1, 2):
        await scene.complete(await scene.claim_one(), {"n": number})
    await scene.finish(task_id)
    first = [(await scene.steps(task_id))[name].run_id for name in ("a", "b")]
    before = await results(scene, *first)

    await scene.retry_task(task_id, from_step="a")
    await scene.complete(await scene.claim_one(), {"n": 3})
    again = (await scene.steps(task_id))["a"].run_id

    assert await results(scene, *first) == before
    assert [node.payload for node in await results(scene, *first, again)] == [
        {"v": 1, "output": {"n": number}} for number in (1, 2, 3)
    ]


@pytest.mark.spec("EVT-01")
async def test_a_result_stays_with_its_run_when_the_map_step_is_expanded_again(scene: ContractHarness) -> None:
    task_id = await scene.task("a", make_map("m", depends_on=["a"]))
    await scene.complete(await scene.claim_one())
    await scene.expand(f"{task_id}/m", "i")
    await scene.complete(await scene.claim_one(), {"item": 1})
    await scene.finish(task_id)
    run_id = (await scene.steps(task_id))["m[i]"].run_id

    await scene.retry_task(task_id, from_step="a")

    assert "m[i]" not in await scene.steps(task_id)
    assert [node.payload for node in await results(scene, run_id)] == [{"v": 1, "output": {"item": 1}}]


@pytest.mark.spec("EVT-01")
async def test_a_result_without_a_row_comes_after_all_nodes_and_on_the_last_page(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    nodes = [NewNode(NodeKind.USER, {"v": 1, "number": number}) for number in range(3)]

    await scene.advance([completed(claim, nodes=nodes)])

    run_id = claim.identity.run_id
    pages = [await scene.store.runs.node_page(run_id, after=after, limit=2) for after in (0, 2, 3, 4)]
    assert [[node.number for node in page] for page in pages] == [[1, 2], [3, 4], [4], []]
    assert pages[1][-1] == (await scene.store.runs.nodes(run_id))[-1]
    assert (pages[1][-1].kind, pages[1][-1].parent) == (NodeKind.RESULT, 3)


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


def lines(claim: Claim, place: int, last: int, *texts: str) -> LineRow:
    return LineRow(claim.identity.run_id, claim.fence, place, last, tuple((1, "stdout", "", text) for text in texts))


@pytest.mark.spec("LOG-01.d")
async def test_a_row_of_lines_replaces_that_of_its_place_and_one_line_stands_for_what_is_left_out(
    scene: ContractHarness,
) -> None:
    claim, runs = await scene.start("a"), scene.store.runs
    run_id = claim.identity.run_id
    assert (await runs.last_line(run_id), await runs.lines(run_id)) == ((0, -1), [])

    await runs.write_lines([lines(claim, 0, 1, "one")])
    await runs.write_lines([lines(claim, 0, 2, "one", "two"), lines(claim, 1, 3, "three")])
    await runs.write_lines([lines(claim, 1, 9, "eight", "niné")])

    assert await runs.last_line(run_id) == (9, 1)
    assert [(line.number, line.text) for line in await runs.lines(run_id)] == [
        (1, "one"),
        (2, "two"),
        (7, "5 lines are left out"),
        (8, "eight"),
        (9, "niné"),
    ]
    assert [line.number for line in await runs.lines(run_id, after=7, limit=1)] == [8]


@pytest.mark.spec("OPS-12.c")
async def test_a_worker_that_lost_its_run_writes_no_lines_into_it(scene: ContractHarness) -> None:
    claim, runs = await scene.start("a"), scene.store.runs
    await runs.write_lines([lines(claim, 0, 1, "mine")])
    await scene.complete(claim, None)

    await runs.write_lines([lines(claim, 0, 2, "mine", "too late"), lines(replace(claim, fence=9), 1, 3, "forged")])

    assert [line.text for line in await runs.lines(claim.identity.run_id)] == ["mine"]
