"""What a client does in a benchmark: prepare a plan, hand its task over, wait until it has completed."""

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.client.client import Client, Submission
from soong.orchestrator.operations.preparation import prepared
from soong.orchestrator.operations.submissions import SubmissionBody, new_ids
from soong.shared.core.jsontext import Json
from soong.shared.core.settings import Settings, load_settings
from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.engine.tasks.spec import TaskStatus

RUN_LIMIT_S: Final = 300.0
POLL_EVERY_S: Final = 0.5


class ServiceError(RuntimeError):
    """The service did not start, or did not complete a task."""


def prepare(
    home: Path,
    plan: Mapping[str, Json],
    approval_mode: ApprovalMode = ApprovalMode.DENY,
    *,
    project: Path | None = None,
) -> Submission:
    """Return a session and its task, ready to be written; reading the plan is no part of what is timed.

    ``project`` is the home unless told; what writes files needs one beside it, for no tool writes into the home.
    """
    settings = load_settings(agent_home=home)
    given: Any = {"plan": plan, "project": str(project or home), "approval_mode": str(approval_mode)}
    body = SubmissionBody.model_construct(**given, model="script")
    return prepared(body, "local", new_ids(), Catalogue.of(settings), settings)


async def complete(client: Client, prepared: Submission) -> float:
    """Submit and wait; return the seconds from handing over to reading that it completed. Raises: ServiceError."""
    subscription = await client.subscriber.subscribe_session(prepared.session.id)
    try:
        began = time.perf_counter()
        await client.submit(prepared)
        async with asyncio.timeout(RUN_LIMIT_S):
            status = TaskStatus.RUNNING
            while not status.is_terminal:
                await subscription.wait(POLL_EVERY_S)
                status = (await client.store.tasks.task(prepared.task.id)).status
        elapsed_s = time.perf_counter() - began
    finally:
        await subscription.close()
    if status is not TaskStatus.COMPLETED:
        raise ServiceError(f"{prepared.task.title} ended as {status}")
    return elapsed_s


def environment_of(settings: Settings) -> dict[str, str]:
    """Return the environment of a service's processes: ours, without what would configure them otherwise."""
    ours = ("SOONG_", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment["SOONG_AGENT_HOME"] = environment["XDG_RUNTIME_DIR"] = str(settings.agent_home)
    environment["SOONG_REDIS_URL"] = settings.redis_url
    if settings.database_url:
        environment["SOONG_DATABASE_URL"] = settings.database_url
    return environment
