"""Hooks written in Python: registered when their module is imported, as step functions are (EXE-13).

A worker imports the modules named by ``SOONG_FUNCTIONS``; a module there decorates its hooks with :func:`pre_hook`,
:func:`post_hook`, :func:`elicitation_hook` and :func:`elicitation_result_hook`. They are asked in the order of
registration, before those of the configuration: the user's own programs then see the input as it will be run.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, TypeVar

from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.foreign import origin_of
from soong.shared.tools.hooks.chain import Hooks
from soong.shared.tools.hooks.hook import (
    DEFAULT_HOOK_TIMEOUT,
    ElicitationHook,
    ElicitationResultHook,
    Matcher,
    NamedHook,
    PostHook,
    PreHook,
)

_Hook = TypeVar("_Hook")
_Pre = TypeVar("_Pre", bound=PreHook)
_Post = TypeVar("_Post", bound=PostHook)
_Elicitation = TypeVar("_Elicitation", bound=ElicitationHook)
_ElicitationResult = TypeVar("_ElicitationResult", bound=ElicitationResultHook)

_REGISTERED: Final[Mapping[str, dict[str, NamedHook[Any]]]] = {
    stage: {} for stage in ("pre", "post", "elicitation", "elicitation_result")
}


def pre_hook(
    name: str, *, tools: str = "*", tags: Iterable[str] = (), timeout: timedelta = DEFAULT_HOOK_TIMEOUT
) -> Callable[[_Pre], _Pre]:
    """Register the decorated coroutine function as a Pre hook for the tools that the glob and all tags cover.

    Raises:
        InvalidConfigError: the name is taken by another hook, or it is not a coroutine function.
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

    Raises:
        InvalidConfigError: the name is taken by another hook, or it is not a coroutine function.
    """
    return _registering("elicitation", name, Matcher(tools, frozenset(tags)), timeout)


def elicitation_result_hook(
    name: str, *, tools: str = "*", tags: Iterable[str] = (), timeout: timedelta = DEFAULT_HOOK_TIMEOUT
) -> Callable[[_ElicitationResult], _ElicitationResult]:
    """Register the decorated coroutine function as a hook after the answer, as :func:`elicitation_hook` does."""
    return _registering("elicitation_result", name, Matcher(tools, frozenset(tags)), timeout)


def registered_hooks() -> Hooks:
    """Return what is registered in this process now."""
    return Hooks(**{stage: tuple(hooks.values()) for stage, hooks in _REGISTERED.items()})


def _registering(stage: str, name: str, matcher: Matcher, timeout: timedelta) -> Callable[[_Hook], _Hook]:
    def register(hook: _Hook) -> _Hook:
        given: object = hook
        if not inspect.iscoroutinefunction(given):
            raise InvalidConfigError(f"the hook {name!r} is not a coroutine function; write it with `async def`")
        for kind, own in _REGISTERED.items():
            taken = own.get(name)
            # A module imported twice (by two spellings of a list) registers the same hook again.
            if taken is not None and (kind != stage or origin_of(taken.hook) != origin_of(hook)):
                raise InvalidConfigError(f"two hooks are called {name!r}: {origin_of(taken.hook)}, {origin_of(hook)}")
        _REGISTERED[stage][name] = NamedHook(name, given, matcher, timeout)
        return hook

    return register
