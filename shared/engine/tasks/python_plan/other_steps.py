"""The other steps of plans in Python: agents, and tasks of Celery apps."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, cast, overload

from typing_extensions import Unpack

from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.python_plan.building import Building, Document
from soong.shared.engine.tasks.python_plan.function_step import keep_module
from soong.shared.engine.tasks.python_plan.plan_step import Fails, Keep, NodeOptions, PlanStep
from soong.shared.engine.tasks.python_plan.signature import Typed, refused
from soong.shared.tools.foreign_schema import from_json_schema, output_schema

R = TypeVar("R")


class AgentOptions(NodeOptions, total=False):
    """The options of an agent. ``tools`` are its ``allowed_tools``, ``agent`` is the id of its definition."""

    agent: str
    model: str
    settings: Mapping[str, Json]
    tools: Sequence[str]
    permissions: Mapping[str, Json]
    claim: Literal["assigned", "pull"]
    script: str


class CeleryOptions(NodeOptions, total=False):
    """The options of a task of a Celery app."""

    app: str
    queue: str
    terminate: bool


class NamedInputs(PlanStep, Generic[R]):
    """A step whose inputs are named where it is called."""

    def __init__(self, name: str, work: Document, output: Any, options: Mapping[str, Any]) -> None:
        super().__init__(name, work, options)
        self._output = output

    @property
    def result_type(self) -> Any:
        return self._output

    takes_args = False
    """Whether it can be called without names."""

    def __call__(self, *args: object, **inputs: object) -> R:
        """Make a node with these inputs. Raises: InvalidPlanError, outside of a plan, or an input has no name."""
        if args and not self.takes_args:
            hint = f"give it by name, such as {self._name}(prompt=…)"
            raise refused(f"step {self._name!r}", "an input of an agent has a name", hint)
        return cast("R", self._node(lambda plan: _inputs(plan, inputs, args)))

    def map(self, over: Iterable[object], /, item: str = "item", **inputs: object) -> list[R]:
        """Make one child for each item of a list, which is its input ``item``; the others are the same for all.

        Raises: InvalidPlanError, outside of a plan.
        """
        made = self._map_node(over, Any, lambda plan: _inputs(plan, {item: plan.item(Any), **inputs}))
        return cast("list[R]", made)


def _inputs(plan: Building, inputs: Mapping[str, object], args: Sequence[object] = ()) -> Document:
    given = {"args": list(args), "inputs": inputs}
    return {name: plan.written(value) for name, value in given.items() if value}


class AgentNode(NamedInputs[R]):
    """An agent as a step."""

    options = AgentOptions

    @overload
    def with_options(self, *, on_item_failure: Keep, **options: Unpack[AgentOptions]) -> "AgentNode[R | None]": ...

    @overload
    def with_options(self, *, on_item_failure: Fails = ..., **options: Unpack[AgentOptions]) -> "AgentNode[R]": ...

    def with_options(self, **options: Any) -> Any:
        """Return the step with these options in place of its own. Raises: InvalidPlanError, the option is unknown."""
        return self._changed(options)


class CeleryNode(NamedInputs[R]):
    """A task of a Celery app as a step."""

    options = CeleryOptions
    takes_args = True

    @overload
    def with_options(self, *, on_item_failure: Keep, **options: Unpack[CeleryOptions]) -> "CeleryNode[R | None]": ...

    @overload
    def with_options(self, *, on_item_failure: Fails = ..., **options: Unpack[CeleryOptions]) -> "CeleryNode[R]": ...

    def with_options(self, **options: Any) -> Any:
        """Return the step with these options in place of its own. Raises: InvalidPlanError, the option is unknown."""
        return self._changed(options)


def agent_step(instructions: str, *, output: type[R] = str, **options: Unpack[AgentOptions]) -> AgentNode[R]:  # type: ignore[assignment]
    """Make a step of an agent.

    ``output`` is the type of its answer: a model, a dataclass or a mapping; ``str`` is text.

    It is called with inputs by name, which its model reads as JSON after the instructions: ``review(path=file)``. In a
    plan, the instructions can contain results: ``agent_step(f"Explain {finding.title}")()``.

    Raises: InvalidPlanError, an option or the type is wrong.
    """
    work: Document = {"kind": "agent", "instructions": instructions}
    if output is not str:
        schema = from_json_schema(Typed(output, "the output of agent_step").schema, tool="agent_step")
        if schema.get("type") != "object":
            hint = "name the values in a model: class Findings(BaseModel): findings: list[Finding]"
            raise refused("agent_step", "the output of an agent is an object or text", hint)
        work["output"] = schema
    return AgentNode("agent", work, output, options)


def celery_step(task: str, *, output: type[R] = object, **options: Unpack[CeleryOptions]) -> CeleryNode[R]:  # type: ignore[assignment]
    """Make a step of a task of a Celery app, by the task's name. ``app`` is where a worker imports the app from.

    ``output`` is the type of its result, which is checked. It is called with the task's arguments;
    ``map(over, item="sku")`` gives each item by that name.

    Raises: InvalidPlanError, an option is wrong.
    """
    work: Document = {"kind": "celery", "call": task}
    if schema := output_schema(Typed(output, "the output of celery_step").schema):  # of some types it says less
        work["output"] = schema
    node: CeleryNode[R] = CeleryNode(task.rpartition(".")[2], work, output, options)
    if module := options.get("app", "").partition(":")[0]:
        node.module = module
        keep_module(module)
    return node
