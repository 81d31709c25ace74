"""``soong mcp add`` and rules for the tools of a server, as a user types them."""

import json
import sys
from pathlib import Path

import pytest

from tests.integration.mcp.scene import SERVER
from tests.system.cli_scene import CliHarness

SCENE = {"is_warm": True}

ODD = SERVER.with_name("odd_server.py")
pytestmark = pytest.mark.timeout(240)


@pytest.mark.spec("MCP-01.a", "MCP-01.n")
def test_a_failed_add_leaves_nothing_and_the_corrected_command_is_taken(cli: CliHarness, tmp_path: Path) -> None:
    pages = {"": {"tools": [{"name": "no_schema"}, {"name": "good", "inputSchema": {}}]}}
    (tmp_path / "pages.json").write_text(json.dumps(pages))
    broken = cli.run("mcp", "add", "x", "--", sys.executable, str(tmp_path / "missing.py"))
    listed = cli.run("mcp", "list")
    added = cli.run("mcp", "add", "x", "--", sys.executable, str(ODD), str(tmp_path / "pages.json"))
    again = cli.run("mcp", "add", "x", "--", sys.executable, str(ODD))

    assert broken.returncode == 1
    assert "x is not added" in broken.stderr
    assert "no MCP server is configured" in listed.stderr
    assert (added.returncode, added.stdout.splitlines()[0]) == (0, "x: 4 tools, protocol 2025-06-18")
    assert "left out no_schema: its input schema: is missing" in added.stdout
    assert again.returncode == 2
    assert "there is an MCP server 'x' already" in again.stderr


@pytest.mark.spec("PER-10", "REG-08.a", "MCP-01.h")
def test_a_rule_for_tools_of_a_server_holds_as_long_as_they_stay_as_they_are(cli: CliHarness, tmp_path: Path) -> None:
    pages = tmp_path / "pages.json"
    pages.write_text(json.dumps({"": {"tools": [{"name": "good", "inputSchema": {}}]}}))
    cli.run("mcp", "add", "x", "--", sys.executable, str(ODD), str(pages))
    call = ("tools", "call", "mcp.x.say", 'texts=["{\\"id\\":ID,\\"result\\":{\\"content\\":\\"yes\\"}}"]')
    refused = cli.run(*call, "--allow", "mcp.x.say:*")
    one, all_of_it = (cli.run(*call, "--allow", rule) for rule in ("mcp.x.say:now", "mcp.x.*:now"))

    assert refused.returncode == 2
    assert "write mcp.x.say:now, or exact: and a scope that `soong mcp show NAME` prints" in refused.stderr
    assert "yes" in one.stdout, one.stderr
    assert "yes" in all_of_it.stdout, all_of_it.stderr
