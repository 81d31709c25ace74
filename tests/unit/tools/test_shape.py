"""A definition written by hand: what is wrong with a field is told when it is registered."""

from typing import Any

import pytest

from soong.shared.core.errors import InvalidToolError
from soong.shared.tools.definition import Permission
from soong.shared.tools.registry import ToolRegistry, Toolset
from tests.unit.tools.parts import make_tool


@pytest.mark.spec("REG-05.a", "REG-06")
@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("permission", "none", "its permission is 'none'; it is one of readonly, write"),
        ("permission", None, "its permission is 'None'"),
        ("description", None, "its description is not a text"),
        ("title", 5, "its title is not a text"),
        ("handler", None, "its handler is not a function"),
        ("traits", True, "its traits is not a function"),
        ("target", "path", "its target is not a function"),
        ("tags", "office", "its tags are not a set of texts"),
        ("tags", ["office"], "its tags are not a set of texts"),
        ("aliases", "greet", "its aliases are not a tuple of texts"),
        ("timeout", 20, "its timeout is not a timedelta; write timedelta(seconds=20)"),
        ("interrupt", "never", "its interrupt is 'never'; it is cancel or block"),
        ("open_world", "no", "its open_world is neither True, False nor None"),
        ("defer", 1, "its defer is neither True nor False"),
        ("call_tags", "crm", "its call_tags is not a function"),
        ("max_result_chars", True, "max_result_chars must be at least 1"),
        ("errors", ("timeout",), "its errors are not a tuple of ErrorType"),
        ("metadata", None, "its metadata is not an object"),
    ],
)
def test_a_field_of_another_type_is_refused_with_what_belongs_there(field: str, value: Any, said: str) -> None:
    registry = ToolRegistry()

    with pytest.raises(InvalidToolError) as raised:
        registry.register(make_tool("test.a", **{field: value}))

    assert said in str(raised.value)
    assert registry.definitions() == ()


@pytest.mark.spec("REG-06")
def test_a_permission_may_be_written_by_its_name() -> None:
    tools = Toolset()

    @tools.tool("team.now", permission="readonly")
    def now() -> str:
        """Say what time it is."""
        return "noon"

    registry = ToolRegistry()
    registry.add(tools)

    kept = registry.get("team.now")
    assert kept is not None
    assert kept.permission is Permission.READONLY
    assert "readonly" in kept.tags
