"""The types of a function's parameters and result, held to where a plan is made and where a worker calls it (FLW-01).

The types are those of the annotations: Pydantic models, dataclasses, containers, literals. A parameter without one
takes any JSON. Errors name the parameter and never repeat a value.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final, get_type_hints

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from soong.shared.core.errors import InvalidPlanError, Problem, UsageError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.tasks.plan.plan import INPUT_TYPES, InputType

MAX_FAULTS: Final = 10
_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def refused(place: str, problem: str, hint: str) -> InvalidPlanError:
    """Return the error for one thing that a plan in Python does wrong."""
    return InvalidPlanError([Problem(place, problem, hint)])


class Typed:
    """A type by its adapter: JSON in, JSON out."""

    def __init__(self, annotation: Any, place: str) -> None:
        self.annotation, self._place = annotation, place

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        try:
            return TypeAdapter(self.annotation)
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            words = str(error).partition("\n")[0]
            raise refused(self._place, f"its type cannot be written as JSON: {words}", "choose another type") from None

    def value(self, given: object) -> Any:
        """Return a value of the type; JSON is read as it. Raises: UsageError, names the place in the value."""
        try:
            return self._adapter.validate_python(given)
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)[:MAX_FAULTS]
            words = [".".join(map(str, one["loc"])) + (": " if one["loc"] else "") + one["msg"] for one in found]
            raise UsageError(f"{self._place}: {'; '.join(words)}") from None

    def json(self, given: object) -> Json:
        """Return a value of the type as JSON. Raises: UsageError."""
        value = self.value(given)
        try:
            written: Json = self._adapter.dump_python(value, mode="json", by_alias=True)
        except PydanticSerializationError as error:
            raise UsageError(f"{self._place}: the value is not JSON: {error}") from None
        return written

    @property
    def schema(self) -> dict[str, Any]:
        return self._adapter.json_schema()

    def input_type(self) -> InputType:
        """Return the type of a plan's input that takes it. Raises: InvalidPlanError, several do."""
        schema = self.schema
        branches = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
        found = {_type_of(branch, schema) for branch in branches}
        kind = found.pop() if len(found) == 1 else None
        if kind is None:
            hint = f"annotate it with a type that is one of {', '.join(INPUT_TYPES)}"
            raise refused(self._place, "an input of a plan is of one type of JSON", hint)
        return kind


def _type_of(schema: Mapping[str, Any], document: Mapping[str, Any]) -> InputType | None:
    if "$ref" in schema:
        return _type_of(document["$defs"][schema["$ref"].rpartition("/")[2]], document)
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if schema.get("type") is None and values and all(isinstance(value, str) for value in values):
        return "string"
    return next((name for name in INPUT_TYPES if name == schema.get("type")), None)


class Signature:
    """The parameters and the result of one function.

    Raises: InvalidPlanError, it takes positional arguments without a name, or an annotation cannot be read.
    """

    def __init__(self, function: Callable[..., Any], kind: str) -> None:
        self.name = getattr(function, "__name__", "function")
        self._place = f"{kind} {self.name!r}"
        self._function = function
        self._signature = inspect.signature(function)
        self._rest = next((one.name for one in self.parameters.values() if one.kind is one.VAR_KEYWORD), "")
        unnamed = [one.name for one in self.parameters.values() if one.kind not in _NAMED and one.name != self._rest]
        if unnamed:
            hint = "give each parameter a name of its own: values travel by name"
            raise refused(self._place, f"the parameter {unnamed[0]!r} takes values without a name", hint)

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        return self._signature.parameters

    @cached_property
    def _hints(self) -> Mapping[str, Any]:
        try:
            return get_type_hints(self._function, include_extras=True)
        except (NameError, TypeError) as error:
            hint = "import the name at the top of the module, outside of TYPE_CHECKING"
            raise refused(self._place, f"an annotation cannot be read: {error}", hint) from None

    @cached_property
    def types(self) -> Mapping[str, Typed]:
        """The type of each parameter."""
        return {name: Typed(self._hints.get(name, Any), f"{self._place}: {name}") for name in self.parameters}

    def type_of(self, name: str) -> Typed:
        """Return the type of a parameter, or of a name that ``**`` takes."""
        return self.types[name if name in self.types else self._rest]

    @cached_property
    def result(self) -> Typed:
        return Typed(self._hints.get("return", Any), f"{self._place}: its result")

    def bound(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
        """Return the arguments of a call by name, as they were given. Raises: InvalidPlanError."""
        try:
            given = dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            shown = f"{self.name}{self._signature}"
            raise refused(self._place, str(error), f"call it as {shown}") from None
        rest: Mapping[str, object] = given.pop(self._rest, {})
        return {**given, **rest}

    def values(self, inputs: JsonObject) -> dict[str, Any]:
        """Return the arguments that a step's inputs stand for. Raises: UsageError, names each parameter."""
        known = [*self.parameters, *(inputs if self._rest else ())]
        problems = [f"{self._place}: it has no parameter {name!r}" for name in inputs if name not in known]
        problems += [
            f"{self._place}: {name}: it is required and not given"
            for name, one in self.parameters.items()
            if name not in inputs and one.default is one.empty and name != self._rest
        ]
        values: dict[str, Any] = {}
        for name, given in inputs.items():
            try:
                if name in known:
                    values[name] = self.type_of(name).value(given)
            except UsageError as error:
                problems.append(str(error))
        if problems:
            raise UsageError("; ".join(problems[:MAX_FAULTS]))
        return values
