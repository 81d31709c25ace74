"""Agents of others as children: which programs speak the Agent Client Protocol, and what a run of one may do (ACP-01).

A step's ``agent: acp:NAME`` names one. Three are built in; a user's ``config.toml`` adds others and completes these. A
project adds none: its definitions have no colon in their ids.

A run of such an agent has the surface of any run. Its own tools are known by the kinds of the protocol; each kind needs
the code tool that does the same, so what takes ``code.write_file`` from a run takes ``acp.NAME.edit`` from it, too.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from soong.shared.agents.definition import AgentDefinition, AgentDefinitionRegistry
from soong.shared.core.config import CONFIG_FILE, Config
from soong.shared.core.errors import InvalidConfigError, NotFoundError
from soong.shared.core.program_config import AcpAgentConfig
from soong.shared.core.value import Value
from soong.shared.engine.tasks.plan.plan import ACP_PREFIX
from soong.shared.sandbox.descriptors import PathRefusedError
from soong.shared.sandbox.programs import child_environment, find_program

READ_FILE: Final = "code.read_file"
WRITE_FILE: Final = "code.write_file"
RUN_COMMAND: Final = "code.run_command"


class OwnKind(StrEnum):
    """The kind of an agent's own tool call, for the gate. RUN is the agent's program itself."""

    RUN = "run"
    READ = "read"
    EDIT = "edit"
    DELETE = "delete"
    MOVE = "move"
    EXECUTE = "execute"
    FETCH = "fetch"
    OTHER = "other"


NEEDED: Final[Mapping[OwnKind, str]] = {
    OwnKind.READ: READ_FILE,
    OwnKind.EDIT: WRITE_FILE,
    OwnKind.DELETE: WRITE_FILE,
    OwnKind.MOVE: WRITE_FILE,
    OwnKind.EXECUTE: RUN_COMMAND,
}
"""The tool that a run must have for its agent to make calls of a kind; the others need none."""

_INSTRUCTIONS: Final = """\
You do one step of a larger task, alone; nobody can answer questions of yours. What you change or run is asked for.
If something is refused, do not try it again in another way: finish with what you have and say what was refused.
End with the result that is asked for, and add nothing else."""


class AcpAgent(Value):
    """One program. ``command`` is found on PATH; ``env`` names what it gets of the worker's environment."""

    name: str
    command: tuple[str, ...]
    env: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    """Arguments after the command, also after a configured one: they make the agent ask."""
    readable: tuple[Path, ...] = ()
    """Files of ours that the arguments name; a sandbox shows them."""
    variables: Mapping[str, str] = msgspec.field(default_factory=dict)
    mode: str = ""
    """The session mode it is put into; empty for one that has none."""
    session: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The ``_meta`` of a new session."""
    state: tuple[str, ...] = ()
    """Folders where it keeps its sessions and its sign-in: writable in a sandbox. ``~/`` is the user's home."""
    settings: tuple[str, ...] = ()
    """Files in those folders that control what the agent starts and may do, by relative names. A sandbox shows them
    read-only: changes would otherwise take effect outside of it at the agent's next start."""
    has_network: bool = True
    offers_files: bool = True
    """Whether it is offered to read and write files by us; otherwise it asks, and does it itself."""
    silence_s: float = 600.0
    hint: str = ""
    """How its program is installed."""

    def program(self, untrusted: Collection[Path] = ()) -> tuple[Path, dict[str, str]]:
        """Find its program here, outside the untrusted folders; return it with its environment.
        Raises: InvalidConfigError, this machine does not have it; says how to get it.
        """
        env = {**child_environment(declared=self.env, untrusted=untrusted), **self.variables}
        try:
            return find_program(self.command[0], env, cwd=Path("/"), untrusted=untrusted), env
        except PathRefusedError as error:
            hint = self.hint or "name its program in [acp.agents] of config.toml"
            raise InvalidConfigError(f"the agent 'acp:{self.name}' cannot be started here: {error}; {hint}") from error

    def tool(self, kind: OwnKind) -> str:
        return f"acp.{self.name}.{kind}"


_RESERVED: Final = frozenset({"cwd", "session_id", "mcp_servers", "additional_directories"})
_ASKED: Final = (
    *("Bash", "Edit", "Glob", "Grep", "LS", "MultiEdit", "NotebookEdit", "Read", "Skill", "Task", "WebFetch"),
    *("WebSearch", "Write"),
)
"""The tools of Claude Code, all of which are to ask. By itself it starts in a mode that decides alone, reads the
allow-lists and hooks of the user and of the project, and asks for neither reads nor harmless commands."""

_GEMINI_POLICY: Final = Path(__file__).resolve().with_name("gemini_policy.toml")
"""Gemini CLI passes over a policy that it cannot read: the name is one that a sandbox shows."""

_BUILT_IN: Final = (
    AcpAgent(
        "claude-code",
        ("claude-agent-acp",),
        mode="default",
        session={"claudeCode": {"options": {"settingSources": [], "settings": {"permissions": {"ask": list(_ASKED)}}}}},
        state=("~/.claude",),
        settings=("settings.json", "CLAUDE.md", "agents", "commands", "hooks", "plugins", "skills"),
        hint="npm install -g @agentclientprotocol/claude-agent-acp",
    ),
    AcpAgent(
        "codex",
        ("codex-acp",),
        # Its mode does not say how it asks: an `approval_policy` of its user would hold in it.
        arguments=("-c", 'approval_policy="on-request"', "-c", 'sandbox_mode="read-only"'),
        mode="read-only",
        state=("~/.codex",),
        settings=("config.toml", "AGENTS.md", "hooks.json", "prompts", "rules", "skills"),
        hint="npm install -g @zed-industries/codex-acp",
    ),
    AcpAgent(
        "gemini",
        ("gemini", "--acp"),
        arguments=("--admin-policy", str(_GEMINI_POLICY)),
        readable=(_GEMINI_POLICY,),
        mode="default",
        state=("~/.gemini",),
        settings=("settings.json", "GEMINI.md", "commands", "extensions", "hooks", "policies", "trustedFolders.json"),
        offers_files=False,  # 0.61.0 does not understand the answer that a file is not there, and makes no new one
        hint="npm install -g @google/gemini-cli",
    ),
)


def acp_agents(config: Config) -> dict[str, AcpAgent]:
    """Return the agents that steps may name, by name. Raises: InvalidConfigError."""
    found = {agent.name: agent for agent in _BUILT_IN}
    for name, said in config.acp.agents.items():
        found[name] = _with(found.get(name, AcpAgent(name, ())), said)
        if taken := sorted(_RESERVED & found[name].session.keys()):
            raise InvalidConfigError(f"{CONFIG_FILE}: acp.agents.{name}.session names {taken}, which Soong sets itself")
        if not found[name].command:
            raise InvalidConfigError(f"{CONFIG_FILE}: acp.agents.{name} has no command; name its program")
    return found


def acp_agent(definition: str, config: Config) -> AcpAgent:
    """Return the agent of a definition's id. Raises: NotFoundError."""
    try:
        return acp_agents(config)[definition.removeprefix(ACP_PREFIX)]
    except KeyError:
        raise NotFoundError("ACP agent", definition) from None


def acp_tool_names(config: Config) -> frozenset[str]:
    """Return the names under which calls of such agents are asked for, for rules."""
    return frozenset(agent.tool(kind) for agent in acp_agents(config).values() for kind in OwnKind)


def with_acp(known: AgentDefinitionRegistry, config: Config) -> AgentDefinitionRegistry:
    return AgentDefinitionRegistry([*known, *map(_definition, acp_agents(config).values())])


def _definition(agent: AcpAgent) -> AgentDefinition:
    return AgentDefinition(
        id=f"{ACP_PREFIX}{agent.name}",
        name=agent.name,
        description=f"The agent program {agent.command[0]} of this machine, over the Agent Client Protocol.",
        instructions=_INSTRUCTIONS,
        model=f"{ACP_PREFIX}{agent.name}",
        suggested_tools=(READ_FILE, WRITE_FILE, RUN_COMMAND),
    )


def _with(agent: AcpAgent, said: AcpAgentConfig) -> AcpAgent:
    named = ("env", "variables", "mode", "session", "state", "settings")
    given = {name: value for name in named if (value := getattr(said, name)) is not None}
    return replace(
        agent,
        command=said.command or agent.command,
        has_network=said.network,
        offers_files=agent.offers_files if said.files is None else said.files,
        silence_s=said.silence_s,
        **given,
    )
