"""Runs as Celery task events, so that Flower shows them by readable names (OPS-02), and counts of agents (OPS-08).

Each run is a task with ``uuid = run_id``. Events are best effort and gathered: one Redis command a batch, none on the
way of a step. They carry ids and titles, never arguments, tokens or results.

``task-agent-*`` events are Soong's own. Flower counts every type it is sent, by worker, type and task name, so its
``flower_events_total`` shows them as they are. To Flower a type is also a state of its task: a run that waits for a
person is shown as ``AGENT-APPROVAL-WAITING``, also while it is parked, one that was handed back as
``AGENT-RELEASED``. An event that is only counted (errors of tools) is sent where another state follows at once.
"""

import threading
import time
from collections import deque
from typing import Any, Final

from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from soong.shared.agents.runtime.prepared import AgentObserver
from soong.shared.core import timing
from soong.shared.core.identity import RunIdentity
from soong.shared.core.log import get_logger
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Claim, StepEnd

log = get_logger(__name__)

KEEP = 5_000


BUDGETS: Final = frozenset({EndReason.MAX_TURNS, EndReason.TOKEN_LIMIT, EndReason.COST_LIMIT, EndReason.TIME_LIMIT})
"""The ends of a run that its limits bring about (DIS-07)."""


class FlowerEvents(AgentObserver):
    """A thread that sends what has gathered; the oldest are dropped when Redis is away for long."""

    def __init__(self, app: Celery, node_name: str) -> None:
        self._app = app
        self._node_name = node_name
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque(maxlen=KEEP)
        self._started: dict[str, float] = {}
        self._waits: dict[str, int] = {}
        """By run: how many of its calls wait for consent."""
        self._errors: dict[str, int] = {}
        """By run: errors of its tools that are not counted yet."""
        self._own_states: set[str] = set()
        """Runs that are shown in a state of ours."""
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
        plan = claim.task_title[:200]
        step = identity.step_key.partition("/")[2]
        shown = f"plan={plan!r} step={step!r} title={identity.step_title!r} task={identity.task_id}"
        run_id = identity.run_id
        self._started[run_id] = time.time()
        if claim.is_resumed:  # the one event that leads out of any state that has not ended
            self._put("task-retried", uuid=run_id, exception="", traceback="")
        name, again = f"{identity.definition or 'step'}:{step}", claim.attempt - 1
        shown = f"{shown} attempt={claim.attempt}"
        self._put("task-received", uuid=run_id, name=name, args=shown, kwargs="{}", retries=again)
        self._put("task-started", uuid=run_id)

    def ended(self, claim: Claim, end: StepEnd | None) -> None:
        identity, run_id = claim.identity, claim.identity.run_id
        runtime = time.time() - self._started.pop(run_id, time.time())
        is_waiting = bool(self._waits.pop(run_id, 0))
        self._tell_errors(identity)
        if end is not None and end.end_reason in BUDGETS:
            self._put_own("task-agent-budget-stop", identity, limit=end.end_reason.value)
        if end is None:
            if not is_waiting:  # one that is parked goes on being shown as what it is: waiting for a person
                self._put_own("task-agent-released", identity)
        elif end.status is StepStatus.COMPLETED:
            self._put("task-succeeded", uuid=run_id, result=str(end.outcome), runtime=round(runtime, 6))
        elif end.status is StepStatus.CANCELLED:
            if run_id in self._own_states:
                self._put("task-retried", uuid=run_id, exception="", traceback="")
            self._put("task-revoked", uuid=run_id, terminated=True, signum=None, expired=False)
        else:
            message = end.error.message if end.error else str(end.end_reason)
            self._put("task-failed", uuid=run_id, exception=message[:300], traceback="")
        self._own_states.discard(run_id)

    def approval_waiting(self, identity: RunIdentity, tool: str) -> None:
        del tool  # which one it is stands with the question
        self._waits[identity.run_id] = self._waits.get(identity.run_id, 0) + 1
        self._tell_errors(identity)
        self._put_own("task-agent-approval-waiting", identity)

    def approval_settled(self, identity: RunIdentity) -> None:
        left = self._waits[identity.run_id] = max(0, self._waits.get(identity.run_id, 0) - 1)
        if not left:
            self._put_own("task-agent-approval-settled", identity)

    def tool_failed(self, identity: RunIdentity, tool: str, error: str) -> None:
        del tool, error  # a count; the run's log has the rest
        self._errors[identity.run_id] = self._errors.get(identity.run_id, 0) + 1

    def _tell_errors(self, identity: RunIdentity) -> None:
        """Count a run's errors where another state of it follows: to Flower each type of event is one."""
        for _ in range(self._errors.pop(identity.run_id, 0)):
            self._put_own("task-agent-tool-error", identity)

    def _put_own(self, type_: str, identity: RunIdentity, **more: str) -> None:
        self._own_states.add(identity.run_id)
        name = f"{identity.definition or 'step'}:{identity.step_key.partition('/')[2]}"
        self._put(type_, uuid=identity.run_id, name=name, **more)

    def _put(self, type_: str, **fields: Any) -> None:
        self._waiting.append((type_, {**fields, "timestamp": time.time()}))

    def _run(self) -> None:
        while not self._stopping.wait(timing.PROGRESS_S):
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


class NoFlower(AgentObserver):
    """Sends nothing: SOONG_FLOWER_EVENTS is off."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def started(self, claim: Claim) -> None: ...

    def ended(self, claim: Claim, end: StepEnd | None) -> None: ...
