"""Hooks written in Python: registered when their module is imported, as step functions are (EXE-13).

A worker imports the modules named by ``SOONG_FUNCTIONS``; a module there decorates its hooks with :func:`pre_hook` and
:func:`post_hook`. They are asked in the order of registration, before those of the configuration: the user's own
programs then see the input as it will be run.
"""

import inspect
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TypeVar

from soong.shared.core.errors import InvalidConfigError
from soong.shared.tools.hooks.chain import (
    DEFAULT_HOOK_TIMEOUT,
    Hooks,
    Matcher,
    NamedPostHook,
    NamedPreHook,
    PostHook,
    PreHook,
)

_Pre = TypeVar("_Pre", bound=PreHook)
_Post = TypeVar("_Post", bound=PostHook)

_PRE: dict[str, NamedPreHook] = {}
_POST: dict[str, NamedPostHook] = {}


def pre_hook(
    name: str, *, tools: str = "*", tags: Iterable[str] = (), timeout: timedelta = DEFAULT_HOOK_TIMEOUT
) -> Callable[[_Pre], _Pre]:
    """Register the decorated coroutine function as a Pre hook for the tools that the glob and all tags cover.

    Raises:
        InvalidConfigError: the name is taken by another hook, or it is not a coroutine function.
    """

    def register(hook: _Pre) -> _Pre:
        _check(name, hook, _PRE.get(name), _POST.get(name))
        _PRE[name] = NamedPreHook(name, hook, Matcher(tools, frozenset(tags)), timeout)
        return hook

    return register


def post_hook(
    name: str, *, tools: str = "*", tags: Iterable[str] = (), timeout: timedelta = DEFAULT_HOOK_TIMEOUT
) -> Callable[[_Post], _Post]:
    """Register the decorated coroutine function as a Post hook, as :func:`pre_hook` does."""

    def register(hook: _Post) -> _Post:
        _check(name, hook, _POST.get(name), _PRE.get(name))
        _POST[name] = NamedPostHook(name, hook, Matcher(tools, frozenset(tags)), timeout)
        return hook

    return register


def registered_hooks() -> Hooks:
    """Return what is registered in this process now."""
    return Hooks(tuple(_PRE.values()), tuple(_POST.values()))


def _check(
    name: str,
    hook: object,
    same: NamedPreHook | NamedPostHook | None,
    other: NamedPreHook | NamedPostHook | None,
) -> None:
    if not inspect.iscoroutinefunction(hook):
        raise InvalidConfigError(f"the hook {name!r} is not a coroutine function; write it with `async def`")
    # A module imported twice (by two spellings of a list) registers the same hook again.
    taken = other or (same if same is not None and _origin(same.hook) != _origin(hook) else None)
    if taken is not None:
        raise InvalidConfigError(f"two hooks are called {name!r}: {_origin(taken.hook)}, {_origin(hook)}")


def _origin(hook: object) -> str:
    return f"{getattr(hook, '__module__', '')}.{getattr(hook, '__qualname__', type(hook).__qualname__)}"
