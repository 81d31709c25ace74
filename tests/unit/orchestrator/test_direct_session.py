"""Calling tools without a model and without a service: the pipeline, its record, and every way of a consent."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import soong
from soong.orchestrator.direct.gate import DirectGate
from soong.orchestrator.direct.session import DirectSession
from soong.shared.core.errors import UnavailableError, UsageError
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import NewEvent
from soong.shared.engine.sessions.session import ApprovalMode, Session
from soong.shared.permissions.policy import Policy
from soong.shared.permissions.request import Choice, PermissionCallback, PermissionDecision, PermissionRequest
from soong.shared.permissions.rules import parse_allow
from soong.shared.sandbox.redact import redactor
from soong.shared.tools.definition import Target
from soong.shared.tools.hooks.chain import Hooks
from soong.shared.tools.hooks.hook import HookCall, NamedHook, PreOutcome
from soong.shared.tools.ports import GateCall, Verdict
from soong.shared.tools.registry import Toolset
from soong.shared.tools.result import ErrorType
from tests.model.clock import START_US, FakeClock
from tests.unit.permissions.calls import make_call, make_path
from tests.unit.toolsets.parts import text_of


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project to work in, beside a home of Soong's own and a home of the user's elsewhere."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.setenv("SOONG_AGENT_HOME", str(tmp_path / "soong"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.chdir(project)
    (project / "notes.txt").write_text("one\ntwo\n")
    return project


def opened(**options: Any) -> AbstractAsyncContextManager[DirectSession]:
    return soong.open_tools(**options)


def lines(path: Path) -> list[dict[str, Json]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def types(session: DirectSession, name: str = "events.jsonl") -> list[str]:
    return [str(line["type"]).removeprefix("soong.") for line in lines(session.run_dir / name)]


async def yes(_request: PermissionRequest) -> PermissionDecision:
    return PermissionDecision(Choice.ALLOW_ONCE)


@pytest.mark.spec("EXE-12.b")
async def test_one_tool_is_called_by_its_name(place: Path) -> None:
    result = await soong.call_tool("code.read_file", {"path": "notes.txt"})

    assert result.ok
    assert "two" in text_of(result)


@pytest.mark.spec("EXE-12.d", "EXE-01", "EVT-03.b", "EXE-06")
async def test_a_session_of_calls_leaves_a_run_folder(place: Path) -> None:
    async with opened(permission_callback=yes) as session:
        written = await session.call("code.write_file", {"path": "out.txt", "content": "x"})
        missing = await session.call("code.read_file", {"path": "nothing"})

    assert written.ok
    assert missing.error is not None
    assert (place / "out.txt").read_text() == "x"
    events = lines(session.run_dir / "events.jsonl")
    assert [event["id"] for event in events] == [str(number) for number in range(1, len(events) + 1)]
    assert all(event["source"] == f"/runs/{session.run_id}" and event["specversion"] == "1.0" for event in events)
    assert types(session)[0] == "run_started"
    assert types(session)[-1] == "run_completed"
    assert types(session, "logs/tools.jsonl") == ["tool_started", "tool_completed", "tool_started", "tool_failed"]
    assert types(session, "logs/errors.jsonl") == ["tool_failed"]
    ended = [line for line in lines(session.run_dir / "logs" / "tools.jsonl") if line["type"] == "tool_completed"]
    assert isinstance(ended[0]["duration_ms"], int)
    assert {path.name for path in session.run_dir.iterdir()} >= {"workspace", "deliverables", "logs"}


@pytest.mark.spec("PER-03.b")
async def test_a_callback_that_changes_what_it_was_shown_changes_nothing_of_the_call(place: Path) -> None:
    tried: list[type[Exception]] = []

    async def meddles(request: PermissionRequest) -> PermissionDecision:
        def rewrite() -> None:
            request.arguments["content"] = "evil"  # type: ignore[index]  # what a callback without types may try

        for change in (rewrite, lambda: setattr(request, "arguments", {"path": "evil.txt", "content": "evil"})):
            try:
                change()
            except Exception as error:  # noqa: BLE001  # whatever keeps it from it is fine
                tried.append(type(error))
        return PermissionDecision(Choice.ALLOW_ONCE, metadata={"arguments": {"content": "evil"}})

    async with opened(permission_callback=meddles) as session:
        result = await session.call("code.write_file", {"path": "out.txt", "content": "good"})

    assert result.ok, result.error
    assert (place / "out.txt").read_text() == "good"
    assert not (place / "evil.txt").exists()


@pytest.mark.spec("EXE-06", "PER-05")
async def test_consent_is_asked_before_a_write_starts_and_a_denial_leaves_the_file(place: Path) -> None:
    async with opened() as session:
        result = await session.call("code.write_file", {"path": "out.txt", "content": "x"})

    assert result.error is not None
    assert result.error.type is ErrorType.PERMISSION_NO_CALLBACK
    assert not (place / "out.txt").exists()
    assert types(session)[1:-1] == ["permission_requested", "permission_failed", "permission_decided", "tool_denied"]


@pytest.mark.spec("PER-04")
async def test_a_grant_lives_as_long_as_its_session(place: Path) -> None:
    asked: list[str] = []

    async def session_wide(request: PermissionRequest) -> PermissionDecision:
        asked.append(request.shown)
        return PermissionDecision(Choice.ALLOW_FOR_SESSION)

    async with opened(permission_callback=session_wide) as first:
        for name in ("a", "b"):
            assert (await first.call("code.write_file", {"path": name, "content": ""})).ok
    async with opened() as second:
        after = await second.call("code.write_file", {"path": "c", "content": ""})

    assert asked == [str(place / "a")]
    assert not after.ok


@pytest.mark.spec("ETS-02")
@pytest.mark.parametrize(
    ("options", "tool", "told"),
    [
        ({"role": "worker"}, "code.write_file", "not in the tool set of role worker: not in default of a worker"),
        ({"mode": "plan"}, "code.write_file", "mode plan: not readonly"),
        ({"allowed_tools": ["code.search"]}, "code.read_file", "not in allowed_tools"),
    ],
    ids=["role", "mode", "allowed tools"],
)
async def test_a_tool_outside_the_set_is_not_available_and_says_why(
    place: Path, options: dict[str, Any], tool: str, told: str
) -> None:
    async with opened(permission_callback=yes, **options) as session:
        result = await session.call(tool, {"path": "x", "content": ""})

    assert result.error is not None
    assert result.error.type is ErrorType.TOOL_NOT_AVAILABLE
    assert told in result.error.message
    assert types(session)[1:-1] == ["tool_denied"]


@pytest.mark.spec("EXE-13")
async def test_a_hook_of_the_program_is_asked_before_the_callback(place: Path) -> None:
    async def refuse(call: HookCall) -> PreOutcome:
        return PreOutcome("deny", f"no {call.definition.name} today")

    async with opened(permission_callback=yes, hooks=Hooks(pre=(NamedHook("closed", refuse),))) as session:
        result = await session.call("code.write_file", {"path": "x", "content": ""})

    assert result.error is not None
    assert (result.error.type, result.error.message) == (ErrorType.HOOK_DENIED, "no code.write_file today")
    assert "permission_requested" not in types(session)


async def test_a_session_that_calls_nothing_writes_nothing(place: Path) -> None:
    async with opened() as session:
        assert session.tools()

    assert not session.run_dir.exists()


async def test_many_calls_at_once_share_one_gapless_record(place: Path) -> None:
    async with opened() as session:
        results = await asyncio.gather(*(session.call("code.read_file", {"path": "notes.txt"}) for _ in range(20)))

    assert all(result.ok for result in results)
    ids = [int(str(event["id"])) for event in lines(session.run_dir / "events.jsonl")]
    assert ids == list(range(1, len(ids) + 1))


async def test_a_record_that_cannot_be_written_lets_nothing_run(place: Path) -> None:
    home = place.parent / "soong"
    home.mkdir()
    (home / "runs").write_text("in the way")

    async with opened(permission_callback=yes) as session:
        with pytest.raises(UnavailableError, match="cannot be written"):
            await session.call("code.write_file", {"path": "out.txt", "content": "x"})

    assert not (place / "out.txt").exists()


WRONG_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "role": ({"role": "boss"}, "there is no role 'boss'; it is one of main, orchestrator"),
    "mode": ({"mode": "turbo"}, "there is no mode 'turbo'"),
    "project": ({"project": "/nonexistent/folder-of-no-test"}, "does not exist"),
    "rule": ({"allow": ["code.write_file"]}, "say for what"),
    "misspelt": ({"permision_callback": yes}, "'permision_callback'; did you mean 'permission_callback'?"),
    "setting": ({"slots": "many"}, "SOONG_SLOTS"),
}


@pytest.mark.parametrize(("options", "told"), WRONG_OPTIONS.values(), ids=WRONG_OPTIONS.keys())
async def test_a_wrong_option_is_refused_before_anything_is_written(
    place: Path, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError) as refused:
        await soong.call_tool("code.read_file", {"path": "notes.txt"}, **options)

    assert told in str(refused.value)
    assert not (place.parent / "soong").exists()


@pytest.mark.spec("EVT-05", "EVT-04")
async def test_what_is_kept_of_a_written_file_holds_no_secret_and_the_file_is_whole(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "hunter22-very-secret"
    monkeypatch.setenv("DEPLOY_KEY", secret)
    (tmp_path / "soong").mkdir()
    (tmp_path / "soong" / "config.toml").write_text('[commands]\nsecret_env = ["DEPLOY_KEY"]\n')

    async with opened(permission_callback=yes) as session:
        await session.call("code.write_file", {"path": "out.txt", "content": f"key {secret}\n"})

    assert (place / "out.txt").read_text() == f"key {secret}\n"
    assert (session.run_dir / "deliverables" / "out.txt").read_text() == "key [redacted]\n"
    kept = [path.read_bytes() for path in (tmp_path / "soong").rglob("*") if path.is_file()]
    assert not [each for each in kept if secret.encode() in each]


@pytest.mark.spec("REG-02", "PER-21")
@pytest.mark.parametrize(
    ("name", "more"),
    [("code.x", {}), ("team.x", {"aliases": ("agent.create_sub_agent",)}), ("team.x", {"tags": ("internal",)})],
)
async def test_a_program_adds_no_tool_that_passes_for_ours(place: Path, name: str, more: dict[str, Any]) -> None:
    own = Toolset()

    @own.tool(name, **more)
    def tool() -> None:
        """Pass for another."""

    with pytest.raises(UsageError, match="Soong's own"):
        async with opened(tools=[own]):
            pass


@dataclass
class Person:
    """A callback that keeps what it was asked and gives its answers one after another."""

    answers: list[Any]
    asked: list[PermissionRequest] = field(default_factory=list)

    async def __call__(self, request: PermissionRequest) -> PermissionDecision:
        self.asked.append(request)
        answer = self.answers[min(len(self.asked), len(self.answers)) - 1]
        if isinstance(answer, BaseException):
            raise answer
        return PermissionDecision(answer, "said so") if isinstance(answer, Choice) else answer


@dataclass
class GateHarness:
    gate: DirectGate
    events: list[NewEvent]

    async def decide(self, call: GateCall) -> Verdict:
        return await self.gate.decide(call)

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]


def make_broker(callback: PermissionCallback | None = None, *allow: str, policy: Policy | None = None) -> GateHarness:
    events: list[NewEvent] = []

    async def record(new: Sequence[NewEvent]) -> None:
        events.extend(new)

    mode = ApprovalMode.DENY if callback is None else ApprovalMode.PROMPT
    gate = DirectGate(
        session=Session("sess_1", "/project", "/project", mode, START_US),
        policy=(policy or Policy()).with_rules(parse_allow(text) for text in allow),
        callback=callback,
        channel="test",
        record=record,
        clock=FakeClock(),
        timeout=timedelta(milliseconds=30),
        decision_ttl=timedelta(hours=1),
        home="/home/ada",
        redactor=redactor(["hunter2hunter2"]),
    )
    return GateHarness(gate, events)


@pytest.mark.spec("PER-03", "PER-19")
async def test_a_persons_yes_runs_one_call_and_is_recorded() -> None:
    person = Person([Choice.ALLOW_ONCE, Choice.DENY])
    broker = make_broker(person)

    first, second = await broker.decide(make_call()), await broker.decide(make_call())

    assert (first.is_allowed, first.author, first.reason) == (True, "person", "said so")
    assert (second.is_allowed, second.error, second.reason) == (False, ErrorType.PERMISSION_DENIED, "said so")
    assert broker.types == ["permission_requested", "permission_decided"] * 2
    assert first.decision_id == broker.events[1].data["decision_id"]


@pytest.mark.spec("PER-04.c")
async def test_a_deny_is_not_remembered() -> None:
    broker = make_broker(Person([Choice.DENY, Choice.ALLOW_ONCE]))

    assert not (await broker.decide(make_call())).is_allowed
    assert (await broker.decide(make_call())).is_allowed


@pytest.mark.spec("PER-07")
async def test_of_equal_questions_at_once_one_is_asked_and_its_grant_answers_all() -> None:
    person = Person([Choice.ALLOW_FOR_SESSION])
    broker = make_broker(person)

    verdicts = await asyncio.gather(*(broker.decide(make_call()) for _ in range(5)))

    assert [verdict.is_allowed for verdict in verdicts] == [True] * 5
    assert len(person.asked) == 1


@pytest.mark.spec("PER-21")
async def test_a_grant_carries_nothing_out_after_strangers_text_was_read() -> None:
    person = Person([Choice.ALLOW_FOR_SESSION, Choice.DENY])
    broker = make_broker(person)
    fetch = make_call(
        "web.fetch",
        tags=frozenset({"network"}),
        target=Target(kind="host", scope="example.org", shown="example.org", host="example.org"),
    )

    await broker.decide(fetch)
    before = await broker.decide(fetch)
    broker.gate.is_tainted = lambda: True
    after = await broker.decide(fetch)

    assert (before.author, after.error) == ("grant", ErrorType.PERMISSION_DENIED)


WRONG_ANSWERS = {
    "raises": (RuntimeError("the pager is down"), "RuntimeError: the pager is down"),
    "its own timeout": (TimeoutError(), "TimeoutError"),
    "cancels itself": (asyncio.CancelledError(), "cancelled from within"),
    "returns nothing": (None, "returned None"),
    "returns a word": ("allow_once", "returned 'allow_once'"),
    "an unknown choice": (PermissionDecision("always"), "not a PermissionDecision"),  # type: ignore[arg-type]
}


@pytest.mark.spec("PER-05", "PER-14")
@pytest.mark.parametrize(("answer", "told"), WRONG_ANSWERS.values(), ids=WRONG_ANSWERS.keys())
async def test_a_callback_that_fails_denies_and_says_how(answer: object, told: str) -> None:
    broker = make_broker(Person([answer]))

    verdict = await broker.decide(make_call())

    assert (verdict.is_allowed, verdict.error, verdict.author) == (False, ErrorType.PERMISSION_FAILED, "system")
    assert told in verdict.reason
    assert broker.types == ["permission_requested", "permission_failed", "permission_decided"]


@pytest.mark.spec("PER-08")
async def test_a_grant_that_was_not_offered_is_a_failed_answer() -> None:
    broker = make_broker(Person([Choice.ALLOW_FOR_SESSION]))

    verdict = await broker.decide(make_call(target=make_path("/x")))

    assert verdict.error is ErrorType.PERMISSION_FAILED
    assert len(broker.gate.grants) == 0


@pytest.mark.spec("PER-05", "PER-14")
@pytest.mark.parametrize("is_stubborn", [False, True], ids=["ends", "swallows its cancellation"])
async def test_a_callback_that_does_not_answer_in_time_denies_and_a_late_yes_counts_for_nothing(
    is_stubborn: bool,
) -> None:
    async def late(_request: PermissionRequest) -> PermissionDecision:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not is_stubborn:
                raise
        return PermissionDecision(Choice.ALLOW_FOR_SESSION)

    broker = make_broker(late)

    verdict = await broker.decide(make_call())

    assert (verdict.is_allowed, verdict.error) == (False, ErrorType.PERMISSION_TIMEOUT)
    assert len(broker.gate.grants) == 0


@pytest.mark.spec("PER-14")
async def test_a_question_whose_call_is_cancelled_is_withdrawn() -> None:
    is_asked, was_cancelled = asyncio.Event(), asyncio.Event()

    async def waiting(_request: PermissionRequest) -> PermissionDecision:
        is_asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            was_cancelled.set()
        raise AssertionError

    broker = make_broker(waiting)
    broker.gate.timeout = timedelta(minutes=1)
    asking = asyncio.create_task(broker.decide(make_call()))
    await is_asked.wait()

    asking.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asking
    assert was_cancelled.is_set()
    assert broker.types == ["permission_requested", "permission_withdrawn"]
