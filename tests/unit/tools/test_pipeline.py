import asyncio
import errno
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from soong.shared.core.errors import AlreadyConsumedError, LeaseLostError
from soong.shared.core.jsontext import Json, JsonObject, digest
from soong.shared.sandbox.descriptors import PathRefusal, PathRefusedError
from soong.shared.sandbox.redact import redactor
from soong.shared.tools.definition import HandlerOutput, Permission, Risk, Target, ToolContext, Traits
from soong.shared.tools.hooks.chain import Hooks
from soong.shared.tools.hooks.hook import HookCall, NamedHook, PostOutcome
from soong.shared.tools.pipeline import PipelineConfig
from soong.shared.tools.ports import Verdict
from soong.shared.tools.result import ArtifactRef, ErrorType, JsonBlock, TextBlock, ToolError, ToolResult
from tests.unit.tools.parts import PipelineHarness, gives, make_bench, make_tool, raising
from tests.waiting import others_run

DENIED = Verdict(is_allowed=False, author="person", reason="not today", error=ErrorType.PERMISSION_DENIED)


async def failure(bench: PipelineHarness, tool: str = "test.echo", **fields: Json) -> ErrorType:
    result = await bench.call(tool, **fields)
    assert result.error is not None
    assert bench.ended == result
    return result.error.type


@pytest.mark.spec("REG-05.e", "SCH-03")
async def test_the_tools_own_check_of_its_input_is_asked_before_permission() -> None:
    bench = make_bench([make_tool(validate_input=lambda _: "text must rhyme")])

    result = await bench.call("test.echo", text="orange")

    assert result.error is not None
    assert (result.error.type, result.error.message) == (ErrorType.INVALID_INPUT, "text must rhyme")
    assert bench.gate.asked == []


@pytest.mark.spec("RES-04.a", "EXE-06.a", "PER-03.c")
async def test_a_denial_is_a_result_with_the_reason_and_was_never_started() -> None:
    bench = make_bench([make_tool()], verdict=DENIED)

    result = await bench.call("test.echo", text="x")

    assert result.error is not None
    assert "not today" in result.error.message
    assert bench.log.entries == [("finished", "call_1")]


@pytest.mark.spec("RES-01", "RES-04", "RES-05.c")
@pytest.mark.parametrize(
    ("error", "type"),
    [
        (ToolError(ErrorType.TEXT_NOT_FOUND, "no"), ErrorType.TEXT_NOT_FOUND),
        (OSError(errno.EACCES, "no", "/x"), ErrorType.SANDBOX_DENIED),
        (PermissionError(errno.EPERM, "no"), ErrorType.SANDBOX_DENIED),
        (OSError(errno.EROFS, "no"), ErrorType.SANDBOX_DENIED),
        (FileNotFoundError(errno.ENOENT, "gone", "/x"), ErrorType.FILE_NOT_FOUND),
        (OSError(errno.ENOSPC, "full"), ErrorType.EXECUTION_FAILED),
        (TimeoutError("its own"), ErrorType.EXECUTION_FAILED),
        (PathRefusedError(PathRefusal.PROTECTED, "x", "no"), ErrorType.PATH_PROTECTED),
        (RecursionError(), ErrorType.EXECUTION_FAILED),
        (ValueError("x" * 100_000), ErrorType.EXECUTION_FAILED),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.value,
)
async def test_whatever_a_handler_raises_becomes_a_named_error(error: Exception, type: ErrorType) -> None:
    bench = make_bench([make_tool(handler=raising(error))])

    assert await failure(bench) is type
    assert bench.ended.error is not None
    assert len(bench.ended.error.message) < 3_000


@pytest.mark.parametrize("error", [LeaseLostError("run_1", 7)], ids=["lease"])
async def test_a_lost_lease_ends_the_run_and_records_nothing_more(error: Exception) -> None:
    bench = make_bench([make_tool(handler=raising(error))])

    with pytest.raises(LeaseLostError):
        await bench.call("test.echo")

    assert bench.log.ends == []


async def test_a_decision_that_was_used_before_can_be_asked_for_again() -> None:
    bench = make_bench([make_tool()])
    bench.log.fails_start = AlreadyConsumedError("dec_1")

    assert await failure(bench) is ErrorType.PERMISSION_STALE


@pytest.mark.spec("RES-01.c")
@pytest.mark.parametrize(
    ("value", "content", "data"),
    [
        ("text", (TextBlock("text"),), "text"),
        ({"a": 1}, (JsonBlock({"a": 1}),), {"a": 1}),
        ([1, 2], (JsonBlock([1, 2]),), [1, 2]),
        (3, (JsonBlock(3),), 3),
        (True, (JsonBlock(True),), True),
        (None, (), None),
    ],
    ids=str,
)
async def test_plain_return_values_are_wrapped(value: Json, content: tuple[Any, ...], data: Json) -> None:
    result = await make_bench([make_tool(handler=gives(value))]).call("test.echo")

    assert (result.content, result.data, result.ok) == (content, data, True)


@pytest.mark.spec("RES-02.a")
async def test_a_handler_cannot_answer_for_another_call() -> None:
    bench = make_bench([make_tool(handler=gives(ToolResult("call_other", (TextBlock("x"),))))])

    assert (await bench.call("test.echo")).tool_call_id == "call_1"


@pytest.mark.spec("RES-05", "REG-05.d")
@pytest.mark.parametrize("value", [{"a": object()}, float("nan"), {"n": "text"}], ids=["object", "nan", "schema"])
async def test_output_that_is_not_what_was_promised_is_invalid(value: Any) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    bench = make_bench([make_tool(handler=gives(value), output_schema=schema)])

    assert await failure(bench) is ErrorType.INVALID_OUTPUT


@pytest.mark.spec("RES-03.a", "RES-03.b")
async def test_large_output_becomes_an_artifact_with_a_preview() -> None:
    bench = make_bench([make_tool(handler=gives("x" * 50_000))])

    result = await bench.call("test.echo")

    preview, ref = result.content
    assert isinstance(preview, TextBlock)
    assert len(preview.text) == 12_000
    assert preview.text.endswith("[truncated: 50000 characters, at most 12000 are shown]")
    assert isinstance(ref, ArtifactRef)
    assert (ref.size_bytes, result.artifacts) == (50_000, (ref,))
    assert (result.metadata["actual_chars"], result.metadata["max_chars"]) == (50_000, 12_000)
    assert bench.artifacts.stored == [b"x" * 50_000]


async def test_data_for_programs_has_a_limit_of_its_own() -> None:
    config = PipelineConfig(max_result_chars=100, max_data_chars=500)
    bench = make_bench([make_tool(handler=gives({"x": "y" * 600}))], config=config)

    result = await bench.call("test.echo")

    assert (result.data, result.metadata["data_left_out"]) == (None, True)


@pytest.mark.spec("EVT-05.c", "EVT-05.e")
async def test_secrets_are_in_nothing_that_is_kept() -> None:
    secret = "hunter2-very-secret"
    handler = gives(ToolResult("", (TextBlock(f"a {secret}"),), secret, {secret: [secret]}, metadata={"m": secret}))
    bench = make_bench([make_tool(handler=handler)], redactor=redactor([secret]))

    result = await bench.call("test.echo", text=secret)

    assert secret not in repr(result)
    assert secret not in repr((bench.log.ends, bench.log.records))
    assert bench.log.records[0].input_digest == digest({"text": secret})
    assert bench.log.starts[0].record.inputs.call == {"text": "[redacted]"}
    assert bench.log.starts[0].gate_call.permission_input == {"text": secret}


@pytest.mark.spec("RES-03.c", "FS-06")
async def test_what_an_allowed_sensitive_read_said_reaches_the_model_only() -> None:
    target = Target("path", "/p", "/p/.env", is_sensitive=True, precondition="1:2")
    bench = make_bench([make_tool(handler=gives("A=1"), target=lambda *_: target)])

    result = await bench.call("test.echo")

    assert result.content == (TextBlock("A=1"),)
    assert "A=1" not in repr(bench.log.ends)
    assert bench.ended.metadata["ref"] == "/p/.env"


@pytest.mark.spec("EXE-08.f", "RES-04.e")
async def test_a_handler_over_its_time_ends_as_timeout_and_keeps_its_last_words() -> None:
    async def handler(context: ToolContext, _call_input: JsonObject) -> HandlerOutput:
        await context.progress.report("half way")
        await asyncio.Event().wait()
        return None

    bench = make_bench([make_tool(handler=handler, timeout=timedelta(milliseconds=10))])

    assert await failure(bench) is ErrorType.TIMEOUT
    assert "half way" in repr(bench.ended.content)
    assert bench.ended.metadata["partial"] is True


@pytest.mark.spec("EXE-08.d")
async def test_waiting_for_permission_counts_to_no_time_limit() -> None:
    bench = make_bench([make_tool(timeout=timedelta(milliseconds=5))])
    bench.gate.before = lambda: asyncio.sleep(0.03)

    assert (await bench.call("test.echo", text="x")).ok


@pytest.mark.spec("EXE-08.b")
@pytest.mark.parametrize("own", [None, timedelta(minutes=10)], ids=["default", "the tool's own"])
async def test_no_time_limit_is_above_the_maximum_from_any_source(own: timedelta | None) -> None:
    """A tool of another process's configuration, and a default above the maximum: the maximum holds."""
    config = PipelineConfig(default_timeout=timedelta(minutes=10), max_timeout=timedelta(milliseconds=10))
    bench = make_bench([make_tool(handler=_waiting, timeout=own)], config=config)

    async with asyncio.timeout(5):
        assert await failure(bench) is ErrorType.TIMEOUT


async def _waiting(_context: ToolContext, _call_input: JsonObject) -> HandlerOutput:
    await asyncio.Event().wait()
    return None


@pytest.mark.spec("EXE-07.f")
@pytest.mark.parametrize("cut_off", ["handler", "post hook"])
async def test_a_tool_that_must_not_be_cut_is_waited_for_and_its_result_kept(cut_off: str) -> None:
    """However often it is cancelled meanwhile, as a run that has not ended is."""
    reached, release = asyncio.Event(), asyncio.Event()

    async def wait_in(name: str) -> None:
        if name == cut_off:
            reached.set()
            await release.wait()

    async def handler(_context: ToolContext, _call_input: JsonObject) -> HandlerOutput:
        await wait_in("handler")
        return "written"

    async def after(_call: HookCall, _result: ToolResult) -> PostOutcome:
        await wait_in("post hook")
        return PostOutcome()

    hooks = Hooks(post=(NamedHook("after", after),))
    bench = make_bench([make_tool(handler=handler, interrupt="block")], hooks=hooks)
    task = asyncio.ensure_future(bench.call("test.echo"))
    await asyncio.wait_for(reached.wait(), 5)

    for _ in range(2):
        task.cancel()
        await others_run()
        assert not task.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert (bench.ended.ok, bench.ended.data) == (True, "written")


@pytest.mark.spec("PER-19", "PER-11")
async def test_the_gate_learns_traits_target_and_risk_of_this_very_call(tmp_path: Path) -> None:
    target = Target("resource", "scope", "shown", precondition="absent", is_inside_roots=False)
    seen: list[ToolContext] = []

    async def handler(context: ToolContext, _call_input: JsonObject) -> HandlerOutput:
        seen.append(context)
        return None

    tool = make_tool(
        "mcp.x.run", handler=handler, permission=Permission.WRITE, target=lambda *_: target, tags=frozenset({"network"})
    )
    bench = make_bench([tool], project=tmp_path)

    await bench.call("mcp.x.run")

    (asked,) = bench.gate.asked
    assert (asked.target, asked.risk, asked.fence, asked.cwd) == (target, Risk.EXECUTE, 7, str(tmp_path))
    assert asked.traits == Traits(is_open_world=True)
    assert (seen[0].target, seen[0].precondition, seen[0].allowed_outside) == (target, "absent", True)
    assert (seen[0].effect_id, bench.log.starts[0].record.is_write) == ("run_1/call_1", True)
