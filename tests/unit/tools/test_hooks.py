import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.jsontext import Json, JsonObject, digest
from soong.shared.tools.definition import HandlerOutput, Target, ToolContext
from soong.shared.tools.hooks.chain import Hooks
from soong.shared.tools.hooks.hook import (
    HookCall,
    HookServices,
    Matcher,
    NamedHook,
    PostHook,
    PostOutcome,
    PreHook,
    PreOutcome,
    post_hook,
    pre_hook,
)
from soong.shared.tools.ports import CallInputs
from soong.shared.tools.result import ErrorType, TextBlock, ToolResult
from tests.model.clock import FakeClock
from tests.unit.tools.hook_programs import denied
from tests.unit.tools.parts import PipelineHarness, make_bench, make_identity, make_run_dirs, make_tool

EVERY = Matcher()


def pre(
    outcome: PreOutcome | BaseException, *, on: Matcher = EVERY, timeout: timedelta = timedelta(seconds=5)
) -> NamedHook[PreHook]:
    async def hook(_call: HookCall) -> PreOutcome:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return NamedHook("checker", hook, on, timeout)


def bench_with(*hooks: NamedHook[PreHook], post: tuple[NamedHook[PostHook], ...] = ()) -> PipelineHarness:
    return make_bench([make_tool()], hooks=Hooks(hooks, post))


@pytest.mark.spec("EXE-02.a", "EXE-02.d", "EXE-13")
async def test_after_a_hooks_denial_nobody_is_asked_and_without_a_reason_the_hook_is_named() -> None:
    assert await denied(bench_with(pre(PreOutcome("deny", "not on Fridays")))) == "not on Fridays"

    assert await denied(bench_with(pre(PreOutcome("deny")))) == "the hook 'checker' refused the call"


@pytest.mark.spec("EXE-13.f")
async def test_a_hook_that_fails_denies_also_by_a_timeout_of_its_own() -> None:
    for error in (RuntimeError(), TimeoutError()):
        assert f"failed with {type(error).__name__}" in await denied(bench_with(pre(error)))


@pytest.mark.spec("EXE-02.a", "EXE-02.b", "EXE-02.c", "EXE-13.e")
async def test_a_rewritten_input_is_what_runs_and_the_four_inputs_are_kept_apart() -> None:
    bench = bench_with(pre(PreOutcome("allow", call_input={"text": "b"})))

    result = await bench.call("test.echo", text="a")

    started = bench.log.starts[0]
    assert result.data == "b"
    assert started.call.arguments == {"text": "a"}
    assert started.record.inputs.hook == {"text": "a"}
    assert started.gate_call.permission_input == started.record.inputs.call == {"text": "b"}
    assert CallInputs.from_json(started.record.inputs.as_json()) == CallInputs(
        {"text": "a"}, {"text": "a"}, {"text": "b"}, {"text": "b"}
    )
    assert started.gate_call.input_digest == digest({"text": "b"})
    assert started.gate_call.is_rewritten
    note = dict(bench.log.notes[0][1])
    assert bench.log.notes[0][0] == "hook_run"
    assert (note["outcome"], note["input_diff"]) == ("allow", {"text": ["a", "b"]})


@pytest.mark.spec("EXE-02.b")
@pytest.mark.parametrize(("text", "said"), [(3, "a hook rewrote the input"), ("b", "no b here")], ids=["schema", "own"])
async def test_a_rewritten_input_is_validated_again(text: Json, said: str) -> None:
    tool = make_tool(validate_input=lambda call_input: "no b here" if call_input["text"] == "b" else None)
    bench = make_bench([tool], hooks=Hooks((pre(PreOutcome(call_input={"text": text})),)))

    result = await bench.call("test.echo", text="a")

    assert result.error is not None
    assert result.error.type is ErrorType.INVALID_INPUT
    assert said in result.error.message
    assert bench.gate.asked == []


@pytest.mark.spec("EXE-13.b", "PER-08.a")
async def test_ask_beats_allow_whatever_the_order_and_allow_replaces_nobody() -> None:
    bench = bench_with(pre(PreOutcome("ask")), pre(PreOutcome("allow")))

    await bench.call("test.echo")

    assert bench.gate.asked[0].hook_result == "ask"


@pytest.mark.spec("EXE-13.b", "EXE-13.c")
async def test_hooks_add_context_and_replace_what_the_model_sees() -> None:
    async def after(_call: HookCall, _result: ToolResult) -> PostOutcome:
        return PostOutcome((TextBlock("shorter"),), ("see also b",))

    bench = bench_with(pre(PreOutcome(context=("mind the tests",))), post=(NamedHook("short", after),))

    result = await bench.call("test.echo", text="long")

    assert result.content == (TextBlock("shorter"),)
    assert result.metadata["hook_context"] == ["mind the tests", "see also b"]
    assert [note["stage"] for _, note in bench.log.notes] == ["pre", "post"]


NONSENSE: list[Any] = [
    None,
    {"action": "allow"},
    PostOutcome(),
    PreOutcome("maybe"),  # type: ignore[arg-type]  # what a hook without types may say
    PreOutcome(reason=3),  # type: ignore[arg-type]
    PreOutcome(context="one text"),  # type: ignore[arg-type]
    PreOutcome(context=(1,)),  # type: ignore[arg-type]
    PreOutcome(context=("x" * 10_001,)),
    PreOutcome(call_input=[1]),  # type: ignore[arg-type]
    PreOutcome(call_input={"text": object()}),  # type: ignore[dict-item]
    PreOutcome(call_input={"text": float("nan")}),
    PreOutcome(call_input={"text": 2**60}),
]


@pytest.mark.spec("EXE-13")
@pytest.mark.parametrize("answer", NONSENSE, ids=lambda answer: repr(answer)[:60])
async def test_a_hook_that_answers_nonsense_denies(answer: Any) -> None:
    bench = bench_with(pre(answer))

    assert "the hook 'checker' gave no usable answer" in await denied(bench)
    assert bench.log.notes[0][1]["failure"] == "nonsense"


POST_NONSENSE: list[Any] = [
    None,
    PreOutcome(),
    PostOutcome("text"),  # type: ignore[arg-type]
    PostOutcome(("text",)),  # type: ignore[arg-type]
    PostOutcome(context=(None,)),  # type: ignore[arg-type]
]


@pytest.mark.spec("EXE-13")
@pytest.mark.parametrize("answer", POST_NONSENSE, ids=repr)
async def test_a_post_hook_that_answers_nonsense_changes_nothing(answer: Any) -> None:
    async def after(_call: HookCall, _result: ToolResult) -> PostOutcome:
        return answer  # type: ignore[no-any-return]

    bench = bench_with(post=(NamedHook("odd", after),))

    result = await bench.call("test.echo", text="x")

    assert (result.content, dict(result.metadata)) == ((TextBlock("x"),), {})
    assert (bench.log.notes[0][1]["outcome"], bench.log.notes[0][1]["failure"]) == ("none", "nonsense")


@pytest.mark.spec("EXE-13", "EXE-13.f")
async def test_a_hook_that_does_not_let_itself_be_ended_has_still_given_no_answer() -> None:
    async def stubborn(_call: HookCall) -> PreOutcome:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return PreOutcome("allow")
        return PreOutcome()

    bench = bench_with(NamedHook("stubborn", stubborn, timeout=timedelta(milliseconds=5)))

    assert "'stubborn' gave no answer" in await denied(bench)
    assert bench.log.notes[0][1]["failure"] == "timeout"


@pytest.mark.spec("EXE-13")
async def test_a_hook_cannot_change_the_input_in_place_nor_after_its_answer() -> None:
    kept: list[dict[str, Any]] = []

    async def sly(call: HookCall) -> PreOutcome:
        call.call_input["text"] = "in place"  # type: ignore[index]
        kept.append({"text": "answered"})
        return PreOutcome(call_input=kept[0])

    async def later(call: HookCall) -> PreOutcome:
        kept[0]["text"] = "afterwards"
        return PreOutcome()

    bench = bench_with(NamedHook("sly", sly), NamedHook("later", later))

    assert (await bench.call("test.echo", text="a")).data == "answered"
    assert bench.log.starts[0].call.arguments == {"text": "a"}


@pytest.mark.spec("EXE-13.d", "REG-05.c")
async def test_a_hook_sees_derived_fields_that_follow_every_rewrite_and_are_never_fed_back() -> None:
    seen: list[tuple[Any, JsonObject]] = []

    def target(_context: ToolContext, call_input: JsonObject) -> Target:
        return Target("path", "/p", f"/p/{call_input['text']}", host="", is_sensitive=True)

    async def look(call: HookCall) -> PreOutcome:
        shown: Any = call.derived["target"]
        seen.append((shown["shown"], call.call_input))
        return PreOutcome()

    hooks = Hooks(
        (
            NamedHook("first", look),
            NamedHook("again", look),
            pre(PreOutcome(call_input={"text": "b"})),
            NamedHook("last", look),
        )
    )
    bench = make_bench([make_tool(target=target)], hooks=hooks)

    await bench.call("test.echo", text="a")

    assert seen == [("/p/a", {"text": "a"}), ("/p/a", {"text": "a"}), ("/p/b", {"text": "b"})]
    assert bench.log.starts[0].record.inputs.call == {"text": "b"}


@pytest.mark.spec("EXE-13")
async def test_an_input_whose_target_is_refused_is_still_shown_to_hooks_that_may_fix_it() -> None:
    def target(_context: ToolContext, call_input: JsonObject) -> Target:
        if call_input["text"] == "bad":
            raise FileNotFoundError("bad")
        return Target("path", "/p", "/p/good")

    told: list[JsonObject] = []

    async def repair(call: HookCall) -> PreOutcome:
        told.append(call.derived)
        return PreOutcome(call_input={"text": "good"})

    bench = make_bench([make_tool(target=target)], project=Path("/p"), hooks=Hooks((NamedHook("repair", repair),)))

    assert (await bench.call("test.echo", text="bad")).data == "good"
    assert told == [{"cwd": "/p", "project": "/p"}]


@pytest.mark.spec("EXE-01", "REG-03.a")
async def test_the_stages_of_a_call_follow_each_other_in_the_one_order() -> None:
    order: list[str] = []

    def validates(_call_input: JsonObject) -> None:
        order.append("validate")

    async def before(_call: HookCall) -> PreOutcome:
        order.append("pre")
        return PreOutcome()

    async def after(_call: HookCall, result: ToolResult) -> PostOutcome:
        order.append(f"post {result.data}")
        return PostOutcome((TextBlock("replaced by the hook" * 1_000),))

    async def handler(_context: ToolContext, _call_input: JsonObject) -> HandlerOutput:
        order.append("execute")
        return "raw"

    async def asked() -> None:
        order.append("permission")

    tool = make_tool("code.x", aliases=("Read",), handler=handler, validate_input=validates)
    only = Matcher("code.x")
    bench = make_bench([tool], hooks=Hooks((NamedHook("b", before, only),), (NamedHook("a", after, only),)))
    bench.gate.before = asked

    result = await bench.call("Read", text="x")

    assert order == ["validate", "pre", "permission", "execute", "post raw"]
    # Looked up before all: hooks and gate know the canonical name. Normalised after the hook, then persisted.
    assert bench.gate.asked[0].definition.name == "code.x"
    assert result.metadata["truncated"] is True
    assert bench.ended == result
    assert [word for word, _ in bench.log.entries] == ["note", "started", "note", "finished"]


@pytest.mark.spec("EXE-13.e")
async def test_every_run_of_a_hook_is_an_event_with_outcome_and_duration() -> None:
    clock = FakeClock()

    async def slow(_call: HookCall) -> PreOutcome:
        clock.advance(timedelta(milliseconds=40))
        return PreOutcome("ask", "look twice", context=("a", "b"))

    notes: list[tuple[str, JsonObject]] = []

    async def note(kind: str, data: JsonObject) -> None:
        notes.append((kind, data))

    call = HookCall(make_identity(), "c1", make_tool(), {}, make_run_dirs(Path("/p")))
    await Hooks((NamedHook("slow", slow),)).before(call, HookServices(note, clock=clock))

    event = {"hook": "slow", "stage": "pre", "outcome": "ask", "reason": "look twice", "context": 2, "duration_ms": 40}
    assert notes == [("hook_run", event)]


@pytest.mark.spec("EXE-13")
async def test_a_large_change_is_noted_by_size_and_digest() -> None:
    bench = bench_with(pre(PreOutcome(call_input={"text": "y" * 5000})))

    await bench.call("test.echo", text="x")

    diff: Any = bench.log.notes[0][1]["input_diff"]
    assert diff["text"][0] == "x"
    assert (diff["text"][1]["chars"], len(diff["text"][1]["sha256"])) == (5002, 64)


@pytest.mark.spec("EXE-13")
async def test_deny_beats_ask_and_the_reason_is_of_the_one_that_denied() -> None:
    bench = bench_with(pre(PreOutcome("ask", "hm")), pre(PreOutcome("deny", "no")), pre(RuntimeError()))

    assert await denied(bench) == "no"
    assert [note["outcome"] for _, note in bench.log.notes] == ["ask", "deny"]


@pytest.mark.spec("EXE-13.c")
async def test_a_post_hook_cannot_make_a_failure_a_success() -> None:
    async def praise(_call: HookCall, _result: ToolResult) -> PostOutcome:
        return PostOutcome((TextBlock("all went well"),))

    async def broken(_context: ToolContext, _call_input: JsonObject) -> HandlerOutput:
        raise RuntimeError("broken")

    hooks = Hooks(post=(NamedHook("praise", praise),))
    bench = make_bench([make_tool(handler=broken)], hooks=hooks)

    result = await bench.call("test.echo", text="x")

    assert result.error is not None
    assert result.error.type is ErrorType.EXECUTION_FAILED


def test_hooks_of_two_sources_are_asked_in_their_order() -> None:
    one, two = pre(PreOutcome()), pre(PreOutcome())

    assert (Hooks((one,)) + Hooks((two,))).pre == (one, two)


@pre_hook("test.before", tools="nothing.*", tags=("mcp",), timeout=timedelta(seconds=2))
async def before(_call: HookCall) -> PreOutcome:
    return PreOutcome()


@post_hook("test.after", tools="nothing.*")
async def after(_call: HookCall, _result: ToolResult) -> PostOutcome:
    return PostOutcome()


@pytest.mark.spec("EXE-13")
def test_the_same_hook_may_be_registered_again_and_another_may_not() -> None:
    async def other(_call: HookCall) -> PreOutcome:
        return PreOutcome()

    pre_hook("test.before", tools="nothing.*", tags=("mcp",), timeout=timedelta(seconds=2))(before)
    with pytest.raises(InvalidConfigError, match=r"two hooks are called 'test\.before'"):
        pre_hook("test.before")(other)
    with pytest.raises(InvalidConfigError, match=r"two hooks are called 'test\.after'"):
        pre_hook("test.after")(other)


def test_a_plain_function_is_no_hook() -> None:
    def plain(_call: HookCall) -> PreOutcome:
        return PreOutcome()

    with pytest.raises(InvalidConfigError, match="async def"):
        pre_hook("test.plain")(plain)  # type: ignore[type-var]  # what a user may write
