"""One contract for every source of tools: names, schemas, risk, taint, time limits, cancellation, hostile output."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.tools import StructuredTool, ToolException
from msgspec.structs import replace
from pydantic import BaseModel
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.toolsets import FunctionToolset

from soong.shared.core.config import Config, parse_config
from soong.shared.core.errors import InvalidToolError
from soong.shared.permissions.rules import reads_untrusted
from soong.shared.sandbox.paths import PathPolicy
from soong.shared.sandbox.process import ProcessRunner
from soong.shared.tools.definition import Permission, Risk, ToolDefinition
from soong.shared.tools.permission_check import effective_traits, risk_of
from soong.shared.tools.registry import MAX_TIMEOUT, ToolRegistry, Toolset
from soong.shared.tools.result import ErrorType, ToolError
from soong.shared.tools.schema import schema_problems
from soong.shared.toolsets.declarative.running import DeclarativeTools
from soong.shared.toolsets.mcp.toolset import McpTools, servers_of
from soong.shared.toolsets.modules import check_foreign, from_langchain, from_pydantic_ai, register_modules
from tests.unit.tools.parts import error_of, make_bench
from tests.unit.toolsets.mcp_contract_server import HOSTILE
from tests.unit.toolsets.test_mcp_definitions import made as mcp_tools
from tests.waiting import others_run

NAMES = ("echo", "slow", "break", "hostile")
SERVER = Path(__file__).with_name("mcp_contract_server.py")
Source = Callable[[Path], ToolRegistry]


class EchoInput(BaseModel):
    """What ``echo`` takes."""

    text: str
    count: int = 1


async def echo(text: str, count: int = 1) -> str:
    """Say a text again."""
    return text * count


async def slow() -> str:
    """Take a minute."""
    await asyncio.Event().wait()
    return "late"


async def hostile() -> str:
    """Give too much, with a secret and with marks that turn a terminal."""
    return HOSTILE


def code(_folder: Path) -> ToolRegistry:
    registry = ToolRegistry()
    _decorate(registry.tool)
    return registry


def module(folder: Path) -> ToolRegistry:
    name = f"module_{abs(hash(folder))}"
    (folder / f"{name}.py").write_text(
        "from soong import Toolset\nfrom tests.unit.toolsets.test_sources_contract import _decorate\n"
        "tools = Toolset()\n_decorate(tools.tool)\n"
    )
    registry = ToolRegistry()
    register_modules(registry, (name,), (str(folder),))
    return registry


def _decorate(tool: Callable[..., Any]) -> None:
    async def fail() -> str:
        """Fail."""
        raise ToolError(ErrorType.EXECUTION_FAILED, "it broke")

    for name, function in (("echo", echo), ("slow", slow), ("break", fail), ("hostile", hostile)):
        tool(f"lib.{name}")(function)


def declarative(folder: Path) -> ToolRegistry:
    """The same as programs: JSON on standard input, a result on standard output."""
    programs = {
        "echo": (
            "import json, sys; given = json.load(sys.stdin); "
            "print(json.dumps({'data': given['text'] * given.get('count', 1)}))"
        ),
        "slow": "import time; time.sleep(60)",
        "break": "import sys; sys.exit('it broke')",
        "hostile": f"import json; print(json.dumps({{'content': [{{'kind': 'text', 'text': {HOSTILE!r}}}]}}))",
    }
    for name, program in programs.items():
        schema = EchoInput.model_json_schema() if name == "echo" else {"type": "object", "properties": {}}
        document = {
            "name": f"lib.{name}",
            "description": f"The program {name}.",
            "input_schema": {"type": "object", **{k: v for k, v in schema.items() if k in ("properties", "required")}},
            "permission": "write",
            "command": sys.executable,
            "args": ["-c", program],
        }
        place = folder / "tools" / f"{name}.json"
        place.parent.mkdir(exist_ok=True)
        place.write_text(json.dumps(document))
    registry = ToolRegistry()
    DeclarativeTools(folder, ProcessRunner(), Config(), PathPolicy(folder)).register(registry)
    return registry


def pydantic_ai(_folder: Path) -> ToolRegistry:
    toolset: FunctionToolset[None] = FunctionToolset()

    async def fail() -> str:
        """Fail."""
        raise ModelRetry("it broke")

    for name, function in (("echo", echo), ("slow", slow), ("break", fail), ("hostile", hostile)):
        toolset.add_function(function, name=name)
    return _registered(from_pydantic_ai(toolset, "lib"))


def langchain(_folder: Path) -> ToolRegistry:
    async def fail() -> str:
        """Fail."""
        raise ToolException("it broke")

    functions = (("echo", echo), ("slow", slow), ("break", fail), ("hostile", hostile))
    tools = [StructuredTool.from_function(coroutine=function, name=name) for name, function in functions]
    return _registered(from_langchain(tools, "lib"))


def mcp(folder: Path) -> ToolRegistry:
    """The same from a program that speaks MCP; the tests share a home, so that it is asked once what it offers."""
    home = folder.parent / "mcp-contract-home"
    home.mkdir(exist_ok=True)
    config = parse_config(f'[mcp.servers.lib]\ncommand = "{sys.executable}"\nargs = ["{SERVER}"]')
    registry = ToolRegistry()
    McpTools(servers_of(home, config), MAX_TIMEOUT).register(registry)
    return registry


def _registered(toolset: Toolset) -> ToolRegistry:
    registry = ToolRegistry()
    registry.add(toolset)
    return registry


SOURCES: Mapping[str, Source] = {
    "code": code,
    "module": module,
    "declarative": declarative,
    "pydantic-ai": pydantic_ai,
    "langchain": langchain,
    "mcp": mcp,
}
BAD_INPUTS: list[Any] = [
    None, 7, "text", [], {}, {"text": None}, {"text": 7}, {"text": []}, {"text": "x", "more": 1},
    {"text": "x", "count": "two"}, {"text": "x", "count": [2]}, {"text": "x", "count": 1.5}, {"TEXT": "x"},
    {"text": {"text": "x"}}, "{", '{"text": "x"', '{"text": "x", "text": "y"}', "NaN", {"text": "x", "": 1},
]  # fmt: skip


in_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=SOURCES, name="registry")
async def _registry(request: pytest.FixtureRequest, project: Path) -> AsyncIterator[ToolRegistry]:
    registry = SOURCES[request.param](project)
    yield registry
    await registry.close()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One project for all tests: a server that speaks MCP has a process for each."""
    return tmp_path_factory.mktemp("project")


def tool(registry: ToolRegistry, name: str) -> ToolDefinition:
    (found,) = (each for each in registry.definitions() if each.name.endswith(f"lib.{name}"))
    return found


@pytest.mark.spec("REG-01", "REG-02", "REG-12.c", "SCH-01")
def test_every_tool_has_a_canonical_name_and_a_schema_of_the_subset(registry: ToolRegistry) -> None:
    for name in NAMES:
        found = tool(registry, name)
        assert list(schema_problems(found.input_schema)) == []
        assert found.input_schema["additionalProperties"] is False
        assert found.description


@pytest.mark.spec("PER-11.a", "PER-11.d", "REG-05.i")
def test_what_declares_nothing_writes_asks_and_brings_in_what_strangers_wrote(registry: ToolRegistry) -> None:
    for name in NAMES:
        found = tool(registry, name)
        traits = effective_traits(found, {})
        assert (found.permission, traits.is_read_only, traits.is_concurrency_safe) == (Permission.WRITE, False, False)
        assert risk_of(found, traits) >= Risk.WRITE
        assert reads_untrusted(found)


@in_one_loop
@pytest.mark.spec("REG-01", "REG-01.b", "REG-01.c", "SCH-03")
async def test_a_call_gives_its_result_and_bad_inputs_never_reach_the_tool(
    registry: ToolRegistry, project: Path
) -> None:
    bench = make_bench(registry.definitions(), project=project)
    good = await bench.call(tool(registry, "echo").name, {"text": "ab", "count": 2})
    assert (good.ok, "abab" in str(good.content)) == (True, True)

    for value in BAD_INPUTS:
        bench = make_bench(registry.definitions(), project=project)
        result = await bench.call(tool(registry, "echo").name, value)
        assert result.error is not None, value
        assert result.error.type is ErrorType.INVALID_INPUT, value
        assert bench.gate.asked == []


@in_one_loop
@pytest.mark.spec("RES-04", "RES-05")
async def test_a_failure_is_a_result_that_says_why(registry: ToolRegistry, project: Path) -> None:
    result = await make_bench(registry.definitions(), project=project).call(tool(registry, "break").name, {})

    assert error_of(result).type is ErrorType.EXECUTION_FAILED
    assert "it broke" in error_of(result).message


@in_one_loop
@pytest.mark.spec("EXE-08", "RES-04")
async def test_a_call_that_takes_too_long_ends_as_timeout(registry: ToolRegistry, project: Path) -> None:
    await make_bench(registry.definitions(), project=project).call(tool(registry, "echo").name, {"text": "up"})
    hasty = replace(tool(registry, "slow"), timeout=timedelta(milliseconds=300))

    result = await make_bench([hasty], project=project).call(hasty.name, {})

    assert error_of(result).type is ErrorType.TIMEOUT


@in_one_loop
@pytest.mark.spec("EXE-07")
async def test_a_call_that_is_cancelled_ends_and_is_recorded_as_aborted(registry: ToolRegistry, project: Path) -> None:
    bench = make_bench(registry.definitions(), project=project)
    await make_bench(registry.definitions(), project=project).call(tool(registry, "echo").name, {"text": "up"})
    calling = asyncio.create_task(bench.call(tool(registry, "slow").name, {}))
    async with asyncio.timeout(20):
        while not bench.log.starts:  # the log of a test, which tells nobody
            await others_run()
        calling.cancel("a person said so")
        with pytest.raises(asyncio.CancelledError):
            await calling

    assert bench.ended.error is not None
    assert bench.ended.error.type is ErrorType.ABORTED


@in_one_loop
@pytest.mark.spec("RES-03", "EVT-05")
async def test_too_much_output_is_an_artifact_and_holds_no_secret(registry: ToolRegistry, project: Path) -> None:
    result = await make_bench(registry.definitions(), project=project).call(tool(registry, "hostile").name, {})

    assert result.ok
    assert 1_000 < len(str(result.content)) < 14_000
    assert "AKIA" not in str(result)


@settings(max_examples=60, deadline=None)
@given(
    name=st.from_regex(r"[a-z][a-z_]{0,12}(run|write|exec|delete|get|list)?", fullmatch=True), is_named=st.booleans()
)
@pytest.mark.spec("PER-11.b", "PER-11.d")
def test_no_source_lowers_a_risk(name: str, is_named: bool) -> None:
    """What others say of a tool lowers nothing; only the user's list, or trust in a server, makes one a read."""
    toolset: FunctionToolset[None] = FunctionToolset()
    toolset.add_function(slow, name=name, metadata={"readOnlyHint": True})
    structured = StructuredTool.from_function(coroutine=slow, name=name, metadata={"readOnlyHint": True})
    readonly = (name,) if is_named else ()
    server = f'command = "x"\ntrusted = {json.dumps(is_named)}'
    for tools in (
        from_pydantic_ai(toolset, "lib", readonly=readonly).tools(),
        from_langchain([structured], "lib", readonly=readonly).tools(),
        mcp_tools({"name": name, "annotations": {"readOnlyHint": True}}, server=server).definitions,
    ):
        (found,) = tools
        traits = effective_traits(found, {})
        assert (traits.is_read_only, traits.is_open_world, reads_untrusted(found)) == (is_named, True, True)
        assert risk_of(found, traits) >= (Risk.READ if is_named else Risk.WRITE)
        if any(word in name for word in ("run", "exec")):
            assert risk_of(found, traits) >= Risk.EXECUTE


@pytest.mark.parametrize("namespace", ["code", "internal", "agent", "mcp"])
def test_no_module_takes_a_name_of_ours(namespace: str) -> None:
    source = from_langchain([StructuredTool.from_function(coroutine=slow, name="read_file")], namespace)

    with pytest.raises(InvalidToolError, match="Soong's own"):
        check_foreign(source.tools()[0])
