"""An owner closes a session with its task, and at the same moment more comes to it: nothing is left to nobody."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from soong.shared.engine.sessions.session import CommandKind, Ownership
from tests.contract.scene import ContractHarness
from tests.integration.held_commits import held_before_commit, two_workers
from tests.model.builders import make_command, make_session

pytestmark = pytest.mark.spec("CARD-1.d")


@pytest.fixture
async def both(postgres_url: str) -> AsyncIterator[tuple[ContractHarness, ContractHarness]]:
    """An owner's process and a client's."""
    async with two_workers(postgres_url) as processes:
        yield processes


async def ended_task(scene: ContractHarness) -> tuple[Ownership, str]:
    """Make a task that has nothing left but its end, in a session that is to end with it."""
    await scene.store.sessions.open_session(make_session(closes_with_task=True))
    (adopted,) = await scene.store.sessions.adopt_sessions(scene.own.owner_id)
    task_id = await scene.task("a", own=adopted.ownership)
    await scene.complete(await scene.claim_one())
    return adopted.ownership, task_id


async def test_a_command_that_comes_while_its_session_is_being_closed_is_refused(
    both: tuple[ContractHarness, ContractHarness],
) -> None:
    owner, client = both
    own, task_id = await ended_task(owner)
    command = make_command(own.session_id, CommandKind.CANCEL, task_id)

    finishing = owner.store.tasks.look_and_finish(own, now_us=owner.now_us)
    async with held_before_commit(owner, finishing) as ending:
        sending = asyncio.create_task(client.store.sessions.send_command(command))
        await asyncio.wait({sending}, timeout=0.2)
    await sending
    _, (ended,) = await ending

    assert ended.is_closed
    found, has_ended = await client.store.sessions.command(command.id)
    assert has_ended
    assert "'completed' cannot take 'cancel'" in found.refusal
