"""Memories as Markdown files: ``user/ID.md`` and ``projects/NAME-DIGEST/ID.md`` below ``memory/`` of the home.

The files are the truth, and people may read, write and remove them with any editor. The index is in the memory of each
process: before a search, files that changed since the last one are read again, so several processes see each other's
work and nothing has to be repaired. A file is put in place complete, under a name that follows from its content.
"""

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from soong.shared.core.config import Config
from soong.shared.core.errors import ForeignEntryError, InvalidPlanError, LimitExceededError, UsageError
from soong.shared.core.full_text import FullTextIndex
from soong.shared.core.jsontext import MAX_FRONT_CHARS, Json, front_matter_of
from soong.shared.core.log import get_logger
from soong.shared.core.secret_values import secret_values
from soong.shared.core.settings import Settings
from soong.shared.sandbox.redact import Redactor, redactor
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.sandbox.threads import run_blocking
from soong.shared.toolsets.memory.provider import FILES, Memory, MemoryProvider, MemoryScope, import_provider

log = get_logger(__name__)

MAX_FILES: Final = 5_000
MAX_FILE_BYTES: Final = 32 * 1024

_WEIGHTS: Final = (1.0, 2.0)
"""Weights of the content, and of the tags with the file's name."""
_Signature = tuple[int, int, int]

USER_FOLDER: Final = "user"
PROJECTS_FOLDER: Final = "projects"

FOLDER = "memory"


@dataclass(slots=True)
class FileMemory:
    """Implements :class:`soong.shared.toolsets.memory.provider.MemoryProvider`. ``folder`` is ``memory/`` of the home.

    Secrets are taken out before anything is written.
    """

    folder: RootedFolder
    redactor: Redactor = field(default_factory=Redactor)
    _index: FullTextIndex = field(default_factory=lambda: FullTextIndex(_WEIGHTS))
    _known: dict[str, tuple[_Signature, Memory | None]] = field(default_factory=dict)
    """By the file's name: its signature at the last read, and the memory in it; None if it is broken."""
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
        # The scope of a memory is the folder of its file: a search goes by folders.
        if _folder_of(memory) != str(PurePosixPath(name).parent):
            raise BrokenMemoryError(f"it says {memory.project or 'user'!r} and lies in {PurePosixPath(name).parent}")
        return memory

    def _files(self) -> Iterator[tuple[str, _Signature]]:
        """Yield every Markdown file and its signature, at most as many as are kept."""
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


class BrokenMemoryError(UsageError):
    """A file of the memory folder that holds none. The message names the problem."""


def written(memory: Memory) -> str:
    """Return the file of a memory."""
    fields: dict[str, Json] = {"id": memory.id, "scope": memory.scope.value}
    if memory.project:
        fields["project"] = memory.project
    fields |= {"tags": list(memory.tags), "created": memory.created, "sources": list(memory.sources)}
    fields["tainted"] = memory.is_tainted
    lines = "".join(f"{name}: {json.dumps(value)}\n" for name, value in fields.items())
    return f"---\n{lines}---\n{memory.content}\n"


def read_memory(text: str, name: str) -> Memory:
    """Read the file of that name. Without front matter it is a person's own note, for everywhere.
    Raises: BrokenMemoryError, names the problem.
    """
    parts = front_matter_of(text)
    fields = {} if parts is None else _fields(parts.fields)
    project = _text(fields, "project")
    try:
        return Memory(
            content=text if parts is None else parts.body,
            scope=MemoryScope(_text(fields, "scope") or (MemoryScope.PROJECT if project else MemoryScope.USER)),
            tags=_texts(fields, "tags"),
            project=project,
            sources=_texts(fields, "sources"),
            is_tainted=fields.get("tainted", False) is not False,
            created=_text(fields, "created"),
            id=PurePosixPath(name).stem,
        )
    except (UsageError, ValueError) as error:
        raise BrokenMemoryError(str(error)) from error


def _fields(front: str) -> Mapping[str, Json]:
    from soong.shared.engine.tasks.plan.yaml_document import read_document

    if len(front) > MAX_FRONT_CHARS:
        raise BrokenMemoryError(f"its front matter has {len(front)} characters; at most {MAX_FRONT_CHARS} are read")
    if not front.strip():
        return {}
    try:
        value = read_document(front, "front matter").value
    except InvalidPlanError as error:
        raise BrokenMemoryError(f"{error.problems[0].place}: {error.problems[0].problem}") from error
    if not isinstance(value, Mapping):
        raise BrokenMemoryError("its front matter is not a mapping of fields")
    return value


def _text(fields: Mapping[str, Json], field: str) -> str:
    value = fields.get(field, "")
    if not isinstance(value, str):
        raise BrokenMemoryError(f"{field} is not text")
    return value


def _texts(fields: Mapping[str, Json], field: str) -> tuple[str, ...]:
    value = fields.get(field, [])
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise BrokenMemoryError(f"{field} is not a list")
    if not all(isinstance(each, str) for each in value):
        raise BrokenMemoryError(f"{field} has an entry that is not text")
    return tuple(map(str, value))


def open_memory(settings: Settings, config: Config) -> MemoryProvider:
    """Return the provider; nothing is read yet.
    Raises: InvalidConfigError, the module that it names cannot be used.
    """
    wanted = config.memory.provider
    if wanted != FILES:
        return import_provider(wanted, settings.import_folders)
    secrets = redactor(secret_values(settings, config.commands.secret_env))
    return FileMemory(RootedFolder(settings.home, FOLDER), secrets)
