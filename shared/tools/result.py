"""The result of a tool call: one value for success, failure, denial and abort alike (RES-01, RES-04, RES-05).

Owns the closed set of error types, from which docs/reference/errors.md is made. Leaves wrapping of handlers' plain
return values to :mod:`soong.shared.tools.pipeline` and storage to the call log.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal, TypeAlias

import msgspec

from soong.shared.core.errors import SoongError
from soong.shared.core.jsontext import Json
from soong.shared.core.value import Value


class ErrorType(StrEnum):
    """Why a call did not give what was asked. Closed: adding one means docs, a test and a ``retryable`` flag."""

    INVALID_INPUT = "invalid_input"
    TOOL_NOT_AVAILABLE = "tool_not_available"
    PERMISSION_DENIED = "permission_denied"
    PERMISSION_TIMEOUT = "permission_timeout"
    PERMISSION_NO_CALLBACK = "permission_no_callback"
    PERMISSION_FAILED = "permission_failed"
    PERMISSION_WITHDRAWN = "permission_withdrawn"
    PERMISSION_STALE = "permission_stale"
    ALREADY_DECIDED = "already_decided"
    HOOK_DENIED = "hook_denied"
    TIMEOUT = "timeout"
    ABORTED = "aborted"
    CANCELLED = "cancelled"
    NOT_RUN = "not_run"
    STREAM_DISCARDED = "stream_discarded"
    UNKNOWN_AFTER_CRASH = "unknown_after_crash"
    EXECUTION_FAILED = "execution_failed"
    INVALID_OUTPUT = "invalid_output"
    LIMIT_EXCEEDED = "limit_exceeded"
    BUDGET_EXCEEDED = "budget_exceeded"
    PATH_CONFLICT = "path_conflict"
    PATH_OUTSIDE_ROOTS = "path_outside_roots"
    PATH_PROTECTED = "path_protected"
    FILE_NOT_FOUND = "file_not_found"
    NOT_REGULAR_FILE = "not_regular_file"
    BINARY_FILE = "binary_file"
    TEXT_NOT_FOUND = "text_not_found"
    AMBIGUOUS_EDIT = "ambiguous_edit"
    PATCH_APPLY_FAILED = "patch_apply_failed"
    SANDBOX_DENIED = "sandbox_denied"
    SHELL_NOT_ALLOWED = "shell_not_allowed"
    NETWORK_DENIED = "network_denied"
    SERVER_UNAVAILABLE = "server_unavailable"
    ELICITATION_DECLINED = "elicitation_declined"
    STEP_NOT_CLAIMED = "step_not_claimed"
    STEP_NOT_CLAIMABLE = "step_not_claimable"
    LEASE_LOST = "lease_lost"
    WORKER_INCOMPATIBLE = "worker_incompatible"

    @property
    def is_retryable(self) -> bool:
        """Say whether the same call may succeed later without anything being changed by the model."""
        return self in _RETRYABLE

    @property
    def is_denial(self) -> bool:
        """Say whether the call was refused rather than failed: a step that met one ends ``partial`` (DAG-10)."""
        return self in _DENIALS


_RETRYABLE = frozenset(
    {
        ErrorType.PERMISSION_TIMEOUT,
        ErrorType.PERMISSION_NO_CALLBACK,
        ErrorType.PERMISSION_FAILED,
        ErrorType.PERMISSION_STALE,
        ErrorType.TIMEOUT,
        ErrorType.NOT_RUN,
        ErrorType.STREAM_DISCARDED,
        ErrorType.SERVER_UNAVAILABLE,
        ErrorType.STEP_NOT_CLAIMABLE,
    }
)

_DENIALS = frozenset(
    {
        ErrorType.PERMISSION_DENIED,
        ErrorType.PERMISSION_TIMEOUT,
        ErrorType.PERMISSION_NO_CALLBACK,
        ErrorType.PERMISSION_FAILED,
        ErrorType.PERMISSION_WITHDRAWN,
        ErrorType.PERMISSION_STALE,
        ErrorType.HOOK_DENIED,
        ErrorType.TOOL_NOT_AVAILABLE,
        ErrorType.PATH_PROTECTED,
        ErrorType.SANDBOX_DENIED,
        ErrorType.NETWORK_DENIED,
    }
)


RESERVED: Mapping[ErrorType, str] = {
    ErrorType.ALREADY_DECIDED: "an answer to a question that has one (PER-15); people get it as an error of their own"
}
"""Types that no part makes yet, and for what they are kept: part of the set from the start, so that readers know them.
A test holds this against the code."""


EVERY_CALL: Mapping[str, tuple[ErrorType, ...]] = {
    "before it runs": (ErrorType.TOOL_NOT_AVAILABLE, ErrorType.INVALID_INPUT, ErrorType.HOOK_DENIED, ErrorType.NOT_RUN),
    "permission": (
        ErrorType.PERMISSION_DENIED,
        ErrorType.PERMISSION_TIMEOUT,
        ErrorType.PERMISSION_NO_CALLBACK,
        ErrorType.PERMISSION_FAILED,
        ErrorType.PERMISSION_WITHDRAWN,
        ErrorType.PERMISSION_STALE,
        ErrorType.NETWORK_DENIED,
    ),
    "while it runs": (
        ErrorType.TIMEOUT,
        ErrorType.ABORTED,
        ErrorType.EXECUTION_FAILED,
        ErrorType.SANDBOX_DENIED,
        ErrorType.INVALID_OUTPUT,
        ErrorType.UNKNOWN_AFTER_CRASH,
    ),
}
"""How any call may end, whatever its tool: these are not repeated in a definition's ``errors``."""


class ToolFailure(Value):
    """The error of a result. ``hint`` is the next step for the model; ``details`` are facts for programs."""

    type: ErrorType
    message: str
    hint: str = ""
    details: Mapping[str, Json] = msgspec.field(default_factory=dict)

    @property
    def retryable(self) -> bool:
        return self.type.is_retryable


class TextBlock(Value, tag_field="kind", tag="text", omit_defaults=True):
    """Text for the model. ``original`` is what it was made of, where that differs (a program's bytes with its escape
    sequences): an artifact keeps it in place of the text when either is too long to be shown; nothing else ever does.
    """

    UNSHOWN = frozenset({"original"})

    text: str
    original: bytes = b""


class JsonBlock(Value, tag_field="kind", tag="json"):
    """A value that is not text, for the model as JSON."""

    value: Json


class ArtifactRef(Value, tag_field="kind", tag="artifact_ref"):
    """Stored bytes by content: ``digest`` is the SHA-256 in hexadecimal, ``size_bytes`` the full size."""

    digest: str
    size_bytes: int
    media_type: str = "application/octet-stream"
    name: str = ""


ContentBlock: TypeAlias = TextBlock | JsonBlock | ArtifactRef


class ContextNode(Value):
    """An addition of a result to its run's context: a skill, memories, a project's instructions.

    ``name`` is its origin; ``text`` is for the model. Applied after the call, in the transaction that ends it, and only
    when it succeeded. Calls that run in parallel add none.
    """

    kind: Literal["skill", "memory_context", "system"]
    name: str
    text: str


class ToolResult(Value):
    """The one result of one call, paired by ``tool_call_id`` and never by order (RES-02).

    ``content`` is what the model gets; ``summary`` is one line for people; ``data`` is for programs;
    ``metadata`` holds facts such as truncated, partial, abort_reason, raw provider ids. ``evidence`` are the ids of the
    events that the call wrote (``event_id`` in their data), in order; the pipeline sets them.
    """

    tool_call_id: str
    content: tuple[ContentBlock, ...] = ()
    summary: str = ""
    data: Json = None
    artifacts: tuple[ArtifactRef, ...] = ()
    error: ToolFailure | None = None
    metadata: Mapping[str, Json] = msgspec.field(default_factory=dict)
    context_nodes: tuple[ContextNode, ...] = ()
    evidence: tuple[str, ...] = ()

    @property
    def is_error(self) -> bool:
        return self.error is not None

    @property
    def ok(self) -> bool:
        return self.error is None


class ToolError(SoongError):
    """Raised by a handler to end its call with a named error; becomes ``ToolResult.error``."""

    def __init__(
        self,
        type: ErrorType,
        message: str,
        *,
        hint: str = "",
        details: Mapping[str, Json] | None = None,
        data: Json = None,
    ) -> None:
        super().__init__(message)
        self.failure = ToolFailure(type, message, hint, details or {})
        self.data = data
