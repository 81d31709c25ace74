import asyncio

import pytest

from soong.shared.core.errors import ConflictError, LeaseLostError
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.record import EndReason, RunStatus
from soong.shared.engine.sessions.session import CommandKind, ProcessState
from soong.shared.engine.tasks.change import TaskChange
from soong.shared.engine.tasks.claims import Refusal
from soong.shared.engine.tasks.spec import ClaimMode, FailurePolicy, StepStatus, TaskEvent, TaskStatus
from soong.shared.engine.tasks.step import Claim, ConcurrencyLimit, Interrupt
from soong.shared.storage.store import Store
from tests.contract.conftest import OpenStore
from tests.contract.pulling import further, pull_worker, pulled, refused, taken, work
from tests.contract.scene import ContractHarness, cancelled, completed, failed, held, outdated, step_ids
from tests.model.builders import make_map, make_more, make_request, make_step, take_turn

pytestmark = pytest.mark.spec("DAG-03")


@pytest.mark.spec("DAG-03.e")
async def test_a_run_takes_a_ready_step_beside_its_own_under_a_fence_of_its_own(scene: ContractHarness) -> None:
    own = await scene.start(work("own"), work("more", spec={"v": 1, "instructions": "Do it."}))

    claim = await taken(scene, own, "more")

    step = await scene.store.tasks.step(claim.step_key)
    assert (step.status, step.worker_id, step.fence) == (StepStatus.RUNNING, scene.worker, 1)
    assert step.holder_run_id == own.identity.run_id
    assert claim.spec.instructions == "Do it."
    assert {lease.step_key for lease in await scene.store.claims.leases(scene.worker)} == {own.step_key, claim.step_key}


@pytest.mark.spec("CARD-3")
async def test_the_steps_own_run_is_started_and_its_log_says_which_run_holds_it(scene: ContractHarness) -> None:
    own = await scene.start(work("own"), work("more"))

    claim = await taken(scene, own, "more")

    run = await scene.store.runs.run(claim.identity.run_id)
    events = {event.type: event.data for event in await scene.store.runs.events(run.id)}
    assert (run.status, run.fence, run.worker_id) == (RunStatus.RUNNING, claim.fence, scene.worker)
    assert run.identity.step_key == claim.step_key
    assert run.id != own.identity.run_id
    assert events["step_claimed"]["claimed_by"] == own.identity.run_id
    assert "run_started" in events


async def test_what_the_step_waited_for_is_reported_to_who_takes_it(scene: ContractHarness) -> None:
    first = await scene.start(work("first"), work("own"), pulled("more", depends_on=["first"]))
    own = await scene.claim_one()
    await scene.complete(first, {"files": 3})

    claim = await taken(scene, own, "more")

    assert claim.dependencies["first"].output == {"files": 3}


@pytest.mark.parametrize("output", [{"found": 2}, None], ids=["object", "nothing"])
async def test_its_end_is_an_end_like_any_other(scene: ContractHarness, output: Json) -> None:
    own = await scene.start(work("own"), pulled("more"), make_step("after", depends_on=["more"]))
    claim = await taken(scene, own, "more")

    advance = await scene.complete(claim, output)

    statuses = await scene.statuses(own.identity.task_id)
    run = await scene.store.runs.run(claim.identity.run_id)
    assert advance.stale == frozenset()
    assert statuses == {"own": StepStatus.RUNNING, "more": StepStatus.COMPLETED, "after": StepStatus.READY}
    assert (await scene.store.tasks.result(claim.step_key)).output == output
    assert (run.status, run.end_reason) == (RunStatus.COMPLETED, EndReason.COMPLETED)
    assert (await scene.store.tasks.step(claim.step_key)).holder_run_id == own.identity.run_id


async def test_both_ends_in_one_batch_unlock_what_waited_for_both(scene: ContractHarness) -> None:
    own = await scene.start(work("own"), pulled("more"), make_step("after", depends_on=["own", "more"]))
    claim = await taken(scene, own, "more")

    await scene.advance([completed(own), completed(claim)])

    assert (await scene.statuses(own.identity.task_id))["after"] is StepStatus.READY


# -- one at a time, exactly one of many
async def test_a_second_one_is_refused_until_the_first_has_ended(scene: ContractHarness) -> None:
    own = await scene.start(work("own"), pulled("one"), pulled("two"))
    claim = await taken(scene, own, "one")

    assert await refused(scene, own, "two") is Refusal.ONE_AT_A_TIME
    assert await refused(scene, own, "one") is Refusal.ONE_AT_A_TIME
    await scene.complete(claim)
    assert isinstance(await further(scene, own, "two"), Claim)


@pytest.mark.spec("CARD-2")
async def test_fifty_runs_that_ask_for_one_step_at_once_get_it_once(
    scene: ContractHarness, open_another: OpenStore
) -> None:
    """Bad input row 61."""
    await scene.task(*(work(f"w{number}", priority=1) for number in range(50)), work("wanted"))
    workers = [await scene.another_worker() for _ in range(5)]
    holders = {worker: await scene.claim(10, worker=worker) for worker in workers}
    stores: list[Store] = [await open_another() for _ in range(5)]

    answers = await asyncio.gather(
        *(
            further(scene, holder, "wanted", worker=worker, store=stores[number % 5])
            for worker, held_there in holders.items()
            for number, holder in enumerate(held_there)
        )
    )

    won = [answer for answer in answers if isinstance(answer, Claim)]
    assert len(answers) == 50
    assert len(won) == 1
    assert {answer.reason for answer in answers if not isinstance(answer, Claim)} <= {Refusal.HELD, Refusal.BEGUN}
    assert (await scene.store.tasks.step(won[0].step_key)).fence == 1


async def test_a_claim_loop_and_a_run_that_want_the_same_step_get_it_once(
    scene: ContractHarness, other_store: Store
) -> None:
    for _ in range(8):
        own = await scene.start(work("own", priority=1), work("wanted"))

        answer, advance = await asyncio.gather(
            further(scene, own, "wanted"), take_turn(other_store, scene.worker, now_us=scene.now_us)
        )

        claims = [answer] if isinstance(answer, Claim) else []
        claims += advance.claims
        assert [claim.fence for claim in claims] == [1]
        await scene.complete_all([own, *claims])


async def test_two_asked_for_by_one_run_at_once_give_one(scene: ContractHarness, other_store: Store) -> None:
    own = await scene.start(work("own"), pulled("one"), pulled("two"))

    answers = await asyncio.gather(further(scene, own, "one"), further(scene, own, "two", store=other_store))

    assert sum(isinstance(answer, Claim) for answer in answers) == 1


# -- refusals
@pytest.mark.spec("DAG-03.e")
async def test_only_agents_work_of_the_same_task_that_has_not_begun_is_given(scene: ContractHarness) -> None:
    other_kinds = make_step("function"), make_map("map", depends_on=["own"]), pull_worker("other")
    own = await scene.start(work("own", priority=2), work("begun", priority=1), *other_kinds)
    await scene.task(work("elsewhere"))
    await scene.release(await scene.claim_one())

    for step_id in ("nothing", "elsewhere", "../own"):
        assert await refused(scene, own, step_id) is Refusal.UNKNOWN
    for step_id in ("function", "map", "other"):
        assert await refused(scene, own, step_id) is Refusal.NOT_FOR_AGENTS
    assert await refused(scene, own, "begun") is Refusal.BEGUN


async def test_a_step_that_waits_is_not_ready_and_one_that_ended_is_over(scene: ContractHarness) -> None:
    own = await scene.start(work("own"), work("done"), pulled("later", depends_on=["done"]))
    done = await scene.claim_one()

    assert await refused(scene, own, "later") is Refusal.NOT_READY
    assert await refused(scene, own, "done") is Refusal.HELD
    await scene.complete(done)
    assert await refused(scene, own, "done") is Refusal.ENDED
    assert isinstance(await further(scene, own, "later"), Claim)


async def test_a_paused_task_gives_nothing(scene: ContractHarness) -> None:
    own = await scene.start(work("own"), pulled("more"))
    await scene.store.tasks.pause_task(scene.own, own.identity.task_id, reason="wait", now_us=scene.now_us)

    assert await refused(scene, own, "more") is Refusal.PAUSED
    await scene.store.tasks.resume_task(scene.own, own.identity.task_id, now_us=scene.now_us)
    assert isinstance(await further(scene, own, "more"), Claim)


async def test_a_worker_that_lacks_what_the_step_needs_gets_no_step(scene: ContractHarness) -> None:
    own = await scene.start(work("own"), pulled("gpu", needs=["gpu"]), pulled("far", pool="far"))

    assert await refused(scene, own, "gpu") is Refusal.INCAPABLE
    assert await refused(scene, own, "far") is Refusal.INCAPABLE
    answer = await further(scene, own, "gpu", capabilities=("gpu",))
    assert isinstance(answer, Claim)


async def test_a_run_that_is_to_stop_and_one_of_a_worker_that_drains_get_nothing(scene: ContractHarness) -> None:
    own = await scene.start(work("own"), pulled("more"))
    stop = TaskChange(cancelled=(own.step_key,), reason="enough")
    await scene.store.tasks.update_task(scene.own, own.identity.task_id, stop, now_us=scene.now_us)
    assert await refused(scene, own, "more") is Refusal.STOPPING

    other = await scene.start(work("own"), pulled("more"))
    await scene.store.sessions.set_worker_state(scene.worker, ProcessState.DRAINING)
    assert await refused(scene, other, "more") is Refusal.STOPPING


@pytest.mark.parametrize("kind", ["definition", "model", "pool"])
@pytest.mark.spec("DIS-03", "DAG-03.e")
async def test_a_limit_holds_for_additional_claims(scene: ContractHarness, kind: str) -> None:
    own = await scene.start(work("own"), pulled("more", definition="x", model="x", pool="wide"))
    name = "wide" if kind == "pool" else "x"
    other = await scene.start(work("holder", definition="x", model="x", pool="default"))
    await scene.store.claims.set_concurrency_limits([ConcurrencyLimit(f"{kind}:{name}", 1)])
    if kind == "pool":
        await scene.task(work("filler", pool="wide"))
        await scene.advance(claim=1, pools=("wide",))

    assert await refused(scene, own, "more", pools=("default", "wide")) is Refusal.CONCURRENCY_LIMIT

    await scene.store.claims.set_concurrency_limits([ConcurrencyLimit(f"{kind}:{name}", 9)])
    assert isinstance(await further(scene, own, "more", pools=("wide",)), Claim)
    assert other.fence == 1


@pytest.mark.parametrize("kind", ["session", "definition", "model", "pool"])
@pytest.mark.spec("DIS-03")
async def test_a_run_that_fills_a_limit_by_itself_may_still_take_steps_under_it(
    scene: ContractHarness, kind: str
) -> None:
    name = scene.own.session_id if kind == "session" else "default" if kind == "pool" else "x"
    await scene.store.claims.set_concurrency_limits([ConcurrencyLimit(f"{kind}:{name}", 1)])
    shared = {"definition": "x", "model": "x"}
    own = await scene.start(work("own", priority=1, **shared), pulled("more", **shared), work("third", **shared))

    assert isinstance(await further(scene, own, "more"), Claim)
    assert await scene.claim() == ()
    await scene.complete(own)
    assert await scene.claim() == ()  # what is left of it counts by itself


@pytest.mark.spec("DIS-10")
async def test_an_additional_claim_is_its_sessions_turn(scene: ContractHarness) -> None:
    other = await scene.another_session()
    own = await scene.start(work("own"), pulled("more"), work("next", priority=-1), "b")
    await scene.task("theirs", own=other)
    await scene.claim_one()  # the other session's turn; ours was longest ago

    await taken(scene, own, "more")
    await scene.task("theirs", own=other)
    turn = await scene.claim_one()

    assert turn.identity.session_id == other.session_id


async def test_a_pull_worker_takes_no_more_than_its_limit_which_counts_nothing_given_back(
    scene: ContractHarness,
) -> None:
    own = await scene.start(pull_worker(spec={"max_steps": 2}), *(pulled(f"p{number}") for number in range(4)))
    await scene.release(await taken(scene, own, "p3"))
    for number in range(2):
        await scene.complete(await taken(scene, own, f"p{number}"))

    assert await refused(scene, own, "p2") is Refusal.LIMIT


# -- fences, leases and what ends them
async def test_a_run_that_lost_its_own_lease_gets_nothing_and_leaves_no_trace(scene: ContractHarness) -> None:
    own = await scene.start(work("own"), pulled("more"))

    with pytest.raises(LeaseLostError):
        await further(scene, outdated(own), "more")
    with pytest.raises(LeaseLostError):
        await further(scene, own, "more", worker=await scene.another_worker())
    await scene.complete(own)
    with pytest.raises(LeaseLostError):
        await further(scene, own, "more")

    assert (await scene.statuses(own.identity.task_id))["more"] is StepStatus.READY


async def test_the_worker_that_dies_loses_both_and_neither_for_good(scene: ContractHarness) -> None:
    own = await scene.start(pull_worker(), pulled("more"))
    first = await taken(scene, own, "more")

    await scene.expire()
    scene.worker = await scene.another_worker()
    again = await scene.claim_one()
    second = await taken(scene, again, "more")

    step = await scene.store.tasks.step(second.step_key)
    assert second.fence > first.fence
    assert (step.lost_leases, step.worker_id) == (1, scene.worker)
    assert (await scene.complete(first)).stale == {first.identity.run_id}
    assert (await scene.complete(second)).stale == frozenset()


async def test_it_takes_no_slot_and_released_is_ready_for_the_next_worker_that_asks(scene: ContractHarness) -> None:
    own = await scene.start(work("own"), pulled("more"))
    claim = await taken(scene, own, "more")
    (worker,) = await scene.store.sessions.workers()
    assert worker.busy == 1

    await scene.release(own, claim)

    step = (await scene.steps(own.identity.task_id))["more"]
    run = await scene.store.runs.run(claim.identity.run_id)
    assert (step.status, step.worker_id, step.holder_run_id, step.lost_leases) == (StepStatus.READY, "", "", 0)
    assert run.status is RunStatus.QUEUED


async def test_a_cancel_is_reported_to_the_worker_that_holds_it(scene: ContractHarness) -> None:
    own = await scene.start(work("own"), pulled("more"), make_step("after", depends_on=["more"]))
    claim = await taken(scene, own, "more")
    stop = TaskChange(cancelled=(claim.step_key,), reason="not needed")

    workers = await scene.store.tasks.update_task(scene.own, own.identity.task_id, stop, now_us=scene.now_us)
    told = await scene.store.claims.interrupts(scene.worker)
    await scene.advance([cancelled(claim)])

    statuses = await scene.statuses(own.identity.task_id)
    assert workers == {scene.worker}
    assert list(told) == [Interrupt(claim.identity.run_id, claim.step_key, claim.fence, "cancel", "not needed")]
    assert statuses == {"own": StepStatus.RUNNING, "more": StepStatus.CANCELLED, "after": StepStatus.SKIPPED}


async def test_a_run_that_holds_one_does_not_park(scene: ContractHarness) -> None:
    own = await scene.start(work("own"), pulled("more"))
    claim = await taken(scene, own, "more")
    request = make_request(own)
    await scene.store.consent.raise_request(request, events=(), now_us=scene.now_us)

    async def park() -> bool:
        return await scene.store.claims.park(scene.worker, held(own), [request.id], max_parked=9, now_us=scene.now_us)

    assert not await park()
    await scene.complete(claim)
    assert await park()


async def test_a_step_that_failed_is_tried_again_by_the_next_worker_that_asks(scene: ContractHarness) -> None:
    own = await scene.start(work("own"), pulled("more"))
    first = await taken(scene, own, "more")
    await scene.advance([failed(first)])

    await scene.retry(first.step_key)
    await scene.store.tasks.promote_due(scene.own, now_us=scene.now_us)
    second = await taken(scene, own, "more")

    assert second.identity.run_id != first.identity.run_id
    assert second.attempt == 2
    assert held(second) in await scene.store.claims.leases(scene.worker)


async def test_neither_a_claim_loop_nor_the_dispatcher_learns_of_steps_that_are_pulled(scene: ContractHarness) -> None:
    task_id = await scene.task(pulled("p", priority=9), work("a"), pulled("q"), work("b"))

    assert (await scene.store.claims.backlog()).ready == {"default": 2}
    assert step_ids(await scene.claim()) == ["a", "b"]
    assert (await scene.store.claims.backlog()).ready == {}
    steps = await scene.steps(task_id)
    assert (steps["p"].claim_mode, steps["a"].claim_mode) == (ClaimMode.PULL, ClaimMode.ASSIGNED)


async def test_steps_that_are_pulled_do_not_shrink_a_workers_share(scene: ContractHarness) -> None:
    await scene.task(*(pulled(f"p{number}") for number in range(20)), *(work(f"a{number}") for number in range(4)))

    claims = (await scene.advance(claim=10, live_workers=2)).claims

    assert len(claims) == 2


# -- pull workers and the end of their task
@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
async def test_a_task_ends_by_its_own_steps_and_not_before_its_pull_workers(scene: ContractHarness, end: str) -> None:
    own = await scene.start(pull_worker(priority=1, on_failure=FailurePolicy.KEEP), work("a"))
    task_id = own.identity.task_id
    await scene.complete(await scene.claim_one())
    assert await scene.finish(task_id) is None

    await scene.advance([{"completed": completed, "failed": failed, "cancelled": cancelled}[end](own)])
    for left in await scene.store.tasks.failures(scene.own):
        await scene.settle(left.key, left.on_failure)

    assert await scene.finish(task_id) is TaskStatus.COMPLETED


async def test_a_step_that_failed_under_a_pull_worker_fails_its_task_and_is_named_alone(scene: ContractHarness) -> None:
    own = await scene.start(pull_worker(on_failure=FailurePolicy.KEEP), pulled("p"))
    task_id = own.identity.task_id
    await scene.advance([failed(await taken(scene, own, "p")), failed(own)])
    for left in await scene.store.tasks.failures(scene.own):
        await scene.settle(left.key, left.on_failure)

    assert await scene.finish(task_id) is TaskStatus.FAILED
    assert (await scene.store.tasks.task(task_id)).reason == "p"


async def test_a_task_is_not_completed_by_its_planner_while_a_pull_worker_goes_on(scene: ContractHarness) -> None:
    own = await scene.start(pull_worker())

    with pytest.raises(ConflictError, match="pull-worker"):
        await scene.store.tasks.end_task(
            scene.own, own.identity.task_id, TaskEvent.COMPLETE, reason="", now_us=scene.now_us
        )


async def test_pull_workers_are_added_once_by_one_command(scene: ContractHarness) -> None:
    task_id = await scene.task(pulled("p"))
    task = await scene.store.tasks.task(task_id)
    root = (await scene.store.runs.run(task.root_run_id)).identity
    change = TaskChange(steps=make_more(task, root, pull_worker("pull-worker-1")))
    command_id = await scene.command(task_id, CommandKind.DISPATCH)

    await scene.store.tasks.update_task(scene.own, task_id, change, now_us=scene.now_us, command_id=command_id)

    assert await scene.store.sessions.take_commands(scene.own) == []
    with pytest.raises(ConflictError, match="pull-worker-1"):
        await scene.store.tasks.update_task(scene.own, task_id, change, now_us=scene.now_us)
    own = await scene.claim_one()
    assert (await scene.store.tasks.step(own.step_key)).is_pull_worker
