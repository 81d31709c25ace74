import asyncio

import pytest
from msgspec.structs import replace

from soong.shared.core.errors import AlreadyConsumedError, LeaseLostError
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import NewEvent, NewNode, Node, NodeKind
from soong.shared.engine.runs.store import CallRow, CallStatus
from soong.shared.engine.tasks.step import Claim
from soong.shared.permissions.request import RequestState
from tests.contract.conftest import OpenStore
from tests.contract.scene import ContractHarness, completed
from tests.model.builders import make_call, make_decision, make_map, make_request, make_step


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


async def test_runs_do_not_share_their_numbers(scene: ContractHarness) -> None:
    await scene.task("a", "b")
    first, second = await scene.claim()
    await append(scene, first, *(NewEvent("noise") for _ in range(5)))

    events = await scene.store.runs.events(second.identity.run_id)

    assert [event.seq for event in events] == list(range(1, len(events) + 1))


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


async def test_rows_of_calls_are_not_written_under_a_stale_fence(scene: ContractHarness) -> None:
    claim = await scene.start("a")

    with pytest.raises(LeaseLostError):
        await scene.store.runs.append(
            claim.identity.run_id, claim.fence - 1, calls=[make_call(claim)], now_us=scene.now_us
        )

    assert await scene.store.runs.calls(claim.identity.run_id) == []


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
