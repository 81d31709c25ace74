"""Hooks: the input of one, its possible answers, and the registration of those that are written in Python (EXE-13).

A Pre hook gets the validated input with derived fields and may deny, rewrite, force an ask, add context or stop the
run; its ``allow`` replaces no consent. A Post hook may add context or replace the model's view, never the success of
the call. Hooks around a question of an MCP server to a person may answer in the person's place, refuse, or replace the
answer; none of them makes a yes of a no (MCP-01.m). Their order and their runs are
:mod:`soong.shared.tools.hooks.chain`, hooks that are programs :mod:`soong.shared.tools.hooks.command`.

A worker imports the modules named by ``SOONG_FUNCTIONS``; a module there decorates its hooks with :func:`pre_hook`,
:func:`post_hook`, :func:`elicitation_hook` and :func:`elicitation_result_hook`. They are asked in the order of
registration, before those of the configuration: the user's own programs then see the input as it will be run.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.foreign import origin_of
from soong.shared.core.identity import RunIdentity
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.timing import Clock, SystemClock
from soong.shared.core.value import Value
from soong.shared.tools.definition import NO_PROGRESS, ElicitationAnswer, Progress, RunDirs, Target, ToolDefinition
from soong.shared.tools.naming import name_matches
from soong.shared.tools.ports import effect_id_of
from soong.shared.tools.result import ContentBlock, ToolResult

DEFAULT_HOOK_TIMEOUT: Final = timedelta(seconds=60)

PreAction: TypeAlias = Literal["none", "allow", "ask", "deny", "stop"]
STRENGTH: Final[tuple[PreAction, ...]] = ("none", "allow", "ask", "deny", "stop")
"""The last of these that any hook answers wins."""

ElicitationHookAction: TypeAlias = Literal["none", "accept", "decline"]
ELICITATION_ACTIONS: Final[tuple[ElicitationHookAction, ...]] = ("none", "accept", "decline")


class HookCall(Value):
    """The input of a hook.

    ``call_input`` is the validated input with what earlier hooks made of it; it is the hook's own copy. ``derived``
    holds facts that follow from it (:func:`derived_fields`): computed again from the current input, they are not part
    of the input and are never fed back. ``progress`` shows people what a slow hook does.
    """

    identity: RunIdentity
    tool_call_id: str
    definition: ToolDefinition
    call_input: JsonObject
    run_dirs: RunDirs
    derived: JsonObject = msgspec.field(default_factory=dict)
    progress: Progress = NO_PROGRESS

    @property
    def effect_id(self) -> str:
        """The name of the call's effect, the same when the run makes it again after a crash (DAG-09)."""
        return effect_id_of(self.identity.run_id, self.tool_call_id)


class PreOutcome(Value):
    """The answer of a Pre hook. ``call_input`` replaces the input and is validated again; None leaves it as it is."""

    action: PreAction = "none"
    reason: str = ""
    call_input: JsonObject | None = None
    context: tuple[str, ...] = ()


class PostOutcome(Value):
    """The answer of a Post hook. ``content`` replaces the result's, for the model."""

    content: tuple[ContentBlock, ...] | None = None
    context: tuple[str, ...] = ()
    reason: str = ""


class ElicitationOutcome(Value):
    """The answer of a hook around a server's question.

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
    """The pipeline's services for the hooks of one call.

    ``note`` writes one event about the call and redacts it; ``derive`` computes the derived fields of an input.
    """

    note: Note = _unnoted
    derive: Derive = _underived
    clock: Clock = msgspec.field(default_factory=SystemClock)


def derived_fields(target: Target | None, run_dirs: RunDirs) -> dict[str, Json]:
    """Return the facts for a hook in addition to the input: the folders and the target of the call.

    ``target`` None: it cannot be derived, and the call will fail unless a hook rewrites it.
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


_Hook = TypeVar("_Hook")
_Pre = TypeVar("_Pre", bound=PreHook)
_Post = TypeVar("_Post", bound=PostHook)
_Elicitation = TypeVar("_Elicitation", bound=ElicitationHook)
_ElicitationResult = TypeVar("_ElicitationResult", bound=ElicitationResultHook)

REGISTERED: Final[Mapping[str, dict[str, NamedHook[Any]]]] = {
    stage: {} for stage in ("pre", "post", "elicitation", "elicitation_result")
}


def pre_hook(
    name: str, *, tools: str = "*", tags: Iterable[str] = (), timeout: timedelta = DEFAULT_HOOK_TIMEOUT
) -> Callable[[_Pre], _Pre]:
    """Register the decorated coroutine function as a Pre hook for the tools that the glob and all tags cover.
    Raises: InvalidConfigError, the name is taken by another hook, or it is not a coroutine function.
    """
    return _registering("pre", name, Matcher(tools, frozenset(tags)), timeout)


def post_hook(
    name: str, *, tools: str = "*", tags: Iterable[str] = (), timeout: timedelta = DEFAULT_HOOK_TIMEOUT
) -> Callable[[_Post], _Post]:
    """Register the decorated coroutine function as a Post hook, as :func:`pre_hook` does."""
    return _registering("post", name, Matcher(tools, frozenset(tags)), timeout)


def elicitation_hook(
    name: str, *, tools: str = "*", tags: Iterable[str] = (), timeout: timedelta = DEFAULT_HOOK_TIMEOUT
) -> Callable[[_Elicitation], _Elicitation]:
    """Register the decorated coroutine function as a hook before a person is asked what an MCP server asks.

    ``tools`` is a glob over ``mcp.<server>.elicitation/create``.
    Raises: InvalidConfigError, the name is taken by another hook, or it is not a coroutine function.
    """
    return _registering("elicitation", name, Matcher(tools, frozenset(tags)), timeout)


def elicitation_result_hook(
    name: str, *, tools: str = "*", tags: Iterable[str] = (), timeout: timedelta = DEFAULT_HOOK_TIMEOUT
) -> Callable[[_ElicitationResult], _ElicitationResult]:
    """Register the decorated coroutine function as a hook after the answer, as :func:`elicitation_hook` does."""
    return _registering("elicitation_result", name, Matcher(tools, frozenset(tags)), timeout)


def _registering(stage: str, name: str, matcher: Matcher, timeout: timedelta) -> Callable[[_Hook], _Hook]:
    def register(hook: _Hook) -> _Hook:
        given: object = hook
        if not inspect.iscoroutinefunction(given):
            raise InvalidConfigError(f"the hook {name!r} is not a coroutine function; write it with `async def`")
        for kind, own in REGISTERED.items():
            taken = own.get(name)
            # A module imported twice (by two spellings of a list) registers the same hook again.
            if taken is not None and (kind != stage or origin_of(taken.hook) != origin_of(hook)):
                raise InvalidConfigError(f"two hooks are called {name!r}: {origin_of(taken.hook)}, {origin_of(hook)}")
        REGISTERED[stage][name] = NamedHook(name, given, matcher, timeout)
        return hook

    return register
