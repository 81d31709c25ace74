import os
from pathlib import Path

import pytest

from soong.shared.sandbox.descriptors import PathRefusal, PathRefusedError, opened_directory, opened_file


def refusal(path: Path, *, folder: bool = False) -> PathRefusal:
    with pytest.raises(PathRefusedError) as caught, (opened_directory if folder else opened_file)(path):
        pass
    return caught.value.refusal


@pytest.mark.spec("FS-07.e")
def test_no_link_is_followed_anywhere_in_a_path(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/x").write_text("hi")
    (tmp_path / "dir").symlink_to("real")
    (tmp_path / "file").symlink_to("real/x")

    assert refusal(tmp_path / "file") is PathRefusal.CHANGED
    # A link where a directory is wanted is none, as far as the operating system says.
    assert refusal(tmp_path / "dir/x") in (PathRefusal.CHANGED, PathRefusal.NOT_FOUND)
    assert refusal(tmp_path / "dir", folder=True) is PathRefusal.CHANGED


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hi")

    assert refusal(tmp_path / "y") is PathRefusal.NOT_FOUND
    assert refusal(tmp_path / "x/y") is PathRefusal.NOT_FOUND
    assert refusal(tmp_path / ("n" * 300)) is PathRefusal.INVALID


def test_a_file_of_the_kernel_is_refused_although_it_claims_to_be_regular() -> None:
    assert refusal(Path(f"/proc/{os.getpid()}/environ")) is PathRefusal.NOT_REGULAR
    assert refusal(Path("/sys/kernel"), folder=True) is PathRefusal.NOT_REGULAR
