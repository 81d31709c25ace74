"""Runs seeds: one story each, with its own ids and its own logs, and a report of what was seen."""

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Final

import structlog
from structlog.typing import EventDict, WrappedLogger

from soong.shared.core.identity import ids_from
from soong.shared.storage.sql.store import SqlStore
from tests.model.memory import MemoryStore
from tests.simulation.borders import Fault
from tests.simulation.deployment import AuditedStore, Deployment

TAIL: Final = 60
"""Lines of its story that a failing seed shows."""

FAULTS_OF_OURS: Final = frozenset({
    "reconcile_failed", "interrupts_failed", "slot_failed", "batch_failed", "beat_failed", "end_unwritable",
    "loop_ended", "approvals_poll_failed",
    "question_failed", "inbox_failed", "parking_failed", "forged_decision", "forged_request",
})  # fmt: skip
"""Logged where a broad ``except`` caught what should never be raised."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one seed has shown. ``broken`` is empty when every promise was kept."""

    seed: int
    broken: str
    digest: str
    tail: tuple[str, ...]
    struck: Counter[Fault]
    borders: Counter[tuple[str, Fault]]
    counts: Counter[str]
    longest_wait: int
    again: str
    """The command that plays it again."""

    def __str__(self) -> str:
        story = "\n".join(self.tail)
        return f"seed {self.seed}: {self.broken}\n{story}\nagain: {self.again}"


def simulate(seed: int, make_store: Callable[[], AuditedStore] = MemoryStore, *, is_whole: bool = False) -> Report:
    """Play one seed's story to its end. The same seed plays the same story, in this process or any other.

    ``is_whole`` keeps all of the story, and its digest; otherwise only a broken one's last lines are kept.
    """
    numbers = count(1)
    with ids_from(lambda: f"{next(numbers):06}"):
        deployment = Deployment(seed, make_store())
        with _watched_logs(deployment), _no_collection():
            deployment.run()
    return _report(deployment, is_whole=is_whole)


def _report(deployment: Deployment, *, is_whole: bool) -> Report:
    auditor, rows = deployment.auditor, deployment.rows()
    return Report(
        deployment.seed,
        deployment.broken or "",
        deployment.trace.digest() if is_whole else "",
        tuple(deployment.trace.tail(None if is_whole else TAIL)) if is_whole or deployment.broken else (),
        deployment.dice.struck,
        deployment.borders,
        Counter({
            "tasks": len(rows.tasks),
            "steps": len(rows.steps),
            "claims": auditor.claims.claims,
            "additional claims": auditor.claims.additional_claims,
            "commits": auditor.commits,
            "parked": auditor.parked,
            "decisions used": len(auditor.used),
            "stale writes refused": auditor.stale_refused,
            "acts without a lease": deployment.stale_acts,
            "virtual seconds": int(deployment.clock.monotonic_s()),
        }),
        auditor.claims.longest_wait,
        f"make simulate SEED={deployment.seed}{' STORE=sqlite' if isinstance(deployment.store, SqlStore) else ''}",
    )  # fmt: skip


@contextmanager
def _watched_logs(deployment: Deployment) -> Iterator[None]:
    """Put warnings into the story, and take what a broad ``except`` caught for what it is: a defect."""

    def watch(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        name = str(event.pop("event"))
        deployment.trace.log(name, event)
        if name in FAULTS_OF_OURS:
            deployment.fail(f"a fault of our own was caught: {name} {event}")
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.processors.format_exc_info, watch],
        wrapper_class=structlog.make_filtering_bound_logger("warning"),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Nothing is collected in the middle of a story: what a killed process had must not come to an end in it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
