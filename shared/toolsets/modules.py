"""Python tools of the user's own and of other libraries (REG-06, REG-07, REG-12).

A module that ``SOONG_TOOLS`` names has ``tools``, an adapter (usually a :class:`soong.shared.tools.registry.Toolset`),
a function ``register(registry)``, a classifier of risks (``@risk_classifier``), or several of these. It is the user's
own program and runs with the rights of the process; policy and permission decide on its tools, as on every other tool.
Soong's own namespaces are not for it: their names are trusted (PER-11). A tool of another library declares neither what
it touches nor what it reads. It counts as a write that reaches anywhere, so it asks, unless the user who registers it
names it among ``readonly``.
"""

import asyncio
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

from soong.shared.core import foreign
from soong.shared.core.errors import InvalidConfigError, InvalidToolError, UsageError
from soong.shared.core.foreign import call_foreign, place_of, words_of
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.tools.definition import NAMESPACE_TAGS, Permission, ToolContext, ToolDefinition
from soong.shared.tools.foreign_schema import from_json_schema
from soong.shared.tools.permission_check import has_classifier
from soong.shared.tools.registry import ToolRegistry, Toolset
from soong.shared.tools.result import ErrorType, ToolError

if TYPE_CHECKING:
    from pydantic_ai.toolsets import AbstractToolset


SETTING: Final = "SOONG_TOOLS"

OWN: Final = frozenset({"soong"})

_IMPORT_FILES: Final = (importlib.__file__, foreign.__file__, __file__)

Invoke = Callable[[JsonObject], Any]
_IMPORTING: Final[list[str]] = []
"""The modules of users that this process imports just now."""
_NOT_IN_A_NAME = re.compile(r"[^a-z0-9_-]+")


def register_modules(registry: ToolRegistry, modules: Iterable[str], folders: Sequence[str] = ()) -> None:
    """Import each module once and register what it offers; nothing of a module that is refused is kept in silence.
    ``folders`` are looked in after what is installed (:mod:`soong.shared.toolsets.modules`).
    Raises: InvalidConfigError, names the module and what is wrong with it.
    """
    for name in dict.fromkeys(modules):
        own = ToolRegistry(max_timeout=registry.max_timeout)
        try:
            _offer(import_own(name, SETTING, folders), own)
            for definition in own.definitions():
                check_foreign(definition)
                registry.register(definition, source=f"module {name}")
        except InvalidToolError as error:
            raise InvalidConfigError(f"{SETTING} names {name!r}, whose {error}") from error


def import_own(name: str, setting: str, folders: Sequence[str] = ()) -> ModuleType:
    """Import a module of the user's that a setting names, from what is installed or one of the folders.
    Raises: InvalidConfigError, names the setting, the module and what is wrong with it; InvalidToolError, a tool in it
    is wrong.
    """
    look_in(folders, (name,))
    if problem := shadowed(name):
        raise InvalidConfigError(f"{setting} names {name!r}: {problem}")
    _IMPORTING.append(name)
    try:
        return call_foreign(importlib.import_module, name)
    except InvalidToolError:
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise _failed(name, setting, error) from error
        places = f"neither in {', '.join(folders)} nor installed" if folders else "not installed"
        hint = "run from its folder, name that in SOONG_IMPORT_PATH, or install it"
        raise InvalidConfigError(f"{setting} names {name!r}, which is {places}; {hint}") from error
    except Exception as error:  # any error of the module at import: the message names the module
        raise _failed(name, setting, error) from error
    finally:
        _IMPORTING.pop()


def refuse_at_import() -> None:
    """Raises: UsageError, a module that is imported for its steps or tools opens a service, as a program would."""
    if _IMPORTING:
        raise UsageError(
            f"the module {_IMPORTING[-1]!r} runs a plan when it is imported; write that below "
            '`if __name__ == "__main__":`, as workers import the module for its steps'
        )


def _offer(module: ModuleType, registry: ToolRegistry) -> None:
    adapter, register = getattr(module, "tools", None), getattr(module, "register", None)
    is_adapter, is_function = callable(getattr(adapter, "tools", None)), callable(register)
    if not is_adapter and not is_function and not has_classifier(vars(module).values()):
        raise InvalidConfigError(
            f"{SETTING} names {module.__name__!r}, which offers no tools; give it `tools = Toolset()`, "
            "a function register(registry) or a @risk_classifier"
        )
    if inspect.iscoroutinefunction(register):
        raise InvalidConfigError(f"{SETTING} names {module.__name__!r}, whose register is async; make it a plain one")
    try:
        if adapter is not None and is_adapter:
            call_foreign(registry.add, adapter)
        if register is not None and is_function:
            call_foreign(register, registry)
    except InvalidToolError:
        raise
    except Exception as error:
        raise InvalidConfigError(
            f"{SETTING} names {module.__name__!r}, which failed to register: {_words(error)}"
        ) from error


def check_foreign(definition: ToolDefinition) -> None:
    """Hold a tool from elsewhere to names and tags of its own: rules and taint trust ours.
    Raises: InvalidToolError, its name, an alias or a tag marks it as one of Soong's.
    """
    for name in (definition.name, *definition.aliases):
        namespace, dot, rest = name.partition(".")
        if dot and namespace in NAMESPACE_TAGS:
            kind = "" if name == definition.name else f"of the alias {name!r} "
            problem = f"the namespace {namespace!r} {kind}is Soong's own; choose another, such as 'team.{rest}'"
            raise InvalidToolError(definition.name, problem)
    own = sorted(definition.tags & NAMESPACE_TAGS)
    if own:
        raise InvalidToolError(definition.name, f"the tag {own[0]!r} is one of Soong's own tools; choose another")


def _failed(name: str, setting: str, error: BaseException) -> InvalidConfigError:
    return InvalidConfigError(f"{setting} names {name!r}, which cannot be imported: {_words(error)}")


def _words(error: BaseException) -> str:
    place = place_of(error)
    return f"{words_of(error)} (at {place})" if place else words_of(error)


class FolderFinder(MetaPathFinder):
    """Finds the modules of some folders for those who may have them. There is one a process, the last to be asked."""

    def __init__(self) -> None:
        self._folders: tuple[str, ...] = ()
        self._names: frozenset[str] = frozenset()
        self._served: dict[str, Path] = {}

    def serve(self, names: Iterable[str], folders: Iterable[str]) -> None:
        """Serve these modules too, and look in these folders first: a plan's own before those of its command."""
        self._names |= {name.partition(".")[0] for name in names}
        self._folders = tuple(dict.fromkeys((*folders, *self._folders)))
        if self not in sys.meta_path:
            sys.meta_path.append(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, _target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Find a top-level module; those of a package are found by its own path."""
        if path is not None or not self._folders:
            return None
        if fullname not in self._names and not self._asks_for_itself(sys._getframe(1)):  # noqa: SLF001  # its only way
            return None
        spec = PathFinder.find_spec(fullname, self._folders)
        if spec is not None:
            folders = spec.submodule_search_locations
            self._served[fullname] = Path(next(iter(folders))) if folders else Path(spec.origin or "")
        return spec

    def has(self, name: str) -> Path | None:
        """Return the file or folder of a top-level module in these folders, whatever other folder has it first."""
        spec = PathFinder.find_spec(name, self._folders) if self._folders else None
        if spec is None or spec.origin is None:
            return None
        return Path(spec.origin)

    @property
    def served(self) -> tuple[Path, ...]:
        """The files and package folders that were found here: their content decides what this process does."""
        return tuple(self._served.values())

    def _asks_for_itself(self, frame: FrameType | None) -> bool:
        """Say whether the code that imports was found here itself."""
        while frame is not None and _is_import_machinery(frame):
            frame = frame.f_back
        importer = "" if frame is None else str(frame.f_globals.get("__name__", ""))
        return importer.partition(".")[0] in self._served


_FINDER: Final = FolderFinder()


def look_in(folders: Iterable[str], names: Iterable[str]) -> FolderFinder:
    """Let the modules of that name be found in these folders, where nothing that is installed has it."""
    _FINDER.serve(names, folders)
    return _FINDER


def shadowed(name: str) -> str:
    """Say that a module in one of the folders cannot be had for its name; empty when it can."""
    top = name.partition(".")[0]
    if top not in OWN and top not in sys.stdlib_module_names:
        return ""
    whose = "Soong" if top in OWN else "Python"
    own = _FINDER.has(top)
    return "" if own is None else f"{top!r} is the name of a module of {whose}; rename {own}"


def _is_import_machinery(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith("<frozen importlib") or file in _IMPORT_FILES


def from_pydantic_ai(toolset: "AbstractToolset[Any]", namespace: str, *, readonly: Collection[str] = ()) -> Toolset:
    """Return the tools of a Pydantic AI toolset under ``namespace``; ``readonly`` are those that change nothing. The
    toolset is listed once. Its tools get no dependencies and no model: those of an agent of Pydantic AI.
    Raises: InvalidToolError, a tool's name or schema cannot be one of ours, or ``readonly`` names no tool.
    """
    from pydantic_ai.exceptions import ModelRetry

    # In a loop of its own: modules are imported where there may be one that runs already.
    with ThreadPoolExecutor(max_workers=1) as thread:
        listed = thread.submit(lambda: asyncio.run(toolset.get_tools(_run_context()))).result()
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
    Raises: InvalidToolError, a tool's name or schema cannot be one of ours, or ``readonly`` names no tool.
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
    namespace: str, name: str, description: str, schema: Mapping[str, Any], invoke: Invoke, readonly: Collection[str]
) -> ToolDefinition:
    canonical = f"{namespace}.{_NOT_IN_A_NAME.sub('_', name.lower())}"
    given = dict(schema)
    for said in ("title", "description"):
        given.pop(said, None)

    async def handle(context: ToolContext, call_input: JsonObject) -> Json:
        from pydantic_core import to_jsonable_python

        del context
        value = await invoke(call_input)
        inner = getattr(value, "return_value", value)  # a ToolReturn of Pydantic AI
        return cast("Json", to_jsonable_python(inner, bytes_mode="base64", fallback=str))

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


def _run_context() -> Any:
    from pydantic_ai import RunContext
    from pydantic_ai.models.test import TestModel
    from pydantic_ai.usage import RunUsage

    return RunContext(deps=None, model=TestModel(), usage=RunUsage())
