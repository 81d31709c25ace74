import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from soong.orchestrator.owner import run_archive
from soong.shared.core import timing
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.runs.record import EndReason, Usage
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import StepEnd
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.storage.artifacts import FolderArtifacts
from soong.shared.tools.result import ArtifactRef
from tests.integration.run_archiving import advance, ended_run, lines, run_folders, write_folders
from tests.model.builders import open_session, open_task, open_worker
from tests.model.clock import START_US, FakeClock
from tests.model.memory.store import MemoryStore


@pytest.mark.spec("EVT-03.a")
async def test_a_run_that_called_tools_gets_its_folder(tmp_path: Path) -> None:
    store, artifacts = MemoryStore(), FolderArtifacts(RootedFolder(tmp_path, "artifacts"))
    ref = await artifacts.put(b"# Report", name="report.md")
    deliverable: dict[str, Json] = {"name": "report.md", "digest": ref.digest}
    ended, run_id = await ended_run(
        store,
        NewEvent(EventType.TOOL_STARTED, {"tool": "code.write_file"}, START_US),
        NewEvent(EventType.TOOL_COMPLETED, {"tool": "code.write_file", "deliverable": deliverable}, START_US),
        NewEvent(EventType.TOOL_DENIED, {"tool": "code.search", "error": "permission_denied"}, START_US),
    )
    await write_folders(store, tmp_path, ended.task_id)

    folder = tmp_path / "runs" / run_id
    assert [line["id"] for line in lines(folder / "events.jsonl")] == [
        str(number) for number in range(1, len(await store.runs.events(run_id)) + 1)
    ]
    assert [line["type"] for line in lines(folder / "logs" / "tools.jsonl")] == [
        "tool_started",
        "tool_completed",
        "tool_denied",
    ]
    assert [line["type"] for line in lines(folder / "logs" / "errors.jsonl")] == ["tool_denied"]
    assert (folder / "deliverables" / "report.md").read_bytes() == b"# Report"
    assert {path.name for path in folder.iterdir()} >= {"workspace", "archive"}


@pytest.mark.spec("EVT-03.a")
async def test_an_agents_run_that_called_no_tool_gets_its_folder(tmp_path: Path) -> None:
    store = MemoryStore()
    ended, run_id = await ended_run(store, usage=Usage(requests=1))
    await write_folders(store, tmp_path, ended.task_id)

    folder = tmp_path / "runs" / run_id
    assert {path.name for path in folder.iterdir()} == {"archive", "deliverables", "events.jsonl", "logs", "workspace"}
    assert len(lines(folder / "events.jsonl")) == len(await store.runs.events(run_id)) > 0
    assert {path.name: path.read_text() for path in (folder / "logs").iterdir()} == dict.fromkeys(
        ("tools.jsonl", "errors.jsonl"), ""
    )


@pytest.mark.spec("EVT-03")
async def test_two_deliverables_of_one_name_are_both_kept(tmp_path: Path) -> None:
    store, artifacts = MemoryStore(), FolderArtifacts(RootedFolder(tmp_path, "artifacts"))
    events = []
    for folder in ("a", "b"):
        ref = await artifacts.put(folder.encode(), name="report.md")
        delivered: dict[str, Json] = {"name": "report.md", "path": f"/p/{folder}/report.md", "digest": ref.digest}
        events.append(NewEvent(EventType.TOOL_COMPLETED, {"deliverable": delivered}, START_US))
    ended, run_id = await ended_run(store, *events)
    await write_folders(store, tmp_path, ended.task_id)

    kept = sorted((tmp_path / "runs" / run_id / "deliverables").iterdir())
    assert {path.read_bytes() for path in kept} == {b"a", b"b"}
    assert all(path.name.endswith("report.md") for path in kept)


@pytest.mark.spec("EVT-03")
@pytest.mark.parametrize("portion", [1, 4, 1_000_000], ids=["each", "some", "all"])
async def test_what_a_run_delivers_is_written_in_portions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, portion: int
) -> None:
    monkeypatch.setattr(run_archive, "PORTION_BYTES", portion)
    store, artifacts = MemoryStore(), FolderArtifacts(RootedFolder(tmp_path, "artifacts"))
    wanted = {f"file{number}": b"%d\n" % number for number in range(12)}
    events = []
    for name, data in wanted.items():
        events.append(delivery(await artifacts.put(data, name=name), name))
    ended, run_id = await ended_run(store, *events)
    await write_folders(store, tmp_path, ended.task_id)

    kept = (tmp_path / "runs" / run_id / "deliverables").iterdir()
    assert {path.name: path.read_bytes() for path in kept} == wanted


@pytest.mark.spec("EVT-03")
async def test_a_link_left_in_the_run_folder_is_replaced_and_not_followed(tmp_path: Path) -> None:
    store, artifacts = MemoryStore(), FolderArtifacts(RootedFolder(tmp_path, "artifacts"))
    ref = await artifacts.put(b"ours", name="x")
    ended, run_id = await ended_run(
        store, NewEvent(EventType.TOOL_COMPLETED, {"deliverable": {"name": "x", "digest": ref.digest}}, START_US)
    )
    victim = tmp_path / "victim"
    victim.write_bytes(b"untouched")
    place = tmp_path / "runs" / run_id / "deliverables"
    place.mkdir(parents=True)
    (place / "x").symlink_to(victim)

    await write_folders(store, tmp_path, ended.task_id)

    assert victim.read_bytes() == b"untouched"
    assert ((place / "x").is_symlink(), (place / "x").read_bytes()) == (False, b"ours")


@pytest.mark.spec("RES-06", "EVT-03.b")
async def test_the_tool_log_holds_facts_and_the_error_log_says_what_went_wrong(tmp_path: Path) -> None:
    store = MemoryStore()
    facts: dict[str, Json] = {"tool_call_id": "c1", "tool": "code.search", "status": "failed", "duration_ms": 12}
    ended, run_id = await ended_run(
        store,
        NewEvent(EventType.TOOL_STARTED, {"tool_call_id": "c1", "input": {"query": "the question"}}, START_US),
        NewEvent(EventType.TOOL_FAILED, {**facts, "summary": "a line of content", "message": "it broke"}, START_US),
    )
    await write_folders(store, tmp_path, ended.task_id)

    logs = tmp_path / "runs" / run_id / "logs"
    assert lines(logs / "tools.jsonl")[1].items() >= facts.items()
    assert "question" not in (logs / "tools.jsonl").read_text()
    assert "content" not in (logs / "tools.jsonl").read_text()
    assert lines(logs / "errors.jsonl")[0]["message"] == "it broke"


@pytest.mark.spec("OPS-12")
async def test_what_a_worker_has_left_in_a_folder_is_reported_once(tmp_path: Path) -> None:
    store, clock = MemoryStore(), FakeClock()
    ended, run_id = await ended_run(store)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / run_id).symlink_to(tmp_path)
    folders = run_folders(store, tmp_path, clock)

    for _ in range(3):
        await folders.write(ended.task_id)
        await asyncio.gather(*folders._writing.values())
        clock.advance(timedelta(seconds=timing.GIVEN_UP_S))
        assert set(folders.set_aside()) == {ended.task_id}

    assert await security(store, run_id) == ["foreign_entry"]


async def security(store: MemoryStore, run_id: str) -> list[str]:
    """Return what the audit log says was found among a run's files."""
    entries = await store.audit.audit_entries(kinds=["security"])
    return [str(entry.data["what"]) for entry in entries if entry.data.get("run") == run_id and entry.session_id]


def delivery(ref: ArtifactRef, name: str) -> NewEvent:
    said: dict[str, Json] = {"name": name, "path": f"/p/{name}", "digest": ref.digest}
    return NewEvent(EventType.TOOL_COMPLETED, {"deliverable": said}, START_US)


@pytest.mark.spec("OPS-12", "EVT-03")
@pytest.mark.parametrize("place", ["deliverables", "logs", "."])
async def test_a_folder_that_a_worker_made_a_link_leads_no_write_elsewhere_and_is_reported(
    tmp_path: Path, place: str
) -> None:
    """A run delivers a file called signing.key, and its worker makes the folder of the copies a link to the keys."""
    store, artifacts = MemoryStore(), FolderArtifacts(RootedFolder(tmp_path, "artifacts"))
    ref = await artifacts.put(b"a key of the attacker's", name="signing.key")
    ended, run_id = await ended_run(store, delivery(ref, "signing.key"))
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "signing.key").write_bytes(b"ours")
    planted = tmp_path / "runs" / run_id / place
    planted.parent.mkdir(parents=True)
    planted.symlink_to(keys)

    await write_folders(store, tmp_path, ended.task_id)

    assert [path.name for path in keys.iterdir()] == ["signing.key"]
    assert (keys / "signing.key").read_bytes() == b"ours"
    assert await security(store, run_id) == ["foreign_entry"]


@pytest.mark.spec("OPS-12")
async def test_one_runs_planted_link_keeps_no_other_run_from_its_folder(tmp_path: Path) -> None:
    store = MemoryStore()
    ownership = await open_session(store)
    task_id = await open_task(store, ownership, "a", "b")
    worker_id = await open_worker(store)
    claims = (await advance(store, worker_id, [], claim=2)).claims
    ends = [
        StepEnd(
            claim.step_key,
            claim.identity.run_id,
            claim.fence,
            StepStatus.COMPLETED,
            EndReason.COMPLETED,
            usage=Usage(tool_calls=1),
        )
        for claim in claims
    ]
    await advance(store, worker_id, ends, claim=0)
    await store.tasks.finish_task(ownership, task_id, now_us=START_US)
    first, second = (claim.identity.run_id for claim in claims)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / min(first, second)).symlink_to(tmp_path)

    await write_folders(store, tmp_path, task_id)

    assert (tmp_path / "runs" / max(first, second) / "events.jsonl").exists()
    assert not (tmp_path / "events.jsonl").exists()
    assert await store.tasks.unrecorded(ownership.owner_id) == [task_id]


@pytest.mark.spec("OPS-12", "EVT-04")
async def test_an_exchanged_artifact_is_reported_and_not_delivered(tmp_path: Path) -> None:
    store, artifacts = MemoryStore(), FolderArtifacts(RootedFolder(tmp_path, "artifacts"))
    bad, good = await artifacts.put(b"ours", name="a.md"), await artifacts.put(b"other", name="b.md")
    ended, run_id = await ended_run(store, delivery(bad, "a.md"), delivery(good, "b.md"))
    artifacts.path_of(bad.digest).write_bytes(b"theirs")

    await write_folders(store, tmp_path, ended.task_id)

    copies = tmp_path / "runs" / run_id / "deliverables"
    assert {path.name: path.read_bytes() for path in copies.iterdir()} == {"b.md": b"other"}
    assert await security(store, run_id) == ["exchanged_artifact"]


@pytest.mark.spec("OPS-12")
@pytest.mark.parametrize(
    "said",
    [
        {},
        {"name": 7, "digest": "x"},
        {"name": "x", "digest": None},
        {"name": "x", "digest": "../../../etc/passwd"},
        {"name": "a\0b", "digest": "good"},
        {"name": "n" * 5000 + ".md", "digest": "good"},
        {"name": "..", "digest": "good"},
        {"name": "../../../escaped", "digest": "good"},
    ],
    ids=["empty", "name", "no digest", "path for a digest", "NUL", "long", "parent", "path for a name"],
)
async def test_a_malformed_deliverable_stops_nothing_but_itself(tmp_path: Path, said: dict[str, Json]) -> None:
    store, artifacts = MemoryStore(), FolderArtifacts(RootedFolder(tmp_path, "artifacts"))
    ref = await artifacts.put(b"x", name="x")
    said = {**said, "digest": ref.digest} if said.get("digest") == "good" else said
    event = NewEvent(EventType.TOOL_COMPLETED, {"deliverable": said}, START_US)
    ended, run_id = await ended_run(store, event, delivery(ref, "good.md"))

    folders = run_folders(store, tmp_path)
    await folders.write(ended.task_id)
    await folders.close()

    folder = tmp_path / "runs" / run_id
    assert (folder / "deliverables" / "good.md").read_bytes() == b"x"
    assert not (tmp_path / "escaped").exists()
    assert (folder / "deliverables" / "escaped").exists() is ("escaped" in str(said.get("name")))
    assert len(lines(folder / "events.jsonl")) == len(await store.runs.events(run_id))
    assert ended.task_id not in folders._given_up
