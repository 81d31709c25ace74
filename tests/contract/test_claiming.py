import asyncio
from datetime import timedelta
from decimal import Decimal

import pytest
from msgspec.structs import replace

from soong.shared.core.identity import OWN, Origin
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import NewEvent, NewNode, NodeKind
from soong.shared.engine.runs.record import EndReason, NewRun, RunStatus, Usage
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import ConcurrencyLimit, NewStep, Outcome, StepResult, WaitingSteps
from soong.shared.storage.store import Store
from tests.contract.conftest import OpenStore
from tests.contract.scene import ContractHarness, completed, held, step_ids
from tests.model.builders import (
    make_map,
    make_request,
    make_retry,
    make_session,
    make_step,
    make_task,
    open_session,
    take_turn,
)


@pytest.mark.spec("DAG-03.a", "CARD-2")
async def test_of_many_claimers_at_once_each_step_goes_to_one(scene: ContractHarness, open_another: OpenStore) -> None:
    await scene.task(*(f"s{number}" for number in range(20)))
    stores = [await open_another() for _ in range(4)]

    async def claim_three(number: int) -> list[str]:
        worker_id = await scene.another_worker()
        advance = await take_turn(stores[number % 4], worker_id, claim=3, now_us=scene.now_us)
        return [claim.step_key for claim in advance.claims]

    claimed = [key for keys in await asyncio.gather(*map(claim_three, range(8))) for key in keys]

    assert len(claimed) == len(set(claimed)) == 20


@pytest.mark.spec("DAG-03.d")
async def test_claim_makes_step_and_run_running_under_one_fence(scene: ContractHarness) -> None:
    claim = await scene.start("a")

    step, run = await scene.store.tasks.step(claim.step_key), await scene.store.runs.run(claim.identity.run_id)

    assert (step.status, step.fence, step.worker_id) == (StepStatus.RUNNING, claim.fence, scene.worker)
    assert (run.status, run.fence, run.worker_id) == (RunStatus.RUNNING, claim.fence, scene.worker)
    assert step.started_us == run.started_us == scene.now_us


@pytest.mark.spec("CARD-3")
async def test_claim_carries_identity_surface_and_place_from_rows(store: Store) -> None:
    session = make_session(project="/p", cwd="/p/sub", policy={"rules": [{"tool": "code.*"}]})
    scene = ContractHarness(store, await open_session(store, session), worker="")
    scene.worker = await scene.another_worker()
    new = make_task(session.id, make_step("a", spec={"call": "f"}, definition="reviewer"), inputs={"x": 1})
    await store.tasks.create_task(new)

    claim = await scene.claim_one()

    run = new.steps[0].run
    assert run is not None
    assert (claim.identity, claim.surface, claim.token) == (run.identity, run.surface, run.token)
    assert (claim.project, claim.cwd, claim.policy) == ("/p", "/p/sub", session.policy)
    assert (claim.spec, claim.task_inputs, claim.attempt) == (new.steps[0].spec, {"x": 1}, 1)
    assert claim.task_title == new.title
    assert not claim.is_resumed


async def test_claim_carries_the_results_of_its_dependencies_by_step_id(scene: ContractHarness) -> None:
    await scene.task("a", "b", make_step("c", depends_on=("a", "b")))
    first, second = await scene.claim()
    ends = [completed(first, {"n": 1}), completed(second, [None, "text"])]

    (claim,) = (await scene.advance(ends, claim=1)).claims

    assert claim.dependencies == {
        "a": StepResult("a", StepStatus.COMPLETED, {"n": 1}, Outcome.CLEAN),
        "b": StepResult("b", StepStatus.COMPLETED, [None, "text"], Outcome.CLEAN),
    }


async def test_only_pools_and_capabilities_of_the_worker_are_claimed(scene: ContractHarness) -> None:
    await scene.task(
        "plain",
        make_step("elsewhere", pool="big"),
        make_step("able", needs=("gpu", "project:p")),
        make_step("unable", needs=("gpu", "tpu")),
    )

    advance = await scene.advance(claim=10, capabilities=("project:p", "gpu", "label"))

    of_both_pools = await scene.advance(claim=10, pools=("default", "big"))
    assert set(step_ids(advance.claims)) == {"plain", "able"}
    assert step_ids(of_both_pools.claims) == ["elsewhere"]


async def test_of_one_session_the_higher_priority_goes_first_and_then_the_older(scene: ContractHarness) -> None:
    await scene.task("old", "young", make_step("urgent", priority=5), make_step("idle", priority=-1))

    order = step_ids([await scene.claim_one() for _ in range(4)])

    assert order == ["urgent", "old", "young", "idle"]


async def test_an_unknown_worker_and_one_that_asks_for_none_claim_nothing(scene: ContractHarness) -> None:
    task_id = await scene.task("a")

    assert await scene.claim(worker="wrk_unknown") == ()
    assert (await scene.advance(claim=0)).claims == ()
    assert await scene.statuses(task_id) == {"a": StepStatus.READY}


@pytest.mark.parametrize(("ready", "live", "share"), [(10, 2, 5), (10, 3, 4), (1, 4, 1), (10, 1, 8)])
async def test_one_worker_takes_no_more_than_its_share(
    scene: ContractHarness, ready: int, live: int, share: int
) -> None:
    await scene.task(*(f"s{number}" for number in range(ready)))

    advance = await scene.advance(claim=8, live_workers=live)

    assert len(advance.claims) == share


@pytest.mark.parametrize(
    ("held", "own", "share"),
    [
        (5, 0, 5),  # all that another has left of ten
        (6, 0, 4),
        (2, 0, 5),
        (4, 2, 3),
        (0, 4, 3),  # of what is ready its even share at the least: whether others can take it nobody knows
    ],
)
async def test_a_worker_that_holds_less_than_others_takes_more(
    scene: ContractHarness, held: int, own: int, share: int
) -> None:
    other = await scene.another_worker()
    await scene.task(*(f"s{number}" for number in range(10)))
    await scene.advance(claim=held, worker=other)
    await scene.advance(claim=own)

    advance = await scene.advance(claim=8, live_workers=2)

    assert len(advance.claims) == share
    assert advance.ready_left == (held + own + share < 10)


async def test_backlog_counts_ready_steps_by_pool_up_to_a_limit(scene: ContractHarness) -> None:
    await scene.task("a", "b", "c", make_step("d", pool="big"), make_step("e", depends_on=("a",)))

    assert (await scene.store.claims.backlog()).ready == {"default": 3, "big": 1}
    assert (await scene.store.claims.backlog(limit=2)).ready == {"default": 2, "big": 1}


@pytest.mark.spec("DIS-04")
async def test_backlog_says_whom_the_waiting_steps_need(scene: ContractHarness) -> None:
    await scene.task("a", "b", make_step("c", needs=("gpu", "tool:x")), make_step("d", pool="big"))
    await scene.claim_one()
    session_id = scene.own.session_id

    waiting = (await scene.store.claims.backlog()).waiting

    assert waiting == {
        WaitingSteps(session_id, "default"),
        WaitingSteps(session_id, "default", ("gpu", "tool:x")),
        WaitingSteps(session_id, "big"),
    }


@pytest.mark.spec("DIS-03")
async def test_backlog_counts_no_more_than_the_limits_let_through(scene: ContractHarness) -> None:
    await scene.store.claims.set_concurrency_limits([ConcurrencyLimit("definition:x", 2)])
    await scene.task(*(make_step(f"x{number}", definition="x") for number in range(4)), "free")
    await scene.claim_one()

    assert (await scene.store.claims.backlog()).ready == {"default": 2}


# -- what a worker holds by the rows: how it learns of a claim whose answer was lost
async def test_a_worker_learns_of_all_its_leases_and_of_no_other(scene: ContractHarness) -> None:
    task_id = await scene.task("a", "b", "c", "d")
    mine = await scene.claim(3)
    other = await scene.another_worker()
    theirs = await scene.claim(1, worker=other)
    await scene.complete(mine[0])

    leases = await scene.store.claims.leases(scene.worker)

    assert list(leases) == [held(claim) for claim in mine[1:]]
    assert list(await scene.store.claims.leases(other)) == [held(claim) for claim in theirs]
    assert (await scene.statuses(task_id))["a"] is StepStatus.COMPLETED


async def test_a_worker_that_was_declared_gone_holds_nothing(scene: ContractHarness) -> None:
    await scene.start("a", "b")

    await scene.expire()

    assert not await scene.store.claims.leases(scene.worker)


# -- who had a run made stands in its row and in what its worker is told, however it comes about
ROOT = Origin("root", is_foreign=True)
ADA = Origin("ada")


def dispatched(step: NewStep, origin: Origin) -> NewStep:
    assert step.run is not None
    return replace(step, run=made_by(step.run, origin))


def made_by(run: NewRun, origin: Origin) -> NewRun:
    return replace(run, identity=replace(run.identity, origin=origin))


@pytest.mark.spec("CARD-3", "DIS-05")
async def test_a_worker_learns_who_had_each_of_its_runs_made(scene: ContractHarness, other_store: Store) -> None:
    task = make_task(scene.own.session_id, "a", "b", "c")
    origins = dict(zip("abc", (OWN, ADA, ROOT), strict=True))
    steps = tuple(dispatched(step, origins[step.step_id]) for step in task.steps)
    await scene.store.tasks.create_task(replace(task, steps=steps))

    claims = {claim.step_key.rpartition("/")[2]: claim for claim in await scene.claim()}

    assert {step_id: claim.identity.origin for step_id, claim in claims.items()} == origins
    for claim in claims.values():
        assert (await other_store.runs.run(claim.identity.run_id)).identity == claim.identity


@pytest.mark.spec("CARD-3", "DIS-05")
async def test_a_question_names_who_had_its_run_made(scene: ContractHarness) -> None:
    task = make_task(scene.own.session_id, "a")
    await scene.store.tasks.create_task(replace(task, steps=(dispatched(task.steps[0], ROOT),)))
    claim = await scene.claim_one()

    await scene.raised(make_request(claim))

    found = await scene.store.consent.open_questions(scene.own.session_id, limit=10)
    assert found is not None
    assert [one.identity.origin for one in found.pending] == [ROOT]
    assert [one.request.identity.origin for one in await scene.store.consent.questions()] == [ROOT]


@pytest.mark.spec("CARD-3", "DIS-05")
async def test_a_retry_belongs_to_who_asks_for_it_and_so_is_what_its_maps_expand_to(scene: ContractHarness) -> None:
    task_id = await scene.task("a")
    await scene.store.tasks.cancel_task(scene.own, task_id, reason="", now_us=scene.now_us)
    task = await scene.store.tasks.task(task_id)
    last = await scene.store.runs.run((await scene.store.tasks.step(f"{task_id}/a")).run_id)

    run = made_by(make_retry(last), ROOT)
    await scene.store.tasks.retry_task(scene.own, task_id, [run], origin=ROOT, now_us=scene.now_us)

    assert (await scene.claim_one()).identity.origin == ROOT
    assert (await scene.store.runs.run(task.root_run_id)).identity.origin == ROOT
    assert (await scene.store.runs.run(last.id)).identity.origin == OWN


JOIN = ("a", "b", make_step("join", depends_on=("a", "b")))


@pytest.mark.spec("DAG-04", "CARD-2", "EVT-02")
async def test_join_is_ready_when_its_last_parent_has_completed_and_its_claim_tells_since_when(
    scene: ContractHarness,
) -> None:
    task_id = await scene.task(*JOIN)
    first, second = await scene.claim()
    await scene.complete(first)
    assert (await scene.statuses(task_id))["join"] is StepStatus.PENDING
    await scene.complete(second)
    join, unlocked_us = (await scene.steps(task_id))["join"], scene.now_us
    assert (join.status, join.open_deps) == (StepStatus.READY, 0)

    scene.clock.advance(timedelta(seconds=5))
    claim = await scene.claim_one()

    *_, ready, claimed, started = await scene.store.runs.events(claim.identity.run_id)
    assert [event.type for event in (ready, claimed, started)] == ["step_ready", "step_claimed", "run_started"]
    assert (ready.time_us, claimed.time_us) == (unlocked_us, scene.now_us)


@pytest.mark.spec("DAG-04", "EVT-02")
async def test_cancelled_step_tells_that_it_had_been_ready(scene: ContractHarness) -> None:
    task_id = await scene.task(*JOIN)
    await scene.complete_all(await scene.claim())

    await scene.store.tasks.cancel_task(scene.own, task_id, reason="enough", now_us=scene.now_us)

    join = (await scene.steps(task_id))["join"]
    types = await scene.event_types(join.run_id)
    assert types == ["run_created", "step_created", "step_ready", "step_cancelled", "run_cancelled"]


@pytest.mark.spec("CARD-2")
async def test_two_parents_ending_at_once_unlock_their_join_exactly_once(
    scene: ContractHarness, other_store: Store
) -> None:
    second_worker = await scene.another_worker()
    other = ContractHarness(other_store, scene.own, second_worker, scene.clock)

    for _ in range(100):
        task_id = await scene.task(*JOIN)
        mine, theirs = await scene.claim_one(), await other.claim_one()

        await asyncio.gather(scene.complete(mine), other.complete(theirs))

        join = (await scene.steps(task_id))["join"]
        assert (join.status, join.open_deps) == (StepStatus.READY, 0)
        await scene.complete(await scene.claim_one())
        assert (await scene.event_types(join.run_id)).count("step_ready") == 1


@pytest.mark.spec("CARD-2")
async def test_crossed_joins_ended_at_once_do_not_block_each_other(scene: ContractHarness, other_store: Store) -> None:
    other = ContractHarness(other_store, scene.own, await scene.another_worker(), scene.clock)
    joins = [make_step(f"join{number}", depends_on=("a", "b", "c", "d")) for number in range(5)]

    for _ in range(10):
        task_id = await scene.task("a", "b", "c", "d", *joins)
        mine, theirs = await scene.claim(2), await other.claim(2)

        await asyncio.gather(scene.complete_all(mine), other.complete_all(theirs[::-1]))

        statuses = await scene.statuses(task_id)
        assert [statuses[join.step_id] for join in joins] == [StepStatus.READY] * 5
        await scene.complete_all(await scene.claim())


async def test_map_whose_dependencies_are_done_waits_for_the_expander(scene: ContractHarness) -> None:
    task_id = await scene.task("a", make_map("m", depends_on=("a",)))

    advance = await scene.complete(await scene.claim_one())

    assert (await scene.statuses(task_id))["m"] is StepStatus.EXPANDING
    assert advance.owner_sessions == {scene.own.session_id}


@pytest.mark.spec("DAG-10", "DIS-05.a")
async def test_end_is_stored_whole(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    scene.clock.advance(timedelta(seconds=1))
    output: Json = {"findings": [{"line": 3, "text": "größer"}], "score": 0.5, "none": None}
    part = Usage(requests=1, input_tokens=4, cost_usd=Decimal("0.5"))
    usage = Usage(requests=2, input_tokens=10, output_tokens=5, tool_calls=1, by_model={"a:b": part, "c:d": Usage(1)})

    await scene.advance([replace(completed(claim, output), usage=usage, outcome=Outcome.PARTIAL)])

    step, run = await scene.store.tasks.step(claim.step_key), await scene.store.runs.run(claim.identity.run_id)
    assert (step.status, step.output, step.outcome) == (StepStatus.COMPLETED, output, Outcome.PARTIAL)
    assert (run.status, run.end_reason, run.usage) == (RunStatus.COMPLETED, EndReason.COMPLETED, usage)
    assert step.ended_us == run.ended_us == scene.now_us
    assert await scene.store.tasks.result(claim.step_key) == StepResult("a", step.status, output, Outcome.PARTIAL)


@pytest.mark.spec("EVT-01", "EXE-06")
async def test_nodes_and_events_of_an_end_stand_before_the_end_itself(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    node, event = NewNode(NodeKind.RESULT, {"v": 1, "text": "done"}), NewEvent("model_responded", {"turn": 1})

    await scene.advance([completed(claim, nodes=[node], events=[event])])

    types = await scene.event_types(claim.identity.run_id)
    assert types[-3:] == ["model_responded", "step_completed", "run_completed"]
    assert [stored.payload for stored in await scene.store.runs.nodes(claim.identity.run_id)] == [node.payload]


async def test_owner_is_named_when_nothing_was_opened_or_claimed_with_an_end(scene: ContractHarness) -> None:
    await scene.task("a", "b", "c", make_step("d", depends_on=("a", "b")))
    claims = {claim.step_key.rpartition("/")[2]: claim for claim in await scene.claim(2)}

    with_claim = await scene.advance([completed(claims["a"])], claim=1)
    without_claim = await scene.advance([completed(with_claim.claims[0])])
    opening = await scene.advance([completed(claims["b"])])

    assert [step_ids(with_claim.claims), with_claim.owner_sessions] == [["c"], frozenset()]
    assert without_claim.owner_sessions == {scene.own.session_id}  # whether others still run, its owner reads
    assert (opening.owner_sessions, opening.ready_left) == (frozenset(), True)
