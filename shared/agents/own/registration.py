"""Registers agents of other libraries, so that a step runs them as they are: ``agent: python:NAME`` (BYO-01, BYO-02).

Importing the module that registers is all that a worker needs. The library of an agent is found by its class; its
adapter is imported when an agent of it is registered or run.
"""

import re
from collections.abc import Collection
from importlib import import_module
from typing import Any, Final

from soong.shared.agents.own.port import OwnAgent
from soong.shared.core.errors import InvalidConfigError, SoongError
from soong.shared.core.foreign import call_foreign, shown, words_of
from soong.shared.core.installation import install_line
from soong.shared.engine.tasks.functions import Deps, RegisteredAgent, StepContext, keep_agent, resolve_agent
from soong.shared.tools.definition import NAMESPACE_TAGS

MAX_NAME_CHARS: Final = 60
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]*(?:\.[a-z0-9_][a-z0-9_-]*)*", re.ASCII)
_ADAPTERS: Final = {
    "pydantic_ai": "soong.shared.agents.own.pydantic_ai_agent",
    "agents": "soong.shared.agents.own.openai_agent",
    "langgraph": "soong.shared.agents.own.langgraph_agent",
}
"""The module of the adapter, by the package of the library."""
_EXTRAS: Final = {"agents": "openai-agents", "langgraph": "langgraph"}


def register_agent(
    name: str, agent: Any, *, deps: Deps | None = None, readonly: Collection[str] = (), origin: str = ""
) -> None:
    """Register an agent for ``agent: python:NAME``; the arguments are those of :func:`soong.step`.

    ``origin`` is where it is registered, ``file:line``: two places cannot have the same name.

    Raises: InvalidConfigError, the name is not dotted lower-case ASCII or is taken, the agent is of no known library,
    it has a part that cannot be kept, or ``readonly`` names a tool that it does not have.
    """
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME_CHARS or name.partition(".")[0] in NAMESPACE_TAGS:
        own = ", ".join(sorted(NAMESPACE_TAGS))
        raise InvalidConfigError(
            f"{name!r} is not the name of an agent; use parts of a-z, 0-9, '_' or '-' joined by dots, at most "
            f"{MAX_NAME_CHARS} characters, such as 'reviewers.bug_finder'; the first part is none of {own}"
        )
    registered = RegisteredAgent(name, agent, deps, frozenset(readonly), origin)
    own_tools = adapter_of(agent, name).check(agent)
    unknown = sorted(registered.readonly - own_tools) if own_tools is not None else []
    if unknown:
        known = ", ".join(sorted(own_tools or ())) or "none"
        raise InvalidConfigError(
            f"the agent {name!r} has no tool {unknown[0]!r} of its own; readonly can name: {known}"
        )
    if deps is None and getattr(agent, "deps_type", type(None)) not in (type(None), object):
        words = f"the agent {name!r} has a `deps_type`, and its step gives it no dependencies"
        raise InvalidConfigError(f"{words}; pass `deps=`, a function of the inputs and the StepContext")
    keep_agent(registered)


def adapter_of(agent: Any, name: str) -> Any:
    """Return the adapter's module of an agent's library. Raises: InvalidConfigError, no adapter is known for it."""
    packages = [base.__module__.partition(".")[0] for base in type(agent).__mro__]
    found = next((package for package in packages if package in _ADAPTERS), "")
    if not found:
        raise InvalidConfigError(
            f"{shown(agent)} cannot be registered as the agent {name!r}: it is not an agent of Pydantic AI, an agent "
            "of the OpenAI Agents SDK, or a compiled LangGraph graph"
        )
    try:
        return import_module(_ADAPTERS[found])
    except ImportError as error:
        hint = install_line(_EXTRAS.get(found, found))
        raise InvalidConfigError(f"the agent {name!r} cannot be served here: {error}; {hint}") from error


def open_agent(name: str, context: StepContext, model: Any = None) -> OwnAgent:
    """Return a registered agent for one run. ``model`` is the step's own, in place of the agent's; None: none.
    Raises: NotFoundError, InvalidConfigError, it cannot be run here.
    """
    registered = resolve_agent(name)
    adapter = adapter_of(registered.agent, name)
    try:
        opened: OwnAgent = call_foreign(adapter.open_agent, registered, context, model)
    except SoongError:
        raise
    except Exception as error:  # such as a missing key, in the words of the library
        raise InvalidConfigError(f"the agent {name!r} cannot be run here: {words_of(error)}") from error
    return opened
