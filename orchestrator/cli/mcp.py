"""``soong mcp``: Soong as an MCP server."""

import typer

from soong.orchestrator.cli import mcp_serve

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Serve MCP."""


app.command("serve")(mcp_serve.command)
