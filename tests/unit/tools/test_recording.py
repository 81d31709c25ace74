from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

import pytest

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.sandbox.redact import redactor
from soong.shared.tools.definition import HandlerOutput, Permission, Target, ToolContext, Traits
from soong.shared.tools.execution import PROGRESS_BURST
from soong.shared.tools.hooks.chain import Hooks
from soong.shared.tools.hooks.hook import HookCall, NamedHook, PreOutcome
from soong.shared.tools.ports import CallInputs, ToolCall, Verdict
from soong.shared.tools.registry import ToolRegistry
from soong.shared.tools.result import ContextNode, ErrorType, TextBlock, ToolError, ToolFailure, ToolResult
from soong.shared.tools.results.rendering import for_model
from tests.model.clock import FakeClock
from tests.unit.tools.parts import gives, make_bench, make_tool, raising

SECRET = "hunter2-very-secret"
SKILL = ContextNode("skill", "review", "how to review")
DENIED = Verdict(is_allowed=False, author="person", reason="not today", error=ErrorType.PERMISSION_DENIED)


def alone(_call_input: JsonObject) -> Traits:
    """Return the traits of a read that runs alone."""
    return Traits(is_read_only=True)


def adds(*nodes: ContextNode) -> Any:
    return gives(ToolResult("", (TextBlock("done"),), context_nodes=nodes))


async def rewriting(call: HookCall) -> PreOutcome:
    return PreOutcome(call_input={"text": f"{call.call_input['text']}!"})


REWRITES = Hooks((NamedHook("rewrites", rewriting),))


@pytest.mark.spec("EXE-02.c")
@pytest.mark.parametrize(
    ("arguments", "inputs"),
    [
        pytest.param({"text": 1}, CallInputs({"text": 1}), id="invalid"),
        pytest.param("{", CallInputs("{"), id="no json"),
        pytest.param({"text": "a"}, CallInputs({"text": "a"}, {"text": "a"}, {"text": "a"}), id="denied"),
    ],
)
async def test_a_call_that_does_not_run_has_the_inputs_that_it_came_to(arguments: Json, inputs: CallInputs) -> None:
    bench = make_bench([make_tool()], verdict=DENIED)

    await bench.call("test.echo", arguments)

    assert bench.log.records[0].inputs == inputs
    assert CallInputs.from_json(inputs.as_json()) == inputs


@pytest.mark.spec("PER-19.a", "PER-19.b")
@pytest.mark.parametrize("is_allowed", [True, False])
async def test_facts_and_decision_of_every_judged_call_are_recorded_apart(is_allowed: bool) -> None:
    verdict = Verdict(is_allowed, "grant", rule="code.*:/p", decision_id="dec_1", error=None)
    target = Target("path", f"/p/{SECRET}", f"/p/{SECRET}/x")
    tool = make_tool(permission=Permission.WRITE, tags=frozenset({"filesystem"}), target=lambda *_: target)
    bench = make_bench([tool], verdict=verdict, redactor=redactor([SECRET]))

    await bench.call("test.echo", text="x")

    (record,) = bench.log.records
    assert (
        record.facts.items()
        >= {"traits": Traits().as_json(), "risk": "write", "scope": "/p/[redacted]", "shown": "/p/[redacted]/x"}.items()
    )
    assert (record.decision["author"], record.decision["rule"]) == ("grant", "code.*:/p")
    assert (record.decision["is_allowed"], record.decision_id, record.is_write) == (is_allowed, "dec_1", True)


@pytest.mark.spec("PER-19", "REG-05.e")
async def test_a_call_that_its_own_tool_refuses_has_its_decision_as_an_event() -> None:
    bench = make_bench([make_tool(check_permissions=lambda *_: "deny")])

    result = await bench.call("test.echo", text="x")

    assert result.error is not None
    assert (result.error.type, bench.gate.asked) == (ErrorType.PERMISSION_DENIED, [])
    (decided,) = bench.log.decided
    assert (decided["choice"], decided["source"], decided["tool_call_id"]) == ("deny", "tool", "call_1")
    assert cast("Mapping[str, Json]", decided["facts"])["risk"] == "read"


# -- evidence
@pytest.mark.spec("RES-01.e")
async def test_a_tool_cannot_name_its_own_evidence() -> None:
    bench = make_bench([make_tool(handler=gives(ToolResult("", evidence=("forged",))))])

    assert "forged" not in (await bench.call("test.echo")).evidence


# -- context nodes
@pytest.mark.spec("RES-01.d", "RES-05")
async def test_a_call_that_runs_beside_others_may_not() -> None:
    bench = make_bench([make_tool(handler=adds(SKILL))])

    result = await bench.call("test.echo")

    assert result.error is not None
    assert (result.error.type, result.error.hint) == (ErrorType.INVALID_OUTPUT, "declare is_concurrency_safe=False")
    assert (result.context_nodes, bench.ended.context_nodes) == ((), ())


@pytest.mark.spec("RES-01.d")
def test_no_tool_can_declare_that_it_may_although_its_calls_run_beside_others() -> None:
    with pytest.raises(TypeError, match="adds_context"):
        ToolRegistry().register_tool("test.skill", "Adds.", {"type": "object"}, adds(SKILL), adds_context=True)


@pytest.mark.spec("RES-01")
@pytest.mark.parametrize(
    "nodes", [(ContextNode("skill", "big", "x" * 100_001),), (SKILL,) * 17], ids=["characters", "nodes"]
)
async def test_what_a_call_adds_is_bounded(nodes: tuple[ContextNode, ...]) -> None:
    bench = make_bench([make_tool(handler=adds(*nodes), traits=alone)])

    result = await bench.call("test.echo")

    assert result.error is not None
    assert (result.error.type, result.context_nodes) == (ErrorType.INVALID_OUTPUT, ())


@pytest.mark.spec("RES-01.d")
async def test_a_failed_call_adds_nothing() -> None:
    failed = ToolResult("", error=ToolFailure(ErrorType.EXECUTION_FAILED, "no"), context_nodes=(SKILL,))
    bench = make_bench([make_tool(handler=gives(failed), traits=alone)])

    assert (await bench.call("test.echo")).context_nodes == ()


@pytest.mark.spec("RES-01", "EVT-05")
async def test_added_context_holds_no_secret_and_nothing_that_cannot_be_stored() -> None:
    node = ContextNode("memory_context", f"of {SECRET}", f"key {SECRET} \ud800")
    bench = make_bench([make_tool(handler=adds(node), traits=alone)], redactor=redactor([SECRET]))

    (kept,) = (await bench.call("test.echo")).context_nodes

    assert kept == ContextNode("memory_context", "of [redacted]", "key [redacted] \ufffd")


@pytest.mark.spec("RES-03.c")
async def test_a_sensitive_read_adds_no_node_that_would_be_kept() -> None:
    target = Target("path", "/p", "/p/.env", is_sensitive=True)
    bench = make_bench([make_tool(handler=adds(SKILL), traits=alone, target=lambda *_: target)])

    result = await bench.call("test.echo")

    assert (result.context_nodes, bench.ended.context_nodes) == ((), ())


@pytest.mark.spec("RES-05", "EXE-13")
@pytest.mark.parametrize("is_raised", [True, False])
async def test_a_tool_cannot_speak_as_a_hook_and_stop_the_run(is_raised: bool) -> None:
    details: dict[str, Json] = {"stop_run": True}
    failure = ToolFailure(ErrorType.HOOK_DENIED, "stop", details=details)
    error = ToolError(ErrorType.HOOK_DENIED, "stop", details=details)
    handler = raising(error) if is_raised else gives(ToolResult("", error=failure))

    result = await make_bench([make_tool(handler=handler)]).call("test.echo")

    assert result.error is not None
    assert (result.error.type, dict(result.error.details)) == (ErrorType.EXECUTION_FAILED, {"said_type": "hook_denied"})


@pytest.mark.spec("EVT-04")
async def test_a_tool_cannot_choose_which_file_is_kept_as_its_deliverable() -> None:
    def delivering(path: str) -> Any:
        return gives(ToolResult("", metadata={"deliverable": {"path": path}}))

    target = Target("path", "/p", "/p/report.md")
    own = make_tool("test.own", handler=delivering("/p/report.md"), target=lambda *_: target)
    other = make_tool("test.other", handler=delivering("/etc/shadow"), target=lambda *_: target)
    bench = make_bench([own, other])

    assert "deliverable" in (await bench.call("test.own")).metadata
    assert "deliverable" not in (await bench.call("test.other")).metadata


@pytest.mark.spec("EVT-05")
async def test_a_secret_is_not_cut_into_halves_that_nobody_recognises() -> None:
    text = "x" * 190 + SECRET + "y" * 3_000
    message = "m" * 1_995 + SECRET
    bench = make_bench(
        [
            make_tool("test.summary", handler=gives(text)),
            make_tool("test.message", handler=raising(ValueError(message))),
        ],
        redactor=redactor([SECRET]),
    )

    summary, failed = await bench.call("test.summary"), await bench.call("test.message")

    assert failed.error is not None
    assert len(summary.summary) <= 201
    assert "hunt" not in summary.summary + failed.error.message + failed.summary


# -- partial output and progress
@pytest.mark.spec("EXE-09")
async def test_a_chatty_tool_costs_a_bounded_number_of_events_and_says_what_was_left_out() -> None:
    clock = FakeClock()

    async def handler(context: ToolContext, _call_input: JsonObject) -> HandlerOutput:
        for number in range(1_000):
            await context.progress.report(f"line {number}")
        clock.advance(timedelta(seconds=1))
        await context.progress.report("the last line")
        return None

    bench = make_bench([make_tool(handler=handler)], clock=clock)

    await bench.call("test.echo")

    assert len(bench.log.notes) == PROGRESS_BURST + 1
    assert bench.log.notes[-1][1].items() >= {"message": "the last line", "left_out": 1_000 - PROGRESS_BURST}.items()


@pytest.mark.spec("EXE-09", "EVT-05")
async def test_progress_that_cannot_be_stored_ends_nothing() -> None:
    async def handler(context: ToolContext, _call_input: JsonObject) -> HandlerOutput:
        await context.progress.report(f"{SECRET} \ud800", {"a": object()})  # type: ignore[dict-item]
        return "done"

    bench = make_bench([make_tool(handler=handler)], redactor=redactor([SECRET]))

    assert (await bench.call("test.echo")).ok
    (note,) = [data for _, data in bench.log.notes]
    assert note["message"] == "[redacted] \ufffd"


# -- hooks
@pytest.mark.spec("EXE-03", "EXE-02", "REG-05.c")
async def test_a_hook_cannot_make_a_write_of_a_call_that_runs_beside_others() -> None:
    def traits(call_input: JsonObject) -> Traits:
        is_safe = "!" not in str(call_input.get("text"))
        return Traits(is_read_only=is_safe, is_concurrency_safe=is_safe)

    bench = make_bench([make_tool(traits=traits)], hooks=REWRITES)

    result = await bench.call("test.echo", text="a")

    assert result.error is not None
    assert result.error.type is ErrorType.INVALID_INPUT
    assert bench.gate.asked == []


@pytest.mark.spec("REG-10.b", "REG-03.b")
async def test_a_call_that_is_not_made_is_recorded_under_the_canonical_name_too() -> None:
    bench = make_bench([make_tool("code.x", aliases=("Read",))])

    await bench.pipeline.refuse(ToolCall("c", "Read", {}), ErrorType.ABORTED, "stopped")

    assert bench.log.ends[0][0].tool == "code.x"
    assert bench.ended.metadata == {"aborted": True, "partial": False, "abort_reason": "stopped"}


@pytest.mark.spec("PER-03.c", "EVT-05")
@pytest.mark.parametrize("is_failing", [False, True])
async def test_what_a_person_says_who_allows_a_call_reaches_the_model_without_secrets(is_failing: bool) -> None:
    verdict = Verdict(is_allowed=True, author="person", reason=f"only this once, {SECRET}")
    failing = raising(ToolError(ErrorType.EXECUTION_FAILED, "no"))
    tool = make_tool(handler=failing if is_failing else gives("done"))
    bench = make_bench([tool], verdict=verdict, redactor=redactor([SECRET]))

    told = str(for_model(await bench.call("test.echo")).content)

    assert "the person who allowed this says: only this once, [redacted]" in told
