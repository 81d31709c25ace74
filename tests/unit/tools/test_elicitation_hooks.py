"""Hooks around what a server asks: their order, their failures, their events; as functions and as programs."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.jsontext import JsonObject
from soong.shared.tools.definition import CallQuestion, ElicitationAnswer, HandlerOutput, Target, ToolContext
from soong.shared.tools.hooks.chain import Hooks, registered_hooks
from soong.shared.tools.hooks.hook import (
    REGISTERED,
    ElicitationHook,
    ElicitationOutcome,
    ElicitationResultHook,
    HookCall,
    Matcher,
    NamedHook,
    elicitation_hook,
    elicitation_result_hook,
    pre_hook,
)
from soong.shared.tools.result import ToolResult
from tests.unit.tools.hook_programs import Programs, hook_runs
from tests.unit.tools.parts import PipelineHarness, make_bench, make_tool

pytestmark = pytest.mark.spec("MCP-01.m")

EVERYTHING = Matcher()
QUESTION = CallQuestion("mcp.t.elicitation/create", {"server": "t", "message": "Who?"}, Target("resource", shown="t"))


async def asks(context: ToolContext, _call_input: JsonObject) -> HandlerOutput:
    """Ask as the MCP toolset does: hooks, else a person who says yes, hooks."""
    answer = await context.around_question.before(QUESTION)
    is_asked = answer is None
    answer = await context.around_question.after(QUESTION, answer or ElicitationAnswer("accept", {"name": "Ada"}))
    content = None if answer.content is None else dict(answer.content)
    return {"is_asked": is_asked, "action": answer.action, "content": content, "reason": answer.reason}


def bench_with(
    *before: NamedHook[ElicitationHook], after: Sequence[NamedHook[ElicitationResultHook]] = (), limit_s: float = 30
) -> PipelineHarness:
    tool = make_tool("mcp.t.asks", handler=asks, timeout=timedelta(seconds=limit_s))
    return make_bench([tool], hooks=Hooks(elicitation=before, elicitation_result=tuple(after)))


def before(outcome: object, name: str = "first", on: Matcher = EVERYTHING) -> NamedHook[ElicitationHook]:
    async def hook(_call: HookCall) -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return NamedHook(name, hook, on)


def told(result: ToolResult) -> dict[str, Any]:
    assert isinstance(result.data, dict), result.error
    return dict(result.data)


YES = ElicitationOutcome("accept", {"name": "Eve"})
OTHER = ElicitationOutcome("accept", {"name": "Bob"})
NO = ElicitationOutcome("decline", reason="not here")


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        ([ElicitationOutcome()], (True, "accept", {"name": "Ada"})),
        ([YES, OTHER], (False, "accept", {"name": "Eve"})),
        ([YES, ElicitationOutcome()], (False, "accept", {"name": "Eve"})),
        ([YES, NO], (False, "decline", None)),
        ([NO, YES], (False, "decline", None)),
        ([RuntimeError("broken")], (False, "decline", None)),
        (["yes"], (False, "decline", None)),
        ([ElicitationOutcome("maybe")], (False, "decline", None)),  # type: ignore[arg-type]  # a hook may say anything
        ([ElicitationOutcome("accept", {"name": object()})], (False, "decline", None)),  # type: ignore[dict-item]
    ],
)
async def test_a_refusal_overrides_a_yes_and_a_hook_that_fails_refuses(outcomes: list[Any], said: Any) -> None:
    hooks = [before(outcome, f"hook-{number}") for number, outcome in enumerate(outcomes)]

    result = told(await bench_with(*hooks).call("mcp.t.asks"))

    assert (result["is_asked"], result["action"], result["content"]) == said


async def test_a_hook_is_asked_for_the_questions_that_it_matches() -> None:
    other = before(NO, "other", Matcher("mcp.other.*"))
    tool_itself = before(NO, "tool", Matcher("mcp.t.asks"))

    result = told(await bench_with(other, tool_itself).call("mcp.t.asks"))

    assert result["is_asked"]


@pytest.mark.spec("EXE-13.f")
async def test_a_slow_hook_refuses_and_its_time_is_not_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_call: HookCall) -> ElicitationOutcome:
        await asyncio.Event().wait()
        return ElicitationOutcome()

    async def slow(_call: HookCall, _answer: ElicitationAnswer) -> ElicitationOutcome:
        await asyncio.sleep(0.15)
        return ElicitationOutcome()

    hung = NamedHook("hung", never, timeout=timedelta(milliseconds=150))
    bench = bench_with(hung, after=[NamedHook("slow", slow)], limit_s=0.1)

    result = told(await bench.call("mcp.t.asks"))

    assert (result["action"], result["reason"]) == ("decline", "the hook 'hung' gave no answer in 0.15 s")
    assert [(run["hook"], run.get("failure", "")) for run in hook_runs(bench)] == [("hung", "timeout"), ("slow", "")]


async def test_a_hook_changes_neither_the_question_nor_the_answer_that_others_see() -> None:
    seen: list[Any] = []

    async def meddles(call: HookCall, answer: ElicitationAnswer) -> ElicitationOutcome:
        seen.append((dict(call.call_input), dict(answer.content or {})))
        call.call_input["message"] = "changed"  # type: ignore[index]  # what a hook without types may try
        answer.content["name"] = "changed"  # type: ignore[index]
        return ElicitationOutcome()

    hooks = (NamedHook("one", meddles), NamedHook("two", meddles))
    result = told(await bench_with(after=hooks).call("mcp.t.asks"))

    assert seen == [({"server": "t", "message": "Who?"}, {"name": "Ada"})] * 2
    assert result["content"] == {"name": "Ada"}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    for stage in REGISTERED:
        monkeypatch.setitem(REGISTERED, stage, {})


@pytest.mark.spec("EXE-13.a")
@pytest.mark.usefixtures("registry")
async def test_decorated_functions_are_hooks_of_this_process() -> None:
    @elicitation_hook("answers", tools="mcp.t.*")
    async def answers(_call: HookCall) -> ElicitationOutcome:
        return YES

    @elicitation_result_hook("shouts")
    async def shouts(_call: HookCall, answer: ElicitationAnswer) -> ElicitationOutcome:
        return ElicitationOutcome(content={"name": str((answer.content or {})["name"]).upper()})

    with pytest.raises(InvalidConfigError, match="two hooks are called 'answers'"):
        pre_hook("answers")(answers)  # type: ignore[type-var]  # the name is what is wrong first
    tool = make_tool("mcp.t.asks", handler=asks)
    result = told(await make_bench([tool], hooks=registered_hooks()).call("mcp.t.asks"))

    assert (result["is_asked"], result["content"]) == (False, {"name": "EVE"})


@pytest.mark.parametrize("said", ["action='allow'", "content='text'", "context=['x']", "input={}"])
async def test_a_program_that_answers_as_another_kind_of_hook_would_refuses(tmp_path: Path, said: str) -> None:
    programs = Programs(tmp_path)
    programs.python(f"answer({said})", stage="elicitation")

    result = told(await programs.bench(make_tool("mcp.t.asks", handler=asks)).call("mcp.t.asks"))

    assert result["action"] == "decline"
    assert "gave no usable answer" in result["reason"]
