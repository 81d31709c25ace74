"""What a function gives is bounded before it is written: every reader of its row takes it (OPS-12)."""

from datetime import UTC, datetime
from typing import Any

import pytest

from soong.shared.agents.runtime.stop_signal import StopSignal
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.tasks.functions import StepContext, step_function
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import StepEnd
from soong.worker.run import MAX_OUTPUT_BYTES, FunctionStepRunner
from tests.unit.tools.test_bounds import nested
from tests.unit.worker.test_run import make_claim


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
