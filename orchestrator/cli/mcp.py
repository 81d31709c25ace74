"""``soong mcp``: the MCP servers whose tools agents use, and Soong as an MCP server itself."""

import typer

from soong.orchestrator.cli import mcp_login, mcp_serve, mcp_servers

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Use MCP servers as sources of tools, or serve MCP."""


app.command("list")(mcp_servers.list_servers)
app.command("show")(mcp_servers.show)
app.command("refresh")(mcp_servers.refresh)
app.command("add", context_settings={"ignore_unknown_options": True})(mcp_servers.add)
app.command("remove")(mcp_servers.remove)
app.command("import")(mcp_servers.import_servers)
app.command("login")(mcp_login.login)
app.command("logout")(mcp_login.logout)
app.command("serve")(mcp_serve.command)
