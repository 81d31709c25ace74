"""Artifacts by content in a local folder (EVT-04): the name of the bytes is their SHA-256.

Every worker writes the folder, so a name proves nothing: the bytes are held to it at each read.
"""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from soong.shared.core.call_threads import in_thread
from soong.shared.core.errors import ForeignEntryError, ForgedError, NotFoundError, UsageError
from soong.shared.engine.tasks.retention import StoredArtifact
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.tools.result import ArtifactRef

MAX_ARTIFACT_BYTES: Final = 256 * 1024 * 1024
"""Above everything that is stored (deliverables, tool output), so that a file that was put there fills no memory."""
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


class FolderArtifacts:
    """A store in ``<folder>/ab/cdef…``. Writing the same bytes twice changes nothing; a file is complete or absent."""

    def __init__(self, folder: RootedFolder) -> None:
        self._folder = folder

    async def put(self, data: bytes, media_type: str = "application/octet-stream", name: str = "") -> ArtifactRef:
        """Store the bytes. Raises: UsageError when they are too many, ForeignEntryError, OSError."""
        return await in_thread(self._store, data, media_type, name)

    async def put_made(
        self, make: Callable[[], bytes], media_type: str = "application/octet-stream", name: str = ""
    ) -> ArtifactRef:
        """Store what ``make`` returns, made and stored in one turn of a thread. Raises: as :meth:`put`, and as it."""
        return await in_thread(lambda: self._store(make(), media_type, name))

    async def get(self, digest: str) -> bytes:
        """Return the bytes of that SHA-256.

        Raises:
            NotFoundError: they are not stored.
            ForgedError: other bytes lie in their place.
            ForeignEntryError: no regular file lies in their place.
        """
        return await in_thread(self._read, digest)

    def probe(self) -> None:
        """Nothing to ask: the folder is made with the first artifact."""

    def path_of(self, digest: str) -> Path:
        """Return the file that holds these bytes, if they are stored. Raises: NotFoundError when it is not a digest."""
        return self._folder.path / _name_of(digest)

    def stored(self) -> Iterator[StoredArtifact]:
        """Yield each artifact; whatever else lies in the folder is not one."""
        for prefix in self._names():
            for name in self._names(prefix):
                if _DIGEST.match(prefix + name):
                    with suppress(FileNotFoundError), self._folder.opened(prefix) as folder:
                        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            yield StoredArtifact(prefix + name, status.st_size, status.st_mtime)

    def remove(self, digest: str, *, unused_since_s: float) -> int | None:
        """Remove an artifact unless it was written since that moment; return the bytes freed, None when it stays.

        A writer that finds the file there marks it as used. So the file is put aside first and looked at then: one
        that was marked meanwhile is put back, one that is marked later is no longer found and is written again.
        """
        name = digest[2:]
        aside = f".old-{name}"
        try:
            with self._folder.opened(digest[:2]) as folder:
                if _changed_s(name, folder) >= unused_since_s:
                    return None
                os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
                if _changed_s(aside, folder) >= unused_since_s:
                    os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
                    return None
                freed = os.stat(aside, dir_fd=folder, follow_symlinks=False).st_size
                os.unlink(aside, dir_fd=folder)
        except (FileNotFoundError, ForeignEntryError):
            return None
        return freed

    def _names(self, prefix: str = "") -> list[str]:
        with suppress(ForeignEntryError):
            return self._folder.names(prefix)
        return []

    def _store(self, data: bytes, media_type: str, name: str) -> ArtifactRef:
        if len(data) > MAX_ARTIFACT_BYTES:
            raise UsageError(f"an artifact of {len(data)} bytes is too large, expected at most {MAX_ARTIFACT_BYTES}")
        digest = hashlib.sha256(data).hexdigest()
        if not self._is_kept(digest):
            self._folder.write(_name_of(digest), data)
        return ArtifactRef(digest=digest, size_bytes=len(data), media_type=media_type, name=name)

    def _is_kept(self, digest: str) -> bool:
        """Say whether the right bytes are there. Whatever else lies in their place is replaced by a write."""
        try:
            self._read(digest)
            self._mark(digest)
        except (NotFoundError, ForgedError, ForeignEntryError):
            return False
        return True

    def _mark(self, digest: str) -> None:
        """Mark a file as used, so that garbage collection leaves it. Raises: NotFoundError when it has gone."""
        try:
            with self._folder.opened(digest[:2]) as folder:
                os.utime(digest[2:], dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            raise NotFoundError("artifact", digest) from None
        except PermissionError:
            pass  # another user's file, which only its owner collects

    def _read(self, digest: str) -> bytes:
        try:
            with self._folder.reading(_name_of(digest)) as file:
                data = file.read(MAX_ARTIFACT_BYTES + 1)
        except FileNotFoundError:
            raise NotFoundError("artifact", digest) from None
        found = hashlib.sha256(data).hexdigest()
        if found != digest:
            raise ForgedError(
                f"the artifact {digest} holds other bytes (SHA-256 {found}); it was changed after it was stored",
                what="exchanged_artifact",
            )
        return data


def _name_of(digest: str) -> str:
    if not _DIGEST.match(digest):
        raise NotFoundError("artifact", digest)
    return f"{digest[:2]}/{digest[2:]}"


def _changed_s(name: str, folder: int) -> float:
    return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
