"""NUL and half characters in every parameter of every operation: refused by a problem that names them, never a fault.

The requests are made of the OpenAPI document: an operation or a parameter that is added is tried, too.
"""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio

from soong.orchestrator.http.app import description
from soong.shared.permissions.access.token import Right
from tests.contract.databases import sqlite_copy
from tests.integration.http.scene import HttpHarness, code_of, open_scene
from tests.servers import RedisServer

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.spec("OPS-04")]

DOCUMENT = description()
NUL, HALF = "a\0b", "a\ud800b"
SAYS = {NUL: r"'a\x00b' holds a NUL character", HALF: "holds a lone surrogate"}
SENT = {NUL: "a%00b", HALF: "a%ED%A0%80b"}
IDS = {
    "request_id": "req_1",
    "run_id": "run_1",
    "session_id": "sess_1",
    "task_id": "task_1",
    "digest": "0" * 64,
    "kind": "task",
}


class Operation(NamedTuple):
    method: str
    path: str
    described: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"

    def address(self, **values: str) -> str:
        return self.path.format(**{**IDS, **values})

    def parameters(self, where: str) -> Iterator[str]:
        yield from (one["name"] for one in self.described.get("parameters", ()) if one["in"] == where)


OPERATIONS = [
    Operation(method, path, described)
    for path, methods in DOCUMENT["paths"].items()
    for method, described in methods.items()
    if described["security"]
]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def scene(
    sqlite_template: Path, redis_session_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[HttpHarness]:
    """One server for all: every refusal here comes before a store is asked, so one store stands for each."""
    home = tmp_path_factory.mktemp("http")
    url = sqlite_copy(sqlite_template, tmp_path_factory.mktemp("hostile"))
    async with open_scene(url, redis_session_server.socket_url, home) as opened:
        # Who may approve is asked for the program behind a connection, which takes longer than everything else here.
        opened.caller = await opened.someone("ada", Right.READ, Right.RUN, Right.ADMIN)
        yield opened


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def approver(scene: HttpHarness) -> httpx.AsyncClient:
    return await scene.someone("ada", Right.READ, Right.APPROVE)


def refused(response: httpx.Response, place: str, hostile: str) -> bool:
    """Say whether a request was refused for a text at a place."""
    errors = response.json().get("errors", ()) if code_of(response) == "invalid_input" else ()
    found = [one for one in errors if one["place"] == place]
    return [SAYS[hostile] in one["problem"] and one["hint"] for one in found] == ["send Unicode text without NUL"]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
async def test_a_query_is_refused(scene: HttpHarness, operation: Operation) -> None:
    for hostile, sent in SENT.items():
        for name in (*operation.parameters("query"), "unknown"):
            answer = await scene.caller.request(operation.method, f"{operation.address()}?{name}={sent}")
            assert refused(answer, f"query.{name}", hostile), answer.text
        named = await scene.caller.request(operation.method, f"{operation.address()}?{sent}=1")
        assert refused(named, "query", hostile), named.text


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
async def test_a_path_with_such_an_id_names_nothing(
    scene: HttpHarness, approver: httpx.AsyncClient, operation: Operation
) -> None:
    caller = approver if operation.described["x-right"] == "approve" else scene.caller
    for name in operation.parameters("path"):
        for hostile, code in ((NUL, "path_not_allowed"), (HALF, "not_found")):
            answer = await caller.request(operation.method, operation.address(**{name: SENT[hostile]}), json=None)

            assert code_of(answer) in {code, "invalid_input"}  # a body that is missing is said first
            assert answer.status_code < 500


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
async def test_a_header_is_no_fault(scene: HttpHarness, operation: Operation) -> None:
    token = await scene.token("ada", (Right.READ, Right.RUN, Right.ADMIN))
    names = (*operation.parameters("header"), "Authorization", "User-Agent")
    for name, value in product(names, (b"a\0b", b"a\xed\xa0\x80b", b"a\xffb")):
        lines = [f"{operation.method.upper()} {operation.address()} HTTP/1.1", "Host: localhost", "Connection: close"]
        lines += [f"Authorization: Bearer {token}"] if name != "Authorization" else []
        head = "\r\n".join((*lines, f"{name}: ")).encode() + value + b"\r\n\r\n"

        status = int((await scene.raw(head)).split(b" ", 2)[1])

        assert status < 500


def _schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema without references and alternatives."""
    while "$ref" in schema or "anyOf" in schema:
        schema = schema["anyOf"][0] if "anyOf" in schema else DOCUMENT["components"]["schemas"][schema["$ref"][21:]]
    return schema


def _bodies(schema: Mapping[str, Any], hostile: str, place: str = "body") -> Iterator[tuple[str, Any]]:
    """Yield a place and a value of this schema that has the hostile text there, for each place that can hold one."""
    schema = _schema(schema)
    yield place, hostile
    if schema.get("type") == "array":
        for below, value in _bodies(schema.get("items", {}), hostile, f"{place}.0"):
            yield below, [value]
    if schema.get("type") == "object" or "properties" in schema:
        yield place, {hostile: 1}
        for name, each in schema.get("properties", {}).items():
            for below, value in _bodies(each, hostile, f"{place}.{name}"):
                yield below, {name: value}
        if schema.get("additionalProperties", False) is not False:
            yield f"{place}.deep.0", {"deep": [hostile]}


WITH_BODY = [one for one in OPERATIONS if "requestBody" in one.described]


@pytest.mark.parametrize("operation", WITH_BODY, ids=lambda one: one.name)
async def test_each_text_of_a_body_is_refused(
    scene: HttpHarness, approver: httpx.AsyncClient, operation: Operation
) -> None:
    caller = approver if operation.described["x-right"] == "approve" else scene.caller
    schema = operation.described["requestBody"]["content"]["application/json"]["schema"]
    kind = {"Content-Type": "application/json"}
    for place, body in _bodies(schema, NUL):
        content = json.dumps(body).encode()
        answer = await caller.request(operation.method, operation.address(), content=content, headers=kind)

        errors = answer.json()["errors"] if code_of(answer) == "invalid_input" else []
        assert [(one["place"], one["hint"]) for one in errors] == [(place, "send Unicode text without NUL")]
        assert SAYS[NUL] in errors[0]["problem"]
    for _, body in _bodies(schema, HALF):
        content = json.dumps(body).encode()
        answer = await caller.request(operation.method, operation.address(), content=content, headers=kind)

        assert code_of(answer) == "invalid_request"
        assert "lone surrogate" in answer.json()["detail"]
        assert r"a\ud800b" in answer.json()["detail"]


@pytest.mark.parametrize("escape", [r"\0", r"\x00", r"\u0000"])
async def test_a_plan_as_text_is_refused(scene: HttpHarness, escape: str) -> None:
    plan = f'title: "a{escape}b"\nsteps:\n  - id: a\n    kind: python\n    call: builtin.echo\n'

    answer = await scene.caller.post("/v1/tasks/validate", json={"plan": plan})

    assert code_of(answer) == "invalid_plan"
    (error,) = answer.json()["errors"]
    assert error["place"] == "plan:1 title"
    assert error["problem"] == r"'a\x00b' holds a NUL character"
    assert error["hint"] == "write Unicode text without NUL"


async def test_half_a_character_in_a_plan_as_text_is_refused(scene: HttpHarness) -> None:
    answer = await scene.caller.post("/v1/tasks/validate", json={"plan": 'title: "a\\ud800b"'})

    assert code_of(answer) == "invalid_plan"
    assert answer.json()["errors"][0]["place"].startswith("plan:1:")


async def test_there_is_something_to_try() -> None:
    assert len(OPERATIONS) > 20
    assert len(WITH_BODY) >= 8
    assert quote(NUL) == SENT[NUL]
