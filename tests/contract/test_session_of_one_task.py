import pytest
from msgspec.structs import replace

from soong.shared.engine.runs.record import RunStatus, Usage
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.spec import FailurePolicy, TaskStatus
from soong.shared.engine.tasks.step import SessionWork
from soong.shared.engine.tasks.store import FinishedTask
from tests.contract.scene import ContractHarness, completed
from tests.model.builders import make_session, make_step


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

    ended = await scene.store.tasks.finish_task(own, task_id, now_us=scene.now_us)

    assert ended == FinishedTask(task_id, TaskStatus.FAILED)
    assert not (await scene.store.sessions.session(own.session_id)).is_closed


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


async def test_a_look_ends_nothing_where_a_step_failed_until_that_is_settled(scene: ContractHarness) -> None:
    own = await ending_session(scene)
    task_id = await scene.task(make_step("a", on_failure=FailurePolicy.KEEP), own=own)
    claim = await scene.claim_one()
    await scene.fail(claim)
    unsettled = await scene.store.tasks.session_work(own)
    assert await scene.store.tasks.look_and_finish(own, now_us=scene.now_us) == (unsettled, [])
    await scene.store.tasks.settle_failure(own, claim.step_key, FailurePolicy.KEEP, now_us=scene.now_us)
    settled = await scene.store.tasks.session_work(own)

    assert [task.is_due for task in settled.open_tasks] == [True]
    _, ended = await scene.store.tasks.look_and_finish(own, now_us=scene.now_us)
    assert list(ended) == [FinishedTask(task_id, TaskStatus.FAILED)]


async def test_another_session_is_closed_by_nothing_but_a_command(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    await scene.complete(claim)

    await scene.finish(claim.identity.task_id)

    assert not (await scene.store.sessions.session(scene.own.session_id)).is_closed
