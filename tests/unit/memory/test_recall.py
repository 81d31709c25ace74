from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from soong.orchestrator.client.tool_registry import registry_of
from soong.shared.agents.runtime.call_log import RunCallLog
from soong.shared.core.config import MemoryConfig, parse_config
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.identity import Role
from soong.shared.core.timing import SystemClock
from soong.shared.permissions.rules import brings_untrusted, reads_untrusted
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.definition import Permission
from soong.shared.tools.pipeline import RunScope, ToolPipeline
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.result import ErrorType, ToolResult
from soong.shared.tools.surface import SurfaceRequest, compute_surface
from soong.shared.toolsets.memory.provider import (
    NAME,
    Memory,
    MemoryScope,
    ModuleMemory,
    RecallTools,
    import_extractor,
    import_provider,
)
from soong.shared.toolsets.sources import ToolEnvironment
from tests.contract.scene import open_scene
from tests.model.memory import MemoryStore
from tests.unit.tools.parts import Artifacts, RecordingGate, make_bench, make_registry, make_run_dirs


@dataclass
class ListedMemory:
    """A provider that gives what it is told to, whatever is asked."""

    memories: Sequence[object] = ()
    saved: list[Memory] = field(default_factory=list)

    async def search(
        self, query: str, *, project: str, scope: MemoryScope | None = None, limit: int = 5
    ) -> Sequence[Memory]:
        del query, project, scope, limit
        return self.memories  # type: ignore[return-value]  # foreign code may give anything

    async def save(self, memory: Memory) -> None:
        self.saved.append(memory)

    async def entries(self) -> Sequence[Memory]:
        return self.memories  # type: ignore[return-value]  # as above

    async def remove(self, memory_id: str) -> bool:
        return memory_id == "there"


TABS = Memory("The user likes tabs.", tags=("style",), sources=("run_7",), is_tainted=False, created="2026-11-25T09Z")


async def recalled(*memories: object, **arguments: object) -> ToolResult:
    tools = RecallTools(MemoryConfig(), ModuleMemory(ListedMemory(memories)), Redactor(("plumage-of-gold",)))
    bench = make_bench(tools.tools(), project=Path("/work/a"))
    return await bench.call(NAME, {"query": "tabs", **arguments})  # type: ignore[dict-item]


@pytest.mark.spec("MEM-01.b", "REG-05.e")
async def test_what_is_recalled_is_a_node_of_the_context_with_its_sources() -> None:
    result = await recalled(TABS)

    (node,) = result.context_nodes
    assert (node.kind, node.name) == ("memory_context", "1 memory about 'tabs'")
    assert "The user likes tabs.\n  (" + TABS.id in node.text
    assert "everywhere; tags: style; from run_7; 2026-11-25" in node.text
    assert "information, not instructions" in node.text
    assert result.data == [
        {"id": TABS.id, "scope": "user", "tags": ["style"], "sources": ["run_7"], "is_tainted": False}
    ]
    assert not brings_untrusted(result)


@pytest.mark.spec("MEM-01.b")
async def test_nothing_recalled_adds_nothing() -> None:
    result = await recalled()

    assert (result.ok, result.context_nodes, result.summary) == (True, (), "0 memories")


@pytest.mark.spec("PER-21.a", "MEM-01")
async def test_a_memory_of_a_tainted_run_taints_the_run_that_recalls_it() -> None:
    scene = await open_scene(MemoryStore())
    await scene.task("a", "b")
    clean, tainted = await scene.claim()
    for claim, memory in ((clean, TABS), (tainted, replace(TABS, is_tainted=True))):
        run_id = claim.identity.run_id
        log = RunCallLog(scene.store.runs, Artifacts(), SystemClock(), run_id, claim.fence)
        tools = RecallTools(MemoryConfig(), ListedMemory((TABS, memory))).tools()
        scope = RunScope(claim.identity, claim.fence, make_run_dirs(Path("/work/a")))
        pipeline = ToolPipeline(make_registry(*tools).definitions(), scope, RecordingGate(), log)
        assert (await pipeline.execute(ToolCall("call_1", NAME, {"query": "tabs"}))).ok

    assert not any(reads_untrusted(tool) for tool in RecallTools().tools())
    assert not await scene.store.runs.is_tainted(clean.identity.run_id)
    assert await scene.store.runs.is_tainted(tainted.identity.run_id)


@pytest.mark.spec("MEM-01.c", "RES-05")
@pytest.mark.parametrize(
    "wrong", ["text", 7, [TABS.content], {"content": "x"}], ids=["text", "number", "texts", "object"]
)
async def test_what_a_provider_gives_that_is_no_memory_fails_the_call(wrong: object) -> None:
    tools = RecallTools(MemoryConfig(), ModuleMemory(ListedMemory(wrong)))  # type: ignore[arg-type]

    result = await make_bench(tools.tools()).call(NAME, {"query": "tabs"})

    assert result.error is not None
    assert result.error.type is ErrorType.INVALID_OUTPUT


async def test_a_provider_cannot_give_a_project_what_is_another_ones() -> None:
    other = Memory("Other.", MemoryScope.PROJECT, project="/work/b")

    result = await recalled(other, TABS)
    projects = await recalled(other, TABS, scope="project")

    assert [each["id"] for each in result.data] == [TABS.id]  # type: ignore[union-attr,call-overload,index]
    assert projects.data == []


async def test_what_is_recalled_is_bounded_and_without_secrets() -> None:
    many = [Memory(f"{number} plumage-of-gold " + "x" * 3_000) for number in range(20)]

    (node,) = (await recalled(*many, limit=20)).context_nodes

    assert len(node.text) < 13_000
    assert "plumage" not in node.text


@pytest.mark.spec("MEM-01.a", "MEM-02.a")
def test_it_only_reads_and_no_tool_writes_memory() -> None:
    registered = registry_of(ToolEnvironment()).definitions()

    assert [tool.name for tool in registered if "memor" in tool.name] == [NAME]
    (recall,) = (tool for tool in registered if tool.name == NAME)
    assert recall.permission is Permission.READONLY


@pytest.mark.spec("MEM-02.b")
def test_without_memory_no_agent_has_it() -> None:
    environment = ToolEnvironment(config=parse_config("[memory]\nenabled = false"))

    surface = compute_surface(registry_of(environment).definitions(), SurfaceRequest(Role.MAIN))

    decision = surface.explain(NAME)
    assert decision is not None
    assert (decision.is_in, decision.rule) == (False, "tool: is_enabled says no")


@pytest.mark.spec("MEM-01.c", "MEM-02.d")
async def test_a_module_of_the_users_is_a_provider(tmp_path: Path) -> None:
    (tmp_path / "own_memory.py").write_text(
        "from tests.unit.memory.test_recall import ListedMemory, TABS\nmemory_provider = ListedMemory((TABS,))\n"
    )

    provider = import_provider("own_memory", [str(tmp_path)])

    assert list(await provider.search("x", project="")) == list(await provider.entries()) == [TABS]
    assert await provider.remove("there")


@pytest.mark.parametrize(
    ("text", "problem"),
    [("", "has no memory_provider"), ("memory_provider = 7", "without async search"), ("1/0", "cannot be imported")],
)
def test_a_module_that_is_no_provider_says_why(tmp_path: Path, text: str, problem: str) -> None:
    name = f"not_memory_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text)

    with pytest.raises(InvalidConfigError, match=problem):
        import_provider(name, [str(tmp_path)])


@pytest.mark.parametrize(
    ("text", "problem"),
    [("team", "write MODULE:NAME"), ("json:team.extract", "does not register"), ("no_such:x", "not installed")],
)
def test_an_extractor_that_is_none_says_why(text: str, problem: str) -> None:
    with pytest.raises(InvalidConfigError, match=problem):
        import_extractor(text)
