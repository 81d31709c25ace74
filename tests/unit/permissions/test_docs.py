"""docs/permissions.md and configuration.md hold: every TOML example is a configuration, every console example works."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from soong.orchestrator.cli.permissions import app
from soong.shared.core.config import parse_config
from soong.shared.permissions.configured import configured_write_roots, policy_of
from soong.shared.permissions.policy import NetworkMode

DOCS = Path(__file__).parents[3] / "docs"
PAGES = (DOCS / "permissions.md", DOCS / "reference" / "configuration.md")
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
EXAMPLES = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [line[2:] for block in re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]


@pytest.mark.spec("PER-10")
@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_every_configuration_on_the_page_is_one(example: str) -> None:
    config = parse_config(example)

    policy_of(config)
    configured_write_roots(config)


def test_the_page_shows_every_section_and_every_mode_of_the_network() -> None:
    sections = set(re.findall(r"^\[+(\w+)", "\n".join(EXAMPLES), re.MULTILINE))

    assert {"permission", "tools", "paths", "network"} <= sections
    assert all(f"`{mode}`" in TEXT for mode in NetworkMode)


@pytest.mark.spec("PER-10")
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_on_the_page_runs(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONG_AGENT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    program, group, *words = shlex.split(command)

    outcome = CliRunner().invoke(app, words)

    assert (program, group, outcome.exit_code) == ("soong", "permissions", 0)
