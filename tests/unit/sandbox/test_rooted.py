"""Nothing that a worker leaves beneath a folder of ours leads out of it; the mark of a project."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from soong.shared.core.errors import ForeignEntryError, InvalidConfigError
from soong.shared.sandbox.rooted import MARK, RootedFolder, mark_project, project_id


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "signing.key").write_bytes(b"ours")
    return tmp_path / "keys"


@pytest.fixture
def folder(tmp_path: Path) -> RootedFolder:
    return RootedFolder(tmp_path / "data", "runs")


def _read(folder: RootedFolder, name: str) -> bytes:
    with folder.reading(name) as file:
        return file.read()


def test_what_is_written_is_read_and_folders_are_ours_alone(folder: RootedFolder) -> None:
    folder.write("run_1/deliverables/report.md", b"one")
    folder.write("run_1/deliverables/report.md", b"two")
    folder.append("run_1/events.jsonl", b"a\n")
    folder.append("run_1/events.jsonl", b"b\n")

    assert _read(folder, "run_1/deliverables/report.md") == b"two"
    assert _read(folder / "run_1", "events.jsonl") == b"a\nb\n"
    assert {path.stat().st_mode & 0o777 for path in folder.path.rglob("*") if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in folder.path.rglob("*") if path.is_file()} == {0o600}
    assert sorted(path.name for path in folder.path.rglob("*") if path.is_file()) == ["events.jsonl", "report.md"]


ACTS: dict[str, Callable[[RootedFolder], object]] = {
    "write": lambda folder: folder.write("run_1/deliverables/signing.key", b"theirs"),
    "create": lambda folder: folder.create("run_1/deliverables/new.key", b"theirs"),
    "append": lambda folder: folder.append("run_1/deliverables/signing.key", b"theirs"),
    "read": lambda folder: _read(folder, "run_1/deliverables/signing.key"),
    "make": lambda folder: folder.make("run_1/deliverables/inner"),
}


@pytest.mark.spec("OPS-12", "FS-07")
@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
@pytest.mark.parametrize("place", ["runs", "runs/run_1", "runs/run_1/deliverables"])
def test_a_folder_that_is_a_link_is_refused_at_every_depth(
    folder: RootedFolder, outside: Path, place: str, act: Callable[[RootedFolder], object]
) -> None:
    planted = folder.root / place
    planted.parent.mkdir(parents=True)
    (outside / "run_1" / "deliverables").mkdir(parents=True)
    (outside / "deliverables").mkdir()
    planted.symlink_to(outside)
    before = sorted(outside.rglob("*"))

    with pytest.raises(ForeignEntryError, match=f"{place}' is a link, expected a folder") as refusal:
        act(folder)

    assert (refusal.value.path, refusal.value.found) == (str(planted), "a link")
    assert sorted(outside.rglob("*")) == before
    assert (outside / "signing.key").read_bytes() == b"ours"


@pytest.mark.spec("OPS-12")
def test_a_file_that_is_a_link_is_replaced_by_a_write_and_neither_read_nor_added_to(
    folder: RootedFolder, outside: Path
) -> None:
    folder.make("run_1")
    link = folder.path / "run_1" / "x"
    link.symlink_to(outside / "signing.key")

    for act in (lambda: _read(folder, "run_1/x"), lambda: folder.append("run_1/x", b"theirs")):
        with pytest.raises(ForeignEntryError, match="is a link, expected a regular file"):
            act()
    folder.write("run_1/x", b"theirs")

    assert (link.is_symlink(), link.read_bytes()) == (False, b"theirs")
    assert (outside / "signing.key").read_bytes() == b"ours"


@pytest.mark.spec("OPS-12")
def test_a_second_name_of_another_file_is_not_added_to(folder: RootedFolder, outside: Path) -> None:
    folder.make("run_1")
    os.link(outside / "signing.key", folder.path / "run_1" / "events.jsonl")

    with pytest.raises(ForeignEntryError, match="hard link"):
        folder.append("run_1/events.jsonl", b"theirs")
    folder.write("run_1/events.jsonl", b"theirs")

    assert (outside / "signing.key").read_bytes() == b"ours"


@pytest.mark.spec("OPS-12")
@pytest.mark.parametrize("kind", ["a FIFO", "a directory"])
def test_what_is_no_file_blocks_nothing_and_is_named(folder: RootedFolder, kind: str) -> None:
    folder.make("run_1")
    place = folder.path / "run_1" / "x"
    os.mkfifo(place) if kind == "a FIFO" else place.mkdir()

    acts: list[Callable[[], object]] = [lambda: _read(folder, "run_1/x"), lambda: folder.append("run_1/x", b"")]
    if kind == "a directory":
        acts.append(lambda: folder.write("run_1/x", b""))
    for act in acts:
        with pytest.raises(ForeignEntryError, match=f"is {kind}, expected a regular file"):
            act()

    assert [path.name for path in (folder.path / "run_1").iterdir()] == ["x"]


def test_what_exists_is_not_created_again(folder: RootedFolder) -> None:
    folder.create("x", b"one")

    with pytest.raises(FileExistsError):
        folder.create("x", b"two")
    assert _read(folder, "x") == b"one"


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "./x", "a\0b"])
def test_a_name_that_could_lead_elsewhere_is_refused(folder: RootedFolder, name: str) -> None:
    with pytest.raises(ValueError, match="is not a relative path"):
        folder.write(name, b"")


def test_the_root_itself_may_be_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "data").symlink_to("disk")

    RootedFolder(tmp_path / "data", "runs").write("x", b"one")

    assert (tmp_path / "disk" / "runs" / "x").read_bytes() == b"one"


def test_a_folder_is_filled_and_filled_again(folder: RootedFolder) -> None:
    for text in (b"one", b"two"):
        (folder / "run_1").fill(
            ["logs", "workspace"], {"events.jsonl": text, "logs/tools.jsonl": b""}, is_flushed=False
        )
    folder.flush()

    assert _read(folder, "run_1/events.jsonl") == b"two"
    names = sorted(str(path.relative_to(folder.path)) for path in folder.path.rglob("*"))
    assert names == ["run_1", "run_1/events.jsonl", "run_1/logs", "run_1/logs/tools.jsonl", "run_1/workspace"]
    assert {path.stat().st_mode & 0o777 for path in folder.path.rglob("*") if path.is_file()} == {0o600}


def test_filling_a_new_folder_replaces_what_came_before_its_files(
    folder: RootedFolder, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = os.mkdir

    def raced(name: str, mode: int, *, dir_fd: int | None = None) -> None:
        made(name, mode, dir_fd=dir_fd)
        if name == "logs":
            inner = os.open(name, os.O_RDONLY, dir_fd=dir_fd)
            os.symlink(outside / "signing.key", "tools.jsonl", dir_fd=inner)
            os.close(inner)

    monkeypatch.setattr(os, "mkdir", raced)
    (folder / "run_1").fill(["logs"], {"events.jsonl": b"one", "logs/tools.jsonl": b"two"})

    assert (_read(folder, "run_1/events.jsonl"), _read(folder, "run_1/logs/tools.jsonl")) == (b"one", b"two")
    assert (outside / "signing.key").read_bytes() == b"ours"


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
