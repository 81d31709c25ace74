"""A session that ends with its one task: closed by that end, which a look finds and writes at once."""

from dataclasses import replace
from typing import Any

import pytest

from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.record import Usage
from soong.shared.engine.runs.status import RunStatus
from soong.shared.engine.sessions.session import ApprovalMode, CommandKind, Ownership
from soong.shared.engine.tasks.ending import FinishedTask
from soong.shared.engine.tasks.kinds import FailurePolicy
from soong.shared.engine.tasks.status import TaskStatus
from soong.shared.engine.tasks.step import NewStep, SessionWork
from soong.shared.storage.sql.claims.task_ends import FEW_RUNS
from tests.contract.scene import ContractHarness, completed
from tests.model.builders import make_command, make_session, make_step, make_task


async def ending_session(scene: ContractHarness) -> Ownership:
    """Open a session that is to end with its task, under the scene's owner."""
    session = make_session(closes_with_task=True)
    await scene.store.sessions.open_session(session)
    (adopted,) = await scene.store.sessions.adopt_sessions(scene.own.owner_id)
    return adopted.ownership


async def test_the_last_task_to_complete_closes_a_session_that_ends_with_it(scene: ContractHarness) -> None:
    own = await ending_session(scene)
    tasks = [await scene.task("a", own=own), await scene.task("b", own=own)]
    assert not any(task.is_due for task in (await scene.store.tasks.session_work(own)).open_tasks)
    is_closed = []

    for claim in await scene.claim(2):
        await scene.complete(claim)
        assert [task.is_due for task in (await scene.store.tasks.session_work(own)).open_tasks].count(True) == 1
        await scene.store.tasks.finish_task(own, claim.identity.task_id, now_us=scene.now_us)
        is_closed.append((await scene.store.sessions.session(own.session_id)).is_closed)

    assert is_closed == [False, True]
    assert [(await scene.store.tasks.task(task)).status for task in tasks] == [TaskStatus.COMPLETED] * 2


async def test_a_session_that_would_end_with_its_task_stays_open_when_that_failed(scene: ContractHarness) -> None:
    own = await ending_session(scene)
    task_id = await scene.task(make_step("a", on_failure=FailurePolicy.KEEP), own=own)
    claim = await scene.claim_one()
    await scene.fail(claim)
    await scene.store.tasks.settle_failure(own, claim.step_key, FailurePolicy.KEEP, now_us=scene.now_us)

    status = await scene.store.tasks.finish_task(own, task_id, now_us=scene.now_us)

    assert (status, (await scene.store.sessions.session(own.session_id)).is_closed) == (TaskStatus.FAILED, False)


async def test_a_look_ends_what_has_only_its_end_left_and_closes_the_session_with_it(scene: ContractHarness) -> None:
    own = await ending_session(scene)
    task_id = await scene.task("a", own=own)
    claim = await scene.claim_one()
    open_work = await scene.store.tasks.session_work(own)

    assert await scene.store.tasks.look_and_finish(own, now_us=scene.now_us) == (open_work, [])
    await scene.complete(claim)
    work, ended = await scene.store.tasks.look_and_finish(own, now_us=scene.now_us)

    assert (work, list(ended)) == (
        SessionWork(),
        [FinishedTask(task_id, TaskStatus.COMPLETED, is_closed=True, is_recorded=True)],
    )
    assert (await scene.store.sessions.session(own.session_id)).is_closed
    assert await scene.store.tasks.unrecorded(own.owner_id) == []
    task = await scene.store.tasks.task(task_id)
    root = await scene.store.runs.run(task.root_run_id)
    assert (task.status, root.status) == (TaskStatus.COMPLETED, RunStatus.COMPLETED)
    assert await scene.store.tasks.look_and_finish(own, now_us=scene.now_us) == (SessionWork(), [])


@pytest.mark.parametrize("usage", [Usage(requests=1), Usage(tool_calls=1)])
async def test_a_look_leaves_the_folders_of_runs_that_did_something_to_be_written(
    scene: ContractHarness, usage: Usage
) -> None:
    own = await ending_session(scene)
    task_id = await scene.task("a", own=own)
    claim = await scene.claim_one()
    await scene.advance([replace(completed(claim), usage=usage)])

    _, (ended,) = await scene.store.tasks.look_and_finish(own, now_us=scene.now_us)

    assert (ended.is_closed, ended.is_recorded) == (True, False)
    assert await scene.store.tasks.unrecorded(own.owner_id) == [task_id]


async def test_a_look_ends_nothing_where_a_command_waits_or_a_step_failed(scene: ContractHarness) -> None:
    own = await ending_session(scene)
    task_id = await scene.task(make_step("a", on_failure=FailurePolicy.KEEP), own=own)
    claim = await scene.claim_one()
    await scene.fail(claim)
    unsettled = await scene.store.tasks.session_work(own)
    assert await scene.store.tasks.look_and_finish(own, now_us=scene.now_us) == (unsettled, [])
    await scene.store.tasks.settle_failure(own, claim.step_key, FailurePolicy.KEEP, now_us=scene.now_us)
    settled = await scene.store.tasks.session_work(own)

    assert [task.is_due for task in settled.open_tasks] == [True]
    assert await scene.store.tasks.look_and_finish(own, now_us=scene.now_us) == (settled, [])
    assert (await scene.store.tasks.task(task_id)).status is TaskStatus.RUNNING


async def test_another_session_is_closed_by_nothing_but_a_command(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    await scene.complete(claim)

    await scene.finish(claim.identity.task_id)

    assert not (await scene.store.sessions.session(scene.own.session_id)).is_closed


async def test_sessions_are_taken_over_with_the_end_of_those_that_are_named(scene: ContractHarness) -> None:
    sessions = [make_session(closes_with_task=True, approval_mode=ApprovalMode.DENY) for _ in range(2)]
    for session in sessions:
        await scene.store.tasks.submit(session, make_task(session.id, *(f"s{number}" for number in range(FEW_RUNS))))
    await scene.complete_all(await scene.claim(2 * FEW_RUNS))
    assert sorted(await scene.store.sessions.without_owner([one.id for one in sessions])) == sorted(
        one.id for one in sessions
    )

    named, other = await scene.store.tasks.take_over(scene.own.owner_id, [sessions[0].id], now_us=scene.now_us)

    assert [(one.id, one.owner_id, one.owner_epoch) for one in (named[0], other[0])] == [
        (session.id, scene.own.owner_id, 1) for session in sessions
    ]
    assert named[1] is not None
    assert [end.is_closed for end in named[1][1]] == [True]
    assert other[1] is None
    assert not (await scene.store.sessions.session(sessions[1].id)).is_closed
    assert await scene.store.tasks.take_over(scene.own.owner_id, [sessions[0].id], now_us=scene.now_us) == []


async def test_an_owner_that_is_gone_takes_nothing_over(scene: ContractHarness) -> None:
    session = make_session(closes_with_task=True)
    await scene.store.tasks.submit(session, make_task(session.id, "a"))
    await scene.store.sessions.expire_owner(scene.own.owner_id, 0)

    assert await scene.store.tasks.take_over(scene.own.owner_id, [session.id], now_us=scene.now_us) == []


async def test_sessions_without_an_owner_are_open_and_nobodys(scene: ContractHarness) -> None:
    free = make_session(closes_with_task=True, approval_mode=ApprovalMode.DENY)
    await scene.store.sessions.open_session(free)
    over = await short_task(scene)
    await scene.complete(await scene.claim_one())

    found = await scene.store.sessions.without_owner([free.id, over, scene.own.session_id, "sess_unknown"])

    assert (await scene.store.sessions.session(over)).is_closed
    assert list(found) == [free.id]


# -- ended by the worker
async def short_task(scene: ContractHarness, *steps: NewStep | str, **session: Any) -> str:
    """Submit a task in a session of its own that is to end with it; return the session's id."""
    made = make_session(closes_with_task=True, approval_mode=ApprovalMode.DENY, **session)
    await scene.store.tasks.submit(made, make_task(made.id, *(steps or ("a",))))
    return made.id


async def test_the_worker_that_ends_the_last_step_ends_a_task_that_nobody_has_adopted(scene: ContractHarness) -> None:
    session_id = await short_task(scene, "a", make_step("b", depends_on=["a"]))

    first = await scene.complete(await scene.claim_one())
    claim = await scene.claim_one()
    last = await scene.complete(claim)

    assert (first.closed_sessions, first.owner_sessions) == (frozenset(), frozenset())
    assert (last.closed_sessions, last.owner_sessions) == (frozenset({session_id}), frozenset())
    session = await scene.store.sessions.session(session_id)
    assert (session.is_closed, session.owner_id, session.owner_epoch) == (True, "", 0)
    task = await scene.store.tasks.task(claim.identity.task_id)
    root = await scene.store.runs.run(task.root_run_id)
    assert (task.status, task.ended_us, root.status) == (TaskStatus.COMPLETED, scene.now_us, RunStatus.COMPLETED)
    events = [event.type for event in await scene.store.runs.events(task.root_run_id)]
    assert events[-2:] == [EventType.TASK_COMPLETED, EventType.RUN_COMPLETED]
    assert await scene.store.tasks.unrecorded(scene.own.owner_id) == []
    assert await scene.store.sessions.adopt_sessions(scene.own.owner_id) == []


async def test_a_worker_ends_each_of_many_tasks_with_its_last_step(scene: ContractHarness) -> None:
    sessions = {await short_task(scene) for _ in range(3)}

    ended = await scene.complete_all(await scene.claim(3))

    assert (ended.closed_sessions, ended.owner_sessions) == (frozenset(sessions), frozenset())


async def test_a_worker_leaves_a_task_to_the_owner_that_has_adopted_its_session(scene: ContractHarness) -> None:
    own = await ending_session(scene)
    await scene.task("a", own=own)

    ended = await scene.complete(await scene.claim_one())

    assert (ended.closed_sessions, ended.owner_sessions) == (frozenset(), frozenset({own.session_id}))


async def test_a_worker_leaves_to_owners_what_was_owned_once(scene: ContractHarness) -> None:
    own = await ending_session(scene)
    await scene.task("a", own=own)
    await scene.store.sessions.release_owner(own.owner_id)

    ended = await scene.complete(await scene.claim_one())

    assert (ended.closed_sessions, ended.owner_sessions) == (frozenset(), frozenset({own.session_id}))


async def test_a_worker_leaves_failures_to_owners(scene: ContractHarness) -> None:
    session_id = await short_task(scene)

    ended = await scene.fail(await scene.claim_one())

    assert (ended.closed_sessions, ended.owner_sessions) == (frozenset(), frozenset({session_id}))


async def test_a_worker_leaves_a_session_that_stays_open_to_owners(scene: ContractHarness) -> None:
    session = make_session()
    await scene.store.tasks.submit(session, make_task(session.id, "a"))

    ended = await scene.complete(await scene.claim_one())

    assert (ended.closed_sessions, ended.owner_sessions) == (frozenset(), frozenset({session.id}))


async def test_a_worker_leaves_a_task_of_which_something_is_wanted_to_owners(scene: ContractHarness) -> None:
    session_id = await short_task(scene)
    claim = await scene.claim_one()
    await scene.store.sessions.send_command(make_command(session_id, CommandKind.CANCEL, claim.identity.task_id))

    ended = await scene.complete(claim)

    assert (ended.closed_sessions, ended.owner_sessions) == (frozenset(), frozenset({session_id}))


async def test_a_worker_leaves_a_session_with_more_than_one_task_to_owners(scene: ContractHarness) -> None:
    session_id = await short_task(scene)
    await scene.store.tasks.create_task(make_task(session_id, "b"))
    claims = await scene.claim(2)

    ended = [await scene.complete(claim) for claim in claims]

    assert [(one.closed_sessions, one.owner_sessions) for one in ended] == [(frozenset(), frozenset({session_id}))] * 2


@pytest.mark.parametrize("usage", [Usage(requests=1), Usage(tool_calls=1)])
async def test_a_worker_ends_a_task_and_leaves_the_folders_of_its_runs_to_owners(
    scene: ContractHarness, usage: Usage
) -> None:
    session_id, other_id = await short_task(scene), await short_task(scene)
    claims = {claim.identity.session_id: claim for claim in await scene.claim(2)}
    claim = claims[session_id]

    ended = await scene.advance([replace(completed(claim), usage=usage), completed(claims[other_id])])

    assert (ended.closed_sessions, ended.owner_sessions) == (frozenset({session_id, other_id}), frozenset())
    assert ended.unrecorded == frozenset({session_id})
    assert (await scene.store.tasks.task(claim.identity.task_id)).status is TaskStatus.COMPLETED
    assert await scene.store.tasks.unrecorded(scene.own.owner_id) == [claim.identity.task_id]


async def test_a_worker_leaves_the_end_of_a_task_of_many_runs_to_owners(scene: ContractHarness) -> None:
    session_id = await short_task(scene, *(f"s{number}" for number in range(FEW_RUNS)))

    ended = await scene.complete_all(await scene.claim(FEW_RUNS))

    assert (ended.closed_sessions, ended.owner_sessions) == (frozenset(), frozenset({session_id}))
