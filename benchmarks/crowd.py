"""Many sessions whose runs ask at once, each answered by its own callback, and what has to be true afterwards.

Every session writes into the same folder, so that a grant of one would serve them all if grants were shared. A third of
the sessions grants for the session at the first question, a third allows each once, a third denies every odd one, each
denial with words of its own: what came of every call says which answer reached it (CARD-3, PER-04, PER-07).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from soong.orchestrator.approvals.approval import provenance_here
from soong.orchestrator.client.bootstrap import open_artifacts, open_metrics
from soong.orchestrator.client.client import Client, Submission
from soong.orchestrator.operations.authentication import local_caller
from soong.orchestrator.operations.context import ServiceParts
from soong.orchestrator.operations.responder import ProgramResponder
from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.spec import TaskStatus
from soong.shared.permissions.request import Choice, PermissionDecision, PermissionRequest
from soong.shared.storage.store import Store

GRANTS, ALLOWS, DENIES = "grants", "allows", "denies"
HABITS: Final = (GRANTS, ALLOWS, DENIES)
LIMIT_S: Final = 300.0
POLL_EVERY_S: Final = 0.5


@dataclass(slots=True)
class Asker:
    """One session of the crowd: what it hands over, how it answers, and what it was asked."""

    number: int
    folder: Path
    items: int
    submission: Submission
    asked: list[PermissionRequest] = field(default_factory=list)

    @property
    def habit(self) -> str:
        return HABITS[self.number % len(HABITS)]

    async def answer(self, request: PermissionRequest) -> PermissionDecision:
        """Answer by habit; a denial names the file, so that its way back can be told."""
        self.asked.append(request)
        if self.habit == GRANTS:
            return PermissionDecision(Choice.ALLOW_FOR_SESSION)
        name = Path(request.shown).name
        if self.habit == DENIES and _item_of(name) % 2:
            return PermissionDecision(Choice.DENY, reason=f"not {name}")
        return PermissionDecision(Choice.ALLOW_ONCE)

    def path(self, item: int) -> Path:
        return self.folder / f"s{self.number}-i{item}.txt"

    def is_allowed(self, item: int) -> bool:
        return self.habit != DENIES or item % 2 == 0


def plan_of(number: int, folder: Path, items: int, *, is_chain: bool = False) -> dict[str, Json]:
    """Return a plan of so many steps that each write one file of their own, all at once or one after another."""
    steps: list[Json] = []
    for item in range(items):
        step = _step(str(folder / f"s{number}-i{item}.txt"), item)
        steps.append({**step, "depends_on": [f"i{item - 1}"]} if is_chain and item else step)
    return {"title": f"crowd {number}", "steps": steps}


def _step(path: str, item: int) -> dict[str, Json]:
    write: Json = {"call": "code.write_file", "with": {"path": path, "content": f"{item}\n"}}
    return {
        "id": f"i{item}",
        "kind": "agent",
        "instructions": "Write one file.",
        "allowed_tools": ["code.write_file"],
        "script": "builtin.calls",
        "inputs": {"calls": [write]},
    }


async def play(client: Client, askers: Sequence[Asker]) -> None:
    """Hand all of it over, answer, and wait until every task has ended. Raises: TimeoutError."""
    service = ServiceParts(client, open_metrics(client.settings), open_artifacts(client.settings))
    provenance = await provenance_here(client.store.sessions)
    caller = local_caller(client.settings.principal, provenance, "sdk", client.clock.now_us())
    responders = [ProgramResponder(service, caller, asker.submission.session, asker.answer) for asker in askers]
    for asker in askers:
        await client.submit(asker.submission)
    answering = [asyncio.create_task(one.run()) for one in responders]
    async with asyncio.timeout(LIMIT_S):
        for asker in askers:
            while not (await client.store.tasks.task(asker.submission.task.id)).status.is_terminal:  # noqa: ASYNC110  # rows
                await asyncio.sleep(POLL_EVERY_S)
    for task in answering:
        task.cancel()
    await asyncio.gather(*answering, return_exceptions=True)


async def faults_of(store: Store, asker: Asker) -> list[str]:
    """Return what is not as it has to be, in words."""
    task_id, found = asker.submission.task.id, list[str]()
    if (await store.tasks.task(task_id)).status is not TaskStatus.COMPLETED:
        found.append(f"session {asker.number} ended as {(await store.tasks.task(task_id)).status}")
    runs = {step.step_id: step.run_id for step in await store.tasks.steps(task_id)}
    if any(request.identity.run_id not in runs.values() for request in asker.asked):
        found.append(f"session {asker.number} was asked for another session's run")
    if asker.habit != GRANTS and len(asker.asked) != asker.items:
        found.append(f"session {asker.number} was asked {len(asker.asked)} times for {asker.items} calls")
    if len({request.id for request in asker.asked}) != len(asker.asked):
        found.append(f"session {asker.number} was asked the same question twice")
    for step in await store.tasks.steps(task_id):
        found += _faults_of_step(asker, _item_of(step.step_id), step.output)
    return found


def _faults_of_step(asker: Asker, item: int, output: Json) -> list[str]:
    path, said = asker.path(item), _words_of(output)
    if path.exists() is not asker.is_allowed(item):
        return [f"{path.name} is {'there' if path.exists() else 'not there'}"]
    if not asker.is_allowed(item) and f"not {path.name}" not in said:
        return [f"{path.name} was denied with the words {said!r}"]
    return []


def _item_of(name: str) -> int:
    return int(name.rpartition("i")[2].removesuffix(".txt"))


def _words_of(output: Json) -> str:
    """Return what the first call of a step was told when it was refused."""
    results = output.get("results") if isinstance(output, dict) else None
    first = results[0] if isinstance(results, list) and results else None
    error = first.get("error") if isinstance(first, dict) else None
    return str(error.get("message", "")) if isinstance(error, dict) else ""
