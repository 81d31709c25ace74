"""A program that has a callback answer the questions of one session, by the rows of a deployment."""

from dataclasses import dataclass

from soong.orchestrator.approvals.approval import provenance_here
from soong.orchestrator.client.client import Client
from soong.orchestrator.operations.authentication import local_caller
from soong.orchestrator.operations.context import ServiceParts
from soong.orchestrator.operations.responder import ProgramResponder
from soong.shared.permissions.request import Choice, PermissionCallback, PermissionDecision, PermissionRequest


async def allow(_request: PermissionRequest) -> PermissionDecision:
    return PermissionDecision(Choice.ALLOW_ONCE)


@dataclass
class AnsweringProgram:
    """Answers while :meth:`run` runs."""

    client: Client
    session_id: str
    callback: PermissionCallback
    principal: str = "local"
    channel: str = "sdk"

    async def run(self) -> None:
        client = self.client
        service = ServiceParts(client, None, None)  # type: ignore[arg-type]  # what nobody asks for here
        session = await client.store.sessions.session(self.session_id)
        provenance = await provenance_here(client.store.sessions)
        caller = local_caller(self.principal, provenance, self.channel, client.clock.now_us())
        try:
            await ProgramResponder(service, caller, session, self.callback).run()
        finally:
            await service.feeds.close()
            await service.subscriptions.close()
