"""Whatever is dispatched, a child stays under the session's policy (PER-18), in its tool set and in its calls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soong.shared.core.config import Config, PermissionConfig, RuleConfig, ToolsConfig
from soong.shared.core.identity import Role
from soong.shared.permissions.configured import WORKER_SOURCE, policy_of, surface_request
from soong.shared.permissions.policy import judge
from soong.shared.permissions.rules import CallFacts, Effect
from soong.shared.tools.definition import Permission, Risk, Target, ToolDefinition
from soong.shared.tools.naming import name_matches
from soong.shared.tools.surface import RunMode, compute_surface, narrow
from tests.unit.permissions.calls import make_tool

WRITE = Permission.WRITE
CHILD_TASK_TOOLS = ("agent.task_get", "agent.task_query_steps", "agent.task_claim_step", "agent.task_update_step")
TOOLS = (
    *(make_tool(name, tags=frozenset({"agent", "internal"})) for name in CHILD_TASK_TOOLS),
    make_tool("agent.task_create"),
    make_tool("agent.plan_update"),
    make_tool("agent.dispatch_worker", permission=WRITE, is_agent_tool=True),
    make_tool("agent.create_sub_agent", permission=WRITE, is_agent_tool=True),
    make_tool("agent.list_workers"),
    make_tool("internal.recall_memory"),
    make_tool("code.read_file", tags=frozenset({"code", "filesystem"})),
    make_tool("code.write_file", permission=WRITE, tags=frozenset({"code", "filesystem"})),
    make_tool("code.run_command", permission=WRITE, tags=frozenset({"code", "dangerous"})),
    make_tool("mcp.web.fetch", tags=frozenset({"mcp", "network"})),
    make_tool("mcp.soong.answer", tags=frozenset({"mcp"})),
)
BLACK = {
    "agent.task_create",
    "agent.plan_update",
    "agent.dispatch_worker",
    "agent.create_sub_agent",
    "agent.list_workers",
    "internal.recall_memory",
    "mcp.soong.answer",
}
PATTERNS = st.sampled_from(["*", "agent.*", "code.*", "code.write_file", "mcp.*", "*.fetch", *sorted(BLACK)])
NAMES = st.none() | st.lists(PATTERNS, max_size=4).map(tuple)
TAGS = st.lists(st.sampled_from(["network", "mcp", "code", "dangerous"]), max_size=1).map(tuple)
RULES = st.builds(RuleConfig, effect=st.sampled_from(["deny", "ask"]), tools=PATTERNS, tags=TAGS)
CONFIGS = st.builds(
    Config,
    permission=st.builds(PermissionConfig, rules=st.lists(RULES, max_size=3).map(tuple)),
    tools=st.builds(ToolsConfig, dangerous=st.booleans(), hidden=st.lists(PATTERNS, max_size=2).map(tuple)),
)
CHILDREN = st.sampled_from([Role.SUB, Role.FORK, Role.WORKER])


def facts_of(tool: ToolDefinition) -> CallFacts:
    """Return the mildest facts that a call of a tool can have."""
    is_read = tool.permission is Permission.READONLY
    is_open = bool(tool.tags & {"network", "mcp"})
    risk = Risk.READ if is_read else Risk.WRITE
    return CallFacts(tool.name, tool.tags, is_read, "dangerous" in tool.tags, is_open, risk, Target())


@pytest.mark.spec("PER-18.a", "ETS-06.d", "ETS-03.a", "ETS-01.a")
@given(CONFIGS, CHILDREN, st.sampled_from(RunMode), NAMES, NAMES)
def test_the_tool_set_of_every_dispatch_is_inside_the_policy_and_never_shows_the_black_list(
    config: Config, role: Role, mode: RunMode, suggested: tuple[str, ...] | None, allowed: tuple[str, ...] | None
) -> None:
    """lvndry/jazz#336, antiv/mate#101: a child could be given tools that its parent was denied."""
    request = surface_request(config, role, mode, default_tools=suggested, allowed_tools=allowed)

    surface = compute_surface(TOOLS, request)

    policy = policy_of(config)
    for tool in TOOLS:
        if tool.name in surface.tools:
            assert tool.name not in BLACK
            assert not any(name_matches(pattern, tool.name) for pattern in config.tools.hidden)
            assert judge(policy, facts_of(tool)).effect is not Effect.DENY
            assert config.tools.dangerous or "dangerous" not in tool.tags


@pytest.mark.spec("PER-18.a", "ETS-05.d")
@given(CONFIGS, CONFIGS, CHILDREN, NAMES)
def test_what_a_worker_offers_is_inside_the_stored_set_and_inside_its_own_configuration(
    session: Config, worker: Config, role: Role, allowed: tuple[str, ...] | None
) -> None:
    stored = compute_surface(TOOLS, surface_request(session, role, allowed_tools=allowed)).tools
    selected = tuple(tool for tool in TOOLS if tool.name in stored)

    offered = narrow(selected, surface_request(worker, role, source=WORKER_SOURCE))

    policy = policy_of(session).narrowed_by(policy_of(worker, source=WORKER_SOURCE))
    assert {tool.name for tool in offered} <= set(stored)
    assert all(judge(policy, facts_of(tool)).effect is not Effect.DENY for tool in offered)


@pytest.mark.spec("ETS-05.a", "ETS-05.b", "ETS-05.d", "ETS-04", "ETS-03.b")
def test_a_worker_gets_a_write_tool_only_where_the_dispatch_asks_and_the_policy_lets_it() -> None:
    closed = Config(permission=PermissionConfig(rules=(RuleConfig(effect="deny", tools="code.write_file"),)))

    def tools(config: Config, allowed: tuple[str, ...] | None) -> tuple[str, ...]:
        return compute_surface(TOOLS, surface_request(config, Role.WORKER, allowed_tools=allowed)).tools

    assert "code.write_file" not in tools(Config(), None)
    assert tools(Config(), ("code.write_file",)) == ("code.write_file",)
    assert tools(closed, ("code.write_file",)) == ()


@pytest.mark.spec("PER-18.b", "PER-10")
@given(CHILDREN, NAMES, st.sampled_from(["code.write_file", "mcp.web.fetch", "code.read_file"]))
def test_what_the_session_denies_is_no_childs_whatever_its_dispatch_asks_for(
    role: Role, suggested: tuple[str, ...] | None, denied: str
) -> None:
    """anthropics/claude-code#78063: what a parent was denied its children were not, so it delegated around it."""
    config = Config(permission=PermissionConfig(rules=(RuleConfig(effect="deny", tools=denied),)))
    wanted = surface_request(config, role, default_tools=suggested, allowed_tools=("*", denied))

    surface = compute_surface(TOOLS, wanted)

    tool = next(tool for tool in TOOLS if tool.name == denied)
    assert denied not in surface.tools
    assert judge(policy_of(config), facts_of(tool)).effect is Effect.DENY
