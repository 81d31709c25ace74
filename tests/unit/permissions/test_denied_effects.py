"""A denied effect never happens: generated policies, hooks, dispatches and people, through the real pipeline and gate.

What ran is remembered by the tools themselves and judged by an oracle of this module's own, written from the
specification: it shares nothing with the policy but the words of a rule.
"""

import asyncio
import os.path
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soong.orchestrator.direct.gate import DirectGate
from soong.shared.core.identity import Role
from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.runs.events import NewEvent
from soong.shared.engine.sessions.session import ApprovalMode, Session
from soong.shared.permissions.policy import Mode, Policy
from soong.shared.permissions.request import Choice, PermissionDecision, PermissionRequest
from soong.shared.permissions.rules import Effect, Rule, ScopeKind
from soong.shared.tools.definition import Permission, Target, ToolContext, ToolDefinition
from soong.shared.tools.hooks.chain import Hooks
from soong.shared.tools.hooks.hook import HookCall, NamedHook, PreAction, PreHook, PreOutcome
from soong.shared.tools.pipeline import RunScope, ToolPipeline
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.surface import SurfaceRequest, compute_surface
from tests.model.clock import START_US, FakeClock
from tests.unit.permissions.calls import PATTERNS, RULES
from tests.unit.tools.parts import Artifacts, RecordingLog, make_identity, make_registry, make_run_dirs

HOME = "/home/ada"
FOLDERS = ("/work", "/work/out", "/work/out/a", "/work/other", "/elsewhere")
HOSTS = ("example.org", "api.example.org", "evil.test")
SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "host": {"type": "string"}},
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Ran:
    """One execution, as the tool itself saw it."""

    tool: ToolDefinition
    path: str
    host: str


@dataclass(frozen=True, slots=True)
class Yes:
    """A person's yes: to this tool and this input, or for the session and this scope."""

    choice: Choice
    tool: str
    path: str
    host: str
    scope: str


@dataclass(slots=True)
class Person:
    """Answers by turns; keeps what it said yes to."""

    choices: Sequence[Choice | None]
    said: list[Yes] = field(default_factory=list)
    asked: int = 0

    async def __call__(self, request: PermissionRequest) -> PermissionDecision:
        choice = self.choices[self.asked % len(self.choices)]
        self.asked += 1
        if choice is None:
            raise RuntimeError("the terminal is gone")
        if choice is not Choice.DENY and (choice is Choice.ALLOW_ONCE or request.scope):
            path, host = (str(request.arguments.get(name, "")) for name in ("path", "host"))
            self.said.append(Yes(choice, request.tool, path, host, request.scope))
        return PermissionDecision(choice)


@dataclass(slots=True)
class World:
    """The tools, and all that they did."""

    ran: list[Ran] = field(default_factory=list)

    def tool(self, name: str, permission: Permission, *tags: str) -> ToolDefinition:
        async def handler(_context: ToolContext, call_input: JsonObject) -> str:
            made = next(tool for tool in self.tools if tool.name == name)
            self.ran.append(Ran(made, str(call_input.get("path", "")), str(call_input.get("host", ""))))
            return "done"

        return ToolDefinition(
            name, f"the tool {name}", SCHEMA, handler, permission, frozenset(tags), target=target_of, open_world=False
        )

    tools: tuple[ToolDefinition, ...] = ()

    def __post_init__(self) -> None:
        self.tools = (
            self.tool("code.write_file", Permission.WRITE, "filesystem", "write"),
            self.tool("code.read_file", Permission.READONLY, "filesystem"),
            self.tool("code.run_command", Permission.WRITE, "dangerous", "write"),
            self.tool("mcp.web.fetch", Permission.READONLY, "mcp", "network"),
            self.tool("internal.x", Permission.WRITE, "write"),
        )


def target_of(_context: ToolContext, call_input: JsonObject) -> Target:
    path, host = str(call_input.get("path", "")), str(call_input.get("host", ""))
    if host:
        return Target(kind="host", scope=host, shown=host, host=host)
    return Target(kind="path", scope=os.path.dirname(path), shown=path)  # noqa: PTH120  # a text, not a file


CALLS = st.lists(
    st.tuples(
        st.sampled_from([tool.name for tool in World().tools] + ["code.delete_all"]),
        st.builds(lambda folder, name: {"path": f"{folder}/{name}"}, st.sampled_from(FOLDERS), st.sampled_from("xy"))
        | st.builds(lambda host: {"host": host}, st.sampled_from(HOSTS)),
    ),
    min_size=1,
    max_size=5,
)
ACTIONS: st.SearchStrategy[PreAction] = st.sampled_from(["none", "allow", "ask", "deny", "stop"])
HOOKS = st.lists(st.tuples(ACTIONS, st.none() | st.sampled_from(FOLDERS)), max_size=2)
PEOPLE = st.none() | st.lists(st.sampled_from([*Choice, None]), min_size=1, max_size=3)
POLICIES = st.builds(
    Policy, st.lists(RULES, max_size=6).map(tuple), st.sampled_from(Mode), is_dangerous_enabled=st.booleans()
)
DISPATCHES = st.none() | st.lists(PATTERNS, max_size=3).map(tuple)


def hooks_of(wanted: Sequence[tuple[PreAction, str | None]]) -> Hooks:
    """Return hooks that say so, and that move the target into another folder where one is named."""

    def made(action: PreAction, folder: str | None) -> PreHook:
        async def hook(call: HookCall) -> PreOutcome:
            path = str(call.call_input.get("path", ""))
            moved = {"path": f"{folder}/{path.rpartition('/')[2]}"} if folder and path else None
            return PreOutcome(action, "so", moved)

        return hook

    return Hooks(tuple(NamedHook(f"h{n}", made(*one)) for n, one in enumerate(wanted)))


def covers(rule: Rule, ran: Ran) -> bool:
    """Say by the words of the documentation whether a rule speaks of what ran."""
    if rule.step or not fnmatchcase(ran.tool.name, rule.pattern) or not rule.tags <= ran.tool.tags:
        return False
    if rule.scope is None:
        return True
    assert rule.scope.kind is ScopeKind.PATH
    return not ran.host and (ran.path == rule.scope.value or ran.path.startswith(f"{rule.scope.value}/"))


def is_excused(ran: Ran, policy: Policy, said: Sequence[Yes]) -> bool:
    """Say whether something allowed what ran: that it only reads, a rule for its place, or a person."""
    is_dangerous, is_outward = "dangerous" in ran.tool.tags, bool(ran.host) or "network" in ran.tool.tags
    only_reads = ran.tool.permission is Permission.READONLY and not is_outward
    asks = any(rule.effect is Effect.ASK and covers(rule, ran) for rule in policy.rules)
    if only_reads and not asks:
        return True
    by_rule = any(rule.effect is Effect.ALLOW and rule.scope and covers(rule, ran) for rule in policy.rules)
    if by_rule and not (asks or is_dangerous or policy.mode is Mode.STRICT):
        return True
    scope = ran.host or ran.path.rpartition("/")[0]
    return any(
        yes.tool == ran.tool.name
        and (
            (yes.path, yes.host) == (ran.path, ran.host)
            or (yes.choice is Choice.ALLOW_FOR_SESSION and yes.scope == scope and policy.mode is not Mode.STRICT)
        )
        for yes in said
    )


@pytest.mark.spec("PER-02", "PER-08", "PER-10", "PER-16", "PER-18", "PER-20", "EXE-12.d")
@given(POLICIES, st.sampled_from(Role), DISPATCHES, HOOKS, PEOPLE, CALLS)
def test_nothing_runs_that_nothing_allowed_and_nothing_that_a_rule_denies(
    policy: Policy,
    role: Role,
    allowed: tuple[str, ...] | None,
    hooks: Sequence[tuple[PreAction, str | None]],
    people: Sequence[Choice | None] | None,
    calls: Sequence[tuple[str, JsonObject]],
) -> None:
    """spyrae/kronos-agent-os#25, openJiuwen-ai/agent-core#963: delegation was a way round the gate."""
    world, person = World(), Person(people or [Choice.DENY])
    wanted = SurfaceRequest(role, allowed_tools=allowed, is_dangerous_enabled=policy.is_dangerous_enabled)
    surface = compute_surface(world.tools, wanted)
    gate = make_gate(policy, person if people else None)

    asyncio.run(run_all(world, surface.tools, gate, hooks_of(hooks), calls))

    for ran in world.ran:
        assert ran.tool.name in surface.tools
        assert not any(rule.effect is Effect.DENY and covers(rule, ran) for rule in policy.rules)
        assert policy.is_dangerous_enabled or "dangerous" not in ran.tool.tags
        assert is_excused(ran, policy, person.said if people else ())
    if any(action in {"deny", "stop"} for action, _ in hooks):
        assert world.ran == []


@pytest.mark.spec("PER-02")
def test_the_oracle_would_notice() -> None:
    """Each of its three judgements can fail: otherwise the property above would say nothing."""
    world = World()
    write, _, command, _, _ = world.tools
    ran = Ran(write, "/work/x", "")
    deny, allow = Rule(Effect.DENY, "code.*"), Rule(Effect.ALLOW, "*", scope=None)

    assert covers(deny, ran)
    assert not is_excused(ran, Policy((allow,)), ())
    assert not is_excused(
        Ran(command, "/work/x", ""), Policy(), [Yes(Choice.ALLOW_ONCE, write.name, "/work/x", "", "")]
    )
    assert is_excused(ran, Policy(), [Yes(Choice.ALLOW_ONCE, write.name, "/work/x", "", "")])


async def run_all(
    world: World, surface: Sequence[str], gate: DirectGate, hooks: Hooks, calls: Sequence[tuple[str, JsonObject]]
) -> None:
    run = RunScope(make_identity(), 1, make_run_dirs(Path("/work")))
    registered = [tool for tool in make_registry(*world.tools).definitions() if tool.name in surface]
    pipeline = ToolPipeline(registered, run, gate, RecordingLog(), hooks=hooks, artifacts=Artifacts())
    for number, (name, arguments) in enumerate(calls):
        await pipeline.execute(ToolCall(f"call_{number}", name, arguments))


def make_gate(policy: Policy, person: Person | None) -> DirectGate:
    async def record(_events: Sequence[NewEvent]) -> None:
        """Keep nothing: what ran is what counts."""

    mode = ApprovalMode.PROMPT if person else ApprovalMode.DENY
    return DirectGate(
        session=Session("sess_1", "/work", "/work", mode, START_US),
        policy=policy,
        callback=person,
        channel="test",
        record=record,
        clock=FakeClock(),
        timeout=timedelta(seconds=5),
        decision_ttl=timedelta(hours=1),
        home=HOME,
    )
