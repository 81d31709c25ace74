"""Hands the plan of ``soong run`` to the running service of the home, which does what a client would do.

It takes the command line and the standard library: a client imports SQLAlchemy, Redis, the plan reader and the registry
of tools for nearly half a second, and a short plan has ended by then. Whatever the service does not take, or does not
end at once, is left to a client (:mod:`soong.orchestrator.cli.plan_run`): errors, questions, Ctrl-C and the end of a
service are its matter alone. It continues with the same ids, so nothing is written twice.
"""

import importlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from soong.orchestrator.cli.console import emit, is_terminal, output, say, visible
from soong.orchestrator.client.program import program
from soong.orchestrator.embedded.plan_request import (
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    NOT_SERVED,
    PlanRequest,
    environment_digest,
)
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError, UsageError
from soong.shared.core.ids import new_id
from soong.shared.core.value import Value
from soong.shared.core.worker_range import WorkerRange
from soong.shared.engine.sessions.session import ApprovalMode

EXIT_INTERRUPTED: Final = 130
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


@dataclass(slots=True)
class EarlySignals:
    """Counts the signals that come before a client listens to them itself: each means what Ctrl-C means to it."""

    count: int = 0
    _former: dict[int, Any] = field(default_factory=dict)

    def listen(self) -> None:
        self._former = {number: signal.signal(number, self._hear) for number in _SIGNALS}

    def leave(self) -> None:
        """Let signals do again what they did: nothing has been written that would have to be paused."""
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _hear(self, _number: int, _frame: object) -> None:
        self.count += 1


class Handed(Value):
    """What became of a plan. With an ``exit_code`` everything is done and reported; else a client continues."""

    session_id: str
    task_id: str
    exit_code: int | None = None
    is_written: bool = False
    """The service has written the task, and its beginning is on the terminal."""
    signals: EarlySignals = msgspec.field(default_factory=EarlySignals)


def hand_over(arguments: RunArguments) -> Handed:
    """Have the service of the home run a plan, where there is one that takes it.

    Raises:
        UsageError: an input has no name, or is given twice.
        UnavailableError: the service was stopped meanwhile; the task is in its rows.
    """
    own = Handed(new_id("sess"), new_id("task"))
    line = _request(arguments, own)
    if line is None:
        return own
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.settimeout(timing.COMMAND_LIMIT_S)
            connection.connect(_control_of(service_home()))
        except OSError:
            return own  # there is no service, or it does not answer: a client finds out which
        own.signals.listen()
        exchange = _ControlExchange(connection, own.signals)
        with exchange.waking():
            return _handed(exchange, line, arguments, own)


def _handed(exchange: "_ControlExchange", line: bytes, arguments: RunArguments, own: Handed) -> Handed:
    exchange.send(line)
    written = exchange.reply(timing.COMMAND_LIMIT_S, despite_signals=True)
    if written is None or "ok" not in written:
        return own  # it may be written or not: a client writes it again under the same ids
    if written["ok"] is not True:
        own.signals.leave()
        if not own.signals.count:
            return own
        say("\ninterrupted before anything was started")
        return replace(own, exit_code=EXIT_INTERRUPTED)
    if arguments.is_detached:
        tell_detached(own.task_id, is_json=arguments.is_json)
        return replace(own, exit_code=0)
    say(f"task {own.task_id}: {visible(str(written.get('title', '')))}")
    say_who_answers(_mode(arguments))
    ended = exchange.reply(timing.SETTLE_S)
    if ended is None and not own.signals.count:
        _import_client()
        ended = exchange.reply(0)
    if ended is not None and ended.get("event") == "stopping":
        raise UnavailableError("the service was stopped; the task continues when a service runs again")
    if ended is None or "exit_code" not in ended:
        return replace(own, is_written=True)
    return replace(own, exit_code=_told(ended, arguments))


def _import_client() -> None:
    """Import what follows a task that takes longer, while it runs."""
    for name in ("soong.orchestrator.cli.plan_run", "soong.orchestrator.client.bootstrap"):
        importlib.import_module(name)


def _told(ended: Mapping[str, Any], arguments: RunArguments) -> int:
    """Tell the end of the task as a client does; return the exit code."""
    if arguments.is_json or not os.isatty(1):  # a live picture of a terminal leaves no lines
        for sentence in ended["lines"]:
            say(sentence)
    if arguments.is_json:
        emit(ended["result"])
    else:
        output(ended["result"])
    return int(ended["exit_code"])


@dataclass(slots=True)
class _ControlExchange:
    """One request and its replies. A signal ends a wait unless it is said to continue."""

    connection: socket.socket
    signals: EarlySignals
    _woken: socket.socket | None = None
    _read: bytes = b""
    _is_ended: bool = False

    @contextmanager
    def waking(self) -> Iterator[None]:
        """Have each signal wake a wait of this exchange."""
        waker, woken = socket.socketpair()
        with waker, woken:
            waker.setblocking(False)
            woken.setblocking(False)
            former = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
            self._woken = woken
            try:
                yield
            finally:
                self._woken = None
                signal.set_wakeup_fd(former)

    def send(self, line: bytes) -> None:
        """Send the request; a service that has gone meanwhile is found by the reply that does not come."""
        try:
            self.connection.sendall(line)
        except OSError:
            self._is_ended = True

    def reply(self, limit_s: float, *, despite_signals: bool = False) -> Mapping[str, Any] | None:
        """Return the next reply; None when there is none in time, at a signal, and when the service has ended."""
        deadline_s = time.monotonic() + limit_s
        waited_for = [one for one in (self.connection, self._woken) if one is not None]
        while b"\n" not in self._read:
            if self._is_ended or (self.signals.count and not despite_signals):
                return None
            ready, _, _ = select.select(waited_for, [], [], max(0.0, deadline_s - time.monotonic()))
            if not ready:
                return None
            if self.connection in ready:
                self._take()
            if self._woken in ready:
                self._woken.recv(64)
        line, _, self._read = self._read.partition(b"\n")
        try:
            value = json.loads(line)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    def _take(self) -> None:
        try:
            piece = self.connection.recv(2**16)
        except OSError:
            piece = b""
        self._read += piece
        self._is_ended = not piece or len(self._read) > MAX_REPLY_BYTES


def _request(given: RunArguments, own: Handed) -> bytes | None:
    """Return what is sent to the service; None where only a client can do what is asked for."""
    is_own = given.is_previewed or given.allowed_steps or given.workers or given.slots or str(given.plan) == "-"
    is_unasked = given.approvals is ApprovalMode.PROMPT and _mode(given) is not ApprovalMode.PROMPT
    if is_own or is_unasked or any(os.environ.get(name) for name in NOT_SERVED):
        return None
    inputs = read_inputs(given.inputs)
    try:
        with given.plan.open(encoding="utf-8-sig") as file:
            text = file.read(MAX_REQUEST_BYTES + 1)
        here = os.getcwd()  # noqa: PTH109  # as Path.cwd, and text
        request = PlanRequest(
            plan=text,
            source=str(given.plan),
            inputs=inputs,
            project=os.path.realpath(given.project.expanduser()),
            cwd=here,
            approval_mode=str(_mode(given)),
            model=given.model if given.model is not None else os.environ.get("SOONG_MODEL"),
            allow=tuple(given.allow),
            budget=tuple(given.budget),
            settings=tuple(given.settings),
            max_concurrent=given.max_concurrent or 0,
            session_id=own.session_id,
            task_id=own.task_id,
            is_json=given.is_json,
            is_detached=given.is_detached,
            program=program(),
            home=str(service_home()),
            environment=environment_digest(os.environ),
        )
    except (OSError, ValueError, RuntimeError):
        return None  # a client finds it too, and says what is wrong
    line = request.line()
    return line if len(line) <= MAX_REQUEST_BYTES else None


def _mode(given: RunArguments) -> ApprovalMode:
    """Return who answers. The service refuses a person's mode to what a run has started; the client then decides."""
    if given.approvals is not None and given.approvals is not ApprovalMode.PROMPT:
        return given.approvals
    return ApprovalMode.PROMPT if is_terminal() and not given.is_detached else ApprovalMode.DENY


def service_home() -> Path:
    """Return the home that the environment names, as the settings have it."""
    return Path(os.environ.get("SOONG_AGENT_HOME", "~/.soong")).expanduser().absolute()


def _control_of(home: Path) -> str:
    """Return the control socket that the home's service has recorded. Raises: OSError."""
    try:
        record = json.loads((home / "service.json").read_text(encoding="utf-8"))
        return str(record["control"])
    except (ValueError, KeyError, TypeError) as error:
        raise OSError("no record of a service that can be read") from error
