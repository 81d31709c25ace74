from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from msgspec.structs import replace

from soong.shared.core import timing
from soong.shared.core.identity import Origin
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.tasks.step import Claim
from soong.shared.permissions.policy import Mode, NetworkMode, NetworkPolicy, Policy, policy_for
from soong.shared.permissions.request import Choice, PermissionDecision, PermissionRequest
from soong.shared.permissions.rules import Effect, Rule, Scope, ScopeKind
from soong.shared.tools.definition import Permission, Risk, Target, Traits
from soong.shared.tools.ports import GateCall
from soong.shared.tools.result import ErrorType
from tests.integration.conftest import OpenBench
from tests.integration.consent import WRITE_FILE, Callback, ConsentHarness, make_call, verdicts

FETCH = replace(WRITE_FILE, name="web.fetch", permission=Permission.READONLY, tags=frozenset({"network"}))
READ = Traits(is_read_only=True, is_concurrency_safe=True)
FOREIGN = Origin("root", is_foreign=True)


def fetch(claim: Claim, call_id: str = "call_1", host: str = "example.org") -> GateCall:
    target = Target(kind="host", scope=host, shown=f"https://{host}/", host=host)
    return make_call(
        claim, call_id, definition=FETCH, traits=replace(READ, is_open_world=True), target=target, risk=Risk.READ
    )


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a program wait less for what its session grant settles, before it shows the next question of its kind."""
    monkeypatch.setattr(timing, "GRACE_S", 1.0)


async def taint(bench: ConsentHarness, claim: Claim) -> None:
    """End a call of the run that has read something."""
    await bench.store.runs.end_call(
        claim.identity.run_id,
        claim.fence,
        "read",
        result=None,
        nodes=(),
        events=(),
        now_us=bench.clock.now_us(),
        taints=True,
    )


@pytest.mark.usefixtures("short_grace")
@pytest.mark.spec("PER-21.a", "PER-07", "PER-04")
async def test_a_tainted_run_is_asked_despite_a_grant_that_answers_others(open_bench: OpenBench) -> None:
    callback = Callback([Choice.ALLOW_FOR_SESSION, Choice.ALLOW_ONCE])
    async with open_bench(callback) as bench:
        (clean, one), (reader, two) = await bench.claim(2)
        await verdicts(bench.gate(clean, one).decide(fetch(clean)))
        await taint(bench, reader)

        (again,) = await verdicts(bench.gate(clean, one).decide(fetch(clean, "call_2")))
        (outward,) = await verdicts(bench.gate(reader, two).decide(fetch(reader)))
        (next_one,) = await verdicts(bench.gate(reader, two).decide(fetch(reader, "call_2")))

        assert (again.author, outward.author, next_one.author) == ("grant", "person", "person")
        assert [request.identity.run_id for request in callback.shown] == [
            clean.identity.run_id,
            reader.identity.run_id,
            reader.identity.run_id,
        ]
        assert "read untrusted content, whatever was granted" in callback.shown[1].risk_summary


@pytest.mark.usefixtures("short_grace")
@pytest.mark.spec("PER-21")
async def test_the_owner_uses_no_grant_for_a_tainted_run_whatever_its_worker_says(open_bench: OpenBench) -> None:
    callback = Callback([Choice.ALLOW_FOR_SESSION, Choice.DENY])
    async with open_bench(callback) as bench:
        (clean, one), (reader, two) = await bench.claim(2)
        await verdicts(bench.gate(clean, one).decide(fetch(clean)))
        await taint(bench, reader)
        quiet = replace(bench.gate(reader, two), store=Forgetful(bench.store))  # passes everything else on

        (outward,) = await verdicts(quiet.decide(fetch(reader)))

        assert "untrusted" not in callback.shown[1].risk_summary
        assert (outward.is_allowed, outward.author) == (False, "person")


@pytest.mark.usefixtures("short_grace")
@pytest.mark.spec("PER-08", "OPS-12.a")
async def test_a_grant_answers_for_no_run_that_another_side_had_made_whatever_its_worker_says(
    open_bench: OpenBench,
) -> None:
    callback = Callback([Choice.ALLOW_FOR_SESSION, Choice.ALLOW_FOR_SESSION, Choice.DENY])
    async with open_bench(callback) as bench:
        ((own, one),) = await bench.claim()
        foreign, two = await bench.claim_as(origin=FOREIGN)
        await verdicts(bench.gate(own, one).decide(make_call(own)))

        (again,) = await verdicts(bench.gate(own, one).decide(make_call(own, "call_2")))
        careless = bench.gate(foreign, two)  # it asks as for a run of the session's own side
        (unoffered,) = await verdicts(careless.decide(make_call(foreign)))
        (denied,) = await verdicts(careless.decide(make_call(foreign, "call_2")))
        (still,) = await verdicts(bench.gate(own, one).decide(make_call(own, "call_3")))

        assert (again.author, still.author) == ("grant", "grant")
        assert (unoffered.is_allowed, unoffered.error) == (False, ErrorType.PERMISSION_FAILED)  # no session grant there
        assert (denied.is_allowed, denied.author) == (False, "person")


@pytest.mark.spec("PER-02", "OPS-12.a")
async def test_a_rule_answers_for_no_run_that_another_side_had_made(open_bench: OpenBench) -> None:
    rule = Rule(Effect.ALLOW, "code.write_file", scope=Scope(ScopeKind.PATH, "/work"), source="--allow")
    callback = Callback([Choice.ALLOW_ONCE])
    async with open_bench(callback, policy=Policy((rule,))) as bench:
        ((own, one),) = await bench.claim()
        foreign, two = await bench.claim_as(origin=FOREIGN)
        policies = [policy_for(Policy.from_json(claim.policy), claim.identity) for claim in (own, foreign)]

        (by_rule,) = await verdicts(bench.gate(own, one, policies[0]).decide(make_call(own)))
        (asked,) = await verdicts(bench.gate(foreign, two, policies[1]).decide(make_call(foreign)))

        assert (by_rule.author, asked.author) == ("rule", "person")
        assert [request.offers_session for request in callback.shown] == [False]


@pytest.mark.spec("PER-09.c", "PER-19")
async def test_a_host_off_the_list_is_network_denied_and_nobody_is_asked(open_bench: OpenBench) -> None:
    listed = NetworkPolicy(NetworkMode.ALLOWLIST, ("example.org",), source="config.toml")
    callback = Callback()
    async with open_bench(callback, policy=Policy(network=listed)) as bench:
        ((claim, worker),) = await bench.claim(1)
        kept = Kept()
        gate = replace(bench.gate(claim, worker), note=kept.note)

        (off, on) = await verdicts(gate.decide(fetch(claim, host="evil.test")), gate.decide(fetch(claim, "call_2")))

        assert (off.is_allowed, off.error, off.author, off.rule) == (
            False,
            ErrorType.NETWORK_DENIED,
            "rule",
            "network allowlist (config.toml)",
        )
        assert on.is_allowed
        assert [request.host for request in callback.shown] == ["example.org"]
        (settled,) = kept.events
        assert (settled.type, settled.data["error"], settled.data["source"]) == (
            EventType.PERMISSION_DECIDED,
            "network_denied",
            "config.toml",
        )


@pytest.mark.spec("PER-09", "PER-18")
async def test_the_owner_refuses_a_host_that_a_worker_would_have_asked_for(open_bench: OpenBench) -> None:
    callback = Callback()
    async with open_bench(callback, policy=Policy(network=NetworkPolicy(NetworkMode.OFF))) as bench:
        ((claim, worker),) = await bench.claim(1)

        (verdict,) = await verdicts(bench.gate(claim, worker, Policy()).decide(fetch(claim)))

        assert (verdict.error, verdict.author) == (ErrorType.NETWORK_DENIED, "rule")
        assert callback.shown == []
        decided = await bench.event(claim, EventType.PERMISSION_DECIDED)
        assert (decided.data["author"], decided.data["rule"]) == ("rule", "network off (runtime)")


@pytest.mark.spec("PER-19.c")
async def test_what_the_policy_settles_is_recorded_facts_and_decision_apart_with_the_next_write(
    open_bench: OpenBench,
) -> None:
    rule = Rule(Effect.ALLOW, "code.*", scope=Scope(ScopeKind.PATH, "/work/out"), source="config.toml")
    async with open_bench(policy=Policy((rule,))) as bench:
        ((claim, worker),) = await bench.claim(1)
        kept = Kept()
        before = len(await bench.events(claim))

        await verdicts(replace(bench.gate(claim, worker), note=kept.note).decide(make_call(claim)))

        assert len(await bench.events(claim)) == before
        (event,) = kept.events
        facts = event.data["facts"]
        assert {name: value for name, value in event.data.items() if name != "facts"} == {
            "tool_call_id": "call_1",
            "tool": "code.write_file",
            "choice": "allow",
            "author": "rule",
            "rule": "allow code.*:/work/out",
            "source": "config.toml",
            "reason": "the rule 'allow code.*:/work/out' of config.toml allows it",
            "error": None,
        }
        assert isinstance(facts, Mapping)
        assert (facts["risk"], facts["scope"], facts["traits"]) == ("write", "/work/out", Traits().as_json())


@pytest.mark.spec("PER-19.c")
async def test_a_question_records_its_facts_and_a_grant_names_where_it_comes_from(open_bench: OpenBench) -> None:
    async with open_bench(Callback([Choice.ALLOW_FOR_SESSION])) as bench:
        (first, one), (second, two) = await bench.claim(2)
        await verdicts(bench.gate(first, one).decide(make_call(first)))
        await verdicts(bench.gate(second, two).decide(make_call(second)))

        asked = await bench.event(second, EventType.PERMISSION_REQUESTED)
        decided = await bench.event(second, EventType.PERMISSION_DECIDED)
        given = await bench.event(first, EventType.PERMISSION_DECIDED)
        facts = asked.data["facts"]
        assert isinstance(facts, Mapping)
        assert (facts["risk"], facts["permission"]) == ("write", "write")
        assert (decided.data["author"], decided.data["grant"]) == ("grant", given.data["decision_id"])


@pytest.mark.spec("PER-03.a", "PER-19")
async def test_what_a_callback_says_beside_its_answer_is_kept_with_it(open_bench: OpenBench) -> None:
    said: dict[str, Json] = {"ticket": "OPS-7", "nested": {"n": [1, 2]}}

    async def callback(_request: PermissionRequest) -> PermissionDecision:
        return PermissionDecision(Choice.ALLOW_ONCE, "fine", said)

    async with open_bench(callback) as bench:
        ((claim, worker),) = await bench.claim(1)

        (verdict,) = await verdicts(bench.gate(claim, worker).decide(make_call(claim)))

        decided = await bench.event(claim, EventType.PERMISSION_DECIDED)
        answer = await bench.store.consent.answer_of(str(decided.data["request_id"]))
        assert verdict.is_allowed
        assert decided.data["metadata"] == said
        assert answer is not None
        assert answer.metadata == said


class _Broken(Mapping[str, Json]):
    """A mapping whose lookup fails, as one over a closed connection does."""

    def __getitem__(self, key: str) -> Json:
        raise ConnectionError(f"{key} is on a connection that is closed")

    def __iter__(self) -> Iterator[str]:
        return iter(("x",))

    def __len__(self) -> int:
        return 1


def _endless() -> list[Any]:
    within: list[Any] = []
    within.append(within)
    return within


_BROKEN: Final = (_Broken(), {"x": _endless()})


@pytest.mark.spec("PER-03", "PER-14")
@pytest.mark.parametrize(
    "metadata",
    [{"x": object()}, {"x": float("nan")}, {"x": "y" * 20_000}, {1: "x"}, 5, {"x": "\ud800"}, ["xyz"], *_BROKEN],
    ids=[
        *("an object", "NaN", "too large", "a number for a name", "no mapping", "half a character", "no pairs"),
        *("a lookup that fails", "lists within lists without end"),
    ],
)
async def test_metadata_that_cannot_be_kept_makes_the_answer_a_failure_and_no_yes(
    open_bench: OpenBench, metadata: object
) -> None:
    async def callback(_request: PermissionRequest) -> PermissionDecision:
        return PermissionDecision(Choice.ALLOW_ONCE, "fine", metadata)  # type: ignore[arg-type]  # that is the point

    async with open_bench(callback) as bench:
        ((claim, worker),) = await bench.claim(1)

        (verdict,) = await verdicts(bench.gate(claim, worker).decide(make_call(claim)))

        assert (verdict.is_allowed, verdict.error) == (False, ErrorType.PERMISSION_FAILED)
        assert "metadata" in verdict.reason


@pytest.mark.spec("PER-16.a")
async def test_a_yes_to_a_delegation_is_a_yes_to_nothing_inside_it(open_bench: OpenBench) -> None:
    """mastra-ai/mastra#20934: who approved a delegation had approved, unseen, the dangerous call inside it."""
    callback = Callback([Choice.ALLOW_FOR_SESSION, Choice.DENY])
    delegate = replace(WRITE_FILE, name="agent.dispatch_worker", tags=frozenset({"agent"}))
    async with open_bench(callback) as bench:
        (parent, one), (child, two) = await bench.claim(2)
        target = Target(kind="resource", scope="/work/out", shown="worker for /work/out")

        (given,) = await verdicts(bench.gate(parent, one).decide(make_call(parent, definition=delegate, target=target)))
        (inner,) = await verdicts(bench.gate(child, two).decide(make_call(child)))

        assert given.is_allowed
        assert (inner.is_allowed, inner.author) == (False, "person")
        assert [request.tool for request in callback.shown] == ["agent.dispatch_worker", "code.write_file"]


@pytest.mark.spec("PER-20.c")
@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.STRICT])
async def test_what_is_critical_is_asked_each_time_in_both_modes(open_bench: OpenBench, mode: Mode) -> None:
    callback = Callback([Choice.ALLOW_ONCE])
    rule = Rule(Effect.ALLOW, "*", scope=Scope(ScopeKind.PATH, "/work"))
    async with open_bench(callback, policy=Policy((rule,), mode)) as bench:
        ((claim, worker),) = await bench.claim(1)
        gate = bench.gate(claim, worker)

        for number in range(2):
            (verdict,) = await verdicts(gate.decide(make_call(claim, f"call_{number}", risk=Risk.CRITICAL)))
            assert verdict.author == "person"

        assert [request.offers_session for request in callback.shown] == [False, False]


@pytest.mark.spec("PER-14.c/asked-again")
async def test_after_not_getting_a_yes_the_next_call_is_asked_again(open_bench: OpenBench) -> None:
    callback = Callback([Choice.DENY, Choice.ALLOW_ONCE])
    async with open_bench(callback) as bench:
        ((claim, worker),) = await bench.claim(1)
        gate = bench.gate(claim, worker)

        (first,) = await verdicts(gate.decide(make_call(claim)))
        (second,) = await verdicts(gate.decide(make_call(claim, "call_2")))

        assert (first.error, second.is_allowed) == (ErrorType.PERMISSION_DENIED, True)


@dataclass
class Kept:
    """Events that a run keeps back until it writes next."""

    events: list[NewEvent] = field(default_factory=list)

    async def note(self, type: str, data: JsonObject) -> None:
        self.events.append(NewEvent(type, data))


class Forgetful:
    """The store as a worker sees it that keeps its run's taint to itself."""

    def __init__(self, store: object) -> None:
        self._store = store
        self.runs = self

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def is_tainted(self, _run_id: str) -> bool:
        return False
