"""A memory provider of the user's own: the module that ``[memory] provider`` names has it as ``memory_provider``.

It is foreign code: what it gives is held to the form of a memory and to the scopes that were asked for.
"""

import inspect
from collections.abc import Iterable, Sequence
from typing import Any, Final

from soong.shared.core.config import MemoryConfig
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.value import Value
from soong.shared.tools.result import ErrorType, ToolError
from soong.shared.toolsets.memory.provider import Memory, MemoryProvider, MemoryScope
from soong.shared.toolsets.modules import import_own

FILES: Final = "files"
ATTRIBUTE: Final = "memory_provider"
_METHODS: Final = ("search", "save", "entries", "remove")


def memory_modules(config: MemoryConfig) -> tuple[str, ...]:
    """Return the modules of the user's that memory needs: its provider and its extractor."""
    named = (config.provider if config.provider != FILES else "", config.extractor.partition(":")[0])
    return tuple(name for name in named if name)


def import_provider(name: str, folders: Sequence[str] = ()) -> MemoryProvider:
    """Return the provider of a module. Raises: InvalidConfigError, which says what is wrong with it."""
    module = import_own(name, "memory.provider", folders)
    provider: Any = getattr(module, ATTRIBUTE, None)
    missing = [method for method in _METHODS if not inspect.iscoroutinefunction(getattr(provider, method, None))]
    if missing:
        words = "has no" if provider is None else f"has a {ATTRIBUTE} without async {missing[0]}():"
        raise InvalidConfigError(
            f"memory.provider names {name!r}, which {words} {ATTRIBUTE} with async {', '.join(_METHODS)}"
        )
    return ModuleMemory(provider)


def import_extractor(text: str, folders: Sequence[str] = ()) -> str:
    """Import the module of ``MODULE:NAME`` and return the name of the scripted agent.

    Raises: InvalidConfigError, it is not written so, or the module registers no such agent.
    """
    module, _, name = text.partition(":")
    if not module or not name:
        raise InvalidConfigError(f"memory.extractor is {text!r}; write MODULE:NAME, such as 'team_memory:team.extract'")
    import_own(module, "memory.extractor", folders)
    from soong.shared.engine.tasks.scripted import known_scripts

    if name not in known_scripts():
        known = ", ".join(sorted(known_scripts()))
        raise InvalidConfigError(
            f"memory.extractor names {name!r}, which {module!r} does not register; registered: {known}"
        )
    return name


class ModuleMemory(Value):
    """Implements :class:`soong.shared.toolsets.memory.provider.MemoryProvider` over a provider of the user's."""

    provider: MemoryProvider

    async def search(
        self, query: str, *, project: str, scope: MemoryScope | None = None, limit: int = 5
    ) -> Sequence[Memory]:
        """Return what it finds. Raises: ToolError when that is not a list of memories."""
        found = _sound(await self.provider.search(query, project=project, scope=scope, limit=limit))
        return [each for each in found if each.project in ("", project) and scope in (None, each.scope)][:limit]

    async def save(self, memory: Memory) -> None:
        await self.provider.save(memory)

    async def entries(self) -> Sequence[Memory]:
        return _sound(await self.provider.entries())

    async def remove(self, memory_id: str) -> bool:
        return bool(await self.provider.remove(memory_id))


def _sound(found: object) -> list[Memory]:
    """Raises: ToolError."""
    if not isinstance(found, Iterable) or isinstance(found, str):
        raise ToolError(ErrorType.INVALID_OUTPUT, f"the memory provider gave {type(found).__name__}, not memories")
    memories = list(found)
    wrong = next((each for each in memories if not isinstance(each, Memory)), None)
    if wrong is not None:
        raise ToolError(ErrorType.INVALID_OUTPUT, f"the memory provider gave {type(wrong).__name__}, not a Memory")
    return memories
