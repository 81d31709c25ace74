"""The artifact store of a deployment, as SOONG_ARTIFACTS_URL names it (EVT-04)."""

from collections.abc import Callable, Iterator
from typing import Protocol

from soong.shared.core.settings import ARTIFACTS, Settings
from soong.shared.engine.tasks.retention import StoredArtifact
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.storage.artifacts import FolderArtifacts
from soong.shared.tools.result import ArtifactRef


class ArtifactFiles(Protocol):
    """Bytes by their SHA-256. What is read is what was stored under that digest, or an error."""

    async def put(self, data: bytes, media_type: str = "application/octet-stream", name: str = "") -> ArtifactRef:
        """Store the bytes; the same ones again change nothing but the time. Raises: SoongError, OSError."""
        ...

    async def put_made(
        self, make: Callable[[], bytes], media_type: str = "application/octet-stream", name: str = ""
    ) -> ArtifactRef:
        """Store what ``make`` returns, which may block. Raises: SoongError, OSError, and what it raises."""
        ...

    async def get(self, digest: str) -> bytes:
        """Raises: NotFoundError, ForgedError, ForeignEntryError, UnavailableError."""
        ...

    def probe(self) -> None:
        """Look whether the store can be used. Blocks. Raises: UnavailableError."""
        ...

    def stored(self) -> Iterator[StoredArtifact]:
        """Yield each artifact. Blocks."""
        ...

    def remove(self, digest: str, *, unused_since_s: float) -> int | None:
        """Remove an artifact unless it was written since; return the bytes freed, None when it stays. Blocks."""
        ...


def open_artifact_store(settings: Settings) -> ArtifactFiles:
    """Return the store: a folder of the data folder, or a bucket, which is not connected yet.

    Raises: InvalidConfigError, the URL names no bucket, or its client is not installed.
    """
    if not settings.artifacts_url:
        return FolderArtifacts(RootedFolder(settings.data, ARTIFACTS))
    from soong.shared.storage.s3_artifacts import S3Artifacts, parse_bucket, require_client

    bucket = parse_bucket(settings.artifacts_url)
    require_client()
    return S3Artifacts(bucket)
