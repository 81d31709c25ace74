import asyncio
import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec.structs import fields, replace

from soong.orchestrator.approvals.approval import approval_of
from soong.orchestrator.approvals.decide import TargetChecker
from soong.orchestrator.cli.question_text import list_text, show_text
from soong.orchestrator.schemas.approval import ApprovalDetail
from soong.shared.permissions.request import Choice, PermissionRequest
from soong.shared.permissions.signing import prove
from soong.shared.storage.sql.engine.rows import request_body
from soong.shared.tools.result import ErrorType
from tests.integration.bad_deployment import INSERT_REQUEST, Deployment
from tests.integration.consent import Callback, documents_of, make_call, verdicts
from tests.integration.roles import ORCHESTRATOR, plain
from tests.waiting import until

AT_ONCE = 50
"""Fewer than a run may have open: what is beyond that is closed unseen."""
TEXTS = ("", "x" * 100_000, "\x1b]52;c;eA==\x07\u202e\n1) yes", "../..\0", "\ufdd0", "-1", "[]")
LISTS = ((), ("",), ("x" * 100_000,), ("\x1b[31m", "network"), tuple(str(number) for number in range(5000)))
NUMBERS = (0, -(2**53), 2**53)
OBJECTS: tuple[dict[str, Any], ...] = (
    {},
    {"": {}},
    {"…": "… (5 more)", "path": []},
    {"path": "x" * 100_000},
    {"a": [[[[[{}]]]]]},
    {"a": 1e308},
)


def values_of(name: str, now: object) -> tuple[object, ...]:
    """Return the hostile values of a field, of the kind that it has."""
    if name == "unknown_effects":
        return tuple((each,) for each in OBJECTS)
    if isinstance(now, bool):
        return (not now,)
    if isinstance(now, Choice):
        return tuple(Choice)
    kinds: dict[type, tuple[object, ...]] = {str: TEXTS, tuple: LISTS, int: NUMBERS, dict: OBJECTS}
    return kinds[type(now)]


def hostile(deployment: Deployment) -> list[PermissionRequest]:
    """Return a question for each hostile value of each field, each proven with the run's token."""
    found: list[PermissionRequest] = []
    for each in fields(PermissionRequest):
        if each.name in ("id", "identity", "tool_call_id", "proof"):
            continue
        for value in values_of(each.name, getattr(deployment.own_request(), each.name)):
            bare = deployment.own_request(f"call_{len(found)}", **{each.name: value})
            found.append(replace(bare, proof=prove(deployment.own.token, bare)))
    return found


@pytest.mark.spec("OPS-12.d", "CARD-3")
async def test_a_proven_question_with_hostile_values_holds_nobody_back_and_can_be_shown(
    deployment: Deployment, tmp_path: Path
) -> None:
    bench, questions = deployment.bench, hostile(deployment)
    callback = bench.responders[0].callback
    assert isinstance(callback, Callback)
    assert callback.gate is not None
    callback.gate.set()
    for start in range(0, len(questions), AT_ONCE):
        for request in questions[start : start + AT_ONCE]:
            values = {
                "call": request.tool_call_id,
                "body": request_body(request),
                "run": deployment.own.identity.run_id,
            }
            told = await deployment.try_(INSERT_REQUEST, id=request.id, **values)
            assert told == {"rows": 1}, request
        async with asyncio.timeout(120):
            while await bench.store.consent.pending(bench.session_id):
                await bench.settle()

    gate = bench.gate(deployment.victim, deployment.victim_worker)
    async with asyncio.timeout(60):
        (verdict,) = await verdicts(gate.decide(make_call(deployment.victim)))
    listed = await bench.store.consent.questions(session_id=bench.session_id, include_closed=True, limit=1000)
    shown = 0
    for question in listed:
        if question.request.identity == deployment.own.identity:
            approval = await approval_of(bench.store, question, TargetChecker((), tmp_path))
            document = ApprovalDetail.of_question(approval.question, approval).model_dump()
            json.dumps(document)
            assert "\x1b" not in show_text(document, bench.clock.now_us(), is_full=True)
            shown += 1

    assert verdict.is_allowed
    assert shown > len(questions) // 2
    assert "\x1b" not in list_text(documents_of(listed), bench.clock.now_us())


@pytest.mark.spec("PER-14", "OPS-12.d")
async def test_a_question_whose_answer_cannot_be_stored_is_shown_once_and_ends_by_time(deployment: Deployment) -> None:
    bench = deployment.bench
    callback = bench.responders[0].callback
    assert isinstance(callback, Callback)
    assert callback.gate is not None
    callback.gate.set()
    with psycopg.connect(plain(deployment.urls.owner), autocommit=True) as owner:
        owner.execute(f"REVOKE INSERT ON answers FROM {ORCHESTRATOR}".encode())
        try:
            gate = bench.gate(deployment.victim, deployment.victim_worker)
            asking = asyncio.ensure_future(gate.decide(make_call(deployment.victim)))
            await until(lambda: bool(callback.shown) and not callback.at_once)
            await bench.settle()
            await bench.pass_time(bench.settings.permission_timeout_s)
            (verdict,) = await verdicts(asking)
        finally:
            owner.execute(f"GRANT INSERT ON answers TO {ORCHESTRATOR}".encode())

    assert (verdict.is_allowed, verdict.error) == (False, ErrorType.PERMISSION_TIMEOUT)
    assert len(callback.shown) == 1


@pytest.mark.spec("OPS-12.d", "PER-13")
async def test_an_answer_whose_metadata_is_malformed_answers_nothing_and_holds_nobody_back(
    deployment: Deployment,
) -> None:
    """Workers write no answers; a row that somebody else wrote like this is refused as no person's."""
    bench, request = deployment.bench, deployment.own_request()
    await deployment.raise_own(request)
    with psycopg.connect(plain(deployment.urls.admin), autocommit=True) as admin:
        admin.execute(
            b"INSERT INTO answers (request_id, choice, principal, channel, input_digest, answered_us, metadata)"
            b" VALUES (%s, 'allow_once', 'local', 'cli', %s, 1, '{')",
            (request.id, request.input_digest),
        )
    callback = bench.responders[0].callback
    assert isinstance(callback, Callback)
    assert callback.gate is not None
    callback.gate.set()

    gate = bench.gate(deployment.victim, deployment.victim_worker)
    async with asyncio.timeout(60):
        (verdict,) = await verdicts(gate.decide(make_call(deployment.victim)))
        while await bench.store.consent.pending(bench.session_id):
            await bench.settle()

    assert verdict.is_allowed
    decision = await bench.store.consent.decision_of(request.id)
    assert decision is not None
    assert (decision.choice, decision.error) == (Choice.DENY, ErrorType.PERMISSION_FAILED)
