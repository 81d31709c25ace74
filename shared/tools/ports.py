"""What the pipeline needs of the layers above it: consent and a log. Implemented there, declared here.

One call goes: lookup, validate, PreToolUse hook, permission (:class:`Gate`), execute, PostToolUse hook, normalise,
persist (:class:`CallLog`). The order is fixed (EXE-01).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from shared.identity import RunIdentity
from shared.jsontext import Json, JsonObject
from shared.tools.definition import Permission, Risk, Target, ToolDefinition, Traits
from shared.tools.result import ArtifactRef, ErrorType, ToolResult


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as it came from the model (or SDK, CLI): canonical name and raw arguments.

    ``raw`` holds the provider's own name and id (REG-03).
    """

    id: str
    tool: str
    arguments: Json
    raw: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GateCall:
    """A validated call on its way to permission. ``input_digest`` is the RFC 8785 digest of ``permission_input``."""

    identity: RunIdentity
    fence: int
    tool_call_id: str
    definition: ToolDefinition
    permission_input: JsonObject
    input_digest: str
    traits: Traits
    target: Target
    risk: Risk
    cwd: str
    hook_result: Literal["none", "allow", "ask"] = "none"

    @property
    def permission(self) -> Permission:
        return self.definition.permission


@dataclass(frozen=True, slots=True)
class Verdict:
    """What permission said of one call, and who said it (PER-19).

    ``author`` is ``rule``, ``grant``, ``person`` or ``system``; ``rule`` names the rule and its source. ``error`` is
    set exactly when the call is not allowed. ``decision_id`` names the signed decision that the call consumes when it
    starts; empty when policy alone allowed it.
    """

    is_allowed: bool
    author: Literal["rule", "grant", "person", "system"]
    rule: str = ""
    reason: str = ""
    decision_id: str = ""
    error: ErrorType | None = None


class Gate(Protocol):
    """Permission for one call. Never raises for a refusal; cancelling the wait withdraws the request (PER-15)."""

    async def decide(self, call: GateCall) -> Verdict: ...


@dataclass(frozen=True, slots=True)
class StartedCall:
    """What is recorded before the handler runs. The four inputs are kept apart (EXE-02)."""

    call: ToolCall
    gate_call: GateCall
    verdict: Verdict
    hook_input: JsonObject
    call_input: JsonObject
    effect_id: str
    is_write: bool
    shown_input: JsonObject = field(default_factory=dict)
    """``call_input`` without secrets: the only form that events and listings may show (EVT-05)."""


class CallLog(Protocol):
    """The record of a run's calls. Every write carries the run's fence and raises LeaseLostError when it is stale."""

    async def started(self, started: StartedCall) -> None:
        """Record a write call, its effect and the consumption of its decision in one transaction, before the handler.

        A read-only call may be recorded together with its end (it can be run again), in order.

        Raises:
            LeaseLostError: the run is no longer ours.
            AlreadyConsumedError: the decision has been used.
        """
        ...

    async def finished(self, call: ToolCall, result: ToolResult, *, duration_ms: int) -> None:
        """Write the result node and tool_completed, tool_failed or tool_denied in one transaction (EXE-06)."""
        ...

    async def note(self, type: str, data: JsonObject) -> None:
        """Append one event of the run (progress, hook outcome, state of a call)."""
        ...


class ArtifactStore(Protocol):
    """Where output goes that is too large for a result (RES-03, EVT-04). Content-addressed: equal bytes, one object."""

    async def put(self, data: bytes, media_type: str, name: str) -> ArtifactRef:
        """Store bytes, already redacted, and return the reference; storing them again changes nothing."""
        ...
