"""Artifacts lie in a folder under the digest of their bytes."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from soong.shared.core.errors import ForeignEntryError, ForgedError
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.storage.artifacts import FolderArtifacts


@pytest.fixture
def artifacts(tmp_path: Path) -> FolderArtifacts:
    return FolderArtifacts(RootedFolder(tmp_path, "artifacts"))


async def test_a_write_that_fails_leaves_nothing_behind(artifacts: FolderArtifacts, tmp_path: Path) -> None:
    blocked = tmp_path / "artifacts" / hashlib.sha256(b"x").hexdigest()[:2]
    blocked.parent.mkdir()
    blocked.write_text("a file where the folder should be")

    with pytest.raises(ForeignEntryError, match="is a regular file, expected a folder"):
        await artifacts.put(b"x")
    assert [path.name for path in (tmp_path / "artifacts").iterdir()] == [blocked.name]


def linked(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def made_a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def enlarged(path: Path) -> None:
    os.truncate(path, 1 << 40)  # takes no room on the disk, and more memory than there is if it is read


@pytest.mark.spec("EVT-04", "EVT-04.a", "OPS-12")
@pytest.mark.parametrize("exchange", [linked, made_a_fifo, enlarged])
async def test_what_is_not_the_digests_file_is_never_returned_and_storing_again_puts_it_right(
    artifacts: FolderArtifacts, monkeypatch: pytest.MonkeyPatch, exchange: Callable[[Path], None]
) -> None:
    """What a worker put there beforehand under the digest of bytes to come is not taken for them."""
    monkeypatch.setattr("soong.shared.storage.artifacts.MAX_ARTIFACT_BYTES", 1 << 20)
    ref = await artifacts.put(b"ours")
    exchange(artifacts.path_of(ref.digest))

    with pytest.raises((ForgedError, ForeignEntryError)) as refusal:
        await artifacts.get(ref.digest)
    await artifacts.put(b"ours")

    assert ref.digest in str(refusal.value) or str(artifacts.path_of(ref.digest)) in str(refusal.value)
    assert await artifacts.get(ref.digest) == b"ours"


@pytest.mark.spec("OPS-12")
async def test_a_folder_of_artifacts_that_leads_elsewhere_is_not_written(
    artifacts: FolderArtifacts, tmp_path: Path
) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "artifacts").symlink_to("keys")

    with pytest.raises(ForeignEntryError, match="is a link, expected a folder"):
        await artifacts.put(b"theirs")
    assert list((tmp_path / "keys").iterdir()) == []
