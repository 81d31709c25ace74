from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from soong.shared.core.errors import InvalidToolError
from soong.shared.tools.definition import Permission, ToolContext, ToolDefinition, Traits
from soong.shared.tools.naming import mangle, name_matches, unmangle
from soong.shared.tools.permission_check import effective_traits
from soong.shared.tools.registry import ToolRegistry, Toolset
from tests.unit.tools.parts import TEXT_INPUT, echo, make_bench, make_registry, make_tool


@pytest.mark.spec("REG-05.f", "REG-05.i")
@pytest.mark.parametrize("permission", Permission)
def test_a_trait_that_nothing_declares_takes_the_safe_value(permission: Permission) -> None:
    tool = make_tool(permission=permission, traits=lambda _: Traits())

    assert effective_traits(tool, {}) == Traits(
        is_read_only=False, is_concurrency_safe=False, is_destructive=False, is_open_world=False
    )
    assert not effective_traits(make_tool(permission=permission), {}).is_destructive


@pytest.mark.spec("REG-03.b", "REG-10.a", "REG-10.b")
async def test_a_call_by_alias_is_recorded_under_the_canonical_name() -> None:
    bench = make_bench([make_tool("code.x", aliases=("Read",))])

    result = await bench.call("Read", text="hi")

    call = bench.log.ends[0][0]
    assert (result.ok, call.tool, call.raw) == (True, "code.x", {"alias": "Read"})


@pytest.mark.spec("REG-05.a", "EXE-08.b")
@pytest.mark.parametrize(
    "overrides",
    [
        {"timeout": timedelta(minutes=11)},
        {"timeout": timedelta(0)},
        {"description": "  "},
        {"max_result_chars": 0},
        {"input_schema": {"type": "string"}},
        {"input_schema": {"type": "object", "properties": {"x": {"type": "integer", "maximum": 2**60}}}},
        {"output_schema": {"oneOf": []}},
        {"name": "Code.x"},
    ],
    ids=str,
)
def test_a_definition_that_cannot_work_is_refused_at_registration(overrides: dict[str, Any]) -> None:
    with pytest.raises(InvalidToolError):
        make_registry(make_tool(**overrides))


@pytest.mark.spec("REG-05.g", "REG-06.a", "PER-11.a")
def test_a_tool_that_declares_nothing_counts_as_a_write() -> None:
    tool = ToolRegistry().register_tool("user.x", "d", TEXT_INPUT, echo)

    assert tool.permission is Permission.WRITE
    assert tool.traits_of({}).is_read_only is False


@pytest.mark.spec("REG-01.a", "REG-06.c")
def test_an_adapter_brings_all_its_tools() -> None:
    class Source:
        def tools(self) -> tuple[ToolDefinition, ...]:
            return (make_tool("user.a"), make_tool("user.b"))

    registry = ToolRegistry()
    registry.add(Source())

    assert [tool.name for tool in registry.select(["user.b", "user.gone", "user.a"])] == ["user.b", "user.a"]


class Book(BaseModel):
    title: str
    pages: int = Field(gt=0)


@pytest.mark.spec("REG-06.b")
async def test_a_function_of_one_model_takes_the_whole_input_and_the_context() -> None:
    registry = ToolRegistry()

    @registry.tool("user.shelve", description="Shelve a book.", tags={"write"})
    async def shelve(context: ToolContext, book: Book) -> Book:
        return Book(title=f"{context.tool_call_id}:{book.title}", pages=book.pages)

    bench = make_bench(registry.definitions())

    assert (await bench.call("user.shelve", title="t", pages=3)).data == {"title": "call_1:t", "pages": 3}
    assert not (await bench.call("user.shelve", title="t", pages=0)).ok


@pytest.mark.spec("REG-06")
def test_a_function_that_cannot_be_said_as_a_schema_is_refused() -> None:
    registry = ToolRegistry()

    with pytest.raises(InvalidToolError, match="no annotation"):

        @registry.tool("user.x", description="d")
        def one(value):  # type: ignore[no-untyped-def]  # noqa: ANN202, ANN001
            return value

    with pytest.raises(InvalidToolError, match="by name"):

        @registry.tool("user.y", description="d")
        def two(*values: int) -> int:
            return len(values)


@pytest.mark.spec("REG-08.b")
@pytest.mark.parametrize(
    ("name", "permission", "tags"),
    [
        ("mcp.files.read", Permission.READONLY, {"mcp", "readonly"}),
        ("code.x", Permission.WRITE, {"code", "write"}),
        ("user.x", Permission.WRITE, {"write"}),
    ],
)
def test_a_tool_carries_its_permission_and_our_namespace_as_tags(
    name: str, permission: Permission, tags: set[str]
) -> None:
    (tool,) = make_registry(make_tool(name, permission=permission)).definitions()

    assert tool.tags == tags


@pytest.mark.spec("REG-08", "REG-05.a")
@pytest.mark.parametrize("tags", [{"write"}, {"Dangerous"}, {""}, {"a b"}], ids=str)
def test_tags_that_contradict_or_cannot_be_matched_are_refused(tags: set[str]) -> None:
    with pytest.raises(InvalidToolError, match="tag"):
        make_registry(make_tool(tags=frozenset(tags)))


@pytest.mark.spec("EXE-08.b")
def test_built_in_tools_follow_a_lower_maximum_and_others_are_refused_above_it() -> None:
    registry = ToolRegistry(max_timeout=timedelta(seconds=30))
    slow = make_tool("code.slow", timeout=timedelta(minutes=2))

    kept = registry.register(slow, is_builtin=True)

    assert kept.timeout == timedelta(seconds=30)
    with pytest.raises(InvalidToolError, match="at most 30000 ms"):
        registry.register(make_tool("user.slow", timeout=timedelta(minutes=2)))


@pytest.mark.spec("REG-05.b", "SCH-02")
def test_the_schema_of_a_model_stays_in_the_metadata_as_its_source_says_it() -> None:
    tool = ToolRegistry().register_tool("user.shelve", "Shelves.", Book, echo, metadata={"a": 1})

    assert tool.metadata == {"native_schema": Book.model_json_schema(), "a": 1}


@pytest.mark.spec("REG-05.i", "PER-11.a")
@pytest.mark.parametrize(
    ("overrides", "reaches_out"),
    [
        pytest.param({}, False, id="readonly"),
        pytest.param({"permission": Permission.WRITE}, True, id="declares nothing"),
        pytest.param({"permission": Permission.WRITE, "tags": frozenset({"filesystem"})}, False, id="by tag"),
        pytest.param({"tags": frozenset({"network"}), "open_world": False}, True, id="the network tag wins"),
        pytest.param({"name": "mcp.x.y"}, True, id="mcp"),
        pytest.param({"name": "mcp.x.y", "open_world": False}, False, id="mcp, declared by config"),
        pytest.param(
            {"name": "mcp.x.y", "traits": lambda _: Traits(is_read_only=True)}, True, id="traits lower nothing"
        ),
        pytest.param({"traits": lambda _: Traits(is_open_world=True)}, True, id="traits raise"),
    ],
)
def test_what_is_not_declared_counts_as_open_world_where_that_is_the_safe_side(
    overrides: dict[str, Any], reaches_out: bool
) -> None:
    (tool,) = make_registry(make_tool(**overrides)).definitions()

    assert effective_traits(tool, {}).is_open_world is reaches_out


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


PARTS = st.from_regex(r"[a-z0-9_][a-z0-9_-]{0,8}", fullmatch=True)
NAMES = st.builds(
    lambda first, rest: ".".join([first, *rest]),
    st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True),
    st.lists(PARTS, min_size=1, max_size=3),
)


@pytest.mark.spec("REG-04.a")
@given(NAMES)
def test_mangling_is_reversible_without_a_table(name: str) -> None:
    assert unmangle(mangle(name)) == name


@pytest.mark.spec("REG-08.a")
@pytest.mark.parametrize(
    ("pattern", "name", "is_match"),
    [
        ("code.*", "code.read_file", True),
        ("*", "mcp.a.b", True),
        ("mcp.*", "mcp.a.b", True),
        ("code", "code.x", False),
        ("code.?", "code.xy", False),
    ],
)
def test_patterns_are_globs_over_the_whole_name(pattern: str, name: str, is_match: bool) -> None:
    assert name_matches(pattern, name) is is_match
