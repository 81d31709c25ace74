"""Calls and facts with sensible defaults, and hypothesis strategies for them."""

from hypothesis import strategies as st
from msgspec.structs import replace

from soong.shared.core.identity import Role, RunIdentity
from soong.shared.core.jsontext import JsonObject, digest
from soong.shared.permissions.policy import Mode, NetworkMode, NetworkPolicy, Policy
from soong.shared.permissions.rules import CallFacts, Effect, Rule, Scope, ScopeKind
from soong.shared.tools.definition import Permission, Risk, Target, ToolContext, ToolDefinition, Traits
from soong.shared.tools.ports import GateCall

IDENTITY = RunIdentity("sess_1", "run_1", "agent_1", Role.WORKER, "worker", "run_0", "agent_0", "task_1", "task_1/a")


async def _unused(_context: ToolContext, _input: JsonObject) -> None:
    raise AssertionError("a policy runs no tool")


def make_tool(
    name: str, *, permission: Permission = Permission.READONLY, tags: frozenset[str] = frozenset(), **more: object
) -> ToolDefinition:
    return ToolDefinition(name, "A tool.", {"type": "object"}, _unused, permission, tags, **more)  # type: ignore[arg-type]  # a test names real fields


def make_facts(tool: str = "code.write_file", **overrides: object) -> CallFacts:
    """Return the facts of a plain write."""
    facts = CallFacts(
        tool=tool,
        tags=frozenset({"code", "filesystem", "write"}),
        is_read=False,
        is_dangerous=False,
        is_open_world=False,
        risk=Risk.WRITE,
        target=make_path("/work/out/report.md"),
    )
    return replace(facts, **overrides)  # a test names real fields


def make_path(path: str, **overrides: object) -> Target:
    target = Target(kind="path", scope=path.rsplit("/", 1)[0] or "/", shown=path)
    return replace(target, **overrides)  # a test names real fields


def make_call(
    tool: str = "code.write_file",
    *,
    permission: Permission = Permission.WRITE,
    tags: frozenset[str] = frozenset(),
    traits: Traits | None = None,
    target: Target | None = None,
    risk: Risk = Risk.WRITE,
    call_input: JsonObject | None = None,
    **overrides: object,
) -> GateCall:
    """Return a validated call on its way to permission."""
    given: JsonObject = call_input if call_input is not None else {"path": "/work/out/report.md"}
    call = GateCall(
        identity=IDENTITY,
        fence=3,
        tool_call_id="call_1",
        definition=ToolDefinition(tool, "A tool.", {"type": "object"}, _unused, permission, tags),
        permission_input=given,
        input_digest=digest(given),
        traits=traits or Traits(),
        target=target or make_path("/work/out/report.md", precondition="absent"),
        risk=risk,
        cwd="/project",
    )
    return replace(call, **overrides)  # a test names real fields


TOOLS = st.sampled_from(["code.write_file", "code.read_file", "code.run_command", "mcp.web.fetch", "agent.task_get"])
PATTERNS = st.sampled_from(["*", "code.*", "code.write_file", "code.read_file", "mcp.*", "*.fetch", "internal.?x"])
TAGS = st.frozensets(st.sampled_from(["write", "network", "dangerous", "filesystem", "mcp"]), max_size=2)
FOLDERS = st.sampled_from(["/work", "/work/out", "/work/out/a", "/work/other", "/elsewhere"])
SCOPES = st.none() | st.builds(Scope, st.just(ScopeKind.PATH), FOLDERS)
STEPS = st.sampled_from(["", "task_1/a", "task_1/b", "task_1/m", "task_1/m[x]", "task_2/a"])
SOURCES = st.sampled_from(["config", "--allow"])
RULES = st.builds(Rule, st.sampled_from(Effect), PATTERNS, TAGS, SCOPES, SOURCES, STEPS)
HOSTS = st.lists(st.sampled_from(["example.org", "*.example.org", "api.example.org", "other.test"]), max_size=2).map(
    tuple
)
NETWORKS = st.builds(NetworkPolicy, st.sampled_from(NetworkMode), HOSTS, HOSTS, st.booleans())
POLICIES = st.builds(Policy, st.lists(RULES, max_size=6).map(tuple), st.sampled_from(Mode), NETWORKS, st.booleans())
HOST_TARGETS = st.sampled_from(["example.org", "api.example.org", "evil.test", ""]).map(
    lambda host: Target(kind="host", scope=host, shown=host, host=host)
)
FACTS = st.builds(
    CallFacts,
    tool=TOOLS,
    tags=TAGS,
    is_read=st.booleans(),
    is_dangerous=st.booleans(),
    is_open_world=st.booleans(),
    risk=st.sampled_from(Risk),
    target=st.builds(
        lambda folder, is_sensitive, is_inside: make_path(
            f"{folder}/file", is_sensitive=is_sensitive, is_inside_roots=is_inside
        ),
        FOLDERS,
        st.booleans(),
        st.booleans(),
    )
    | HOST_TARGETS,
    hook_asks=st.booleans(),
    is_tainted=st.booleans(),
    step=STEPS,
)
