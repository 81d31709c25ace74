import asyncio
from datetime import timedelta

import pytest

from shared.tools.hooks import HookCall, Hooks, Matcher, NamedPostHook, NamedPreHook, PostOutcome, PreOutcome
from shared.tools.result import ErrorType, TextBlock, ToolResult
from tests.unit.tools.parts import Bench, make_bench, make_tool

EVERY = Matcher()


def pre(
    outcome: PreOutcome | Exception, *, on: Matcher = EVERY, timeout: timedelta = timedelta(seconds=5)
) -> NamedPreHook:
    async def hook(_call: HookCall) -> PreOutcome:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return NamedPreHook("checker", hook, on, timeout)


def bench_with(*hooks: NamedPreHook, post: tuple[NamedPostHook, ...] = ()) -> Bench:
    return make_bench([make_tool()], hooks=Hooks(hooks, post))


async def refused(bench: Bench) -> str:
    result = await bench.call("test.echo", text="x")
    assert result.error is not None
    assert result.error.type is ErrorType.HOOK_DENIED
    assert (bench.gate.asked, bench.log.starts) == ([], [])
    return result.error.message


@pytest.mark.spec("EXE-02")
async def test_after_a_hooks_denial_nobody_is_asked() -> None:
    assert await refused(bench_with(pre(PreOutcome("deny", "not on Fridays")))) == "not on Fridays"


@pytest.mark.spec("EXE-13")
async def test_a_hook_that_fails_denies() -> None:
    assert "failed with RuntimeError" in await refused(bench_with(pre(RuntimeError())))


@pytest.mark.spec("EXE-13")
async def test_a_hook_that_is_too_slow_denies() -> None:
    async def slow(_call: HookCall) -> PreOutcome:
        await asyncio.Event().wait()
        return PreOutcome()

    assert "no answer" in await refused(bench_with(NamedPreHook("slow", slow, timeout=timedelta(milliseconds=5))))


@pytest.mark.spec("EXE-02", "EXE-13")
async def test_a_rewritten_input_is_what_runs_and_the_four_inputs_are_kept_apart() -> None:
    bench = bench_with(pre(PreOutcome("allow", call_input={"text": "b"})))

    result = await bench.call("test.echo", text="a")

    started = bench.log.starts[0]
    assert result.data == "b"
    assert started.call.arguments == {"text": "a"}
    assert started.hook_input == started.gate_call.permission_input == started.call_input == {"text": "b"}
    note = dict(bench.log.notes[0][1])
    assert bench.log.notes[0][0] == "hook_run"
    assert (note["outcome"], note["input_diff"]) == ("allow", {"text": ["a", "b"]})


@pytest.mark.spec("EXE-02")
async def test_a_rewritten_input_is_validated_again() -> None:
    bench = bench_with(pre(PreOutcome(call_input={"text": 3})))

    result = await bench.call("test.echo", text="a")

    assert result.error is not None
    assert result.error.type is ErrorType.INVALID_INPUT
    assert bench.gate.asked == []


@pytest.mark.spec("EXE-13")
async def test_ask_beats_allow_whatever_the_order_and_allow_replaces_nobody() -> None:
    bench = bench_with(pre(PreOutcome("ask")), pre(PreOutcome("allow")))

    await bench.call("test.echo")

    assert bench.gate.asked[0].hook_result == "ask"


@pytest.mark.spec("EXE-13")
async def test_a_hook_can_stop_the_run() -> None:
    bench = bench_with(pre(PreOutcome("stop", "enough")), pre(RuntimeError()))

    result = await bench.call("test.echo")

    assert result.error is not None
    assert (result.error.message, result.error.details) == ("enough", {"hook": "checker", "stop_run": True})


@pytest.mark.spec("EXE-13")
async def test_hooks_add_context_and_replace_what_the_model_sees() -> None:
    async def after(_call: HookCall, _result: ToolResult) -> PostOutcome:
        return PostOutcome((TextBlock("shorter"),), ("see also b",))

    bench = bench_with(pre(PreOutcome(context=("mind the tests",))), post=(NamedPostHook("short", after),))

    result = await bench.call("test.echo", text="long")

    assert result.content == (TextBlock("shorter"),)
    assert result.metadata["hook_context"] == ["mind the tests", "see also b"]
    assert [note["stage"] for _, note in bench.log.notes] == ["pre", "post"]


async def test_a_post_hook_that_fails_changes_nothing_and_is_noted() -> None:
    async def after(_call: HookCall, _result: ToolResult) -> PostOutcome:
        raise RuntimeError

    bench = bench_with(post=(NamedPostHook("broken", after),))

    result = await bench.call("test.echo", text="x")

    assert (result.ok, result.data) == (True, "x")
    assert bench.log.notes[0][1]["outcome"] == "none"
    assert bench.log.notes[0][1]["failure"] == "failed"


@pytest.mark.spec("REG-08")
async def test_a_hook_is_about_the_tools_its_matcher_covers() -> None:
    bench = bench_with(
        pre(PreOutcome("deny"), on=Matcher("code.*")), pre(PreOutcome("deny"), on=Matcher(tags=frozenset({"mcp"})))
    )

    assert (await bench.call("test.echo", text="x")).ok
