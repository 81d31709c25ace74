"""Calls of step functions in a process each (``isolation: process``), which ends at once with all its descendants.

Owns the request and the answer, JSON both. The process is a command of ours as those of tools are: it has a subreaper
and their environment, and :mod:`soong.worker.isolated_child` is its program.
"""

import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec

from soong.shared.core.jsontext import Json, JsonObject, dump
from soong.shared.core.value import Value
from soong.shared.engine.tasks.functions import StepContext
from soong.shared.engine.tasks.step import StepError
from soong.shared.sandbox.command import ChildCommand, CommandRunner, Finished, Stream
from soong.shared.sandbox.process import ProcessRunner
from soong.shared.sandbox.programs import child_environment

MAX_OUTPUT_BYTES: Final = 16 * 1024 * 1024
"""As JSON: every step that depends on this one gets all of it."""

_START: Final = "import sys; sys.path[:] = sys.argv[1:]; from soong.worker.isolated_child import main; main()"
_NO_LIMIT: Final = timedelta(days=3660)
"""The step's own limit cancels the call."""


class IsolatedCalls(Value):
    """Makes such calls. ``modules`` register the functions, ``folders`` is where they are looked for."""

    modules: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    """Names of what the process gets of our environment besides PATH, HOME and TMPDIR."""
    secret_variables: tuple[str, ...] = ()
    runner: CommandRunner = msgspec.field(default_factory=ProcessRunner)

    async def call(self, name: str, inputs: JsonObject, context: StepContext) -> tuple[Json, StepError | None]:
        """Call a function; return its output, or why there is none. A cancelled call ends its process first.

        Raises: OSError: the process cannot be started.
        """
        request = {
            "modules": self.modules,
            "folders": self.folders,
            "function": name,
            "inputs": inputs,
            "identity": context.identity.as_json(),
            "attempt": context.attempt,
            "effect_key": context.effect_key,
            "run_dir": str(context.run_dir),
        }
        cwd = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            command = ChildCommand(
                argv=(sys.executable, "-I", "-c", _START, *sys.path),
                cwd=cwd,
                cwd_path=Path.cwd(),
                env=child_environment(self.variables, self.secret_variables),
                timeout=_NO_LIMIT,
                max_stdout_bytes=MAX_OUTPUT_BYTES + 64 * 1024,
                stdin=encoded(request),
                heard=_print,
                overflow="discard",
            )
            return _answer(await self.runner.run(command))
        finally:
            os.close(cwd)


def encoded(value: object) -> bytes:
    """Return a request or an answer as it is written."""
    return dump(value).encode("utf-8", "surrogatepass")


def decoded(text: bytes) -> dict[str, Json]:
    """Return a request or an answer that was read. Raises: ValueError, RecursionError."""
    return dict(json.loads(text.decode("utf-8", "surrogatepass")))


def _answer(finished: Finished) -> tuple[Json, StepError | None]:
    try:
        answer = decoded(finished.stdout)
        error = answer["error"]
        return answer["output"], StepError(**error) if isinstance(error, dict) else None
    except (ValueError, TypeError, KeyError, RecursionError):
        words = f"its process ended before its result: {_end_of(finished.code)}"
        last = finished.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        return None, StepError("execution_failed", f"{words}; {last}" if last else words, retryable=True)


def _end_of(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def _print(stream: Stream, data: bytes) -> None:
    """Print what the function prints to the worker's log, as for a function on a thread."""
    if stream == "stderr":
        sys.stderr.write(data.decode("utf-8", "replace"))
