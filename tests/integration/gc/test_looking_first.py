import asyncio
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import text

from soong.orchestrator.client.bootstrap import open_collector, open_retention
from soong.orchestrator.retention.collector import AutomaticRetention, RetentionLimits, RetentionSettings
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.settings import load_settings
from soong.shared.core.timing import SystemClock
from soong.shared.engine.runs.events import NewEvent
from soong.shared.storage.sql.store import open_store
from soong.shared.storage.sql.tasks.retention import PAGE
from tests.integration.gc.place import DAY_US, Place
from tests.integration.sql_stores import connected
from tests.servers import PostgresServer
from tests.waiting import looks

ANY_AGE = -1e9
"""The files are as old as this machine's clock says, the rows as the scene's clock says."""


# -- looking first, several at once, by itself
async def _written_folders(place: Place, task_id: str, size: int = 200_000) -> list[Path]:
    folders = [place.home / "runs" / run.id for run in await place.store.runs.list_runs(task_id=task_id)]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "log").write_bytes(b"x" * size)
    return folders


@pytest.mark.spec("OPS-10.a", "OPS-10.b")
async def test_a_dry_run_says_what_goes_by_age_and_by_size_and_removes_nothing(place: Place) -> None:
    for _ in range(6):
        await _written_folders(place, await place.ended_task())
        place.scene.clock.advance(timedelta(days=1))
    before, limit_us = place.tables(), place.scene.now_us - 4 * DAY_US + 1
    used = (await place.collector.preview(RetentionLimits(0))).used_bytes

    by_age = await place.collector.preview(RetentionLimits(limit_us))
    by_size = await place.collector.preview(RetentionLimits(limit_us, keep_bytes=used - by_age.freed_bytes - 1))
    nothing = await place.collector.preview(RetentionLimits(0, keep_bytes=used + 1))

    assert (by_age.tasks, by_age.steps, by_age.folders, by_age.folder_bytes) == (3, 6, 9, 9 * 200_000)
    assert (by_size.tasks, by_size.folder_bytes) == (4, 12 * 200_000)
    assert (nothing.tasks, by_age.used_bytes) == (0, used)
    assert place.tables() == before
    removed = await place.collector.collect(RetentionLimits(limit_us))
    assert (removed.tasks, removed.steps, removed.runs, removed.folders) == (
        *(by_age.tasks, by_age.steps, by_age.runs, by_age.folders),
    )


@pytest.mark.spec("OPS-10.a", "OPS-10.b")
async def test_a_dry_run_says_what_artifacts_would_go_by_kind(place: Place) -> None:
    text_, file_, shared_, open_, loose = [
        await place.artifacts.put(bytes([65 + number]) * size) for number, size in enumerate((3000, 500, 70, 9, 20))
    ]
    block: JsonObject = {
        "kind": "artifact_ref",
        "digest": text_.digest,
        "size_bytes": 3000,
        "media_type": "text/plain",
        "name": "",
    }
    written: JsonObject = {"name": "a", "path": "/a", "digest": file_.digest, "size_bytes": 500}
    both = NewEvent("tool_completed", {"artifacts": [shared_.digest]})
    await place.ended_task(
        events=(NewEvent("tool_completed", {"content": [block]}), NewEvent("tool_completed", {"deliverable": written}))
    )
    after_first_us = place.scene.now_us + 1
    place.scene.clock.advance(timedelta(days=1))
    await place.ended_task(events=(both,))
    place.scene.clock.advance(timedelta(days=2))
    await place.ended_task(events=(both, NewEvent("tool_completed", {"artifacts": [open_.digest]})))

    of_first = await place.collector.preview(RetentionLimits(after_first_us, grace_s=ANY_AGE))
    seen = await place.collector.preview(RetentionLimits(place.scene.now_us - DAY_US, grace_s=ANY_AGE))
    removed = await place.collector.collect(RetentionLimits(place.scene.now_us - DAY_US, grace_s=ANY_AGE))

    assert seen.artifact_bytes == {"text/plain": 3000, "deliverable": 500, "other": loose.size_bytes}
    assert (of_first.tasks, of_first.artifact_bytes) == (1, seen.artifact_bytes)
    assert (seen.artifacts, removed.artifacts) == (3, 3)
    assert {one.digest for one in place.artifacts.stored()} == {shared_.digest, open_.digest}


@pytest.mark.spec("OPS-10.a")
async def test_a_dry_run_counts_old_folders_of_calls_without_a_service(place: Place) -> None:
    for name, changed_s in (("run_old", 1.0), ("run_young", 4e9)):
        folder = place.home / "runs" / name
        folder.mkdir(parents=True)
        (folder / "events.jsonl").write_bytes(b"x" * 70)
        os.utime(folder, (changed_s, changed_s))

    seen = await place.collector.preview(place.all_ended)
    removed = await place.collector.collect(place.all_ended)

    assert (seen.folders, seen.folder_bytes) == (removed.folders, removed.file_bytes) == (1, 70)
    assert [path.name for path in (place.home / "runs").iterdir()] == ["run_young"]


@pytest.mark.spec("OPS-10.c")
async def test_an_artifact_that_only_the_last_of_thousands_of_rows_names_stays(place: Place) -> None:
    refs = [await place.artifacts.put(f"named {number}".encode()) for number in range(3)]
    names = [sha256(f"row {number}".encode()).hexdigest() for number in range(2 * PAGE + 1)]
    for number, ref in zip((PAGE - 1, PAGE, 2 * PAGE), refs, strict=True):
        names[number] = ref.digest
    await place.ended_task(events=tuple(NewEvent("tool_completed", {"artifacts": [name]}) for name in names))

    await place.collector.collect(RetentionLimits(0, grace_s=ANY_AGE))

    assert {one.digest for one in place.artifacts.stored()} == {ref.digest for ref in refs}


@pytest.mark.spec("OPS-10.b")
async def test_size_counts_what_is_stored_and_not_the_room_that_removed_rows_left(place: Place) -> None:
    large = "x" * 20_000
    for _ in range(20):
        await place.ended_task(events=(NewEvent("tool_completed", {"text": large + str(Random(1).random())}),) * 5)
    place.scene.clock.advance(timedelta(days=1))
    kept = await place.ended_task()
    full = await place.rows.used_bytes()
    await place.collector.collect(RetentionLimits(place.scene.now_us - 1000))
    if place.url.startswith("postgres"):
        with connected(place.url) as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").execute(text("VACUUM"))

    left = await place.rows.used_bytes()
    await place.collector.collect(RetentionLimits(0, keep_bytes=full // 2))

    assert left < full // 2
    assert [task.id for task in await place.store.tasks.list_tasks()] == [kept]


@pytest.mark.spec("OPS-10.b")
async def test_size_removes_hardly_more_than_it_must(place: Place) -> None:
    for number in range(30):
        await place.ended_task(
            events=(NewEvent("tool_completed", {"text": f"{Random(number).randbytes(9000).hex()}"}),)
        )
    full = await place.rows.used_bytes()
    seen = await place.collector.preview(RetentionLimits(place.all_ended.before_us))

    done = await place.collector.collect(RetentionLimits(0, keep_bytes=full * 2 // 3))

    assert 8 <= done.tasks <= 16, "a third of them, and what pages that are not full take"
    assert 0.5 < seen.freed_bytes / full < 1.3
    assert done.used_bytes <= full * 2 // 3


@pytest.mark.spec("OPS-10.d")
async def test_collections_at_once_remove_each_task_once(place: Place, tmp_path: Path) -> None:
    for _ in range(10):
        await _written_folders(place, await place.ended_task(), size=1)
    for number in range(30):
        (place.home / "runs" / f"run_direct{number}").mkdir()
    rows = await open_retention(load_settings(agent_home=tmp_path, database_url=place.url))
    limits = RetentionLimits(max(place.all_ended.before_us, time.time_ns() // 1000 + 1), grace_s=0.0)
    try:
        one, other = await asyncio.gather(place.collector.collect(limits), place.collector_over(rows).collect(limits))
    finally:
        await rows.close()

    assert one.tasks + other.tasks == 10
    assert one.folders + other.folders == 60
    assert {name for name, rows_ in place.tables().items() if name in ("tasks", "steps", "runs") and rows_} == set()


# -- what a run may have left
@pytest.mark.spec("OPS-10.a", "OPS-12.d")
async def test_folders_within_folders_without_end_stop_no_collection(place: Place) -> None:
    bottomless = (await _written_folders(place, await place.ended_task()))[0]
    others = await _written_folders(place, await place.ended_task())
    _nest(bottomless, 1200)

    with _few_descriptors(200):
        seen = await place.collector.preview(place.all_ended)
        done = await place.collector.collect(place.all_ended)

    assert (seen.folders, done.folders) == (6, 6)
    assert not any(folder.exists() for folder in (bottomless, *others))


@pytest.mark.spec("OPS-10.a", "OPS-12.d")
async def test_links_in_a_run_folder_go_and_what_they_lead_to_stays_and_does_not_count(place: Place) -> None:
    folder = (await _written_folders(place, await place.ended_task(), size=10))[0]
    outside = place.home / "outside"
    outside.mkdir()
    (outside / "large").write_bytes(b"x" * 100_000)
    links = {"file": outside / "large", "folder": outside, "nowhere": place.home / "missing"}
    within = folder / "within"
    within.mkdir()
    for name, target in links.items():
        (folder / name).symlink_to(target)
        (within / name).symlink_to(target)
    expected = 3 * 10 + 2 * sum(len(str(target)) for target in links.values())

    seen = await place.collector.preview(place.all_ended)
    done = await place.collector.collect(place.all_ended)

    assert (seen.folder_bytes, done.file_bytes, done.folders) == (expected, expected, 3)
    assert list((place.home / "runs").iterdir()) == []
    assert (outside / "large").stat().st_size == 100_000


@pytest.mark.spec("OPS-10.a", "OPS-12.d")
async def test_what_lies_in_the_place_of_an_artifact_keeps_no_other_from_being_removed(place: Place) -> None:
    ref = await place.artifacts.put(b"nothing names it")
    (place.home / "artifacts" / "ab" / ("0" * 62)).mkdir(parents=True)
    stuck = await place.artifacts.put(b"cannot be put aside")
    path = place.artifacts.path_of(stuck.digest)
    (path.parent / f".old-{path.name}").mkdir()

    done = await place.collector.collect(RetentionLimits(0, grace_s=ANY_AGE))

    assert [one.digest for one in place.artifacts.stored()] == [stuck.digest]
    assert done.artifacts == 1
    assert ref.digest != stuck.digest


@contextmanager
def _few_descriptors(more: int) -> Iterator[None]:
    """Let this process open only so many descriptors more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + more, hard)
    )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _nest(folder: Path, depth: int) -> None:
    """Make folders within a folder, deeper than any path can name and a process can hold open."""
    current = os.open(folder, os.O_RDONLY)
    for number in range(depth):
        os.mkdir("d", dir_fd=current)
        inner = os.open("d", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = inner
        if number % 1000 == 0:
            with os.fdopen(os.open("f", os.O_WRONLY | os.O_CREAT, dir_fd=current), "wb") as file:
                file.write(b"x")
    os.close(current)


# -- by itself
@pytest.mark.spec("OPS-10.a", "OPS-10.d")
async def test_a_service_with_the_setting_collects_by_itself_and_by_default_never(place: Place, tmp_path: Path) -> None:
    await place.ended_task()
    place.scene.clock.advance(timedelta(days=40))
    young = await place.ended_task()
    settings = load_settings(agent_home=tmp_path, database_url=place.url, gc_older_than="30d", gc_every_s=0.01)
    automatic = AutomaticRetention(
        RetentionSettings.of(settings), partial(open_collector, settings, place.scene.clock), place.scene.clock
    )
    running = asyncio.create_task(automatic.run())
    try:
        async for _ in looks(30):
            if len(await place.store.tasks.list_tasks()) <= 1:
                break
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    assert [task.id for task in await place.store.tasks.list_tasks()] == [young]
    assert not RetentionSettings.of(load_settings(agent_home=tmp_path)).is_on
    assert RetentionSettings.of(load_settings(agent_home=tmp_path, gc_older_than="0s")).is_on
    assert RetentionSettings.of(load_settings(agent_home=tmp_path, gc_keep="1GiB")).is_on


@pytest.mark.spec("OPS-10.d")
async def test_a_service_whose_role_may_not_remove_rows_says_so_once_and_collects_no_more(
    postgres_session_server: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with postgres_session_server.fresh_database("soong_gc_service") as url:
        await (await open_store(url, migrate=True)).close()
        with connected(url) as connection, connection.begin():
            connection.execute(text("DROP ROLE IF EXISTS gc_service"))
            connection.execute(text("CREATE ROLE gc_service LOGIN"))
            connection.execute(text("GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA public TO gc_service"))
        settings = load_settings(
            agent_home=tmp_path, database_url=url.replace("postgres@", "gc_service@"), gc_keep="1GiB", gc_every_s=0.01
        )
        clock = SystemClock()
        automatic = AutomaticRetention(RetentionSettings.of(settings), partial(open_collector, settings, clock), clock)
        async with asyncio.timeout(30):
            await automatic.run()

        assert capsys.readouterr().out.count("gc_not_possible") == 1
        with connected(url) as connection, connection.begin():
            connection.execute(text("DROP OWNED BY gc_service"))
            connection.execute(text("DROP ROLE gc_service"))
