"""Agent definitions that a user writes while a process runs are known to what it plans from then on."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from soong.orchestrator.client.catalog import Catalogue
from soong.shared.core.settings import load_settings
from soong.shared.engine.tasks.service import TaskService
from soong.shared.tools.definition import NO_PROGRESS, RunDirs, ToolContext
from soong.shared.toolsets.agents.starting import StartingTools
from tests.model.builders import make_step, make_task
from tests.model.clock import FakeClock
from tests.model.memory import MemoryStore
from tests.model.memory.notifier import MemoryBus

pytestmark = pytest.mark.spec("DIS-02.b")


def write_definition(folder: Path, name: str, more: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(f"---\ndescription: d\n{more}---\nDo it.")


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


def test_the_definitions_are_the_same_until_one_changes(tmp_path: Path) -> None:
    catalogue = Catalogue.of(load_settings(agent_home=tmp_path / "home"))

    assert catalogue.at(tmp_path).definitions is catalogue.definitions
    write_definition(tmp_path / "home" / "agents", "mine")
    assert "mine" in catalogue.at().definitions.ids
    assert "mine" in catalogue.at(tmp_path).definitions.ids


async def test_a_child_has_the_model_of_its_definition_as_it_is_now(tmp_path: Path) -> None:
    catalogue = Catalogue.of(load_settings(agent_home=tmp_path / "home"))
    planner = catalogue.live_planner("script", reads_projects=True)
    board = MemoryBus()
    starting = StartingTools(TaskService(MemoryStore(), board, board, FakeClock(), planner))
    identity = replace(make_task("sess_1", make_step("a")).root_run.identity, model="test:parent")
    context = ToolContext(identity, RunDirs(tmp_path, tmp_path, tmp_path), "c1", "effect", 1, NO_PROGRESS)

    write_definition(tmp_path / "home" / "agents", "mine", "model: test:mine\n")

    assert await starting._model_of(context, {}, "mine") == "test:mine"
    assert await starting._model_of(context, {"model": "test:mine"}, "explorer") == "test:mine"
    assert await starting._model_of(context, {}, "explorer") == "test:parent"
