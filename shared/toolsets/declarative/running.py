"""One call of a command tool as a child process: input in, output read, log kept, every bound held (CMD-03, CMD-05)."""

import asyncio
import errno
import signal
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Event
from typing import Final

import msgspec
from msgspec.structs import replace

from soong.shared.core import timing
from soong.shared.core.config import Config
from soong.shared.core.errors import InvalidConfigError, InvalidToolError, SoongError
from soong.shared.core.jsontext import Json, JsonObject, dump
from soong.shared.core.value import Value
from soong.shared.sandbox.command import ChildCommand, CommandAccess, CommandRunner, Finished, Stream
from soong.shared.sandbox.descriptors import opened_directory
from soong.shared.sandbox.paths import PathPolicy
from soong.shared.sandbox.process import STREAMS, OutputTranscript
from soong.shared.sandbox.programs import untrusted_folders
from soong.shared.sandbox.redact import Redactor, inert_text
from soong.shared.sandbox.threads import accompanied, run_blocking
from soong.shared.tools.definition import Permission, RunDirs, Target, ToolContext, ToolDefinition, access_of
from soong.shared.tools.registry import MAX_TIMEOUT, ToolRegistry
from soong.shared.tools.result import EVERY_CALL, ArtifactRef, ErrorType, ToolError, ToolFailure, ToolResult
from soong.shared.tools.results.normalize import refusal
from soong.shared.toolsets.code.named_files import named_files
from soong.shared.toolsets.code.run_command import SANDBOX_HINT, block_of
from soong.shared.toolsets.declarative.definition import Bounds, DeclaredTool, read_tool_files
from soong.shared.toolsets.declarative.protocol import (
    CLAIMABLE,
    EFFECT_VARIABLE,
    Invocation,
    hold_to_permission,
    invocation,
    last_lines,
    read_result,
    target_of,
)

MAX_SUMMARY_CHARS: Final = 1_500

MAX_SHOWN_CHARS: Final = 4_000
MAX_PROBLEM_CHARS: Final = 200

_OF_EVERY_CALL: Final = {each for types in EVERY_CALL.values() for each in types}
_ERRORS: Final = tuple(
    sorted((CLAIMABLE | {ErrorType.PATH_OUTSIDE_ROOTS, ErrorType.SHELL_NOT_ALLOWED}) - _OF_EVERY_CALL)
)


class KeptOutput(Value):
    """``facts`` are for the metadata of a result: each stream's last lines, its size, and the digest of its artifact,
    if the lines are not all of it.
    """

    facts: dict[str, Json] = msgspec.field(default_factory=dict)
    artifacts: tuple[ArtifactRef, ...] = ()


class ProgramOutput:
    """Collects both streams of one call; :meth:`hear` takes the pieces as they come."""

    def __init__(self, tool: DeclaredTool, redactor: Redactor) -> None:
        limits: dict[Stream, int] = {"stdout": tool.stdout_limit_bytes, "stderr": tool.stderr_limit_bytes}
        self._tool = tool.name
        self._redactor = redactor
        self._transcripts = {stream: OutputTranscript(limit, redactor) for stream, limit in limits.items()}

    def hear(self, stream: Stream, piece: bytes) -> None:
        self._transcripts[stream].hear(stream, piece)

    def so_far(self) -> str:
        """Return the output so far as one text, for a result that comes before the end."""
        titled: tuple[tuple[Stream, str], ...] = (("stdout", ""), ("stderr", "stderr:\n"))
        said = [(stream, title) for stream, title in titled if self._said(stream)]
        return "\n".join(block_of(self._transcripts[stream], stream, title).text for stream, title in said)

    def last_lines(self, stream: Stream, max_chars: int) -> str:
        return last_lines(self._text(stream), max_chars)

    async def kept(self, context: ToolContext, *, has_stdout: bool) -> KeptOutput:
        """Return the kept stderr, and the kept stdout if it is not the result; store output that is too long to show. A
        failed store keeps no call from its result: the facts hold the reason.
        """
        facts: dict[str, Json] = {}
        artifacts: list[ArtifactRef] = []
        for stream in STREAMS if has_stdout else STREAMS[1:]:
            if not self._said(stream):
                continue
            shown, unshown = await run_blocking(partial(self._shown, stream))
            if shown:
                facts |= {stream: shown, f"{stream}_bytes": self._said(stream)}
            if not unshown:
                continue
            try:
                media_type, ending = ("application/octet-stream", "bin") if b"\0" in unshown else ("text/plain", "txt")
                name = f"{self._tool}-{context.tool_call_id}-{stream}.{ending}"
                ref = await context.store_artifact(unshown, media_type, name)
            except (OSError, SoongError) as error:
                facts[f"{stream}_artifact_error"] = str(error)[:MAX_PROBLEM_CHARS]
                continue
            if ref is not None:
                facts[f"{stream}_artifact"] = ref.digest
                artifacts.append(ref)
        return KeptOutput(facts, tuple(artifacts))

    def _shown(self, stream: Stream, _stop: Event) -> tuple[str, bytes]:
        """Return the last lines of a stream and, if they are not all of it, the bytes that were kept."""
        text = self._text(stream)
        shown = last_lines(text, MAX_SHOWN_CHARS)
        if shown == text.strip():
            return shown, b""
        return shown, self._transcripts[stream].raw(stream).encode("utf-8", "surrogateescape")

    def _text(self, stream: Stream) -> str:
        # Again, as text: an escape sequence inside a secret hides it in the bytes.
        return self._redactor.text(inert_text(self._transcripts[stream].raw(stream)))

    def _said(self, stream: Stream) -> int:
        return self._transcripts[stream].said[stream]


def access_of_tool(tool: DeclaredTool, cwd: Path, place: RunDirs) -> CommandAccess:
    """Return the reach of a declared tool in a sandbox, by its permission and its tags."""
    can_write, has_network = tool.permission is Permission.WRITE, "network" in tool.tags
    return access_of(place, can_write=can_write, has_network=has_network, more=(cwd,))


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
    """Return the result of a program that did not end well, with its output until then."""
    kept = await output.kept(context, has_stdout=True)
    facts = {**kept.facts, "partial": True} if is_partial and kept.facts else kept.facts
    head = refusal(context.tool_call_id, failure, None, **facts)
    return replace(head, content=(*head.content, *kept.artifacts), artifacts=kept.artifacts)


def _failure(tool: DeclaredTool, finished: Finished, log: str) -> ToolFailure:
    """Return why a child did not end well; its log has more."""
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


class DeclarativeTools(Value):
    """A :class:`soong.shared.tools.definition.ToolAdapter` over the files of a home; one broken file breaks the start.
    Starting without it would leave a run without a tool that its user counts on, without notice.
    """

    home: Path
    runner: CommandRunner
    config: Config = msgspec.field(default_factory=Config)
    paths: PathPolicy = msgspec.field(default_factory=PathPolicy)
    redactor: Redactor = msgspec.field(default_factory=Redactor)
    max_timeout: timedelta = MAX_TIMEOUT

    def tools(self) -> tuple[ToolDefinition, ...]:
        """Read the files again each time.
        Raises: InvalidConfigError, names every broken file, the field and what to do.
        """
        bounds = Bounds.of(self.config, self.max_timeout)
        files = read_tool_files(self.home, bounds)
        if files.problems:
            raise InvalidConfigError("\n".join(map(str, files.problems)))
        surroundings = bounds, self.config, self.runner, self.paths, self.redactor
        return tuple(_DeclaredCommand(tool, *surroundings).definition() for tool in files.tools)

    def register(self, registry: ToolRegistry) -> None:
        """Register the tools, each with its file as its source.
        Raises: InvalidConfigError as :meth:`tools`, or a name is taken by a tool from elsewhere.
        """
        for definition in self.tools():
            origin = str(definition.metadata["origin"])
            try:
                registry.register(definition, source=f"file {origin}")
            except InvalidToolError as error:
                raise InvalidConfigError(f"{origin}: {error.problem}") from error


class _DeclaredCommand(Value):
    """One definition, with what its calls need."""

    tool: DeclaredTool
    bounds: Bounds
    config: Config
    runner: CommandRunner
    paths: PathPolicy
    redactor: Redactor

    def definition(self) -> ToolDefinition:
        tool = self.tool
        return ToolDefinition(
            name=tool.name,
            description=tool.description,
            input_schema=tool.input_schema,
            handler=self._handle,
            permission=tool.permission,
            tags=tool.tags,
            timeout=tool.timeout,
            is_enabled=lambda: self.config.tools.shell or not tool.is_shell,
            target=lambda context, call_input: self._target(context, call_input, self._made(context, call_input)),
            # A program that the run can write, in a tool that never asks, would be code without consent.
            check_permissions=lambda *call: "ask" if self._made(*call).is_own_to_run else None,
            errors=_ERRORS,
            metadata={"origin": tool.origin, "command_type": "shell" if tool.is_shell else "exec"},
        )

    def _made(self, context: ToolContext, call_input: JsonObject) -> Invocation:
        return invocation(self.tool, self.bounds, self.config, context.run_dirs, call_input)

    def _target(self, context: ToolContext, call_input: JsonObject, made: Invocation) -> Target:
        files = named_files(made.argv, made.cwd, untrusted_folders(context.run_dirs), self.paths.is_sensitive)
        target = target_of(self.tool, made, call_input, files)
        confinement = self.runner.confinement(access_of_tool(self.tool, made.cwd, context.run_dirs))
        return replace(target, preview=f"{target.preview}\nsandbox: {confinement}") if confinement else target

    async def _handle(self, context: ToolContext, call_input: JsonObject) -> ToolResult:
        """Run a call to its result: an error if the program failed, printed an invalid result, or met a bound.
        Cancelled, hand over the program's output so far.
        Raises: ToolError, the program cannot be started, or is not the one that was permitted; PathRefusedError, the
        working directory is gone.
        """
        made = self._made(context, call_input)
        hold_to_permission(context, await asyncio.to_thread(self._target, context, call_input, made))
        output = ProgramOutput(self.tool, self.redactor)
        try:
            return await _result(self.tool, context, await self._finished(made, context, call_input, output), output)
        except asyncio.CancelledError:
            context.keep_partial(output.so_far())
            raise

    async def _finished(
        self, made: Invocation, context: ToolContext, call_input: JsonObject, output: ProgramOutput
    ) -> Finished:
        async def report(seconds: float) -> None:
            await context.progress.report(f"running for {seconds:.0f} s")

        with opened_directory(made.cwd) as cwd:
            command = ChildCommand(
                argv=made.argv,
                cwd=cwd,
                cwd_path=made.cwd,
                env={**made.environment, EFFECT_VARIABLE: context.effect_id},
                timeout=self.tool.timeout or self.bounds.max_timeout,
                max_stdout_bytes=self.tool.stdout_limit_bytes,
                stdin=dump(call_input).encode("utf-8"),
                max_stderr_bytes=0,
                heard=output.hear,
                access=access_of_tool(self.tool, made.cwd, context.run_dirs),
            )
            try:
                every = timedelta(seconds=timing.SIGN_OF_LIFE_S)
                return await accompanied(self.runner.run(command), report, every=every)
            except (OSError, ValueError) as error:
                raise _not_started(made, error) from error
