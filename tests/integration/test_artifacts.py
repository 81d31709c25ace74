"""Artifacts lie in a folder under the digest of their bytes."""

import hashlib
from pathlib import Path

import pytest

from shared.adapters.artifacts import FolderArtifacts
from shared.errors import NotFoundError


@pytest.fixture
def artifacts(tmp_path: Path) -> FolderArtifacts:
    return FolderArtifacts(tmp_path / "artifacts")


@pytest.mark.spec("EVT-04")
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

    with pytest.raises(OSError, match="exists"):
        await artifacts.put(b"x")
    assert [path.name for path in (tmp_path / "artifacts").iterdir()] == [blocked.name]
