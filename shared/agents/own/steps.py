"""``step``: a function, or an agent of another library, becomes a step of plans in Python (FLW-01, BYO-01)."""

import sys
from collections.abc import Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from typing_extensions import Unpack

from soong.shared.agents.own.registration import register_agent
from soong.shared.engine.tasks.functions import Deps
from soong.shared.engine.tasks.plan.plan import OWN_PREFIX
from soong.shared.engine.tasks.python_plan.function_step import StepOptions, TypedStep, keep_module, program_module
from soong.shared.engine.tasks.python_plan.other_steps import AgentNode, AgentOptions
from soong.shared.engine.tasks.python_plan.signature import refused

if TYPE_CHECKING:
    from pydantic_ai.agent import AbstractAgent

P = ParamSpec("P")
R = TypeVar("R")


class _StepDecorator(Protocol):
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> TypedStep[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> TypedStep[P, R]: ...


@overload
def step(function: Callable[P, Coroutine[Any, Any, R]], /) -> TypedStep[P, R]: ...


@overload
def step(function: Callable[P, R], /) -> TypedStep[P, R]: ...


@overload
def step(*, name: str = "", cheap: bool = False, **options: Unpack[StepOptions]) -> _StepDecorator: ...


@overload
def step(
    agent: "AbstractAgent[Any, R]",
    /,
    *,
    name: str,
    deps: Deps | None = None,
    readonly: Collection[str] = (),
    **options: Unpack[AgentOptions],
) -> AgentNode[R]: ...


@overload
def step(
    agent: object,
    /,
    *,
    name: str,
    deps: Deps | None = None,
    readonly: Collection[str] = (),
    **options: Unpack[AgentOptions],
) -> AgentNode[Any]: ...


def step(work: Any = None, /, *, name: str = "", **options: Any) -> Any:
    """Make a step of a function, or of an agent of Pydantic AI, the OpenAI Agents SDK or LangGraph.

    A function is sync or async. Its parameters and its result are typed: models, dataclasses, containers, literals. In
    a function with ``@plan`` a call makes a node; elsewhere it is a call of the function. A ``cheap`` function needs
    microseconds and is called on the event loop of its worker. ``name`` is what a plan in YAML calls, by default
    ``module.function``.

    An agent is called with inputs by name. The text input ``prompt`` is its prompt; without one, all inputs as JSON
    are. Its ``name`` is what plans in YAML call ``python:NAME``, and a part before the names of its own tools, such
    as ``reviewers.bug_finder``. ``deps`` is called with the step's inputs and its :class:`StepContext`, once in
    each process that takes the run up; it returns the agent's dependencies (the ``context`` of the OpenAI Agents
    SDK and of a graph), an awaitable of them, or an asynchronous context manager. ``readonly`` names its own tools
    that change nothing: they are not asked for, and run again when a crash cut them off. All other tools of its own
    are writes, and ask.

    ``options`` are the fields of a step in a plan.

    Raises: InvalidPlanError, an option or the signature is wrong; InvalidConfigError, the name is taken, or the agent
    has a part that cannot be kept.
    """
    is_cheap = bool(options.pop("cheap", False))
    if work is None:
        return lambda function: TypedStep(function, options, name=name, is_cheap=is_cheap)
    if callable(work) and hasattr(work, "__code__"):
        return TypedStep(work, options, name=name, is_cheap=is_cheap)
    if not name:
        hint = 'name it: step(reviewer, name="team.reviewer")'
        raise refused("step", f"an agent of {type(work).__module__.partition('.')[0]} has no name here", hint)
    caller = sys._getframe(1)  # noqa: SLF001  # the module that workers import for it
    own = {option: options.pop(option) for option in ("deps", "readonly") if option in options}
    register_agent(name, work, **own, origin=f"{caller.f_code.co_filename}:{caller.f_lineno}")
    fields = {"kind": "agent", "agent": f"{OWN_PREFIX}{name}"}
    given = getattr(work, "output_type", Any)
    given = getattr(given, "output_type", given)  # the SDK's own wrapper
    output = given if isinstance(given, type) and not getattr(work, "handoffs", ()) else Any
    node: AgentNode[Any] = AgentNode(name.rpartition(".")[2], fields, output, options)
    node.module = program_module(caller.f_globals["__name__"], name)
    keep_module(node.module, caller.f_code.co_filename)
    return node
