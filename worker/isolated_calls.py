"""Calls of functions in processes of their own, and what such a process runs.

The lines of the process (LOG-01) come over its standard error. Those that begin with a mark are what the function
prints, logs and raises there; everything else, such as the output of a program that it starts, is a line of ``stderr``.
A file that it hands on is stored when it has ended; artifacts that its inputs name are there before it begins.
"""

import asyncio
import hashlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from soong.shared.agents.runtime.call_log import StopSignal
from soong.shared.core.errors import NotFoundError, SoongError
from soong.shared.core.identity import Origin, Role, RunIdentity
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.log_lines import LineStream, RunLines, current_lines, gathering, install, install_handler
from soong.shared.core.value import Value
from soong.shared.engine.tasks.functions import StepContext, StepFunction, resolve
from soong.shared.engine.tasks.step import StepError
from soong.shared.sandbox.command import ChildCommand, CommandRunner, Finished, Stream
from soong.shared.sandbox.own_folder import install_temporary_folder, made
from soong.shared.sandbox.process import ProcessRunner
from soong.shared.sandbox.programs import child_environment
from soong.shared.toolsets.modules import import_own
from soong.worker.call_outcome import MAX_OUTPUT_BYTES, encoded, outcome_of
from soong.worker.handed_on import HandedOn

_START: Final = (
    "import sys; sys.path[:] = sys.argv[1:]; from soong.worker.isolated_calls import answer_call; answer_call()"
)
_NO_LIMIT: Final = timedelta(days=3660)
"""The step's own limit cancels the call."""
_MARK: Final = "\x1e"
"""ASCII's record separator: begins what the process reports as a line."""


class IsolatedCalls(Value):
    """Makes such calls. ``modules`` register the functions, ``folders`` are searched for them."""

    modules: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    """Names of what the process gets of our environment besides PATH, HOME and TMPDIR."""
    secret_variables: tuple[str, ...] = ()
    runner: CommandRunner = msgspec.field(default_factory=ProcessRunner)

    async def call(
        self, function: StepFunction, inputs: JsonObject, context: StepContext
    ) -> tuple[Json, StepError | None]:
        """Call a function; return its output, or why there is none. A cancelled call ends its process first.

        Raises: OSError: the process cannot be started.
        """
        folder, files, lines = context.folder, context.files, _ReportedLines(current_lines())
        with ExitStack() as left:
            left.enter_context(made(folder))
            artifacts = ""
            if named := {digest for value in _references(inputs) if (digest := str(value["artifact"]))}:
                artifacts = left.enter_context(tempfile.TemporaryDirectory(prefix="soong-artifacts-"))
                if isinstance(files, HandedOn):
                    await files.copy(named, Path(artifacts))
            request = {
                "modules": self.modules,
                "folders": self.folders,
                "function": function.name,
                "inputs": inputs,
                "identity": context.identity.as_json(),
                "attempt": context.attempt,
                "effect_key": context.effect_key,
                "folder": str(folder),
                "project": str(context.project),
                "artifacts": artifacts,
            }
            cwd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            left.callback(os.close, cwd)
            command = ChildCommand(
                argv=(sys.executable, "-I", "-c", _START, *sys.path),
                cwd=cwd,
                cwd_path=folder,
                env={**child_environment(self.variables, self.secret_variables), "TMPDIR": str(folder)},
                timeout=_NO_LIMIT,
                max_stdout_bytes=MAX_OUTPUT_BYTES + 64 * 1024,
                stdin=encoded(request),
                heard=lines.take,
                overflow="discard",
            )
            finished = await self.runner.run(command)
            lines.close()
            return await _answer(finished, files)


def _references(value: Json) -> Iterator[dict[str, Json]]:
    """Yield the references to artifacts in a value."""
    if isinstance(value, dict):
        if isinstance(value.get("artifact"), str) and "sha256" in value:
            yield value
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _references(item)


async def _answer(finished: Finished, files: object) -> tuple[Json, StepError | None]:
    try:
        answer = decoded(finished.stdout)
        output, error = answer["output"], answer["error"]
        handed_on = msgspec.convert(answer["handed_on"], list[tuple[str, str, str]])
        failure = StepError(**error) if isinstance(error, dict) else None
    except (ValueError, TypeError, KeyError, RecursionError):
        how = f"exit code {finished.code}" if finished.code >= 0 else signal.Signals(-finished.code).name
        words = f"its process ended before its result: {how}"
        last = _without_reports(finished.stderr)
        return None, StepError("execution_failed", f"{words}; {last}" if last else words, retryable=True)
    if isinstance(files, HandedOn):
        references = list(_references(output))
        for path, title, digest in handed_on:
            try:
                stored = await files.stored(Path(path), title)
            except (SoongError, OSError) as problem:
                return None, StepError("execution_failed", f"{path!r} was handed on and not stored: {problem}")
            # The stored copy has no secrets, so its digest may be another.
            for reference in references:
                if reference["artifact"] == digest:
                    reference.update(stored)
    return output, failure


def _without_reports(stderr: bytes) -> str:
    lines = [line for line in stderr.decode("utf-8", "replace").split("\n") if line.strip() and _MARK not in line]
    return lines[-1].strip() if lines else ""


class _ReportedLines:
    """Reads what a process writes to standard error, cut anywhere, as lines of the run."""

    def __init__(self, lines: RunLines | None) -> None:
        self._lines = lines
        self._unfinished = b""

    def take(self, stream: Stream, data: bytes) -> None:
        if stream == "stderr":
            *lines, self._unfinished = (self._unfinished + data).split(b"\n")
            for line in lines:
                self._line(line.decode("utf-8", "replace"))

    def close(self) -> None:
        if self._unfinished:
            self._line(self._unfinished.decode("utf-8", "replace"))

    def _line(self, line: str) -> None:
        before, _, report = line.partition(_MARK)
        if self._lines is None:
            sys.stderr.write(f"{before or report}\n")
            return
        if before or not report:
            self._lines.add(LineStream.STDERR, "", before)
        if report:
            try:
                stream, level, text = msgspec.json.decode(report, type=tuple[LineStream, str, str])
            except msgspec.MsgspecError:
                stream, level, text = LineStream.STDERR, "", report
            self._lines.add(stream, level, text)


def decoded(text: bytes) -> dict[str, Json]:
    """Return a request or an answer that was read. Raises: ValueError, RecursionError."""
    return dict(json.loads(text.decode("utf-8", "surrogatepass")))


def answer_call() -> None:
    """Make one call of a function in a process of its own: from the request on stdin to the answer on stdout.

    The output of the function goes to stderr.
    """
    answer = os.dup(1)
    os.dup2(2, 1)
    lines = RunLines(lambda: report())  # noqa: PLW0108  # it is defined below

    def report(*, is_last: bool = False) -> None:
        taken, left_out = lines.take(is_last=is_last)
        taken += [(0, LineStream.STDERR, "", f"{left_out} lines are left out")] if left_out else []
        text = "".join(f"{_MARK}{json.dumps(line[1:])}\n" for line in taken)
        data = text.encode("ascii")
        while data:
            data = data[os.write(2, data) :]

    install()
    install_handler()
    install_temporary_folder()
    with gathering(lines):
        request = decoded(sys.stdin.buffer.read())
        files = _ChildFiles(Path(str(request["artifacts"])))
        output, error = _outcome(request, files)
    report(is_last=True)
    with os.fdopen(answer, "wb") as file:
        file.write(encoded({"output": output, "error": error and error.as_json(), "handed_on": files.handed_on}))


@dataclass(slots=True)
class _ChildFiles:
    """Implements ``RunFiles`` in such a process; the worker stores what is handed on."""

    folder: Path
    """With the artifacts that the inputs name."""
    handed_on: list[tuple[str, str, str]] = field(default_factory=list)
    """Path, title and digest of each file."""

    def keep(self, path: Path, title: str) -> JsonObject:
        data = path.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        self.handed_on.append((str(path.absolute()), title, digest))
        return {"artifact": digest, "name": path.name, "size": len(data), "sha256": digest}

    def read(self, digest: str) -> bytes:
        try:
            return (self.folder / digest).read_bytes()
        except OSError:
            words = "; a function in a process of its own opens the artifacts that its inputs name"
            raise NotFoundError("artifact", digest, words) from None


def _outcome(request: dict[str, Any], files: _ChildFiles) -> tuple[Json, StepError | None]:
    try:
        for module in dict.fromkeys(request["modules"]):
            import_own(module, "SOONG_FUNCTIONS", request["folders"])
        function = resolve(request["function"])
    except SoongError as error:
        return None, StepError("invalid_input", str(error))
    who = request["identity"]
    origin = Origin(who.pop("dispatched_by"), who.pop("is_foreign"))
    identity = RunIdentity(**{**who, "role": Role(who["role"])}, origin=origin)
    folder, project = Path(request["folder"]), Path(request["project"])
    context = StepContext(identity, request["attempt"], request["effect_key"], folder, project, files)
    return asyncio.run(outcome_of(function, request["inputs"], context, StopSignal()))
