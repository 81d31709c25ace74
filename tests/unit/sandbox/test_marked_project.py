"""The mark of a project: made once, read without following anything, written by no run."""

from pathlib import Path

import pytest

from soong.shared.core.errors import InvalidConfigError
from soong.shared.sandbox.rooted import MARK, mark_project, project_id


def test_a_folder_is_marked_once_and_keeps_its_id(tmp_path: Path) -> None:
    before = project_id(tmp_path)

    made = mark_project(tmp_path)

    assert before == ""
    assert project_id(tmp_path) == mark_project(tmp_path) == made
    assert made.startswith("prj_")


def test_each_folder_has_an_id_of_its_own_in_a_mark_that_others_can_read(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()

    assert mark_project(tmp_path / "a") != mark_project(tmp_path / "b")

    mark_project(tmp_path)

    assert ((tmp_path / ".soong").stat().st_mode & 0o777, (tmp_path / MARK).stat().st_mode & 0o777) == (0o755, 0o644)


@pytest.mark.parametrize("text", ["", "prj_", "prj_XYZ", "prj_0123456789abcdef\nmore", "x" * 5000, "../../etc"])
def test_what_is_no_mark_marks_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / MARK).parent.mkdir()
    (tmp_path / MARK).write_text(text)

    assert project_id(tmp_path) == ""
    with pytest.raises(InvalidConfigError, match="is not a mark"):
        mark_project(tmp_path)


def test_a_link_to_the_mark_of_another_project_marks_nothing(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for folder in (theirs, ours):
        folder.mkdir()
    mark_project(theirs)
    (ours / MARK).parent.mkdir()
    (ours / MARK).symlink_to(theirs / MARK)

    assert project_id(ours) == ""


@pytest.mark.spec("OPS-12")
def test_a_link_in_the_project_leads_the_mark_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / ".soong").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(InvalidConfigError, match="is a link, expected a folder"):
        mark_project(tmp_path / "project")
    assert list((tmp_path / "elsewhere").iterdir()) == []
