"""Asks: the owner runs their agents itself, in its loop, so that an agent that waits for others takes no worker's slot.

Which agents are to run is in the rows alone: each look starts what is open and is not running here, and stops what was
paused, cancelled or is no longer ours. A successor takes a run up under the next fence and continues it.
"""

import asyncio
from dataclasses import dataclass, field

from msgspec.structs import replace

from soong.orchestrator.owner.parts import Ended
from soong.shared.agents.runtime.assembly import AgentRuntime, step_end
from soong.shared.agents.runtime.call_log import StopReason, StopSignal, cancel_until_done, clean_end
from soong.shared.core import timing
from soong.shared.core.errors import (
    ForgedError,
    InvalidConfigError,
    LeaseLostError,
    NotFoundError,
    NotOwnerError,
    UnavailableError,
    UsageError,
)
from soong.shared.core.foreign import contained
from soong.shared.core.log import get_logger
from soong.shared.core.timing import Clock
from soong.shared.engine.runs.record import EndReason, RunStatus
from soong.shared.engine.sessions.session import Ownership, SessionStore
from soong.shared.engine.tasks.asks import AskStore, OpenAsk, follows
from soong.shared.engine.tasks.failure_report import with_report
from soong.shared.engine.tasks.spec import BoundStep, TaskStatus
from soong.shared.engine.tasks.step import Claim, StepEnd
from soong.shared.engine.wire.notifier import Notifier
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.limits import TimeLimit, aborted_by_person

log = get_logger(__name__)


@dataclass(slots=True)
class _HeldAsk:
    """An agent that runs here. It is stopped by its signal and by cancelling its task, in this order."""

    ownership: Ownership
    claim: Claim
    signal: StopSignal
    task: asyncio.Task[None]

    def stop(self, how: StopReason, reason: str) -> None:
        if self.signal.stop is None:
            self.signal.stop, self.signal.reason = how, reason
            cancel_until_done(self.task, reason)


@dataclass(slots=True)
class AskRunner:
    """The agents of one owner's asks. ``most`` run at once; the others wait in their rows, oldest first."""

    asks: AskStore
    sessions: SessionStore
    runtime: AgentRuntime
    notifier: Notifier
    clock: Clock
    redactor: Redactor
    most: int
    _ended: Ended = lambda _session_id, _task_id: None
    _held: dict[str, _HeldAsk] = field(default_factory=dict)
    """By task."""
    _waiting: dict[str, None] = field(default_factory=dict)
    """Sessions with asks that there was no room for at the last look, in the order in which they came to wait."""

    def on_end(self, ended: Ended) -> None:
        """Set the callback for a run here that is over, or was stopped."""
        self._ended = ended

    def holds(self, session_id: str) -> bool:
        """Say whether an agent of the session runs here."""
        return any(held.ownership.session_id == session_id for held in self._held.values())

    async def look(self, ownership: Ownership) -> None:
        """Start and stop agents as the rows of a session require. Raises: NotOwnerError, UnavailableError."""
        open_asks = {ask.task_id: ask for ask in await self.asks.open_asks(ownership)}
        for task_id, held in list(self._held.items()):
            if held.ownership.session_id == ownership.session_id:
                self._keep_or_stop(held, ownership, open_asks.get(task_id))
        waits = False
        for task_id, ask in open_asks.items():
            if ask.status is TaskStatus.RUNNING and task_id not in self._held:
                if len(self._held) < self.most:
                    await self._begin(ownership, task_id)
                else:
                    waits = True
        if waits:
            self._waiting.setdefault(ownership.session_id)
        else:
            self._waiting.pop(ownership.session_id, None)

    def next_waiting(self) -> str:
        """Return the session that has waited longest for room, if there is room now; it waits no more by this."""
        if not self._waiting or len(self._held) >= self.most:
            return ""
        session_id = next(iter(self._waiting))
        del self._waiting[session_id]
        return session_id

    def drop(self, session_id: str) -> None:
        """Let go of a session's agents at once: another owner runs them."""
        self._waiting.pop(session_id, None)
        for held in list(self._held.values()):
            if held.ownership.session_id == session_id:
                held.stop("drop", "the session has another owner")

    async def stop(self, *, is_abandoned: bool = False) -> None:
        """Stop every agent, to be continued by a successor; ``is_abandoned``: as a killed process would leave them."""
        running = [held.task for held in self._held.values()]
        for held in list(self._held.values()):
            held.stop("drop" if is_abandoned else "release", "the orchestrator stops")
        await asyncio.gather(*running, return_exceptions=True)
        await self.runtime.registry.close()

    def _keep_or_stop(self, held: _HeldAsk, ownership: Ownership, ask: OpenAsk | None) -> None:
        if held.ownership != ownership:
            held.stop("drop", "the session had another owner meanwhile")
        elif ask is None:
            held.stop("cancel", "its task has ended")
        elif ask.status is not TaskStatus.RUNNING:
            held.stop("release", "its task is paused")
        else:
            for abort in ask.aborts:
                if abort.tool_call_id:
                    held.signal.calls.abort(abort.tool_call_id, abort.reason)
                else:
                    held.stop("abort", aborted_by_person(abort.reason))

    async def _begin(self, ownership: Ownership, task_id: str) -> None:
        self.runtime.inbox.worker_id = ownership.owner_id
        claim = await self.asks.take_up(ownership, task_id, now_us=self.clock.now_us())
        if claim is None:
            return
        signal = StopSignal()
        task = asyncio.get_running_loop().create_task(self._run(ownership, claim, signal))
        self._held[task_id] = held = _HeldAsk(ownership, claim, signal, task)
        task.add_done_callback(lambda _done: self._forget(held))
        log.info("ask_taken_up", task=task_id, run=claim.identity.run_id, fence=claim.fence)

    def _forget(self, held: _HeldAsk) -> None:
        task_id = held.claim.identity.task_id
        if self._held.get(task_id) is held:
            del self._held[task_id]
        # Looked at again at once: a pause that was taken back meanwhile, or one that waited for room.
        self._ended(held.ownership.session_id, task_id)

    async def _run(self, ownership: Ownership, claim: Claim, signal: StopSignal) -> None:
        """Run an agent to its end and write it. Never raises but for a cancellation."""
        task_id = claim.identity.task_id
        try:
            end = with_report(await self._agent_end(claim, signal), signal.incidents)
            await self._write(ownership, task_id, clean_end(end, self.redactor))
        except asyncio.CancelledError:
            if signal.stop == "release":
                await self._put_down(ownership, claim)
        except (LeaseLostError, NotOwnerError) as error:
            log.info("ask_left", task=task_id, reason=str(error))
        except UnavailableError as error:
            log.warning("ask_unanswered", task=task_id, error=str(error))
            await asyncio.sleep(timing.RETRY_EVERY_S)  # then the next look takes it up again, as a successor would
        except Exception:  # nobody awaits this task: a fault is logged here, and the next look tries again
            log.exception("ask_failed", task=task_id)
            await asyncio.sleep(timing.RETRY_EVERY_S)

    async def _agent_end(self, claim: Claim, signal: StopSignal) -> StepEnd:
        limit_s = claim.spec.timeout_s
        calls = self.runtime.call_log(claim, signal)
        # A goal is what a person wrote: nothing in it is a reference.
        bound = BoundStep(instructions=claim.spec.instructions, inputs=claim.spec.inputs)
        try:
            claim = await self._with_history(claim)
            async with TimeLimit(limit_s) as limit:
                agent = await self.runtime.prepare(claim, bound, limit, calls)
                end = await self.runtime.run(agent)
            return step_end(claim, end, await calls.take())
        except TimeoutError:
            return claim.failed("time_limit", f"the ask took longer than {limit_s} s", reason=EndReason.TIME_LIMIT)
        except InvalidConfigError as error:
            return claim.failed("worker_incompatible", str(error))
        except (NotFoundError, UsageError) as error:
            return claim.failed("invalid_input", str(error))
        except ForgedError as error:
            return claim.failed(error.what, str(error))
        except asyncio.CancelledError:
            if signal.stop != "abort":
                raise
            return claim.aborted(signal.reason)
        except (LeaseLostError, NotOwnerError, UnavailableError):
            raise
        except BaseException as error:  # SystemExit of a tool, too: it must not end the owner and its other agents
            log.exception("ask_crashed", task=claim.identity.task_id)
            return claim.failed("execution_failed", f"the agent crashed: {contained(error)}")

    async def _with_history(self, claim: Claim) -> Claim:
        """Give a follow-up question the conversation that it follows, once, before its first turn.
        Raises: UsageError when it follows what is not a completed ask that its session may continue.
        """
        former_id = follows(claim.task_inputs)
        if not former_id or claim.is_resumed:
            return claim
        from soong.shared.agents.compaction import follow_up_nodes  # the model library, which the run needs anyway

        runs, own = self.runtime.store.runs, claim.identity
        former = await runs.run(former_id)
        is_over = former.status is RunStatus.COMPLETED and not former.identity.step_key
        if not is_over or not await self._may_continue(own.session_id, former.identity.session_id):
            raise UsageError(f"run {former_id} is not a completed ask that this session may continue; ask without it")
        nodes = follow_up_nodes(await runs.nodes(former_id), claim.spec.instructions)
        is_tainted = await runs.is_tainted(former_id)  # what was read then is read again now (PER-21)
        await runs.append(own.run_id, claim.fence, nodes=nodes, taints=is_tainted, now_us=self.clock.now_us())
        return replace(claim, is_resumed=True)

    async def _may_continue(self, session_id: str, former_id: str) -> bool:
        """Say whether a session may have the conversation of another: a fork's is of the same user and folder."""
        if session_id == former_id:
            return True
        own, former = await self.sessions.session(session_id), await self.sessions.session(former_id)
        return (own.principal, own.project, own.cwd) == (former.principal, former.project, former.cwd)

    async def _write(self, ownership: Ownership, task_id: str, end: StepEnd) -> None:
        """Write an end, however long the database is away: what the agent did is not done twice."""
        workers: frozenset[str] | None = None
        while workers is None:
            try:
                workers = await self.asks.end_ask(ownership, task_id, end, now_us=self.clock.now_us())
            except UnavailableError as error:
                log.warning("ask_end_unanswered", task=task_id, error=str(error))
                await asyncio.sleep(timing.RETRY_EVERY_S)
        for worker_id in sorted(workers):
            await self.notifier.notify_worker(worker_id)

    async def _put_down(self, ownership: Ownership, claim: Claim) -> None:
        try:
            await self.asks.put_down(ownership, claim.identity.run_id, claim.fence)
        except (NotOwnerError, UnavailableError) as error:
            log.info("put_down_left", run=claim.identity.run_id, reason=str(error))  # its next holder raises the fence
