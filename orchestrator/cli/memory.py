"""``soong memory``: what sessions leave for later ones. Nothing becomes memory without it, in the default mode."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from soong.orchestrator.approvals.approval import check_person_now
from soong.orchestrator.cli.console import Columns, details, listed, one_line, say, visible
from soong.orchestrator.cli.console import show as show_result
from soong.orchestrator.cli.options import JSON, CommandTable
from soong.orchestrator.cli.summary import Document
from soong.shared.core import timing
from soong.shared.core.errors import UsageError
from soong.shared.core.settings import Settings, load_settings

if TYPE_CHECKING:
    from soong.orchestrator.memory.job import MemoryCandidate
    from soong.orchestrator.memory.review import MemoryReview
    from soong.shared.toolsets.memory.provider import Memory, MemoryProvider

app = CommandTable()

_ID = typer.Argument(..., metavar="ID", help="A memory's id, or the beginning of it.")
_IDS = typer.Argument(..., metavar="ID...", help="Ids of candidates, or the beginnings of them.")
_SHOWN_CHARS = 60


@app.command("list")
async def list_memories(
    *,
    wait_s: float = typer.Option(0, "--wait", min=0, max=3600, metavar="SECONDS", help="Wait for a candidate so long."),
    is_json: bool = JSON,
) -> None:
    """List memories, and the candidates that wait for a person."""
    until_s = time.monotonic() + wait_s
    async with _opened_review() as review:
        while not (candidates := await review.candidates()) and time.monotonic() < until_s:  # noqa: ASYNC110  # rows of another process
            await asyncio.sleep(timing.POLL_ROWS_S)
        memories = await review.memories()
    shown = [
        *(_as_json(each, "memory") for each in memories),
        *({**_as_json(each.memory, "candidate"), "run": each.run_id} for each in candidates),
    ]
    listed(shown, _COLUMNS, is_json=is_json)
    if candidates and not is_json:
        count = "1 candidate waits" if len(candidates) == 1 else f"{len(candidates)} candidates wait"
        say(f"{count}: soong memory show ID, then soong memory accept ID or reject ID")


@app.command()
async def show(memory: str = _ID, *, is_json: bool = JSON) -> None:
    """Show a memory or a candidate in full, with where it comes from."""
    from soong.orchestrator.memory.job import MemoryCandidate

    async with _opened_review() as review:
        found = await review.find(memory)
    state = "candidate" if isinstance(found, MemoryCandidate) else "memory"
    show_result(
        document := _as_json(found.memory if isinstance(found, MemoryCandidate) else found, state),
        lambda: _text(document),
        is_json=is_json,
    )


@app.command()
async def search(
    query: str = typer.Argument(..., metavar="QUERY", help="Words that the memory is likely to have."),
    *,
    project: str = typer.Option("", "--project", metavar="DIR", help="Search this project's memories, too."),
    limit: int = typer.Option(5, "--limit", min=1, max=100, help="Most memories."),
    is_json: bool = JSON,
) -> None:
    """Search memories as an agent does."""
    from soong.orchestrator.client.program import existing_folder

    folder = "" if not project else str(existing_folder(Path(project)))
    provider = _provider(load_settings())
    found = await provider.search(query, project=folder, limit=limit)
    listed([_as_json(each, "memory") for each in found], _COLUMNS, is_json=is_json)


@app.command()
async def accept(memories: list[str] = _IDS) -> None:
    """Accept candidates: from now on main and orchestrator agents can recall them."""
    async with _opened_review("accept a memory") as review:
        for candidate in [await _candidate(review, text) for text in memories]:
            memory = await review.accept(candidate)
            where = f"the project {visible(memory.project)}" if memory.scope == "project" else "all projects"
            mark = f"; tainted: {_TAINTED}" if memory.is_tainted else ""
            say(f"{memory.id} is remembered for {where}{mark}")


@app.command()
async def reject(memories: list[str] = _IDS) -> None:
    """Reject candidates: they are proposed no more."""
    async with _opened_review("reject a memory") as review:
        for candidate in [await _candidate(review, text) for text in memories]:
            review.reject(candidate)
            say(f"{candidate.memory.id} is rejected")


@app.command()
async def forget(memory: str = _ID) -> None:
    """Remove a memory for good."""
    from soong.orchestrator.memory.job import MemoryCandidate

    async with _opened_review("forget a memory") as review:
        found = await review.find(memory)
        if isinstance(found, MemoryCandidate):
            hint = f"reject it: soong memory reject {memory}"
            raise UsageError(f"{found.memory.id} is a candidate, not a memory; {hint}")
        await review.forget(found)
        say(f"{found.id} is forgotten")


@asynccontextmanager
async def _opened_review(change: str = "") -> "AsyncIterator[MemoryReview]":
    """Open what is remembered and proposed; ``change`` is what a person alone may do to it."""
    from soong.orchestrator.cli.ids import opened_store
    from soong.orchestrator.embedded.folders import has_no_rows
    from soong.orchestrator.memory.review import MemoryReview
    from soong.shared.core.timing import SystemClock
    from soong.shared.sandbox.rooted import RootedFolder
    from soong.shared.storage.memory.files import FOLDER

    settings = load_settings()
    if change:
        check_person_now(change)
    parts = (_provider(settings), RootedFolder(settings.home, FOLDER))
    async with nullcontext() if has_no_rows(settings) else opened_store(settings=settings) as store:
        yield MemoryReview(*parts, store, SystemClock())  # without rows nothing is proposed


def _provider(settings: Settings) -> "MemoryProvider":
    from soong.shared.core.config import load_config
    from soong.shared.storage.memory.files import open_memory

    return open_memory(settings, load_config(settings.home))


async def _candidate(review: "MemoryReview", text: str) -> "MemoryCandidate":
    """Return the candidate that is meant. Raises: UsageError."""
    from soong.orchestrator.memory.job import MemoryCandidate

    found = await review.find(text)
    if not isinstance(found, MemoryCandidate):
        raise UsageError(f"{found.id} is a memory already; soong memory forget removes it")
    return found


_TAINTED = "yes: strangers may have written what it comes from; a run that recalls it asks before outward calls"


_COLUMNS: Columns = {
    "id": "id",
    "state": "state",
    "scope": "scope",
    "tainted": lambda one: "yes" if one["is_tainted"] else "no",
    "content": lambda one: one_line(visible(" ".join(one["content"].split())), _SHOWN_CHARS),
}


def _text(memory: Document) -> str:
    facts = [
        ("scope", visible(memory["project"]) or "user: everywhere"),
        ("tags", visible(", ".join(memory["tags"])) or "none"),
        ("from", visible(", ".join(memory["sources"]) or "a person")),
        ("tainted", _TAINTED if memory["is_tainted"] else "no"),
    ]
    content = map(visible, memory["content"].splitlines())
    return "\n".join([f"{memory['id']}  {memory['state']}", details(facts), "", *content])


def _as_json(memory: "Memory", state: str) -> Document:
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
