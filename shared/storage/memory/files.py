"""Memories as Markdown files: ``user/ID.md`` and ``projects/NAME-DIGEST/ID.md`` below ``memory/`` of the home.

The files are the truth, and people may read, write and remove them with any editor. The index is in the memory of each
process: before a search, files that changed since the last one are read again, so several processes see each other's
work and nothing has to be repaired. A file is put in place complete, under a name that follows from its content.
"""

import hashlib
import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from soong.shared.core.errors import ForeignEntryError, LimitExceededError
from soong.shared.core.full_text import FullTextIndex
from soong.shared.core.log import get_logger
from soong.shared.sandbox.redact import Redactor
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.sandbox.threads import run_blocking
from soong.shared.storage.memory.document import (
    PROJECTS_FOLDER,
    USER_FOLDER,
    BrokenMemoryError,
    read_memory,
    written,
)
from soong.shared.toolsets.memory.provider import Memory, MemoryScope

log = get_logger(__name__)

MAX_FILES: Final = 5_000
MAX_FILE_BYTES: Final = 32 * 1024

_WEIGHTS: Final = (1.0, 2.0)
"""Of the content, and of the tags with the file's name."""
_Signature = tuple[int, int, int]


@dataclass(slots=True)
class FileMemory:
    """Implements :class:`soong.shared.toolsets.memory.provider.MemoryProvider`. ``folder`` is ``memory/`` of the home.

    Secrets are taken out before anything is written.
    """

    folder: RootedFolder
    redactor: Redactor = field(default_factory=Redactor)
    _index: FullTextIndex = field(default_factory=lambda: FullTextIndex(_WEIGHTS))
    _known: dict[str, tuple[_Signature, Memory | None]] = field(default_factory=dict)
    """By the file's name: what it was when it was read, and the memory in it; None where it is broken."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    async def search(
        self, query: str, *, project: str, scope: MemoryScope | None = None, limit: int = 5
    ) -> Sequence[Memory]:
        return await run_blocking(lambda _stop: self._search(query, project, scope, limit))

    async def save(self, memory: Memory) -> None:
        """Keep a memory without its secrets. Raises: LimitExceededError, OSError, ForeignEntryError."""
        await run_blocking(lambda _stop: self._save(memory))

    async def entries(self) -> Sequence[Memory]:
        return await run_blocking(lambda _stop: self._entries())

    async def remove(self, memory_id: str) -> bool:
        return await run_blocking(lambda _stop: self._remove(memory_id))

    def _search(self, query: str, project: str, scope: MemoryScope | None, limit: int) -> list[Memory]:
        wanted = set(MemoryScope) if scope is None else {scope}
        folders = {USER_FOLDER} if MemoryScope.USER in wanted else set()
        if MemoryScope.PROJECT in wanted and project:
            folders.add(project_folder(project))
        with self._lock:
            self._refresh()
            names = self._index.search(query, limit, lambda name: str(PurePosixPath(name).parent) in folders)
            found = [self._known[name][1] for name in names]
        return [memory for memory in found if memory is not None]

    def _entries(self) -> list[Memory]:
        with self._lock:
            self._refresh()
            found = [memory for _, memory in self._known.values() if memory is not None]
        return sorted(found, key=lambda memory: (memory.created, memory.id))

    def _save(self, memory: Memory) -> None:
        # The id stays: it is that of the candidate that a person has seen.
        text = self.redactor.text
        memory = replace(memory, content=text(memory.content), tags=tuple(map(text, memory.tags)))
        with self._lock:
            self._refresh()
            name = f"{_folder_of(memory)}/{memory.id}.md"
            if name not in self._known and len(self._known) >= MAX_FILES:
                raise LimitExceededError(f"the memory holds {MAX_FILES} files already; forget some: soong memory list")
            self.folder.write(name, written(memory).encode("utf-8", "replace"))

    def _remove(self, memory_id: str) -> bool:
        with self._lock:
            self._refresh()
            names = [name for name in self._known if PurePosixPath(name).stem == memory_id]
            for name in names:
                path = PurePosixPath(name)
                with self.folder.opened(str(path.parent)) as descriptor:
                    os.unlink(path.name, dir_fd=descriptor)
            return bool(names)

    # -- the index
    def _refresh(self) -> None:
        """Read the files that are new or have changed, and forget those that are gone."""
        found = dict(self._files())
        for name in self._known.keys() - found.keys():
            del self._known[name]
            self._index.remove(name)
        for name, signature in found.items():
            if name not in self._known or self._known[name][0] != signature:
                self._read(name, signature)

    def _read(self, name: str, signature: _Signature) -> None:
        memory: Memory | None = None
        try:
            memory = self._memory_in(name)
            self._index.put(name, (memory.content, " ".join((*memory.tags, PurePosixPath(name).stem))))
        except (BrokenMemoryError, ForeignEntryError, OSError, UnicodeDecodeError) as error:
            log.warning("memory_unreadable", file=name, problem=str(error))
            self._index.remove(name)
        self._known[name] = (signature, memory)

    def _memory_in(self, name: str) -> Memory:
        with self.folder.reading(name) as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise BrokenMemoryError(f"it has more than {MAX_FILE_BYTES} bytes; split it into several memories")
        memory = read_memory(content.decode("utf-8"), name)
        # Where it holds is where the file lies: a search goes by folders.
        if _folder_of(memory) != str(PurePosixPath(name).parent):
            raise BrokenMemoryError(f"it says {memory.project or 'user'!r} and lies in {PurePosixPath(name).parent}")
        return memory

    def _files(self) -> Iterator[tuple[str, _Signature]]:
        """Yield every Markdown file and what tells its states apart, at most as many as are kept."""
        count = 0
        projects = (f"{PROJECTS_FOLDER}/{name}" for name in sorted(self._names(PROJECTS_FOLDER)))
        for folder in (USER_FOLDER, *projects):
            for name, status in self._statuses(folder):
                count += 1
                if count > MAX_FILES:
                    log.warning("memories_left_out", folder=str(self.folder.path), most=MAX_FILES)
                    return
                yield f"{folder}/{name}", (status.st_mtime_ns, status.st_size, status.st_ino)

    def _names(self, folder: str) -> list[str]:
        try:
            return self.folder.names(folder)
        except (ForeignEntryError, OSError) as error:
            log.warning("memory_unreadable", file=folder, problem=str(error))
            return []

    def _statuses(self, folder: str) -> list[tuple[str, os.stat_result]]:
        try:
            with self.folder.opened(folder) as descriptor, os.scandir(descriptor) as entries:
                found = [(entry.name, entry) for entry in entries if entry.name.endswith(".md")]
                return [
                    (name, entry.stat(follow_symlinks=False))
                    for name, entry in sorted(found, key=lambda each: each[0])
                    if name[0] != "."
                ]
        except FileNotFoundError:
            return []
        except (ForeignEntryError, OSError) as error:
            log.warning("memory_unreadable", file=folder, problem=str(error))
            return []


def project_folder(project: str) -> str:
    """Return where the memories of a project lie: a folder whose name a person recognises and nothing else has."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", PurePosixPath(project).name).strip(".-")[:40] or "project"
    return f"{PROJECTS_FOLDER}/{name}-{hashlib.sha256(project.encode('utf-8', 'replace')).hexdigest()[:8]}"


def _folder_of(memory: Memory) -> str:
    return USER_FOLDER if memory.scope is MemoryScope.USER else project_folder(memory.project)
