"""What users of other systems incidents from at the end of a child's work, each by its thread (DAG-10)."""

from collections.abc import Mapping
from typing import cast

import pytest
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

from soong.shared.agents.turn import FINAL_TOOL
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.runs.events import NodeKind
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.tasks.failure_report import FailureReport
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Outcome, StepResult
from soong.shared.tools.ports import GateCall
from tests.unit.agents.parts import Notebook, RuleGate, make_task
from tests.unit.agents.test_loop import SHOUT, WRITE, Talker, calls, final, run, says

pytestmark = pytest.mark.spec("DAG-10")

SUM: JsonObject = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}


def nothing(_call: GateCall) -> bool:
    return False


@pytest.mark.spec("DAG-10.a")
async def test_a_child_whose_every_write_was_denied_does_not_count_as_clean() -> None:
    """anthropics/claude-code#32402: a sub-agent reported success although all its writes were auto-denied."""
    talker = Talker(
        calls(("test__write_it", {"text": "a"}, "c1")),
        calls(("test__write_it", {"text": "b"}, "c2")),
        says("All files are written."),
    )

    end, _ = await run(talker, gate=RuleGate(nothing))

    assert (end.end_reason, end.outcome) == (EndReason.COMPLETED, Outcome.PARTIAL)
    assert [(one["tool_call_id"], one["type"]) for one in end.denials] == [
        ("c1", "permission_denied"),
        ("c2", "permission_denied"),
    ]


@pytest.mark.spec("DAG-10.c")
async def test_a_provider_that_fails_for_good_leaves_what_the_child_had_got_so_far() -> None:
    """Kilo-Org/kilocode#11797: an overloaded provider threw away all that a sub-agent had done."""
    talker = Talker(
        calls(("test__write_it", {"text": "a"}, "c1")),
        ModelResponse(parts=[TextPart("Two of three are fine."), ToolCallPart("test__shout", {"text": "x"}, "c2")]),
        *(ModelHTTPError(status_code=529, model_name="m", body=None) for _ in range(10)),
    )

    end, notebook = await run(talker, gate=RuleGate(nothing))

    payloads = {node.kind: node.payload for node in (*notebook.written, *end.nodes)}
    remains = FailureReport(result=payloads[NodeKind.RESULT], answer=payloads[NodeKind.ASSISTANT])
    left = remains.added_to(StepResult("a", StepStatus.FAILED, None))
    assert end.end_reason is EndReason.PROVIDER_FAILED
    assert left.partial == {"text": "Two of three are fine."}
    assert [one["tool"] for one in left.denials] == ["test.write_it"]


async def test_a_child_restricted_to_one_tool_still_ends_with_its_result() -> None:
    """HazAT/pi-interactive-subagents#41: restricting the tools took away those that a child reports with."""
    talker = Talker(final({"sum": 3}))

    end, _ = await run(talker, make_task(tools=(SHOUT,), output_schema=SUM))

    assert [tool.name for tool in talker.info[0].function_tools] == ["test__shout"]
    assert [tool.name for tool in talker.info[0].output_tools] == [FINAL_TOOL]
    assert (end.end_reason, end.output, end.outcome) == (EndReason.COMPLETED, {"sum": 3}, Outcome.CLEAN)


@pytest.mark.spec("ETS-02.c")
async def test_what_the_model_is_shown_is_what_runs_and_what_is_recorded() -> None:
    """jin-bo/agentao#255: two registries, the model saw one list and the runner executed another."""
    notebook = Notebook()
    talker = Talker(calls(("test__shout", {"text": "a"}, "c1"), ("test__write_it", {"text": "b"}, "c2")), says("done"))

    end, _ = await run(talker, make_task(tools=(SHOUT,)), notebook=notebook)

    offered = [tool.name for tool in talker.info[0].function_tools]
    results = {
        str(node.payload["tool"]): node.payload["error"]
        for node in notebook.written
        if node.kind is NodeKind.TOOL_RESULT
    }
    (report,) = [node.payload for node in end.nodes if node.kind is NodeKind.RESULT]
    assert (offered, report["tools"]) == (["test__shout"], ["test.shout"])
    assert results["test.shout"] is None
    assert cast("Mapping[str, Json]", results["test.write_it"])["type"] == "tool_not_available"
    assert WRITE.name not in notebook.started_calls
