import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from soong.shared.agents.runtime.call_log import StopReason
from soong.shared.core.errors import LeaseLostError, UnavailableError
from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.claims import ClaimRefusal, Refusal
from soong.shared.engine.tasks.spec import ClaimMode, StepKind, StepStatus
from soong.shared.engine.tasks.step import Claim, Lease, Outcome, Step, StepEnd, StepError
from soong.shared.sandbox.redact import Redactor
from tests.model.builders import make_step
from tests.model.memory.store import MemoryStore
from tests.unit.worker.process import WorkerHarness, done

pytestmark = pytest.mark.spec("DAG-03")


def held(claim: Claim) -> Lease:
    return Lease(claim.step_key, claim.identity.run_id, claim.fence)


class Process(WorkerHarness):
    """A worker that runs the step ``own``, whose runs may take the step ``more`` beside it."""

    @asynccontextmanager
    async def running(self, **spec: Json) -> AsyncIterator[None]:
        """Hold a slot until nothing is claimable and every slot is free again."""
        more = make_step("more", kind=StepKind.AGENT, claim_mode=ClaimMode.PULL, spec={"v": 1, **spec})
        async with self.serving(make_step("own", kind=StepKind.AGENT), more):
            holding = asyncio.get_running_loop().create_task(self.slots.hold())
            yield
            await holding
            await self.until_free()
            await self.claim_loop.settled()

    async def take(self, claim: Claim) -> Claim:
        taken = await self.additional.claim(held(claim), "more")
        assert isinstance(taken, Claim), taken
        return taken

    async def statuses(self) -> tuple[StepStatus, StepStatus]:
        return (await self.step("own")).status, (await self.step("more")).status


async def ended_with(way: Callable[[Claim], StepEnd], **spec: Json) -> Step:
    """Return the additional step after its holder has ended in this way."""

    async def work(claim: Claim) -> StepEnd:
        await process.take(claim)
        return way(claim)

    process = Process(work)
    async with process.running(**spec):
        pass
    assert (await process.step("own")).status.is_terminal
    assert await process.store.claims.leases(process.incarnation.worker_id) == []
    return await process.step("more")


# -- the run ends
SCHEMA: Json = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}


@pytest.mark.spec("DAG-03.g")
@pytest.mark.parametrize("spec", [{}, {"output": SCHEMA}], ids=["no-schema", "fits"])
async def test_a_completed_run_completes_what_it_holds_with_its_answer(spec: dict[str, Json]) -> None:
    step = await ended_with(lambda claim: done(claim, {"n": 1}, outcome=Outcome.PARTIAL), **spec)

    assert (step.status, step.output, step.outcome) == (StepStatus.COMPLETED, {"n": 1}, Outcome.PARTIAL)


async def test_an_answer_that_does_not_fit_the_step_fails_it_and_says_so() -> None:
    step = await ended_with(lambda claim: done(claim, {"m": 1}), output=SCHEMA)

    assert step.status is StepStatus.FAILED
    assert step.error is not None
    assert step.error.type == "invalid_output"
    assert "'n'" in step.error.message


@pytest.mark.spec("DAG-03.g")
async def test_a_failed_run_fails_what_it_holds_for_the_same_reason() -> None:
    error = StepError("permission_timeout", "nobody answered")
    step = await ended_with(lambda claim: done(claim, status=StepStatus.FAILED, error=error))

    assert step.status is StepStatus.FAILED
    assert step.error is not None
    assert step.error.type == "permission_timeout"
    assert "nobody answered" in step.error.message


@pytest.mark.spec("EVT-05")
async def test_what_is_reported_holds_no_secret() -> None:
    async def work(claim: Claim) -> StepEnd:
        more = await process.take(claim)
        await process.additional.end(held(claim), done(more, "it is hunter2hunter2"))
        return done(claim)

    process = Process(work, redactor=Redactor(("hunter2hunter2",)))
    async with process.running():
        pass

    assert "hunter2" not in str((await process.step("more")).output)


# -- the run is stopped
class Halted(Process):
    """Its run takes the additional step once and then waits to be stopped; taken up again it completes."""

    def __init__(self) -> None:
        super().__init__(self.work)
        self.has_taken, self.again = asyncio.Event(), list[Claim | None]()

    async def work(self, claim: Claim) -> StepEnd:
        if self.has_taken.is_set():
            self.again.append(self.additional.held_by(held(claim)))
            return done(claim)
        await self.take(claim)
        self.has_taken.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def stop(self, how: StopReason) -> None:
        await self.has_taken.wait()
        self.slots.stop_run((await self.step("own")).run_id, how, "enough")

    async def heed(self, how: StopReason) -> None:
        """Stop what the rows say is to stop."""
        for interrupt in await self.store.claims.interrupts(self.incarnation.worker_id):
            if not await self.additional.interrupt(interrupt):
                self.slots.stop_run(interrupt.run_id, how, interrupt.reason)


async def test_a_run_that_is_released_gives_both_back_and_holds_nothing_when_it_goes_on() -> None:
    process = Halted()

    async with process.running():
        await process.stop("release")

    more = await process.step("more")
    assert (more.status, more.lost_leases, more.holder_run_id) == (StepStatus.READY, 0, "")
    assert (await process.step("own")).status is StepStatus.COMPLETED
    assert process.again == [None]


async def test_a_cancelled_run_gives_back_what_was_not_cancelled_with_it() -> None:
    process = Halted()

    async with process.running():
        await process.stop("cancel")

    assert await process.statuses() == (StepStatus.CANCELLED, StepStatus.READY)


@pytest.mark.spec("DAG-06")
async def test_a_cancelled_task_cancels_both() -> None:
    process = Halted()

    async with process.running():
        await process.has_taken.wait()
        await process.store.tasks.cancel_task(process.ownership, process.task.id, reason="stop", now_us=1)
        await process.heed("cancel")

    assert await process.statuses() == (StepStatus.CANCELLED, StepStatus.CANCELLED)


async def test_a_pause_leaves_the_additional_step_to_its_holders_release() -> None:
    process = Halted()

    async with process.running():
        await process.has_taken.wait()
        await process.store.tasks.pause_task(process.ownership, process.task.id, reason="wait", now_us=1)
        await process.heed("release")

    assert await process.statuses() == (StepStatus.READY, StepStatus.READY)


async def test_a_run_whose_log_cannot_be_written_gives_both_back() -> None:
    tries: list[Claim] = []

    async def work(claim: Claim) -> StepEnd:
        tries.append(claim)
        if len(tries) == 1:
            await process.take(claim)
            raise UnavailableError("the database is away")
        return done(claim)

    process = Process(work)
    async with process.running():
        pass

    assert (await process.step("more")).status is StepStatus.READY


async def test_a_run_that_lost_its_lease_leaves_nothing_held_for_good() -> None:
    async def work(claim: Claim) -> StepEnd:
        await process.take(claim)
        raise LeaseLostError(claim.identity.run_id, claim.fence)

    process = Process(work)
    async with process.running():
        pass
    await process.claim_loop.return_unheard()

    assert (await process.step("more")).status is StepStatus.READY


# -- the claim's answer, and what cannot be done
async def test_an_additional_claim_that_was_heard_is_not_given_back_as_unheard() -> None:
    async def work(claim: Claim) -> StepEnd:
        more = await process.take(claim)
        await process.claim_loop.return_unheard()
        assert await process.additional.end(held(claim), done(more))
        return done(claim)

    process = Process(work)
    async with process.running():
        pass

    assert (await process.step("more")).status is StepStatus.COMPLETED


class DeafStore(MemoryStore):
    """Applies further claims and reports an error."""

    async def claim_additional(self, *wish: Any, **more: Any) -> Claim | ClaimRefusal:
        await super().claim_additional(*wish, **more)
        raise UnavailableError("the answer was lost")


async def test_an_additional_claim_whose_answer_was_lost_is_given_back() -> None:
    tries: list[Claim] = []

    async def work(claim: Claim) -> StepEnd:
        tries.append(claim)
        if len(tries) == 1:
            await process.take(claim)
        return done(claim)

    process = Process(work, store=DeafStore())
    async with process.running():
        pass
    leased = (await process.step("more")).status
    await process.claim_loop.return_unheard()

    assert (leased, (await process.step("more")).status) == (StepStatus.RUNNING, StepStatus.READY)


async def test_a_step_whose_instructions_name_what_is_not_there_fails_at_once() -> None:
    answers: list[Claim | ClaimRefusal] = []

    async def work(claim: Claim) -> StepEnd:
        answers.append(await process.additional.claim(held(claim), "more"))
        return done(claim)

    process = Process(work)
    async with process.running(instructions="Use ${inputs.nothing}."):
        pass

    (answer,) = answers
    step = await process.step("more")
    assert isinstance(answer, ClaimRefusal)
    assert answer.reason is Refusal.ENDED
    assert (step.status, step.error.type if step.error else "") == (StepStatus.FAILED, "invalid_input")
