"""The commands on MCP servers: what there is, what it offers, and the sections of ``config.toml`` that name it."""

import textwrap
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from soong.orchestrator.cli.console import Columns, details, emit, listed, number_of, one_line, output, say, table
from soong.orchestrator.cli.console import show as show_result
from soong.orchestrator.cli.options import JSON, CommandTable, pairs_of
from soong.orchestrator.cli.summary import Document
from soong.shared.core.errors import InvalidConfigError, UsageError
from soong.shared.core.jsontext import inert
from soong.shared.core.settings import Settings, load_settings

if TYPE_CHECKING:
    from soong.shared.core.config import Config
    from soong.shared.toolsets.mcp.definitions import ServerTools
    from soong.shared.toolsets.mcp.pool import McpServers
    from soong.shared.toolsets.mcp.toolset import McpTools

app = CommandTable()
NAME = typer.Argument(..., metavar="NAME", help="The server's name, as in `mcp.NAME.tool`.")
_FAILED: Final = 1


@app.command("list")
def list_servers(*, is_json: bool = JSON) -> None:
    """List the servers, what state they were last seen in, and how many tools they give."""
    tools = opened(load_settings())
    _look_at_missing(tools)
    shown = [_server_json(tools, name) for name in sorted(tools.servers.config.servers)]
    if not shown and not is_json:
        say("no MCP server is configured; `soong mcp add NAME -- COMMAND…` adds one, `soong mcp import` takes others'")
        return
    columns: Columns = {
        "server": "name",
        "state": "state",
        "tools": lambda one: str(len(one["tools"])) + (f" ({left} left out)" if (left := len(one["left_out"])) else ""),
        "protocol": lambda one: one["protocol"] or "-",
        "login": lambda one: one["login"] or "-",
        "hints": lambda one: "trusted" if one["trusted"] else "not trusted",
        "where": lambda one: one["problem"] or one["place"],
    }
    listed(shown, columns, is_json=is_json, uncut=("where",))


@app.command()
def show(name: str = NAME, *, is_json: bool = JSON) -> None:
    """Show a server: its tools, their permission and definition, and which are left out and why."""
    tools = opened(load_settings())
    must_be_known(tools.servers, [name])
    _look_at_missing(tools, [name])
    shown = _server_json(tools, name)
    show_result(shown, lambda: _text(shown), is_json=is_json)


def _text(shown: Document) -> str:
    facts = [
        ("where", shown["place"]),
        ("server", f"{shown['server'] or '-'} {shown['version']}".rstrip()),
        ("protocol", shown["protocol"] or "-"),
        ("resources", _resources_line(shown)),
        ("login", shown["login"] or "takes none"),
        ("hints", "trusted" if shown["trusted"] else "not trusted: every tool asks"),
        *([("problem", shown["problem"])] if shown["problem"] else []),
    ]
    parts = [f"{shown['name']}  {shown['state']}\n{textwrap.indent(details(facts), '  ')}"]
    rows = [(_shown_name(one), one["permission"], one["declared"], one["scope"]) for one in shown["tools"]]
    if rows:
        parts.append(table(("tool", "permission", "the server declares", "scope of a grant or rule"), rows))
    left = [(one["tool"], one["reason"]) for one in shown["left_out"]]
    if left:
        parts.append(table(("left out", "because"), left, uncut=("because",)))
    return "\n\n".join(parts)


@app.command()
async def refresh(
    names: list[str] = typer.Argument(None, metavar="[NAME]...", help="Servers [all that are enabled]."),
    *,
    is_json: bool = JSON,
) -> None:
    """Ask servers what they offer now; exit code 1 when one cannot be asked."""
    tools = opened(load_settings())
    must_be_known(tools.servers, names or ())
    raise typer.Exit(await asked(tools, names or list(tools.servers.enabled), is_json=is_json))


@app.command(context_settings={"ignore_unknown_options": True})
async def add(
    name: str = NAME,
    command: list[str] = typer.Argument(None, metavar="[-- COMMAND ARG...]", help="The program, and its arguments."),
    *,
    url: str = typer.Option("", "--url", help="The address of a server over HTTP, instead of a command."),
    env: list[str] = typer.Option([], "--env", metavar="NAME=VALUE", help="A variable; a secret as env:NAME."),
    header: list[str] = typer.Option([], "--header", metavar="NAME=VALUE", help="A header; a secret as env:NAME."),
    tag: list[str] = typer.Option([], "--tag", help="A tag of its tools, such as network or dangerous."),
    is_trusted: bool = typer.Option(False, "--trusted", help="Believe what it declares: read-only, closed world."),
    is_json: bool = JSON,
) -> None:
    """Add a server to config.toml and ask it what it offers; one that cannot be asked is not added, exit code 1.

    A server that wants a login is added: `soong mcp login` makes it.
    """
    from soong.shared.toolsets.mcp.config_file import without_server

    section: dict[str, Any] = {"command": "", "url": url}
    if command:
        section |= {"command": command[0], "args": command[1:]}
    hint = "such as TOKEN=env:MY_TOKEN"
    section |= {"env": pairs_of(env, "--env", hint), "headers": pairs_of(header, "--header", hint)}
    section |= {"tags": tag, "trusted": is_trusted}
    settings = load_settings()
    _written(settings, {name: section})
    tools = opened(settings)
    code = await asked(tools, [name], is_json=is_json)
    snapshot = tools.servers.snapshot(name)
    if code and snapshot is not None and f"soong mcp login {name}" not in snapshot.problem:
        without_server(settings.home, name)
        tools.servers.snapshots.remove(name)
        say(f"{name} is not added; correct the command and add it again")
    raise typer.Exit(code)


@app.command()
def remove(name: str = NAME) -> None:
    """Remove a server from config.toml, with its snapshot."""
    from soong.shared.toolsets.mcp.catalogue import LoginFolder
    from soong.shared.toolsets.mcp.config_file import without_server

    settings = load_settings()
    tools = opened(settings)
    must_be_known(tools.servers, [name])
    without_server(settings.home, name)
    tools.servers.snapshots.remove(name)
    with suppress(FileNotFoundError):
        LoginFolder(settings.home).remove(name)
    output(f"removed {name}")


@app.command("import")
def import_servers(
    file: Path | None = typer.Argument(None, metavar="[FILE]", help="An mcp.json [those of the user that are found]."),
    *,
    only: list[str] = typer.Option([], "--only", metavar="NAME", help="Take this server alone; may be repeated."),
    is_dry: bool = typer.Option(False, "--dry-run", help="Show what would be taken; write nothing."),
    is_json: bool = JSON,
) -> None:
    """Take over the servers of Claude Code, Cursor or VS Code; their files are only read.

    A value that looks like a secret is written to a file of its own in the home, and referred to.
    """
    from soong.shared.toolsets.mcp.config_file import found_files, imported_servers

    settings = load_settings()
    files = [file] if file is not None else found_files(Path.home())
    if not files:
        raise UsageError("no mcp.json of Claude Code, Cursor or VS Code is found; name one: soong mcp import FILE")
    known = set(_config(settings).mcp.servers)
    taken, notes = imported_servers(files, settings.home, known, only, keeps=not is_dry)
    if is_json:
        emit({"servers": taken, "notes": notes, "files": [str(each) for each in files]})
    for note in notes:
        say(note)
    if taken and not is_dry:
        _written(settings, taken)
    if not is_json:
        output("\n".join(f"{'would take' if is_dry else 'took'} {name}" for name in taken) or "nothing to take")
    if taken and not is_dry:
        say("soong mcp refresh asks them what they offer")


# -- parts
def _shown_name(tool: dict[str, Any]) -> str:
    """Return the name of a tool, with the server's own where that cannot be read from it."""
    return f"{tool['name']} ({inert(tool['native_name'])})" if ".xn--" in tool["name"] else str(tool["name"])


def _config(settings: Settings) -> "Config":
    from soong.shared.core.config import load_config

    return load_config(settings.home)


def opened(settings: Settings) -> "McpTools":
    """Return the servers of a home, none of them started, with what they were last seen to offer."""
    from soong.shared.core.config import with_config
    from soong.shared.toolsets.mcp.toolset import McpTools, servers_of

    config = _config(settings)
    most = timedelta(milliseconds=with_config(settings, config).tool_max_timeout_ms)
    return McpTools(servers_of(settings.home, config), most)


def must_be_known(servers: "McpServers", names: Sequence[str]) -> None:
    """Raises: UsageError, when a name is not that of a server."""
    for name in names:
        if name not in servers.config.servers:
            known = ", ".join(sorted(servers.config.servers)) or "none"
            raise UsageError(f"there is no MCP server {name!r} in config.toml; known: {known}")


def _look_at_missing(tools: "McpTools", names: Sequence[str] = ()) -> None:
    from soong.shared.toolsets.mcp.toolset import look

    wanted = names or list(tools.servers.enabled)
    missing = [name for name in wanted if name in tools.servers.enabled and tools.servers.snapshot(name) is None]
    if missing:
        say(f"asking {', '.join(missing)} …")
        look(tools.servers, missing)


async def asked(tools: "McpTools", names: Sequence[str], *, is_json: bool) -> int:
    """Ask servers, report, and return the exit code."""
    from soong.shared.toolsets.mcp.toolset import look_now

    off = [name for name in names if name not in tools.servers.enabled]
    if off:
        raise UsageError(f"{', '.join(off)} is not enabled; remove `enabled = false` first")
    await look_now(tools.servers, names)
    shown = [_server_json(tools, name) for name in names]
    show_result(shown, lambda: "\n".join(map(_report, shown)), is_json=is_json)
    return _FAILED if any(one["problem"] for one in shown) else 0


def _resources_line(one: Document) -> str:
    if not one["has_resources"]:
        return "none"
    return f"scope of a grant or rule: {one['resources_scope']}" if one["resources_scope"] else "switched off"


def _report(one: dict[str, Any]) -> str:
    if one["problem"]:
        return f"{one['name']}: {one['problem']}"
    lines = [f"{one['name']}: {number_of(len(one['tools']), 'tool')}, protocol {one['protocol']}"]
    lines += [f"  left out {inert(each['tool'])}: {each['reason']}" for each in one["left_out"]]
    return "\n".join(lines)


def _server_json(tools: "McpTools", name: str) -> dict[str, Any]:
    from soong.shared.toolsets.mcp.toolset import resources_scope

    config = tools.servers.config.servers[name]
    snapshot = tools.servers.snapshot(name)
    found = tools.tools_of(name)
    problem = "" if snapshot is None else snapshot.problem
    state = "off" if not config.enabled else "not asked" if snapshot is None else "failed" if problem else "ok"
    return {
        "name": name,
        "state": state,
        "problem": problem,
        "login": tools.servers.login_state(name),
        "place": config.url or " ".join((config.command, *config.args)),
        "trusted": config.trusted,
        "tags": list(config.tags),
        "server": "" if snapshot is None else one_line(snapshot.name),
        "version": "" if snapshot is None else one_line(snapshot.version),
        "protocol": "" if snapshot is None else one_line(snapshot.protocol),
        "has_resources": snapshot is not None and snapshot.has_resources,
        "resources_scope": f"exact:{resources_scope(name, config)}" if config.resources else "",
        "digest": "" if snapshot is None else snapshot.digest,
        "tools": _tools_json(found),
        "left_out": [{"tool": each.tool, "reason": each.reason} for each in found.excluded],
    }


def _tools_json(found: "ServerTools") -> list[dict[str, Any]]:
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


def _written(settings: Settings, sections: dict[str, dict[str, Any]]) -> None:
    """Add sections to config.toml; a secret does not belong into it. Raises: UsageError, InvalidConfigError."""
    from soong.shared.toolsets.mcp.config_file import looks_secret, with_servers

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
