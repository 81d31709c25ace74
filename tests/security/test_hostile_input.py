"""Hostile input: notifications of a worker that was taken over, JSON that hurts its reader, and random strings."""

import asyncio
import os
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from soong.shared.core.jsontext import Json, dump
from soong.shared.engine.wire.notifier import MAX_LENGTH, OWNERS_CHANNEL, REQUESTS, session_channel, worker_channel
from soong.shared.storage.redis.client import RedisClients, RedisNotifier
from soong.shared.storage.redis.subscriptions import MAX_PAYLOAD_CHARS, RedisSubscriber
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.result import ErrorType, JsonBlock, TextBlock, ToolError, ToolResult
from tests.integration.test_redis_ring import heard, notifier, subscriber
from tests.security.scene import SecurityHarness, make_scene
from tests.security.test_bad_inputs import check_alive
from tests.servers import RedisServer
from tests.unit.tools.parts import make_bench, make_tool
from tests.unit.toolsets.parts import text_of
from tests.waiting import until

__all__ = ["notifier", "subscriber"]

LAST_ID: Final = f"{2**64 - 1}-{2**64 - 1}"
PAYLOADS: Final = {
    "deep lists": "[" * 100_000,
    "deep objects": '{"sessions":' * 50_000,
    "deep in what is read": '{"v":1,"sessions":["sess_1",' + "[" * 100_000,
    "a number without end": '{"sessions":[' + "9" * 5_000 + "]}",
    "lists for ids": '{"sessions":[' + "[]," * 100_000 + "[]]}",
    "too long to be read": '{"sessions":[' + "[]," * MAX_PAYLOAD_CHARS + "[]]}",
    "no text": b"\xff\xfe\x00",
}


@pytest.fixture
async def clients(redis_live: RedisServer) -> AsyncIterator[RedisClients]:
    made = RedisClients.of(redis_live.socket_url)
    await made.commands.delete(REQUESTS)
    yield made
    await made.commands.delete(REQUESTS)
    await made.close()


@pytest.mark.spec("PER-12", "OPS-12")
@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
async def test_no_message_makes_an_owner_a_worker_or_a_client_deaf(
    clients: RedisClients, notifier: RedisNotifier, subscriber: RedisSubscriber, payload: str | bytes
) -> None:
    owner, worker = await subscriber.subscribe_owner(), await subscriber.subscribe_worker("wrk_1")
    client = await subscriber.subscribe_session("sess_1")

    for channel in (OWNERS_CHANNEL, worker_channel("wrk_1"), session_channel("sess_1")):
        assert await clients.commands.publish(channel, payload) >= 1
    await notifier.notify_owners(["sess_1"])
    await notifier.call_worker("wrk_1")
    await heard(client, "sess_1")  # of the message: it means that the session changed, whatever it is
    await notifier.notify_session("sess_1")

    await heard(owner, "sess_1")
    await heard(worker, "")
    await heard(client, "sess_1")
    for subscription in (owner, worker, client):
        await subscription.close()


@pytest.mark.spec("PER-12", "OPS-12")
async def test_an_owner_hears_of_no_session_whose_id_no_database_takes(
    clients: RedisClients, notifier: RedisNotifier, subscriber: RedisSubscriber
) -> None:
    owner = await subscriber.subscribe_owner()

    for id_ in ('"\\ud800"', '"\\u0000"', '"x\\ny"', f'"{"x" * 5_000}"', "7", "null", "{}"):
        await clients.commands.publish(OWNERS_CHANNEL, f'{{"sessions": [{id_}]}}')
    await notifier.notify_owners(["sess_1"])

    assert set(await heard(owner, "sess_1")) <= {"", "sess_1"}
    await owner.close()


@pytest.mark.spec("PER-12", "OPS-12")
@pytest.mark.parametrize("listens_first", [True, False])
async def test_a_question_that_took_the_last_id_of_the_stream_leaves_room_for_others(
    clients: RedisClients, notifier: RedisNotifier, subscriber: RedisSubscriber, listens_first: bool
) -> None:
    early = await subscriber.subscribe_permissions() if listens_first else None
    await clients.commands.xadd(REQUESTS, {"request": "req_bad"}, id=LAST_ID)
    subscription = early or await subscriber.subscribe_permissions()

    await notifier.permission_raised("req_1", "sess_1")

    await heard(subscription, "sess_1")
    await subscription.close()


@pytest.mark.spec("PER-12", "OPS-12")
async def test_a_stream_that_is_filled_with_what_names_no_question_is_cut(
    clients: RedisClients, subscriber: RedisSubscriber, redis_live: RedisServer
) -> None:
    subscription = await subscriber.subscribe_permissions()
    with redis.Redis.from_url(redis_live.socket_url) as bad:
        flood = bad.pipeline(transaction=False)
        for _ in range(3 * MAX_LENGTH):
            flood.xadd(REQUESTS, {"x": "y"})
        flood.execute()

        async def is_cut() -> bool:
            return int(await clients.commands.xlen(REQUESTS)) <= MAX_LENGTH + 500

        await until(is_cut)
    await subscription.close()


@pytest.mark.spec("PER-12", "OPS-12")
async def test_a_few_large_entries_do_not_stay_in_the_memory_of_redis(
    clients: RedisClients, subscriber: RedisSubscriber
) -> None:
    subscription = await subscriber.subscribe_permissions()

    for _ in range(5):
        await clients.commands.xadd(REQUESTS, {"request": "req_bad", "x": "y" * 2 * MAX_PAYLOAD_CHARS})

    async def is_empty() -> bool:
        return int(await clients.commands.xlen(REQUESTS)) == 0

    await until(is_empty)
    await subscription.close()


@pytest.mark.spec("PER-12", "OPS-12")
async def test_what_was_left_in_large_entries_is_removed_and_not_read(
    clients: RedisClients, subscriber: RedisSubscriber
) -> None:
    for _ in range(3):
        await clients.commands.xadd(REQUESTS, {"request": "req_bad", "x": "y" * 8 * MAX_PAYLOAD_CHARS})

    tracemalloc.start()
    try:
        subscription = await subscriber.subscribe_permissions()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < MAX_PAYLOAD_CHARS
    assert await clients.commands.xlen(REQUESTS) == 0
    await subscription.close()


def nested(depth: int, leaf: Any = 1) -> Any:
    for _ in range(depth):
        leaf = [leaf]
    return leaf


ARGUMENTS: dict[str, Callable[[], Any]] = {
    "duplicate keys": lambda: '{"path": "a", "path": "b"}',
    "nan": lambda: '{"path": NaN}',
    "infinity": lambda: '{"path": "a", "start_line": -Infinity}',
    "10,000 levels": lambda: '{"path": ' + "[" * 10_000 + "]" * 10_000 + "}",
    "10,000 levels of objects": lambda: '{"a":' * 10_000 + "1" + "}" * 10_000,
    "1,000,000 levels, open": lambda: "[" * 1_000_000,
    "100 MB": lambda: '{"path": "' + "x" * 100_000_000 + '"}',
    "100 MB of keys": lambda: "{" + ",".join(f'"{n}":1' for n in range(2_000_000)) + "}",
    "half": lambda: '{"path": "a"',
    "escaped half character": lambda: '{"path": "\\ud800"}',
    "utf-7": lambda: "+AHs-",
    "levels, read already": lambda: {"path": nested(10_000)},
    "levels of objects, read already": lambda: {"path": "a", **deep_object(5_000)},
    "100 MB, read already": lambda: {"path": "x" * 100_000_000},
    "half character in a key": lambda: {"path": "a", "\udfff": 1},
    "number as key": lambda: {1: "a"},
    "bytes": lambda: {"path": b"a"},
    "a set": lambda: {"path": {"a"}},
    "beyond 2^53": lambda: '{"path": "a", "start_line": 9007199254740993}',
    "beyond 2^53, read already": lambda: {"path": "a", "start_line": 9007199254740993},
    "not an object": lambda: [1, 2],
}


def deep_object(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.spec("SCH-03.a", "RES-04")
@pytest.mark.parametrize("make", ARGUMENTS.values(), ids=ARGUMENTS)
async def test_hostile_arguments_are_invalid_input_and_nobody_is_asked(
    scene: SecurityHarness, make: Callable[[], Json]
) -> None:
    async with asyncio.timeout(60):
        result = await scene.bench.pipeline.execute(ToolCall("call_1", "code.read_file", make()))

    assert result.error is not None
    assert result.error.type is ErrorType.INVALID_INPUT
    assert len(result.error.message) < 5_000
    assert scene.gate.asked == []
    assert len(repr(scene.bench.log.ends[-1][0].arguments)) < 2_000_000
    await check_alive(scene)


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("not even a repr")


def circular() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def fail_with(data: Any) -> None:
    raise ToolError(ErrorType.EXECUTION_FAILED, "no", data=data)


OUTPUTS: dict[str, Callable[[], Any]] = {
    "object": lambda: {"a": object()},
    "odd": lambda: [Odd()],
    "bytes": lambda: b"bytes",
    "set": lambda: {"a", "b"},
    "nan": lambda: {"a": float("nan")},
    "circular": circular,
    "10,000 levels": lambda: nested(10_000),
    "number as key": lambda: {1: {2: Odd()}},
    "half character": lambda: "\ud800",
    "a tuple": lambda: {"a": (1, None)},
    "an endless integer": lambda: {"n": 10**5_000},
    "content that is no tuple": lambda: ToolResult("", content="text"),  # type: ignore[arg-type]
    "a text that is none": lambda: ToolResult("", (TextBlock(3),)),  # type: ignore[arg-type]
    "metadata": lambda: ToolResult("", metadata={"a": object()}),  # type: ignore[dict-item]
    "a set in a block": lambda: ToolResult("", (JsonBlock({"a": {1, 2}}),)),  # type: ignore[dict-item]
    "10,000 levels beside an error": lambda: fail_with(nested(10_000)),
}


@pytest.mark.spec("RES-01", "RES-04")
@pytest.mark.parametrize("make", OUTPUTS.values(), ids=OUTPUTS)
async def test_what_a_tool_returns_that_is_no_json_never_ends_the_run(make: Callable[[], Any]) -> None:
    async def handler(_context: object, _input: object) -> Any:
        return make()

    bench = make_bench([make_tool(handler=handler), make_tool("test.ok")])

    async with asyncio.timeout(20):
        result = await bench.call("test.echo")

    assert result.error is None or result.error.type in (ErrorType.INVALID_OUTPUT, ErrorType.EXECUTION_FAILED)
    dump([text_of(bench.ended), bench.ended.summary, bench.ended.data]).encode()  # it can be stored
    assert (await bench.call("test.ok", text="alive")).ok


HOSTILE = [
    "",
    ".",
    "..",
    "/",
    "~",
    "a\0b",
    "\x1b]0;title\x07",
    "\x1b]52;c;aGk=\x07",
    "\u202e\u2066\u2069",
    "Z\u0351\u0321\u0326a\u0363\u0328l\u0489go",
    "'; DROP TABLE runs; --",
    "%s%n%x{0.__class__}${jndi:ldap://x}{{7*7}}",
    "$(id)`id`|id;id&&id\nid",
    "../../../../etc/passwd",
    "..\\..\\x",
    "/proc/self/environ",
    "file:///etc/passwd",
    ".env",
    ".git/config",
    "\ufeffx",
    "\ud800",
    "\U000e0041\ufffe\uffff",
    "CON",
    "-rf",
    "--pre=/bin/sh",
    "*" * 300,
    "[[:alpha:]]{999999}",
    "(?P<x>",
    "\\x{10FFFF}",
    "!**",
    "{a,{b,c}}",
    "x" * 5000,
    "a/" * 100,
    "\r\n\t\v\f\u2028\u2029\u0085",
    "<script>alert(1)</script>",
    "null",
    "NaN",
]
TEXTS = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(max_size=60),
    st.lists(st.sampled_from([*HOSTILE, "a", "d", "/", "link", "..", "x.txt"]), max_size=5).map("/".join),
)
EXPECTED = frozenset(ErrorType) - {ErrorType.EXECUTION_FAILED, ErrorType.TIMEOUT, ErrorType.INVALID_OUTPUT}
FUZZ = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def furnished(scene: SecurityHarness) -> SecurityHarness:
    scene.secret()
    scene.file("d/x.txt", "hello\n")
    (scene.root / "link").symlink_to(scene.outside)
    scene.remember()
    return scene


async def check(scene: SecurityHarness, tool: str, **arguments: Json) -> str:
    """Call and hold what holds for any input: an expected end, nothing outside read or changed, no crash."""
    async with asyncio.timeout(30):
        outcome = await scene.outcome(tool, **arguments)
    ended = scene.bench.ended
    assert ended.error is None or ended.error.type in EXPECTED, ended.error
    scene.check_unharmed(ended)
    return outcome


def leads_to(scene: SecurityHarness, path: str) -> str:
    resolved = Path(os.path.realpath(scene.root / path))
    return "file" if resolved.is_file() else "directory" if resolved.is_dir() else "nothing"


def spelt_out(scene: SecurityHarness, path: str) -> str:
    return os.path.normpath(scene.root / path)


@pytest.mark.spec("FS-01", "FS-02", "FS-07")
@FUZZ
@given(path=TEXTS)
@example(path=f"{'*' * 300}/.env")
async def test_any_text_as_a_path_is_read_as_that_path_or_refused(furnished: SecurityHarness, path: str) -> None:
    for tool in ("read_file", "list_dir"):
        outcome = await check(furnished, tool, path=path)
        if outcome == "ok":
            assert leads_to(furnished, path) == ("file" if tool == "read_file" else "directory")


@pytest.mark.spec("FS-03")
@FUZZ
@given(query=TEXTS, glob=TEXTS)
@example(query="canary", glob="**")
@example(query="canary", glob="../outside/**")
async def test_any_text_as_a_query_or_glob_stays_in_the_project(
    furnished: SecurityHarness, query: str, glob: str
) -> None:
    outcome = await check(furnished, "search", query=query, glob=glob)

    assert outcome in ("ok", "invalid_input")


@pytest.mark.spec("FS-04", "FS-07", "FS-09")
@FUZZ
@given(path=TEXTS, content=TEXTS)
async def test_any_text_is_written_where_it_says_exactly_or_nowhere(
    tmp_path_factory: pytest.TempPathFactory, path: str, content: str
) -> None:
    scene = make_scene(tmp_path_factory.mktemp("fuzz"))
    (scene.root / "link").symlink_to(scene.outside)
    scene.remember()

    outcome = await check(scene, "write_file", path=path, content=content)

    written = [each for each in scene.root.rglob("*") if each.is_file() and not each.is_symlink()]
    if outcome != "ok":
        assert written == []
        return
    (one,) = written
    assert str(one) == spelt_out(scene, path)
    assert one.read_bytes() == content.encode()
    assert await scene.outcome("read_file", path=path) in ("ok", "asked", "binary_file")


@pytest.mark.spec("FS-01", "FS-04")
@FUZZ
@given(content=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=2000))
async def test_what_was_written_is_what_is_read(furnished: SecurityHarness, content: str) -> None:
    await check(furnished, "write_file", path="round", content=content, overwrite=True)
    await check(furnished, "read_file", path="round", max_lines=1000)

    data = furnished.bench.ended.data
    assert isinstance(data, dict)
    assert data["text"] == content
