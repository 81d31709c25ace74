"""How the steps of a task's documents are shown on a terminal: their symbols, counts and times."""

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

from soong.orchestrator.cli.console import one_line
from soong.orchestrator.client.program import program

Document: TypeAlias = Mapping[str, Any]
SYMBOLS: Final[Mapping[str, str]] = {
    "pending": "·",
    "ready": "○",
    "running": "▸",
    "blocked": "?",
    "expanding": "…",
    "waiting": "…",
    "completed": "✓",
    "failed": "✗",
    "cancelled": "⊘",
    "skipped": "-",
}
TOLD: Final = frozenset({"running", "blocked", "waiting", "completed", "failed", "cancelled", "skipped"})
ENDED: Final = frozenset({"completed", "failed", "cancelled", "skipped"})
_GOES_ON: Final = frozenset({"ready", "running", "blocked", "expanding"})
"""What an assigned step is from the moment when its run may begin; a map step that waits for its items is not."""
WAITS_FOR_CONSENT: Final = "waits for consent, without a slot"
"""The words for a step whose run is parked."""


def waiting_to_be_pulled(task: Document, steps: Sequence[Document]) -> int:
    """Return how many ready steps wait to be pulled while nothing of the task runs that could take them."""
    if task["status"] in ENDED or any(one["status"] in _GOES_ON and one["claim"] == "assigned" for one in steps):
        return 0
    return sum(one["status"] == "ready" and one["claim"] == "pull" for one in steps)


def pull_text(number: int, task_id: str) -> str:
    """Say what to do about so many steps that nobody is there to pull; empty for none."""
    words = "1 step waits" if number == 1 else f"{number} steps wait"
    return f"{words} for a pull worker: {program()} tasks add-workers {task_id}" if number else ""


def still_running(steps: Sequence[Document]) -> str:
    """Say how many of the steps a worker holds; empty when none is held."""
    left = [step for step in steps if step["status"] == "running"]
    noun = "function" if {step["kind"] for step in left} == {"python"} else "step"
    return f"{len(left)} {noun}{'s' if len(left) > 1 else ''} still running" if left else ""


def seconds_of(step: Document) -> float | None:
    """Return how long a step has run or ran."""
    return seconds_between(step["started"], step["ended"])


def seconds_between(begin: str | None, end: str | None) -> float | None:
    """Return the seconds between two instants; without an end until now."""
    if begin is None:
        return None
    until_s = time.time() if end is None else datetime.fromisoformat(end).timestamp()
    return max(0.0, until_s - datetime.fromisoformat(begin).timestamp())


def time_text(seconds: float | None) -> str:
    """Return a duration for people."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def counted(status: str) -> str:
    """Return what steps of a status are called where they are counted."""
    return "waiting for consent" if status == "blocked" else str(status)


def status_text(step: Document) -> str:
    """Return a step's status with its outcome or what it waits for, where that says more."""
    if step["status"] == "blocked":
        return "blocked (waits for consent)"
    return f"{step['status']} (partial)" if step["outcome"] == "partial" else str(step["status"])


def step_line(step: Document) -> str:
    """Return a step as one line that tells its last change."""
    return f"{SYMBOLS[step['status']]} {one_line(step['id'], 60)} {step['status']}{''.join(_facts_of(step))}"


def _facts_of(step: Document) -> Iterator[str]:
    if step["outcome"] == "partial":
        yield " (partial)"
    if step["status"] == "blocked":
        yield f": {WAITS_FOR_CONSENT}"
    if step["status"] in ENDED and step["started"] is not None:
        yield f" in {time_text(seconds_of(step))}"
    if step["attempt"] > 1:
        yield f", attempt {step['attempt']}"
    if step["error"] is not None and step["status"] == "failed":
        yield f": {one_line(step['error']['message'], 0)}"
