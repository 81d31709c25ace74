"""Deferred tools: a large catalogue of which a model first sees names and hints only (DEF-01).

The deferred tools are decided with the surface and stored with it. A search returns the full schemas of its hits and
loads them: from the next request on these tools are offered, after all others, so that a provider's cache of the
earlier tools stays valid (REG-09). The surface itself never changes: everything in it can be called at any time.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec.structs import replace

from soong.shared.core.config import ToolsConfig
from soong.shared.core.full_text import FullTextIndex
from soong.shared.core.jsontext import JsonObject, dump, first_sentence
from soong.shared.core.value import Value
from soong.shared.tools.definition import HandlerOutput, Permission, ToolContext, ToolDefinition
from soong.shared.tools.naming import name_matches
from soong.shared.tools.result import ErrorType, TextBlock, ToolError, ToolResult
from soong.shared.tools.schema import arguments, integer, number_of, string
from soong.shared.tools.surface import TOOL_SEARCH

DEFERRED: Final = "deferred"
"""The key of the deferred tools in the document of a run's surface."""
MAX_LOADED: Final = 64
DEFAULT_HITS: Final = 5
MAX_HINT_CHARS: Final = 100
MAX_ANSWER_CHARS: Final = 48_000
HINT: Final = f"its schema has not been loaded; find it with {TOOL_SEARCH} first"

_WEIGHTS: Final = (4.0, 3.0, 1.5, 1.0)
"""Weights of name, title and hint, description, and parameters."""


def deferred_of(tools: Sequence[ToolDefinition], config: ToolsConfig) -> tuple[str, ...]:
    """Return which of a run's tools are deferred; none where the configuration defers none or the search is missing."""
    if not config.defer or len(tools) <= config.defer_above or all(tool.name != TOOL_SEARCH for tool in tools):
        return ()
    return tuple(tool.name for tool in tools if _is_deferred(tool, config))


def _is_deferred(tool: ToolDefinition, config: ToolsConfig) -> bool:
    if tool.name == TOOL_SEARCH or tool.always_load or _matches(config.always_load, tool):
        return False
    return tool.defer or _matches(config.defer, tool)


def _matches(patterns: Iterable[str], tool: ToolDefinition) -> bool:
    return any(name_matches(pattern, tool.name) for pattern in patterns)


@dataclass(slots=True)
class DeferredTools:
    """Those of one run, and which of them its model has been given meanwhile, in the order of their finding."""

    names: Collection[str] = ()
    loaded: list[str] = field(default_factory=list)

    def hint(self, name: str) -> str:
        """Return the hint for a model whose call of a tool is wrong; empty for a tool whose schema it has."""
        return HINT if name in self.names and name not in self.loaded else ""

    def take(self, result: ToolResult) -> None:
        """Load what a search found. Repeated, it changes nothing."""
        if result.error is not None or not isinstance(result.data, Mapping):
            return
        found = result.data.get("tools")
        names = [str(name) for name in found] if isinstance(found, list | tuple) else []
        new = [name for name in dict.fromkeys(names) if self.hint(name)][: MAX_LOADED - len(self.loaded)]
        self.loaded += new

    def offered(self, tools: Sequence[ToolDefinition]) -> list[ToolDefinition]:
        """Return the tools that a model is offered now: undeferred ones in their order, then loaded ones in theirs."""
        known = {tool.name: tool for tool in tools}
        first = [tool for tool in tools if tool.name not in self.names and (self.names or tool.name != TOOL_SEARCH)]
        return first + [known[name] for name in self.loaded if name in known]


class ToolSearch(Value):
    """A :class:`soong.shared.tools.definition.ToolAdapter`: the search, off until the configuration defers tools."""

    config: ToolsConfig = msgspec.field(default_factory=ToolsConfig)

    def tools(self) -> tuple[ToolDefinition, ...]:
        return (
            ToolDefinition(
                name=TOOL_SEARCH,
                title="Search tools",
                description=(
                    "Find tools by what they do, by name or by parameter. Each hit is given with its full schema and "
                    "can be called from then on."
                ),
                search_hint="find tools load schema",
                input_schema=_SCHEMA,
                handler=_unbound,
                permission=Permission.READONLY,
                tags=frozenset({"internal", "readonly"}),
                is_enabled=lambda: bool(self.config.defer),
                always_load=True,
                max_result_chars=MAX_ANSWER_CHARS + 4_000,
            ),
        )


def stored_deferred(surface: JsonObject, tools: Sequence[ToolDefinition]) -> DeferredTools:
    """Return the deferred tools of a stored surface; none where the search is not among the run's tools."""
    named = surface.get(DEFERRED)
    has_search = any(tool.name == TOOL_SEARCH for tool in tools)
    return DeferredTools(frozenset(map(str, named)) if has_search and isinstance(named, list | tuple) else ())


def with_search(tools: Sequence[ToolDefinition], deferred: DeferredTools) -> tuple[ToolDefinition, ...]:
    """Return a run's tools with a search that finds its deferred ones, and lists them by name and hint."""
    if not deferred.names:
        return tuple(tools)
    catalogue = {tool.name: tool for tool in tools if tool.name in deferred.names}
    search = _DeferredSearch(catalogue, deferred)
    listed = "\n".join(f"- {tool.name}: {_hint(tool)}" for tool in catalogue.values())
    prompt = f"These tools can be found. Their schemas are not shown until then.\n{listed}"
    return tuple(
        replace(tool, handler=search.handle, prompt=prompt) if tool.name == TOOL_SEARCH else tool for tool in tools
    )


@dataclass(slots=True)
class _DeferredSearch:
    """Finds the deferred tools of one run. The index is made with the first search."""

    catalogue: Mapping[str, ToolDefinition]
    deferred: DeferredTools
    _index: FullTextIndex | None = None

    async def handle(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        query, limit = str(call_input["query"]), number_of(call_input, "limit", DEFAULT_HITS)
        names = self._found(query, limit)
        if len(self.deferred.loaded) + len([name for name in names if self.deferred.hint(name)]) > MAX_LOADED:
            problem = f"{MAX_LOADED} found tools are loaded, which is the most in a run"
            raise ToolError(ErrorType.LIMIT_EXCEEDED, problem, hint="call one of those")
        texts: list[str] = []
        for name in names:
            tool = self.catalogue[name]
            text = dump({"name": name, "description": tool.description, "input_schema": tool.input_schema})
            if texts and sum(map(len, texts)) + len(text) > MAX_ANSWER_CHARS:
                break
            texts.append(text)
        names = names[: len(texts)]
        said = "\n".join(texts) or "no tool fits; try other words, or the name of a tool in the list"
        count = f"{len(names)} {'tool' if len(names) == 1 else 'tools'}"
        return ToolResult(context.tool_call_id, (TextBlock(said),), count, {"tools": list(names)})

    def _found(self, query: str, limit: int) -> list[str]:
        exact = [name for name in dict.fromkeys(query.replace(",", " ").split()) if name in self.catalogue]
        if self._index is None:
            self._index = FullTextIndex(_WEIGHTS)
            for tool in self.catalogue.values():
                self._index.put(
                    tool.name, (tool.name, f"{tool.title} {tool.search_hint}", tool.description, _words(tool))
                )
        return list(dict.fromkeys((*exact, *self._index.search(query, limit))))[:limit]


async def _unbound(_context: ToolContext, _call_input: JsonObject) -> HandlerOutput:
    raise ToolError(ErrorType.EXECUTION_FAILED, "no tool of this run is deferred", hint="call the tool that you need")


_SCHEMA: Final = arguments(
    "query",
    query=string("What the tool should do, or names of tools.", minLength=1, maxLength=500),
    limit=integer("Most hits.", DEFAULT_HITS, 1, 10),
)


def _hint(tool: ToolDefinition) -> str:
    hint = " ".join((tool.search_hint or first_sentence(tool.description)).split())
    return hint if len(hint) <= MAX_HINT_CHARS else f"{hint[: MAX_HINT_CHARS - 1]}…"


def _words(tool: ToolDefinition) -> str:
    properties = tool.input_schema.get("properties")
    if not isinstance(properties, Mapping):
        return ""
    words = list(properties)
    words += [str(value.get("description", "")) for value in properties.values() if isinstance(value, Mapping)]
    return " ".join(words)
