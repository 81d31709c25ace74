"""What a memory is, and the port to wherever memories are kept (MEM-01, MEM-02).

The recall tool reads through the port. Only the memory job of an owner and a person's command write through it: no
tool of a model does.
"""

import hashlib
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, Protocol

import msgspec
from msgspec.structs import force_setattr

from soong.shared.core.errors import UsageError
from soong.shared.core.inert import is_seen
from soong.shared.core.value import Value

MAX_CONTENT_CHARS: Final = 4_000
MAX_TAGS: Final = 10
MAX_TAG_CHARS: Final = 40
MAX_QUERY_CHARS: Final = 1_000
MAX_RECALLED: Final = 20


class MemoryScope(StrEnum):
    """Where a memory holds: everywhere for its user, or in one project."""

    USER = "user"
    PROJECT = "project"


class Memory(Value):
    """One thing to know later. Its id follows from what it says and where it holds, so the same one is kept once.

    ``project`` is the folder where it holds; empty for the scope ``user``. ``sources`` are the runs that it was taken
    from; none for one that a person wrote. ``is_tainted``: it comes from content that strangers may have written, so
    the run that reads it counts as having read that content (PER-21). A provider that does not say so is not trusted.

    Raises (when it is made): UsageError, it is empty or too long, or its scope and its project contradict each other.
    """

    content: str
    scope: MemoryScope = MemoryScope.USER
    tags: tuple[str, ...] = ()
    project: str = ""
    sources: tuple[str, ...] = ()
    is_tainted: bool = True
    created: str = ""
    id: str = msgspec.field(default="")

    def __post_init__(self) -> None:
        content = "".join(char for char in self.content if is_seen(char) or char in "\n\t").strip()
        if not content:
            raise UsageError("a memory is empty; write what is to be remembered")
        if len(content) > MAX_CONTENT_CHARS:
            raise UsageError(f"a memory has {len(content)} characters; at most {MAX_CONTENT_CHARS} are kept")
        if (self.scope is MemoryScope.PROJECT) != bool(self.project):
            raise UsageError(f"a memory of the scope {self.scope.value!r} has the project {self.project!r}")
        tags = dict.fromkeys(_word(tag) for tag in self.tags)
        force_setattr(self, "content", content)
        force_setattr(self, "tags", tuple(tag for tag in tags if tag)[:MAX_TAGS])
        force_setattr(self, "id", self.id or memory_id(content, self.project))


def memory_id(content: str, project: str) -> str:
    """Return the id of what is remembered for a project, or everywhere when that is empty."""
    said = f"{project}\x00{content}".encode("utf-8", "replace")
    return f"mem_{hashlib.sha256(said).hexdigest()[:16]}"


def _word(tag: str) -> str:
    return " ".join("".join(filter(is_seen, tag)).split()).replace(",", " ")[:MAX_TAG_CHARS].strip()


class MemoryProvider(Protocol):
    """Where memories are kept. Methods may raise any exception: for a caller it is a failure of that call alone."""

    async def search(
        self, query: str, *, project: str, scope: MemoryScope | None = None, limit: int = 5
    ) -> Sequence[Memory]:
        """Return the memories that fit best, best first: those of the user and of this project, or of one scope."""
        ...

    async def save(self, memory: Memory) -> None:
        """Keep a memory; one with the same id is replaced."""
        ...

    async def entries(self) -> Sequence[Memory]:
        """Return all memories of all projects, oldest first."""
        ...

    async def remove(self, memory_id: str) -> bool:
        """Forget a memory; say whether there was one."""
        ...
