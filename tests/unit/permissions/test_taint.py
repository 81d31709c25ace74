"""Which tools bring in what strangers wrote (PER-21)."""

import pytest

from soong.shared.permissions.rules import reads_untrusted
from soong.shared.tools.definition import Permission, ToolDefinition
from tests.unit.permissions.calls import make_tool


@pytest.mark.spec("PER-21")
@pytest.mark.parametrize(
    ("tool", "reads"),
    [
        (make_tool("code.read_file", tags=frozenset({"code", "filesystem", "readonly"})), True),
        (make_tool("code.write_file", permission=Permission.WRITE, tags=frozenset({"code", "filesystem"})), False),
        (make_tool("code.run", permission=Permission.WRITE, tags=frozenset({"code", "dangerous"})), True),
        (make_tool("mcp.web.fetch", tags=frozenset({"mcp"})), True),
        (make_tool("team.count"), True),
        (make_tool("agent.task_get", tags=frozenset({"agent", "internal"})), False),
        (make_tool("internal.load_skill", tags=frozenset({"internal"})), False),
        (make_tool("internal.x", tags=frozenset({"internal"}), metadata={"reads_untrusted": True}), True),
        (make_tool("team.x", metadata={"reads_untrusted": False}), True),
        (make_tool("team.x", tags=frozenset({"internal", "declarative"})), True),
        (make_tool("team.x", tags=frozenset({"internal", "network"})), True),
    ],
    ids=lambda value: value.name if isinstance(value, ToolDefinition) else str(value),
)
def test_a_tool_is_trusted_only_where_it_speaks_of_our_own_state(tool: ToolDefinition, reads: bool) -> None:
    assert reads_untrusted(tool) is reads
