import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from soong.orchestrator.client.tool_registry import registry_of
from soong.shared.core.config import parse_config
from soong.shared.core.errors import InvalidConfigError, UsageError
from soong.shared.core.identity import Role
from soong.shared.core.jsontext import dump, parse_strict
from soong.shared.permissions.configured import surface_request
from soong.shared.tools.definition import Permission
from soong.shared.tools.naming import name_matches
from soong.shared.tools.surface import RunMode, Surface, SurfaceRequest, ToolRule, compute_surface, narrow, toolset_of
from soong.shared.toolsets.sources import ToolEnvironment
from tests.unit.tools.parts import make_registry, make_tool

CHILDREN = (Role.SUB, Role.FORK, Role.WORKER)
"""The roles of the clause, in its words: the product's own list is what these tests judge."""

CHILD_TASK_TOOLS = ("agent.task_get", "agent.task_query_steps", "agent.task_claim_step", "agent.task_update_step")
FORBIDDEN = {
    "agent.task_create",
    "agent.task_update",
    "agent.task_cancel",
    "agent.plan_template",
    "agent.create_sub_agent",
    "agent.fork_agent",
    "agent.dispatch_worker",
    "agent.list_workers",
    "agent.list_agent_definitions",
    "internal.recall_memory",
    "internal.write_memory",
    "mcp.soong.dispatch",
}
WRITES = {"code.write_file", "code.run_command", "mcp.web.fetch"}
OTHERS = ("code.read_file", "code.list_dir", "code.search", "agent.inspect_agent", "internal.load_skill")
NAMES = (*CHILD_TASK_TOOLS, *sorted(FORBIDDEN), *OTHERS, *sorted(WRITES))
STARTS_AGENTS = {"agent.create_sub_agent", "agent.fork_agent", "agent.dispatch_worker"}
TOOLS = make_registry(
    *(
        make_tool(
            name,
            permission=Permission.WRITE if name in WRITES else Permission.READONLY,
            tags=frozenset({"dangerous"} if name == "code.run_command" else set()),
            is_agent_tool=name in STARTS_AGENTS,
        )
        for name in NAMES
    )
).definitions()

PATTERNS = st.lists(
    st.sampled_from([*NAMES, "*", "code.*", "agent.*", "internal.*", "mcp.*", "nope.x"]), max_size=4
).map(tuple)
REQUESTS = st.builds(
    SurfaceRequest,
    role=st.sampled_from(Role),
    mode=st.sampled_from(RunMode),
    default_tools=st.none() | PATTERNS,
    allowed_tools=st.none() | PATTERNS,
    denied=PATTERNS.map(lambda patterns: tuple(ToolRule(each) for each in patterns)),
    hidden=PATTERNS.map(lambda patterns: tuple(ToolRule(each) for each in patterns)),
    is_dangerous_enabled=st.booleans(),
)


@pytest.mark.spec("ETS-04", "CARD-2.b")
def test_the_default_worker_has_seven_tools_and_nothing_else() -> None:
    surface = compute_surface(TOOLS, SurfaceRequest(Role.WORKER))

    assert set(surface.tools) == {
        "agent.task_get",
        "agent.task_query_steps",
        "agent.task_claim_step",
        "agent.task_update_step",
        "code.read_file",
        "code.list_dir",
        "code.search",
    }


CHANGES_TASKS = {f"agent.task_{what}" for what in ("create", "update", "complete", "fail", "cancel")}
LOST = {
    RunMode.DEFAULT: set[str](),
    RunMode.PLAN: WRITES | STARTS_AGENTS,
    # The workers of a task may write: a run that only reads makes none.
    RunMode.READONLY: WRITES | STARTS_AGENTS | CHANGES_TASKS,
}


@pytest.mark.spec("ETS-06.a", "ETS-06.b", "ETS-06.c", "PER-13.i")
@pytest.mark.parametrize("mode", RunMode)
@pytest.mark.parametrize("role", Role)
def test_only_main_and_orchestrator_can_ever_be_given_what_a_child_never_has(role: Role, mode: RunMode) -> None:
    wanted = SurfaceRequest(role, mode, allowed_tools=("*",), is_dangerous_enabled=True)

    offered = set(compute_surface(TOOLS, wanted).tools)

    if role in CHILDREN:
        assert not offered & FORBIDDEN
        assert offered >= set(CHILD_TASK_TOOLS)
    else:
        assert offered >= FORBIDDEN - LOST[mode]


@pytest.mark.spec("ETS-08.a")
@given(REQUESTS)
def test_every_registered_tool_is_explained(request_: SurfaceRequest) -> None:
    surface = compute_surface(TOOLS, request_)

    assert [each.tool for each in surface.decisions] == [tool.name for tool in TOOLS]
    assert all(each.rule for each in surface.decisions)
    assert surface.tools == tuple(each.tool for each in surface.decisions if each.is_in)


@pytest.mark.spec("ETS-01.a", "ETS-03.c", "REG-08")
@given(REQUESTS)
def test_a_surface_stays_inside_policy_mode_and_request(request_: SurfaceRequest) -> None:
    surface = compute_surface(TOOLS, request_)

    for name in surface.tools:
        tool = next(tool for tool in TOOLS if tool.name == name)
        assert not any(rule.covers(tool) for rule in (*request_.denied, *request_.hidden))
        assert request_.allowed_tools is None or any(name_matches(each, name) for each in request_.allowed_tools)
        assert request_.mode is RunMode.DEFAULT or tool.permission is Permission.READONLY
        assert request_.is_dangerous_enabled or "dangerous" not in tool.tags


@pytest.mark.spec("PER-18.b")
@given(REQUESTS, PATTERNS)
def test_another_denial_never_adds_a_tool(request_: SurfaceRequest, patterns: tuple[str, ...]) -> None:
    more = replace(request_, denied=(*request_.denied, *(ToolRule(each) for each in patterns)))

    assert set(compute_surface(TOOLS, more).tools) <= set(compute_surface(TOOLS, request_).tools)


@pytest.mark.spec("ETS-03.c", "ETS-05.b", "ETS-05.d", "CMD-06.a")
def test_allowed_tools_replace_the_default_and_still_pass_the_rules() -> None:
    asked = SurfaceRequest(Role.WORKER, allowed_tools=("code.write_file", "code.run_command", "agent.task_create"))

    surface = compute_surface(TOOLS, asked)

    assert surface.tools == ("code.write_file",)
    rules = {each.tool: each.rule for each in surface.decisions}
    assert rules["code.run_command"] == "dangerous tools are not enabled by config"
    assert rules["agent.task_create"] == "hard limit: a worker agent never has agent.task_*"
    assert rules["code.search"] == "not in allowed_tools"


@pytest.mark.spec("ETS-06.d")
def test_an_alias_is_no_way_round_a_hard_limit() -> None:
    tool = make_tool("user.innocent", aliases=("agent.dispatch_worker",))

    surface = compute_surface([tool], SurfaceRequest(Role.WORKER, allowed_tools=("user.*",)))

    assert surface.tools == ()


@pytest.mark.spec("ETS-01.c")
def test_a_tool_that_is_switched_off_or_cannot_say_is_out() -> None:
    def broken() -> bool:
        raise RuntimeError

    tools = [make_tool("user.off", is_enabled=lambda: False), make_tool("user.broken", is_enabled=broken)]

    surface = compute_surface(tools, SurfaceRequest(Role.MAIN))

    assert surface.tools == ()
    assert surface.decisions[1].rule == "tool: is_enabled failed with RuntimeError"


@given(REQUESTS)
def test_a_stored_surface_is_read_back_as_it_was(request_: SurfaceRequest) -> None:
    surface = compute_surface(TOOLS, request_)

    stored = parse_strict(dump(surface.as_json()))

    assert isinstance(stored, dict)
    assert Surface.from_json(stored) == surface


def test_a_stored_surface_that_is_not_ours_is_a_named_error() -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        Surface.from_json({"decisions": [["code.x"]]})


def test_a_rule_speaks_of_tags_and_names_together() -> None:
    rule = ToolRule("mcp.*", frozenset({"network"}), "user config")

    assert rule.covers(make_tool("mcp.a.b", tags=frozenset({"network", "mcp"})))
    assert not rule.covers(make_tool("mcp.a.b"))
    assert str(rule) == "mcp.* #network (user config)"


@pytest.mark.spec("DIS-06.a", "DIS-06.d")
def test_roles_and_modes_are_those_of_the_specification() -> None:
    assert {role.value for role in Role} == {"main", "orchestrator", "sub", "fork", "worker"}
    assert {mode.value for mode in RunMode} == {"default", "plan", "readonly"}


FILES = {"code.read_file", "code.list_dir", "code.search", "code.write_file", "code.edit_file"}


def surface(config: str, role: Role = Role.MAIN) -> Surface:
    tools = (*registry_of(ToolEnvironment()).definitions(), make_tool("mcp.git.log"), make_tool("mcp.web.get"))
    return compute_surface(tools, surface_request(parse_config(config), role))


@pytest.mark.spec("REG-12.a")
@pytest.mark.parametrize(
    ("name", "toolset"),
    [
        ("code.search", "filesystem"),
        ("code.write_file", "filesystem"),
        ("code.run_command", "commands"),
        ("internal.load_skill", "skills"),
        ("internal.recall_memory", "memory"),
        ("agent.task_create", "tasks"),
        ("agent.plan_template", "tasks"),
        ("agent.dispatch_worker", "agents"),
        ("mcp.git.log", "mcp.git"),
        ("web.fetch", "web"),
        ("team.square", "team"),
    ],
)
def test_every_tool_is_in_one_toolset(name: str, toolset: str) -> None:
    assert toolset_of(name) == toolset


@pytest.mark.spec("REG-12.b", "ETS-08")
def test_a_toolset_is_reduced_tool_by_tool() -> None:
    reduced = surface('[toolsets]\nfilesystem = ["code.read_file", "*.search"]')

    assert set(reduced.tools) & FILES == {"code.read_file", "code.search"}
    decision = reduced.explain("code.write_file")
    assert decision is not None
    assert decision.rule == "config toolsets.filesystem lists other tools"
    assert set(reduced.tools) - FILES == set(surface("").tools) - FILES


@pytest.mark.spec("REG-12.b")
def test_a_worker_takes_away_what_its_own_configuration_switches_off() -> None:
    tools = registry_of(ToolEnvironment()).definitions()
    request = surface_request(parse_config("[toolsets]\nfilesystem = false"), Role.WORKER)

    assert FILES.isdisjoint(tool.name for tool in narrow(tools, request))


@pytest.mark.parametrize("value", ["7", '"off"', "[1]", "{}"])
def test_a_switch_is_true_false_or_a_list(value: str) -> None:
    with pytest.raises(InvalidConfigError, match="toolsets"):
        parse_config(f"[toolsets]\nmemory = {value}")
