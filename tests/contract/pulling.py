"""What tests of further claims say: agent steps, and a run that asks for one beside its own."""

from collections.abc import Sequence
from typing import Any

from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.tasks.claims import ClaimRefusal, Refusal
from soong.shared.engine.tasks.spec import ClaimMode, StepKind
from soong.shared.engine.tasks.step import Claim, NewStep
from soong.shared.engine.wire.notifier import reads
from soong.shared.storage.store import Store
from tests.contract.scene import ContractHarness, held
from tests.model.builders import make_step


def work(step_id: str, **overrides: Any) -> NewStep:
    """Return an agent step that its own run is assigned."""
    return make_step(step_id, kind=StepKind.AGENT, **overrides)


def pulled(step_id: str, **overrides: Any) -> NewStep:
    """Return an agent step that waits for a run to ask for it."""
    return work(step_id, claim_mode=ClaimMode.PULL, **overrides)


def pull_worker(step_id: str = "pull-worker", *, spec: JsonObject | None = None, **overrides: Any) -> NewStep:
    """Return the step of a run that takes others."""
    return work(step_id, is_pull_worker=True, spec=spec, **overrides)


async def further(
    scene: ContractHarness,
    holder: Claim,
    step_id: str,
    *,
    worker: str = "",
    store: Store | None = None,
    pools: Sequence[str] = ("default",),
    capabilities: Sequence[str] = reads(),
) -> Claim | ClaimRefusal:
    return await (store or scene.store).claims.claim_additional(
        worker or scene.worker, held(holder), step_id, pools=pools, capabilities=capabilities, now_us=scene.now_us
    )


async def taken(scene: ContractHarness, holder: Claim, step_id: str, *, worker: str = "") -> Claim:
    """Return the additional claim, which must be given."""
    claim = await further(scene, holder, step_id, worker=worker)
    assert isinstance(claim, Claim), claim
    return claim


async def refused(scene: ContractHarness, holder: Claim, step_id: str, **where: Any) -> Refusal:
    """Return why the additional claim is not given, which it must not be."""
    answer = await further(scene, holder, step_id, **where)
    assert isinstance(answer, ClaimRefusal), answer
    assert answer.problem
    assert answer.hint
    return answer.reason
