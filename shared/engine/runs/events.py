"""Nodes and events: the two logs of a run (EVT-01, EVT-02), and their CloudEvents envelope.

Event types are lower-case words with underscores; the list below is closed per layer and grows here.
"""

from enum import StrEnum

import msgspec

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.timing import rfc3339
from soong.shared.core.value import Value


class EventType(StrEnum):
    # steps: one for every transition (DAG-04)
    STEP_CREATED = "step_created"
    STEP_READY = "step_ready"
    STEP_EXPANDING = "step_expanding"
    STEP_EXPANDED = "step_expanded"
    STEP_UNCLAIMABLE = "step_unclaimable"
    """No living worker has what it needs; in the log of its task's root run."""
    STEP_CLAIMED = "step_claimed"
    STEP_BLOCKED = "step_blocked"
    """Its run waits for consent without a slot."""
    STEP_UNPARKED = "step_unparked"
    """Its question is closed: it is ready again, before what has not begun."""
    STEP_COMPLETED = "step_completed"
    STEP_FAILED = "step_failed"
    STEP_RELEASED = "step_released"
    STEP_LEASE_EXPIRED = "step_lease_expired"
    STEP_RETRIED = "step_retried"
    STEP_CANCELLED = "step_cancelled"
    STEP_SKIPPED = "step_skipped"
    STEP_PROGRESS = "step_progress"
    # runs
    RUN_CREATED = "run_created"
    RUN_STARTED = "run_started"
    RUN_RESUMED = "run_resumed"
    RUN_PARKED = "run_parked"
    RUN_COMPLETED = "run_completed"
    RUN_FAILED = "run_failed"
    RUN_CANCELLED = "run_cancelled"
    MODEL_REQUESTED = "model_requested"
    MODEL_RESPONDED = "model_responded"
    MODEL_FAILED = "model_failed"
    MODEL_WAITING = "model_waiting"
    """The next request waits for its provider: it asked for a pause, or the minute's limit is reached."""
    MODEL_FALLBACK = "model_fallback"
    """Another model continues the run: the provider of the one before has failed for good."""
    CONTEXT_COMPACTED = "context_compacted"
    """The history was made shorter for the model; all of it is kept."""
    BUDGET_WARNED = "budget_warned"
    """A budget that concerns the run is nearly used up."""
    AGENT_PLAN = "agent_plan"
    """The plan of an agent of others (ACP-01), as it reports it."""
    AGENT_CALL = "agent_call"
    """A call of such an agent's own tool has ended; ``asked``: it went through the gate."""
    CELERY_SENT = "celery_sent"
    """The Celery task of the step was sent; written after the broker has it."""
    CELERY_REVOKED = "celery_revoked"
    """By a pause. When it does not run, it is sent again under another id."""
    ARTIFACT_STORED = "artifact_stored"
    """A function handed a file of its folder on; it is a deliverable of its task."""

    # tool calls (EXE-06, EXE-11)
    TOOL_QUEUED = "tool_queued"
    TOOL_STARTED = "tool_started"
    TOOL_PROGRESS = "tool_progress"
    TOOL_COMPLETED = "tool_completed"
    TOOL_FAILED = "tool_failed"
    TOOL_DENIED = "tool_denied"
    TOOL_YIELDED = "tool_yielded"
    HOOK_RUN = "hook_run"
    ABORTED_TOOLS = "aborted_tools"
    # consent
    PERMISSION_REQUESTED = "permission_requested"
    PERMISSION_DECIDED = "permission_decided"
    PERMISSION_FAILED = "permission_failed"
    PERMISSION_WITHDRAWN = "permission_withdrawn"
    PERMISSION_EXPIRED = "permission_expired"
    """A decision was not used in time: its call asks again."""
    SECURITY = "security"
    # tasks: in the log of the task's root run
    TASK_CREATED = "task_created"
    TASK_PAUSED = "task_paused"
    TASK_RESUMED = "task_resumed"
    TASK_UPDATED = "task_updated"
    """Grown, or steps of it tried again, skipped or cancelled, by its planner."""
    TASK_COMPLETED = "task_completed"
    TASK_FAILED = "task_failed"
    TASK_CANCELLED = "task_cancelled"


class NewEvent(Value):
    """An event before it has its sequence number."""

    type: str
    data: JsonObject = msgspec.field(default_factory=dict)
    time_us: int = 0


class Event(Value):
    """An event of a run. ``seq`` starts at 1 and has no gap."""

    run_id: str
    seq: int
    type: str
    time_us: int
    data: JsonObject

    def envelope(self) -> dict[str, Json]:
        """Return the CloudEvents 1.0 form; ``id`` is unique with ``source`` (CNCF CloudEvents 1.0.2, section 3.1)."""
        return {
            "specversion": "1.0",
            "id": str(self.seq),
            "source": f"/runs/{self.run_id}",
            "type": f"soong.{self.type}",
            "time": rfc3339(self.time_us),
            "datacontenttype": "application/json",
            "data": dict(self.data),
        }


class NodeKind(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL_RESULT = "tool_result"
    RESULT = "result"
    """The run's final output."""
    MEMORY_CONTEXT = "memory_context"
    SKILL = "skill"
    COMPACTION = "compaction"
    """How the answers before it are shown to the model from here on."""
    CELERY_TASK = "celery_task"
    """The Celery task of the step, ``sent`` or ``revoked`` by a pause: a next life of the run waits for it."""
    REFUSED = "refused"
    """The usage of an answer of which nothing was taken. It is billed; no model reads it."""


class NewNode(Value):
    """A node before it has its number. ``payload`` carries its version as ``v``."""

    kind: NodeKind
    payload: JsonObject
    parent: int | None = None
    """Number of the parent node; None hangs it under the last one."""


class Node(Value):
    """An entry of a run's context tree. ``number`` starts at 1 and has no gap."""

    run_id: str
    number: int
    parent: int
    kind: NodeKind
    payload: JsonObject
    created_us: int
