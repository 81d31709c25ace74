from pathlib import Path

import pytest

from soong.shared.sandbox.descriptors import PathRefusal, PathRefusedError
from soong.shared.sandbox.programs import FALLBACK_PATH, child_environment, find_program


def make_program(path: Path, text: str = "#!/bin/sh\n", mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


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
