from typing import Final

import pytest
from msgspec.structs import replace

from soong.shared.core.errors import ConflictError, NotFoundError
from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.runs.record import RunStatus
from soong.shared.engine.sessions.session import CommandKind
from soong.shared.engine.tasks.spec import StepKind, StepStatus, TaskKind, TaskStatus
from soong.shared.engine.tasks.step import OpenTask, SessionWork
from soong.shared.storage.store import Store
from tests.contract.scene import ContractHarness, completed
from tests.contract.test_asks import ask, take_up
from tests.model.builders import make_map, make_session, make_step, make_task, open_session


@pytest.mark.spec("DAG-04", "DAG-04.c")
async def test_steps_are_ready_pending_or_expanding_at_once_and_the_logs_say_so(scene: ContractHarness) -> None:
    task_id = await scene.task("a", "b", make_step("c", depends_on=("a", "b")), make_map("m"))

    steps = await scene.steps(task_id)
    assert [steps[name].status for name in "abcm"] == ["ready", "ready", "pending", "expanding"]
    assert (steps["c"].open_deps, steps["c"].depends_on) == (2, (f"{task_id}/a", f"{task_id}/b"))
    assert await scene.event_types(steps["a"].run_id) == ["run_created", "step_created", "step_ready"]
    assert await scene.event_types(steps["c"].run_id) == ["run_created", "step_created"]
    assert "task_created" in await scene.root_event_types(task_id)


async def test_steps_come_back_in_the_order_of_the_plan_and_whole(scene: ContractHarness) -> None:
    new = make_task(
        scene.own.session_id,
        make_step("z", needs=("gpu",), pool="big", priority=7, definition="reviewer", model="script", max_attempts=4),
        make_step("a", spec={"v": 1, "instructions": "Größe: 1.5"}),
    )
    await scene.store.tasks.create_task(new)

    steps = await scene.store.tasks.steps(new.id)

    assert [step.step_id for step in steps] == ["z", "a"]
    for step, made in zip(steps, new.steps, strict=True):
        for name in ("key", "title", "kind", "spec", "priority", "pool", "needs", "definition", "model"):
            assert getattr(step, name) == getattr(made, name)
        assert (step.max_attempts, step.on_failure) == (made.max_attempts, made.on_failure)
        assert made.run is not None
        assert (step.run_id, step.attempt, step.fence) == (made.run.identity.run_id, 1, 0)


async def test_a_session_and_its_first_task_are_written_together_or_not_at_all(scene: ContractHarness) -> None:
    store, session = scene.store, make_session("sess_submitted")
    new = make_task(session.id, "a")

    for _ in range(2):  # the first answer was lost
        await store.tasks.submit(session, new)

    assert await store.sessions.session(session.id) == session
    assert [step.status for step in await store.tasks.steps(new.id)] == [StepStatus.READY]
    with pytest.raises(ConflictError):
        await store.tasks.submit(make_session("sess_other"), replace(new, session_id="sess_other"))
    with pytest.raises(NotFoundError):
        await store.sessions.session("sess_other")


@pytest.mark.spec("CARD-3", "DIS-05.a")
async def test_each_step_has_its_run_with_lineage_before_any_worker_looks(scene: ContractHarness) -> None:
    new = make_task(scene.own.session_id, "a", "b")
    await scene.store.tasks.create_task(new)

    runs = {run.id: run for run in await scene.store.runs.list_runs(session_id=scene.own.session_id)}

    for step in new.steps:
        assert step.run is not None
        run = runs[step.run.identity.run_id]
        assert run.identity == step.run.identity
        assert run.identity.parent_run_id == new.root_run.identity.run_id
        assert (run.status, run.surface, run.token) == (RunStatus.QUEUED, step.run.surface, step.run.token)


async def test_root_run_is_running_and_its_owner_may_append(scene: ContractHarness) -> None:
    task_id = await scene.task("a")
    root_run_id = (await scene.store.tasks.task(task_id)).root_run_id

    root = await scene.store.runs.run(root_run_id)
    await scene.store.runs.append(root_run_id, 0, now_us=scene.now_us)

    assert (root.status, root.fence) == (RunStatus.RUNNING, 0)


async def test_task_comes_back_as_it_was_made(scene: ContractHarness) -> None:
    new = make_task(scene.own.session_id, "a", inputs={"path": "src", "depth": 2, "deep": [{"x": None}]})
    await scene.store.tasks.create_task(new)

    task = await scene.store.tasks.task(new.id)

    assert (task.id, task.session_id, task.title) == (new.id, new.session_id, new.title)
    assert (task.plan, task.inputs, task.created_us) == (new.plan, new.inputs, new.created_us)
    assert (task.status, task.reason, task.ended_us) == (TaskStatus.RUNNING, "", None)


async def test_tasks_are_listed_newest_first_and_by_session(scene: ContractHarness) -> None:
    other = await scene.another_session()
    first, second = await scene.task("a"), await scene.task("a")
    foreign = await scene.task("a", own=other)

    assert [task.id for task in await scene.store.tasks.list_tasks(session_id=scene.own.session_id)] == [second, first]
    assert [task.id for task in await scene.store.tasks.list_tasks(limit=2)] == [foreign, second]


@pytest.mark.spec("DAG-01")
async def test_counts_tell_the_steps_by_status(scene: ContractHarness) -> None:
    task_id = await scene.task("a", "b", make_step("c", depends_on=("a",)), make_map("m"))
    await scene.claim_one()

    counts = await scene.store.tasks.counts(task_id)

    expected = {StepStatus.RUNNING: 1, StepStatus.READY: 1, StepStatus.PENDING: 1, StepStatus.EXPANDING: 1}
    assert counts == expected


async def test_what_does_not_exist_is_named(store: Store) -> None:
    for read, kind in (
        (store.tasks.task, "task"),
        (store.tasks.step, "step"),
        (store.runs.run, "run"),
        (store.sessions.session, "session"),
    ):
        with pytest.raises(NotFoundError, match=f"{kind} 'none'"):
            await read("none")


async def test_task_of_an_unknown_session_leaves_nothing(store: Store) -> None:
    new = make_task("sess_none", "a")

    with pytest.raises(NotFoundError, match="session 'sess_none'"):
        await store.tasks.create_task(new)

    assert await store.tasks.list_tasks() == []
    assert await store.runs.list_runs() == []


async def test_a_session_and_a_task_that_are_written_again_stand_once(scene: ContractHarness) -> None:
    session = make_session()
    new = make_task(session.id, "a", make_step("b", depends_on=("a",)))

    for _ in range(2):
        await scene.store.sessions.open_session(session)
        await scene.store.tasks.create_task(new)

    assert [task.id for task in await scene.store.tasks.list_tasks(session_id=session.id)] == [new.id]
    assert [step.step_id for step in await scene.store.tasks.steps(new.id)] == ["a", "b"]
    assert await scene.event_types(new.root_run.identity.run_id) == ["run_created", "task_created"]


async def test_a_task_that_goes_on_is_not_begun_again_by_being_written_again(scene: ContractHarness) -> None:
    new = make_task(scene.own.session_id, "a")
    await scene.store.tasks.create_task(new)
    claim = await scene.claim_one()

    await scene.store.tasks.create_task(new)

    assert await scene.statuses(new.id) == {"a": StepStatus.RUNNING}
    assert await scene.claim() == ()
    assert (await scene.store.tasks.step(claim.step_key)).fence == claim.fence


async def test_the_id_of_another_sessions_task_is_taken(scene: ContractHarness) -> None:
    new = make_task(scene.own.session_id, "a")
    await scene.store.tasks.create_task(new)
    other = await open_session(scene.store)

    with pytest.raises(ConflictError, match="another session"):
        await scene.store.tasks.create_task(make_task(other.session_id, "a", id=new.id))


SURFACE: Final[JsonObject] = {
    "v": 1,
    "decisions": [["code.read_file", True, "definition"], ["code.write_file", False, "role"]],
    "unknown": [],
}


async def agents(scene: ContractHarness, *ids: str) -> str:
    """Make a task of agents whose runs have that surface, of one without any, as it is pulled, and of a function."""
    steps = [make_step(step_id, kind=StepKind.AGENT) for step_id in (*ids, "pulled")]
    task = make_task(scene.own.session_id, *steps, make_step("function"))
    surfaces = dict.fromkeys(ids, SURFACE) | {"pulled": {}}
    made = [
        replace(step, run=replace(step.run, surface=surfaces[step.step_id]))
        if step.run and step.step_id in surfaces
        else step
        for step in task.steps
    ]
    await scene.store.tasks.create_task(replace(task, steps=tuple(made)))
    return task.id


@pytest.mark.spec("DAG-10")
async def test_the_last_runs_of_a_task_tell_their_tools_and_what_became_of_their_calls(scene: ContractHarness) -> None:
    task_id = await agents(scene, "a", "b")
    await scene.task("other")
    claims = {claim.step_key.rpartition("/")[2]: claim for claim in await scene.claim()}
    told = [
        NewEvent(EventType.TOOL_DENIED, {"tool_call_id": "1"}),
        NewEvent(EventType.TOOL_COMPLETED, {"deliverable": {"name": "x"}}),
        NewEvent(EventType.TOOL_COMPLETED, {"tool_call_id": "2"}),
        NewEvent(EventType.PERMISSION_DECIDED, {"tool_call_id": "1"}),
        NewEvent(EventType.TOOL_FAILED, {"error": "path_conflict"}),
    ]
    for claim in claims.values():
        events = [replace(event, data={**event.data, "of": claim.step_key}) for event in told]
        await scene.store.runs.append(claim.identity.run_id, claim.fence, events=events, now_us=scene.now_us)

    last = await scene.store.runs.last_runs(task_id)

    run_of = {name: claim.identity.run_id for name, claim in claims.items()}
    assert last.granted == {run_of["a"]: ("code.read_file",), run_of["b"]: ("code.read_file",)}
    types = [EventType.TOOL_DENIED, EventType.TOOL_COMPLETED, EventType.PERMISSION_DECIDED, EventType.TOOL_FAILED]
    wanted = [(run_of[name], type_) for name in ("a", "b", "pulled", "function") for type_ in types]
    assert [(event.run_id, event.type) for event in last.events] == wanted
    assert last.events[1].data["deliverable"] == {"name": "x"}


@pytest.mark.spec("DAG-10")
async def test_the_last_runs_of_a_task_tell_decisions_where_a_call_failed_and_files_of_all(
    scene: ContractHarness,
) -> None:
    task_id = await scene.task("a", "b", "c")
    decided = NewEvent(EventType.PERMISSION_DECIDED, {"tool_call_id": "1"})
    delivered = NewEvent(EventType.TOOL_COMPLETED, {"deliverable": {"name": "x"}})
    denied = NewEvent(EventType.TOOL_DENIED, {"tool_call_id": "1"})
    for claim in await scene.claim():
        # Decided in one write, denied or done in a later one, as a question is.
        ended = denied if claim.step_key.endswith("/b") else delivered
        for events in ([decided], [ended], [NewEvent("note")]):
            await scene.store.runs.append(claim.identity.run_id, claim.fence, events=events, now_us=scene.now_us)

    steps = {step.run_id: step.step_id for step in await scene.store.tasks.steps(task_id)}
    told = [(steps[event.run_id], event.type) for event in (await scene.store.runs.last_runs(task_id)).events]

    assert told == [
        ("a", EventType.TOOL_COMPLETED),
        ("b", EventType.PERMISSION_DECIDED),
        ("b", EventType.TOOL_DENIED),
        ("c", EventType.TOOL_COMPLETED),
    ]


@pytest.mark.spec("DAG-10")
async def test_an_earlier_attempt_is_not_the_last_run(scene: ContractHarness) -> None:
    first = await scene.start(make_step("a", max_attempts=2))
    await scene.store.runs.append(
        first.identity.run_id, first.fence, events=[NewEvent(EventType.TOOL_DENIED)], now_us=scene.now_us
    )
    await scene.fail(first)
    await scene.retry(first.step_key)

    assert not (await scene.store.runs.last_runs(first.identity.task_id)).events


async def test_events_of_several_runs_come_run_by_run(scene: ContractHarness) -> None:
    await scene.task("a", "b", "c")
    one, two, other = await scene.claim()
    for claim in (two, one, other):
        noted = [NewEvent("note", {"step": claim.step_key}), NewEvent("note")]
        await scene.store.runs.append(claim.identity.run_id, claim.fence, events=noted, now_us=scene.now_us)

    events = await scene.store.runs.events_of([two.identity.run_id, one.identity.run_id])

    each = [await scene.store.runs.events(claim.identity.run_id) for claim in (one, two)]
    assert list(events) == [*each[0], *each[1]]
    assert not await scene.store.runs.events_of([])


async def test_a_task_is_read_with_its_steps(scene: ContractHarness) -> None:
    task_id = await scene.task("a", make_step("b", depends_on=["a"]))
    await scene.task("other")

    task, steps = await scene.store.tasks.task_with_steps(task_id)

    assert (task, list(steps)) == (await scene.store.tasks.task(task_id), await scene.store.tasks.steps(task_id))
    assert [step.step_id for step in steps] == ["a", "b"]
    assert await scene.store.tasks.status(task_id) == (TaskStatus.RUNNING, task.session_id)
    for read in (scene.store.tasks.task_with_steps, scene.store.tasks.status):
        with pytest.raises(NotFoundError):
            await read("task_none")


# -- the owner's look
async def test_work_is_told_by_kind(scene: ContractHarness) -> None:
    other = await scene.another_session()
    task_id = await scene.task("a", make_step("m", depends_on=["a"]), make_map("map", depends_on=["a"]))
    assert await scene.store.tasks.session_work(scene.own) == SessionWork((OpenTask(task_id, TaskStatus.RUNNING),))
    claim = await scene.claim_one()
    await scene.advance([completed(claim)])
    command_id = await scene.command(task_id, CommandKind.PAUSE)
    failing = await scene.claim_one()
    await scene.fail(failing)

    work = await scene.store.tasks.session_work(scene.own)

    assert (work.has_commands, work.is_expanding, work.has_failures, work.retry_us) == (True, True, True, None)
    assert await scene.store.tasks.session_work(other) == SessionWork()
    await scene.store.sessions.end_command(command_id)
    await scene.retry(failing.step_key, not_before_us=scene.later_us)
    work = await scene.store.tasks.session_work(scene.own)
    assert (work.has_commands, work.has_failures, work.retry_us) == (False, False, scene.later_us)


@pytest.mark.spec("DAG-05")
async def test_a_task_has_a_planner_while_the_run_of_its_agent_lasts(scene: ContractHarness) -> None:
    ask_id = await ask(scene)
    claim = await take_up(scene, ask_id)
    planned = make_task(scene.own.session_id, "a")
    root = planned.root_run
    of_agent = replace(root, identity=replace(root.identity, parent_run_id=claim.identity.run_id))
    await scene.store.tasks.create_task(replace(planned, root_run=of_agent))
    plain = await scene.task("b")
    running = TaskStatus.RUNNING
    alone = OpenTask(plain, running)

    assert await scene.store.tasks.open_tasks(scene.own) == [
        OpenTask(ask_id, running, TaskKind.ASK, has_planner=True),
        OpenTask(planned.id, running, has_planner=True),
        alone,
    ]
    assert (await scene.store.tasks.session_work(scene.own)).has_asks
    await scene.store.asks.end_ask(scene.own, ask_id, completed(claim), now_us=scene.now_us)

    assert await scene.store.tasks.open_tasks(scene.own) == [OpenTask(planned.id, running), alone]
    assert not (await scene.store.tasks.session_work(scene.own)).has_asks
