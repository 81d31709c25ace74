"""``soong mcp serve``: an MCP server over stdio, for clients that start it (Claude Code, Codex, Cursor, VS Code).

It speaks as the user who started it. Answers to questions are taken only with ``--approve``, and never in a process
that a run started. The handshake needs no service: the first tool call attaches to one, or starts one.
"""

import asyncio
import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from soong.orchestrator.approvals.provenance import check_person_now
from soong.orchestrator.cli.console import say
from soong.orchestrator.client.logs import configure_logs
from soong.shared.core.errors import SoongError, UsageError
from soong.shared.core.settings import Settings, load_settings
from soong.shared.permissions.access.token import Right

if TYPE_CHECKING:
    from soong.orchestrator.http.own_calls import ServiceLink

CHANNEL = "mcp"


def command(
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
            "this is an MCP server: a client starts it and speaks to it on standard input (docs/mcp.md); Ctrl-C ends it"
        )
    rights = {Right.READ, *(() if read_only else (Right.RUN,)), *((Right.APPROVE,) if approve else ())}
    settings, folder = load_settings(), Path(os.path.realpath(project.expanduser()))
    if not folder.is_dir():
        raise UsageError(f"--project {str(project)!r} is not a folder; name the folder that tasks should work in")
    configure_logs(settings, "mcp")
    asyncio.run(_serve(settings, folder, frozenset(rights), may_start=may_start))


async def _serve(settings: Settings, folder: Path, rights: frozenset[Right], *, may_start: bool) -> None:
    from mcp.server.mcpserver.exceptions import ToolError  # a second of imports, not needed for --help

    from soong.orchestrator.mcp.api import ApiCalls, ServerState
    from soong.orchestrator.mcp.server import make_server

    linking = asyncio.create_task(_link(settings, folder, rights, may_start=may_start))

    async def calls(_request: object) -> ApiCalls:
        try:
            return await (await asyncio.shield(linking)).calls()
        except SoongError as error:
            raise ToolError(f"no service can be used: {error}") from error

    shown = frozenset(str(right) for right in rights)
    server = make_server(ServerState(calls, lambda _request: shown, reads_files=True))
    try:
        await server.run_stdio_async()
    finally:
        linking.cancel()
        (link,) = await asyncio.gather(linking, return_exceptions=True)
        if not isinstance(link, BaseException):
            await link.close()


async def _link(settings: Settings, folder: Path, rights: frozenset[Right], *, may_start: bool) -> "ServiceLink":
    """Import what calls need while the client shakes hands; return what attaches at the first call."""
    from soong.orchestrator.embedded.starter import Attachment, attach

    own_calls = await asyncio.to_thread(importlib.import_module, "soong.orchestrator.http.own_calls")

    async def attached() -> Attachment:
        return await attach(settings, may_start=may_start, tell=say)

    link: ServiceLink = own_calls.ServiceLink(attached, rights, CHANNEL, str(folder))
    return link
