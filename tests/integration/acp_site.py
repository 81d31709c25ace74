"""Runs of the scripted ACP agent: real workers, real questions, the agent as a real process."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from soong.shared.core.errors import AlreadyDecidedError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.runs.events import Node, NodeKind
from soong.shared.engine.tasks.step import Step
from soong.shared.engine.wire.bus import MemoryBus
from soong.shared.permissions.request import Choice, PermissionRequest
from tests.integration.parking import Site, open_site
from tests.model.memory import MemoryStore
from tests.waiting import until

AGENT = Path(__file__).parents[1] / "acp" / "scripted_agent.py"
RUN = "acp.scripted.run"
EDIT = "acp.scripted.edit"
EXECUTE = "acp.scripted.execute"


def step(*actions: Sequence[Json], id: str = "asks", **more: Json) -> JsonObject:
    """Return a step whose agent does these actions."""
    script: list[Json] = [list(one) for one in actions]
    return {"id": id, "instructions": "x", "agent": "acp:scripted", "inputs": {"script": script}, **more}


@dataclass
class AcpSite:
    """A site whose home has the scripted agent, and what its runs leave."""

    site: Site
    state: Path

    @property
    def project(self) -> Path:
        return self.site.project

    async def ended(self, *actions: Sequence[Json], answers: Mapping[str, Choice] | None = None, **more: Any) -> Step:
        """Run a step to its end; its questions are answered by their tool, by default with a yes to the program."""
        given = {RUN: Choice.ALLOW_ONCE, **(answers or {})}
        await self.site.submit(step(*actions, **more))
        await self.site.start_worker()
        return await self.until_ended(given)

    async def until_ended(self, answers: Mapping[str, Choice], name: str = "asks") -> Step:
        seen: set[str] = set()

        async def is_over() -> bool:
            for request in await self.site.store.consent.pending(self.site.own.session_id):
                if request.id not in seen and request.tool in answers:
                    seen.add(request.id)
                    with suppress(AlreadyDecidedError):  # a grant that was just given decides it
                        await self.site.answer(request, choice=answers[request.tool])
            return (await self.site.steps())[name].status.is_terminal

        await until(is_over)
        return (await self.site.steps())[name]

    async def question(self, tool: str) -> PermissionRequest:
        """Wait until a call of this tool is asked; a question about the program is answered with a yes."""
        found: list[PermissionRequest] = []
        answered: set[str] = set()

        async def is_asked() -> bool:
            pending = await self.site.store.consent.pending(self.site.own.session_id)
            found[:] = [one for one in pending if one.tool == tool]
            for request in pending:
                if request.tool == RUN != tool and request.id not in answered:
                    answered.add(request.id)
                    await self.site.answer(request)
            return bool(found)

        await until(is_asked)
        return found[0]

    async def nodes(self, name: str = "asks") -> Sequence[Node]:
        return await self.site.store.runs.nodes((await self.site.steps())[name].run_id)

    async def results(self, tool: str, name: str = "asks") -> list[JsonObject]:
        """Return the payloads of the results of a tool's calls."""
        nodes = await self.nodes(name)
        return [one.payload for one in nodes if one.kind is NodeKind.TOOL_RESULT and one.payload["tool"] == tool]

    def processes(self) -> list[psutil.Process]:
        """Return the living processes of this site's agents."""
        found = []
        for process in psutil.process_iter():
            try:
                is_ours = process.environ().get("AGENT_STATE") == str(self.state)
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found


@asynccontextmanager
async def acp_site(
    folder: Path,
    *flags: str,
    config: str = "",
    silence_s: float = 60.0,
    env: Sequence[str] = (),
    more: str = "",
    **settings: object,
) -> AsyncIterator[AcpSite]:
    """Open a site with the agent; ``flags`` say what the agent can, ``config`` goes before its entry."""
    state, home = folder / "state", folder / "home"
    state.mkdir()
    home.mkdir(parents=True)
    command = [sys.executable, "-P", str(AGENT), *flags]
    mode = "ask" if "modes" in flags else ""
    said = {"command": command, "mode": mode, "silence_s": silence_s, "env": list(env)}
    said["state"] = [str(state)]
    entry = "[acp.agents.scripted]\n" + "".join(f"{name} = {value!r}\n" for name, value in said.items()) + more
    given = {"AGENT_STATE": str(state), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    variables = "".join(f"{name} = {value!r}\n" for name, value in given.items())
    (home / "config.toml").write_text(f"{config}\n{entry}[acp.agents.scripted.variables]\n{variables}")
    async with open_site(MemoryStore(), MemoryBus(), folder, **settings) as site:
        yield AcpSite(site, state)


async def gone(processes: Sequence[psutil.Process], limit_s: float) -> None:
    """Wait until none of them lives. Raises: TimeoutError."""
    async with asyncio.timeout(limit_s):
        await until(lambda: not any(map(_lives, processes)))


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
