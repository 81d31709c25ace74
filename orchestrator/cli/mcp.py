"""``soong mcp``: the MCP servers whose tools agents use, logins at them (MCP-01.e), and Soong as an MCP server itself.

``soong mcp serve`` speaks as the user who started it. It takes answers to questions only with ``--approve``, and never
in a process that a run started. The handshake needs no service: the first tool call attaches to one, or starts one.
"""

import asyncio
import importlib
import os
import sys
import webbrowser
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from soong.orchestrator.approvals.approval import check_person_now
from soong.orchestrator.cli.mcp_servers import NAME, app, asked
from soong.orchestrator.client.logs import configure_logs
from soong.orchestrator.operations.mcp_servers import forget_login, must_be_known, opened_servers
from soong.orchestrator.terminal.console import output, say
from soong.shared.core.errors import InvalidConfigError, SoongError, UsageError
from soong.shared.core.jsontext import inert
from soong.shared.core.settings import Settings, load_settings
from soong.shared.core.timing import SystemClock
from soong.shared.permissions.access.token import Right

if TYPE_CHECKING:
    from soong.orchestrator.http.own_api import OwnApi
    from soong.shared.core.program_config import McpServerConfig
    from soong.shared.toolsets.mcp.catalogue import ServerLogin

CHANNEL = "mcp"
__all__ = ["app"]


@app.command()
async def login(
    name: str = NAME,
    *,
    is_headless: bool = typer.Option(
        False, "--no-browser", help="Print the page and read the address at which the browser ends, from anywhere."
    ),
    scope: str = typer.Option("", "--scope", help="Rights to ask for in addition, separated by blanks."),
) -> None:
    """Log in at a server over HTTP (OAuth), in the browser. Workers of this home use and renew the login."""
    from soong.shared.toolsets.mcp.catalogue import LoginFolder
    from soong.shared.toolsets.mcp.login_auth import LoginRefusedError

    settings = load_settings()
    tools = opened_servers(settings)
    must_be_known(tools, [name])
    config = tools.servers.config.servers[name]
    if not config.url:
        raise UsageError(f"{name} is a program and not a server over HTTP; it gets secrets by `env` in config.toml")
    if not config.takes_login:
        raise UsageError(f"config.toml sets the header Authorization of {name}; remove it there to log in instead")
    wanted = " ".join(filter(None, (scope, config.oauth.scope if config.oauth is not None else "")))
    try:
        made = await _logged_in(name, config, wanted, is_headless=is_headless)
        LoginFolder(settings.home).write(made)
    except (LoginRefusedError, InvalidConfigError) as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"the login at {name!r} cannot be made or kept: {error}") from error
    output(f"logged in at {name}")
    raise typer.Exit(await asked(tools, [name], is_json=False) if config.enabled else 0)


@app.command()
async def logout(name: str = NAME) -> None:
    """Forget the login at a server, and revoke it there if the authorization server can."""
    had_one, is_revoked = await forget_login(load_settings(), name)
    if not had_one:
        output(f"there is no login at {name}")
        return
    output(f"logged out at {name}" + ("" if is_revoked else "; the authorization server has not revoked it"))


async def _logged_in(name: str, config: "McpServerConfig", scope: str, *, is_headless: bool) -> "ServerLogin":
    from soong.shared.toolsets.mcp.login_flow import LoopbackReceiver, PastedReceiver, log_in

    port = 0 if config.oauth is None else config.oauth.redirect_port
    clock = SystemClock()
    if is_headless:
        words = "the browser ends at a page that cannot be shown; paste its address"
        pasted = PastedReceiver(partial(asyncio.to_thread, typer.prompt, words), port)
        return await log_in(name, config, pasted, _shown, clock, scope=scope)
    async with LoopbackReceiver.listening(port) as receiver:
        return await log_in(name, config, receiver, _visited, clock, scope=scope)


async def _shown(url: str) -> None:
    say(f"open this page, log in, and allow the access:\n\n{inert(url)}\n")


async def _visited(url: str) -> None:
    await _shown(url)
    say("waiting for the browser …")
    with suppress(webbrowser.Error):
        await asyncio.to_thread(webbrowser.open, url)


@app.command()
async def serve(
    *,
    project: Path = typer.Option(Path(), "--project", help="Folder that tasks work in when a call names none."),
    approve: bool = typer.Option(False, "--approve", help="Let this client answer permission questions, in your name."),
    read_only: bool = typer.Option(False, "--read-only", help="Offer only tools that read."),
    may_start: bool = typer.Option(True, "--start/--no-start", help="Start a service when none is running [--start]."),
) -> None:
    """Serve MCP on standard input and output, until the client closes them.

    Add it to a client as a server with the command `soong mcp serve`. `soong serve` speaks MCP over HTTP, at /mcp.
    """
    check_person_now("serve MCP")
    if read_only and approve:
        raise UsageError("--read-only and --approve exclude each other; give one")
    if sys.stdin.isatty():
        say(
            "this is an MCP server: a client starts it and speaks to it on standard input "
            "(docs/reference/mcp.md); Ctrl-C ends it"
        )
    rights = {Right.READ, *(() if read_only else (Right.RUN,)), *((Right.APPROVE,) if approve else ())}
    settings, folder = load_settings(), Path(os.path.realpath(project.expanduser()))
    if not folder.is_dir():
        raise UsageError(f"--project {str(project)!r} is not a folder; name the folder that tasks should work in")
    configure_logs(settings, "mcp")
    await _serve(settings, folder, frozenset(rights), may_start=may_start)


async def _serve(settings: Settings, folder: Path, rights: frozenset[Right], *, may_start: bool) -> None:
    from mcp.server.mcpserver.exceptions import ToolError  # a second of imports, not needed for --help

    from soong.orchestrator.mcp.api import ApiCalls, ServerState
    from soong.orchestrator.mcp.server import make_server

    linking = asyncio.create_task(_link(settings, rights, may_start=may_start))

    async def calls(_request: object) -> ApiCalls:
        try:
            own = await (await asyncio.shield(linking)).calls(may_start=True)
        except SoongError as error:
            raise ToolError(f"no service can be used: {error}") from error
        return ApiCalls(own.app, own.caller, str(folder))

    shown = frozenset(str(right) for right in rights)
    server = make_server(ServerState(calls, lambda _request: shown, reads_files=True))
    try:
        await server.run_stdio_async()
    finally:
        linking.cancel()
        (link,) = await asyncio.gather(linking, return_exceptions=True)
        if not isinstance(link, BaseException):
            await link.close()


async def _link(settings: Settings, rights: frozenset[Right], *, may_start: bool) -> "OwnApi":
    """Import what calls need while the client shakes hands; return what attaches at the first call."""
    from soong.orchestrator.embedded.starter import Attachment, attach

    own_api = await asyncio.to_thread(importlib.import_module, "soong.orchestrator.http.own_api")

    async def attached(_may_start: bool) -> Attachment:
        return await attach(settings, may_start=may_start, tell=say)

    own: OwnApi = own_api.OwnApi(CHANNEL, attached, rights, "serve MCP")
    return own
