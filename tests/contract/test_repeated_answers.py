"""An answer that is written again: its responder does not know whether its commit was applied."""

import pytest
from msgspec.structs import replace

from soong.shared.core.errors import AlreadyDecidedError
from soong.shared.permissions.audit_log.entry import AuditKind
from soong.shared.permissions.request import Choice, RequestState
from tests.contract.scene import ContractHarness
from tests.contract.test_consent import ask, decide
from tests.model.builders import make_answer


@pytest.mark.parametrize("state", [None, RequestState.DECIDED, RequestState.EXPIRED, RequestState.WITHDRAWN])
@pytest.mark.spec("PER-15.d")
async def test_an_answer_that_is_given_again_after_a_lost_commit_is_no_late_one(
    scene: ContractHarness, state: RequestState | None
) -> None:
    """Its responder cannot know that it was written, and the owner has perhaps settled the question meanwhile."""
    claim = await scene.start("a")
    request = await ask(scene, claim)
    answer = make_answer(request, Choice.ALLOW_FOR_SESSION)
    await scene.store.consent.answer(answer)
    if state is RequestState.WITHDRAWN:
        await scene.store.consent.withdraw(
            claim.identity.run_id, "call_1", claim.fence, reason="abort", now_us=scene.now_us
        )
    elif state is not None:
        await decide(scene, request, state)
    before = await scene.event_types(claim.identity.run_id)

    await scene.store.consent.answer(answer)
    with pytest.raises(AlreadyDecidedError):
        await scene.store.consent.answer(replace(answer, principal="bob"))

    kinds = [entry.kind for entry in await scene.store.audit.audit_entries()]
    assert (kinds.count(AuditKind.ANSWER), kinds.count(AuditKind.SECURITY)) == (1, 1)
    assert await scene.event_types(claim.identity.run_id) == [*before, "security"]
