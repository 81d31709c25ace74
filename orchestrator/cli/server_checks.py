"""The check of ``soong doctor`` on MCP servers. It starts none: `soong mcp refresh` does."""

from datetime import timedelta
from pathlib import Path

from soong.orchestrator.cli.finding import Finding, Level
from soong.orchestrator.cli.mcp_servers import login_state
from soong.shared.core.config import load_config
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.references import resolved
from soong.shared.core.settings import Settings
from soong.shared.sandbox.descriptors import PathRefusedError
from soong.shared.sandbox.programs import child_environment, find_program
from soong.shared.toolsets.mcp.connection import expanded
from soong.shared.toolsets.mcp.toolset import McpTools, servers_of

_CHECK = "mcp servers"


async def check_servers(settings: Settings) -> Finding:
    """Each server that is enabled has a program, its secrets, and a snapshot without a problem."""
    try:
        config = load_config(settings.home)
    except InvalidConfigError:
        return Finding(_CHECK, Level.OK, "not looked at: the configuration is wrong")
    tools = McpTools(servers_of(settings.home, config, may_start=False), timedelta(minutes=10))
    names = list(tools.servers.enabled)
    if not names:
        return Finding(_CHECK, Level.OK, "none is configured")
    env = child_environment(config.commands.env, config.commands.secret_env)
    problems = [problem for name in names if (problem := _problem(tools, name, env))]
    if problems:
        return Finding(_CHECK, Level.WARN, "; ".join(problems), "soong mcp refresh asks servers again")
    count = sum(len(tools.tools_of(name).definitions) for name in names)
    excluded = sum(len(tools.tools_of(name).excluded) for name in names)
    left = f", {excluded} left out (soong mcp show NAME says why)" if excluded else ""
    logins = {name: login_state(tools.servers, name) for name in names}
    shown = [f"{name} ({state})" if (state := logins[name]) not in ("", "none") else name for name in names]
    return Finding(_CHECK, Level.OK, f"{', '.join(shown)}: {count} tools{left}")


def _problem(tools: McpTools, name: str, env: dict[str, str]) -> str:
    server = tools.servers.config.servers[name]
    place = f"mcp.servers.{name}"
    try:
        resolved(server.env, f"{place}.env")
        resolved(server.headers, f"{place}.headers")
        if server.command:
            find_program(expanded(server.command), env, cwd=Path("/"))
    except (InvalidConfigError, PathRefusedError) as error:
        return f"{name}: {error}"
    if login_state(tools.servers, name) == "login ended":
        return f"the login at {name} has ended: soong mcp login {name}"
    snapshot = tools.servers.snapshot(name)
    if snapshot is None:
        return f"{name} has not been asked what it offers"
    return snapshot.problem
