"""Logs of runs and tasks over HTTP: page by page, and as streams that go from replay to live without a border."""

import asyncio
import json
import resource
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from soong.orchestrator.operations.progress import task_frames
from soong.shared.core import timing
from soong.shared.engine.runs.events import NewEvent
from soong.shared.engine.tasks.step import Claim
from soong.shared.engine.wire.notifier import AnswerDelta
from soong.shared.storage.store import Store
from tests.contract.scene import completed, held
from tests.integration.http.conftest import OpenScene
from tests.integration.http.scene import HttpHarness, Sent, code_of, events_of
from tests.model.builders import take_turn
from tests.waiting import looks, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT_S = 30


def stream_of(claim: Claim) -> str:
    return f"/v1/runs/{claim.identity.run_id}/stream"


async def end(scene: HttpHarness, claim: Claim) -> None:
    """End the run as its worker does."""
    step = await scene.bench.store.tasks.step(claim.step_key)
    await take_turn(scene.bench.store, step.worker_id, [completed(claim)], claim=0, now_us=scene.bench.clock.now_us())
    await scene.bench.notifier.notify_runs([claim.identity.run_id])


async def read_until_end(client: httpx.AsyncClient, url: str, seen: list[Sent], last: str = "") -> None:
    headers = {"Last-Event-ID": last} if last else {}
    async with asyncio.timeout(LIMIT_S), client.stream("GET", url, headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        async for sent in events_of(response):
            seen.append(sent)  # noqa: PERF401  # a test looks at the list meanwhile


def check_gapless(seen: Sequence[Sent], first: int, last: int) -> None:
    assert [sent.id for sent in seen[:-1]] == [str(number) for number in range(first, last + 1)]
    assert seen[-1].event == "end"


@pytest.mark.spec("EVT-02", "OPS-04", "EVT-02.c", "OPS-04.c")
async def test_nothing_falls_between_replay_and_live_while_the_log_grows(scene: HttpHarness) -> None:
    """Events that come between replay and subscription are lost by others (agentscope-ai/agentscope#2123)."""
    claim = await scene.run_with(500)
    seen: list[list[Sent]] = [[] for _ in range(8)]
    readers = [asyncio.create_task(read_until_end(scene.caller, stream_of(claim), one)) for one in seen]

    for number in range(150):
        await scene.append(claim, 3, start=500 + 3 * number)
    await end(scene, claim)
    await asyncio.gather(*readers)

    run = await scene.bench.store.runs.run(claim.identity.run_id)
    for one in seen:
        check_gapless(one, 1, run.last_seq)
    numbers = [sent.data["data"]["number"] for sent in seen[0] if sent.id and "number" in sent.data["data"]]
    assert numbers == list(range(950))


@pytest.mark.spec("EVT-02", "OPS-04", "EVT-02.b")
async def test_an_event_is_a_cloud_event_and_who_has_seen_all_of_an_ended_run_is_asked_to_stay_away(
    scene: HttpHarness,
) -> None:
    claim = await scene.run_with(1)
    await end(scene, claim)

    seen: list[Sent] = []
    await read_until_end(scene.caller, f"{stream_of(claim)}?after=2", seen)
    page = (await scene.caller.get(f"/v1/runs/{claim.identity.run_id}/events?after=2")).json()
    assert [sent.data for sent in seen[:-1]] == page["items"]
    first = seen[0].data
    assert first["specversion"] == "1.0"
    assert first["id"] == seen[0].id == "3"
    assert first["source"] == f"/runs/{claim.identity.run_id}"
    assert first["type"].startswith("soong.")

    last = (await scene.bench.store.runs.run(claim.identity.run_id)).last_seq
    response, ahead, wrong = [
        await scene.caller.get(stream_of(claim), headers={"Last-Event-ID": str(said)})
        for said in (last, last + 1, "seven")
    ]
    assert response.status_code == 204
    assert code_of(ahead) == code_of(wrong) == "invalid_input"


@pytest.mark.spec("EVT-02", "OPS-04")
async def test_a_reader_that_leaves_holds_nothing(open_http: OpenScene) -> None:
    async with open_http() as scene:
        claim = await scene.run_with(3)
        for _ in range(5):
            async with scene.caller.stream("GET", stream_of(claim)) as response:
                await anext(events_of(response))

        await until(lambda: not scene.api.streams.held)
        await until(lambda: not scene.api.subscriptions._subjects)


@pytest.mark.spec("EVT-02", "OPS-04")
async def test_streams_end_when_the_server_stops(open_http: OpenScene) -> None:
    async with open_http() as scene:
        claim = await scene.run_with(3)
        session_id = scene.bench.session_id
        seen: list[Sent] = []
        reading = asyncio.create_task(read_until_end(scene.caller, stream_of(claim), seen))
        following = asyncio.create_task(scene.caller.get(f"/v1/sessions/{session_id}/stream"))
        polling = asyncio.create_task(scene.caller.get("/v1/approvals", params={"wait": 55}))
        await until(lambda: scene.api.streams.held.total() == 3 and len(seen) > 2)
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(reading, following, polling)

    assert [sent.id for sent in seen] == [str(number) for number in range(1, len(seen) + 1)]
    assert polling.result().json()["items"] == []


@pytest.mark.spec("EVT-02", "OPS-04")
async def test_a_session_tells_its_state_whenever_that_changes(open_http: OpenScene) -> None:
    async with open_http() as scene, asyncio.timeout(LIMIT_S):
        url = f"/v1/sessions/{scene.bench.session_id}/stream"
        async with scene.caller.stream("GET", url) as response:
            events = events_of(response)
            first = await anext(events)
            request = await scene.ask()
            waiting = await _until(events, lambda data: request.id in data["approvals"])
            await answer(scene, request.id, request.input_digest)
            decided = await _until(events, lambda data: request.id not in data["approvals"])

    assert (first.event, first.id) == ("session", "")
    assert first.data["tasks"] == []
    assert waiting["tasks"][0]["steps"] == {"running": 1}
    assert decided["approvals"] == []


async def answer(scene: HttpHarness, request_id: str, input_digest: str) -> None:
    body = {"choice": "allow_once", "input_digest": input_digest}
    response = await scene.caller.post(f"/v1/approvals/{request_id}/answer", json=body)
    assert response.status_code == 200, response.text


async def _until(events: AsyncIterator[Sent], holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    async for sent in events:
        if holds(sent.data):
            found: dict[str, Any] = sent.data
            return found
    raise AssertionError("the stream ended first")


@pytest.mark.spec("EVT-02", "OPS-04")
async def test_more_runs_than_connections_are_followed_at_once(scene: HttpHarness) -> None:
    claims = [await scene.run_with(2) for _ in range(50)]
    seen: list[list[Sent]] = [[] for _ in claims]
    readers = [
        asyncio.create_task(read_until_end(scene.caller, stream_of(claim), one))
        for claim, one in zip(claims, seen, strict=True)
    ]
    await until(lambda: all(seen))

    for claim in claims:
        await end(scene, claim)
    await asyncio.gather(*readers)

    for claim, one in zip(claims, seen, strict=True):
        check_gapless(one, 1, (await scene.bench.store.runs.run(claim.identity.run_id)).last_seq)


@pytest.mark.spec("EVT-02", "OPS-04")
async def test_half_a_character_in_a_row_is_sent_as_an_escape(scene: HttpHarness) -> None:
    claim = await scene.run_with(0)
    events = [NewEvent("tool_progress", {"text": "\ud800 \x1b[31m </script>", "\udfff": "\u202e"})]
    await scene.bench.store.runs.append(claim.identity.run_id, claim.fence, events=events, now_us=1)
    await end(scene, claim)
    seen: list[Sent] = []

    await read_until_end(scene.caller, stream_of(claim), seen)
    page = await scene.caller.get(f"/v1/runs/{claim.identity.run_id}/events")

    (told,) = [sent.data for sent in seen[:-1] if sent.data["type"] == "soong.tool_progress"]
    assert told["data"] == events[0].data
    assert told in page.json()["items"]


@pytest.mark.spec("EVT-02", "OPS-04")
async def test_pieces_of_answers_come_between_the_events_without_an_id(scene: HttpHarness) -> None:
    claim = await scene.run_with(3)
    seen: list[Sent] = []
    reading = asyncio.create_task(read_until_end(scene.caller, stream_of(claim), seen))
    piece = AnswerDelta(1, 0, "Hello ", ("code.read_file",))

    async for _ in looks(LIMIT_S):
        if any(sent.event == "delta" for sent in seen):  # the subscription opens behind the first events
            break
        await scene.bench.notifier.publish_answer(claim.identity.run_id, piece.payload())
    await scene.bench.notifier.publish_answer(claim.identity.run_id, "no piece")
    await end(scene, claim)
    await reading

    (delta, *_) = [sent for sent in seen if sent.event == "delta"]
    assert (delta.id, {"v": 1, **delta.data}) == ("", json.loads(piece.payload()))
    run = await scene.bench.store.runs.run(claim.identity.run_id)
    check_gapless([sent for sent in seen if sent.event != "delta"], 1, run.last_seq)


@pytest.mark.spec("EVT-02", "OPS-04")
async def test_readers_that_do_not_read_hold_little_of_a_long_log(open_http: OpenScene) -> None:
    """Eighty of them held 9 MB each: a server with 512 MiB ended."""
    async with open_http() as scene:
        claim = await scene.run_with(1)
        for start in range(0, 2_000, 500):
            events = [NewEvent("tool_progress", {"x": "y" * 8_000, "n": start + n}) for n in range(500)]
            await scene.bench.store.runs.append(claim.identity.run_id, claim.fence, events=events, now_us=1)
        before = _resident_mb()
        head = (
            f"GET {stream_of(claim)} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {await scene.token()}\r\n\r\n"
        )
        with ExitStack() as open_:
            for _ in range(80):
                reader = open_.enter_context(socket.create_connection(("127.0.0.1", scene.port)))
                reader.sendall(head.encode())
            await until(lambda: scene.api.streams.held.total() == 80)
            for _ in range(20):
                assert (await scene.caller.get("/v1/tasks")).status_code == 200
            held = _resident_mb() - before

    assert held < 300


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


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


@pytest.mark.spec("OPS-04.c", "OPS-04.d")
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


@pytest.mark.spec("OPS-04.c", "OPS-04.d")
async def test_two_hundred_readers_cost_one_reading_and_are_sent_the_same_bytes(
    scene: HttpHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = await scene.run_with(1)
    reads = counted_reads(scene.api.client.store, monkeypatch)
    identity = claim.identity
    streams = [task_frames(scene.api, identity.task_id, identity.session_id) for _ in range(200)]

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


@pytest.mark.spec("OPS-04.c", "OPS-04.d")
async def test_a_slow_reader_is_sent_what_it_missed_at_once_and_delays_nobody(
    scene: HttpHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing waits in line for it: it gets the difference between what it saw and what is."""
    monkeypatch.setattr(timing, "POLL_ROWS_S", 300.0)  # it is notified
    claim = await scene.run_with(1)
    slow, quick = (task_frames(scene.api, claim.identity.task_id, claim.identity.session_id) for _ in range(2))
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
    await scene.bench.notifier.notify_session(claim.identity.session_id)


@pytest.mark.spec("OPS-04.c", "OPS-04.d")
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
