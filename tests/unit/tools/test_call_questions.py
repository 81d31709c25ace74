"""Questions of a call under way, through the pipeline."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.permissions.policy import Policy, evaluate
from soong.shared.permissions.rules import CallFacts, Effect, Rule, Scope, ScopeKind
from soong.shared.tools.definition import CallQuestion, HandlerOutput, Target, ToolContext
from soong.shared.tools.hooks.chain import Hooks
from soong.shared.tools.hooks.hook import HookCall, Matcher, NamedHook, PostOutcome, PreOutcome
from soong.shared.tools.pipeline import RunScope, ToolPipeline
from soong.shared.tools.ports import GateCall, ToolCall, Verdict
from soong.shared.tools.result import TextBlock, ToolResult
from tests.unit.tools.parts import ALLOWED, RecordingGate, RecordingLog, make_identity, make_run_dirs, make_tool

pytestmark = pytest.mark.asyncio

QUESTION = CallQuestion("test.ask/person", {"n": 1}, Target("resource", shown="which?"))
LIMIT = timedelta(milliseconds=50)


class SlowPerson(RecordingGate):
    """Answers questions of calls under way after longer than a call may take."""

    async def decide(self, call: GateCall) -> Verdict:
        if not call.is_under_way:
            return ALLOWED
        self.asked.append(call)
        await asyncio.sleep(4 * LIMIT.total_seconds())
        return self.verdict


def pipeline(gate: RecordingGate, folder: Path, handler: object) -> ToolPipeline:
    tool = make_tool("test.asks", handler=handler, timeout=LIMIT, tags=frozenset({"mcp"}))
    return ToolPipeline([tool], RunScope(make_identity(), 7, make_run_dirs(folder)), gate, RecordingLog())


async def _asks(context: ToolContext, _call_input: JsonObject) -> HandlerOutput:
    first = await context.ask(QUESTION)
    again = await context.ask(QUESTION)
    return {"first": first.is_accepted, "words": again.reason, "is_person": again.is_person}


@pytest.mark.spec("EXE-08", "MCP-01.d")
async def test_the_time_of_a_call_stands_still_while_a_person_is_asked(tmp_path: Path) -> None:
    gate = SlowPerson(Verdict(is_allowed=True, author="person", reason="blue"))

    result = await pipeline(gate, tmp_path, _asks).execute(ToolCall("call_1", "test.asks", {}))

    assert result.data == {"first": True, "words": "blue", "is_person": True}
    one, other = gate.asked
    assert one.tool_call_id != other.tool_call_id
    assert one.tool_call_id.startswith("call_1.ask-")
    assert (one.definition.name, one.hook_result) == ("test.ask/person", "ask")
    assert one.definition.tags == frozenset({"mcp"})
    assert one.identity == make_identity()


@pytest.mark.parametrize("author", ["rule", "grant", "system"])
async def test_nobody_but_a_person_answers_a_question_of_a_call(
    author: Literal["rule", "grant", "system"], tmp_path: Path
) -> None:
    gate = SlowPerson(replace(ALLOWED, author=author))

    result = await pipeline(gate, tmp_path, _asks).execute(ToolCall("call_1", "test.asks", {}))

    assert result.data == {"first": False, "words": "no person has answered it", "is_person": False}


@pytest.mark.spec("MCP-01.d", "EXE-13")
@pytest.mark.parametrize(
    "outcome", [PreOutcome("none"), PreOutcome("deny", "not here"), PreOutcome(call_input={"n": 2})]
)
async def test_hooks_run_around_a_question_and_may_refuse_it(outcome: PreOutcome, tmp_path: Path) -> None:
    seen: list[tuple[str, Json]] = []

    async def before(call: HookCall) -> PreOutcome:
        seen.append(("before", dict(call.call_input)))
        return outcome

    async def after(_call: HookCall, result: ToolResult) -> PostOutcome:
        seen.append(("after", result.data))
        return PostOutcome((TextBlock("something else"),))

    on = Matcher("test.ask/*")
    hooks = Hooks((NamedHook("elicitation", before, on),), (NamedHook("elicitation_result", after, on),))
    gate = SlowPerson(Verdict(is_allowed=True, author="person", reason="blue"))
    run = RunScope(make_identity(), 7, make_run_dirs(tmp_path))
    tool = make_tool("test.asks", handler=_asks)

    result = await ToolPipeline([tool], run, gate, RecordingLog(), hooks=hooks).execute(ToolCall("c", "test.asks", {}))

    is_asked = outcome.action == "none" and outcome.call_input is None
    assert isinstance(result.data, dict)
    assert result.data["first"] is is_asked
    assert [stage for stage, _ in seen] == ["before", "after"] * 2
    assert seen[0] == ("before", {"n": 1})
    assert isinstance(seen[1][1], dict)
    assert seen[1][1]["is_accepted"] is is_asked
    assert len(gate.asked) == (2 if is_asked else 0)


@pytest.mark.spec("PER-02", "MCP-01.d")
async def test_no_allow_rule_answers_a_question_of_a_call_and_a_deny_rule_refuses_it(tmp_path: Path) -> None:
    gate = SlowPerson(ALLOWED)
    await pipeline(gate, tmp_path, _asks).execute(ToolCall("call_1", "test.asks", {}))
    question = gate.asked[0]
    everything = Rule(Effect.ALLOW, "*", scope=Scope(ScopeKind.EXACT, ""))
    allowing = Policy((everything, Rule(Effect.ALLOW, "test.*")), is_dangerous_enabled=True)

    assert evaluate(allowing, question).effect is Effect.ASK
    assert not allowing.asks_each_time(CallFacts.of(question))
    assert question.target.scope == ""  # and so no grant for the session is offered
    assert evaluate(Policy((Rule(Effect.DENY, "test.ask/*"),)), question).effect is Effect.DENY
