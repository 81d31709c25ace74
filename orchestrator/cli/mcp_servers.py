"""The commands on MCP servers: what there is, what it offers, and the sections of ``config.toml`` that name it."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import typer

from soong.orchestrator.cli.options import JSON, CommandTable, pairs_of
from soong.orchestrator.operations.mcp_servers import (
    must_be_known,
    opened_servers,
    remove_server,
    server_document,
    write_servers,
)
from soong.orchestrator.terminal.console import Columns, details, emit, listed, number_of, output, say, table
from soong.orchestrator.terminal.console import show as show_result
from soong.orchestrator.terminal.summary import Document
from soong.shared.core.config import load_config
from soong.shared.core.errors import UsageError
from soong.shared.core.jsontext import inert
from soong.shared.core.settings import load_settings
from soong.shared.toolsets.mcp.config_file import found_files, imported_servers, without_server
from soong.shared.toolsets.mcp.toolset import McpTools, look, look_now

app = CommandTable()
NAME = typer.Argument(..., metavar="NAME", help="The server's name, as in `mcp.NAME.tool`.")
_FAILED: Final = 1


@app.command("list")
def list_servers(*, is_json: bool = JSON) -> None:
    """List the servers, what state they were last seen in, and how many tools they give."""
    tools = opened_servers(load_settings())
    _look_at_missing(tools)
    shown = [server_document(tools, name) for name in sorted(tools.servers.config.servers)]
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
    tools = opened_servers(load_settings())
    must_be_known(tools, [name])
    _look_at_missing(tools, [name])
    shown = server_document(tools, name)
    show_result(shown, lambda: _text(shown), is_json=is_json)


def _text(shown: Document) -> str:
    scope = shown["resources_scope"]
    resources = f"scope of a grant or rule: {scope}" if scope else "switched off"
    facts = [
        ("where", shown["place"]),
        ("server", f"{shown['server'] or '-'} {shown['version']}".rstrip()),
        ("protocol", shown["protocol"] or "-"),
        ("resources", resources if shown["has_resources"] else "none"),
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
    tools = opened_servers(load_settings())
    must_be_known(tools, names or ())
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
    section: dict[str, Any] = {"command": "", "url": url}
    if command:
        section |= {"command": command[0], "args": command[1:]}
    hint = "such as TOKEN=env:MY_TOKEN"
    section |= {"env": pairs_of(env, "--env", hint), "headers": pairs_of(header, "--header", hint)}
    section |= {"tags": tag, "trusted": is_trusted}
    settings = load_settings()
    write_servers(settings, {name: section})
    tools = opened_servers(settings)
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
    remove_server(load_settings(), name)
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
    settings = load_settings()
    files = [file] if file is not None else found_files(Path.home())
    if not files:
        raise UsageError("no mcp.json of Claude Code, Cursor or VS Code is found; name one: soong mcp import FILE")
    known = set(load_config(settings.home).mcp.servers)
    taken, notes = imported_servers(files, settings.home, known, only, keeps=not is_dry)
    if is_json:
        emit({"servers": taken, "notes": notes, "files": [str(each) for each in files]})
    for note in notes:
        say(note)
    if taken and not is_dry:
        write_servers(settings, taken)
    if not is_json:
        output("\n".join(f"{'would take' if is_dry else 'took'} {name}" for name in taken) or "nothing to take")
    if taken and not is_dry:
        say("soong mcp refresh asks them what they offer")


def _shown_name(tool: dict[str, Any]) -> str:
    """Return the name of a tool, with the server's own where that cannot be read from it."""
    return f"{tool['name']} ({inert(tool['native_name'])})" if ".xn--" in tool["name"] else str(tool["name"])


def _look_at_missing(tools: McpTools, names: Sequence[str] = ()) -> None:
    wanted = names or list(tools.servers.enabled)
    missing = [name for name in wanted if name in tools.servers.enabled and tools.servers.snapshot(name) is None]
    if missing:
        say(f"asking {', '.join(missing)} …")
        look(tools.servers, missing)


async def asked(tools: McpTools, names: Sequence[str], *, is_json: bool) -> int:
    """Ask servers, report, and return the exit code."""
    off = [name for name in names if name not in tools.servers.enabled]
    if off:
        raise UsageError(f"{', '.join(off)} is not enabled; remove `enabled = false` first")
    await look_now(tools.servers, names)
    shown = [server_document(tools, name) for name in names]
    show_result(shown, lambda: "\n".join(map(_report, shown)), is_json=is_json)
    return _FAILED if any(one["problem"] for one in shown) else 0


def _report(one: dict[str, Any]) -> str:
    if one["problem"]:
        return f"{one['name']}: {one['problem']}"
    lines = [f"{one['name']}: {number_of(len(one['tools']), 'tool')}, protocol {one['protocol']}"]
    lines += [f"  left out {inert(each['tool'])}: {each['reason']}" for each in one["left_out"]]
    return "\n".join(lines)
