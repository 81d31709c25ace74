"""Garbage collection on both databases and in a bucket: what has ended goes, the rest stays (OPS-10)."""

import dataclasses
import os
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from soong.orchestrator.retention.collector import RetentionLimits
from soong.shared.core.errors import NotFoundError, UnavailableError
from soong.shared.core.identity import RunIdentity
from soong.shared.engine.runs.budgets import Budget, session_scope, task_scope
from soong.shared.engine.runs.events import NewEvent
from soong.shared.engine.runs.record import Usage
from soong.shared.engine.sessions.session import CommandKind
from soong.shared.engine.tasks.spec import FailurePolicy, TaskStatus
from soong.shared.storage.s3_artifacts import Bucket, S3Artifacts
from tests.contract.scene import ContractHarness, mark_recorded
from tests.integration.gc.place import DAY_US, Place
from tests.model.builders import make_request, make_session, make_step, make_task
from tests.s3_server import CREDENTIALS, s3_server


@pytest.mark.spec("OPS-10.a")
async def test_an_ended_task_goes_with_all_its_rows_and_folders(place: Place) -> None:
    before = place.tables()
    task_id = await place.ended_task(events=(NewEvent("tool_completed", {"x": 1}),))
    runs = await place.store.runs.list_runs(task_id=task_id)
    for run in runs:
        (place.home / "runs" / run.id / "logs").mkdir(parents=True)

    done = await place.collector.collect(place.all_ended)

    assert (done.tasks, done.steps, done.runs, done.folders) == (1, 2, len(runs), len(runs))
    with pytest.raises(NotFoundError):
        await place.store.tasks.task(task_id)
    after = place.tables()
    assert {name for name in after if after[name] != before[name]} <= {"sessions", "surfaces", "workers"}
    assert list((place.home / "runs").iterdir()) == []


@pytest.mark.spec("OPS-10.a", "DIS-07")
async def test_the_limits_of_a_task_go_with_it_and_those_of_others_stay(place: Place) -> None:
    task_id, scope = await place.ended_task(), session_scope(place.scene.own.session_id)
    for name in (task_scope(task_id), scope):
        await place.store.budgets.set_budget(name, Budget(tokens=5))

    await place.collector.collect(place.all_ended)

    assert list(await place.store.budgets.budgets([task_scope(task_id), scope], day="2026-11-24")) == [scope]


@pytest.mark.spec("OPS-10.c")
async def test_a_command_that_an_owner_will_carry_out_keeps_its_task(place: Place) -> None:
    task_id = await place.ended_task()
    await place.scene.command(task_id, CommandKind.RETRY)

    assert (await place.collector.collect(place.all_ended)).tasks == 0


OPEN = {
    "asking": ("claim", "ask"),
    "paused": ("pause",),
    "ended and its folders not written": ("claim", "complete", "finish"),
    "failed and not settled": ("claim", "fail"),
}


@pytest.mark.spec("OPS-10.c")
@pytest.mark.parametrize("verbs", OPEN.values(), ids=OPEN.keys())
async def test_what_is_open_stays_row_for_row(place: Place, verbs: tuple[str, ...]) -> None:
    await _play(place.scene, await place.scene.task("a"), verbs)
    before = place.tables()

    done = await place.collector.collect(place.all_ended)

    assert (done.tasks, done.runs) == (0, 0)
    assert place.tables() == before


@pytest.mark.spec("OPS-10.d")
async def test_a_task_that_is_tried_again_first_is_not_removed(place: Place) -> None:
    task_id = await place.scene.task("a")
    await _play(place.scene, task_id, ("claim", "fail", "settle", "finish"))
    await mark_recorded(place.store, task_id)
    (listed,) = await place.rows.ended_tasks(before_us=place.all_ended.before_us, limit=10)

    await place.scene.retry_task(task_id)

    assert not await place.rows.remove_task(listed.id, before_us=place.all_ended.before_us)
    assert (await place.store.tasks.task(task_id)).status is TaskStatus.RUNNING


@pytest.mark.spec("OPS-10.b")
async def test_size_removes_the_oldest_until_enough_is_free(place: Place) -> None:
    sizes = {}
    for number in range(8):
        data = bytes([number]) * 400_000
        ref = await place.artifacts.put(data)
        event = NewEvent("tool_completed", {"artifacts": [ref.digest]})
        sizes[await place.ended_task(events=(event,))] = ref.digest
        place.scene.clock.advance(timedelta(days=1))
    await place.scene.task("open")
    used = (await place.collector.preview(place.all_ended)).used_bytes

    done = await place.collector.collect(RetentionLimits(0, keep_bytes=used - 1_000_000, grace_s=-60 * DAY_US))

    left = [task.id for task in await place.store.tasks.list_tasks() if task.status is TaskStatus.COMPLETED]
    assert 0 < done.tasks < 8
    assert left == list(reversed(list(sizes)))[: len(left)], "the newest stay"
    assert {one.digest for one in place.artifacts.stored()} == {sizes[task_id] for task_id in left}


@pytest.mark.spec("OPS-10")
async def test_an_artifact_stays_as_long_as_any_row_or_folder_names_it(place: Place) -> None:
    named = [await place.artifacts.put(name.encode() * 100) for name in ("removed", "kept", "direct", "nobody")]
    await place.ended_task(events=(NewEvent("tool_completed", {"artifacts": [named[0].digest, named[1].digest]}),))
    place.scene.clock.advance(timedelta(days=2))
    await place.ended_task(events=(NewEvent("tool_completed", {"artifacts": [named[1].digest]}),))
    direct = place.home / "runs" / "run_direct"
    direct.mkdir(parents=True)
    (direct / "events.jsonl").write_text(f'{{"data": {{"digest": "{named[2].digest}"}}}}\n')
    os.utime(direct, (4e9, 4e9))

    await place.collector.collect(RetentionLimits(place.scene.now_us - DAY_US, grace_s=-60 * DAY_US))

    assert {one.digest for one in place.artifacts.stored()} == {named[1].digest, named[2].digest}


@pytest.mark.spec("OPS-10")
async def test_a_link_among_the_run_folders_is_neither_followed_nor_emptied(place: Place) -> None:
    task_id = await place.ended_task()
    run = (await place.store.runs.list_runs(task_id=task_id))[0]
    elsewhere = place.home / "precious"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("keep")
    (place.home / "runs").mkdir()
    (place.home / "runs" / run.id).symlink_to(elsewhere)

    await place.collector.collect(place.all_ended)

    assert (elsewhere / "file").read_text() == "keep"


@pytest.mark.spec("OPS-10")
async def test_a_closed_session_without_tasks_goes_with_its_limits(place: Place) -> None:
    await place.ended_task()
    await place.scene.store.sessions.close_session(place.scene.own)
    place.scene.clock.advance(timedelta(seconds=1))

    done = await place.collector.collect(place.all_ended)

    assert done.sessions == 1
    assert place.tables()["sessions"] == []
    assert [row for row in place.tables()["concurrency_limits"] if "session:" in repr(row)] == []


async def _play(scene: ContractHarness, task_id: str, verbs: tuple[str, ...]) -> None:
    claim = None
    for verb in verbs:
        match verb:
            case "claim":
                claim = next(one for one in await scene.claim() if one.identity.task_id == task_id)
            case "ask":
                assert claim is not None
                await scene.raised(make_request(claim))
            case "complete":
                assert claim is not None
                await scene.complete_all([claim], Usage(tool_calls=1))
            case "fail":
                assert claim is not None
                await scene.fail(claim)
            case "settle":
                assert claim is not None
                await scene.store.tasks.settle_failure(
                    scene.own, claim.step_key, FailurePolicy.SKIP_DEPENDENTS, now_us=scene.now_us
                )
            case "finish":
                await scene.store.tasks.finish_task(scene.own, task_id, now_us=scene.now_us)
            case "pause":
                await scene.store.tasks.pause_task(scene.own, task_id, reason="", now_us=scene.now_us)


def _rows_of(tables: dict[str, list[Any]], task_ids: set[str]) -> dict[str, list[Any]]:
    """Return the rows that name one of the tasks or one of their runs."""
    runs = {row.id for row in tables["runs"] if row.task_id in task_ids}
    names = task_ids | runs
    return {name: [row for row in rows if any(one in repr(row) for one in names)] for name, rows in tables.items()}


# -- work that comes back while what has ended goes
async def again(place: Place, task_id: str) -> str:
    """Submit a task under an id that stood before, as an `Idempotency-Key` does; return a claimable run of it."""
    task = make_task(place.scene.own.session_id, "a", "b", id=task_id)
    await place.store.tasks.create_task(task)
    return task.root_run.identity.run_id


@pytest.mark.spec("OPS-10.c", "OPS-10.d")
async def test_a_task_that_comes_back_under_its_id_loses_nothing_to_the_collection_of_the_former(place: Place) -> None:
    task_id = await place.ended_task("a", "b")
    assert await place.rows.remove_task(task_id, before_us=place.all_ended.before_us)
    await place.rows.remove_rest(task_id, limit=100)  # its steps: its runs are left
    root = await again(place, task_id)
    before = _rows_of(place.tables(), {root})

    await place.rows.remove_rest(task_id, limit=100)
    await place.collector.collect(place.all_ended)

    assert len(await place.store.tasks.steps(task_id)) == 2
    assert _rows_of(place.tables(), {root}) == before
    claims = await place.scene.claim()
    assert len(claims) == 2
    for claim in claims:
        await place.scene.complete(claim)


@pytest.mark.spec("OPS-10.c", "OPS-10.d")
async def test_a_session_whose_first_task_is_being_written_is_neither_closed_nor_removed(place: Place) -> None:
    session = replace(make_session(), created_us=place.scene.now_us)
    await place.store.sessions.open_session(session)  # a client writes the task next

    for _ in range(2):
        await place.collector.collect(RetentionLimits(place.scene.now_us + 1))
    await place.store.tasks.create_task(make_task(session.id, "a"))

    assert not (await place.store.sessions.session(session.id)).is_closed


@pytest.mark.spec("OPS-10.d")
async def test_a_task_that_is_written_into_a_closed_session_is_run(place: Place) -> None:
    await place.ended_task()
    session_id = place.scene.own.session_id
    place.scene.clock.advance(timedelta(seconds=1))
    await place.collector.collect(place.all_ended)
    assert (await place.store.sessions.session(session_id)).is_closed

    await place.store.tasks.create_task(make_task(session_id, "a"))
    await place.collector.collect(place.all_ended)

    session = await place.store.sessions.session(session_id)
    assert (session.is_closed, session.owner_id) == (False, "")
    assert session_id in {one.id for one in await place.store.sessions.adopt_sessions(place.scene.own.owner_id)}


@pytest.mark.spec("OPS-10.c", "OPS-10.d")
async def test_a_task_that_comes_back_while_its_former_steps_are_left_is_asked_to_come_again(place: Place) -> None:
    task_id = await place.ended_task("a", "b")
    assert await place.rows.remove_task(task_id, before_us=place.all_ended.before_us)

    with pytest.raises(UnavailableError, match="is being removed; submit it again"):
        await again(place, task_id)
    await place.collector.collect(place.all_ended)
    await again(place, task_id)

    assert len(await place.store.tasks.steps(task_id)) == 2


async def _planned(place: Place, agent: RunIdentity, *steps: str) -> str:
    """Submit a task as that agent does; return its id."""
    task = make_task(place.scene.own.session_id, *steps)
    root = replace(task.root_run.identity, parent_run_id=agent.run_id, parent_agent_id=agent.agent_id)
    await place.store.tasks.create_task(replace(task, root_run=replace(task.root_run, identity=root)))
    return task.id


async def _ended(place: Place, task_id: str) -> None:
    await place.store.tasks.finish_task(place.scene.own, task_id, now_us=place.scene.now_us)
    await mark_recorded(place.store, task_id)


@pytest.mark.spec("OPS-10.c")
async def test_what_the_agents_of_an_open_task_planned_stays_for_its_later_steps_to_read(place: Place) -> None:
    outer = await place.scene.task("plans", make_step("reads", depends_on=["plans"]))
    planner = await place.scene.claim_one()
    middle = await _planned(place, planner.identity, "plans_too")
    second = await place.scene.claim_one()
    inner = await _planned(place, second.identity, "works")
    worker = await place.scene.claim_one()
    limits = RetentionLimits(place.scene.now_us + 1, keep_bytes=1)
    removed = []
    for claim, task_id in ((worker, inner), (second, middle), (planner, "")):
        await place.scene.complete(claim)
        if task_id:
            await _ended(place, task_id)
        removed.append((await place.collector.collect(limits)).tasks)

    await place.store.tasks.cancel_task(place.scene.own, outer, reason="", now_us=place.scene.now_us)
    await _ended(place, outer)
    removed.append((await place.collector.collect(limits)).tasks)

    assert removed == [0, 0, 0, 3]


@pytest.mark.spec("OPS-10.a", "OPS-10.c", "EVT-04.b")
async def test_artifacts_in_a_bucket_go_once_no_row_names_them(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server() as address:
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL_S3": address}.items():
            monkeypatch.setenv(name, value)
        bucket = S3Artifacts(Bucket("artifacts", "soong/"))
        bucket._opened().create_bucket(Bucket="artifacts")
        named, nobodys = await bucket.put(b"named"), await bucket.put(b"of nobody")
        await place.ended_task(events=(NewEvent("tool_completed", {"artifacts": [named.digest]}),))
        collector = dataclasses.replace(place.collector, artifacts=bucket)

        young = await collector.collect(RetentionLimits(0))
        orphans = await collector.collect(RetentionLimits(0, grace_s=-60 * DAY_US))
        left = [one.digest for one in bucket.stored()]
        done = await collector.collect(replace(place.all_ended, grace_s=-60 * DAY_US))

        assert (young.artifacts, orphans.artifacts, orphans.file_bytes) == (0, 1, nobodys.size_bytes)
        assert left == [named.digest]
        assert (done.tasks, done.artifacts) == (1, 1)
        assert list(bucket.stored()) == []
