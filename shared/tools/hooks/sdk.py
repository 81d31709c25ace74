"""Hooks written in Python: registered when their module is imported, as step functions are (EXE-13).

A worker imports the modules named by ``SOONG_FUNCTIONS``; a module there decorates its hooks with :func:`pre_hook`,
:func:`post_hook`, :func:`elicitation_hook` and :func:`elicitation_result_hook`. They are asked in the order of
registration, before those of the configuration: the user's own programs then see the input as it will be run.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, TypeVar, cast

from soong.shared.core.errors import InvalidConfigError
from soong.shared.tools.hooks.chain import (
    DEFAULT_HOOK_TIMEOUT,
    AnyHook,
    ElicitationHook,
    ElicitationResultHook,
    Hooks,
    Matcher,
    NamedHook,
    PostHook,
    PreHook,
)

_Hook = TypeVar("_Hook")
_AnyHook = TypeVar("_AnyHook", bound=AnyHook)
_Pre = TypeVar("_Pre", bound=PreHook)
_Post = TypeVar("_Post", bound=PostHook)
_Elicitation = TypeVar("_Elicitation", bound=ElicitationHook)
_ElicitationResult = TypeVar("_ElicitationResult", bound=ElicitationResultHook)

_PRE: dict[str, NamedHook[PreHook]] = {}
_POST: dict[str, NamedHook[PostHook]] = {}
_ELICITATION: dict[str, NamedHook[ElicitationHook]] = {}
_ELICITATION_RESULT: dict[str, NamedHook[ElicitationResultHook]] = {}


def pre_hook(
    name: str, *, tools: str = "*", tags: Iterable[str] = (), timeout: timedelta = DEFAULT_HOOK_TIMEOUT
) -> Callable[[_Pre], _Pre]:
    """Register the decorated coroutine function as a Pre hook for the tools that the glob and all tags cover.

    Raises:
        InvalidConfigError: the name is taken by another hook, or it is not a coroutine function.
    """
    return _registering(_PRE, name, Matcher(tools, frozenset(tags)), timeout)


def post_hook(
    name: str, *, tools: str = "*", tags: Iterable[str] = (), timeout: timedelta = DEFAULT_HOOK_TIMEOUT
) -> Callable[[_Post], _Post]:
    """Register the decorated coroutine function as a Post hook, as :func:`pre_hook` does."""
    return _registering(_POST, name, Matcher(tools, frozenset(tags)), timeout)


def elicitation_hook(
    name: str, *, tools: str = "*", tags: Iterable[str] = (), timeout: timedelta = DEFAULT_HOOK_TIMEOUT
) -> Callable[[_Elicitation], _Elicitation]:
    """Register the decorated coroutine function as a hook before a person is asked what an MCP server asks.

    ``tools`` is a glob over ``mcp.<server>.elicitation/create``.

    Raises:
        InvalidConfigError: the name is taken by another hook, or it is not a coroutine function.
    """
    return _registering(_ELICITATION, name, Matcher(tools, frozenset(tags)), timeout)


def elicitation_result_hook(
    name: str, *, tools: str = "*", tags: Iterable[str] = (), timeout: timedelta = DEFAULT_HOOK_TIMEOUT
) -> Callable[[_ElicitationResult], _ElicitationResult]:
    """Register the decorated coroutine function as a hook after the answer, as :func:`elicitation_hook` does."""
    return _registering(_ELICITATION_RESULT, name, Matcher(tools, frozenset(tags)), timeout)


def registered_hooks() -> Hooks:
    """Return what is registered in this process now."""
    return Hooks(
        tuple(_PRE.values()),
        tuple(_POST.values()),
        tuple(_ELICITATION.values()),
        tuple(_ELICITATION_RESULT.values()),
    )


def _registering(
    own: dict[str, NamedHook[_AnyHook]], name: str, matcher: Matcher, timeout: timedelta
) -> Callable[[_Hook], _Hook]:
    def register(hook: _Hook) -> _Hook:
        _check(name, hook, own)
        own[name] = NamedHook(name, cast(Any, hook), matcher, timeout)
        return hook

    return register


def _check(name: str, hook: object, own: Mapping[str, NamedHook[AnyHook]]) -> None:
    """Refuse a name that another hook has, of whatever kind. Raises: InvalidConfigError."""
    if not inspect.iscoroutinefunction(hook):
        raise InvalidConfigError(f"the hook {name!r} is not a coroutine function; write it with `async def`")
    kinds: tuple[Mapping[str, NamedHook[AnyHook]], ...] = (_PRE, _POST, _ELICITATION, _ELICITATION_RESULT)
    for kind in kinds:
        taken = kind.get(name)
        # A module imported twice (by two spellings of a list) registers the same hook again.
        if taken is not None and (kind is not own or _origin(taken.hook) != _origin(hook)):
            raise InvalidConfigError(f"two hooks are called {name!r}: {_origin(taken.hook)}, {_origin(hook)}")


def _origin(hook: object) -> str:
    return f"{getattr(hook, '__module__', '')}.{getattr(hook, '__qualname__', type(hook).__qualname__)}"
