"""The arguments of ``soong run``, and what it tells however the plan is run. Imports nothing that a client needs."""

from collections.abc import Sequence
from pathlib import Path

from soong.orchestrator.cli.console import emit, output, say
from soong.orchestrator.client.program import program
from soong.shared.core.errors import UsageError
from soong.shared.core.value import Value
from soong.shared.core.worker_range import WorkerRange
from soong.shared.engine.sessions.session import ApprovalMode


class RunArguments(Value):
    """What the command line of `soong run` says. ``plan`` is a file, or ``-``."""

    plan: Path
    project: Path
    inputs: Sequence[str]
    model: str | None
    settings: Sequence[str]
    allow: Sequence[str]
    is_previewed: bool
    allowed_steps: Sequence[str]
    approvals: ApprovalMode | None
    is_detached: bool
    budget: Sequence[str]
    is_json: bool
    workers: WorkerRange | None
    slots: int | None
    max_concurrent: int | None


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
