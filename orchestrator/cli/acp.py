"""``soong acp``: an orchestrator for editors that speak the Agent Client Protocol, on standard input and output."""

import asyncio
from typing import TYPE_CHECKING

import typer

from soong.orchestrator.cli.console import say
from soong.orchestrator.cli.options import MODEL, SLOTS, WORKERS
from soong.shared.core import timing
from soong.shared.core.errors import UsageError
from soong.shared.core.settings import Settings, load_settings
from soong.shared.core.worker_range import WorkerRange
from soong.shared.engine.tasks.plan.plan import ORCHESTRATOR

if TYPE_CHECKING:
    from soong.orchestrator.client.client import Client
    from soong.orchestrator.embedded.starter import Attachment


def command(
    *,
    agent: str = typer.Option(ORCHESTRATOR, "--agent", help="The definition of the agent that answers prompts."),
    model: str | None = MODEL,
    workers: WorkerRange | None = WORKERS,
    slots: int | None = SLOTS,
) -> None:
    """Serve an editor that speaks the Agent Client Protocol and starts this command."""
    import sys

    if sys.stdin.isatty():
        words = "standard input is a terminal, and this command speaks a protocol; name it in your editor's settings"
        raise UsageError(f"{words} (docs/reference/acp.md), or give a goal with `soong ask`")
    settings = load_settings(model=model, workers=workers, slots=slots)
    asyncio.run(_serve(settings, agent))


async def _serve(settings: Settings, agent: str) -> None:
    import acp  # half a second

    from soong.orchestrator.acp.agent import OrchestratorAgent

    service = _Service(settings)
    ours = OrchestratorAgent(settings, agent, service.client)
    try:
        await acp.run_agent(ours, use_unstable_protocol=True)  # type: ignore[arg-type]  # it calls by keywords
    finally:
        await ours.close()
        await service.close()


class _Service:
    """The service behind the connection: found or started when the first prompt needs it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = asyncio.Lock()
        self._attachment: Attachment | None = None
        self._client: Client | None = None

    async def client(self) -> "Client":
        """Return the client of the service."""
        from soong.orchestrator.client.bootstrap import open_client
        from soong.orchestrator.embedded.starter import attach

        async with self._lock:
            if self._client is None:
                self._attachment = await attach(self._settings, tell=say)
                self._client = await open_client(self._attachment.settings)
            return self._client

    async def close(self) -> None:
        """Let go; an ephemeral service that nobody else needs ends."""
        if self._client is not None:
            await self._client.close()
        if self._attachment is not None:
            await self._attachment.release()
            if not await self._attachment.wait_until_gone(timing.PATIENCE_S):
                self._attachment.kill()
