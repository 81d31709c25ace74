"""``soong memory``: what sessions leave for later ones. Nothing becomes memory without it, in the default mode."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from soong.orchestrator.approvals.approval import check_person_now
from soong.orchestrator.cli.console import emit, output, say, table, visible
from soong.orchestrator.cli.options import JSON
from soong.shared.core import timing
from soong.shared.core.errors import UsageError
from soong.shared.core.jsontext import Json
from soong.shared.core.settings import Settings, load_settings

if TYPE_CHECKING:
    from soong.orchestrator.memory.job import MemoryCandidate
    from soong.orchestrator.memory.review import MemoryReview
    from soong.shared.toolsets.memory.provider import Memory

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_ID = typer.Argument(..., metavar="ID", help="A memory's id, or the beginning of it.")
_IDS = typer.Argument(..., metavar="ID...", help="Ids of candidates, or the beginnings of them.")
_SHOWN_CHARS = 60


@app.command("list")
def list_memories(
    *,
    wait_s: float = typer.Option(0, "--wait", min=0, max=3600, metavar="SECONDS", help="Wait for a candidate so long."),
    is_json: bool = JSON,
) -> None:
    """List memories, and the candidates that wait for a person."""
    memories, candidates = asyncio.run(_listed(load_settings(), wait_s))
    if is_json:
        emit(
            [
                *(_as_json(each, "memory") for each in memories),
                *({**_as_json(each.memory, "candidate"), "run": each.run_id} for each in candidates),
            ]
        )
        return
    rows = [_row(each, "memory") for each in memories] + [_row(each.memory, "candidate") for each in candidates]
    output(table(("id", "state", "scope", "tainted", "content"), rows))
    if candidates:
        count = "1 candidate waits" if len(candidates) == 1 else f"{len(candidates)} candidates wait"
        say(f"{count}: soong memory show ID, then soong memory accept ID or reject ID")


@app.command()
def show(memory: str = _ID, *, is_json: bool = JSON) -> None:
    """Show a memory or a candidate in full, with where it comes from."""
    from soong.orchestrator.memory.job import MemoryCandidate

    found = asyncio.run(_found(load_settings(), memory))
    state = "candidate" if isinstance(found, MemoryCandidate) else "memory"
    said = found.memory if isinstance(found, MemoryCandidate) else found
    if is_json:
        emit(_as_json(said, state))
        return
    sources = ", ".join(said.sources) or "a person"
    lines = [
        f"{said.id}  {state}",
        f"scope    {visible(said.project) if said.project else 'user: everywhere'}",
        f"tags     {visible(', '.join(said.tags)) or 'none'}",
        f"from     {visible(sources)}",
        f"tainted  {_TAINTED if said.is_tainted else 'no'}",
        "",
        *map(visible, said.content.splitlines()),
    ]
    output("\n".join(lines))


@app.command()
def search(
    query: str = typer.Argument(..., metavar="QUERY", help="Words that the memory is likely to have."),
    *,
    project: str = typer.Option("", "--project", metavar="DIR", help="Search this project's memories, too."),
    limit: int = typer.Option(5, "--limit", min=1, max=100, help="Most memories."),
    is_json: bool = JSON,
) -> None:
    """Search memories as an agent does."""
    from soong.orchestrator.client.submission import existing_folder

    folder = "" if not project else str(existing_folder(Path(project)))
    found = asyncio.run(_searched(load_settings(), query, folder, limit))
    if is_json:
        emit([_as_json(each, "memory") for each in found])
    else:
        output(table(("id", "state", "scope", "tainted", "content"), [_row(each, "memory") for each in found]))


@app.command()
def accept(memories: list[str] = _IDS) -> None:
    """Accept candidates: from now on main and orchestrator agents can recall them."""
    check_person_now("accept a memory")
    asyncio.run(_accept(load_settings(), memories))


@app.command()
def reject(memories: list[str] = _IDS) -> None:
    """Reject candidates: they are proposed no more."""
    check_person_now("reject a memory")
    asyncio.run(_reject(load_settings(), memories))


@app.command()
def forget(memory: str = _ID) -> None:
    """Remove a memory for good."""
    check_person_now("forget a memory")
    asyncio.run(_forget(load_settings(), memory))


@asynccontextmanager
async def _review(settings: Settings) -> "AsyncIterator[MemoryReview]":
    """Open what is remembered and what is proposed; in a home where nothing has run, nothing is proposed."""
    from soong.orchestrator.cli.ids import has_no_rows, opened_store
    from soong.orchestrator.memory.review import MemoryReview
    from soong.shared.core.clock import SystemClock
    from soong.shared.core.config import load_config
    from soong.shared.sandbox.rooted import RootedFolder
    from soong.shared.storage.memory.files import FOLDER, open_memory

    provider, folder = open_memory(settings, load_config(settings.home)), RootedFolder(settings.home, FOLDER)
    if has_no_rows(settings):
        yield MemoryReview(provider, folder, None, SystemClock())
        return
    async with opened_store(settings) as store:
        yield MemoryReview(provider, folder, store, SystemClock())


async def _listed(settings: Settings, wait_s: float) -> "tuple[Sequence[Memory], Sequence[MemoryCandidate]]":
    until_s = time.monotonic() + wait_s
    async with _review(settings) as review:
        while not (candidates := await review.candidates()) and time.monotonic() < until_s:  # noqa: ASYNC110  # rows of another process
            await asyncio.sleep(timing.POLL_ROWS_S)
        return await review.memories(), candidates


async def _found(settings: Settings, text: str) -> "Memory | MemoryCandidate":
    async with _review(settings) as review:
        return await review.find(text)


async def _searched(settings: Settings, query: str, project: str, limit: int) -> "Sequence[Memory]":
    from soong.shared.core.config import load_config
    from soong.shared.storage.memory.files import open_memory

    provider = open_memory(settings, load_config(settings.home))
    return await provider.search(query, project=project, limit=limit)


async def _accept(settings: Settings, texts: Sequence[str]) -> None:
    async with _review(settings) as review:
        for candidate in [await _candidate(review, text) for text in texts]:
            memory = await review.accept(candidate)
            where = f"the project {visible(memory.project)}" if memory.scope == "project" else "all projects"
            mark = f"; tainted: {_TAINTED}" if memory.is_tainted else ""
            say(f"{memory.id} is remembered for {where}{mark}")


async def _reject(settings: Settings, texts: Sequence[str]) -> None:
    async with _review(settings) as review:
        for candidate in [await _candidate(review, text) for text in texts]:
            review.reject(candidate)
            say(f"{candidate.memory.id} is rejected")


async def _forget(settings: Settings, text: str) -> None:
    from soong.orchestrator.memory.job import MemoryCandidate

    async with _review(settings) as review:
        found = await review.find(text)
        if isinstance(found, MemoryCandidate):
            raise UsageError(f"{found.memory.id} is a candidate, not a memory; reject it: soong memory reject {text}")
        await review.forget(found)
    say(f"{found.id} is forgotten")


async def _candidate(review: "MemoryReview", text: str) -> "MemoryCandidate":
    """Return the candidate that is meant. Raises: UsageError."""
    from soong.orchestrator.memory.job import MemoryCandidate

    found = await review.find(text)
    if not isinstance(found, MemoryCandidate):
        raise UsageError(f"{found.id} is a memory already; soong memory forget removes it")
    return found


_TAINTED = "yes: strangers may have written what it comes from; a run that recalls it asks before outward calls"


def _row(memory: "Memory", state: str) -> tuple[str, ...]:
    text = visible(" ".join(memory.content.split()))
    shown = text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"
    return (memory.id, state, memory.scope.value, "yes" if memory.is_tainted else "no", shown)


def _as_json(memory: "Memory", state: str) -> dict[str, Json]:
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
