"""Which modules are kept for ``soong resume``: those of a service of one's own, and of the latest tasks (DIS-13)."""

from pathlib import Path

import pytest

from soong.orchestrator.cli.plan_modules import FILE, MAX_TASKS, keep_modules, with_kept_modules
from soong.shared.core.settings import Settings

pytestmark = pytest.mark.spec("DIS-13")


def with_modules(settings: Settings, folder: Path) -> Settings:
    return settings.model_copy(update={"functions": ("research",), "import_path": str(folder)})


def test_a_resumed_task_gets_its_modules_and_their_folder_and_another_gets_none(
    settings: Settings, tmp_path: Path
) -> None:
    keep_modules(with_modules(settings, tmp_path / "plans"), "task_kept")

    resumed = with_kept_modules(settings, "task_kept")

    assert resumed.functions == ("research",)
    assert str(tmp_path / "plans") in resumed.import_folders
    assert with_kept_modules(settings, "task_other") == settings


def test_only_the_latest_tasks_are_kept(settings: Settings, tmp_path: Path) -> None:
    tasks = [f"task_{number}" for number in range(MAX_TASKS + 1)]
    for one in tasks:
        keep_modules(with_modules(settings, tmp_path), one)

    assert with_kept_modules(settings, tasks[0]) == settings
    assert with_kept_modules(settings, tasks[1]).functions == ("research",)


def test_a_client_of_a_deployment_keeps_nothing_in_its_home(settings: Settings, tmp_path: Path) -> None:
    client = with_modules(settings, tmp_path).model_copy(update={"database_url": "postgresql://db/soong"})
    settings.home.chmod(0o500)

    keep_modules(client, "task_1")

    assert not client.is_embedded
    assert not (settings.home / FILE).exists()


def test_a_broken_file_of_kept_modules_is_as_none(settings: Settings) -> None:
    (settings.home / FILE).write_text("{")

    assert with_kept_modules(settings, "task_1") == settings
