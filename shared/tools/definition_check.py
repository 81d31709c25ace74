"""Whether the fields of a definition are what they are said to be (REG-05): people write them by hand.

A mistake is reported when the tool is registered, with the field and what belongs there, not by the first call of it.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Final

from msgspec.structs import replace

from soong.shared.core.errors import InvalidToolError
from soong.shared.tools.definition import Permission, ToolDefinition
from soong.shared.tools.result import ErrorType

_TEXTS: Final = ("description", "title", "prompt", "search_hint")
_FLAGS: Final = ("is_agent_tool", "keeps_full_output", "defer", "always_load")
_FUNCTIONS: Final = ("handler", "is_enabled")
_OPTIONAL_FUNCTIONS: Final = ("traits", "call_tags", "target", "validate_input", "check_permissions")


def shaped(definition: ToolDefinition) -> ToolDefinition:
    """Return the definition with its permission as one, also where its name was written.

    Raises:
        InvalidToolError: names the first field that is wrong and says what belongs there.
    """
    problem = next(iter(_problems(definition)), "")
    if problem:
        raise InvalidToolError(str(definition.name), problem)
    permission: object = definition.permission
    if isinstance(permission, Permission):
        return definition
    return replace(definition, permission=Permission(str(permission)))


def _problems(tool: ToolDefinition) -> Iterator[str]:
    yield from (f"its {each} is not a text" for each in _TEXTS if not isinstance(getattr(tool, each), str))
    yield from (f"its {each} is neither True nor False" for each in _FLAGS if not _is_flag(getattr(tool, each)))
    functions = (*_FUNCTIONS, *(each for each in _OPTIONAL_FUNCTIONS if getattr(tool, each) is not None))
    yield from (f"its {each} is not a function" for each in functions if not callable(getattr(tool, each)))
    words = [each.value for each in Permission]
    if tool.permission not in words:
        yield f"its permission is {str(tool.permission)[:40]!r}; it is one of {', '.join(words)}"
    if tool.interrupt not in ("cancel", "block"):
        yield f"its interrupt is {str(tool.interrupt)[:40]!r}; it is cancel or block"
    yield from _problems_of_several(tool)
    yield from _problems_of_limits(tool)


def _problems_of_several(tool: ToolDefinition) -> Iterator[str]:
    if not _are(tool.tags, (frozenset, set), str):
        yield "its tags are not a set of texts; write frozenset({'network'})"
    if not _are(tool.aliases, (tuple, list), str):
        yield "its aliases are not a tuple of texts; write ('other_name',)"
    if not _are(tool.errors, (tuple, list), ErrorType):
        yield "its errors are not a tuple of ErrorType"
    if not _is_a(tool.metadata, Mapping):
        yield "its metadata is not an object"


def _problems_of_limits(tool: ToolDefinition) -> Iterator[str]:
    if tool.timeout is not None and not _is_a(tool.timeout, timedelta):
        yield "its timeout is not a timedelta; write timedelta(seconds=20)"
    if tool.open_world is not None and not _is_flag(tool.open_world):
        yield "its open_world is neither True, False nor None"
    if not _is_count(tool.max_result_chars):
        yield "max_result_chars must be at least 1"


def _is_a(value: object, kind: type | tuple[type, ...]) -> bool:
    """Say whether a value is of a type; that of the field itself is not believed."""
    return isinstance(value, kind)


def _are(values: object, kind: tuple[type, ...], item: type) -> bool:
    return isinstance(values, Iterable) and isinstance(values, kind) and all(isinstance(each, item) for each in values)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_count(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1)
