import os
from pathlib import Path

import pytest

from soong.shared.sandbox.paths import is_linked_elsewhere, stands_linked


@pytest.mark.spec("FS-06")
@pytest.mark.parametrize(
    ("folder", "mode", "expected"),
    [
        ("", 0o644, True),
        ("src", 0o600, True),
        (".venv/lib/python3.11/site-packages/x", 0o644, False),
        ("node_modules/x", 0o640, False),
        ("node_modules/x", 0o600, True),
    ],
)
def test_a_second_name_counts_unless_a_package_manager_explains_it(
    tmp_path: Path, folder: str, mode: int, expected: bool
) -> None:
    (tmp_path / "original").write_text("x")
    (tmp_path / "original").chmod(mode)
    name = tmp_path / folder / "name"
    name.parent.mkdir(parents=True, exist_ok=True)
    os.link(tmp_path / "original", name)

    assert stands_linked(name) is expected


def test_one_name_what_is_no_file_and_what_only_the_systems_owner_fills_are_not_linked(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")

    assert not stands_linked(tmp_path / "x")
    assert not stands_linked(tmp_path / "gone")
    assert not stands_linked(tmp_path)

    (tmp_path / "a").write_text("x")
    os.link(tmp_path / "a", tmp_path / "b")

    assert not is_linked_elsewhere(Path("/usr/share/zoneinfo/UTC"), (tmp_path / "a").stat())
