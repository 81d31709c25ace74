from typing import Any

import pytest
from msgspec.structs import replace

from soong.shared.core.errors import ForgedError
from soong.shared.core.identity import Role, RunIdentity
from soong.shared.core.jsontext import JsonObject, digest
from soong.shared.permissions.gate import MAX_ITEMS, MAX_SHOWN_CHARS, check_binding, facts_of, request_of
from soong.shared.permissions.policy import Mode, NetworkMode, NetworkPolicy, Policy, evaluate
from soong.shared.permissions.request import Choice, Decision, PermissionRequest
from soong.shared.sandbox.redact import redactor
from soong.shared.tools.definition import Risk, Target
from soong.shared.tools.ports import GateCall
from soong.shared.tools.result import ErrorType
from tests.model.builders import make_decision
from tests.unit.permissions.calls import make_call, make_path

NOW_US = 1_767_225_600_000_001


def ask(call: GateCall, policy: Policy = Policy(), secrets: tuple[str, ...] = (), **more: Any) -> PermissionRequest:  # noqa: B008  # frozen
    verdict = evaluate(policy, call)
    return request_of(
        call, policy, verdict, token="token", redactor=redactor(secrets), home="/home/someone", now_us=NOW_US, **more
    )


@pytest.mark.spec("PER-06", "EVT-05.c")
def test_a_request_shows_no_secret_and_is_bound_to_the_real_input() -> None:
    call_input: JsonObject = {"content": "password is hunter22secret", "path": "/work/out/x"}
    target = make_path("/work/out/x", preview="+password is hunter22secret")

    request = ask(make_call(call_input=call_input, target=target), secrets=("hunter22secret",))

    assert "hunter22secret" not in f"{request.arguments}{request.preview}"
    assert request.input_digest == digest(call_input)


@pytest.mark.spec("PER-08", "EVT-05")
def test_no_grant_is_offered_whose_scope_would_hold_a_secret() -> None:
    target = Target("command", "/bin/login hunter22secret in /work", "/bin/login hunter22secret in /work")

    request = ask(make_call("code.run_command", target=target), secrets=("hunter22secret",))

    assert not request.offers_session
    assert "hunter22secret" not in f"{request}"
    assert ask(make_call("code.run_command", target=target)).offers_session


@pytest.mark.spec("PER-06")
def test_a_request_stays_readable_and_marks_what_it_cut() -> None:
    deep: JsonObject = {"x": "leaf"}
    for _ in range(50):
        deep = {"x": deep}
    call_input: JsonObject = {
        "long": "y" * 100_000,
        "many": list(range(1_000)),
        "wide": {str(number): number for number in range(1_000)},
        "deep": deep,
        "nul": "a\0b",
    }

    request = ask(make_call(call_input=call_input))

    assert str(request.arguments["long"]).endswith(f"({100_000 - MAX_SHOWN_CHARS} more characters)")
    many, wide = request.arguments["many"], request.arguments["wide"]
    assert isinstance(many, list)
    assert many[-1] == f"… ({1_000 - MAX_ITEMS} more items)"
    assert isinstance(wide, dict)
    assert wide["…"] == f"{1_000 - MAX_ITEMS} more entries"
    assert "(1 entries)" in str(request.arguments["deep"])
    assert request.arguments["nul"] == "a␀b"


@pytest.mark.spec("PER-06.b")
def test_a_request_advises_against_what_is_dangerous_or_critical() -> None:
    assert ask(make_call()).suggested is Choice.ALLOW_ONCE
    assert ask(make_call(tags=frozenset({"dangerous"}))).suggested is Choice.DENY
    assert ask(make_call(risk=Risk.CRITICAL)).suggested is Choice.DENY


@pytest.mark.spec("PER-20", "PER-08", "PER-09", "PER-08.b")
def test_a_session_grant_is_offered_but_in_strict_mode_for_critical_risk_and_a_network_confirmed_each_time() -> None:
    assert ask(make_call()).scope == "/work/out"
    assert ask(make_call(), Policy(mode=Mode.STRICT)).scope == ""
    assert ask(make_call(risk=Risk.CRITICAL)).scope == ""

    target = Target(kind="host", scope="example.org", shown="https://example.org/x", host="example.org")
    call = make_call("web.fetch", tags=frozenset({"network"}), target=target)

    assert ask(call, Policy(network=NetworkPolicy(NetworkMode.ALWAYS_ASK))).scope == ""
    assert ask(call).scope == "example.org"

    target = Target(kind="command", scope="/usr/bin/ls @ /work", shown="ls /work")

    assert ask(make_call(tags=frozenset({"dangerous"}), target=target)).offers_session


def test_a_request_of_an_unknown_risk_or_kind_is_judged_by_its_worst() -> None:
    request = replace(ask(make_call()), risk="harmless", target_kind="banana")

    facts = facts_of(request)

    assert facts.risk is Risk.CRITICAL
    assert facts.target.kind == "none"


def decide(request: PermissionRequest, **changes: object) -> Decision:
    fresh = replace(make_decision(request), expires_us=NOW_US + 1)
    return replace(fresh, **changes)  # real fields


@pytest.mark.spec("PER-12", "PER-14.a")
@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"expires_us": NOW_US}, ErrorType.PERMISSION_STALE),
        ({"scope": "/work"}, ErrorType.PERMISSION_STALE),
        ({"precondition": "1:2"}, ErrorType.PATH_CONFLICT),
        ({"choice": Choice.DENY, "error": ErrorType.PERMISSION_TIMEOUT}, ErrorType.PERMISSION_TIMEOUT),
        ({"choice": Choice.DENY}, ErrorType.PERMISSION_DENIED),
        ({"error": ErrorType.PERMISSION_FAILED}, ErrorType.PERMISSION_FAILED),
    ],
    ids=["expired", "scope", "changed target", "timeout", "no without a type", "yes with an error"],
)
def test_a_decision_that_does_not_allow_is_distinguished(changes: dict[str, object], error: ErrorType) -> None:
    request = ask(make_call())

    verdict = check_binding(decide(request, **changes), request, now_us=NOW_US)

    assert (verdict.is_allowed, verdict.error) == (False, error)


@pytest.mark.spec("PER-12", "PER-16.b")
@pytest.mark.parametrize("field", ["request_id", "session_id", "run_id", "tool_call_id", "tool", "input_digest"])
def test_a_decision_for_another_call_is_a_forgery(field: str) -> None:
    request = ask(make_call())

    with pytest.raises(ForgedError, match=field):
        check_binding(decide(request, **{field: "other"}), request, now_us=NOW_US)


@pytest.mark.spec("PER-08")
def test_a_grant_for_a_sensitive_file_covers_that_file_and_not_its_folder() -> None:
    plain = ask(make_call(target=make_path("/work/out/a.md")))
    key = ask(make_call(target=make_path("/work/out/.env", is_sensitive=True)))

    assert (plain.scope, key.scope) == ("/work/out", "/work/out/.env")


@pytest.mark.spec("PER-06.a")
def test_a_command_is_asked_for_with_the_names_of_what_it_gets_from_the_environment() -> None:
    command = Target(kind="command", scope="/usr/bin/make in /work", shown="/usr/bin/make all")

    assert ask(make_call(target=command), env=("PATH", "CI")).env == ("PATH", "CI")
    assert ask(make_call(), env=("PATH", "CI")).env == ()


@pytest.mark.spec("PER-06.a", "PER-06.b", "PER-06.c")
def test_a_request_carries_the_facts_of_its_call_and_of_its_run() -> None:
    identity = RunIdentity(
        "sess_1", "run_2", "agent_2", Role.WORKER, "reviewer", "run_1", "agent_1", "task_1", "task_1/build", "Build"
    )
    call = make_call(
        "code.run_command",
        identity=identity,
        tags=frozenset({"code", "dangerous"}),
        call_input={"argv": ["make"]},
        target=Target("command", "make @ /work", "make in /work", host="example.org"),
        cwd="/work",
        risk=Risk.EXECUTE,
        hook_result="ask",
    )

    request = ask(call)

    assert request.identity == identity
    assert (request.tool, request.permission, request.tags) == ("code.run_command", "write", ("code", "dangerous"))
    assert (request.arguments, request.scope, request.shown) == ({"argv": ["make"]}, "make @ /work", "make in /work")
    assert (request.cwd, request.host, request.is_dangerous, request.risk) == ("/work", "example.org", True, "execute")
    assert request.risk_summary
    assert request.hook_result == "ask"
    assert request.suggested is Choice.DENY


@pytest.mark.spec("PER-06", "PER-21")
def test_a_request_carries_its_host_and_that_it_goes_out() -> None:
    target = Target(kind="host", scope="example.org", shown="https://example.org/x", host="example.org")

    request = ask(make_call("web.fetch", tags=frozenset({"network"}), target=target))

    assert (request.host, request.scope, request.is_outward) == ("example.org", "example.org", True)
    assert facts_of(request).is_outward
    assert not ask(make_call()).is_outward
