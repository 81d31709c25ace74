"""One permission question and its answer, as values (PER-03, PER-06).

A **request** is raised by a run for the session's one callback; an **answer** is a responder's choice; a **decision**
is what the session's owner made of it, signed, to be consumed by exactly that call.
"""

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, ValidationError, convert

from soong.shared.core.errors import ForgedError
from soong.shared.core.identity import RunIdentity
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.sandbox.family import MOST_ANCESTORS, ProcessFacts
from soong.shared.tools.definition import ElicitationAnswer, asks_for_words
from soong.shared.tools.ports import ASK_MARK
from soong.shared.tools.result import ErrorType

_Name: TypeAlias = Annotated[str, Meta(max_length=300)]


class ChoiceTraits(Value):
    """The effect of an answer, its label, and its description afterwards (``past``). ``words`` are what a person may
    type for it; the first is its key.
    """

    label: str
    past: str
    words: tuple[str, ...]
    is_allowed: bool = True
    is_grant: bool = False
    """It also answers later questions on the same scope; offered only where there is one (PER-08)."""


class Choice(StrEnum):
    """The three answers, and no others."""

    ALLOW_ONCE = "allow_once"
    ALLOW_FOR_SESSION = "allow_for_session"
    DENY = "deny"

    @property
    def traits(self) -> ChoiceTraits:
        return _TRAITS[self]

    @property
    def is_allowed(self) -> bool:
        return self.traits.is_allowed

    @property
    def is_grant(self) -> bool:
        return self.traits.is_grant


_TRAITS: Final[Mapping[Choice, ChoiceTraits]] = {
    Choice.ALLOW_ONCE: ChoiceTraits("allow once", "allowed once", ("1", "a", "once", "allow")),
    Choice.ALLOW_FOR_SESSION: ChoiceTraits(
        "allow for this session", "allowed for the session", ("2", "s", "session"), is_grant=True
    ),
    Choice.DENY: ChoiceTraits("deny (a reason may follow)", "denied", ("3", "d", "no"), is_allowed=False),
}


def offered_choices(*, may_grant: bool) -> tuple[Choice, ...]:
    """Return what a question offers, in the order in which it is shown."""
    return tuple(choice for choice in Choice if may_grant or not choice.is_grant)


class RequestState(StrEnum):
    PENDING = "pending"
    DECIDED = "decided"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"


class PermissionRequest(Value, forbid_unknown_fields=True):
    """All that a person needs to decide, and all that a decision is bound to.

    ``identity`` is filled from rows by the owner. ``arguments`` is the redacted summary of the input, ``input_digest``
    the digest of the real one. ``scope`` is what a session grant would cover; empty: none is offered. ``suggested`` is
    the policy's advice. ``env`` names the variables that a command gets. ``proof`` authenticates the raiser's run to
    the owner and is shown nowhere.
    """

    UNSHOWN = frozenset({"proof"})

    id: str
    identity: RunIdentity
    tool_call_id: str
    tool: str
    permission: str
    tags: tuple[str, ...]
    arguments: JsonObject
    input_digest: str
    target_kind: str
    scope: str
    shown: str
    precondition: str
    cwd: str
    host: str
    env: tuple[str, ...]
    is_dangerous: bool
    risk: str
    risk_summary: str
    preview: str
    hook_result: str
    suggested: Choice
    created_us: int
    fence: int = 0
    is_outward: bool = False
    """It may reach the network: a session grant does not answer it once its run is tainted (PER-21)."""
    unknown_effects: tuple[JsonObject, ...] = ()
    """Earlier calls of the run that may or may not have happened when a worker died (DAG-09)."""
    proof: str = ""

    @property
    def takes_words(self) -> bool:
        """Say whether the reason of a yes is an answer: the question is one that an MCP server asks (MCP-01.d)."""
        return asks_for_words(self.tool)

    @property
    def offers_session(self) -> bool:
        return bool(self.scope)


class PermissionDecision(Value):
    """The result of a callback. It can neither change the arguments nor run the tool."""

    choice: Choice
    reason: str = ""
    metadata: Mapping[str, Json] = msgspec.field(default_factory=dict)


PermissionCallback: TypeAlias = Callable[[PermissionRequest], Awaitable[PermissionDecision]]


NO_CALLBACK: Final = "no_callback"
"""Marks, in the metadata of a responder that failed, that it asks nobody questions of this kind."""


class Provenance(Value, omit_defaults=True):
    """``processes`` begins with the one that answers; ``address`` is set where it runs on another machine."""

    host: _Name = ""
    processes: Annotated[tuple[ProcessFacts, ...], Meta(max_length=MOST_ANCESTORS)] = ()
    address: _Name = ""

    @property
    def run_process(self) -> ProcessFacts | None:
        """Return the nearest process of the chain that belongs to a run; None when none does."""
        return next((process for process in self.processes if process.is_run), None)

    @property
    def problem(self) -> str:
        """Say why this cannot be a person's answer; empty when it can."""
        if self.run_process is not None:
            process = self.run_process
            return f"process {process.pid} ({process.program}) belongs to a run, and runs do not answer for people"
        if not self.processes and not self.address:
            return "the answer names no process that gave it"
        return ""


class Answer(Value):
    """A responder's words as a row: the first for a request wins. ``choice`` is None when the responder failed instead
    of answering; ``reason`` then holds the error. ``provenance`` is the process that gave it, with its ancestors.
    """

    request_id: str
    choice: Choice | None
    principal: str
    channel: str
    input_digest: str
    answered_us: int
    reason: str = ""
    metadata: JsonObject = msgspec.field(default_factory=dict)
    provenance: Provenance = msgspec.field(default_factory=Provenance)


class Decision(Value, forbid_unknown_fields=True):
    """The signed outcome of a request. ``signature`` is Ed25519 over the canonical JSON of every other field but it.

    ``error`` is set exactly when the verdict is a refusal, and distinguishes the kinds of refusal (PER-14). Not bound
    to worker or fence: a run resumed elsewhere can use it.
    """

    id: str
    request_id: str
    session_id: str
    run_id: str
    tool_call_id: str
    tool: str
    input_digest: str
    scope: str
    precondition: str
    choice: Choice
    author: Literal["rule", "grant", "person", "system"]
    principal: str
    reason: str
    error: ErrorType | None
    decided_us: int
    expires_us: int
    key_id: str
    signature: str = ""

    def signed_fields(self) -> dict[str, Json]:
        return {name: value for name, value in self.as_json().items() if name != "signature"}


class Question(Value):
    """A request and its state: the entry of lists of questions.

    ``answer`` is a responder's, ``decision`` the owner's on it; a question that was withdrawn, or that waits, has no
    decision. ``is_proven``: the request carries its run's proof; one without is shown to nobody.
    """

    request: PermissionRequest
    state: RequestState
    answer: Answer | None = None
    decision: Decision | None = None
    is_proven: bool = False

    @property
    def is_pending(self) -> bool:
        return self.state is RequestState.PENDING


def provenance_from(value: Mapping[str, Any]) -> Provenance:
    """Read a provenance from a row; a malformed one becomes an empty one, which answers nothing."""
    try:
        return convert(value, Provenance)
    except ValidationError:
        return Provenance()


class ElicitationRequest(Value):
    """A question of an MCP server. ``message`` are the server's words, which nobody has checked.

    ``identity`` is the run whose call it is, ``tool_call_id`` that call. ``schema`` is the JSON Schema of the form;
    None where the server wants a page to be opened: then ``url`` is the page and ``host`` its host, and Soong opens
    nothing. ``repeats_call``: the call is made again after a yes: finish at the page first. ``problem`` is the error of
    the answer before, when a form is asked again.
    """

    id: str
    identity: RunIdentity
    tool_call_id: str
    server: str
    message: str
    schema: JsonObject | None = None
    url: str = ""
    host: str = ""
    repeats_call: bool = False
    problem: str = ""

    @classmethod
    def of(cls, request: PermissionRequest) -> "ElicitationRequest":
        """Read a permission request that takes words."""
        said = request.arguments
        schema = said.get("schema")
        return cls(
            id=request.id,
            identity=request.identity,
            tool_call_id=request.tool_call_id.partition(ASK_MARK)[0],
            server=str(said.get("server", "")),
            message=str(said.get("message", "")),
            schema=schema if isinstance(schema, Mapping) else None,
            url=str(said.get("url", "")),
            host=str(said.get("host", "")),
            repeats_call=said.get("repeats_call") is True,
            problem=str(said.get("problem", "")),
        )


ElicitationCallback: TypeAlias = Callable[[ElicitationRequest], Awaitable[ElicitationAnswer]]


def decision_from(kept: Any) -> Decision:
    """Return the decision of stored fields.
    Raises: ForgedError, they are not those of a decision: an unknown word, a field too few or too many.
    """
    try:
        return convert(kept, Decision)
    except ValidationError as error:
        raise ForgedError(f"a decision cannot be read: {error}", what="malformed_decision") from error
