"""Every place from which a project speaks to agents or starts programs is a protected name (FS-09)."""

import re
from pathlib import Path

import pytest

from soong.shared.agents import project_definitions
from soong.shared.core.config import Config
from soong.shared.sandbox.names import CONTROL_FOLDERS, is_control, is_sensitive
from soong.shared.toolsets.mcp.config_file import PLACES
from soong.shared.toolsets.skills import toolset
from soong.shared.toolsets.sources import ToolEnvironment
from tests.spec_document import ROOT

READ = (
    project_definitions.PROJECT_FOLDER / "x.md",
    project_definitions.CLAUDE_FOLDER / "x.md",
    toolset.PROJECT_FOLDER / "x" / "SKILL.md",
    *map(Path, PLACES),
)


@pytest.mark.spec("FS-09.a")
@pytest.mark.parametrize("path", READ, ids=str)
def test_no_run_writes_what_is_read_as_a_definition_a_skill_or_a_server(path: Path) -> None:
    assert is_control(path.parts)


def test_no_other_folder_of_a_project_is_read_for_them() -> None:
    of_a_system = {".config", ".local", ".cache", ".git"}
    files = [path for top in ("shared", "orchestrator", "worker") for path in (ROOT / top).rglob("*.py")]
    texts = [path.read_text(encoding="utf-8") for path in files]
    named = {name for text in texts for name in re.findall(r'Path\("(\.[a-z][\w-]*)"', text)}

    assert named - of_a_system <= set(CONTROL_FOLDERS)


def test_a_write_of_every_instruction_file_asks() -> None:
    environment = ToolEnvironment(config=Config.model_validate({"instructions": {"files": ["docs/RULES.md"]}}))

    steering = environment.paths.steering

    assert [name for name in (*Config().instructions.files, "docs/RULES.md") if not is_sensitive(name, steering)] == []
