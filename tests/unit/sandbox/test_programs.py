from pathlib import Path

import pytest

from soong.shared.sandbox.descriptors import PathRefusal, PathRefusedError
from soong.shared.sandbox.programs import FALLBACK_PATH, child_environment, find_program, program_identity


def make_program(path: Path, text: str = "#!/bin/sh\n", mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.spec("CMD-05.a")
def test_a_child_gets_path_home_and_tmpdir_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/var/tmp")
    monkeypatch.setenv("SOONG_DATABASE_URL", "postgresql://soong:hush@db/soong")

    environment = child_environment()

    assert set(environment) == {"PATH", "HOME", "TMPDIR"}


@pytest.mark.spec("CMD-05")
@pytest.mark.parametrize(
    ("path", "expected"),
    [(".:/usr/bin::bin:/bin", "/usr/bin:/bin"), (".", FALLBACK_PATH), ("/usr/bin/:/usr/bin", "/usr/bin")],
    ids=["relative", "nothing-left", "twice"],
)
def test_no_relative_entry_is_in_the_path_of_a_child(monkeypatch: pytest.MonkeyPatch, path: str, expected: str) -> None:
    monkeypatch.setenv("PATH", path)

    assert child_environment()["PATH"] == expected


def test_without_a_path_the_usual_folders_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PATH")

    assert child_environment()["PATH"] == FALLBACK_PATH


@pytest.mark.spec("CMD-01")
def test_a_name_is_looked_up_in_the_childs_path_and_not_in_the_folder_it_starts_in(tmp_path: Path) -> None:
    make_program(tmp_path / "project/ls")
    wanted = make_program(tmp_path / "bin/ls")

    found = find_program("ls", {"PATH": f".:{tmp_path}/bin"}, cwd=tmp_path / "project")

    assert found == wanted


def test_a_path_is_found_from_the_cwd_and_its_folder_shown_without_links(tmp_path: Path) -> None:
    program = make_program(tmp_path / "real/run.sh")
    (tmp_path / "link").symlink_to(program.parent)
    (program.parent / "alias").symlink_to("run.sh")

    assert find_program("./link/run.sh", {}, cwd=tmp_path) == program
    assert find_program("link/alias", {}, cwd=tmp_path) == program.parent / "alias"
    assert find_program(str(program), {}, cwd=Path("/")) == program


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("", PathRefusal.INVALID),
        ("a\0b", PathRefusal.INVALID),
        ("\ud800", PathRefusal.INVALID),
        ("x" * 5000, PathRefusal.INVALID),
        (".", PathRefusal.NOT_REGULAR),
        ("./", PathRefusal.NOT_REGULAR),
        ("./folder", PathRefusal.NOT_REGULAR),
        ("./text", PathRefusal.INVALID),
        ("./absent", PathRefusal.NOT_FOUND),
        ("text/below", PathRefusal.NOT_FOUND),
        ("absent", PathRefusal.NOT_FOUND),
        ("folder", PathRefusal.NOT_FOUND),
    ],
    ids=lambda value: ascii(value)[:12],
)
def test_what_is_no_program_is_refused_by_name(tmp_path: Path, name: str, refusal: PathRefusal) -> None:
    (tmp_path / "folder").mkdir()
    make_program(tmp_path / "text", mode=0o644)

    with pytest.raises(PathRefusedError) as refused:
        find_program(name, {"PATH": str(tmp_path)}, cwd=tmp_path)

    assert refused.value.refusal is refusal


@pytest.mark.spec("CMD-01")
def test_the_identity_of_a_program_changes_with_the_file_behind_its_name(tmp_path: Path) -> None:
    program = make_program(tmp_path / "tool")
    first = program_identity(program)

    make_program(tmp_path / "other")
    (tmp_path / "other").replace(program)

    assert program_identity(program) != first
    assert program_identity(tmp_path / "gone") == "absent"
