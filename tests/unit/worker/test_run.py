"""A run that is cut off says at its end what it had incidents until then (DAG-10)."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import convert
from msgspec.structs import replace

from soong.shared.agents.runtime.call_log import StopSignal
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.runs.events import NodeKind
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.tasks.failure_report import FailureReport, StepIncidents, with_report
from soong.shared.engine.tasks.functions import StepContext, step_function
from soong.shared.engine.tasks.spec import BoundStep, StepSpec, StepStatus
from soong.shared.engine.tasks.step import Claim, StepEnd, StepError, StepResult
from soong.shared.tools.limits import TimeLimit
from soong.worker.bootstrap import is_dispatch
from soong.worker.call_outcome import MAX_OUTPUT_BYTES
from soong.worker.run import FunctionStepRunner, StepRunner
from tests.model.builders import make_identity
from tests.unit.tools.test_schema import nested

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
    return await StepRunner(FunctionStepRunner(), agent, agent).run(make_claim(**spec), StopSignal())


@pytest.mark.spec("DAG-10", "DAG-10.b", "DIS-07.d")
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


@pytest.mark.spec("DAG-10")
async def test_a_run_that_reported_by_itself_is_not_reported_for() -> None:
    end = await ended(Stuck(), timeout_s=0.02)

    again = with_report(end, StepIncidents([DENIAL, DENIAL]))

    assert again is end
    clean = replace(end, nodes=())
    assert with_report(clean, StepIncidents()) is clean


@step_function("output.with_a_time")
def with_a_time(_inputs: JsonObject, _context: StepContext) -> Any:
    return {"rows": [{"at": datetime.now(UTC)}]}


async def echoed(value: Json, call: str = "builtin.echo") -> StepEnd:
    return await FunctionStepRunner().run(make_claim(kind="python", call=call), {"value": value}, StopSignal())


@pytest.mark.spec("OPS-12.d")
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (nested(150), "nested deeper than 100 levels"),
        (nested(5000), "nested deeper than 100 levels"),
        (2**1025, "an integer of 1026 bits is too large"),
        ("x" * MAX_OUTPUT_BYTES, f"a step gives at most {MAX_OUTPUT_BYTES}"),
    ],
    ids=["deep", "deeper than can be written", "a large number", "long"],
)
async def test_an_output_that_readers_do_not_take_fails_its_step(value: Json, words: str) -> None:
    end = await echoed(value)

    assert (end.status, end.output) == (StepStatus.FAILED, None)
    assert end.error is not None
    assert end.error.type == "execution_failed"
    assert words in end.error.message


@pytest.mark.spec("OPS-12.d")
async def test_half_a_character_of_an_output_is_replaced_and_all_else_stays() -> None:
    end = await echoed({"a": "\ud800", "b": [1, 2.5, None, "\U0001f600"]})

    assert end.status is StepStatus.COMPLETED
    assert end.output == {"value": {"a": "\ufffd", "b": [1, 2.5, None, "\U0001f600"]}}


async def test_a_value_that_is_not_json_is_named_by_its_key_and_its_function() -> None:
    end = await echoed(None, "output.with_a_time")

    assert end.error is not None
    line = with_a_time.__code__.co_firstlineno
    assert (
        end.error.message
        == f"the output cannot be stored: $.rows[0].at: a datetime is not JSON (from {__file__}:{line})"
    )


@dataclass
class Given:
    """A kind of step that completes with an output."""

    output: Json

    async def run(self, claim: Claim, bound: BoundStep, limit: TimeLimit, interruption: StopSignal) -> StepEnd:
        return claim.completed(self.output)


TOTAL: JsonObject = {"type": "object", "required": ["total"], "properties": {"total": {"type": "number"}}}


@pytest.mark.spec("DIS-08.c")
@pytest.mark.parametrize("kind", ["python", "celery", "agent"])
@pytest.mark.parametrize(
    ("output", "words"),
    [
        ({"total": 3}, ""),
        ({"total": "3"}, "the output of step 'a' breaks its schema: $.total: must be number, is string"),
        ([], "the output of step 'a' breaks its schema: $: must be object, is array"),
    ],
)
async def test_the_output_of_every_kind_is_held_to_the_schema_of_its_step(kind: str, output: Json, words: str) -> None:
    given = Given(output)
    claim = make_claim(kind=kind, call="builtin.echo", inputs={}, output=TOTAL)

    class Functions(FunctionStepRunner):
        async def run(self, claim: Claim, inputs: JsonObject, interruption: StopSignal) -> StepEnd:
            return claim.completed(output)

    end = await StepRunner(Functions(), given, given).run(claim, StopSignal())

    assert (end.status, end.output) == ((StepStatus.FAILED, None) if words else (StepStatus.COMPLETED, output))
    assert end.error == (StepError("invalid_output", words, retryable=True) if words else None)


NOTHING_MORE = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


def test_a_dispatch_as_it_is_sent_is_ours() -> None:
    assert is_dispatch({"eta": None, "expires": None}, [["disp_1"], {}, NOTHING_MORE])


@pytest.mark.parametrize(
    "payload",
    [
        None,
        [],
        [["disp_1"], {}],
        [[], {}, {}],
        [[1], {}, {}],
        [["a", "b"], {}, {}],
        [["disp_1"], {"a": 1}, {}],
        [["disp_1"], {}, {**NOTHING_MORE, "callbacks": [{"task": "os.system"}]}],
        {"args": ["disp_1"]},
    ],
)
def test_a_message_of_another_form_is_not(payload: Any) -> None:
    assert not is_dispatch({}, payload)
