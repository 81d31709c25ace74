"""The port for claims: which worker holds which step, under which fence, within which concurrency limits.

Every adapter passes tests/contract. Each method is one transaction. A worker's methods name their ``worker_id`` and
carry fences. A worker inserts no step and no run: claiming is an update. Also the words for lost leases (DAG-05), and
for what keeps every worker from steps that wait.
"""

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from typing import Final, Protocol

from soong.shared.core.errors import UsageError
from soong.shared.core.value import Value
from soong.shared.engine.sessions.session import ProcessState, Worker
from soong.shared.engine.tasks.functions import suggestion
from soong.shared.engine.tasks.spec import StepKind, StepStatus
from soong.shared.engine.tasks.step import (
    LIMIT_KINDS,
    Advance,
    Backlog,
    BadWorker,
    Claim,
    ConcurrencyLimit,
    Interrupt,
    Lease,
    StepEnd,
    StepError,
)
from soong.shared.engine.wire.notifier import in_words

UNKNOWN: Final = "unknown_after_crash"
"""How a step fails whose function ended with its worker: its effects are unknown, and nothing repeats it."""

WORKER_GONE: Final = "its worker is gone"
ABANDONED: Final = "its worker is gone and held it still"
MAX_LOST_CHARS: Final = 300
"""A worker chooses its own name."""


class Refusal(StrEnum):
    """Why an additional claim is refused, for programs."""

    UNKNOWN = "unknown"
    NOT_FOR_AGENTS = "not_for_agents"
    NOT_READY = "not_ready"
    ENDED = "ended"
    HELD = "held"
    BEGUN = "begun"
    PAUSED = "paused"
    ONE_AT_A_TIME = "one_at_a_time"
    LIMIT = "limit"
    CONCURRENCY_LIMIT = "concurrency_limit"
    INCAPABLE = "incapable"
    STOPPING = "stopping"


class ClaimRefusal(Value):
    """A refusal: its reason, the problem, and a hint."""

    reason: Refusal
    problem: str
    hint: str


class ClaimStore(Protocol):
    async def set_concurrency_limits(self, concurrency_limits: Sequence[ConcurrencyLimit]) -> None:
        """Set limits by scope; a limit below 1 removes the concurrency limit. A paused scope stays so."""

    async def pause_scope(self, scope: str, *, is_paused: bool) -> None:
        """Let nothing of a scope of a concurrency limit start, or let it start again; what runs continues."""

    # -- a worker's side
    async def advance(
        self,
        worker_id: str,
        ends: Sequence[StepEnd],
        *,
        claim: int,
        pools: Sequence[str],
        capabilities: Sequence[str],
        live_workers: int,
        now_us: int,
    ) -> Advance:
        """Write the ends, unlock their dependents, and claim at most ``claim`` more steps: one transaction.

        An end counts only while its step is leased with that fence by that worker; otherwise its run id is in ``stale``
        and nothing of it is written. A completed end without a result node gets one with its output. The dependents'
        ``open_deps`` fall by the number of ended dependencies, rows locked in key order; a step at 0 becomes ready (a
        map: expanding). A map step whose last child ended completes here, with its dependents. A failed end leaves its
        dependents as they are: the owner settles it.

        The failure of a step whose cancellation was asked for is final at once: there is nothing left to settle.

        Claims: only ready steps of running tasks that are assigned, not pulled, of ``pools``, whose ``needs`` are
        within ``capabilities``; fair among sessions (least recently claimed first, one step each in turn, also within
        one batch), then parked ones, then by priority (higher first), then oldest; never beyond a concurrency limit,
        counted in live leases while its row is locked; at most ceil(ready / live_workers) so that one worker does not
        take all, or as many as give it ceil((ready + held) / live_workers) where it holds fewer than others do.
        Claiming sets the fence to one more than ever issued for the step, makes it running in one go, starts the run
        and appends step_claimed and run_started (or run_resumed). A worker that is not live (draining, gone, unknown)
        claims nothing.

        A power cut that ends all processes of the store may take with it the ends of the last few milliseconds
        and all that was claimed since: those steps are ready again then.
        """

    async def claim_additional(
        self,
        worker_id: str,
        holder: Lease,
        step_id: str,
        *,
        pools: Sequence[str],
        capabilities: Sequence[str],
        now_us: int,
    ) -> Claim | ClaimRefusal:
        """Claim an additional ready step of the holder's task for the holder's run (DAG-03), whatever its claim mode.

        As ``advance`` claims: the worker must be live and fit, no concurrency limit may be passed, the session has had
        its turn, the fence is one more than ever issued. A concurrency limit counts agents at work: the step counts
        where its holder does not. The step's own run is started; its step_claimed event names the run that holds it
        (``claimed_by``). The lease is the worker's: it ends with an end, a hand-back or the worker like any other. A
        run holds one additional step at a time, and no more than its own step's limit in all.
        :class:`soong.shared.engine.tasks.claims.ClaimRefusal` is why a step is not given.
        Raises: LeaseLostError when the holder does not hold its own step (any more).
        """

    async def release(self, worker_id: str, held: Sequence[Lease], *, reason: str, now_us: int) -> frozenset[str]:
        """Return leased steps to ready without counting a lost lease; stale ones are returned as run ids.

        A step whose cancellation was asked for is cancelled instead.
        """

    async def park(
        self, worker_id: str, held: Lease, request_ids: Sequence[str], *, max_parked: int, now_us: int
    ) -> bool:
        """Give a held step up for as long as these questions of its run wait: step blocked, run parked, no lease.

        The fence stays, and nothing is written under it any more. The writer that closes one of the run's questions
        (``ConsentStore.decide``) makes the step ready again in the same transaction.

        Called again for a run that is parked under that fence, it returns True and changes nothing: the answer was
        lost.

        False, and nothing is changed, when one of the questions is closed already (the call continues at once), when
        ``max_parked`` runs of the session are parked, when the step was asked to stop or its task is paused (its
        interrupt comes), when the run holds an additional step, and when the lease is not held any more.
        """

    async def report_progress(
        self, worker_id: str, held: Lease, progress: str, *, error: StepError | None = None, now_us: int
    ) -> None:
        """Write how far a held step is. With ``error`` it has failed, and its function still runs: it stays leased.

        Such a step is never released to ready: it fails when its worker is gone. Raises: LeaseLostError.
        """

    async def interrupts(self, worker_id: str) -> Sequence[Interrupt]:
        """Return the held runs whose task was cancelled or paused, for a worker that missed the hint."""

    async def leases(self, worker_id: str) -> Sequence[Lease]:
        """Return all steps that the worker holds by the rows, also those that it has lost track of."""

    # -- for all owners of the deployment
    async def backlog(self, *, limit: int = 1000) -> Backlog:
        """Count the steps that could be claimed now, within the current concurrency limits.

        Whether a worker lives that is able to is not asked: ``waiting`` says whom they need.
        """

    async def expire_worker(
        self, worker_id: str, beat: int, *, max_lost_leases: int, now_us: int, because: str = WORKER_GONE
    ) -> frozenset[str] | None:
        """Declare a worker gone if its beat is still ``beat``, and free its leases; None when it has beaten or is gone.

        Its steps become ready with a higher fence and one more lost lease; those with ``max_lost_leases`` fail as
        ``poisoned``; those whose cancellation was asked for are cancelled. ``because`` is kept with each: the worker
        and its end (:func:`soong.shared.engine.tasks.claims.lost_to`). Returns the sessions concerned.
        """

    async def expire_bad_workers(self, *, max_lost_leases: int, now_us: int) -> Sequence[BadWorker]:
        """End workers whose rows no process of ours writes, and those that are gone and hold steps (OPS-12).

        Their leases end as those of :meth:`expire_worker` do. The audit log has each as ``malformed_row``.
        """


def lost_to(node_name: str, how: str) -> str:
    """Return the sentence that is kept with a lost lease, such as ``worker-2@host died (SIGKILL, killed)``."""
    return f"{node_name} {how}"[:MAX_LOST_CHARS]


def poisoned(times: int, because: str) -> StepError:
    """Return the error of a step that has lost its lease too often."""
    return StepError("poisoned", f"it lost its lease {times} times; the last time {because or WORKER_GONE}")


def ended_with_worker(because: str) -> StepError:
    """Return the error of a step whose time was over and whose function ended with its worker."""
    return StepError(UNKNOWN, f"its time was over, and its function ended when {because or WORKER_GONE}")


def is_able(worker: Worker, pool: str, needs: Iterable[str]) -> bool:
    """Say whether a worker may claim such steps."""
    return worker.state is ProcessState.LIVE and pool in worker.pools and set(needs) <= set(worker.capabilities)


def lacking(pool: str, needs: Sequence[str], workers: Sequence[Worker]) -> str:
    """Return what keeps every live worker from such steps, in words; nothing when one of them is able.

    The words name the needs that no worker meets; if each is met by some worker, all of them.
    """
    live = [worker for worker in workers if worker.state is ProcessState.LIVE]
    if any(is_able(worker, pool, needs) for worker in live):
        return ""
    if not live:
        return "no worker lives"
    serving = [worker for worker in live if pool in worker.pools]
    if not serving:
        return f"no capable worker: needs the pool {pool!r}"
    nobodys = [need for need in needs if not any(need in worker.capabilities for worker in serving)]
    return f"no capable worker: needs {', '.join(in_words(need) for need in nobodys or needs)}"


class ClaimingRun(Value):
    """The run that asks, by its rows: its own step, the additional one it holds, how many it has had, and its limit.

    ``is_stopping``: it, or its worker, was asked to stop.
    """

    step_id: str
    open_step_id: str = ""
    taken: int = 0
    most: int | None = None
    is_stopping: bool = False


class RequestedStep(Value):
    """The step that is asked for, by its rows."""

    step_id: str
    kind: StepKind
    status: StepStatus
    open_deps: int
    pool: str
    needs: tuple[str, ...]
    is_paused: bool
    is_pull_worker: bool
    has_begun: bool
    """Its own run has worked on it, and continues where it stopped."""


def refusal(
    claiming: ClaimingRun,
    asked: str,
    requested: RequestedStep | None,
    *,
    pools: Collection[str],
    capabilities: Collection[str],
) -> ClaimRefusal | None:
    """Return why the run may not have the step; None when only the concurrency limits are left to say no."""
    refused = _by_claiming_run(claiming)
    if refused is not None:
        return refused
    if requested is None:
        return unknown(asked)
    return _by_kind(requested) or _by_status(requested) or _by_place(requested, pools, capabilities)


def unknown(asked: str) -> ClaimRefusal:
    """Return the refusal of a step that the task does not have."""
    return ClaimRefusal(Refusal.UNKNOWN, f"your task has no step {asked[:80]!r}", _ANOTHER)


def limited(step_id: str, scope: str) -> ClaimRefusal:
    """Return the refusal of a step for which a concurrency limit has no room."""
    return ClaimRefusal(
        Refusal.CONCURRENCY_LIMIT,
        f"step {step_id!r} must wait: the concurrency limit of {scope} is reached",
        "take another step, or continue with yours and ask again later",
    )


def taken_meanwhile(step_id: str) -> ClaimRefusal:
    """Return the refusal of a step that somebody else claims at this very moment."""
    return ClaimRefusal(Refusal.HELD, f"step {step_id!r} has just been taken by another run", _ANOTHER)


def undoable(step_id: str, problem: str) -> ClaimRefusal:
    """Return the refusal of a step that has failed as soon as it was given out."""
    return ClaimRefusal(Refusal.ENDED, f"step {step_id!r} cannot be done and has failed: {problem}", _ANOTHER)


_ANOTHER: Final = "take another one; agent.task_query_steps lists the ready ones"


def _by_claiming_run(claiming: ClaimingRun) -> ClaimRefusal | None:
    if claiming.is_stopping:
        problem = "your run was asked to stop, so it gets no other step"
        return ClaimRefusal(Refusal.STOPPING, problem, "finish what you hold and give your answer")
    if claiming.open_step_id:
        return ClaimRefusal(
            Refusal.ONE_AT_A_TIME,
            f"you hold the step {claiming.open_step_id!r} already; one at a time",
            f"end it first: agent.task_update_step with step_id {claiming.open_step_id!r} and its output or failure",
        )
    if claiming.most is not None and claiming.taken >= claiming.most:
        problem = f"you have had {claiming.taken} steps, and {claiming.most} is your limit"
        return ClaimRefusal(Refusal.LIMIT, problem, "give your final answer now")
    return None


def _by_kind(requested: RequestedStep) -> ClaimRefusal | None:
    if requested.kind.traits.is_agent and not requested.is_pull_worker:
        return None
    what = (
        "another run that takes steps like you"
        if requested.is_pull_worker
        else f"a {requested.kind} step, not an agent's work"
    )
    return ClaimRefusal(Refusal.NOT_FOR_AGENTS, f"step {requested.step_id!r} is {what}", _ANOTHER)


def _by_status(requested: RequestedStep) -> ClaimRefusal | None:
    name, status = requested.step_id, requested.status
    if status.is_terminal:
        return ClaimRefusal(Refusal.ENDED, f"step {name!r} is {status} already", _ANOTHER)
    if requested.is_paused:
        return ClaimRefusal(Refusal.PAUSED, "the task is paused", "finish what you hold; nothing new starts")
    if status is StepStatus.READY:
        begun = f"step {name!r} has begun already, and its own run continues it"
        return ClaimRefusal(Refusal.BEGUN, begun, _ANOTHER) if requested.has_begun else None
    if status is StepStatus.PENDING:
        waits = f"waits for {requested.open_deps} other steps" if requested.open_deps else "waits for its next attempt"
        return ClaimRefusal(Refusal.NOT_READY, f"step {name!r} {waits}", _ANOTHER)
    return ClaimRefusal(Refusal.HELD, f"step {name!r} is held by another run", _ANOTHER)


def _by_place(requested: RequestedStep, pools: Collection[str], capabilities: Collection[str]) -> ClaimRefusal | None:
    missing = [] if requested.pool in pools else [f"pool {requested.pool}"]
    missing += [need for need in requested.needs if need not in capabilities]
    if not missing:
        return None
    problem = f"step {requested.step_id!r} needs {', '.join(missing)}, which your worker does not have"
    return ClaimRefusal(Refusal.INCAPABLE, problem, _ANOTHER)


SCOPE_HELP: Final = "pool:NAME, model:NAME, definition:NAME (python:FUNCTION or celery:TASK for a step) or session:ID."


def limit_scope(text: str) -> str:
    """Return the scope of a concurrency limit as it is stored. Raises: UsageError."""
    kind, separator, name = text.partition(":")
    if kind not in LIMIT_KINDS or not separator or not name.strip():
        hint = suggestion(kind, frozenset(LIMIT_KINDS)) if kind not in LIMIT_KINDS else f"name one: {kind}:NAME"
        raise UsageError(f"{text!r} is not a scope of a concurrency limit; {hint}; a scope is {SCOPE_HELP}")
    return f"{kind}:{name.strip()}"
