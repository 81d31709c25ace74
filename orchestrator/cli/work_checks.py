"""The checks of ``soong doctor`` on what runs: workers that die or no longer beat, steps beyond their time."""

import asyncio
from collections.abc import Sequence
from typing import Final

from soong.orchestrator.cli.finding import Finding, Level
from soong.orchestrator.client.program import program
from soong.orchestrator.embedded.health import ChildHealth, ServiceHealth, health_of
from soong.orchestrator.embedded.service_file import read_record
from soong.shared.core import timing
from soong.shared.core.clock import SystemClock
from soong.shared.core.errors import NotFoundError, SoongError
from soong.shared.core.settings import Settings
from soong.shared.core.value import Value
from soong.shared.engine.sessions.session import ProcessState, Worker
from soong.shared.engine.tasks.metrics import WorkerLoad
from soong.shared.permissions.request import Question
from soong.shared.storage.store import Store

NAMED: Final = 3
_MOST_QUESTIONS: Final = 10_000


async def check_workers(settings: Settings) -> Finding:
    """Workers that the service starts again and again, and workers whose heartbeat has stopped."""
    record = None if settings.database_url else read_record(settings.home)
    health = None
    if record is not None and record.is_process_alive:
        health = await health_of(record.control)
    if health is not None and (finding := _dying(settings, health)) is not None:
        return finding
    if not _has_rows(settings):
        return Finding("workers", Level.OK, "no service has run in this home")
    try:
        silent, live = await _silent_workers(settings)
    except SoongError:
        return Finding("workers", Level.OK, "not looked at: the database does not answer")
    if silent:
        says = f"no heartbeat within {_patience_s(settings):g} s: {_named(silent)}"
        hint = "its process is stopped, or a step keeps its interpreter busy; end it by its pid: its steps run again"
        return Finding("workers", Level.WARN, says, hint)
    return Finding("workers", Level.OK, f"{live} live; none has ended by itself" if health else f"{live} live")


async def check_steps(settings: Settings) -> Finding:
    """Steps that still run although their time limit has passed."""
    if not _has_rows(settings):
        return Finding("steps", Level.OK, "nothing has run in this home")
    try:
        held, late, unended = await _late_steps(settings)
    except SoongError:
        return Finding("steps", Level.OK, "not looked at: the database does not answer")
    if unended:
        hint = (
            f"a thread cannot be ended; its slot is free when it ends, or after `{program()} down`; "
            "give its step `isolation: process`"
        )
        return Finding("steps", Level.WARN, _named([one.words for one in unended]), hint)
    if late:
        ids = sorted({step.holding.step_key.partition("/")[0] for step in late})
        hint = (
            f"its function or tool does not end when it is cancelled: {program()} tasks cancel {ids[0]}; "
            f"{program()} workers list names the worker, whose process can be ended"
        )
        return Finding("steps", Level.WARN, _named([step.words for step in late]), hint)
    return Finding("steps", Level.OK, f"{held} run, none beyond its time limit")


def _dying(settings: Settings, health: ServiceHealth) -> Finding | None:
    """Return what is wrong with the workers that an embedded service keeps, if anything is."""
    ended = [child for child in health.workers if child.ends]
    if not ended and not health.is_hopeless:
        return None
    log = health.log or str(settings.home / "logs")
    says = _named([child.words for child in ended])
    if health.is_hopeless:
        problem = health.problem or says or "each has failed again and again"
        return Finding("workers", Level.FAIL, f"no worker starts: {problem}", f"correct that, or read why in {log}")
    level = Level.FAIL if any(child.is_dying for child in ended) else Level.WARN
    return Finding("workers", level, says, f"{_hint(ended)}; the log is {log}")


def _hint(ended: Sequence[ChildHealth]) -> str:
    if any("SIGKILL" in child.last_exit for child in ended):
        return "give the machine more memory, or the service fewer slots (SOONG_WORKERS, SOONG_SLOTS)"
    return f"a step's function or library ends the process: {program()} tasks list shows which task lost its worker"


async def _silent_workers(settings: Settings) -> tuple[list[str], int]:
    """Watch those that hold steps; return the ones whose beat has not grown, and how many workers live."""
    from soong.orchestrator.client.bootstrap import opened_rows

    async with opened_rows(settings) as store:
        live = await _live(store)
        silent = {worker.id: worker for worker in live if worker.busy}
        deadline_s = asyncio.get_running_loop().time() + _patience_s(settings)
        while silent and asyncio.get_running_loop().time() < deadline_s:
            await asyncio.sleep(timing.LEAST_PAUSE_S)
            now = {worker.id: worker.beat for worker in await _live(store)}
            silent = {key: one for key, one in silent.items() if now.get(key) == one.beat}
        return [f"{one.node_name} (pid {one.pid} on {one.host}, {one.busy} steps)" for one in silent.values()], len(
            live
        )


async def _live(store: Store) -> list[Worker]:
    return [worker for worker in await store.sessions.workers() if worker.state is not ProcessState.GONE]


class _LateStep(Value):
    """A step that is held beyond its time limit."""

    holding: WorkerLoad
    ran_s: float
    limit_s: float

    @property
    def words(self) -> str:
        return f"{self.holding.step_key} runs for {self.ran_s:.0f} s; its limit is {self.limit_s:g} s"


async def _late_steps(settings: Settings) -> tuple[int, list[_LateStep], list[WorkerLoad]]:
    """Return how many steps are held, those beyond their limit, and those that were asked to end.

    The time of waiting for answers does not count.
    """
    from soong.orchestrator.client.bootstrap import opened_metrics, opened_rows

    async with opened_rows(settings) as store, opened_metrics(settings) as metrics:
        holdings, now_us = await metrics.holdings(), SystemClock().now_us()
        late = [one for one in [await _late(store, holding, now_us) for holding in holdings] if one is not None]
        return len(holdings), late, [one for one in holdings if one.asked_to_end]


async def _late(store: Store, holding: WorkerLoad, now_us: int) -> _LateStep | None:
    try:
        step = await store.tasks.step(holding.step_key)
    except NotFoundError:
        return None  # removed since
    limit_s = step.spec.timeout_s
    if limit_s is None or holding.started_us is None:
        return None
    ran_s = (now_us - holding.started_us) / 1_000_000
    if ran_s <= limit_s + timing.RELEASE_LIMIT_S:
        return None
    ran_s -= await _asking_s(store, holding, now_us)
    return _LateStep(holding, ran_s, limit_s) if ran_s > limit_s + timing.RELEASE_LIMIT_S else None


async def _asking_s(store: Store, holding: WorkerLoad, now_us: int) -> float:
    """Return for how long the run has waited for people."""
    asked = await store.consent.questions(session_id=holding.session_id, include_closed=True, limit=_MOST_QUESTIONS)
    own = [one for one in asked if one.request.identity.run_id == holding.run_id]
    return sum(_end_us(one, now_us) - one.request.created_us for one in own) / 1_000_000


def _end_us(question: Question, now_us: int) -> int:
    if question.decision is not None:
        return question.decision.decided_us
    return now_us if question.answer is None else question.answer.answered_us


def _patience_s(settings: Settings) -> float:
    return 2 * settings.beat_s


def _has_rows(settings: Settings) -> bool:
    return not settings.is_embedded or (settings.home / "soong.db").exists()


def _named(words: Sequence[str]) -> str:
    """Return some of them and how many there are besides."""
    more = f" (and {len(words) - NAMED} more)" if len(words) > NAMED else ""
    return "; ".join(words[:NAMED]) + more
