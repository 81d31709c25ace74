"""One call of a command tool as a child process: input in, output read, log kept, every bound held (CMD-03, CMD-05)."""

import asyncio
import contextlib
import errno
import signal
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from soong.shared.core.jsontext import Json, JsonObject, dump
from soong.shared.sandbox.command import ChildCommand, CommandAccess, CommandRunner, Finished
from soong.shared.sandbox.descriptors import opened_directory
from soong.shared.sandbox.redact import Redactor
from soong.shared.sandbox.threads import run_blocking
from soong.shared.tools.command_access import access_of
from soong.shared.tools.definition import Permission, Progress, RunDirs, ToolContext
from soong.shared.tools.result import ErrorType, ToolError, ToolFailure, ToolResult
from soong.shared.tools.results.normalize import refusal
from soong.shared.toolsets.code.command_result import SANDBOX_HINT
from soong.shared.toolsets.declarative.definition import Bounds, DeclaredTool
from soong.shared.toolsets.declarative.invocation import EFFECT_VARIABLE, Invocation
from soong.shared.toolsets.declarative.program_output import ProgramOutput
from soong.shared.toolsets.declarative.protocol import read_result

PROGRESS_S: Final = 1.5
"""Between two signs of life; people are promised one every 2 s (EXE-09)."""
MAX_SUMMARY_CHARS: Final = 1_500


async def run_tool(
    tool: DeclaredTool,
    made: Invocation,
    context: ToolContext,
    call_input: JsonObject,
    runner: CommandRunner,
    bounds: Bounds,
    redactor: Redactor,
) -> ToolResult:
    """Run a call to its result: an error if the program failed, printed an invalid result, or met one of its bounds.

    Cancelled, hand over what the program said so far.

    Raises:
        ToolError: the program cannot be started.
        PathRefusedError: the working directory is gone.
    """
    output = ProgramOutput(tool, redactor)
    try:
        finished = await _finished(tool, made, context, call_input, runner, bounds, output)
        return await _result(tool, context, finished, output)
    except asyncio.CancelledError:
        context.keep_partial(output.so_far())
        raise


async def _finished(
    tool: DeclaredTool,
    made: Invocation,
    context: ToolContext,
    call_input: JsonObject,
    runner: CommandRunner,
    bounds: Bounds,
    output: ProgramOutput,
) -> Finished:
    with opened_directory(made.cwd) as cwd:
        command = ChildCommand(
            argv=made.argv,
            cwd=cwd,
            cwd_path=made.cwd,
            env={**made.environment, EFFECT_VARIABLE: context.effect_id},
            timeout=tool.timeout or bounds.max_timeout,
            max_stdout_bytes=tool.stdout_limit_bytes,
            stdin=dump(call_input).encode("utf-8"),
            max_stderr_bytes=0,
            heard=output.hear,
            access=access_of_tool(tool, made.cwd, context.run_dirs),
        )
        try:
            return await _accompanied(runner.run(command), context.progress)
        except (OSError, ValueError) as error:
            raise _not_started(made, error) from error


def access_of_tool(tool: DeclaredTool, cwd: Path, place: RunDirs) -> CommandAccess:
    """Return what a declared tool reaches in a sandbox: what its permission and its tags declare."""
    can_write, has_network = tool.permission is Permission.WRITE, "network" in tool.tags
    return access_of(place, can_write=can_write, has_network=has_network, more=(cwd,))


async def _accompanied(running: Coroutine[Any, Any, Finished], progress: Progress) -> Finished:
    """Await a child and give a sign of life meanwhile. Left only when the child has ended, whatever interrupts."""
    task = asyncio.ensure_future(running)
    started_s = time.monotonic()
    try:
        while not (await asyncio.wait({task}, timeout=PROGRESS_S))[0]:
            await progress.report(f"running for {time.monotonic() - started_s:.0f} s")
        return task.result()
    finally:
        task.cancel()
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({task})


async def _result(tool: DeclaredTool, context: ToolContext, finished: Finished, output: ProgramOutput) -> ToolResult:
    if finished.ended != "exited" or finished.code != 0:
        log = await run_blocking(lambda _stop: output.last_lines("stderr", MAX_SUMMARY_CHARS))
        failure = _failure(tool, finished, log)
        return await _failed(context, failure, output, is_partial=finished.ended != "exited")
    try:
        result = await run_blocking(
            lambda _stop: read_result(context.tool_call_id, finished.stdout, tool.stdout_limit_bytes)
        )
    except ToolError as error:
        return await _failed(context, error.failure, output, is_partial=False)
    kept = await output.kept(context, has_stdout=False)
    facts: dict[str, Json] = {**result.metadata, "sandbox": finished.sandbox or "none", **kept.facts}
    return replace(result, metadata=facts, artifacts=(*result.artifacts, *kept.artifacts))


async def _failed(context: ToolContext, failure: ToolFailure, output: ProgramOutput, *, is_partial: bool) -> ToolResult:
    """Return the result of a program that did not end well, with what it said until then."""
    kept = await output.kept(context, has_stdout=True)
    facts = {**kept.facts, "partial": True} if is_partial and kept.facts else kept.facts
    head = refusal(context.tool_call_id, failure, None, **facts)
    return replace(head, content=(*head.content, *kept.artifacts), artifacts=kept.artifacts)


def _failure(tool: DeclaredTool, finished: Finished, log: str) -> ToolFailure:
    """Return why a child did not end well; its log says more."""
    details: dict[str, Json] = {"stderr": log} if log else {}
    words = f"\nstderr:\n{log}" if log else ""
    if finished.ended == "output_limit":
        limit = tool.stdout_limit_bytes
        hint = "ask for less at once, or let the user raise stdout_limit_bytes of the tool"
        details |= {"stdout_limit_bytes": limit}
        problem = f"the tool printed more than {limit} bytes and was ended{words}"
        return ToolFailure(ErrorType.LIMIT_EXCEEDED, problem, hint, details)
    if finished.ended == "timeout":
        return ToolFailure(ErrorType.TIMEOUT, f"no result in time{words}", details=details)
    details |= {"exit_code": finished.code}
    if finished.denial:
        problem = f"{_ending(finished.code)}; {finished.denial}{words}"
        return ToolFailure(ErrorType.SANDBOX_DENIED, problem, SANDBOX_HINT, details)
    return ToolFailure(ErrorType.EXECUTION_FAILED, f"{_ending(finished.code)}{words}", details=details)


def _ending(code: int) -> str:
    if code > 0:
        return f"exit code {code}"
    try:
        return f"ended by signal {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"


def _not_started(made: Invocation, error: OSError | ValueError) -> Exception:
    """Return what to raise when there was no child at all."""
    if isinstance(error, OSError) and error.errno == errno.E2BIG:
        return ToolError(ErrorType.INVALID_INPUT, "the arguments together are longer than a command line can be")
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM):
        return error
    words = error.strerror if isinstance(error, OSError) else str(error)
    hint = "a script needs a first line such as #!/usr/bin/env python3 that names an interpreter which is there"
    return ToolError(ErrorType.EXECUTION_FAILED, f"{made.argv[0]!r} cannot be started: {words}", hint=hint)
