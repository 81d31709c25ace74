"""Tools of other libraries as a source of ours (REG-12): a Pydantic AI toolset, LangChain tools.

Such a tool declares neither what it touches nor what it reads. It counts as a write that reaches anywhere, so it asks,
unless the user who registers it names it among ``readonly``. Its calls pass the pipeline like all others; what the
library itself would ask or retry is not used.
"""

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

from soong.shared.core.errors import InvalidToolError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.tools.definition import Permission, ToolContext, ToolDefinition
from soong.shared.tools.pydantic_schema import from_json_schema
from soong.shared.tools.result import ErrorType, ToolError
from soong.shared.tools.toolset import Toolset

if TYPE_CHECKING:
    from pydantic_ai.toolsets import AbstractToolset

Invoke = Callable[[JsonObject], Any]
_NOT_IN_A_NAME = re.compile(r"[^a-z0-9_-]+")


def from_pydantic_ai(toolset: "AbstractToolset[Any]", namespace: str, *, readonly: Collection[str] = ()) -> Toolset:
    """Return the tools of a Pydantic AI toolset under ``namespace``; ``readonly`` are those that change nothing.

    The toolset is listed once. Its tools get no dependencies and no model: those of an agent of Pydantic AI.

    Raises:
        InvalidToolError: a tool's name or schema cannot be one of ours, or ``readonly`` names no tool.
    """
    from pydantic_ai.exceptions import ModelRetry

    listed = _listed(toolset)
    made = Toolset()

    def invoke(name: str) -> Invoke:
        async def call(arguments: JsonObject) -> Any:
            context = _run_context()
            tool = (await toolset.get_tools(context))[name]
            try:
                given = tool.args_validator.validate_python(dict(arguments))
                return await toolset.call_tool(name, given, context, tool)
            except ModelRetry as error:
                raise ToolError(
                    ErrorType.EXECUTION_FAILED, str(error), hint="change the input, then call again"
                ) from error

        return call

    for name, tool in listed.items():
        about = tool.tool_def
        schema = about.parameters_json_schema
        made.add(_definition(namespace, name, about.description or "", schema, invoke(name), readonly))
    _check_named(namespace, readonly, listed)
    return made


def from_langchain(tools: Iterable[Any], namespace: str, *, readonly: Collection[str] = ()) -> Toolset:
    """Return LangChain tools (``BaseTool``) under ``namespace``; ``readonly`` are those that change nothing.

    Raises:
        InvalidToolError: a tool's name or schema cannot be one of ours, or ``readonly`` names no tool.
    """
    made, names = Toolset(), list[str]()
    for tool in tools:
        said = tool.tool_call_schema
        schema = said if isinstance(said, Mapping) else said.model_json_schema()
        made.add(_definition(namespace, tool.name, tool.description, schema, tool.ainvoke, readonly))
        names.append(tool.name)
    _check_named(namespace, readonly, names)
    return made


def _definition(
    namespace: str,
    name: str,
    description: str,
    schema: Mapping[str, Any],
    invoke: Invoke,
    readonly: Collection[str],
) -> ToolDefinition:
    canonical = f"{namespace}.{_NOT_IN_A_NAME.sub('_', name.lower())}"
    given = dict(schema)
    for said in ("title", "description"):
        given.pop(said, None)

    async def handle(context: ToolContext, call_input: JsonObject) -> Json:
        del context
        return _plain(await invoke(call_input))

    return ToolDefinition(
        name=canonical,
        description=description or name,
        input_schema=from_json_schema(given, tool=canonical),
        handler=handle,
        permission=Permission.READONLY if name in readonly else Permission.WRITE,
        open_world=True,
        metadata={"native_name": name, "reads_untrusted": True},
    )


def _check_named(namespace: str, readonly: Collection[str], known: Collection[str]) -> None:
    for name in readonly:
        if name not in known:
            raise InvalidToolError(f"{namespace}.{name}", f"readonly names it, and there are only {', '.join(known)}")


def _plain(value: Any) -> Json:
    from pydantic_core import to_jsonable_python

    inner = getattr(value, "return_value", value)  # a ToolReturn of Pydantic AI
    return cast("Json", to_jsonable_python(inner, bytes_mode="base64", fallback=str))


def _listed(toolset: "AbstractToolset[Any]") -> dict[str, Any]:
    """List a toolset in a loop of its own: modules are imported where there may be one that runs already."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(lambda: asyncio.run(toolset.get_tools(_run_context()))).result()


def _run_context() -> Any:
    from pydantic_ai import RunContext
    from pydantic_ai.models.test import TestModel
    from pydantic_ai.usage import RunUsage

    return RunContext(deps=None, model=TestModel(), usage=RunUsage())
