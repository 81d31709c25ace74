"""A session, a worker and a clock around one store, with the verbs that the contract tests speak in."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from msgspec.structs import replace

from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import NewEvent, NewNode
from soong.shared.engine.runs.record import EndReason, Usage
from soong.shared.engine.sessions.session import CommandKind, Ownership
from soong.shared.engine.tasks.rerun import rerun
from soong.shared.engine.tasks.spec import FailurePolicy, StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Advance, Claim, Lease, NewStep, Step, StepEnd, StepError
from soong.shared.engine.tasks.verdict import GrowMap, StepVerdict
from soong.shared.engine.wire.notifier import reads
from soong.shared.permissions.request import PermissionRequest
from soong.shared.storage.store import Store
from tests.model.builders import (
    make_children,
    make_command,
    make_owner,
    make_retry,
    open_session,
    open_task,
    open_worker,
)
from tests.model.clock import FakeClock


def held(claim: Claim) -> Lease:
    return Lease(claim.step_key, claim.identity.run_id, claim.fence)


def completed(
    claim: Claim, output: Json = None, *, nodes: Sequence[NewNode] = (), events: Sequence[NewEvent] = ()
) -> StepEnd:
    return StepEnd(
        step_key=claim.step_key,
        run_id=claim.identity.run_id,
        fence=claim.fence,
        status=StepStatus.COMPLETED,
        end_reason=EndReason.COMPLETED,
        output=output,
        nodes=tuple(nodes),
        events=tuple(events),
    )


def failed(claim: Claim) -> StepEnd:
    error = StepError("provider_failed", "the provider answered 500", retryable=True)
    return replace(completed(claim), status=StepStatus.FAILED, end_reason=EndReason.PROVIDER_FAILED, error=error)


def cancelled(claim: Claim) -> StepEnd:
    return replace(completed(claim), status=StepStatus.CANCELLED, end_reason=EndReason.CANCELLED)


def step_ids(claims: Iterable[Claim]) -> list[str]:
    """Return the step ids of claims, in their order."""
    return [claim.step_key.rpartition("/")[2] for claim in claims]


async def mark_recorded(store: Store, task_id: str) -> bool:
    """Say that the folders of a task are written as of its last end; of an open one, as of an end that it never had."""
    ended_us = (await store.tasks.task(task_id)).ended_us
    return await store.tasks.mark_recorded(task_id, ended_us or 0)


def outdated(claim: Claim) -> Claim:
    """Return the claim with the fence of an earlier holder."""
    return replace(claim, fence=claim.fence - 1)


@dataclass(slots=True)
class ContractHarness:
    """One session under one owner, and one worker unless a verb names another."""

    store: Store
    own: Ownership
    worker: str
    clock: FakeClock = field(default_factory=FakeClock)

    @property
    def now_us(self) -> int:
        return self.clock.now_us()

    @property
    def later_us(self) -> int:
        """A time that has not come."""
        return self.now_us + timedelta(hours=1) // timedelta(microseconds=1)

    # -- making
    async def task(self, *steps: NewStep | str, own: Ownership | None = None) -> str:
        return await open_task(self.store, own or self.own, *steps)

    async def another_session(self) -> Ownership:
        return await open_session(self.store)

    async def another_worker(self) -> str:
        return await open_worker(self.store)

    # -- a worker's verbs
    async def advance(
        self,
        ends: Sequence[StepEnd] = (),
        *,
        claim: int = 0,
        worker: str = "",
        pools: Sequence[str] = ("default",),
        capabilities: Sequence[str] = reads(),
        live_workers: int = 1,
    ) -> Advance:
        return await self.store.claims.advance(
            worker or self.worker,
            ends,
            claim=claim,
            pools=pools,
            capabilities=capabilities,
            live_workers=live_workers,
            now_us=self.now_us,
        )

    async def claim(self, count: int = 100, *, worker: str = "") -> tuple[Claim, ...]:
        return (await self.advance(claim=count, worker=worker)).claims

    async def claim_one(self, *, worker: str = "") -> Claim:
        (claim,) = await self.claim(1, worker=worker)
        return claim

    async def start(self, *steps: NewStep | str, worker: str = "") -> Claim:
        """Make a task of these steps and claim its first."""
        await self.task(*(steps or ("a",)))
        return await self.claim_one(worker=worker)

    async def raised(self, request: PermissionRequest, events: Sequence[NewEvent] = ()) -> PermissionRequest:
        """Raise a question; return the one that stands for its call, as its row says it."""
        stands = await self.store.consent.raise_request(request, events=events, now_us=self.now_us)
        return (await self.store.consent.request(stands))[0]

    async def complete(self, claim: Claim, output: Json = None, *, worker: str = "") -> Advance:
        return await self.advance([completed(claim, output)], worker=worker)

    async def fail(self, claim: Claim, *, worker: str = "") -> Advance:
        return await self.advance([failed(claim)], worker=worker)

    async def complete_all(self, claims: Iterable[Claim], usage: Usage | None = None) -> Advance:
        ends = (completed(claim, claim.identity.step_title) for claim in claims)
        return await self.advance([replace(end, usage=usage or end.usage) for end in ends])

    async def end_session(self, session_id: str) -> None:
        """Have an owner that then ends itself end a session with its task: it is closed and nobody's."""
        owner = make_owner()
        await self.store.sessions.register_owner(owner)
        (adopted,) = await self.store.sessions.adopt_sessions(owner.id)
        assert adopted.id == session_id
        _, ended = await self.store.tasks.look_and_finish(adopted.ownership, now_us=self.now_us)
        assert [end.is_closed for end in ended] == [True]
        await self.store.sessions.release_owner(owner.id)

    async def finish(self, task_id: str) -> TaskStatus | None:
        ended = await self.store.tasks.finish_task(self.own, task_id, now_us=self.now_us)
        return None if ended is None else ended.status

    async def release(self, *claims: Claim) -> frozenset[str]:
        return await self.store.claims.release(
            self.worker, [held(claim) for claim in claims], reason="drain", now_us=self.now_us
        )

    async def expire(self, worker: str = "", *, max_lost_leases: int = 3) -> frozenset[str] | None:
        """Declare a worker gone whose beat has not moved."""
        worker_id = worker or self.worker
        beats = {known.id: known.beat for known in await self.store.sessions.workers(include_gone=True)}
        return await self.store.claims.expire_worker(
            worker_id, beats[worker_id], max_lost_leases=max_lost_leases, now_us=self.now_us
        )

    async def withdraw(self, claim: Claim, tool_call_id: str, reason: str) -> None:
        await self.store.consent.withdraw(
            claim.identity.run_id, tool_call_id, claim.fence, reason=reason, now_us=self.now_us
        )

    # -- the owner's verbs
    async def settle(self, step_key: str, policy: FailurePolicy) -> None:
        await self.store.tasks.settle_failure(self.own, step_key, policy, now_us=self.now_us)

    async def expand(self, step_key: str, *items: NewStep | str) -> bool:
        step = await self.store.tasks.step(step_key)
        root = (await self.store.runs.run((await self.store.tasks.task(step.task_id)).root_run_id)).identity
        return await self.verdict(step_key, GrowMap(tuple(make_children(step, root, *items))))

    async def verdict(self, step_key: str, verdict: StepVerdict) -> bool:
        return await self.store.tasks.write_verdict(self.own, step_key, verdict, now_us=self.now_us)

    async def retry(self, step_key: str, *, not_before_us: int = 0) -> None:
        run = make_retry(await self.store.runs.run((await self.store.tasks.step(step_key)).run_id))
        await self.store.tasks.retry_step(self.own, step_key, run, not_before_us=not_before_us, now_us=self.now_us)

    async def retry_task(self, task_id: str, *, from_step: str = "", model: str = "", command_id: str = "") -> None:
        which = rerun(await self.store.tasks.steps(task_id), from_step)
        runs = [make_retry(await self.store.runs.run(step.run_id)) for step in which.attempts]
        await self.store.tasks.retry_task(
            self.own,
            task_id,
            runs,
            again=which.again,
            regrown=which.regrown,
            model=model,
            now_us=self.now_us,
            command_id=command_id,
        )

    async def command(self, task_id: str, kind: CommandKind) -> str:
        """Let a client ask for something; return the command's id."""
        command = make_command(self.own.session_id, kind, task_id)
        await self.store.sessions.send_command(command)
        return command.id

    # -- looking
    async def steps(self, task_id: str) -> dict[str, Step]:
        return {step.step_id: step for step in await self.store.tasks.steps(task_id)}

    async def statuses(self, task_id: str) -> dict[str, StepStatus]:
        return {step.step_id: step.status for step in await self.store.tasks.steps(task_id)}

    async def event_types(self, run_id: str) -> list[str]:
        return [str(event.type) for event in await self.store.runs.events(run_id)]

    async def root_event_types(self, task_id: str) -> list[str]:
        return await self.event_types((await self.store.tasks.task(task_id)).root_run_id)

    async def lost_fence(self, claim: Claim) -> Claim:
        """Let the holder of ``claim`` die and another worker take the step; return the new claim."""
        await self.expire()
        self.worker = await self.another_worker()
        return await self.claim_one()


async def open_scene(store: Store) -> ContractHarness:
    return ContractHarness(store, await open_session(store), await open_worker(store))
