"""The effective tool set of a run: one pure computation, stored with the run and used for everything (ETS).

Rules are asked in a fixed order and the first that has something to say decides, so every tool is in or out for one
named reason. Hard limits come first: no configuration, definition or request is even looked at before them.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import TypeAlias

import msgspec
from msgspec import ValidationError, convert

from soong.shared.core.errors import UsageError
from soong.shared.core.foreign import call_foreign, name_of
from soong.shared.core.identity import Role
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.value import Value
from soong.shared.tools.definition import Permission, ToolDefinition
from soong.shared.tools.naming import name_matches

CHILD_TASK_TOOLS = frozenset(
    {"agent.task_get", "agent.task_query_steps", "agent.task_claim_step", "agent.task_update_step"}
)

DEFAULT_WORKER_TOOLS = (*sorted(CHILD_TASK_TOOLS), "code.read_file", "code.list_dir", "code.search")
"""The set of ``default_worker_agent`` and nothing else (ETS-04)."""

DELEGATION_TOOLS = frozenset({"agent.create_sub_agent", "agent.fork_agent", "agent.dispatch_worker"})

_CHILD_NEVER = (
    # Patterns, because what they name may be registered later or by others; nothing lifts them (ETS-06).
    "agent.plan_*",
    "agent.task_*",
    "agent.create_sub_agent",
    "agent.fork_agent",
    "agent.dispatch_worker",
    "agent.list_agent_definitions",
    "agent.list_workers",
    "agent.inspect_agent",  # a child has nothing below it to look at, and workers do not have it
    "internal.*memor*",
    "agent.*memor*",
    "memory.*",
    "mcp.soong.*",  # our own MCP server as a source would be a way round every line above (PER-13)
)
_PLAN_TOOLS = ("agent.plan_*", "agent.task_*")
TOOL_SEARCH = "internal.tool_search"
"""In every tool set while it is enabled: its hits are in the set already (:mod:`soong.shared.tools.deferred`)."""
_CHANGING_TASKS = frozenset(
    {"agent.task_create", "agent.task_update", "agent.task_complete", "agent.task_fail", "agent.task_cancel"}
)


_TOOLSETS: Mapping[str, tuple[str, ...]] = {
    "commands": ("code.run_command",),
    "filesystem": ("code.*",),
    "skills": ("internal.*skill*",),
    "memory": ("internal.*memor*",),
    "tasks": _PLAN_TOOLS,
    "agents": ("agent.*",),
}


def toolset_of(name: str) -> str:
    """Return the toolset of a tool: one of ours, ``mcp.SERVER``, or the namespace of its name (REG-12)."""
    own = next((toolset for toolset, globs in _TOOLSETS.items() if any(name_matches(one, name) for one in globs)), "")
    parts = name.split(".")
    return own or (".".join(parts[:2]) if parts[0] == "mcp" else parts[0])


class RunMode(StrEnum):
    """The mode of a run (DIS-06). Plan is read-only plus the role's plan and task tools."""

    DEFAULT = "default"
    PLAN = "plan"
    READONLY = "readonly"


class ToolRule(Value):
    """A rule over tools. Covers those whose name matches and that carry all its tags; ``source`` names its owner."""

    pattern: str = "*"
    tags: frozenset[str] = frozenset()
    source: str = "config"

    def covers(self, tool: ToolDefinition) -> bool:
        return self.tags <= tool.tags and any(name_matches(self.pattern, name) for name in (tool.name, *tool.aliases))

    def __str__(self) -> str:
        tags = "".join(f" #{tag}" for tag in sorted(self.tags))
        return f"{self.pattern}{tags} ({self.source})"


class SurfaceRequest(Value):
    """All that the computation depends on besides the tools themselves.

    ``default_tools`` are the names or globs of the agent definition; None takes the role's default. ``allowed_tools``
    is what the dispatcher asked for instead; None keeps the default (ETS-03). ``denied`` and ``hidden`` come from
    policy and configuration. Dangerous tools are outside until ``is_dangerous_enabled`` (CMD-06).
    """

    role: Role
    mode: RunMode = RunMode.DEFAULT
    default_tools: tuple[str, ...] | None = None
    allowed_tools: tuple[str, ...] | None = None
    denied: tuple[ToolRule, ...] = ()
    hidden: tuple[ToolRule, ...] = ()
    is_dangerous_enabled: bool = False
    toolsets: Mapping[str, bool | tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Toolsets that the configuration switches off, or reduces to the tools that its globs cover (REG-12)."""
    for_workers: tuple[str, ...] = ()
    """Additional tools from the configuration, for a worker whose step names no tools (ETS-05)."""


class SurfaceDecision(Value, array_like=True):
    """Why one tool is in or out."""

    tool: str
    is_in: bool
    rule: str


class Surface(Value):
    """A run's tools in the order a model sees them, with the decision on every registered tool (ETS-08).

    ``unknown`` holds requested names and globs that no registered tool answers to.
    """

    decisions: tuple[SurfaceDecision, ...]
    unknown: tuple[str, ...] = ()

    @property
    def tools(self) -> tuple[str, ...]:
        return tuple(each.tool for each in self.decisions if each.is_in)

    def explain(self, tool: str) -> SurfaceDecision | None:
        """Return the decision on a tool; None when it was not registered at the time."""
        return next((each for each in self.decisions if each.tool == tool), None)

    @classmethod
    def from_json(cls, stored: JsonObject) -> "Surface":
        """Read the stored form. Raises: UsageError, it is not one of ours."""
        try:
            return convert(stored, cls)
        except ValidationError as error:
            raise UsageError(f"a stored surface cannot be read: {error}") from error


def compute_surface(tools: Iterable[ToolDefinition], request: SurfaceRequest) -> Surface:
    """Decide on every tool, in the given (registry) order. Pure but for ``is_enabled`` of the tools."""
    known = tuple(tools)
    asked: Mapping[str, None] = dict.fromkeys((*(request.allowed_tools or ()), *(request.default_tools or ())))
    unknown = tuple(pattern for pattern in asked if not any(_covers(pattern, tool) for tool in known))
    return Surface(tuple(_decide(tool, request) for tool in known), unknown)


def narrow(tools: Iterable[ToolDefinition], request: SurfaceRequest) -> tuple[ToolDefinition, ...]:
    """Return the tools of a stored surface that the place where they are called offers as well, in their order.

    A worker's own configuration takes away and adds nothing: a removed tool gives ``tool_not_available`` (ETS-02).
    """
    return tuple(tool for tool in tools if not any(rule(tool, request) for rule in _OUT_RULES))


_Rule: TypeAlias = Callable[[ToolDefinition, SurfaceRequest], str]
"""Returns why a tool is out, or nothing when the rule does not speak of it."""


def _decide(tool: ToolDefinition, request: SurfaceRequest) -> SurfaceDecision:
    for rule in _OUT_RULES:
        reason = rule(tool, request)
        if reason:
            return SurfaceDecision(tool.name, is_in=False, rule=reason)
    return _wanted(tool, request)


def _hard_limit(tool: ToolDefinition, request: SurfaceRequest) -> str:
    if not request.role.is_child or tool.name in CHILD_TASK_TOOLS:
        return ""
    if tool.is_agent_tool:
        return f"hard limit: a {request.role.value} agent never starts agents"
    names = (tool.name, *tool.aliases)
    pattern = next((each for each in _CHILD_NEVER if any(name_matches(each, name) for name in names)), "")
    return f"hard limit: a {request.role.value} agent never has {pattern}" if pattern else ""


def _disabled(tool: ToolDefinition, _request: SurfaceRequest) -> str:
    try:
        return "" if call_foreign(tool.is_enabled) else "tool: is_enabled says no"
    except Exception as error:  # noqa: BLE001  # foreign code; a tool that cannot say it is enabled is not
        return f"tool: is_enabled failed with {name_of(error)}"


def _by_rule(tool: ToolDefinition, request: SurfaceRequest) -> str:
    named = (("denied", rule) for rule in request.denied), (("hidden", rule) for rule in request.hidden)
    return next((f"{word} by {rule}" for rules in named for word, rule in rules if rule.covers(tool)), "")


def _switched_off(tool: ToolDefinition, request: SurfaceRequest) -> str:
    if not request.toolsets:
        return ""
    name = toolset_of(tool.name)
    wanted = request.toolsets.get(name, True)
    if wanted is False:
        return f"config toolsets.{name} = false"
    if wanted is True or any(_covers(pattern, tool) for pattern in wanted):
        return ""
    return f"config toolsets.{name} lists other tools"


def _mode(tool: ToolDefinition, request: SurfaceRequest) -> str:
    if request.mode is RunMode.DEFAULT:
        return ""
    # A child may write, so starting one would be a way out of the mode.
    if tool.is_agent_tool or tool.name in DELEGATION_TOOLS:
        return f"mode {request.mode.value}: starts agents"
    if request.mode is RunMode.PLAN and any(name_matches(pattern, tool.name) for pattern in _PLAN_TOOLS):
        return ""
    if tool.name in _CHANGING_TASKS:
        return f"mode {request.mode.value}: changes tasks, and their workers may write"
    is_readonly = tool.permission is Permission.READONLY and "dangerous" not in tool.tags
    return "" if is_readonly else f"mode {request.mode.value}: not readonly"


def _dangerous(tool: ToolDefinition, request: SurfaceRequest) -> str:
    is_out = "dangerous" in tool.tags and not request.is_dangerous_enabled
    return "dangerous tools are not enabled by config" if is_out else ""


_OUT_RULES: tuple[_Rule, ...] = (_hard_limit, _disabled, _by_rule, _switched_off, _mode, _dangerous)


def _wanted(tool: ToolDefinition, request: SurfaceRequest) -> SurfaceDecision:
    if tool.name == TOOL_SEARCH:
        return SurfaceDecision(tool.name, is_in=True, rule="config tools.defer: it finds what is deferred")
    if request.allowed_tools is not None:
        origin, patterns = "allowed_tools", request.allowed_tools
    elif request.default_tools is not None:
        origin, patterns = "agent definition", request.default_tools
    else:
        origin = "default of a worker" if request.role is Role.WORKER else f"default of role {request.role.value}"
        patterns = DEFAULT_WORKER_TOOLS if request.role is Role.WORKER else ("*",)
    pattern = next((each for each in patterns if _covers(each, tool)), None)
    if pattern is None and request.role is Role.WORKER and request.allowed_tools is None:
        asked = next((each for each in request.for_workers if _covers(each, tool)), None)
        if asked is not None:
            return SurfaceDecision(tool.name, is_in=True, rule=f"config tools.for_workers: {asked}")
    if pattern is None:
        return SurfaceDecision(tool.name, is_in=False, rule=f"not in {origin}")
    return SurfaceDecision(tool.name, is_in=True, rule=f"{origin}: {pattern}")


def _covers(pattern: str, tool: ToolDefinition) -> bool:
    return any(name_matches(pattern, name) for name in (tool.name, *tool.aliases))
