"""Artifacts lie in a folder under the digest of their bytes."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from soong.shared.core.errors import ForeignEntryError, ForgedError, NotFoundError, UsageError
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.storage.artifacts import FolderArtifacts


@pytest.fixture
def artifacts(tmp_path: Path) -> FolderArtifacts:
    return FolderArtifacts(RootedFolder(tmp_path, "artifacts"))


@pytest.mark.spec("EVT-04.a")
async def test_bytes_come_back_by_their_digest(artifacts: FolderArtifacts) -> None:
    ref = await artifacts.put(b"a report", "text/markdown", "report.md")

    assert ref.digest == hashlib.sha256(b"a report").hexdigest()
    assert (ref.size_bytes, ref.media_type, ref.name) == (8, "text/markdown", "report.md")
    assert await artifacts.get(ref.digest) == b"a report"


async def test_equal_bytes_are_one_file(artifacts: FolderArtifacts, tmp_path: Path) -> None:
    await artifacts.put(b"same", name="a")
    await artifacts.put(b"same", name="b")

    assert sum(path.is_file() for path in (tmp_path / "artifacts").rglob("*")) == 1


@pytest.mark.parametrize("digest", ["0" * 64, "../../etc/passwd", "", "ABC"], ids=["absent", "path", "empty", "short"])
async def test_what_is_no_stored_digest_is_not_found(artifacts: FolderArtifacts, digest: str) -> None:
    with pytest.raises(NotFoundError):
        await artifacts.get(digest)


async def test_a_write_that_fails_leaves_nothing_behind(artifacts: FolderArtifacts, tmp_path: Path) -> None:
    blocked = tmp_path / "artifacts" / hashlib.sha256(b"x").hexdigest()[:2]
    blocked.parent.mkdir()
    blocked.write_text("a file where the folder should be")

    with pytest.raises(ForeignEntryError, match="is a regular file, expected a folder"):
        await artifacts.put(b"x")
    assert [path.name for path in (tmp_path / "artifacts").iterdir()] == [blocked.name]


def exchanged(path: Path) -> None:
    path.write_bytes(b"theirs")


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def linked(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def made_a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def enlarged(path: Path) -> None:
    os.truncate(path, 1 << 40)  # takes no room on the disk, and more memory than there is if it is read


EXCHANGES: list[Callable[[Path], None]] = [exchanged, emptied, linked, made_a_fifo, enlarged]


@pytest.mark.spec("EVT-04.a", "OPS-12")
@pytest.mark.parametrize("exchange", EXCHANGES)
async def test_bytes_that_are_not_those_of_the_digest_are_never_returned(
    artifacts: FolderArtifacts, monkeypatch: pytest.MonkeyPatch, exchange: Callable[[Path], None]
) -> None:
    monkeypatch.setattr("soong.shared.storage.artifacts.MAX_ARTIFACT_BYTES", 1 << 20)
    ref = await artifacts.put(b"ours")
    exchange(artifacts.path_of(ref.digest))

    with pytest.raises((ForgedError, ForeignEntryError)) as refusal:
        await artifacts.get(ref.digest)

    assert ref.digest in str(refusal.value) or str(artifacts.path_of(ref.digest)) in str(refusal.value)


@pytest.mark.spec("EVT-04", "OPS-12")
@pytest.mark.parametrize("exchange", EXCHANGES)
async def test_storing_the_bytes_again_puts_them_right(
    artifacts: FolderArtifacts, monkeypatch: pytest.MonkeyPatch, exchange: Callable[[Path], None]
) -> None:
    """What a worker put there beforehand under the digest of bytes to come is not taken for them."""
    monkeypatch.setattr("soong.shared.storage.artifacts.MAX_ARTIFACT_BYTES", 1 << 20)
    ref = await artifacts.put(b"ours")
    exchange(artifacts.path_of(ref.digest))

    await artifacts.put(b"ours")

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


async def test_more_than_is_ever_read_is_not_stored(
    artifacts: FolderArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("soong.shared.storage.artifacts.MAX_ARTIFACT_BYTES", 3)

    with pytest.raises(UsageError, match="expected at most 3"):
        await artifacts.put(b"four")
