"""Artifacts by content in a local folder (EVT-04): the name of the bytes is their SHA-256."""

import asyncio
import hashlib
import os
import re
import tempfile
from pathlib import Path

from shared.errors import NotFoundError
from shared.tools.result import ArtifactRef

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


class FolderArtifacts:
    """A store in ``<folder>/ab/cdef…``. Writing the same bytes twice changes nothing; a file is whole or absent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def put(self, data: bytes, media_type: str = "application/octet-stream", name: str = "") -> ArtifactRef:
        digest = hashlib.sha256(data).hexdigest()
        await asyncio.to_thread(self._write, digest, data)
        return ArtifactRef(digest=digest, size_bytes=len(data), media_type=media_type, name=name)

    async def get(self, digest: str) -> bytes:
        """Raises: NotFoundError."""
        try:
            return await asyncio.to_thread(self.path_of(digest).read_bytes)
        except FileNotFoundError:
            raise NotFoundError("artifact", digest) from None

    def path_of(self, digest: str) -> Path:
        """Return the file that holds these bytes, if they are stored. Raises: NotFoundError when it is no digest."""
        if not _DIGEST.match(digest):
            raise NotFoundError("artifact", digest)
        return self._folder / digest[:2] / digest[2:]

    def _write(self, digest: str, data: bytes) -> None:
        path = self.path_of(digest)
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).rename(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
