"""The sources of strangers' words (PER-21). A run that has used or been given one is tainted, and stays so.

Text from files, pages, servers and programs may speak to the model. No filter separates it from data, so outward calls
of such a run are asked for again: earlier grants were for a run that had not read it.
"""

from collections.abc import Iterable
from typing import Final

from soong.shared.tools.definition import Permission, ToolDefinition
from soong.shared.tools.result import ToolResult

_ALWAYS: Final = frozenset({"mcp", "network", "declarative", "dangerous"})
_OURS: Final = frozenset({"internal", "agent"})

METADATA_KEY: Final = "reads_untrusted"
"""``metadata[METADATA_KEY] = True`` marks a tool, or one result, that its tags would not; nothing unmarks one."""
DESCRIPTION_KEY: Final = "is_described_by_stranger"
"""``metadata[DESCRIPTION_KEY] = True`` marks a tool whose description taints each run that is given the tool."""


def reads_untrusted(definition: ToolDefinition) -> bool:
    """Say whether the output of a tool may hold what strangers wrote.

    Tools over our own state do not (tag ``internal``, or ``agent``: the store taints the parent of a tainted child),
    nor do the code tools that write, which report their own effect. All other tools do, and a program or a server
    always.
    """
    if definition.metadata.get(METADATA_KEY) is True or definition.tags & _ALWAYS:
        return True
    if definition.tags & _OURS:
        return False
    return not ("code" in definition.tags and definition.permission is Permission.WRITE)


def describes_untrusted(tools: Iterable[ToolDefinition]) -> bool:
    """Say whether a run that is given these tools reads in their descriptions what strangers wrote."""
    return any(tool.metadata.get(DESCRIPTION_KEY) is True for tool in tools)


def brings_untrusted(result: ToolResult) -> bool:
    """Say whether a result holds what strangers wrote although its tool need not: a memory of a tainted run."""
    return result.metadata.get(METADATA_KEY) is True
