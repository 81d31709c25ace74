"""What a run holds beside its own step ends with it, is given back with it, or is stopped alone (DAG-03)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from soong.shared.agents.runtime.stop_signal import StopSignal
from soong.shared.core.clock import SystemClock
from soong.shared.core.errors import LeaseLostError, UnavailableError
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.status import EndReason
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.change import TaskChange
from soong.shared.engine.tasks.claims import ClaimRefusal, Refusal
from soong.shared.engine.tasks.spec import ClaimMode, StepKind
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import Claim, Lease, NewStep, Outcome, Step, StepEnd, StepError
from soong.shared.sandbox.redact import Redactor
from soong.worker.additional_steps import AdditionalSteps
from soong.worker.claim_loop import ClaimLoop
from soong.worker.flower import NoFlower
from soong.worker.heartbeat import Incarnation
from soong.worker.slots import Slots
from tests.model.builders import make_session, make_step, make_task, open_session
from tests.model.memory.notifier import MemoryBus
from tests.model.memory.store import MemoryStore

pytestmark = pytest.mark.spec("DAG-03")

Work = Callable[[Claim], Awaitable[StepEnd]]


@dataclass
class Running:
    """Runs what a test says."""

    work: Work

    async def run(self, claim: Claim, interruption: StopSignal) -> StepEnd:
        return await self.work(claim)


def held(claim: Claim) -> Lease:
    return Lease(claim.step_key, claim.identity.run_id, claim.fence)


def end(claim: Claim, output: Json = None, **overrides: Any) -> StepEnd:
    made = StepEnd(
        claim.step_key, claim.identity.run_id, claim.fence, StepStatus.COMPLETED, EndReason.COMPLETED, output=output
    )
    return replace(made, **overrides)


def own_and_more(**spec: Json) -> tuple[NewStep, NewStep]:
    """Return a step that is assigned, and one that its run takes beside it."""
    more = make_step("more", kind=StepKind.AGENT, claim_mode=ClaimMode.PULL, spec={"v": 1, **spec})
    return make_step("own", kind=StepKind.AGENT), more


@dataclass
class Process:
    """Claim loop, slots and what runs hold beside their steps, over the reference store."""

    store: MemoryStore = field(default_factory=MemoryStore)
    redactor: Redactor = field(default_factory=Redactor)
    task_id: str = ""
    ownership: Ownership | None = None

    @asynccontextmanager
    async def running(self, work: Work, *steps: NewStep) -> AsyncIterator["Process"]:
        clock, board = SystemClock(), MemoryBus()
        incarnation = Incarnation(self.store, clock, "w@h", 4, ("default",), ())
        self.additional = AdditionalSteps(self.redactor)
        self.slots = Slots(4, self.store, clock, Running(work), NoFlower(), self.additional)
        self.claim_loop = ClaimLoop(
            self.store, board, clock, incarnation.capacity, self.slots.free_slots, self.slots.start_slot
        )
        self.slots.claim_loop = self.additional.claim_loop = self.claim_loop
        self.ownership = await open_session(self.store, make_session(owner_id="own_1"))
        task = make_task(self.ownership.session_id, *steps)
        self.task_id = task.id
        await self.store.tasks.create_task(task)
        self.worker_id = await incarnation.register()
        pumping = asyncio.get_running_loop().create_task(self.claim_loop.run())
        holding = asyncio.get_running_loop().create_task(self.slots.hold())
        try:
            async with asyncio.timeout(10):
                yield self
                await holding
                await self.slots.until_idle()
                await self.claim_loop.settled()
        finally:
            pumping.cancel()
            holding.cancel()

    async def take(self, claim: Claim, step_id: str = "more") -> Claim:
        taken = await self.additional.claim(held(claim), step_id)
        assert isinstance(taken, Claim), taken
        return taken

    async def step(self, step_id: str = "more") -> Step:
        return next(step for step in await self.store.tasks.steps(self.task_id) if step.step_id == step_id)


async def ended_with(way: Callable[[Claim], StepEnd], **spec: Json) -> Step:
    """Return the additional step after its holder has ended in this way."""
    process = Process()

    async def work(claim: Claim) -> StepEnd:
        await process.take(claim)
        return way(claim)

    async with process.running(work, *own_and_more(**spec)):
        pass
    assert (await process.step("own")).status.is_terminal
    assert await process.store.claims.leases(process.worker_id) == []
    return await process.step()


# -- the run ends
SCHEMA: Json = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}


@pytest.mark.spec("DAG-03.g")
@pytest.mark.parametrize("spec", [{}, {"output": SCHEMA}], ids=["no-schema", "fits"])
async def test_a_completed_run_completes_what_it_holds_with_its_answer(spec: dict[str, Json]) -> None:
    step = await ended_with(lambda claim: end(claim, {"n": 1}, outcome=Outcome.PARTIAL), **spec)

    assert (step.status, step.output, step.outcome) == (StepStatus.COMPLETED, {"n": 1}, Outcome.PARTIAL)


async def test_an_answer_that_does_not_fit_the_step_fails_it_and_says_so() -> None:
    step = await ended_with(lambda claim: end(claim, {"m": 1}), output=SCHEMA)

    assert step.status is StepStatus.FAILED
    assert step.error is not None
    assert step.error.type == "invalid_output"
    assert "'n'" in step.error.message


@pytest.mark.spec("DAG-03.g")
async def test_a_failed_run_fails_what_it_holds_for_the_same_reason() -> None:
    error = StepError("permission_timeout", "nobody answered")
    step = await ended_with(lambda claim: end(claim, status=StepStatus.FAILED, error=error))

    assert step.status is StepStatus.FAILED
    assert step.error is not None
    assert step.error.type == "permission_timeout"
    assert "nobody answered" in step.error.message


@pytest.mark.spec("EVT-05")
async def test_what_is_reported_holds_no_secret() -> None:
    process = Process(redactor=Redactor(("hunter2hunter2",)))

    async def work(claim: Claim) -> StepEnd:
        more = await process.take(claim)
        await process.additional.end(held(claim), end(more, "it is hunter2hunter2"))
        return end(claim)

    async with process.running(work, *own_and_more()):
        pass

    assert "hunter2" not in str((await process.step()).output)


# -- the run is stopped
@dataclass
class Halted:
    """A run that takes the additional step once and then waits to be stopped; taken up again it completes."""

    process: Process
    has_taken: asyncio.Event = field(default_factory=asyncio.Event)
    again: list[Claim | None] = field(default_factory=list)

    async def __call__(self, claim: Claim) -> StepEnd:
        if self.has_taken.is_set():
            self.again.append(self.process.additional.held_by(held(claim)))
            return end(claim)
        await self.process.take(claim)
        self.has_taken.set()
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_run_that_is_released_gives_both_back_and_holds_nothing_when_it_goes_on() -> None:
    process = Process()
    work = Halted(process)

    async with process.running(work, *own_and_more()):
        await work.has_taken.wait()
        process.slots.stop_run((await process.step("own")).run_id, "release", "pause")

    more = await process.step()
    assert (more.status, more.lost_leases, more.holder_run_id) == (StepStatus.READY, 0, "")
    assert (await process.step("own")).status is StepStatus.COMPLETED
    assert work.again == [None]


async def test_a_cancelled_run_gives_back_what_was_not_cancelled_with_it() -> None:
    process = Process()
    work = Halted(process)

    async with process.running(work, *own_and_more()):
        await work.has_taken.wait()
        process.slots.stop_run((await process.step("own")).run_id, "cancel", "enough")

    assert (await process.step("own")).status is StepStatus.CANCELLED
    assert (await process.step()).status is StepStatus.READY


@pytest.mark.spec("DAG-06")
async def test_a_cancelled_task_cancels_both() -> None:
    process = Process()
    work = Halted(process)

    async with process.running(work, *own_and_more()):
        await work.has_taken.wait()
        assert process.ownership is not None
        await process.store.tasks.cancel_task(process.ownership, process.task_id, reason="stop", now_us=1)
        for interrupt in await process.store.claims.interrupts(process.worker_id):
            if not await process.additional.interrupt(interrupt):
                process.slots.stop_run(interrupt.run_id, "cancel", interrupt.reason)

    assert (await process.step("own")).status is (await process.step()).status is StepStatus.CANCELLED


@pytest.mark.spec("DAG-06")
async def test_a_cancel_of_the_additional_step_ends_it_alone_and_the_run_learns_why() -> None:
    process = Process()
    may_end = asyncio.Event()
    told: list[str] = []

    async def work(claim: Claim) -> StepEnd:
        more = await process.take(claim)
        has_taken.set()
        await may_end.wait()
        assert not await process.additional.end(held(claim), end(more, "late"))
        told.append(process.additional.why_lost(held(claim), "more"))
        return end(claim)

    has_taken = asyncio.Event()
    async with process.running(work, *own_and_more()):
        await has_taken.wait()
        stop = TaskChange(cancelled=((await process.step()).key,), reason="not needed")
        assert process.ownership is not None
        await process.store.tasks.update_task(process.ownership, process.task_id, stop, now_us=1)
        (interrupt,) = await process.store.claims.interrupts(process.worker_id)
        assert await process.additional.interrupt(interrupt)
        may_end.set()

    assert ((await process.step()).status, (await process.step()).output) == (StepStatus.CANCELLED, None)
    assert (await process.step("own")).status is StepStatus.COMPLETED
    assert told == ["it was cancelled: not needed"]


async def test_a_pause_leaves_the_additional_step_to_its_holders_release() -> None:
    process = Process()
    work = Halted(process)

    async with process.running(work, *own_and_more()):
        await work.has_taken.wait()
        assert process.ownership is not None
        await process.store.tasks.pause_task(process.ownership, process.task_id, reason="wait", now_us=1)
        for interrupt in await process.store.claims.interrupts(process.worker_id):
            if not await process.additional.interrupt(interrupt):
                process.slots.stop_run(interrupt.run_id, "release", interrupt.reason)

    assert (await process.step("own")).status is (await process.step()).status is StepStatus.READY


async def test_a_run_whose_log_cannot_be_written_gives_both_back() -> None:
    process = Process()
    tries: list[Claim] = []

    async def work(claim: Claim) -> StepEnd:
        tries.append(claim)
        if len(tries) == 1:
            await process.take(claim)
            raise UnavailableError("the database is away")
        return end(claim)

    async with process.running(work, *own_and_more()):
        pass

    assert (await process.step()).status is StepStatus.READY


async def test_a_run_that_lost_its_lease_leaves_nothing_held_for_good() -> None:
    process = Process()

    async def work(claim: Claim) -> StepEnd:
        await process.take(claim)
        raise LeaseLostError(claim.identity.run_id, claim.fence)

    async with process.running(work, *own_and_more()):
        pass
    await process.claim_loop.return_unheard()

    assert (await process.step()).status is StepStatus.READY


# -- the claim's answer, and what cannot be done
async def test_an_additional_claim_that_was_heard_is_not_given_back_as_unheard() -> None:
    process = Process()

    async def work(claim: Claim) -> StepEnd:
        more = await process.take(claim)
        await process.claim_loop.return_unheard()
        assert await process.additional.end(held(claim), end(more))
        return end(claim)

    async with process.running(work, *own_and_more()):
        pass

    assert (await process.step()).status is StepStatus.COMPLETED


class DeafStore(MemoryStore):
    """Applies further claims and reports an error."""

    async def claim_additional(self, *wish: Any, **more: Any) -> Claim | ClaimRefusal:
        await super().claim_additional(*wish, **more)
        raise UnavailableError("the answer was lost")


async def test_an_additional_claim_whose_answer_was_lost_is_given_back() -> None:
    process = Process(DeafStore())
    tries: list[Claim] = []

    async def work(claim: Claim) -> StepEnd:
        tries.append(claim)
        if len(tries) == 1:
            await process.take(claim)
        return end(claim)

    async with process.running(work, *own_and_more()):
        pass
    leased = (await process.step()).status
    await process.claim_loop.return_unheard()

    assert (leased, (await process.step()).status) == (StepStatus.RUNNING, StepStatus.READY)


async def test_a_step_whose_instructions_name_what_is_not_there_fails_at_once() -> None:
    process = Process()
    answers: list[Claim | ClaimRefusal] = []

    async def work(claim: Claim) -> StepEnd:
        answers.append(await process.additional.claim(held(claim), "more"))
        return end(claim)

    async with process.running(work, *own_and_more(instructions="Use ${inputs.nothing}.")):
        pass

    (answer,) = answers
    step = await process.step()
    assert isinstance(answer, ClaimRefusal)
    assert answer.reason is Refusal.ENDED
    assert (step.status, step.error.type if step.error else "") == (StepStatus.FAILED, "invalid_input")
