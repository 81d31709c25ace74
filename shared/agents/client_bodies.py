"""Request bodies of OpenAI's client without their second reading.

The client walks each body along its types before it sends it, to rename fields and to encode dates and files. Of a
long history that is nearly all of a turn's CPU time (with 600 turns: 0.15 s a request), and it changes nothing: the
model library hands over what is sent over the wire. So the long parts of a body are left out of that walk.
"""

import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

_Walk: TypeAlias = Callable[[Any, Any], Awaitable[Any]]

MODULE: Final = "openai.resources.chat.completions.completions"
WALK: Final = "async_maybe_transform"
LONG_PARTS: Final = frozenset({"messages", "tools"})


def leave_long_parts() -> None:
    """Have the client, where it is loaded, send these parts as they are; said again, it changes nothing."""
    module: Any = sys.modules.get(MODULE)
    walk = getattr(module, WALK, None)
    if walk is not None and not isinstance(walk, ShortWalk):
        setattr(module, WALK, ShortWalk(walk))


class ShortWalk:
    """The walk of a client, without the long parts of a body that are JSON objects already."""

    def __init__(self, walk: _Walk) -> None:
        self.walk = walk

    async def __call__(self, data: Any, expected_type: Any) -> Any:
        if not isinstance(data, Mapping):
            return await self.walk(data, expected_type)
        kept = {name: data[name] for name in data.keys() & LONG_PARTS if _is_of_objects(data[name])}
        rest = {name: value for name, value in data.items() if name not in kept}
        return {**await self.walk(rest, expected_type), **kept}


def _is_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is dict for item in value)
