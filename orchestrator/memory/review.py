"""Memory for a person: list memories and candidates; accept, reject and forget them.

The decision on a candidate is in ``memory/decisions.jsonl`` of the home, so that it is proposed once. Programs of
runs are refused: memory that a run could accept for itself would need no person (PER-13).
"""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Final, Literal

from soong.orchestrator.approvals.approval import check_person_now
from soong.orchestrator.embedded.folders import has_no_rows
from soong.orchestrator.memory.job import MemoryCandidate, candidates_of, proposed
from soong.orchestrator.operations.administration import opened_store
from soong.shared.core.config import load_config
from soong.shared.core.errors import ConflictError, NotFoundError, UsageError
from soong.shared.core.jsontext import Json, dump
from soong.shared.core.settings import load_settings
from soong.shared.core.timing import Clock, SystemClock, to_the_second
from soong.shared.core.value import Value
from soong.shared.engine.tasks.service import Ledger
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.storage.memory.files import FOLDER, open_memory
from soong.shared.toolsets.memory.provider import Memory, MemoryProvider

DECISIONS: Final = "decisions.jsonl"
MAX_DECISIONS_BYTES: Final = 16 * 1024 * 1024


class MemoryReview(Value):
    """The operations of ``soong memory``. ``folder`` is ``memory/`` of the home; ``rows`` None: nothing has run yet."""

    provider: MemoryProvider
    folder: RootedFolder
    rows: Ledger | None
    clock: Clock

    async def memories(self) -> Sequence[Memory]:
        """Return what is remembered, oldest first."""
        return await self.provider.entries()

    async def candidates(self) -> list[MemoryCandidate]:
        """Return what waits for a person, newest first; each memory once. Raises: UnavailableError."""
        if self.rows is None:
            return []
        done = self._decided() | {memory.id for memory in await self.memories()}
        waiting: dict[str, MemoryCandidate] = {}
        for candidate in await proposed(self.rows):
            if candidate.memory.id not in done:
                waiting.setdefault(candidate.memory.id, candidate)
        return list(waiting.values())

    async def candidate(self, text: str) -> MemoryCandidate:
        """Return the candidate that is meant. Raises: NotFoundError, UsageError."""
        found = await self.find(text)
        if not isinstance(found, MemoryCandidate):
            raise UsageError(f"{found.id} is a memory already; soong memory forget removes it")
        return found

    async def find(self, text: str) -> Memory | MemoryCandidate:
        """Return the memory or the candidate whose id begins so. Raises: NotFoundError, UsageError for several."""
        found: dict[str, Memory | MemoryCandidate] = {each.memory.id: each for each in await self.candidates()}
        found |= {each.id: each for each in await self.memories()}
        fitting = [key for key in found if text and (key.startswith(text) or text in key[4:])]
        if text not in found and not fitting:
            raise NotFoundError("memory or candidate", text, "list them: soong memory list")
        if text not in found and len(fitting) > 1:
            raise UsageError(f"{text!r} fits {len(fitting)} memories; type more of the id (soong memory list)")
        return found.get(text) or found[fitting[0]]

    async def accept(self, candidate: MemoryCandidate) -> Memory:
        """Keep a candidate as memory, as the rows of its job have it. Raises: ConflictError, they do not."""
        known = [] if self.rows is None else await candidates_of(self.rows, candidate.run_id)
        real = next((each for each in known if each.memory.id == candidate.memory.id), None)
        if real is None:
            raise ConflictError(f"run {candidate.run_id} does not propose {candidate.memory.id}; it is not accepted")
        await self.provider.save(real.memory)
        self._decide(real.memory.id, "accepted")
        return real.memory

    def reject(self, candidate: MemoryCandidate) -> None:
        """Propose it no more."""
        self._decide(candidate.memory.id, "rejected")

    async def forget(self, text: str) -> str:
        """Remove a memory for good; return its id. Raises: NotFoundError, UsageError."""
        memory = await self.find(text)
        if isinstance(memory, MemoryCandidate):
            hint = f"reject it: soong memory reject {text}"
            raise UsageError(f"{memory.memory.id} is a candidate, not a memory; {hint}")
        if not await self.provider.remove(memory.id):
            raise NotFoundError("memory", memory.id)
        self._decide(memory.id, "forgotten")
        return memory.id

    def _decided(self) -> set[str]:
        try:
            with self.folder.reading(DECISIONS) as file:
                content = file.read(MAX_DECISIONS_BYTES)
        except FileNotFoundError:
            return set()
        decided = set()
        for line in content.decode("utf-8", "replace").splitlines():
            try:
                decided.add(str(json.loads(line)["id"]))
            except (ValueError, KeyError, TypeError):
                continue  # a line that a person or a crash has cut
        return decided

    def _decide(self, memory_id: str, decision: Literal["accepted", "rejected", "forgotten"]) -> None:
        now = to_the_second(self.clock.now_us())
        self.folder.append(DECISIONS, f"{dump({'id': memory_id, 'decision': decision, 'time': now})}\n".encode())


def document_of(found: Memory | MemoryCandidate) -> dict[str, Json]:
    """Return a memory or a candidate as programs see it."""
    memory, state = (found.memory, "candidate") if isinstance(found, MemoryCandidate) else (found, "memory")
    return {
        "id": memory.id,
        "state": state,
        "content": memory.content,
        "scope": memory.scope.value,
        "project": memory.project,
        "tags": list(memory.tags),
        "sources": list(memory.sources),
        "is_tainted": memory.is_tainted,
        "created": memory.created,
    }


def memories_here() -> MemoryProvider:
    """Return what the home remembers."""
    settings = load_settings()
    return open_memory(settings, load_config(settings.home))


@asynccontextmanager
async def opened_review(change: str = "") -> AsyncIterator[MemoryReview]:
    """Open what is remembered and proposed; ``change`` is what a person alone may do to it."""
    settings = load_settings()
    if change:
        check_person_now(change)
    parts = (memories_here(), RootedFolder(settings.home, FOLDER))
    async with nullcontext() if has_no_rows(settings) else opened_store(settings=settings) as store:
        yield MemoryReview(*parts, store, SystemClock())  # without rows nothing is proposed
