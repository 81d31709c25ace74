import pytest

from soong.shared.core.errors import InvalidTransitionError
from soong.shared.engine.sessions.session import Command, CommandKind, RefusalType
from soong.shared.engine.tasks.spec import TaskStatus
from tests.contract.scene import ContractHarness
from tests.model.builders import make_command, make_owner, make_session, make_task

LATE = sorted(set(CommandKind) - {CommandKind.RETRY, CommandKind.CLOSE})

pytestmark = pytest.mark.spec("CARD-1.d")


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


async def test_a_command_that_was_written_before_stays_as_it_is(scene: ContractHarness) -> None:
    command = make_command(scene.own.session_id, CommandKind.PAUSE, await scene.task("a"))
    await scene.store.sessions.send_command(command)
    await scene.complete(await scene.claim_one())
    await scene.finish(command.subject)
    await scene.store.sessions.close_session(scene.own)

    await scene.store.sessions.send_command(command)

    assert await scene.store.sessions.take_commands(scene.own) == [command]


async def test_a_retry_opens_the_session_for_an_owner(scene: ContractHarness) -> None:
    session_id, task_id = await closed(scene)

    command, has_ended = await sent(scene, session_id, CommandKind.RETRY, task_id)

    assert not has_ended
    (adopted,) = await scene.store.sessions.adopt_sessions(scene.own.owner_id)
    assert await scene.store.sessions.take_commands(adopted.ownership) == [command]


async def test_a_command_about_a_task_that_is_open_is_left_to_the_owner(scene: ContractHarness) -> None:
    task_id = await scene.task("a")
    await scene.store.sessions.close_session(scene.own)

    command, has_ended = await sent(scene, scene.own.session_id, CommandKind.CANCEL, task_id)

    assert not has_ended
    assert await scene.store.sessions.take_commands(scene.own) == [command]
    assert (await scene.store.sessions.session(scene.own.session_id)).is_closed


@pytest.mark.spec("CARD-1.b")
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
