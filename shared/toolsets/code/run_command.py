"""code.run_command: one program with its arguments, to its end, with all that it started (CMD-01, CMD-05, EXE-07..09).

No shell is between, nothing is expanded. A program may still be an interpreter: the argv names the program, not its
effects. So the tool is dangerous, outside every tool set until configuration lets it in, and each call is asked; only
the shown command is executed.
"""

import asyncio
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from soong.shared.core.config import CommandsConfig
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.sandbox.command import ChildCommand, CommandRunner, Finished, Stream
from soong.shared.sandbox.descriptors import PathRefusal, PathRefusedError, opened_directory
from soong.shared.sandbox.paths import PathPolicy
from soong.shared.sandbox.process import STREAMS, OutputTranscript, ProcessRunner
from soong.shared.sandbox.redact import Redactor, inert_text
from soong.shared.sandbox.threads import accompanied
from soong.shared.tools.definition import HandlerOutput, Permission, Target, ToolContext, ToolDefinition, Traits
from soong.shared.tools.result import ContentBlock, ErrorType, TextBlock, ToolError, ToolFailure, ToolResult
from soong.shared.tools.results.normalize import refusal
from soong.shared.tools.schema import arguments, integer, string
from soong.shared.toolsets.code.command_call import MAX_ARGUMENTS, CommandCall, resolve
from soong.shared.toolsets.code.named_files import is_network_client

DEFAULT_TIMEOUT: Final = timedelta(milliseconds=120_000)
PROGRESS_EVERY: Final = timedelta(seconds=1.5)
"""At least every 2 s while a command runs, also where writing it down takes a while (EXE-09)."""
_PROGRESS_LINES: Final = 5
_PROGRESS_CHARS: Final = 200
_LATER: Final = timedelta(seconds=1)
"""The pipeline's time limit is first: it ends the call by cancelling it. This one is for calls without a pipeline."""

LONG_CHARS: Final = 4_000
"""Output over this is led by its last part: a preview is the beginning of a text, and errors are at the end."""
SUMMARY_CHARS: Final = 2_000
SANDBOX_HINT: Final = "do without it; only the user can open the sandbox ([commands] in config.toml)"


class CommandTool(Value):
    """How commands are run here. ``timeout`` is the longest time of one; a model may ask for less, never for more."""

    policy: PathPolicy
    runner: CommandRunner = msgspec.field(default_factory=ProcessRunner)
    config: CommandsConfig = msgspec.field(default_factory=CommandsConfig)
    redactor: Redactor = msgspec.field(default_factory=Redactor)
    timeout: timedelta = DEFAULT_TIMEOUT
    progress_every: timedelta = PROGRESS_EVERY

    def definition(self) -> ToolDefinition:
        limit_ms = self._limit_ms
        return ToolDefinition(
            name="code.run_command",
            title="Run command",
            description=(
                "Run one program with its arguments and wait for its end. argv is a list: no shell, no expansion, no "
                "pipe, no background. All processes it started end with it. Standard input is empty."
            ),
            search_hint="execute shell exec bash terminal process build test",
            input_schema=arguments(
                "argv",
                argv={
                    "type": "array",
                    "items": string("One argument; nothing in it is expanded."),
                    "minItems": 1,
                    "maxItems": MAX_ARGUMENTS,
                    "description": 'Program and arguments, for example ["git", "status", "--short"].',
                },
                cwd=string("Directory to start in, inside the project or a write root; the project if absent."),
                timeout_ms=integer(f"Longest run in ms; more than {limit_ms} counts as that.", limit_ms, 1),
            ),
            handler=self.run,
            permission=Permission.WRITE,
            tags=frozenset({"code", "write", "filesystem", "dangerous"}),
            errors=(
                ErrorType.SHELL_NOT_ALLOWED,
                ErrorType.FILE_NOT_FOUND,
                ErrorType.NOT_REGULAR_FILE,
                ErrorType.PATH_CONFLICT,
                ErrorType.PATH_OUTSIDE_ROOTS,
            ),
            timeout=self.timeout,
            traits=_traits,
            target=self.target,
        )

    def target(self, context: ToolContext, call_input: JsonObject) -> Target:
        """Compute what a person is asked; a call that cannot succeed is refused here and never asked."""
        return self._resolved(context, call_input).target()

    async def run(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        """Run what was permitted and return its result; cancelled, hand over its output so far."""
        call = await asyncio.to_thread(self._resolved, context, call_input)
        if call.shown != context.target.shown:
            problem = f"{call.shown} is not what was permitted"
            raise ToolError(ErrorType.PATH_CONFLICT, problem, hint="call again for a new question")
        transcript = OutputTranscript(self.config.max_output_bytes, self.redactor)
        with opened_directory(call.cwd) as folder:
            # A change of program or folder in the microseconds until the start is not seen.
            status = os.fstat(folder)
            if call.precondition(f"{status.st_dev}:{status.st_ino}") != context.precondition:
                problem = "or its folder was replaced after it was permitted"
                raise PathRefusedError(PathRefusal.CHANGED, call.argv[0], problem, "call again for a new question")
            return await self._ended(context, call, transcript, folder)

    async def _ended(
        self, context: ToolContext, call: CommandCall, transcript: OutputTranscript, folder: int
    ) -> ToolResult:
        command = ChildCommand(
            argv=call.argv,
            cwd=folder,
            cwd_path=call.cwd,
            env=call.environment,
            timeout=timedelta(milliseconds=call.timeout_ms) + _LATER,
            max_stdout_bytes=0,
            max_stderr_bytes=0,
            overflow="discard",
            heard=transcript.hear,
            access=call.access,
        )
        loop = asyncio.get_running_loop()
        begun = loop.time()

        async def report(seconds: float) -> None:
            await _report(context, transcript, round(seconds * 1000))

        try:
            finished = await accompanied(self.runner.run(command), report, every=self.progress_every)
        except asyncio.CancelledError:
            texts = (block.text for block in _blocks(transcript) if isinstance(block, TextBlock))
            context.keep_partial("\n".join(texts))
            raise
        return result_of(context.tool_call_id, call, finished, transcript, round((loop.time() - begun) * 1000))

    def _resolved(self, context: ToolContext, call_input: JsonObject) -> CommandCall:
        call = resolve(self.policy, self.config, self._limit_ms, context, call_input)
        return replace(call, confinement=self.runner.confinement(call.access))

    @property
    def _limit_ms(self) -> int:
        return round(self.timeout.total_seconds() * 1000)


async def _report(context: ToolContext, transcript: OutputTranscript, elapsed_ms: int) -> None:
    lines = {stream: transcript.last_lines(stream, _PROGRESS_LINES, _PROGRESS_CHARS) for stream in STREAMS}
    last = next((said[-1] for said in (lines["stdout"], lines["stderr"]) if said), "")
    message = f"running for {elapsed_ms // 1000} s, {sum(transcript.said.values())} bytes"
    await context.progress.report(
        f"{message}: {last}" if last else message,
        {
            "elapsed_ms": elapsed_ms,
            "stdout_bytes": transcript.said["stdout"],
            "stderr_bytes": transcript.said["stderr"],
            "stdout": list(lines["stdout"]),
            "stderr": list(lines["stderr"]),
        },
    )


def _traits(call_input: JsonObject) -> Traits:
    argv = call_input.get("argv")
    name = argv[0] if isinstance(argv, list | tuple) and argv and isinstance(argv[0], str) else ""
    return Traits(is_open_world=is_network_client(name))


def result_of(
    tool_call_id: str, call: CommandCall, finished: Finished, transcript: OutputTranscript, duration_ms: int
) -> ToolResult:
    """Return the result: an error for any exit code but zero, with the last words of the program."""
    data: dict[str, Json] = {
        "exit_code": finished.code,
        "ended": finished.ended,
        "duration_ms": duration_ms,
        "stdout_bytes": transcript.said["stdout"],
        "stderr_bytes": transcript.said["stderr"],
        "truncated": transcript.is_cut(),
        "sandbox": finished.sandbox or "none",
    }
    blocks = _blocks(transcript)
    if finished.left_running:
        data["left_running"] = finished.left_running
        blocks.append(TextBlock(f"[{finished.left_running} of its processes could not be ended]"))
    if finished.ended == "timeout":
        failure = ToolFailure(ErrorType.TIMEOUT, f"no end within {call.timeout_ms / 1000:g} s", "ask for less at once")
        return _failed(tool_call_id, failure, {**data, "partial": True}, blocks)
    if finished.code != 0:
        return _failed(tool_call_id, _failure(call, finished, transcript), data, blocks)
    summary = f"exit code 0, {transcript.said['stdout']} bytes"
    return ToolResult(tool_call_id, tuple(blocks) or (TextBlock("[exit code 0, no output]"),), summary, data)


def _failed(tool_call_id: str, failure: ToolFailure, data: dict[str, Json], blocks: list[ContentBlock]) -> ToolResult:
    metadata: dict[str, Json] = {"partial": True} if data.pop("partial", False) else {}
    head = refusal(tool_call_id, failure, data, **metadata)
    return replace(head, content=(*head.content, *blocks))


def _failure(call: CommandCall, finished: Finished, transcript: OutputTranscript) -> ToolFailure:
    name = Path(call.given_name).name
    how = f"{name} ended with exit code {finished.code}"
    if finished.code < 0:
        how = f"{name} was ended by signal {-finished.code}{_signal_name(-finished.code)}"
    stderr = transcript.shown("stderr").strip()[-SUMMARY_CHARS:]
    last = (stderr or transcript.shown("stdout").strip()[-SUMMARY_CHARS:]).rpartition("\n")[2].strip()
    details: dict[str, Json] = {"exit_code": finished.code, "stderr": stderr}
    if finished.denial:
        problem = f"{how}: {last}; {finished.denial}" if last else f"{how}; {finished.denial}"
        return ToolFailure(ErrorType.SANDBOX_DENIED, problem, SANDBOX_HINT, details=details)
    return ToolFailure(ErrorType.EXECUTION_FAILED, f"{how}: {last}" if last else how, details=details)


def _signal_name(number: int) -> str:
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:
        return ""


def _blocks(transcript: OutputTranscript) -> list[ContentBlock]:
    """Return output and then stderr, which is a log: each led by its last part where it is long."""
    streams: tuple[tuple[Stream, str], ...] = (("stdout", ""), ("stderr", "stderr:\n"))
    return [block_of(transcript, stream, title) for stream, title in streams if transcript.said[stream]]


def block_of(transcript: OutputTranscript, stream: Stream, title: str) -> TextBlock:
    """Return the output of a stream, led by its last part if it is long."""
    raw = transcript.raw(stream)
    original = (title + raw).encode("utf-8", "surrogateescape")
    if "\0" in raw and len(raw) > LONG_CHARS:
        return TextBlock(f"{title}[{transcript.said[stream]} bytes of other data than text]", original=original)
    text = inert_text(raw)
    if len(text) > LONG_CHARS:
        tail = text[-LONG_CHARS // 2 :].partition("\n")[2]
        text = f"[the end, everything follows]\n{tail}\n[everything]\n{text}"
    return TextBlock(title + text, original=original)
