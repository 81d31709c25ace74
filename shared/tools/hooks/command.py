"""Hooks that are programs of the user: one JSON document on stdin, one on stdout (EXE-13).

The program gets, as fields of one object, ``v`` (1), ``stage`` (pre or post), ``hook``, ``tool_call_id``, ``tool``
(name, permission, tags), ``input``, ``derived`` (what follows from the input: cwd, project, target), ``run_dirs``
(project, cwd) and ``run`` (session, run, agent, role, parents); after a call also ``result`` (is_error, error, summary,
content). It answers with an object of any of ``action`` (none, allow, ask, deny, stop), ``reason``, ``input`` (replaces
the input) and ``context`` (a list of texts); after a call of any of ``content`` (text, object or list: replaces what
the model sees), ``context`` and ``reason``. Around a question of an MCP server, the stages are elicitation and
elicitation_result; the second gets ``answer`` (action, content, reason), and both answer with any of ``action`` (none,
accept, decline), ``content`` (an object: the values of the form) and ``reason``. No output and exit code 0 mean no
opinion. Its stderr is progress, line by line.

Any other behaviour is a failure of the hook: before a call that denies, after it changes nothing, around a question it
declines. Programs come from the user's configuration; one that cannot be found keeps a process from starting. They
start in Soong's own folder with an allowlist of variables. One that lies in the project that is worked on is not run;
one that is named without a folder is found, for each call, past the folders that the run can write, and its own PATH
has none of those.
"""

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from soong.shared.core.config import CommandsConfig, HookConfig, HooksConfig
from soong.shared.core.errors import InvalidConfigError, InvalidJsonError
from soong.shared.core.jsontext import Json, parse_strict
from soong.shared.core.value import Value
from soong.shared.sandbox.command import ChildCommand, CommandRunner, Finished, SandboxUnavailableError, Stream
from soong.shared.sandbox.descriptors import PathRefusedError
from soong.shared.sandbox.paths import is_below
from soong.shared.sandbox.programs import child_environment, find_program, untrusted_folders, with_trusted_path
from soong.shared.sandbox.redact import Redactor, inert_text
from soong.shared.tools.definition import ElicitationAnswer, Progress, RunDirs, access_of
from soong.shared.tools.hooks.chain import HookFailedError, Hooks
from soong.shared.tools.hooks.hook import (
    ElicitationHookAction,
    ElicitationOutcome,
    HookCall,
    Matcher,
    NamedHook,
    PostOutcome,
    PreAction,
    PreOutcome,
)
from soong.shared.tools.result import ArtifactRef, ContentBlock, JsonBlock, TextBlock, ToolResult
from soong.shared.tools.results.rendering import block_value

VERSION: Final = 1
MAX_ANSWER_BYTES: Final = 1024 * 1024
_MAX_SUMMARY_CHARS: Final = 1_000
_GRACE: Final = timedelta(seconds=30)
"""The hook's time limit cancels the program; the runner's own limit is only a fallback."""

Texts = Annotated[tuple[str, ...], Field(strict=False)]


class _HookAnswer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    v: Literal[1] = 1
    reason: str = ""


class _PreAnswer(_HookAnswer):
    action: PreAction = "none"
    input: dict[str, Any] | None = None
    context: Texts = ()


class _PostAnswer(_HookAnswer):
    content: str | dict[str, Any] | list[Any] | None = None
    context: Texts = ()


class _ElicitationHookAnswer(_HookAnswer):
    action: ElicitationHookAction = "none"
    content: dict[str, Any] | None = None

    def outcome(self) -> ElicitationOutcome:
        return ElicitationOutcome(self.action, self.content, self.reason)


_A = TypeVar("_A", bound=_HookAnswer)


def hooks_of(
    config: HooksConfig,
    runner: CommandRunner,
    *,
    home: Path,
    commands: CommandsConfig | None = None,
    redactor: Redactor | None = None,
) -> Hooks:
    """Return the hooks of a configuration, their programs found. ``home`` is Soong's own folder, where they start.

    ``commands`` lists the variables that programs get; secret ones only where the hook's own ``env`` names them.
    Raises: InvalidConfigError, names the hook whose program is not there, or the name that two hooks have.
    """
    known: set[str] = set()
    made: dict[str, list[_HookProgram]] = {stage: [] for stage in config.stages}
    for stage, hooks in config.stages.items():
        for number, hook in enumerate(hooks):
            place = f"hooks.{stage}[{number}]"
            if hook.name in known:
                raise InvalidConfigError(f"{place}: another hook is called {hook.name!r}; give each a name of its own")
            known.add(hook.name)
            program = _program(hook, place, home, commands or CommandsConfig())
            made[stage].append(_HookProgram(program, runner, home, redactor or Redactor()))
    return Hooks(
        **{
            stage: tuple(NamedHook(one.found.hook.name, getattr(one, stage), *one.limits) for one in programs)
            for stage, programs in made.items()
        }
    )


class _HookFile(Value):
    """A hook with its program, its environment, and the files that control it."""

    hook: HookConfig
    program: Path
    environment: Mapping[str, str]

    @property
    def argv(self) -> tuple[str, ...]:
        return (str(self.program), *self.hook.command[1:])

    @property
    def files(self) -> tuple[Path, ...]:
        named = (self.program, *(Path(argument) for argument in self.argv[1:] if argument.startswith("/")))
        return (self.program, *(Path(os.path.realpath(path)) for path in named if path.is_file()))

    def for_run(self, place: RunDirs, home: Path) -> "_HookFile":
        """Return the hook as it is started for a run.
        Raises: HookFailedError, its program is only where the run can write.
        """
        untrusted, name = untrusted_folders(place), self.hook.command[0]
        try:
            is_named = "/" not in name
            program = find_program(name, self.environment, cwd=home, untrusted=untrusted) if is_named else self.program
        except PathRefusedError as error:
            raise HookFailedError(f"was not run: {error}; {error.hint}") from error
        return _HookFile(self.hook, program, with_trusted_path(self.environment, untrusted))


def _program(hook: HookConfig, place: str, home: Path, commands: CommandsConfig) -> _HookFile:
    name, *arguments = hook.command
    environment = child_environment(commands.env, commands.secret_env, declared=hook.env)
    if "/" in name and not name.startswith("/"):
        problem = f"{place}.command: {name!r} is a relative path; write the full path, or a name on PATH"
        raise InvalidConfigError(problem)
    if any("\0" in argument for argument in arguments):
        raise InvalidConfigError(f"{place}.command: an argument holds NUL")
    try:
        program = find_program(name, environment, cwd=home)
    except PathRefusedError as error:
        hint = f"; {error.hint}" if error.hint else ""
        raise InvalidConfigError(f"{place}.command (the hook {hook.name!r}): {error}{hint}") from error
    return _HookFile(hook, program, environment)


class _HookProgram(Value):
    """One hook as a program; :meth:`pre` and :meth:`post` are the hooks that the pipeline asks."""

    found: _HookFile
    runner: CommandRunner
    home: Path
    redactor: Redactor

    @property
    def limits(self) -> tuple[Matcher, timedelta]:
        hook = self.found.hook
        return Matcher(hook.tools, frozenset(hook.tags)), timedelta(seconds=hook.timeout_s)

    async def pre(self, call: HookCall) -> PreOutcome:
        answer = await self._ask(call, {"stage": "pre"}, _PreAnswer)
        return PreOutcome(answer.action, answer.reason, answer.input, answer.context)

    async def post(self, call: HookCall, result: ToolResult) -> PostOutcome:
        answer = await self._ask(call, {"stage": "post", "result": _rendered(result)}, _PostAnswer)
        said = answer.content
        content = None if said is None else (TextBlock(said) if isinstance(said, str) else JsonBlock(said),)
        return PostOutcome(content, answer.context, answer.reason)

    async def elicitation(self, call: HookCall) -> ElicitationOutcome:
        return (await self._ask(call, {"stage": "elicitation"}, _ElicitationHookAnswer)).outcome()

    async def elicitation_result(self, call: HookCall, answer: ElicitationAnswer) -> ElicitationOutcome:
        told: dict[str, Json] = {"action": answer.action, "content": answer.content, "reason": answer.reason}
        more: dict[str, Json] = {"stage": "elicitation_result", "answer": told}
        return (await self._ask(call, more, _ElicitationHookAnswer)).outcome()

    async def _ask(self, call: HookCall, more: Mapping[str, Json], kind: type[_A]) -> _A:
        found = self.found.for_run(call.run_dirs, self.home)
        self._refuse_from_project(found, call.run_dirs)
        document = {"v": VERSION, "hook": self.found.hook.name, **more, **_told(call)}
        try:
            # ASCII: whatever text a model sends, the program gets valid UTF-8.
            stdin = json.dumps(document, allow_nan=False, separators=(",", ":")).encode("ascii")
        except (ValueError, RecursionError) as error:
            raise HookFailedError(f"cannot get this call: {error}") from error
        finished = await self._run(found, call.run_dirs, stdin, call.progress)
        self._check_end(finished)
        return _read(finished.stdout, kind)

    async def _run(self, found: _HookFile, place: RunDirs, stdin: bytes, progress: Progress) -> Finished:
        voice = _Voice(progress, self.redactor)
        folder = -1
        try:
            folder = os.open(self.home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            limit = timedelta(seconds=found.hook.timeout_s) + _GRACE
            finished = await self.runner.run(
                ChildCommand(
                    argv=found.argv,
                    cwd=folder,
                    cwd_path=self.home,
                    env=found.environment,
                    timeout=limit,
                    max_stdout_bytes=MAX_ANSWER_BYTES,
                    stdin=stdin,
                    heard=voice.heard,
                    access=access_of(place, can_write=False, has_network=found.hook.network, more=found.files),
                )
            )
        except OSError as error:
            raise HookFailedError(f"cannot be started: {error.strerror or error}") from error
        except SandboxUnavailableError as error:
            raise HookFailedError(f"cannot be started: {error}; {error.hint}") from error
        finally:
            if folder >= 0:
                os.close(folder)
        await voice.close()
        return finished

    def _check_end(self, finished: Finished) -> None:
        if finished.ended == "output_limit":
            raise HookFailedError(f"answered more than {MAX_ANSWER_BYTES} bytes")
        if finished.ended == "timeout":
            raise HookFailedError("gave no answer in time")
        if finished.code:
            how = f"ended with exit code {finished.code}" if finished.code > 0 else f"died of signal {-finished.code}"
            words = self._summary(finished.stderr)
            refused = f"; {finished.denial}" if finished.denial else ""
            raise HookFailedError(f"{how}{refused}: {words}" if words else f"{how}{refused}")

    def _summary(self, stderr: bytes) -> str:
        """Return the last words of stderr, from the beginning of a line so that no secret is cut."""
        text = inert_text(self.redactor.text(stderr.decode("utf-8", "replace"))).strip()
        if len(text) > _MAX_SUMMARY_CHARS:
            text = "… " + text[-_MAX_SUMMARY_CHARS:].partition("\n")[2]
        return text

    def _refuse_from_project(self, found: _HookFile, place: RunDirs) -> None:
        for path in found.files:
            is_ours = is_below(path, self.home)
            if not is_ours and any(is_below(path, root) for root in (place.project, place.cwd, *place.write_roots)):
                raise HookFailedError(f"was not run: {path} lies in the project that is worked on; keep it outside")


@dataclass(slots=True)
class _Voice:
    """The stderr of a running program as progress: complete lines, a bounded number of them."""

    progress: Progress
    redactor: Redactor
    left: int = 50
    _tail: bytes = b""
    _reports: list["asyncio.Task[None]"] = field(default_factory=list)

    def heard(self, stream: Stream, piece: bytes) -> None:
        if stream != "stderr" or self.left <= 0:
            return
        *lines, self._tail = (self._tail + piece).split(b"\n")
        self._tail = self._tail[-8192:]
        for line in lines[: self.left]:
            text = inert_text(self.redactor.text(line.decode("utf-8", "replace"))).strip()[:500]
            if text:
                self.left -= 1
                self._reports.append(asyncio.ensure_future(self.progress.report(text)))

    async def close(self) -> None:
        await asyncio.gather(*self._reports)


def _told(call: HookCall) -> dict[str, Json]:
    tool = call.definition
    return {
        "tool_call_id": call.tool_call_id,
        "effect_id": call.effect_id,
        "tool": {"name": tool.name, "permission": str(tool.permission), "tags": sorted(tool.tags)},
        "input": call.call_input,
        "derived": call.derived,
        "run_dirs": {"project": str(call.run_dirs.project), "cwd": str(call.run_dirs.cwd)},
        "run": call.identity.as_json(),
    }


def _rendered(result: ToolResult) -> dict[str, Json]:
    error = result.error
    return {
        "is_error": result.is_error,
        "error": None if error is None else {"type": str(error.type), "message": error.message, "hint": error.hint},
        "summary": result.summary,
        "content": [_shown(block) for block in result.content],
    }


def _shown(block: ContentBlock) -> Json:
    if isinstance(block, ArtifactRef):
        return {"artifact": block.digest, "size_bytes": block.size_bytes, "media_type": block.media_type}
    return block_value(block)


def _read(stdout: bytes, kind: type[_A]) -> _A:
    if not stdout.strip():
        return kind()
    try:
        return kind.model_validate(parse_strict(stdout, max_bytes=MAX_ANSWER_BYTES))
    except InvalidJsonError as error:
        raise HookFailedError(f"answered what is not one JSON document: {error}") from error
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, item['loc'])) or 'answer'}: {item['msg']}" for item in error.errors())
        raise HookFailedError(f"gave no usable answer: {wrong[:_MAX_SUMMARY_CHARS]}") from error
