"""Artifacts by content (EVT-04), in a local folder or elsewhere: the name of the bytes is their SHA-256.

Every worker writes the store, so a name proves nothing: the bytes are held to it at each read.
"""

import hashlib
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from soong.shared.core.errors import ForeignEntryError, ForgedError, NotFoundError, UsageError
from soong.shared.core.foreign import in_thread
from soong.shared.engine.tasks.retention import StoredArtifact
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.tools.result import ArtifactRef

T = TypeVar("T")

MAX_ARTIFACT_BYTES: Final = 256 * 1024 * 1024
"""Above everything that is stored (deliverables, tool output), so that a file that was put there fills no memory."""
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


class ArtifactFiles(ABC):
    """Bytes by their SHA-256. A read returns the bytes stored under that digest, or an error."""

    async def put(self, data: bytes, media_type: str = "application/octet-stream", name: str = "") -> ArtifactRef:
        """Store the bytes; the same ones again change nothing but the time.
        Raises: UsageError, they are too many; SoongError, OSError, they could not be stored.
        """
        return await self.put_made(lambda: data, media_type, name)

    async def put_made(
        self, make: Callable[[], bytes], media_type: str = "application/octet-stream", name: str = ""
    ) -> ArtifactRef:
        """Store what ``make`` returns, made and stored in one turn of a thread. Raises: as :meth:`put`, and as it."""

        def store() -> ArtifactRef:
            data = make()
            if len(data) > MAX_ARTIFACT_BYTES:
                raise UsageError(
                    f"an artifact of {len(data)} bytes is too large, expected at most {MAX_ARTIFACT_BYTES}"
                )
            digest = hashlib.sha256(data).hexdigest()
            self._write(digest, data)
            return ArtifactRef(digest=digest, size_bytes=len(data), media_type=media_type, name=name)

        return await self._on_thread(store)

    async def get(self, digest: str) -> bytes:
        """Return the bytes of that SHA-256.
        Raises: NotFoundError, they are not stored; ForgedError, other bytes are in their place; ForeignEntryError, no
        regular file is in their place; UnavailableError, the store does not answer, or denies the read.
        """
        return await self._on_thread(lambda: self._read(digest))

    @abstractmethod
    def probe(self) -> None:
        """Look whether the store can be used. Blocks. Raises: UnavailableError."""

    @abstractmethod
    def stored(self) -> Iterator[StoredArtifact]:
        """Yield each artifact; whatever else is in the store is not one. Blocks."""

    @abstractmethod
    def remove(self, digest: str, *, unused_since_s: float) -> int | None:
        """Remove an artifact unless it was written since; return the bytes freed, None when it stays. Blocks."""

    async def _on_thread(self, call: Callable[[], T]) -> T:
        return await in_thread(call)

    @abstractmethod
    def _write(self, digest: str, data: bytes) -> None:
        """Store bytes under their digest."""

    @abstractmethod
    def _content(self, digest: str) -> bytes:
        """Return what is stored under a digest. Raises: NotFoundError."""

    def _read(self, digest: str) -> bytes:
        data = self._content(digest)
        found = hashlib.sha256(data).hexdigest()
        if found != digest:
            raise ForgedError(
                f"the artifact {digest} holds other bytes (SHA-256 {found}); it was changed after it was stored",
                what="exchanged_artifact",
            )
        return data


class FolderArtifacts(ArtifactFiles):
    """A store in ``<folder>/ab/cdef…``. Writing the same bytes twice changes nothing; a file is complete or absent."""

    def __init__(self, folder: RootedFolder) -> None:
        self._folder = folder

    def probe(self) -> None:
        """Nothing to ask: the folder is made with the first artifact."""

    def path_of(self, digest: str) -> Path:
        """Return the file that holds these bytes, if they are stored. Raises: NotFoundError when it is not a digest."""
        return self._folder.path / _name_of(digest)

    def stored(self) -> Iterator[StoredArtifact]:
        for prefix in self._names():
            for name in self._names(prefix):
                if _DIGEST.match(prefix + name):
                    with suppress(FileNotFoundError), self._folder.opened(prefix) as folder:
                        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            yield StoredArtifact(prefix + name, status.st_size, status.st_mtime)

    def remove(self, digest: str, *, unused_since_s: float) -> int | None:
        """See :meth:`ArtifactFiles.remove`.

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

    def _write(self, digest: str, data: bytes) -> None:
        """Mark the right bytes as used where they are there; whatever else lies in their place is replaced."""
        try:
            self._read(digest)
            self._mark(digest)
        except (NotFoundError, ForgedError, ForeignEntryError):
            self._folder.write(_name_of(digest), data)

    def _mark(self, digest: str) -> None:
        """Mark a file as used, so that garbage collection leaves it. Raises: NotFoundError when it has gone."""
        try:
            with self._folder.opened(digest[:2]) as folder:
                os.utime(digest[2:], dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            raise NotFoundError("artifact", digest) from None
        except PermissionError:
            pass  # another user's file, which only its owner collects

    def _content(self, digest: str) -> bytes:
        try:
            with self._folder.reading(_name_of(digest)) as file:
                return file.read(MAX_ARTIFACT_BYTES + 1)
        except FileNotFoundError:
            raise NotFoundError("artifact", digest) from None


def _name_of(digest: str) -> str:
    if not _DIGEST.match(digest):
        raise NotFoundError("artifact", digest)
    return f"{digest[:2]}/{digest[2:]}"


def _changed_s(name: str, folder: int) -> float:
    return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
