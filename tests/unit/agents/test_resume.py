import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from soong.shared.agents.compaction import ASIDE, FORKED, fork_nodes
from soong.shared.agents.definition import AgentLimits
from soong.shared.agents.model import resolve_model
from soong.shared.agents.ports import AgentEnd
from soong.shared.core.errors import ConflictError, SchemaVersionError, ToolCallError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.runs.events import NewNode, Node, NodeKind
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.runs.store import CallRow, CallStatus
from soong.shared.engine.tasks.failure_report import StepIncidents
from soong.shared.engine.tasks.functions import AgentHandle, scripted_agent
from soong.shared.engine.tasks.step import Outcome
from soong.shared.tools.definition import Permission, ToolContext, ToolDefinition
from tests.unit.agents.parts import Notebook, RuleGate, make_task, run_task
from tests.unit.agents.test_loop import Talker, calls, run, says

NUMBER: JsonObject = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
OUTPUT: JsonObject = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}


@scripted_agent("tests.sums")
async def sums(inputs: dict[str, Any], agent: AgentHandle) -> Any:
    """Double numbers in one turn, then read and write in another."""
    doubled = await asyncio.gather(*(agent.call("test.double", n=n) for n in inputs["numbers"]))
    calls = agent.call("test.double", n=100), agent.call("test.store", n=7), agent.call("test.store", n=8)
    found: Sequence[Any] = await asyncio.gather(*calls, return_exceptions=True)
    return {"sum": sum(doubled) + sum(one for one in found[:2] if not isinstance(one, ToolCallError))}


class World:
    """What the tools touch, and how often."""

    def __init__(self) -> None:
        self.reads: list[int] = []
        self.writes: list[int] = []

    async def double(self, _context: ToolContext, call_input: JsonObject) -> Json:
        self.reads.append(int(str(call_input["n"])))
        return self.reads[-1] * 2

    async def store(self, _context: ToolContext, call_input: JsonObject) -> Json:
        self.writes.append(int(str(call_input["n"])))
        return self.writes[-1]


async def play(
    notebook: Notebook, world: World, *, is_resumed: bool, incidents: StepIncidents | None = None
) -> AgentEnd:
    tools = (
        ToolDefinition("test.double", "Doubles.", NUMBER, world.double, Permission.READONLY),
        ToolDefinition("test.store", "Stores.", NUMBER, world.store, Permission.WRITE),
    )
    task = make_task(tools=tools, inputs={"numbers": [1, 2, 3]}, output_schema=OUTPUT, is_resumed=is_resumed)
    return await run_task(task, resolve_model("script", "tests.sums"), notebook, incidents=incidents)


async def whole_run() -> list[NewNode]:
    notebook = Notebook()
    end = await play(notebook, World(), is_resumed=False)
    assert end.output == {"sum": 200 + 7 + 12}
    return [*notebook.written, *end.nodes]


@pytest.mark.spec("DAG-07.a", "DIS-13.b", "EVT-01.b")
async def test_cut_off_after_any_node_a_run_does_only_what_has_no_result_and_ends_the_same() -> None:
    nodes = await whole_run()
    assert len(nodes) == 2 + 1 + 3 + 1 + 3 + 1 + 1

    for cut in (0, *range(3, len(nodes))):  # the first three are written at once
        world, notebook = World(), Notebook(written=nodes[:cut])

        end = await play(notebook, world, is_resumed=True)

        results = [node for node in nodes[:cut] if node.kind is NodeKind.TOOL_RESULT]
        done_writes = [node for node in results if node.payload["tool"] == "test.store"]
        assert end.output == {"sum": 219}, cut
        assert len(world.reads) == 4 - (len(results) - len(done_writes)), cut
        assert world.writes == [7, 8][len(done_writes) :], cut
        assert kinds(notebook.written + list(end.nodes)) == kinds(nodes), cut


@pytest.mark.spec("DAG-09.b")
async def test_a_write_that_had_started_is_not_repeated_and_ends_as_unknown() -> None:
    nodes = await whole_run()
    second_turn = [index for index, node in enumerate(nodes) if node.kind is NodeKind.ASSISTANT][1]
    before_write = nodes[: second_turn + 2]  # the answer, and the result of its read
    facts: JsonObject = {"facts": {"shown": "shelf 7"}}
    row = CallRow("run_1", "t2c2", "test.store", "run_1/t2c2", True, "", {}, facts, status=CallStatus.STARTED)
    world, notebook = World(), Notebook(written=before_write, calls_=[row])

    end = await play(notebook, world, is_resumed=True)

    errors = {node.payload["tool_call_id"]: error_of(node) for node in notebook.written if error_of(node)}
    assert world.writes == []
    assert errors == {"t2c2": "unknown_after_crash", "t2c3": "not_run"}
    assert end.outcome is Outcome.PARTIAL
    (unknown,) = end.unknown_effects
    assert (unknown["type"], unknown["tool"]) == ("unknown_after_crash", "test.store")
    assert (unknown["effect_id"], unknown["shown"]) == ("run_1/t2c2", "shelf 7")
    assert end.output == {"sum": 212}


@pytest.mark.spec("DAG-09.b", "DAG-10")
async def test_a_second_crash_forgets_neither_the_unknown_effect_nor_what_it_was() -> None:
    nodes = await whole_run()
    second_turn = [index for index, node in enumerate(nodes) if node.kind is NodeKind.ASSISTANT][1]
    row = CallRow("run_1", "t2c2", "test.store", "run_1/t2c2", True, "", {}, {}, status=CallStatus.STARTED)
    notebook = Notebook(written=nodes[: second_turn + 2], calls_=[row])
    first = await play(notebook, World(), is_resumed=True)
    told = StepIncidents()

    again = await play(Notebook(written=notebook.written), World(), is_resumed=True, incidents=told)

    assert list(again.unknown_effects) == list(first.unknown_effects) == told.unknown_effects
    assert again.outcome is Outcome.PARTIAL


@pytest.mark.spec("DIS-05.c")
async def test_a_resumed_run_counts_the_turns_and_usage_of_its_first_life() -> None:
    nodes = await whole_run()

    end = await play(Notebook(written=nodes[:-2]), World(), is_resumed=True)

    assert end.usage.requests == 3


async def test_a_node_of_a_newer_program_is_refused() -> None:
    nodes = await whole_run()
    newer = replace(nodes[0], payload={**nodes[0].payload, "v": 99})

    with pytest.raises(SchemaVersionError, match="version 99"):
        await play(Notebook(written=[newer, *nodes[1:]]), World(), is_resumed=True)


def kinds(nodes: list[NewNode]) -> list[NodeKind]:
    return [node.kind for node in nodes]


def error_of(node: NewNode) -> Json:
    error = node.payload.get("error")
    return error["type"] if isinstance(error, Mapping) else None


async def parent() -> list[Node]:
    """Return the nodes of a run of three turns; a write of the second was denied, the third made two calls."""
    shout = ("test__shout", {"text": "a"})
    talker = Talker(
        calls((*shout, "c1")),
        calls(("test__write_it", {"text": "b"}, "c2")),
        calls((*shout, "c3"), (*shout, "c4")),
        says("done"),
    )
    end, notebook = await run(talker, gate=RuleGate(allows=lambda _call: False))
    assert (end.outcome, len(end.denials)) == (Outcome.PARTIAL, 1)
    return number([*notebook.written, *end.nodes])


def number(nodes: list[NewNode]) -> list[Node]:
    return [Node("run_1", place, place - 1, node.kind, node.payload, 0) for place, node in enumerate(nodes, 1)]


@pytest.mark.spec("DIS-06")
async def test_neither_turns_nor_denials_of_its_parent_count_as_a_forks_own() -> None:
    nodes = fork_nodes(await parent(), "c3", "look aside")
    talker = Talker(calls(("test__shout", {"text": "mine"}, "c9")), says("seen"))
    task = replace(make_task(is_resumed=True), limits=AgentLimits(max_turns=2))

    end, notebook = await run(talker, task, notebook=Notebook(written=list(nodes)))

    assert (end.end_reason, end.output, end.outcome, end.denials) == (EndReason.COMPLETED, "seen", Outcome.CLEAN, ())
    assert end.usage.requests == 2
    assert notebook.written[: len(nodes)] == list(nodes)


@pytest.mark.spec("DIS-06")
async def test_only_the_call_that_started_it_is_told_to_be_its_own() -> None:
    nodes = fork_nodes(await parent(), "c3", "look aside")

    results = {node.payload["tool_call_id"]: str(node.payload) for node in nodes if node.kind is NodeKind.TOOL_RESULT}

    assert (FORKED in results["c3"], ASIDE in results["c3"]) == (True, False)
    assert (FORKED in results["c4"], ASIDE in results["c4"]) == (False, True)
    assert sum(FORKED in one for one in results.values()) == 1


@pytest.mark.spec("DIS-06")
async def test_a_fork_of_a_call_that_was_not_made_is_refused() -> None:
    with pytest.raises(ConflictError, match="no call 'c7'"):
        fork_nodes(await parent(), "c7", "look aside")
