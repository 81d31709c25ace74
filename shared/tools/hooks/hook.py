"""What one hook gets and what it may answer (EXE-13).

A Pre hook sees the validated input with derived fields and may deny, rewrite, force an ask, add context or
stop the run; what it says about allowing replaces nobody's consent. A Post hook may add context or replace what the
model sees, never whether the call succeeded. Hooks around what an MCP server asks a person may answer in the person's
place, refuse, or replace what is sent; none of them makes a yes of a no (MCP-01.m). Their order is
:mod:`soong.shared.tools.hooks.chain`, one run of one hook :mod:`soong.shared.tools.hooks.run`, hooks that are programs
are :mod:`soong.shared.tools.hooks.command`.
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, Generic, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from soong.shared.core.clock import Clock, SystemClock
from soong.shared.core.identity import RunIdentity
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.tools.definition import NO_PROGRESS, Progress, RunDirs, Target, ToolDefinition
from soong.shared.tools.elicitation import ElicitationAnswer
from soong.shared.tools.naming import name_matches
from soong.shared.tools.result import ContentBlock, ToolResult

DEFAULT_HOOK_TIMEOUT: Final = timedelta(seconds=60)

PreAction: TypeAlias = Literal["none", "allow", "ask", "deny", "stop"]
STRENGTH: Final[tuple[PreAction, ...]] = ("none", "allow", "ask", "deny", "stop")
"""What several hooks want together is the last of these that one of them wants."""

ElicitationHookAction: TypeAlias = Literal["none", "accept", "decline"]
ELICITATION_ACTIONS: Final[tuple[ElicitationHookAction, ...]] = ("none", "accept", "decline")


class HookCall(Value):
    """The input of a hook.

    ``call_input`` is the validated input with what earlier hooks made of it; it is the hook's own copy. ``derived``
    holds facts that follow from it (:func:`derived_fields`): computed again from the current input, they are not
    part of the input and are never fed back. ``progress`` shows people what a slow hook does. ``effect_id`` names what
    the call does, the same when the run makes it again after a crash (DAG-09).
    """

    identity: RunIdentity
    tool_call_id: str
    definition: ToolDefinition
    call_input: JsonObject
    run_dirs: RunDirs
    derived: JsonObject = msgspec.field(default_factory=dict)
    progress: Progress = NO_PROGRESS
    effect_id: str = ""


class PreOutcome(Value):
    """What a Pre hook wants. ``call_input`` replaces the input and is validated again; None leaves it as it is."""

    action: PreAction = "none"
    reason: str = ""
    call_input: JsonObject | None = None
    context: tuple[str, ...] = ()


class PostOutcome(Value):
    """What a Post hook wants. ``content`` replaces what the model gets."""

    content: tuple[ContentBlock, ...] | None = None
    context: tuple[str, ...] = ()
    reason: str = ""


class ElicitationOutcome(Value):
    """What a hook around a server's question wants.

    Before the person is asked: ``accept`` answers with ``content``, ``decline`` refuses, ``none`` lets the person be
    asked. After the answer: ``decline`` takes a yes back, and ``none`` with ``content`` replaces what is sent.
    """

    action: ElicitationHookAction = "none"
    content: JsonObject | None = None
    reason: str = ""


class PreHook(Protocol):
    async def __call__(self, call: HookCall, /) -> PreOutcome: ...


class PostHook(Protocol):
    async def __call__(self, call: HookCall, result: ToolResult, /) -> PostOutcome: ...


class ElicitationHook(Protocol):
    async def __call__(self, call: HookCall, /) -> ElicitationOutcome: ...


class ElicitationResultHook(Protocol):
    async def __call__(self, call: HookCall, answer: ElicitationAnswer, /) -> ElicitationOutcome: ...


class Matcher(Value):
    """Which tools a hook is about: a glob over the canonical name and tags that must all be there."""

    pattern: str = "*"
    tags: frozenset[str] = frozenset()

    def covers(self, tool: ToolDefinition) -> bool:
        return self.tags <= tool.tags and name_matches(self.pattern, tool.name)


AnyHook: TypeAlias = PreHook | PostHook | ElicitationHook | ElicitationResultHook
HookT_co = TypeVar("HookT_co", bound=AnyHook, covariant=True)


class NamedHook(Value, Generic[HookT_co]):
    """A hook, which calls it is asked about, and how long it may take."""

    name: str
    hook: HookT_co
    on: Matcher = Matcher()
    timeout: timedelta = DEFAULT_HOOK_TIMEOUT


Note: TypeAlias = Callable[[str, JsonObject], Awaitable[None]]
Derive: TypeAlias = Callable[[JsonObject], Awaitable[JsonObject]]


async def _unnoted(type: str, data: JsonObject) -> None:
    del type, data


async def _underived(call_input: JsonObject) -> JsonObject:
    del call_input
    return {}


class HookServices(Value):
    """What running hooks needs of the pipeline for one call.

    ``note`` writes one event about the call and redacts it; ``derive`` computes the derived fields of an input.
    """

    note: Note = _unnoted
    derive: Derive = _underived
    clock: Clock = msgspec.field(default_factory=SystemClock)


def derived_fields(target: Target | None, run_dirs: RunDirs) -> dict[str, Json]:
    """Return what a hook gets besides the input: where the call is made and what it touches.

    ``target`` None: what it touches cannot be said, and the call will fail unless a hook rewrites it.
    """
    fields: dict[str, Json] = {"cwd": str(run_dirs.cwd), "project": str(run_dirs.project)}
    if target is not None and target.kind != "none":
        fields["target"] = {
            "kind": target.kind,
            "scope": target.scope,
            "shown": target.shown,
            "host": target.host,
            "is_inside_roots": target.is_inside_roots,
            "is_sensitive": target.is_sensitive,
        }
    return fields
