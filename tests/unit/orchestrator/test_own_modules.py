"""Whether a running service has the modules of a command."""

import os
from pathlib import Path

import pytest

from soong.orchestrator.embedded.child import ModuleFile
from soong.orchestrator.embedded.own_modules import ModuleDifference, difference, module_files_of


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


def test_what_is_installed_comes_first(tmp_path: Path) -> None:
    written(tmp_path / "celery.py", 1_000)

    assert "site-packages" in module_files_of(("celery",), (str(tmp_path),))["celery"].path


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
