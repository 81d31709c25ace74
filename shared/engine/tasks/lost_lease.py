"""The report of a step that lost its lease: which worker held it, how that ended, and when it is enough (DAG-05)."""

from typing import Final

from soong.shared.engine.tasks.step import StepError

UNKNOWN: Final = "unknown_after_crash"
"""How a step fails whose function ended with its worker: its effects are unknown, and nothing repeats it."""

WORKER_GONE: Final = "its worker is gone"
ABANDONED: Final = "its worker is gone and held it still"
MAX_CHARS: Final = 300
"""A worker chooses its own name."""


def lost_to(node_name: str, how: str) -> str:
    """Return the sentence that is kept with a lost lease, such as ``worker-2@host died (SIGKILL, killed)``."""
    return f"{node_name} {how}"[:MAX_CHARS]


def poisoned(times: int, because: str) -> StepError:
    """Return the error of a step that has lost its lease too often."""
    return StepError("poisoned", f"it lost its lease {times} times; the last time {because or WORKER_GONE}")


def ended_with_worker(because: str) -> StepError:
    """Return the error of a step whose time was over and whose function ended with its worker."""
    return StepError(UNKNOWN, f"its time was over, and its function ended when {because or WORKER_GONE}")
