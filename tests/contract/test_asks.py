from typing import Final

import pytest
from msgspec.structs import replace

from soong.shared.core.errors import ConflictError, InvalidTransitionError, LeaseLostError, NotOwnerError
from soong.shared.core.identity import Role
from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.runs.events import EventType, NewEvent, NewNode, NodeKind
from soong.shared.engine.runs.record import EndReason, RunStatus, Usage
from soong.shared.engine.runs.store import CallAbort, calls_under_way
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.change import TaskChange
from soong.shared.engine.tasks.new_tasks import new_ask
from soong.shared.engine.tasks.spec import StepKind, StepSpec, TaskKind, TaskStatus
from soong.shared.engine.tasks.step import Claim, Interrupt, NewStep, NewTask
from tests.contract.scene import ContractHarness, completed
from tests.contract.test_growth import added, grow, update
from tests.contract.test_taint import agent, read, tainted
from tests.model.builders import make_owner, make_step, make_task

SURFACE: Final[JsonObject] = {"v": 1, "decisions": [["agent.task_create", True, "definition"]], "unknown": []}
NODE = NewNode(NodeKind.USER, {"v": 1, "text": "hello"})


async def ask(scene: ContractHarness, goal: str = "find the bug") -> str:
    session = await scene.store.sessions.session(scene.own.session_id)
    task = new_ask(
        StepSpec(id="ask", instructions=goal),
        session,
        title=goal,
        role=Role.ORCHESTRATOR,
        definition="orchestrator",
        model="test:model",
        surface=SURFACE,
        now_us=scene.now_us,
    )
    await scene.store.tasks.create_task(task)
    return task.id


async def take_up(scene: ContractHarness, task_id: str, own: Ownership | None = None) -> Claim:
    claim = await scene.store.asks.take_up(own or scene.own, task_id, now_us=scene.now_us)
    assert claim is not None
    return claim


async def successor(scene: ContractHarness) -> Ownership:
    """Let another owner adopt the session, as after the death of the first."""
    await scene.store.sessions.release_owner(scene.own.owner_id)
    owner = make_owner()
    await scene.store.sessions.register_owner(owner)
    (session,) = await scene.store.sessions.adopt_sessions(owner.id)
    return session.ownership


@pytest.mark.spec("DIS-01")
async def test_owner_takes_the_root_run_of_an_ask_up(scene: ContractHarness) -> None:
    task_id = await ask(scene)
    (open_ask,) = await scene.store.asks.open_asks(scene.own)

    claim = await take_up(scene, task_id)

    run = await scene.store.runs.run(open_ask.run_id)
    assert (open_ask.task_id, open_ask.status) == (task_id, TaskStatus.RUNNING)
    assert (claim.identity, claim.fence, claim.is_resumed) == (run.identity, 1, False)
    assert (claim.spec.instructions, claim.surface, claim.identity.role) == ("find the bug", SURFACE, Role.ORCHESTRATOR)
    assert (run.status, run.worker_id, run.token) == (RunStatus.RUNNING, scene.own.owner_id, claim.token)
    assert (await scene.store.tasks.task(task_id)).kind is TaskKind.ASK


async def test_a_task_of_a_plan_is_no_ask_and_no_worker_gets_an_ask(scene: ContractHarness) -> None:
    await scene.task("a")
    assert await scene.store.asks.open_asks(scene.own) == []

    await ask(scene)

    assert [claim.step_key.rpartition("/")[2] for claim in await scene.claim()] == ["a"]


async def test_tasks_are_listed_by_their_kind(scene: ContractHarness) -> None:
    plan, asked = await scene.task("a"), await ask(scene)

    listed = {kind: await scene.store.tasks.list_tasks(kind=kind) for kind in (None, *TaskKind)}

    assert {kind: [task.id for task in tasks] for kind, tasks in listed.items()} == {
        None: [asked, plan],
        TaskKind.ASK: [asked],
        TaskKind.PLAN: [plan],
    }


@pytest.mark.spec("DIS-01", "DAG-07")
async def test_successor_takes_an_ask_up_and_the_former_owner_writes_no_more(scene: ContractHarness) -> None:
    task_id = await ask(scene)
    former = await take_up(scene, task_id)
    await scene.store.runs.append(former.identity.run_id, former.fence, nodes=[NODE], now_us=scene.now_us)
    own = await successor(scene)

    claim = await take_up(scene, task_id, own)

    assert (claim.fence, claim.is_resumed) == (2, True)
    with pytest.raises(LeaseLostError):
        await scene.store.runs.append(former.identity.run_id, former.fence, nodes=[NODE], now_us=scene.now_us)
    with pytest.raises(NotOwnerError):
        await scene.store.asks.end_ask(scene.own, task_id, completed(former), now_us=scene.now_us)
    with pytest.raises(LeaseLostError):
        await scene.store.asks.end_ask(own, task_id, completed(former), now_us=scene.now_us)


async def test_ask_that_is_paused_is_put_down_and_taken_up_again(scene: ContractHarness) -> None:
    task_id = await ask(scene)
    claim = await take_up(scene, task_id)
    await scene.store.tasks.pause_task(scene.own, task_id, reason="Ctrl-C", now_us=scene.now_us)

    await scene.store.asks.put_down(scene.own, claim.identity.run_id, claim.fence)

    run = await scene.store.runs.run(claim.identity.run_id)
    assert (run.status, run.worker_id) == (RunStatus.QUEUED, "")
    assert (await scene.store.asks.open_asks(scene.own))[0].status is TaskStatus.PAUSED
    assert await scene.store.asks.take_up(scene.own, task_id, now_us=scene.now_us) is None
    await scene.store.tasks.resume_task(scene.own, task_id, now_us=scene.now_us)
    assert (await take_up(scene, task_id)).fence == 2


@pytest.mark.spec("DIS-06.b")
async def test_fork_starts_with_the_context_that_it_is_given(scene: ContractHarness) -> None:
    task_id = await ask(scene)
    await take_up(scene, task_id)
    (step,) = await added(scene, task_id, make_step("fork-1", kind=StepKind.AGENT))
    assert step.run is not None
    identity = replace(step.run.identity, role=Role.FORK)
    fork = replace(step, run=replace(step.run, identity=identity, nodes=(NODE, NODE)))
    await update(scene, task_id, TaskChange(steps=(fork,)))

    claim = await scene.claim_one()

    assert (claim.is_resumed, claim.malformed, claim.identity.role) == (True, "", Role.FORK)
    nodes = await scene.store.runs.nodes(claim.identity.run_id)
    assert [(node.number, node.parent, node.payload) for node in nodes] == [(1, 0, NODE.payload), (2, 1, NODE.payload)]


async def test_run_that_another_fence_holds_is_not_put_down(scene: ContractHarness) -> None:
    task_id = await ask(scene)
    former = await take_up(scene, task_id)
    await take_up(scene, task_id)

    await scene.store.asks.put_down(scene.own, former.identity.run_id, former.fence)

    assert (await scene.store.runs.run(former.identity.run_id)).status is RunStatus.RUNNING


@pytest.mark.spec("DIS-01", "DIS-05")
async def test_ask_ends_as_its_run_does_and_only_while_it_is_open(scene: ContractHarness) -> None:
    task_id = await ask(scene)
    claim = await take_up(scene, task_id)
    end = replace(completed(claim, nodes=[NODE]), usage=Usage(requests=3))
    await scene.store.asks.end_ask(scene.own, task_id, end, now_us=scene.now_us)

    run, task = await scene.store.runs.run(claim.identity.run_id), await scene.store.tasks.task(task_id)
    assert (run.status, run.end_reason, run.usage.requests) == (RunStatus.COMPLETED, EndReason.COMPLETED, 3)
    assert (task.status, task.ended_us, run.last_node) == (TaskStatus.COMPLETED, scene.now_us, 1)
    assert (await scene.root_event_types(task_id))[-2:] == ["task_completed", "run_completed"]
    assert await scene.store.asks.open_asks(scene.own) == []
    assert await scene.store.asks.end_ask(scene.own, task_id, end, now_us=scene.now_us) == frozenset()
    with pytest.raises(InvalidTransitionError):
        await scene.store.tasks.cancel_task(scene.own, task_id, reason="late", now_us=scene.now_us)


async def test_failed_ask_says_why_and_goes_on_when_it_is_tried_again(scene: ContractHarness) -> None:
    task_id = await ask(scene)
    claim = await take_up(scene, task_id)
    failed = replace(claim.failed("max_turns", "the run had 50 model turns"), nodes=(NODE,))
    await scene.store.asks.end_ask(scene.own, task_id, failed, now_us=scene.now_us)

    task = await scene.store.tasks.task(task_id)
    assert (task.status, task.reason) == (TaskStatus.FAILED, "the run had 50 model turns")
    assert (await scene.store.runs.run(claim.identity.run_id)).status is RunStatus.FAILED
    await scene.store.tasks.retry_task(scene.own, task_id, [], now_us=scene.now_us)
    again = await take_up(scene, task_id)
    assert (again.identity.run_id, again.fence, again.is_resumed) == (claim.identity.run_id, 2, True)


async def test_cancelled_ask_takes_nothing_more(scene: ContractHarness) -> None:
    task_id = await ask(scene)
    claim = await take_up(scene, task_id)

    await scene.store.tasks.cancel_task(scene.own, task_id, reason="by a person", now_us=scene.now_us)

    with pytest.raises(LeaseLostError):
        await scene.store.runs.append(claim.identity.run_id, claim.fence, nodes=[NODE], now_us=scene.now_us)
    assert await scene.store.asks.take_up(scene.own, task_id, now_us=scene.now_us) is None


# -- tasks that its agent plans
def planned_by(claim: Claim) -> NewTask:
    new = make_task(claim.identity.session_id, "a")
    parent = replace(
        new.root_run.identity, parent_run_id=claim.identity.run_id, parent_agent_id=claim.identity.agent_id
    )
    return replace(new, root_run=replace(new.root_run, identity=parent))


@pytest.mark.spec("DAG-06", "DAG-08")
@pytest.mark.parametrize("how", ["paused", "cancelled", "ended"])
async def test_an_agent_that_was_stopped_makes_no_task(scene: ContractHarness, how: str) -> None:
    task_id = await ask(scene)
    claim = await take_up(scene, task_id)
    before, after = planned_by(claim), planned_by(claim)
    await scene.store.tasks.create_task(before)
    match how:
        case "paused":
            await scene.store.tasks.pause_task(scene.own, task_id, reason="", now_us=scene.now_us)
        case "cancelled":
            await scene.store.tasks.cancel_task(scene.own, task_id, reason="", now_us=scene.now_us)
        case _:
            await scene.store.asks.end_ask(scene.own, task_id, completed(claim), now_us=scene.now_us)

    with pytest.raises(ConflictError, match="has been stopped"):
        await scene.store.tasks.create_task(after)
    await scene.store.tasks.create_task(before)  # the answer was lost: it is there

    assert {task.id for task in await scene.store.tasks.list_tasks()} == {task_id, before.id}


@pytest.mark.spec("DAG-08")
async def test_an_agent_that_is_resumed_makes_tasks_again(scene: ContractHarness) -> None:
    task_id = await ask(scene)
    claim = await take_up(scene, task_id)
    await scene.store.tasks.pause_task(scene.own, task_id, reason="", now_us=scene.now_us)
    await scene.store.tasks.resume_task(scene.own, task_id, now_us=scene.now_us)
    new = planned_by(claim)

    await scene.store.tasks.create_task(new)

    assert (await scene.store.tasks.task(new.id)).status is TaskStatus.RUNNING


# -- taint
async def asked_with_children(scene: ContractHarness, *steps: NewStep) -> Claim:
    """Take an ask up, and give it these steps as children of its run; return the agent's claim."""
    task_id = await ask(scene)
    claim = await take_up(scene, task_id)
    await grow(scene, task_id, *steps)
    return claim


@pytest.mark.spec("PER-21")
async def test_the_children_of_a_tainted_agent_are_tainted(scene: ContractHarness) -> None:
    asker = await asked_with_children(scene, agent("a"))
    a = await scene.claim_one()
    before = await tainted(scene.store, a)

    await read(scene, asker)

    assert (before, await tainted(scene.store, a)) == (False, True)


@pytest.mark.spec("PER-21")
async def test_an_agent_passes_on_what_its_children_gave_back(scene: ContractHarness) -> None:
    asker = await asked_with_children(scene, agent("a"), agent("b"))
    a, b = await scene.claim(2)
    await read(scene, a)
    while_a_runs = await tainted(scene.store, b)

    await scene.complete(a, "what it read")

    assert not while_a_runs
    assert await tainted(scene.store, b)
    assert await tainted(scene.store, asker)


@pytest.mark.spec("PER-21")
async def test_an_agent_that_has_a_function_called_has_read_what_nobody_knows(scene: ContractHarness) -> None:
    asker = await asked_with_children(scene, make_step("fetch", kind=StepKind.PYTHON))
    fetch = await scene.claim_one()
    before = await tainted(scene.store, asker)

    await scene.complete(fetch, "a page")

    assert (before, await tainted(scene.store, asker)) == (False, True)


async def abort(scene: ContractHarness, run_id: str, call: str = "c1", reason: str = "it hangs") -> None:
    await scene.store.tasks.abort_call(scene.own, CallAbort(run_id, call, reason), now_us=scene.now_us)


async def told(scene: ContractHarness, worker: str = "") -> list[Interrupt]:
    return list(await scene.store.claims.interrupts(worker or scene.worker))


def of(claim: Claim, call: str = "c1", reason: str = "it hangs") -> Interrupt:
    return Interrupt(claim.identity.run_id, claim.step_key, claim.fence, "abort", reason, call)


@pytest.mark.spec("EXE-07.a")
async def test_the_holder_of_a_run_is_told_and_whoever_takes_it_up_again_and_nobody_else(
    scene: ContractHarness,
) -> None:
    claim = await scene.start("a")
    another = await scene.another_worker()
    await abort(scene, claim.identity.run_id)

    assert await told(scene) == [of(claim)]
    assert await told(scene, another) == []
    await scene.release(claim)
    assert await told(scene) == []
    again = await scene.claim_one()
    assert await told(scene) == [of(again)]
    assert again.fence > claim.fence


@pytest.mark.spec("EXE-07.g", "EXE-07.a")
async def test_an_abort_of_the_run_is_one_without_a_call_and_no_pause(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    asked_for = await take_up(scene, await ask(scene))

    await abort(scene, claim.identity.run_id, "")
    await abort(scene, asked_for.identity.run_id, "")

    assert await told(scene) == [of(claim, "")]
    (open_ask,) = await scene.store.asks.open_asks(scene.own)
    assert open_ask.aborts == (CallAbort(asked_for.identity.run_id, "", "it hangs"),)


@pytest.mark.spec("EXE-07.a")
async def test_calls_are_aborted_one_by_one_with_the_first_words_and_beside_a_cancel(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    for call, reason in (("c1", "it hangs"), ("c1", "really"), ("c2", "it hangs")):
        await abort(scene, claim.identity.run_id, call, reason)
    assert sorted(await told(scene), key=str) == [of(claim), of(claim, "c2")]

    await scene.store.tasks.cancel_task(scene.own, claim.identity.task_id, reason="by a person", now_us=scene.now_us)

    assert sorted(each.kind for each in await told(scene)) == ["abort", "abort", "cancel"]


@pytest.mark.spec("EXE-07.a")
async def test_a_run_that_does_not_run_takes_no_abort(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    await scene.complete(claim)
    await abort(scene, claim.identity.run_id)
    waiting = await scene.task("b")
    (step,) = (await scene.steps(waiting)).values()
    await abort(scene, step.run_id)
    later = await scene.claim_one()

    assert later.identity.run_id == step.run_id
    assert await told(scene) == []


@pytest.mark.spec("EXE-07.a")
async def test_only_the_sessions_owner_asks_for_it(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    elsewhere = await scene.another_session()
    await scene.store.tasks.abort_call(elsewhere, CallAbort(claim.identity.run_id, "c1"), now_us=scene.now_us)
    before = await told(scene)
    owner = make_owner()
    await scene.store.sessions.register_owner(owner)
    await successor(scene)

    with pytest.raises(NotOwnerError):
        await abort(scene, claim.identity.run_id)

    assert before == []
    assert await told(scene) == []


@pytest.mark.spec("EXE-07.a")
async def test_the_owner_finds_the_aborts_of_its_asks(scene: ContractHarness) -> None:
    quiet, busy = await ask(scene), await ask(scene, "find another")
    claim = await take_up(scene, busy)
    for call in ("c1", "c2"):
        await abort(scene, claim.identity.run_id, call)

    found = {each.task_id: each.aborts for each in await scene.store.asks.open_asks(scene.own)}

    assert found[quiet] == ()
    assert {each.tool_call_id for each in found[busy]} == {"c1", "c2"}
    assert {(each.run_id, each.reason) for each in found[busy]} == {(claim.identity.run_id, "it hangs")}
    assert list(found) == [quiet, busy]


@pytest.mark.spec("EXE-07.a")
async def test_calls_under_way_are_those_of_the_log_that_have_no_end(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    queued = NewEvent(EventType.TOOL_QUEUED, {"tools": {"c1": "test.c1", "c2": "test.c2"}})
    log = [(EventType.TOOL_STARTED, "c1"), (EventType.TOOL_STARTED, "c3"), (EventType.TOOL_COMPLETED, "c1")]
    events = [queued] + [NewEvent(kind, {"tool_call_id": call, "tool": f"test.{call}"}) for kind, call in log]
    await scene.store.runs.append(claim.identity.run_id, claim.fence, events=events, now_us=scene.now_us)

    assert await calls_under_way(scene.store.runs, claim.identity.run_id) == {"c2": "test.c2", "c3": "test.c3"}
