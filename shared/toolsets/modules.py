"""Python tools of the user's own: the modules that ``SOONG_TOOLS`` names (REG-06, REG-07).

A module has ``tools``, an adapter (usually a :class:`soong.shared.tools.toolset.Toolset`), a function
``register(registry)``, a classifier of risks (:func:`soong.shared.tools.risk.risk_classifier`), or several of these. It
is the user's own program and runs with the rights of the process; what its tools may do is for policy and permission,
as with every other tool. Soong's own namespaces are not for it: their names are trusted to be what they say (PER-11).
"""

import importlib
import inspect
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Final

from soong.shared.core.errors import InvalidConfigError, InvalidToolError
from soong.shared.core.foreign import call_foreign, place_of, words_of
from soong.shared.tools.definition import NAMESPACE_TAGS, ToolDefinition
from soong.shared.tools.registry import ToolRegistry
from soong.shared.tools.risk import has_classifier
from soong.shared.toolsets.import_folders import look_in, shadowed

SETTING: Final = "SOONG_TOOLS"


def register_modules(registry: ToolRegistry, modules: Iterable[str], folders: Sequence[str] = ()) -> None:
    """Import each module once and register what it offers; nothing of a module that is refused is kept in silence.

    ``folders`` are looked in after what is installed (:mod:`soong.shared.toolsets.import_folders`).

    Raises:
        InvalidConfigError: names the module and what is wrong with it.
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

    Raises:
        InvalidConfigError: names the setting, the module and what is wrong with it.
        InvalidToolError: a tool in it is wrong.
    """
    look_in(folders, (name,))
    if problem := shadowed(name):
        raise InvalidConfigError(f"{setting} names {name!r}: {problem}")
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
    except Exception as error:  # whatever the module does at import, the message says whose fault it is
        raise _failed(name, setting, error) from error


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

    Raises:
        InvalidToolError: its name, an alias or a tag says that it is one of Soong's.
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
