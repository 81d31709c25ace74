"""A typed function as a step: registered for workers, called by them with values of its types (FLW-01)."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar, cast, overload

from typing_extensions import Unpack

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.tasks.functions import Isolation, StepContext, in_context, step_function
from soong.shared.engine.tasks.python_plan.building import Building, Document, building, is_pending
from soong.shared.engine.tasks.python_plan.plan_step import Fails, Keep, NodeOptions, PlanStep
from soong.shared.engine.tasks.python_plan.signature import Signature, refused

P = ParamSpec("P")
R = TypeVar("R")
Item = TypeVar("Item")
Rest = ParamSpec("Rest")
Result = TypeVar("Result")


_MODULES: Final[dict[str, str]] = {}
"""The modules of all steps of this process, each with the folder where workers find it, if that is known."""


class StepOptions(NodeOptions, total=False):
    """The options of a function."""

    isolation: Isolation


class TypedStep(PlanStep, Generic[P, R]):
    """A function as a step. A call in a plan makes a node; a call elsewhere is one of the function itself.

    The types of a call are those in a plan: an async function gives its result there. ``function`` has its own types.
    """

    options = StepOptions
    __name__: str

    def __init__(
        self, function: Callable[P, Any], options: Mapping[str, Any], *, name: str = "", is_cheap: bool = False
    ) -> None:
        self.function = function
        self.signature = Signature(function, "step")
        self.name = name or f"{module_of(function)}.{function.__qualname__}"
        super().__init__(function.__name__, {"kind": "python", "call": self.name}, options)
        functools.update_wrapper(self, function)
        self.module = module_of(function)
        isolation = options.get("isolation", "thread")
        step_function(self.name, cheap=is_cheap, isolation=isolation)(self._body())
        keep_module(self.module, inspect.getsourcefile(inspect.unwrap(function)) or "")

    @property
    def result_type(self) -> Any:
        return self.signature.result.annotation

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if building() is None:
            return cast("R", self.function(*args, **kwargs))
        given = self.signature.bound(args, kwargs)
        return cast("R", self._node(lambda plan: self._inputs(plan, given)))

    def map(
        self: Callable[Concatenate[Item, Rest], Result],
        over: Iterable[Item],
        /,
        *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> list[Result]:
        """Make one child for each item of a list: the first parameter gets the item, the others are the same for all.

        Raises: InvalidPlanError, outside of a plan, or the arguments do not fit the function.
        """
        return cast("list[Result]", cast("TypedStep[..., Result]", self)._mapped(over, args, kwargs))  # noqa: SLF001  # itself

    @overload
    def with_options(self, *, on_item_failure: Keep, **options: Unpack[StepOptions]) -> "TypedStep[P, R | None]": ...

    @overload
    def with_options(self, *, on_item_failure: Fails = ..., **options: Unpack[StepOptions]) -> "TypedStep[P, R]": ...

    def with_options(self, **options: Any) -> Any:
        """Return the step with these options in place of its own. Raises: InvalidPlanError, the option is unknown."""
        return self._changed(options)

    def _mapped(self, over: Iterable[object], args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        given = self.signature.bound((over, *args), kwargs)
        first = next(iter(self.signature.parameters))
        items, kind = given.pop(first), self.signature.types[first]
        if not is_pending(items):
            items = [item if is_pending(item) else kind.json(item) for item in over]

        def inputs(plan: Building) -> Document:
            return {"inputs": {first: plan.written(plan.item(kind.annotation)), **self._inputs(plan, given)["inputs"]}}

        return self._map_node(items, kind.annotation, inputs)

    def _inputs(self, plan: Building, given: Mapping[str, object]) -> Document:
        """Return the inputs: a value that is known now is held to its type now."""
        type_of = self.signature.type_of
        known = {name: value if is_pending(value) else type_of(name).json(value) for name, value in given.items()}
        return {"inputs": plan.written(known)}

    def _body(self) -> Callable[[JsonObject, StepContext], Any]:
        """Return what a worker calls: inputs as JSON in, the result as JSON out."""
        function: Callable[..., Any] = self.function
        signature = self.signature

        @functools.wraps(function)
        def body(inputs: JsonObject, context: StepContext) -> Json:
            with in_context(context):
                return signature.result.json(function(**signature.values(inputs)))

        @functools.wraps(function)
        async def async_body(inputs: JsonObject, context: StepContext) -> Json:
            with in_context(context):
                return signature.result.json(await function(**signature.values(inputs)))

        return async_body if inspect.iscoroutinefunction(function) else body


def step_modules() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the modules of all steps of this process, and the folders where workers find those."""
    return tuple(_MODULES), tuple(dict.fromkeys(filter(None, _MODULES.values())))


def keep_module(module: str, file: str = "") -> None:
    """Keep the module of a step, and the folder of its ``file``."""
    path = Path(file).absolute()
    depth = module.count(".") + (path.name == "__init__.py")
    _MODULES[module] = str(path.parents[depth]) if file else ""


def module_of(function: Callable[..., Any]) -> str:
    """Return the module by which workers import a function; that of a program is named by its file.

    Raises: InvalidPlanError, it is in a notebook, an interpreter or a text without a file.
    """
    return program_module(function.__module__, function.__name__)


def program_module(module: str, name: str) -> str:
    """Return the name by which workers import a module, that of the program as well. Raises: InvalidPlanError."""
    if module != "__main__":
        return module
    program = sys.modules["__main__"]
    spec = getattr(program, "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    file = getattr(program, "__file__", "")
    if Path(file).suffix != ".py":
        hint = "write it into a file NAME.py next to the notebook or program, and import it from there"
        raise refused(f"step {name!r}", "workers import modules, and this is in none", hint)
    return Path(file).stem
