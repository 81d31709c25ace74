"""Files that a function hands on as artifacts, and artifacts that it opens (FLW-03)."""

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from soong.shared.core.errors import NotFoundError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.runs.call_events import keep_file
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.ports import ArtifactStore

T = TypeVar("T")


class ReadArtifacts(ArtifactStore, Protocol):
    """The store of artifacts, as functions use it."""

    async def get(self, digest: str) -> bytes:
        """Return the bytes of that SHA-256. Raises: NotFoundError; SoongError, others are there, or none answers."""


class HandedOn:
    """The files of one run. Made on the event loop of its worker; implements ``RunFiles`` for threads of functions."""

    def __init__(self, artifacts: ReadArtifacts, redactor: Redactor) -> None:
        self._artifacts, self._redactor = artifacts, redactor
        self._loop = asyncio.get_running_loop()
        self.events: tuple[NewEvent, ...] = ()
        """An event for each file, for the log of the run."""

    def keep(self, path: Path, title: str) -> JsonObject:
        return self._wait(self.stored(path, title))

    def read(self, digest: str) -> bytes:
        return self._wait(self._artifacts.get(digest))

    async def stored(self, path: Path, title: str) -> JsonObject:
        """Store a file. Raises: as :meth:`soong.shared.engine.tasks.functions.StepContext.artifact`."""
        ref = await keep_file(path, self._artifacts, self._redactor)
        file: dict[str, Json] = {
            "name": path.name,
            "path": str(path),
            "digest": ref.digest,
            "size_bytes": ref.size_bytes,
        }
        self.events += (NewEvent(EventType.ARTIFACT_STORED, {"title": title, "deliverable": file}),)
        return {"artifact": ref.digest, "name": path.name, "size": ref.size_bytes, "sha256": ref.digest}

    async def copy(self, digests: Iterable[str], folder: Path) -> None:
        """Write artifacts into a folder, each under its digest, as far as they are stored."""
        for digest in digests:
            with suppress(NotFoundError):
                (folder / digest).write_bytes(await self._artifacts.get(digest))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
