import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from soong.orchestrator.operations.progress import task_frames
from soong.shared.engine.tasks.step import Claim
from soong.shared.storage.store import Store
from tests.contract.scene import completed, held
from tests.integration.http.scene import HttpHarness, Sent, code_of, events_of
from tests.model.builders import take_turn
from tests.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.spec("OPS-04.c", "OPS-04.d")]

LIMIT_S = 30


async def read(client: httpx.AsyncClient, task_id: str, seen: list[Sent]) -> None:
    async with asyncio.timeout(LIMIT_S), client.stream("GET", f"/v1/tasks/{task_id}/stream") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        async for sent in events_of(response):
            seen.append(sent)  # noqa: PERF401  # one by one, as the test watches the list


def states(seen: Sequence[Sent]) -> dict[str, str]:
    """Return what a reader knows after what it has seen: steps by id, later ones in the place of earlier ones."""
    known: dict[str, str] = {}
    for sent in seen:
        known |= {step["id"]: step["status"] for step in (sent.data or {}).get("steps", [])}
    return known


async def test_a_reader_sees_every_step_and_then_what_changes(scene: HttpHarness) -> None:
    claim = await scene.run_with(1)
    task_id = claim.identity.task_id
    seen: list[Sent] = []
    reading = asyncio.create_task(read(scene.caller, task_id, seen))
    await until(lambda: bool(seen))

    step = await scene.bench.store.tasks.step(claim.step_key)
    await take_turn(
        scene.bench.store,
        step.worker_id,
        [completed(claim, {"said": "done"})],
        claim=0,
        now_us=scene.bench.clock.now_us(),
    )
    await until(lambda: bool(states(seen).get(step.step_id) == "completed"))
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)

    first = seen[0]
    assert first.event == "task"
    assert states(seen[:1]).keys() == {one.step_id for one in await scene.bench.store.tasks.steps(task_id)}
    assert {sent.event for sent in seen[1:]} == {"change"}
    assert all("output" not in one for sent in seen for one in sent.data["steps"])
    assert first.data["task"]["id"] == task_id


def counted_reads(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of what is read of tasks from now on, growing."""
    reads: list[str] = []
    for name in ("task", "steps", "step_states"):
        original = getattr(type(store.tasks), name)

        async def counted(self: Any, of: str, name: str = name, original: Any = original) -> Any:
            reads.append(name)
            return await original(self, of)

        monkeypatch.setattr(type(store.tasks), name, counted)
    return reads


async def test_two_hundred_readers_cost_one_reading_and_are_sent_the_same_bytes(
    scene: HttpHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = await scene.run_with(1)
    reads = counted_reads(scene.api.client.store, monkeypatch)
    streams = [task_frames(scene.api, claim.identity.task_id) for _ in range(200)]

    first = await asyncio.gather(*map(anext, streams))
    await report(scene, claim, "reading")
    then = await asyncio.gather(*map(anext, streams))
    for one in streams:
        await one.aclose()

    assert len({id(text) for text in first}) == 1, "equal bytes may still be two hundred times the memory"
    assert len({id(text) for text in then}) == 1
    assert (Counter(reads)["task"], Counter(reads)["steps"]) == (1, 1)
    assert Counter(reads)["step_states"] < 10
    assert first[0].startswith(b"event: task\ndata: {")
    assert then[0].startswith(b"event: change\ndata: {")
    assert not scene.api.feeds.open, "the last one who leaves ends the reading"


async def test_a_slow_reader_is_sent_what_it_missed_at_once_and_delays_nobody(scene: HttpHarness) -> None:
    """Nothing waits in line for it: it gets the difference between what it saw and what is."""
    claim = await scene.run_with(1)
    slow, quick = (task_frames(scene.api, claim.identity.task_id) for _ in range(2))
    await anext(slow)
    await anext(quick)

    seen: list[bytes] = []
    for words in ("reading", "writing", "checking"):
        await report(scene, claim, words)
        seen.append(await anext(quick))
    missed = await anext(slow)
    for one in (slow, quick):
        await one.aclose()

    assert [words in text for words, text in zip((b"reading", b"writing", b"checking"), seen, strict=True)] == [
        True
    ] * 3
    assert b"checking" in missed
    assert b"writing" not in missed


async def report(scene: HttpHarness, claim: Claim, words: str) -> None:
    step = await scene.bench.store.tasks.step(claim.step_key)
    await scene.bench.store.claims.report_progress(
        step.worker_id, held(claim), words, now_us=scene.bench.clock.now_us()
    )


async def test_an_unknown_task_has_no_stream(scene: HttpHarness) -> None:
    assert code_of(await scene.caller.get("/v1/tasks/task_0/stream")) == "not_found"


async def test_the_audit_log_is_read_page_by_page(scene: HttpHarness) -> None:
    await scene.token("somebody")
    every = (await scene.caller.get("/v1/audit", params={"limit": 200})).json()["items"]

    pages: list[Any] = []
    after: str | None = "0"
    while after is not None:
        page = (await scene.caller.get("/v1/audit", params={"limit": 3, "after": after})).json()
        pages += page["items"]
        after = page["next"]
    made = (await scene.caller.get("/v1/audit", params={"kind": "token_made"})).json()["items"]
    bad = await scene.caller.get("/v1/audit", params={"since": "yesterday"})

    assert pages == every
    assert {entry["kind"] for entry in made} == {"token_made"}
    assert made[-1]["data"]["principal"] == "somebody"
    assert code_of(bad) == "invalid_input"
    assert "30d" in bad.json()["detail"]
