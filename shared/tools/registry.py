"""The registry: every tool of a process, once, under its canonical name (REG-01, REG-02, REG-06, REG-09, REG-10).

Owns what makes a definition acceptable. Leaves which of them a run may use to :mod:`soong.shared.tools.surface`.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, get_type_hints

from msgspec.structs import replace

from soong.shared.core.errors import InvalidJsonError, InvalidToolError
from soong.shared.core.foreign import await_foreign, call_foreign
from soong.shared.core.jsontext import Json, JsonObject, digest
from soong.shared.core.log_lines import note_raised
from soong.shared.core.step_work import call_in_task, call_in_thread
from soong.shared.tools.definition import (
    NAMESPACE_TAGS,
    Handler,
    HandlerOutput,
    Permission,
    ToolAdapter,
    ToolContext,
    ToolDefinition,
    shaped,
)
from soong.shared.tools.foreign_schema import from_pydantic
from soong.shared.tools.naming import check_alias, check_name
from soong.shared.tools.result import ToolError
from soong.shared.tools.schema import check_schema, close

if TYPE_CHECKING:
    from pydantic import BaseModel


MAX_TIMEOUT = timedelta(milliseconds=600_000)

_TAG = re.compile(r"[a-z0-9][a-z0-9_-]*", re.ASCII)

Function: TypeAlias = Callable[..., Any]
F = TypeVar("F", bound=Function)


class ToolRegistry:
    """Tools by canonical name. Registering the same name twice is an error.

    Filled at start, read from then on; only a source that changes while the process runs is removed and added again.
    """

    def __init__(self, *, max_timeout: timedelta = MAX_TIMEOUT) -> None:
        self.max_timeout = max_timeout
        self._tools: dict[str, ToolDefinition] = {}
        self._ordered: tuple[ToolDefinition, ...] = ()
        self._builtin: set[str] = set()
        self._sources: dict[str, str] = {}
        self._aliases: dict[str, str] = {}
        self._closers: list[Callable[[], Awaitable[None]]] = []

    def register(self, definition: ToolDefinition, *, is_builtin: bool = False, source: str = "") -> ToolDefinition:
        """Check a definition and keep it; returns it as kept.

        The kept definition has an input schema that refuses unknown fields, and the tags that rules may count on: its
        permission and, in a namespace of ours, the namespace (REG-08). Built-in tools follow a lower
        ``tools.max_timeout_ms``; a tool from elsewhere that asks for more is refused (EXE-08). ``source`` names its
        origin, for people (:meth:`source_of`).
        Raises: InvalidToolError, names what is wrong with it.
        """
        definition = shaped(definition)
        if is_builtin and definition.timeout is not None:
            definition = replace(definition, timeout=min(definition.timeout, self.max_timeout))
        self._check(definition)
        namespace = definition.name.partition(".")[0]
        tags = definition.tags | {definition.permission.value} | ({namespace} & NAMESPACE_TAGS)
        kept = replace(definition, input_schema=close(definition.input_schema), tags=tags)
        self._tools[kept.name] = kept
        self._aliases.update(dict.fromkeys(kept.aliases, kept.name))
        if is_builtin:
            self._builtin.add(kept.name)
        self._ordered = ()
        self._sources[kept.name] = source or ("built-in" if is_builtin else "program")
        return kept

    def register_tool(
        self,
        name: str,
        description: str,
        input_schema: "JsonObject | type[BaseModel]",
        handler: Handler,
        *,
        permission: Permission = Permission.WRITE,
        tags: Iterable[str] = (),
        **more: Any,
    ) -> ToolDefinition:
        """Register from parts; ``more`` are more fields of :class:`ToolDefinition`.
        Raises: InvalidToolError, as :meth:`register`.
        """
        if isinstance(input_schema, type):
            more["metadata"] = _with_native(input_schema, more)
        schema = from_pydantic(input_schema, tool=name) if isinstance(input_schema, type) else input_schema
        definition = ToolDefinition(name, description, schema, handler, permission, frozenset(tags), **more)
        return self.register(definition)

    def tool(self, name: str, **more: Any) -> Callable[[F], F]:
        """Register a function, sync or async, by its annotations; the docstring is the description.

        A first parameter annotated as :class:`ToolContext` gets the context. One remaining parameter that is a
        Pydantic model takes the full input; otherwise each parameter is a field. ``more`` are fields of
        :class:`ToolDefinition`.
        Raises: InvalidToolError, the function cannot be said as a schema.
        """
        return _adding(self.register, name, more)

    def add(self, adapter: ToolAdapter, *, is_builtin: bool = False, source: str = "") -> None:
        """Register all tools of a source.

        Raises:
            InvalidToolError: one of them is refused; those before it are kept.
        """
        for definition in adapter.tools():
            self.register(definition, is_builtin=is_builtin, source=source)

    def on_close(self, closer: Callable[[], Awaitable[None]]) -> None:
        """Take what lets go of something that a source's tools hold open: connections, programs."""
        self._closers.append(closer)

    async def close(self) -> None:
        """Let go of what the tools hold open; the process does that when its last call has ended."""
        for closer in self._closers:
            await closer()

    def remove(self, source: str) -> None:
        """Forget all tools of a source; runs that have begun keep theirs."""
        gone = [name for name, known in self._sources.items() if known == source]
        for name in gone:
            for alias in self._tools[name].aliases:
                del self._aliases[alias]
            del self._tools[name], self._sources[name]
            self._builtin.discard(name)
        self._ordered = ()

    def get(self, name: str) -> ToolDefinition | None:
        """Return a tool by canonical name or alias."""
        return self._tools.get(self._aliases.get(name, name))

    def source_of(self, name: str) -> str:
        """Return where a registered tool comes from: ``built-in``, a module, a file, or the program itself.
        Raises: KeyError, no tool has this canonical name.
        """
        return self._sources[name]

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """Return all tools in the order models see them: built-ins first, then by name."""
        if not self._ordered:
            tools = sorted(self._tools.values(), key=lambda tool: (tool.name not in self._builtin, tool.name))
            self._ordered = tuple(tools)
        return self._ordered

    def select(self, names: Sequence[str]) -> tuple[ToolDefinition, ...]:
        """Return the named tools that there still are, in the given order."""
        return tuple(self._tools[name] for name in names if name in self._tools)

    def _check(self, definition: ToolDefinition) -> None:
        check_name(definition.name)
        self._check_free(definition)
        if not definition.description.strip():
            raise InvalidToolError(definition.name, "has no description; a model chooses a tool by it")
        check_schema(definition.input_schema, tool=definition.name)
        if definition.output_schema is not None:
            check_schema(definition.output_schema, tool=definition.name, part="output_schema")
        if definition.timeout is not None and not timedelta(0) < definition.timeout <= self.max_timeout:
            limit = self.max_timeout // timedelta(milliseconds=1)
            raise InvalidToolError(definition.name, f"its timeout must be above 0 and at most {limit} ms")
        odd = sorted(tag for tag in definition.tags if not _TAG.fullmatch(tag))
        if odd:
            raise InvalidToolError(definition.name, f"the tag {odd[0]!r} is not made of a-z, 0-9, '_' and '-'")
        other = Permission.READONLY if definition.permission is Permission.WRITE else Permission.WRITE
        if other.value in definition.tags:
            problem = f"is tagged {other.value!r} and declares permission {definition.permission.value!r}; say one"
            raise InvalidToolError(definition.name, problem)
        try:
            digest(_promise(definition))
        except InvalidJsonError as error:
            raise InvalidToolError(definition.name, f"its schemas cannot be said in JSON: {error}") from error

    def _check_free(self, definition: ToolDefinition) -> None:
        for name in (definition.name, *definition.aliases):
            if name in self._tools or name in self._aliases:
                owner = self._aliases.get(name, name)
                raise InvalidToolError(definition.name, f"the name {name!r} is taken by tool {owner!r}; choose another")
        for alias in definition.aliases:
            check_alias(definition.name, alias)
        if len({definition.name, *definition.aliases}) <= len(definition.aliases):
            raise InvalidToolError(definition.name, "has the same alias twice")


def definition_of(function: Function, name: str, **more: Any) -> ToolDefinition:
    """Return a tool made of an annotated function (see :meth:`ToolRegistry.tool`)."""
    hints = inspect.get_annotations(function, eval_str=True)
    parameters = list(inspect.signature(function).parameters)
    takes_context = bool(parameters) and hints.get(parameters[0]) is ToolContext
    fields = parameters[1:] if takes_context else parameters
    is_whole = len(fields) == 1 and _is_model(hints.get(fields[0]))
    model = hints[fields[0]] if is_whole else _model_of(function, tool=name, skip=int(takes_context))

    async def handler(context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        parsed = model.model_validate(dict(call_input))
        given = {fields[0]: parsed} if is_whole else {field: getattr(parsed, field) for field in fields}
        before = (context,) if takes_context else ()
        call = partial(function, *before, **given)
        try:
            if inspect.iscoroutinefunction(function):
                return _plain(await call_in_task(name, await_foreign(call)))
            return _plain(await call_in_thread(name, partial(call_foreign, call)))
        except Exception as error:
            if not isinstance(error, ToolError):  # which it means to report
                note_raised(error)
            raise

    more.setdefault("description", inspect.getdoc(function) or "")
    more.setdefault("validate_input", _validator(model))
    more["tags"] = frozenset(more.get("tags", ()))
    more["metadata"] = _with_native(model, more)
    return ToolDefinition(name=name, input_schema=from_pydantic(model, tool=name), handler=handler, **more)


def _model_of(function: Callable[..., object], *, tool: str, skip: int) -> "type[BaseModel]":
    """Build a model of an annotated function's parameters after the first ``skip``.
    Raises: InvalidToolError, a parameter has no annotation or cannot be given by name.
    """
    from pydantic import ConfigDict, create_model  # heavy, and only decorators need it

    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in list(inspect.signature(function).parameters.values())[skip:]:
        if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
            raise InvalidToolError(tool, f"the parameter {parameter.name!r} cannot be given by name")
        if parameter.name not in hints:
            raise InvalidToolError(tool, f"the parameter {parameter.name!r} has no annotation")
        fields[parameter.name] = (
            hints[parameter.name],
            ... if parameter.default is inspect.Parameter.empty else parameter.default,
        )
    model: type[BaseModel] = create_model(f"{function.__name__}_input", __config__=ConfigDict(extra="forbid"), **fields)
    return model


def _adding(add: Callable[[ToolDefinition], object], name: str, more: dict[str, Any]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        add(definition_of(function, name, **more))
        return function

    return decorate


def _with_native(model: "type[BaseModel]", more: dict[str, Any]) -> dict[str, Json]:
    """Return a tool's metadata with the schema of its source, not yet in the subset (REG-05)."""
    return {"native_schema": model.model_json_schema(), **more.get("metadata", {})}


def _validator(model: "type[BaseModel]") -> Callable[[JsonObject], str | None]:
    from pydantic import ValidationError  # heavy, and only decorators need it

    def check(call_input: JsonObject) -> str | None:
        try:
            model.model_validate(dict(call_input))
        except ValidationError as error:
            return "; ".join(f"$.{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:20])
        return None

    return check


def _plain(output: Any) -> HandlerOutput:
    return output.model_dump(mode="json") if _is_model(type(output)) else output  # type: ignore[no-any-return]


def _is_model(annotation: object) -> bool:
    return isinstance(annotation, type) and hasattr(annotation, "model_validate")


def _promise(tool: ToolDefinition) -> dict[str, Json]:
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": tool.input_schema,
        "output_schema": tool.output_schema,
        "permission": tool.permission.value,
        "tags": sorted(tool.tags),
        "aliases": sorted(tool.aliases),
    }


class Toolset:
    """A :class:`soong.shared.tools.definition.ToolAdapter` that is written down tool by tool, in the order of the
    text.
    """

    def __init__(self) -> None:
        self._tools: list[ToolDefinition] = []

    def tool(self, name: str, **more: Any) -> Callable[[F], F]:
        """Add a function, sync or async, as :meth:`soong.shared.tools.registry.ToolRegistry.tool` does; returns it
        unchanged.
        Raises: InvalidToolError, the function cannot be said as a schema.
        """
        return _adding(self.add, name, more)

    def add(self, definition: ToolDefinition) -> ToolDefinition:
        """Add a complete definition; it is checked when it is registered."""
        self._tools.append(definition)
        return definition

    def tools(self) -> tuple[ToolDefinition, ...]:
        return tuple(self._tools)
