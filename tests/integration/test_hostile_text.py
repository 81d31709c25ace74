"""A program that passes NUL or half a character through the SDK hears a UsageError, whichever the database."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from soong import Soong
from soong.shared.core.errors import UsageError
from soong.shared.core.jsontext import JsonObject
from soong.shared.permissions.access.token import Right, make_token
from soong.shared.storage.sql.store import SqlStore, open_store
from tests.contract.databases import migrate, sqlite_copy
from tests.model.clock import START_US
from tests.servers import RedisServer

STEP: JsonObject = {"id": "a", "kind": "python", "call": "builtin.echo"}
PLAN: JsonObject = {"title": "fine", "inputs": {"name": {"type": "string", "default": "x"}}, "steps": [STEP]}
NUL, HALF = "a\0b", "a\ud800b"
SHOWN = {NUL: r"'a\x00b' holds a NUL character", HALF: r"'a\ud800b' holds a lone surrogate"}

CALLS: dict[str, Callable[[Soong, str, str], Awaitable[object]]] = {
    "plan": lambda sdk, _task, text: sdk.start({**PLAN, "title": text}),
    "deep in a plan": lambda sdk, _task, text: sdk.start({**PLAN, "steps": [{**STEP, "inputs": [text]}]}),
    "key of a plan": lambda sdk, _task, text: sdk.start({**PLAN, text: 1}),
    "input": lambda sdk, _task, text: sdk.start(PLAN, {"name": text}),
    "model": lambda sdk, _task, text: sdk.start(PLAN, model=text),
    "project": lambda sdk, _task, text: sdk.start(PLAN, project=text),
    "rule": lambda sdk, _task, text: sdk.start(PLAN, allow=[text]),
    "result": lambda sdk, _task, text: sdk.task(text).details(),
    "wait": lambda sdk, _task, text: sdk.task(text).wait(),
    "pause": lambda sdk, _task, text: sdk.task(text).pause(),
    "resume": lambda sdk, _task, text: sdk.task(text).resume(),
    "retry": lambda sdk, _task, text: sdk.task(text).retry(),
    "cancel": lambda sdk, _task, text: sdk.task(text).cancel(),
    "reason": lambda sdk, task, text: sdk.task(task).cancel(reason=text),
    "agent": lambda sdk, task, text: sdk.task(task).dispatch_worker(agent=text),
    "script": lambda sdk, task, text: sdk.task(task).dispatch_worker(script=text),
    "change": lambda sdk, task, text: sdk.task(task).update({"title": text}),
}


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, sqlite_template: Path, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return sqlite_copy(sqlite_template, tmp_path)
    made: str = request.getfixturevalue("postgres_url")
    migrate(made)
    return made


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlStore]:
    opened = await open_store(url)
    yield opened
    await opened.close()


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")


@pytest.mark.spec("OPS-04")
async def test_each_text_of_the_sdk_is_refused(url: str, redis_live: RedisServer, tmp_path: Path) -> None:
    said: dict[tuple[str, str], str] = {}
    async with Soong.connect(url, redis_live.socket_url, agent_home=tmp_path / "home") as sdk:
        task = (await sdk.start(PLAN)).id
        for name, call in CALLS.items():
            for hostile in (NUL, HALF):
                with pytest.raises(UsageError) as caught:
                    await call(sdk, task, hostile)
                said[name, hostile] = str(caught.value)

    assert {key: text for key, text in said.items() if SHOWN[key[1]] not in text} == {}
    assert [text for text in said.values() if "Unicode text without NUL" not in text] == []


@pytest.mark.parametrize("hostile", [NUL, HALF], ids=["NUL", "half a character"])
async def test_an_id_that_no_row_can_have_is_the_callers_error(store: SqlStore, hostile: str) -> None:
    reads: list[Callable[[], Awaitable[Any]]] = [
        lambda: store.tasks.task(hostile),
        lambda: store.sessions.session(hostile),
        lambda: store.runs.run(hostile),
        lambda: store.tasks.step(hostile),
    ]
    for read in reads:
        with pytest.raises(UsageError):
            await read()


async def test_a_row_with_half_a_character_is_refused_and_what_is_written_beside_it_is_kept(store: SqlStore) -> None:
    good, _ = make_token("ada", (Right.READ,), now_us=START_US)
    bad = replace(good, id=HALF)

    with pytest.raises(UsageError, match="no canonical form"):
        await store.access.add_token(bad)
    await store.access.add_token(good)

    assert [token.principal for token in await store.access.tokens()] == ["ada"]
