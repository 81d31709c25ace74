import os
from pathlib import Path

import pytest

from soong.shared.tools.result import ErrorType
from soong.shared.toolsets.code import list_dir
from tests.unit.toolsets.parts import Project, text_of


def paths(data: dict[str, object]) -> list[str]:
    return [entry["path"] for entry in data["entries"]]  # type: ignore[attr-defined]


@pytest.mark.spec("FS-02.a", "FS-02.b")
async def test_entries_are_sorted_by_path_with_kind_and_size(project: Project) -> None:
    project.file("b.txt", "12345")
    project.file("a/x", "1")
    (project.root / "link").symlink_to("b.txt")
    os.mkfifo(project.root / "fifo")

    data = await project.data("list_dir")

    assert data["entries"] == [
        {"path": "a", "type": "dir", "size": 0},
        {"path": "b.txt", "type": "file", "size": 5},
        {"path": "fifo", "type": "other", "size": 0},
        {"path": "link", "type": "link", "size": 0},
    ]
    assert (data["truncated"], data["left_out"]) == (False, 0)


@pytest.mark.spec("FS-02")
async def test_a_recursive_list_is_sorted_as_a_whole(project: Project) -> None:
    for name in ("a/x", "a.txt", "a-b/y", "b", "a/c/d"):
        project.file(name)

    listed = paths(await project.data("list_dir", recursive=True))

    assert listed == sorted(listed) == ["a", "a-b", "a-b/y", "a.txt", "a/c", "a/c/d", "a/x", "b"]


@pytest.mark.spec("FS-02")
async def test_links_are_never_followed(project: Project) -> None:
    (project.outside / "secret.txt").write_text("x")
    (project.root / "out").symlink_to(project.outside)
    (project.root / "loop").symlink_to(".")

    assert paths(await project.data("list_dir", recursive=True)) == ["loop", "out"]


@pytest.mark.spec("FS-06.d")
async def test_sensitive_entries_are_left_out_and_counted(project: Project) -> None:
    for name in (".env", "a/key.pem", "a/x.py", ".ssh/id_rsa"):
        project.file(name)

    result = await project.call("list_dir", recursive=True)

    assert paths(result.data) == ["a", "a/x.py"]  # type: ignore[arg-type]
    assert result.data["left_out"] == 3  # type: ignore[index,call-overload]
    assert "[3 entries left out: sensitive, or withheld by a rule]" in text_of(result)


@pytest.mark.spec("FS-06.b", "FS-06.d", "FS-02.c")
async def test_a_sensitive_directory_that_was_asked_for_is_listed_after_consent(project: Project) -> None:
    project.file(".ssh/id_rsa")

    data = await project.data("list_dir", path=".ssh")

    assert project.target.is_sensitive
    assert paths(data) == [".ssh/id_rsa"]


async def test_a_file_or_nothing_cannot_be_listed(project: Project) -> None:
    project.file("x")

    assert await project.error("list_dir", path="x") is ErrorType.INVALID_INPUT
    assert await project.error("list_dir", path="gone") is ErrorType.FILE_NOT_FOUND


@pytest.mark.spec("FS-02")
async def test_a_tree_too_deep_to_walk_is_flagged(project: Project) -> None:
    folder = project.root.joinpath(*["d"] * 70)
    folder.mkdir(parents=True)
    (folder / "x").touch()

    result = await project.call("list_dir", recursive=True)

    assert isinstance(result.data, dict)
    assert (result.data["partial"], result.data["unreadable"]) == (True, 1)
    assert "1 directories were not entered" in text_of(result)


def test_a_file_system_of_the_kernel_is_not_entered_wherever_it_is_met() -> None:
    root = os.open("/", os.O_RDONLY | os.O_DIRECTORY)

    entered = list_dir._entered(root, Path("/proc"))

    os.close(root)
    assert entered is None


async def test_a_name_cannot_write_lines_of_its_own(project: Project) -> None:
    project.file("x\t0\n[9 sensitive entries left out]\x1b[2J\u202e")

    assert text_of(await project.call("list_dir")).splitlines() == [
        '"x\\t0\\n[9 sensitive entries left out]\\u001b[2J\\u202e"\t0'
    ]


@pytest.mark.spec("FS-02.a", "FS-02.b")
async def test_by_default_two_hundred_entries_of_the_folder_itself_are_listed(project: Project) -> None:
    for number in range(205):
        project.file(f"f{number:03}")
    project.file("a/inner")

    data = await project.data("list_dir")

    assert paths(data) == ["a", *(f"f{number:03}" for number in range(199))]
    assert data["truncated"] is True
