"""Sections of MCP servers in config.toml, and servers taken from the files of other programs."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from soong.shared.core.config import CONFIG_FILE, load_config
from soong.shared.core.errors import InvalidConfigError, UsageError
from soong.shared.core.secret_values import resolved
from soong.shared.toolsets.mcp.config_file import imported_servers, looks_secret, with_servers, without_server

WRITTEN = """# mine
[tools]
dangerous = true   # on purpose

[[permission.rules]]
effect = "deny"
tools = "mcp.*.delete_*"
"""


def home_with(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / CONFIG_FILE).write_text(text, encoding="utf-8")
    (folder / CONFIG_FILE).chmod(0o640)
    return folder


@pytest.mark.spec("MCP-01.a")
def test_a_server_is_added_and_removed_and_the_rest_of_the_file_stays_as_it_was(tmp_path: Path) -> None:
    home = home_with(tmp_path / "home", WRITTEN)

    odd = 'a "quoted" \\ path\t\u00e9'
    with_servers(home, {"a": {"command": "x", "args": [odd], "env": {"B C": "env:D"}, "trusted": True, "url": ""}})
    with_servers(home, {"b": {"url": "https://h/mcp", "headers": {"X": "1"}}})
    server = load_config(home).mcp.servers["a"]
    without_server(home, "a")

    assert (server.args, server.env, server.trusted) == ((odd,), {"B C": "env:D"}, True)
    assert list(load_config(home).mcp.servers) == ["b"]
    assert (home / CONFIG_FILE).read_text(encoding="utf-8").startswith(WRITTEN)
    assert stat.S_IMODE((home / CONFIG_FILE).stat().st_mode) == 0o640


def test_a_home_without_a_file_gets_one_that_others_cannot_read(tmp_path: Path) -> None:
    with_servers(tmp_path / "new", {"a": {"command": "x"}})

    assert stat.S_IMODE((tmp_path / "new" / CONFIG_FILE).stat().st_mode) == 0o600


def test_what_cannot_be_edited_safely_is_left_to_the_user(tmp_path: Path) -> None:
    inline = home_with(tmp_path / "a", '[mcp]\nservers = {a = {command = "x"}}\n')
    taken = home_with(tmp_path / "b", '[mcp.servers.a]\ncommand = "x"\n')

    with pytest.raises(UsageError, match="by hand"):
        without_server(inline, "a")
    with pytest.raises(UsageError, match="already"):
        with_servers(taken, {"a": {"command": "y"}})
    with pytest.raises(InvalidConfigError, match="needs either command"):
        with_servers(taken, {"c": {"trusted": True}})
    assert 'command = "x"' in (taken / CONFIG_FILE).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "value", "is_secret"),
    [
        ("GITHUB_TOKEN", "abc", True),
        ("X", "sk-" + "a" * 30, True),
        ("GITHUB_TOKEN", "env:GITHUB_TOKEN", False),
        ("Authorization", "Bearer ${file:/k}", False),
        ("MODE", "production", False),
        ("API_KEY", "", False),
    ],
)
def test_a_secret_in_plain_sight_is_seen(name: str, value: str, *, is_secret: bool) -> None:
    assert looks_secret(name, value) is is_secret


@pytest.mark.spec("EVT-05")
def test_servers_of_others_are_taken_with_their_secrets_apart_and_the_rest_is_said(tmp_path: Path) -> None:
    others: dict[str, Any] = {
        "mcpServers": {
            "Git Hub": {
                "command": "npx",
                "args": ["-y", "server"],
                "env": {"GITHUB_TOKEN": "plain-secret-1", "MODE": "dev", "U": "${USER_NAME}"},
            },
            "remote": {"type": "http", "url": "https://h/mcp", "headers": {"Authorization": "Bearer ${env:T}"}},
            "old": {"type": "sse", "url": "https://h/sse"},
            "asks": {"command": "x", "env": {"KEY": "${input:key}"}},
            "variable": {"command": "x", "args": ["${workspaceFolder}"]},
            "known": {"command": "x"},
            "soong": {"command": "soong", "args": ["mcp", "serve"]},
        }
    }
    file, home = tmp_path / "mcp.json", tmp_path / "home"
    file.write_text("// of an editor\n" + json.dumps(others), encoding="utf-8")

    taken, notes = imported_servers([file], home, {"known"}, [], keeps=True)
    with_servers(home, taken)

    assert sorted(taken) == ["git-hub", "remote"]
    assert len(notes) == 5
    config = load_config(home)
    github = config.mcp.servers["git-hub"]
    assert github.env["U"] == "${env:USER_NAME}"
    (secret,) = config.secret_files
    assert resolved({"t": github.env["GITHUB_TOKEN"]}, "x") == {"t": "plain-secret-1"}
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert "plain-secret" not in (home / CONFIG_FILE).read_text(encoding="utf-8")
    assert json.loads(file.read_text(encoding="utf-8").partition("\n")[2]) == others
