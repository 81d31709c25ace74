"""What a process knows that starts or changes while it runs: a command's modules, agent definitions."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.embedded.child import ModuleFile
from soong.orchestrator.embedded.own_modules import ModuleDifference, difference, module_files_of
from soong.shared.core.settings import load_settings
from soong.shared.engine.tasks.service import TaskService
from soong.shared.engine.wire.bus import MemoryBus
from soong.shared.tools.definition import NO_PROGRESS, RunDirs, ToolContext
from soong.shared.toolsets.agents.starting import StartingTools
from tests.model.builders import make_step, make_task
from tests.model.clock import FakeClock
from tests.model.memory import MemoryStore


def written(path: Path, at_ns: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    os.utime(path, ns=(at_ns, at_ns))
    return path


def test_a_module_is_its_file_and_a_package_its_folder_with_the_newest_of_its_files(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    written(first / "work.py", 1_000)
    written(second / "work.py", 2_000)
    written(second / "team/__init__.py", 3_000)
    written(second / "team/deep/er.py", 5_000)
    (tmp_path / "link").symlink_to(first)

    found = module_files_of(("work", "team.deep", "nowhere"), (str(tmp_path / "link"), str(second)))

    assert found == {
        "work": ModuleFile(str(first / "work.py"), 1_000),
        "team.deep": ModuleFile(str(second / "team"), 5_000),
        "nowhere": ModuleFile(),
    }


OWN = {"work": ModuleFile("/a/work.py", 1)}


@pytest.mark.parametrize(
    ("running", "found"),
    [
        (OWN, ModuleDifference()),
        ({**OWN, "more": ModuleFile("/a/more.py", 1)}, ModuleDifference()),
        ({}, ModuleDifference(missing=("work",))),
        ({"work": ModuleFile("/b/work.py", 1)}, ModuleDifference(other=("work",))),
        ({"work": ModuleFile("/a/work.py", 2)}, ModuleDifference(older=("work",))),
        ({"work": ModuleFile()}, ModuleDifference()),  # it is found by other ways than ours: nothing is known
    ],
    ids=["same", "more", "none", "another file", "changed", "unknown"],
)
def test_the_difference_is_what_the_command_would_run_otherwise(
    running: dict[str, ModuleFile], found: ModuleDifference
) -> None:
    assert difference(OWN, running) == found
    assert bool(found) is (found != ModuleDifference())


def write_definition(folder: Path, name: str, more: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(f"---\ndescription: d\n{more}---\nDo it.")


@pytest.mark.spec("DIS-02.b")
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


@pytest.mark.spec("DIS-02.b")
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
