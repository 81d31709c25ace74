"""Hands the plan of ``soong run`` to the running service of the home, over its socket.

It takes the command line and the standard library: a client of its own imports SQLAlchemy, Redis, the plan reader and
the registry of tools for nearly half a second, and a short plan has ended by then. Whatever the service does not take,
or does not end at once, is left to a client (:mod:`soong.orchestrator.cli.plan_run`): errors, questions, Ctrl-C and the
end of a service are its matter alone. It submits with the same key, so nothing is written twice.
"""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from soong.orchestrator.cli.api import service_home
from soong.orchestrator.cli.console import emit, is_terminal, output, say, visible
from soong.orchestrator.cli.step_words import TOLD, step_line
from soong.orchestrator.cli.summary import text_of
from soong.orchestrator.client.home_api import Document, HomeApi
from soong.orchestrator.client.program import program
from soong.shared.core import timing
from soong.shared.core.errors import SoongError, UsageError
from soong.shared.core.ids import new_id
from soong.shared.core.value import Value
from soong.shared.core.worker_range import WorkerRange
from soong.shared.engine.sessions.session import ApprovalMode

EXIT_INTERRUPTED: Final = 130
NOT_SERVED: Final = ("SOONG_DATABASE_URL", "SOONG_TOOLS", "SOONG_IMPORT_PATH", "TRACEPARENT")
"""Variables whose meaning is that of the command alone: a deployment, its own modules, its own trace."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class RunArguments(Value):
    """What the command line of `soong run` says. ``plan`` is a file, or ``-``."""

    plan: Path
    project: Path
    inputs: Sequence[str]
    model: str | None
    settings: Sequence[str]
    allow: Sequence[str]
    budget: Sequence[str]
    is_json: bool
    is_previewed: bool = False
    allowed_steps: Sequence[str] = ()
    approvals: ApprovalMode | None = None
    is_detached: bool = False
    workers: WorkerRange | None = None
    slots: int | None = None
    max_concurrent: int | None = None


def read_inputs(given: Sequence[str]) -> dict[str, str]:
    """Read ``name=value`` words. Raises: UsageError."""
    inputs: dict[str, str] = {}
    for word in given:
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise UsageError(f"--input {word!r} has no name or no value; write --input name=value")
        if name in inputs:
            raise UsageError(f"--input {name!r} is given twice; give it once")
        inputs[name] = value
    return inputs


def say_who_answers(mode: ApprovalMode) -> None:
    if mode is ApprovalMode.DENY:
        say("  nobody is asked: a call that no --allow rule covers is denied")
    elif mode is ApprovalMode.INBOX:
        say(f"  questions wait for an answer: {program()} approvals watch")


def tell_detached(task_id: str, *, is_json: bool) -> None:
    if is_json:
        emit({"id": task_id, "status": "running", "exit_code": 0})
        return
    output(task_id)
    say(f"follow it: {program()} resume {task_id}        look at it: {program()} tasks show {task_id}")


class _SignalError(Exception):
    """A signal came while the end of a task was waited for."""


@dataclass(slots=True)
class EarlySignals:
    """Counts the signals that come before a client listens to them itself: each means what Ctrl-C means to it."""

    count: int = 0
    is_waiting: bool = False
    """Whether a signal ends what is waited for."""
    _former: dict[int, Any] = field(default_factory=dict)

    def listen(self) -> None:
        self._former = {number: signal.signal(number, self._hear) for number in _SIGNALS}

    def leave(self) -> None:
        """Let signals do again what they did: nothing has been written that would have to be paused."""
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _hear(self, _number: int, _frame: object) -> None:
        self.count += 1
        if self.is_waiting:
            raise _SignalError


class Handed(Value):
    """What became of a plan. With an ``exit_code`` everything is done and reported; else a client continues.

    ``key`` names the submission ``body``: written again with it, it is the same session and task.
    """

    key: str
    body: Document | None = None
    """What was sent to the service."""
    task_id: str = ""
    """The service has written this task, and its beginning is on the terminal."""
    exit_code: int | None = None
    signals: EarlySignals = msgspec.field(default_factory=EarlySignals)


def hand_over(arguments: RunArguments) -> Handed:
    """Have the service of the home run a plan, where there is one that takes it.

    Raises:
        UsageError: an input has no name, or is given twice.
    """
    body = _body(arguments)
    own = Handed(new_id("key"), body)
    if body is None:
        return own
    api = HomeApi(service_home())
    own.signals.listen()
    try:
        written = api.call("POST", "/v1/tasks", body=body, headers={"idempotency-key": own.key})
    except SoongError:  # a client finds it too, and says what is wrong
        own.signals.leave()
        if not own.signals.count:
            return own
        say("\ninterrupted before anything was started")
        return replace(own, exit_code=EXIT_INTERRUPTED)
    task = written["task"]
    if arguments.is_detached:
        tell_detached(task["id"], is_json=arguments.is_json)
        return replace(own, exit_code=0)
    say(f"task {task['id']}: {visible(task['title'])}")
    say_who_answers(_mode(arguments))
    return replace(own, task_id=task["id"], exit_code=_ended(api, task["id"], arguments, own.signals))


def _ended(api: HomeApi, task_id: str, arguments: RunArguments, signals: EarlySignals) -> int | None:
    """Tell the end of a task that ends soon; return its exit code. None: a client follows it."""
    path = f"/v1/tasks/{task_id}"
    try:
        signals.is_waiting = True
        if api.call("GET", f"{path}/progress", query={"wait": round(timing.SETTLE_S)})["status"] == "running":
            return None
        result = api.call("GET", f"{path}/result")
        session = f"/v1/sessions/{result['session']}"
        if result["status"] == "completed" and not api.call("GET", session)["is_closed"]:
            api.call("POST", f"{session}/close", body={})
    except (_SignalError, SoongError):
        return None
    finally:
        signals.is_waiting = False
        api.close()
    if arguments.is_json or not is_terminal():  # a live picture of a terminal leaves no lines
        for step in result["steps"]:
            if step["status"] in TOLD:
                say(f"  {step_line(step)}")
    emit(result) if arguments.is_json else output(text_of(result))
    return int(result["exit_code"])


def _body(given: RunArguments) -> Document | None:
    """Return what is sent to the service; None where only a client can do what is asked for."""
    is_own = given.is_previewed or given.allowed_steps or given.workers or given.slots or str(given.plan) == "-"
    is_unasked = given.approvals is ApprovalMode.PROMPT and _mode(given) is not ApprovalMode.PROMPT
    if is_own or is_unasked or given.settings or any(os.environ.get(name) for name in NOT_SERVED):
        return None
    inputs = read_inputs(given.inputs)
    try:
        return {
            "plan": given.plan.read_text(encoding="utf-8-sig"),
            "source": str(given.plan),
            "inputs": inputs,
            "project": os.path.realpath(given.project.expanduser()),
            "cwd": os.getcwd(),  # noqa: PTH109  # as Path.cwd, and text
            "approval_mode": str(_mode(given)),
            "model": given.model or "",
            "allow": list(given.allow),
            "budget": ",".join(given.budget),
            "max_concurrent": given.max_concurrent or 0,
        }
    except (OSError, ValueError, RuntimeError):
        return None  # a client finds it too, and says what is wrong


def _mode(given: RunArguments) -> ApprovalMode:
    """Return who answers. The service refuses a person's mode to what a run has started; the client then decides."""
    if given.approvals is not None and given.approvals is not ApprovalMode.PROMPT:
        return given.approvals
    return ApprovalMode.PROMPT if is_terminal() and not given.is_detached else ApprovalMode.DENY
