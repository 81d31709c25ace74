"""The pipeline's ports to the layers above it: consent and a log. Implemented there, declared here.

One call goes: lookup, validate, PreToolUse hook, permission (:class:`Gate`), execute, PostToolUse hook, normalise,
persist (:class:`CallLog`). The order is fixed (EXE-01).
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal, Protocol

import msgspec

from soong.shared.core.identity import RunIdentity
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.sandbox.hosts import EgressPolicy
from soong.shared.tools.definition import Permission, Risk, Target, ToolDefinition, Traits
from soong.shared.tools.result import ArtifactRef, ErrorType, ToolResult

ASK_MARK: Final = ".ask-"
"""The mark in the id of a question by a call under way: the question's own part follows it."""


def effect_id_of(run_id: str, tool_call_id: str) -> str:
    """Return the name of a call's effect (DAG-09).

    The same whenever this run makes this call again, in whatever process; another for each other call and for another
    attempt of the step, which is a run of its own.
    """
    return f"{run_id}/{tool_call_id}"


class ToolCall(Value):
    """A call as it came from the model (or SDK, CLI): canonical name and raw arguments.

    ``raw`` holds the provider's own name and id (REG-03).
    """

    id: str
    tool: str
    arguments: Json
    raw: Mapping[str, Json] = msgspec.field(default_factory=dict)


class GateCall(Value):
    """A validated call on its way to permission. ``input_digest`` is the RFC 8785 digest of ``permission_input``.

    ``is_rewritten``: hooks changed the model's input.
    """

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
    is_rewritten: bool = False
    is_under_way: bool = False
    """The call runs already and asks in the middle: its run cannot park for the answer."""
    is_answered: bool = False
    """A hook has answered in the person's place: the policy may refuse it, and nobody is asked."""

    @property
    def permission(self) -> Permission:
        return self.definition.permission

    def facts(self, shown: Callable[[str], str] = str) -> dict[str, Json]:
        """Return the facts for permission, apart from its decision (PER-19); ``shown`` takes secrets out of a text."""
        target = self.target
        return {
            "permission": self.permission.value,
            "traits": self.traits.as_json(),
            "risk": self.risk.name.lower(),
            "target": target.kind,
            "scope": shown(target.scope),
            "shown": shown(target.shown),
            "host": shown(target.host),
            "is_inside_roots": target.is_inside_roots,
            "is_sensitive": target.is_sensitive,
            "hook_result": self.hook_result,
        }


class Verdict(Value):
    """The verdict on one call, and its author (PER-19).

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
    egress: EgressPolicy | None = None
    """The hosts that the allowed call may connect to; None: it names no host, and connects to none."""

    def as_json(self, shown: Callable[[str], str] = str) -> dict[str, Json]:
        """Return the decision as it is recorded, apart from the facts (PER-19)."""
        return {
            "is_allowed": self.is_allowed,
            "author": self.author,
            "rule": shown(self.rule),
            "reason": shown(self.reason),
            "decision_id": self.decision_id,
            "error": None if self.error is None else self.error.value,
        }


class Gate(Protocol):
    """Permission for one call. Never raises for a refusal; cancelling the wait withdraws the request (PER-15)."""

    async def decide(self, call: GateCall) -> Verdict: ...


class CallInputs(Value):
    """The four inputs of a call, apart (EXE-02): of the model, of hooks, of permission, of the handler.

    None if the call did not come so far. The stored form is without secrets (EVT-05).
    """

    model: Json = None
    hook: JsonObject | None = None
    permission: JsonObject | None = None
    call: JsonObject | None = None

    def as_json(self) -> dict[str, Json]:
        """Return the stored form: one that equals the one before it is not written out again, only marked as equal."""
        said: dict[str, Json] = {"model_input": self.model}
        before: Json = self.model
        for name, value in (("hook", self.hook), ("permission", self.permission), ("call", self.call)):
            said[f"{name}_input"] = None if value is None else {"same": True} if value == before else {"value": value}
            before = value
        return said

    @classmethod
    def from_json(cls, said: JsonObject) -> "CallInputs":
        """Read the stored form."""
        before: Json = said.get("model_input")
        found: list[Json] = [before]
        for name in ("hook", "permission", "call"):
            entry = said.get(f"{name}_input")
            before = None if not isinstance(entry, Mapping) else before if entry.get("same") else entry.get("value")
            found.append(before)
        return cls(*found)  # type: ignore[arg-type]  # objects but for the first, by what as_json wrote


class CallRecord(Value):
    """The known facts of a call at a write, at any stage; nothing in it is secret.

    ``facts`` and ``decision`` (with its author) are those of the permission check (PER-19): empty before that.
    ``input_digest`` is of the real permission input. ``event_id`` names the event that this record is written with.
    """

    inputs: CallInputs = msgspec.field(default_factory=CallInputs)
    facts: JsonObject = msgspec.field(default_factory=dict)
    decision: JsonObject = msgspec.field(default_factory=dict)
    input_digest: str = ""
    effect_id: str = ""
    is_write: bool = False
    decision_id: str = ""
    event_id: str = ""


class StartedCall(Value):
    """The record of a call before the handler runs. Its inputs are those of ``record``, without secrets (EVT-05)."""

    call: ToolCall
    gate_call: GateCall
    verdict: Verdict
    record: CallRecord


class CallLog(Protocol):
    """The record of a run's calls. Every write carries the run's fence and raises LeaseLostError when it is stale."""

    async def started(self, started: StartedCall) -> None:
        """Record a write call, its effect and the consumption of its decision in one transaction, before the handler.

        A read-only call may be recorded together with its end (it can be run again), in order.
        Raises: LeaseLostError, the run is no longer ours; AlreadyConsumedError, the decision has been used.
        """
        ...

    async def finished(
        self, call: ToolCall, result: ToolResult, *, duration_ms: int, record: CallRecord | None = None
    ) -> None:
        """Write result, context nodes and tool_completed, tool_failed or tool_denied in one transaction (EXE-06).

        A call that ends as ``stream_discarded`` is an event only: it belongs to no answer (EXE-10). ``record`` None:
        the call never reached the pipeline.
        """
        ...

    async def note(self, type: str, data: JsonObject) -> None:
        """Append one event of the run (progress, hook outcome, state of a call)."""
        ...


class ArtifactStore(Protocol):
    """Stores output that is too large for a result (RES-03, EVT-04). Content-addressed: equal bytes, one object."""

    async def put(self, data: bytes, media_type: str, name: str) -> ArtifactRef:
        """Store bytes, already redacted, and return the reference; storing them again changes nothing."""
        ...

    async def put_made(self, make: Callable[[], bytes], media_type: str, name: str) -> ArtifactRef:
        """Store the result of ``make``, which may block: it is called off the event loop. Raises: its errors."""
        ...
