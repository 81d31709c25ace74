"""A plan that is a function: called once, with references in the place of its inputs, to find its steps (FLW-01)."""

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final

from soong.shared.core.errors import InvalidPlanError, Problem
from soong.shared.core.foreign import place_of, words_of
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.tasks.problems import Unknown
from soong.shared.engine.tasks.python_plan.building import Building, Document, building, built_in
from soong.shared.engine.tasks.python_plan.function_step import module_of
from soong.shared.engine.tasks.python_plan.signature import Signature, refused

_PLANS: Final[dict[str, "PlanDefinition"]] = {}


class PlanDefinition:
    """A plan by its function. ``fields`` are those of the plan's document: ``title``, ``limits``, ``tags``.

    ``name`` is that of the function, ``module`` the one by which workers import it.
    """

    def __init__(self, function: Callable[..., Any], fields: Mapping[str, Json]) -> None:
        self.function = function
        self.signature = Signature(function, "plan")
        self.name, self.module = function.__name__, module_of(function)
        self._fields = fields
        if inspect.iscoroutinefunction(function):
            raise refused(f"plan {self.name!r}", "it is async", "write `def`: it only says which steps there are")
        _PLANS[f"{self.module}.{self.name}"] = self

    @cached_property
    def document(self) -> JsonObject:
        """The plan as a document, as a YAML file has it.

        Raises: InvalidPlanError, the function does what a plan cannot; what the function raises.
        """
        names = {id(value): name for name, value in vars(inspect.getmodule(self.function) or object).items()}
        plan = Building(names)
        types = self.signature.types
        with built_in(plan):
            given = self.function(**{name: plan.input(name, one.annotation) for name, one in types.items()})
            output = plan.written(given)
        title = self._fields.get("title") or (inspect.getdoc(self.function) or self.name).partition("\n")[0].rstrip(".")
        document: Document = {"title": title, **{name: value for name, value in self._fields.items() if value}}
        if types:
            document["inputs"] = {name: self._input(name) for name in types}
        document |= {"modules": [*plan.modules]} if plan.modules else {}
        if not plan.steps:
            raise refused(f"plan {self.name!r}", "it calls no step", "call at least one step in it")
        return {**document, **({} if output is None else {"output": output}), "steps": plan.steps}

    def inputs(self, given: Mapping[str, object]) -> dict[str, Json]:
        """Return the inputs that the arguments of a run are. Raises: UsageError, names the parameter."""
        bound = self.signature.bound((), given)
        return {name: self.signature.type_of(name).json(value) for name, value in bound.items()}

    def read(self, output: Json) -> Any:
        """Return the output of a task of the plan as a value of the type that the plan gives. Raises: UsageError."""
        return self.signature.result.value(output)

    def _input(self, name: str) -> Document:
        one, typed = self.signature.parameters[name], self.signature.types[name]
        shape: Document = {"type": typed.input_type()}
        if about := typed.schema.get("description"):
            shape["description"] = about
        return shape if one.default is one.empty else {**shape, "default": typed.json(one.default)}

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Add the steps to the plan that is being built; elsewhere a plan is run. Raises: InvalidPlanError."""
        if building() is None:
            raise refused(f"plan {self.name!r}", "it is called", f"run it: {self.name}.run(…)")
        return self.function(*args, **kwargs)


def document_of(module: str, name: str = "") -> JsonObject:
    """Return the document of a plan of an imported module; without a name of its only one.

    Raises: InvalidPlanError, the plan is unknown, or its function raises.
    """
    known = {one.name: one for one in _PLANS.values() if one.module == module}
    file = f"{module.rpartition('.')[2]}.py"
    if not known:
        raise refused(file, "it has no plan", "decorate a function with @plan")
    if not name and len(known) > 1:
        raise refused(file, f"it has {len(known)} plans", f"name one: {file}:{next(iter(known))}")
    found = known.get(name) if name else next(iter(known.values()))
    if found is None:
        raise refused(file, f"it has no plan {name!r}", Unknown(name, known).text())
    try:
        return found.document
    except InvalidPlanError as error:
        place = place_of(error, found.function.__code__.co_filename).partition(", raised")[0]
        raise InvalidPlanError(
            [Problem(f"{place} {one.place}".strip(), one.problem, one.hint) for one in error.problems]
        ) from error
    except Exception as error:
        raise refused(
            place_of(error) or file, f"the plan {found.name!r} raised {words_of(error)}", "fix the function"
        ) from error
