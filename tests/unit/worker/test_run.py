"""A run that is cut off says at its end what it had incidents until then (DAG-10)."""

import asyncio
from dataclasses import dataclass

import pytest
from msgspec import convert
from msgspec.structs import replace

from soong.shared.agents.runtime.stop_signal import StopSignal
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.runs.events import NodeKind
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.tasks.failure_report import FailureReport, StepIncidents, with_report
from soong.shared.engine.tasks.spec import BoundStep, StepSpec, StepStatus
from soong.shared.engine.tasks.step import Claim, StepEnd, StepResult
from soong.shared.tools.time_limit import TimeLimit
from soong.worker.run import FunctionStepRunner, StepRunner
from tests.model.builders import make_identity

pytestmark = pytest.mark.spec("DAG-10")

DENIAL: JsonObject = {"tool": "code.write_file", "type": "permission_denied", "message": "no"}
UNKNOWN: JsonObject = {"tool": "code.run_command", "type": "unknown_after_crash"}


@dataclass
class Stuck:
    """An agent that is denied something and then never comes back, or fails."""

    error: Exception | None = None

    async def run(self, claim: Claim, bound: BoundStep, limit: TimeLimit, interruption: StopSignal) -> StepEnd:
        interruption.incidents.denials.append(DENIAL)
        interruption.incidents.unknown_effects.append(UNKNOWN)
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")


def make_claim(**spec: Json) -> Claim:
    return Claim(
        step_key="task_1/a",
        fence=1,
        identity=make_identity("sess_1"),
        spec=convert(spec, StepSpec),
        task_inputs={},
        dependencies={},
        surface={},
        token="",
        attempt=1,
        project="/p",
        cwd="/p",
        policy={},
    )


async def ended(agent: Stuck, **spec: Json) -> StepEnd:
    return await StepRunner(FunctionStepRunner(), agent).run(make_claim(**spec), StopSignal())


@pytest.mark.spec("DAG-10.b", "DIS-07.d")
@pytest.mark.parametrize(
    ("agent", "reason"),
    [(Stuck(), EndReason.TIME_LIMIT), (Stuck(RuntimeError("a fault of ours")), EndReason.FAILED)],
    ids=["time is over", "a fault"],
)
async def test_a_run_that_was_cut_off_reports_its_denials_and_unknown_effects(agent: Stuck, reason: EndReason) -> None:
    end = await ended(agent, timeout_s=0.02)

    (report,) = [node for node in end.nodes if node.kind is NodeKind.RESULT]
    left = FailureReport(result=report.payload).added_to(StepResult("a", StepStatus.FAILED, None))
    assert (end.status, end.end_reason) == (StepStatus.FAILED, reason)
    assert (left.denials, left.unknown_effects) == ((DENIAL,), (UNKNOWN,))


async def test_a_run_that_reported_by_itself_is_not_reported_for() -> None:
    end = await ended(Stuck(), timeout_s=0.02)

    again = with_report(end, StepIncidents([DENIAL, DENIAL]))

    assert again is end
    clean = replace(end, nodes=())
    assert with_report(clean, StepIncidents()) is clean
