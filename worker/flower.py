"""Runs as Celery task events, so that Flower shows them by readable names (OPS-02), and counts of agents (OPS-08).

Each run is a task with ``uuid = run_id``. Events are best effort and gathered: one Redis command a batch, none on the
way of a step. They carry ids and titles, never arguments, tokens or results.

``task-agent-*`` events are Soong's own. Flower counts every type it is sent, by worker, type and task name, so its
``flower_events_total`` shows them as they are. To Flower a type is also a state of its task; so that no run is shown in
a state it has left, they belong to tasks of their own: one for each type, agent definition and worker.
"""

import threading
import time
from collections import deque
from typing import Any, Final

from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from shared.identity import RunIdentity
from shared.log import get_logger
from shared.runs.status import EndReason
from shared.tasks.status import StepStatus
from shared.tasks.step import Claim, StepEnd
from worker.watching import Unwatched

log = get_logger(__name__)

EVERY_S = 0.25
KEEP = 5_000

APPROVAL_WAITING: Final = "task-agent-approval-waiting"
TOOL_ERROR: Final = "task-agent-tool-error"
BUDGET_STOP: Final = "task-agent-budget-stop"

BUDGETS: Final = frozenset({EndReason.MAX_TURNS, EndReason.TOKEN_LIMIT, EndReason.COST_LIMIT, EndReason.TIME_LIMIT})
"""The ends of a run that its limits bring about (DIS-07)."""


class FlowerEvents:
    """A thread that sends what has gathered; the oldest are dropped when Redis is away for long."""

    def __init__(self, app: Celery, node_name: str) -> None:
        self._app = app
        self._node_name = node_name
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque(maxlen=KEEP)
        self._started: dict[str, float] = {}
        self._connection: Any = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="soong-flower", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=3)

    def started(self, claim: Claim) -> None:
        identity = claim.identity
        name = f"{identity.definition or claim.kind}:{claim.step_key.partition('/')[2]}"
        shown = f"step={claim.step_key.partition('/')[2]!r} task={identity.task_id} attempt={claim.attempt}"
        run_id = self._started_now(identity.run_id)
        self._put("task-received", uuid=run_id, name=name, args=shown, kwargs="{}", retries=claim.attempt - 1)
        self._put("task-started", uuid=run_id)

    def ended(self, claim: Claim, end: StepEnd | None) -> None:
        run_id = claim.identity.run_id
        runtime = time.time() - self._started.pop(run_id, time.time())
        if end is not None and end.end_reason in BUDGETS:
            self._count(BUDGET_STOP, claim.identity, f"limit={end.end_reason.value!r}")
        if end is None:
            self._put("task-retried", uuid=run_id, exception="handed back", traceback="")
        elif end.status is StepStatus.COMPLETED:
            self._put("task-succeeded", uuid=run_id, result=str(end.outcome), runtime=round(runtime, 6))
        elif end.status is StepStatus.CANCELLED:
            self._put("task-revoked", uuid=run_id, terminated=True, signum=None, expired=False)
        else:
            message = end.error.message if end.error else str(end.end_reason)
            self._put("task-failed", uuid=run_id, exception=message[:300], traceback="")

    def approval_waiting(self, identity: RunIdentity, tool: str) -> None:
        self._count(APPROVAL_WAITING, identity, f"tool={tool!r}")

    def tool_failed(self, identity: RunIdentity, tool: str, error: str) -> None:
        self._count(TOOL_ERROR, identity, f"tool={tool!r} error={error!r}")

    def _count(self, type_: str, identity: RunIdentity, shown: str) -> None:
        name = identity.definition or "python"
        self._put(
            type_,
            uuid=f"{type_.removeprefix('task-')}:{name}@{self._node_name}",
            name=name,
            args=f"{shown} run={identity.run_id}",
            kwargs="{}",
        )

    def _started_now(self, run_id: str) -> str:
        self._started[run_id] = time.time()
        return run_id

    def _put(self, type_: str, **fields: Any) -> None:
        self._waiting.append((type_, {**fields, "timestamp": time.time()}))

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_S):
            self._send()
        self._send()

    def _send(self) -> None:
        if not self._waiting:
            return
        try:
            if self._connection is None:
                self._connection = self._app.connection_for_write()
            dispatcher = self._app.events.Dispatcher(
                self._connection, hostname=self._node_name, buffer_group={"task"}, buffer_limit=KEEP
            )
            while self._waiting:
                type_, fields = self._waiting.popleft()
                dispatcher.send(type_, **fields)
            dispatcher.flush(errors=False, groups=True)
            dispatcher.close()
        except (OperationalError, OSError, RedisError) as error:
            self._connection = None
            log.warning("flower_events_unsent", error=str(error))


class NoFlower(Unwatched):
    """Sends nothing: SOONG_FLOWER_EVENTS is off."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def started(self, claim: Claim) -> None: ...

    def ended(self, claim: Claim, end: StepEnd | None) -> None: ...
