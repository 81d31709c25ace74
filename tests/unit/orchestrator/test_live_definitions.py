"""Agent definitions that a user writes while a process runs are known to what it plans from then on."""

from pathlib import Path

import pytest

from soong.orchestrator.client.catalog import Catalogue
from soong.shared.core.settings import load_settings

pytestmark = pytest.mark.spec("DIS-02.b")


def write_definition(folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text("---\ndescription: d\n---\nDo it.")


@pytest.mark.parametrize("reads_projects", [True, False])
async def test_a_planner_knows_the_definitions_of_now(tmp_path: Path, reads_projects: bool) -> None:
    project = tmp_path / "project"
    catalogue = Catalogue.of(load_settings(agent_home=tmp_path / "home"))
    planner = catalogue.live_planner("script", reads_projects=reads_projects)
    before = (await planner.at(str(project))).known.definitions or frozenset()

    write_definition(tmp_path / "home" / "agents", "mine")
    write_definition(project / ".soong" / "agents", "theirs")
    after = (await planner.at(str(project))).known.definitions or frozenset()
    elsewhere = (await planner.at(str(tmp_path))).known.definitions or frozenset()

    assert after - before == ({"mine", "project.theirs"} if reads_projects else {"mine"})
    assert elsewhere - before == {"mine"}


def test_a_catalogue_is_the_same_until_a_definition_changes(tmp_path: Path) -> None:
    catalogue = Catalogue.of(load_settings(agent_home=tmp_path / "home"))

    assert catalogue.at(tmp_path) is catalogue
    write_definition(tmp_path / "home" / "agents", "mine")
    assert "mine" in catalogue.now().definitions.ids
    assert "mine" in catalogue.definitions_of(tmp_path).ids
