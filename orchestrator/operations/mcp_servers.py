"""The MCP servers of a home: what each is and offers, the sections of ``config.toml`` that name it, and its login."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from soong.shared.core import timing
from soong.shared.core.config import load_config, with_config
from soong.shared.core.errors import InvalidConfigError, SoongError, UsageError
from soong.shared.core.jsontext import inert
from soong.shared.core.program_config import McpServerConfig
from soong.shared.core.settings import Settings
from soong.shared.toolsets.mcp.catalogue import LoginFolder, ServerLogin
from soong.shared.toolsets.mcp.config_file import looks_secret, with_servers, without_server
from soong.shared.toolsets.mcp.definitions import ServerTools
from soong.shared.toolsets.mcp.toolset import McpTools, resources_scope, servers_of

MOST_CHARS: Final = 100


def opened_servers(settings: Settings) -> McpTools:
    """Return the servers of a home, none of them started, with what they were last seen to offer."""
    config = load_config(settings.home)
    most = timedelta(milliseconds=with_config(settings, config).tool_max_timeout_ms)
    return McpTools(servers_of(settings.home, config), most)


def must_be_known(tools: McpTools, names: Sequence[str]) -> None:
    """Raises: UsageError, when a name is not that of a server."""
    for name in names:
        if name not in tools.servers.config.servers:
            known = ", ".join(sorted(tools.servers.config.servers)) or "none"
            raise UsageError(f"there is no MCP server {name!r} in config.toml; known: {known}")


def write_servers(settings: Settings, sections: dict[str, dict[str, Any]]) -> None:
    """Add sections to config.toml; a secret does not belong into it. Raises: UsageError, InvalidConfigError."""
    for name, section in sections.items():
        values = {**section.get("env", {}), **section.get("headers", {})}
        secret = next((key for key, value in values.items() if looks_secret(key, value)), None)
        if secret is not None:
            hint = f"set a variable and write {secret}=env:NAME, or write it to a file and {secret}=file:/path"
            raise UsageError(f"the value of {secret} of {name!r} looks like a secret; {hint}")
    try:
        with_servers(settings.home, sections)
    except InvalidConfigError as error:
        raise UsageError(str(error)) from error


def remove_server(settings: Settings, name: str) -> None:
    """Remove a server from config.toml, with its snapshot and its login. Raises: UsageError."""
    tools = opened_servers(settings)
    must_be_known(tools, [name])
    without_server(settings.home, name)
    tools.servers.snapshots.remove(name)
    with suppress(FileNotFoundError):
        LoginFolder(settings.home).remove(name)


def server_document(tools: McpTools, name: str) -> dict[str, Any]:
    """Return a server as it was last seen, with its tools and those that are left out."""
    config = tools.servers.config.servers[name]
    snapshot = tools.servers.snapshot(name)
    found = tools.tools_of(name)
    problem = "" if snapshot is None else snapshot.problem
    told = ("", "", "") if snapshot is None else (snapshot.name, snapshot.version, snapshot.protocol)
    state = "off" if not config.enabled else "not asked" if snapshot is None else "failed" if problem else "ok"
    return {
        "name": name,
        "state": state,
        "problem": problem,
        "login": tools.servers.login_state(name),
        "place": config.url or " ".join((config.command, *config.args)),
        "trusted": config.trusted,
        "tags": list(config.tags),
        **dict(zip(("server", "version", "protocol"), map(_line, told), strict=True)),
        "has_resources": snapshot is not None and snapshot.has_resources,
        "resources_scope": f"exact:{resources_scope(name, config)}" if config.resources else "",
        "digest": "" if snapshot is None else snapshot.digest,
        "tools": _tools_json(found),
        "left_out": [{"tool": each.tool, "reason": each.reason} for each in found.excluded],
    }


def _line(text: str) -> str:
    """Return what a server says of itself on one inert line."""
    line = inert(" ".join(text.split()))
    return line if len(line) <= MOST_CHARS else f"{line[: MOST_CHARS - 1]}…"


def _tools_json(found: ServerTools) -> list[dict[str, Any]]:
    return [
        {
            "name": tool.name,
            "native_name": tool.metadata["native_name"],
            "permission": tool.permission.value,
            "open_world": tool.reaches_out,
            "declared": ", ".join(map(str, tool.metadata["hints"])) or "-",  # type: ignore[arg-type]
            "definition": tool.metadata["definition"],
            "scope": f"exact:{tool.name}@{tool.metadata['definition']}",
        }
        for tool in found.definitions
    ]


async def forget_login(settings: Settings, name: str) -> tuple[bool, bool]:
    """Forget the login at a server; return whether there was one, and whether it was revoked there."""
    tools = opened_servers(settings)
    must_be_known(tools, [name])
    config, folder = tools.servers.config.servers[name], LoginFolder(settings.home)
    made = folder.read(name, config.url)
    had_one = folder.remove(name)
    return had_one, made is not None and await _revoked(made, config)


async def _revoked(made: ServerLogin, config: McpServerConfig) -> bool:
    """Revoke the tokens of a login (RFC 7009); say whether the authorization server accepted that."""
    import httpx2  # slow

    from soong.shared.toolsets.mcp.login_auth import BASIC, bounded_client, check_reach, client_of

    endpoint = str((made.metadata or {}).get("revocation_endpoint") or "")
    token = str(made.tokens.get("refresh_token") or made.access_token)
    if not endpoint:
        return False
    try:
        client = client_of(made.client, config, made.server)
        await check_reach(httpx2.URL(endpoint), config.url)
        data = {"token": token, "client_id": client.client_id}
        credentials = None
        if client.client_secret and client.token_endpoint_auth_method == BASIC:
            credentials = httpx2.BasicAuth(client.client_id, client.client_secret)
        elif client.client_secret:
            data["client_secret"] = client.client_secret
        async with bounded_client(timing.EXCHANGE_LIMIT_S, credentials) as web:
            response = await web.post(endpoint, data=data)
    except (httpx2.HTTPError, httpx2.InvalidURL, SoongError, ValueError):
        return False
    return response.status_code == httpx2.codes.OK
