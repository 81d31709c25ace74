import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest
from msgspec.structs import replace

from soong.shared.core.errors import InvalidTransitionError, NotFoundError, NotOwnerError
from soong.shared.engine.runs.record import RunStatus, Usage
from soong.shared.engine.sessions.session import (
    ApprovalMode,
    Command,
    CommandKind,
    Ownership,
    ProcessState,
    RefusalType,
)
from soong.shared.engine.tasks.spec import FailurePolicy, StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Claim, SessionWork, StepError
from soong.shared.engine.tasks.store import FinishedTask
from soong.shared.engine.tasks.verdict import FailStep
from soong.shared.permissions.request import RequestState
from soong.shared.storage.store import Store
from tests.contract.conftest import OpenStore
from tests.contract.scene import ContractHarness, completed
from tests.model.builders import (
    make_command,
    make_decision,
    make_map,
    make_owner,
    make_request,
    make_responder,
    make_retry,
    make_session,
    make_task,
    make_worker,
)

OWNED = pytest.mark.spec("CARD-1")


# -- sessions
async def test_session_comes_back_as_it_was_opened(store: Store) -> None:
    session = make_session(approval_mode=ApprovalMode.INBOX, policy={"rules": [], "mode": "strict"}, principal="ada")

    await store.sessions.open_session(session)

    assert await store.sessions.session(session.id) == session


async def test_sessions_are_listed_by_owner_and_without_the_closed(store: Store) -> None:
    await store.sessions.register_owner(make_owner("own_1"))
    mine, closed, free = make_session(owner_id="own_1"), make_session(owner_id="own_1"), make_session()
    for session in (mine, closed, free):
        await store.sessions.open_session(session)
    await store.sessions.close_session(closed.ownership)

    assert {session.id for session in await store.sessions.session_page()} == {mine.id, free.id}
    assert len(await store.sessions.session_page(include_closed=True)) == 3


# -- owners
@OWNED
async def test_free_session_is_adopted_in_a_new_epoch(store: Store) -> None:
    await store.sessions.register_owner(make_owner("own_1"))
    session = make_session()
    await store.sessions.open_session(session)

    (adopted,) = await store.sessions.adopt_sessions("own_1")

    assert adopted == replace(session, owner_id="own_1", owner_epoch=1)
    assert await store.sessions.session(session.id) == adopted
    assert await store.sessions.adopt_sessions("own_1") == []


@OWNED
async def test_of_two_adopters_at_once_each_session_goes_to_one(
    scene: ContractHarness, open_another: OpenStore
) -> None:
    stores = [await open_another(), await open_another()]
    for number in range(2):
        await scene.store.sessions.register_owner(make_owner(f"own_{number}"))
    opened = [make_session() for _ in range(20)]
    for session in opened:
        await scene.store.sessions.open_session(session)

    taken = await asyncio.gather(
        *(store.sessions.adopt_sessions(f"own_{number}") for number, store in enumerate(stores))
    )

    ids = [session.id for adopted in taken for session in adopted]
    assert sorted(ids) == sorted(session.id for session in opened)


@OWNED
async def test_owned_and_closed_sessions_are_not_adopted(store: Store) -> None:
    for owner_id in ("own_1", "own_2"):
        await store.sessions.register_owner(make_owner(owner_id))
    owned, closed = make_session(owner_id="own_1"), make_session(owner_id="own_1")
    for session in (owned, closed):
        await store.sessions.open_session(session)
    await store.sessions.close_session(closed.ownership)
    await store.sessions.release_owner("own_1")

    assert [session.id for session in await store.sessions.adopt_sessions("own_2")] == [owned.id]


@OWNED
async def test_dead_owners_sessions_are_taken_over_in_a_higher_epoch(scene: ContractHarness) -> None:
    await scene.store.sessions.register_owner(make_owner("own_next"))

    assert await scene.store.sessions.expire_owner(scene.own.owner_id, 0)
    (adopted,) = await scene.store.sessions.adopt_sessions("own_next")

    assert (adopted.owner_id, adopted.owner_epoch) == ("own_next", scene.own.epoch + 1)
    assert [owner.id for owner in await scene.store.sessions.owners()] == ["own_next"]


@OWNED
async def test_owner_that_has_beaten_does_not_expire_and_one_that_expired_cannot_beat_or_adopt(
    scene: ContractHarness,
) -> None:
    sessions, owner_id = scene.store.sessions, scene.own.owner_id
    assert await sessions.beat_owner(owner_id)
    assert not await sessions.expire_owner(owner_id, 0)
    assert (await sessions.session(scene.own.session_id)).owner_id == owner_id
    assert [owner.beat for owner in await sessions.owners()] == [1]

    await sessions.expire_owner(owner_id, 1)

    assert not await sessions.beat_owner(owner_id)
    assert await sessions.adopt_sessions(owner_id) == []
    assert not await sessions.expire_owner(owner_id, 1)


@OWNED
@pytest.mark.spec("DIS-03")
async def test_a_process_registered_again_stays_as_it_is(scene: ContractHarness) -> None:
    """Whoever did not hear the answer says it again, perhaps after it has beaten, or was declared gone."""
    owner, worker = make_owner("own_said_twice"), make_worker("wrk_said_twice")
    heart = scene.store.heartbeat_writer()
    for _ in range(2):
        await scene.store.sessions.register_owner(owner)
        await scene.store.sessions.register_worker(worker)
        await asyncio.to_thread(heart.beat, worker.id)
        await scene.store.sessions.beat_owner(owner.id)
    heart.close()

    (told,) = [one for one in await scene.store.sessions.workers() if one.id == worker.id]
    (told_owner,) = [one for one in await scene.store.sessions.owners() if one.id == owner.id]
    assert (told.beat, told_owner.beat) == (2, 2)
    await scene.store.claims.expire_worker(worker.id, 2, max_lost_leases=3, now_us=scene.now_us)
    await scene.store.sessions.register_worker(worker)
    assert worker.id not in {one.id for one in await scene.store.sessions.workers()}


@OWNED
async def test_owner_that_leaves_frees_its_sessions_and_keeps_their_epoch(scene: ContractHarness) -> None:
    await scene.store.sessions.release_owner(scene.own.owner_id)

    session = await scene.store.sessions.session(scene.own.session_id)

    assert (session.owner_id, session.owner_epoch) == ("", scene.own.epoch)
    assert await scene.store.sessions.owners() == []


Write: TypeAlias = Callable[[ContractHarness, Claim], Awaitable[object]]
NO_ERROR = StepError("invalid_input", "no list")


async def retry_step(scene: ContractHarness, claim: Claim) -> None:
    run = make_retry(await scene.store.runs.run(claim.identity.run_id))
    await scene.store.tasks.retry_step(scene.own, claim.step_key, run, not_before_us=0, now_us=scene.now_us)


async def decide(scene: ContractHarness, claim: Claim) -> None:
    (request,) = await scene.store.consent.pending(scene.own.session_id)
    await scene.store.consent.decide(
        scene.own, make_decision(request), state=RequestState.DECIDED, events=(), now_us=scene.now_us
    )


OWNER_WRITES: dict[str, Write] = {
    "steps_in": lambda scene, _: scene.store.tasks.steps_in(scene.own, StepStatus.READY),
    "begin_expansion": lambda scene, claim: scene.store.tasks.begin_expansion(scene.own, f"{claim.identity.task_id}/m"),
    "write_verdict": lambda scene, claim: scene.verdict(f"{claim.identity.task_id}/m", FailStep(NO_ERROR)),
    "failures": lambda scene, _: scene.store.tasks.failures(scene.own),
    "retry_step": retry_step,
    "promote_due": lambda scene, _: scene.store.tasks.promote_due(scene.own, now_us=scene.later_us),
    "settle_failure": lambda scene, claim: scene.settle(claim.step_key, FailurePolicy.FAIL_TASK),
    "finish_task": lambda scene, claim: scene.store.tasks.finish_task(
        scene.own, claim.identity.task_id, now_us=scene.now_us
    ),
    "open_tasks": lambda scene, _: scene.store.tasks.open_tasks(scene.own),
    "session_work": lambda scene, _: scene.store.tasks.session_work(scene.own),
    "look_and_finish": lambda scene, _: scene.store.tasks.look_and_finish(scene.own, now_us=scene.now_us),
    "pause_task": lambda scene, claim: scene.store.tasks.pause_task(
        scene.own, claim.identity.task_id, reason="x", now_us=scene.now_us
    ),
    "resume_task": lambda scene, claim: scene.store.tasks.resume_task(
        scene.own, claim.identity.task_id, now_us=scene.now_us
    ),
    "cancel_task": lambda scene, claim: scene.store.tasks.cancel_task(
        scene.own, claim.identity.task_id, reason="x", now_us=scene.now_us
    ),
    "retry_task": lambda scene, claim: scene.retry_task(claim.identity.task_id),
    "take_commands": lambda scene, _: scene.store.sessions.take_commands(scene.own),
    "decide": decide,
    "close_session": lambda scene, _: scene.store.sessions.close_session(scene.own),
}


@pytest.mark.parametrize("successor", [True, False], ids=["taken over", "without an owner"])
@pytest.mark.parametrize("write", OWNER_WRITES.values(), ids=OWNER_WRITES.keys())
@OWNED
async def test_stale_owner_is_refused_at_every_write(scene: ContractHarness, write: Write, successor: bool) -> None:
    failing = await scene.start("a", "b", make_map("m"))
    asking = await scene.claim_one()
    await scene.store.consent.raise_request(make_request(asking), events=(), now_us=scene.now_us)
    await scene.fail(failing)
    await scene.store.sessions.expire_owner(scene.own.owner_id, 0)
    if successor:
        await scene.store.sessions.register_owner(make_owner("own_next"))
        await scene.store.sessions.adopt_sessions("own_next")
    before = await picture(scene, failing)

    with pytest.raises(NotOwnerError):
        await write(scene, failing)

    assert await picture(scene, failing) == before


async def picture(scene: ContractHarness, claim: Claim) -> list[object]:
    """Return all that an owner's write could have changed."""
    task_id = claim.identity.task_id
    return [
        await scene.store.sessions.session(scene.own.session_id),
        await scene.store.tasks.task(task_id),
        await scene.store.tasks.steps(task_id),
        await scene.store.runs.list_runs(session_id=scene.own.session_id),
        await scene.store.consent.pending(scene.own.session_id),
    ]


@OWNED
async def test_made_up_epoch_is_refused(scene: ContractHarness) -> None:
    forged = Ownership(scene.own.session_id, scene.own.owner_id, scene.own.epoch + 1)

    with pytest.raises(NotOwnerError) as refusal:
        await scene.store.sessions.close_session(forged)

    assert (refusal.value.session_id, refusal.value.epoch) == (forged.session_id, forged.epoch)


# -- responders
@pytest.mark.spec("PER-01")
async def test_responders_attach_beat_and_leave(scene: ContractHarness) -> None:
    responder = make_responder(scene.own.session_id)

    await scene.store.sessions.attach_responder(responder)
    assert await scene.store.sessions.beat_responder(responder.id)
    assert await scene.store.sessions.responders(scene.own.session_id) == [replace(responder, beat=1)]
    await scene.store.sessions.detach_responder(responder.id)

    assert await scene.store.sessions.responders(scene.own.session_id) == []
    assert not await scene.store.sessions.beat_responder(responder.id)


async def test_responders_and_commands_of_other_sessions_are_theirs(scene: ContractHarness) -> None:
    other = await scene.another_session()
    await scene.store.sessions.attach_responder(make_responder(other.session_id))
    await scene.store.sessions.send_command(make_command(other.session_id, CommandKind.CLOSE, other.session_id))

    assert await scene.store.sessions.responders(scene.own.session_id) == []
    assert await scene.store.sessions.take_commands(scene.own) == []


# -- commands
@OWNED
async def test_commands_are_taken_in_order_until_they_have_ended(scene: ContractHarness) -> None:
    commands = [make_command(scene.own.session_id, kind, "task_1") for kind in (CommandKind.PAUSE, CommandKind.RESUME)]
    for command in commands:
        await scene.store.sessions.send_command(command)

    assert await scene.store.sessions.take_commands(scene.own) == commands
    assert await scene.store.sessions.take_commands(scene.own) == commands
    await scene.store.sessions.end_command(commands[0].id)

    assert await scene.store.sessions.take_commands(scene.own) == commands[1:]


async def test_command_tells_whether_and_how_it_ended_and_keeps_that_end(scene: ContractHarness) -> None:
    command, sessions = make_command(scene.own.session_id, CommandKind.CANCEL, "task_1"), scene.store.sessions
    await sessions.send_command(command)
    assert await sessions.command(command.id) == (command, False)

    refusal, refusal_type = "the run would have 5 children", RefusalType.LIMIT_EXCEEDED
    await sessions.end_command(command.id, refusal=refusal, refusal_type=refusal_type)
    # An owner that thaws after its successor has carried a command out refuses it by what it sees then.
    await sessions.end_command(command.id, refusal="the task is running")

    ended = replace(command, refusal=refusal, refusal_type=refusal_type)
    assert await sessions.command(command.id) == (ended, True)
    with pytest.raises(NotFoundError, match="command 'cmd_none'"):
        await sessions.command("cmd_none")


# -- workers
@pytest.mark.spec("DIS-04")
async def test_worker_comes_back_as_it_registered(store: Store) -> None:
    worker = make_worker(slots=4, pools=("default", "big"), capabilities=("gpu", "protocol:1"))

    await store.sessions.register_worker(worker)

    assert await store.sessions.workers() == [worker]


@pytest.mark.spec("OPS-06")
async def test_worker_goes_from_live_over_draining_to_gone_and_never_back(store: Store) -> None:
    worker = make_worker()
    await store.sessions.register_worker(worker)
    seen = []
    for state in (ProcessState.DRAINING, ProcessState.LIVE, ProcessState.GONE, ProcessState.DRAINING):
        await store.sessions.set_worker_state(worker.id, state)
        seen += [known.state for known in await store.sessions.workers(include_gone=True)]

    assert seen == [ProcessState.DRAINING, ProcessState.DRAINING, ProcessState.GONE, ProcessState.GONE]
    assert await store.sessions.workers() == []


@pytest.mark.spec("DAG-03")
async def test_heartbeat_comes_from_a_thread_of_its_own_also_while_draining_and_of_no_unknown_worker(
    store: Store,
) -> None:
    worker = make_worker()
    await store.sessions.register_worker(worker)
    heart = store.heartbeat_writer()
    beaten = [await asyncio.to_thread(heart.beat, worker.id) for _ in range(3)]
    await store.sessions.set_worker_state(worker.id, ProcessState.DRAINING)

    beaten += [await asyncio.to_thread(heart.beat, worker_id) for worker_id in (worker.id, "wrk_none")]
    await asyncio.to_thread(heart.close)

    assert beaten == [*[True] * 4, False]
    assert [known.beat for known in await store.sessions.workers()] == [4]


async def test_busy_sessions_are_those_with_open_work(store: Store) -> None:
    owner = make_owner()
    await store.sessions.register_owner(owner)
    idle, working, asked = (make_session(owner_id=owner.id) for _ in range(3))
    for session in (idle, working, asked, make_session()):
        await store.sessions.open_session(session)
    await store.tasks.create_task(make_task(working.id, "a"))
    await store.sessions.send_command(make_command(asked.id, CommandKind.CLOSE, asked.id))

    assert await store.sessions.busy_sessions(owner.id) == [working.id, asked.id]
    assert await store.sessions.busy_sessions("own_other") == []


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
    task_id = await scene.task("a", own=own)
    claim = await scene.claim_one()
    await scene.fail(claim)
    await scene.store.tasks.settle_failure(own, claim.step_key, FailurePolicy.SKIP_DEPENDENTS, now_us=scene.now_us)

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
    task_id = await scene.task("a", own=own)
    claim = await scene.claim_one()
    await scene.fail(claim)
    unsettled = await scene.store.tasks.session_work(own)
    assert await scene.store.tasks.look_and_finish(own, now_us=scene.now_us) == (unsettled, [])
    await scene.store.tasks.settle_failure(own, claim.step_key, FailurePolicy.SKIP_DEPENDENTS, now_us=scene.now_us)
    settled = await scene.store.tasks.session_work(own)

    assert [task.is_due for task in settled.open_tasks] == [True]
    _, ended = await scene.store.tasks.look_and_finish(own, now_us=scene.now_us)
    assert list(ended) == [FinishedTask(task_id, TaskStatus.FAILED)]


async def test_another_session_is_closed_by_nothing_but_a_command(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    await scene.complete(claim)

    await scene.finish(claim.identity.task_id)

    assert not (await scene.store.sessions.session(scene.own.session_id)).is_closed


LATE = sorted(set(CommandKind) - {CommandKind.RETRY, CommandKind.CLOSE})


async def closed(scene: ContractHarness) -> tuple[str, str]:
    """End a task and close its session; return the ids of both."""
    claim = await scene.start("a")
    await scene.complete(claim)
    await scene.finish(claim.identity.task_id)
    await scene.store.sessions.close_session(scene.own)
    return scene.own.session_id, claim.identity.task_id


async def sent(scene: ContractHarness, session_id: str, kind: CommandKind, subject: str) -> tuple[Command, bool]:
    """Send a command; return it as it is then, and whether it has ended."""
    command = make_command(session_id, kind, subject)
    await scene.store.sessions.send_command(command)
    return await scene.store.sessions.command(command.id)


@pytest.mark.spec("CARD-1.d")
@pytest.mark.parametrize("kind", LATE)
async def test_a_command_about_a_task_that_has_ended_is_refused_at_once(
    scene: ContractHarness, kind: CommandKind
) -> None:
    session_id, task_id = await closed(scene)

    command, has_ended = await sent(scene, session_id, kind, task_id)

    assert has_ended
    assert command.refusal == str(InvalidTransitionError("task", TaskStatus.COMPLETED, kind))
    assert command.refusal_type is RefusalType.CONFLICT
    assert (await scene.store.sessions.session(session_id)).is_closed


@pytest.mark.spec("CARD-1.d")
async def test_a_command_about_a_task_that_is_not_there_is_refused_and_a_closed_session_is_closed_by_nobody(
    scene: ContractHarness,
) -> None:
    session_id, _ = await closed(scene)
    session = make_session()
    other = make_task(session.id, "a")
    await scene.store.tasks.submit(session, other)

    for subject in ("task_none", other.id):
        command, has_ended = await sent(scene, session_id, CommandKind.CANCEL, subject)
        assert (has_ended, command.refusal) == (True, f"there is no task {subject!r}")
    command, has_ended = await sent(scene, session_id, CommandKind.CLOSE, session_id)
    assert (has_ended, command.refusal) == (True, "")
    assert (await scene.store.sessions.session(session_id)).is_closed


@pytest.mark.spec("CARD-1.d")
async def test_a_command_that_was_written_before_stays_as_it_is(scene: ContractHarness) -> None:
    command = make_command(scene.own.session_id, CommandKind.PAUSE, await scene.task("a"))
    await scene.store.sessions.send_command(command)
    await scene.complete(await scene.claim_one())
    await scene.finish(command.subject)
    await scene.store.sessions.close_session(scene.own)

    await scene.store.sessions.send_command(command)

    assert await scene.store.sessions.take_commands(scene.own) == [command]


@pytest.mark.spec("CARD-1.d")
async def test_a_retry_opens_the_session_for_an_owner(scene: ContractHarness) -> None:
    session_id, task_id = await closed(scene)

    command, has_ended = await sent(scene, session_id, CommandKind.RETRY, task_id)

    assert not has_ended
    (adopted,) = await scene.store.sessions.adopt_sessions(scene.own.owner_id)
    assert await scene.store.sessions.take_commands(adopted.ownership) == [command]


@pytest.mark.spec("CARD-1.d")
async def test_a_command_about_a_task_that_is_open_is_left_to_the_owner(scene: ContractHarness) -> None:
    task_id = await scene.task("a")
    await scene.store.sessions.close_session(scene.own)

    command, has_ended = await sent(scene, scene.own.session_id, CommandKind.CANCEL, task_id)

    assert not has_ended
    assert await scene.store.sessions.take_commands(scene.own) == [command]
    assert (await scene.store.sessions.session(scene.own.session_id)).is_closed


@pytest.mark.spec("CARD-1.b", "CARD-1.d")
@pytest.mark.parametrize("is_asked", [False, True])
async def test_what_an_owner_leaves_open_in_a_closed_session_is_its_successors(
    scene: ContractHarness, is_asked: bool
) -> None:
    claim = await scene.start("a")
    task_id, session_id = claim.identity.task_id, scene.own.session_id
    commands = []
    if is_asked:
        command, _ = await sent(scene, session_id, CommandKind.CANCEL, task_id)
        commands.append(command)
        await scene.complete(claim)
        await scene.finish(task_id)
    await scene.store.sessions.close_session(scene.own)
    await scene.store.sessions.register_owner(make_owner("own_next"))

    await scene.store.sessions.release_owner(scene.own.owner_id)

    (adopted,) = await scene.store.sessions.adopt_sessions("own_next")
    assert (adopted.id, adopted.is_closed) == (session_id, False)
    assert await scene.store.sessions.take_commands(adopted.ownership) == commands
