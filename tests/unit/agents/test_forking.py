"""A fork knows what its parent knew, and nothing of it counts as its own (DIS-06)."""

import pytest
from msgspec.structs import replace

from soong.shared.agents.compaction import ASIDE, FORKED, fork_nodes
from soong.shared.agents.definition import AgentLimits
from soong.shared.core.errors import ConflictError
from soong.shared.engine.runs.events import NewNode, Node, NodeKind
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.tasks.step import Outcome
from tests.unit.agents.parts import Notebook, RuleGate, make_task
from tests.unit.agents.test_loop import Talker, calls, run, says

pytestmark = pytest.mark.spec("DIS-06")


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


async def test_neither_turns_nor_denials_of_its_parent_count_as_a_forks_own() -> None:
    nodes = fork_nodes(await parent(), "c3", "look aside")
    talker = Talker(calls(("test__shout", {"text": "mine"}, "c9")), says("seen"))
    task = replace(make_task(is_resumed=True), limits=AgentLimits(max_turns=2))

    end, notebook = await run(talker, task, notebook=Notebook(written=list(nodes)))

    assert (end.end_reason, end.output, end.outcome, end.denials) == (EndReason.COMPLETED, "seen", Outcome.CLEAN, ())
    assert end.usage.requests == 2
    assert notebook.written[: len(nodes)] == list(nodes)


async def test_only_the_call_that_started_it_is_told_to_be_its_own() -> None:
    nodes = fork_nodes(await parent(), "c3", "look aside")

    results = {node.payload["tool_call_id"]: str(node.payload) for node in nodes if node.kind is NodeKind.TOOL_RESULT}

    assert (FORKED in results["c3"], ASIDE in results["c3"]) == (True, False)
    assert (FORKED in results["c4"], ASIDE in results["c4"]) == (False, True)
    assert sum(FORKED in one for one in results.values()) == 1


async def test_a_fork_of_a_call_that_was_not_made_is_refused() -> None:
    with pytest.raises(ConflictError, match="no call 'c7'"):
        fork_nodes(await parent(), "c7", "look aside")
