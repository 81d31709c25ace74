"""``soong memory``: what sessions leave for later ones. Nothing becomes memory without it, in the default mode."""

import asyncio
import time
from pathlib import Path

import typer

from soong.orchestrator.cli.options import JSON, CommandTable
from soong.orchestrator.memory.review import document_of, memories_here, opened_review
from soong.orchestrator.terminal.console import Columns, details, listed, number_of, one_line, say, visible
from soong.orchestrator.terminal.console import show as show_result
from soong.orchestrator.terminal.summary import Document
from soong.shared.core import timing

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
    async with opened_review() as review:
        while not (candidates := await review.candidates()) and time.monotonic() < until_s:  # noqa: ASYNC110  # rows of another process
            await asyncio.sleep(timing.POLL_ROWS_S)
        memories = await review.memories()
    shown = [*map(document_of, memories), *({**document_of(each), "run": each.run_id} for each in candidates)]
    listed(shown, _COLUMNS, is_json=is_json)
    if candidates and not is_json:
        count = f"{number_of(len(candidates), 'candidate')} wait{'s' if len(candidates) == 1 else ''}"
        say(f"{count}: soong memory show ID, then soong memory accept ID or reject ID")


@app.command()
async def show(memory: str = _ID, *, is_json: bool = JSON) -> None:
    """Show a memory or a candidate in full, with where it comes from."""
    async with opened_review() as review:
        document = document_of(await review.find(memory))
    show_result(document, lambda: _text(document), is_json=is_json)


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

    folder = str(existing_folder(Path(project))) if project else ""
    found = await memories_here().search(query, project=folder, limit=limit)
    listed([*map(document_of, found)], _COLUMNS, is_json=is_json)


@app.command()
async def accept(memories: list[str] = _IDS) -> None:
    """Accept candidates: from now on main and orchestrator agents can recall them."""
    async with opened_review("accept a memory") as review:
        for candidate in [await review.candidate(text) for text in memories]:
            memory = await review.accept(candidate)
            where = f"the project {visible(memory.project)}" if memory.scope == "project" else "all projects"
            mark = f"; tainted: {_TAINTED}" if memory.is_tainted else ""
            say(f"{memory.id} is remembered for {where}{mark}")


@app.command()
async def reject(memories: list[str] = _IDS) -> None:
    """Reject candidates: they are proposed no more."""
    async with opened_review("reject a memory") as review:
        for candidate in [await review.candidate(text) for text in memories]:
            review.reject(candidate)
            say(f"{candidate.memory.id} is rejected")


@app.command()
async def forget(memory: str = _ID) -> None:
    """Remove a memory for good."""
    async with opened_review("forget a memory") as review:
        say(f"{await review.forget(memory)} is forgotten")


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
