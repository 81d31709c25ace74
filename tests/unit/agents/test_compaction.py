"""A history that is too long for its model: what is made of it, and that nothing of it is lost."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from pydantic_ai.exceptions import ModelContextWindowExceededError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart

from soong.shared.agents.compaction import (
    LEFT_OUT,
    SUMMARISE,
    SUMMARY_HEAD,
    Cut,
    compacted,
    drop_node,
    follow_up_nodes,
    own_answers,
    summary_node,
)
from soong.shared.agents.conversation import Conversation
from soong.shared.agents.definition import Compaction, CompactionStrategy
from soong.shared.agents.messages import opening_nodes
from soong.shared.agents.ports import AgentTask
from soong.shared.core.errors import SchemaVersionError
from soong.shared.engine.runs.call_events import result_nodes
from soong.shared.engine.runs.events import EventType, NewNode, NodeKind
from soong.shared.engine.runs.record import EndReason
from soong.shared.tools.result import ContextNode, TextBlock, ToolResult
from tests.model.clock import FakeClock
from tests.unit.agents.parts import Notebook, make_task
from tests.unit.agents.test_loop import Talker, calls, run, says

LONG = "word " * 600
"""A result of about 600 tokens for the model, 1,000 by our estimate."""
SMALL = Compaction(window=4000)
FULL = ModelContextWindowExceededError("test", "too long")


def shouting(number: int) -> ModelResponse:
    return calls(("test__shout", {"text": f"{number} {LONG}"}, f"c{number}"))


def text_of(messages: list[ModelMessage]) -> str:
    parts: list[Any] = [part for message in messages for part in message.parts]
    return "\n".join(f"{part.part_kind} {part.content if hasattr(part, 'content') else part.args}" for part in parts)


def small(strategy: CompactionStrategy = CompactionStrategy.SUMMARISE) -> AgentTask:
    return make_task(compaction=replace(SMALL, strategy=strategy))


@pytest.mark.spec("DIS-12.c")
async def test_a_long_history_is_summed_up_and_the_run_goes_on() -> None:
    summary = says("read one and two; three is next")
    talker = Talker(shouting(1), shouting(2), shouting(3), summary, says("done"))

    end, notebook = await run(talker, small())

    assert (end.end_reason, end.output) == (EndReason.COMPLETED, "done")
    asked, last = talker.told[-2:]
    assert SUMMARISE in text_of(asked)
    assert talker.info[-2].function_tools == []
    opening, answer, result = last
    assert SUMMARY_HEAD in text_of([opening])
    assert "three is next" in text_of([opening])
    assert "do it" in text_of([opening])
    assert [part.tool_call_id for part in answer.parts if isinstance(part, ToolCallPart)] == ["c3"]
    assert LONG.upper().strip() in text_of([result])
    assert "1 WORD" not in text_of(last)
    kinds = [node.kind for node in notebook.written]
    assert kinds.count(NodeKind.COMPACTION) == 1
    assert kinds.count(NodeKind.TOOL_RESULT) == 3
    assert EventType.CONTEXT_COMPACTED in notebook.events
    assert end.usage.requests == 5


@pytest.mark.spec("DIS-12.c")
async def test_older_results_are_left_out_without_asking_anybody() -> None:
    talker = Talker(shouting(1), shouting(2), shouting(3), says("done"))

    end, _ = await run(talker, small(CompactionStrategy.DROP_RESULTS))

    assert (end.output, end.usage.requests) == ("done", 4)
    last = talker.told[-1]
    answers = [message for message in last if isinstance(message, ModelResponse)]
    results = [part for message in last if isinstance(message, ModelRequest) for part in message.parts][2:]
    assert len(answers) == 3
    assert [LEFT_OUT in str(part) for part in results] == [True, True, False]


async def test_a_compaction_is_not_repeated_before_the_next_answer() -> None:
    talker = Talker(shouting(1), shouting(2), shouting(3), says("short"))
    notebook = Notebook()
    with pytest.raises(IndexError):  # the process ends after the summary
        await run(talker, small(), notebook=notebook)

    again = Talker(says("done"))
    end, _ = await run(again, replace(small(), is_resumed=True), notebook=notebook)

    assert (end.output, len(again.told)) == ("done", 1)
    assert text_of(again.told[0]) == text_of(talker.told[-1])
    assert end.usage.requests == 5


async def test_a_long_record_is_shortened_for_its_summary() -> None:
    talker = Talker(*(shouting(n) for n in range(4)), FULL, says("short"), says("done"))

    await run(talker, make_task(compaction=Compaction(window=10**9, at=1.0)))
    whole = text_of(talker.told[5])
    talker = Talker(*(shouting(n) for n in range(4)), FULL, says("short"), says("done"))
    await run(talker, make_task(compaction=Compaction(window=1000, at=1.0, strategy=CompactionStrategy.SUMMARISE)))
    cut = next(text_of(told) for told in talker.told if SUMMARISE in text_of(told))

    assert "characters left out" not in whole
    assert "characters left out" in cut
    assert len(cut) < 4000


@pytest.mark.parametrize("payload", [{"v": 9}, {"v": 1}, {"v": 1, "kept_answers": -1}, {"v": 1, "kept_answers": "1"}])
def test_a_compaction_of_another_form_is_refused(payload: dict[str, Any]) -> None:
    with pytest.raises(SchemaVersionError, match="compaction"):
        compacted([NewNode(NodeKind.COMPACTION, payload)])


async def test_a_follow_up_continues_the_shorter_history_and_pays_nothing_for_it() -> None:
    talker = Talker(shouting(1), shouting(2), shouting(3), says("the summary"), says("done"))
    end, notebook = await run(talker, small())
    notebook.written += end.nodes

    followed = Notebook(list(follow_up_nodes(await notebook.nodes(), "and now?")))
    again = Talker(says("this"))
    end, _ = await run(again, make_task(is_resumed=True), notebook=followed)

    assert end.usage.requests == 1
    assert "the summary" in text_of(again.told[0])
    assert "1 WORD" not in text_of(again.told[0])
    assert "and now?" in text_of(again.told[0][-1:])


# -- a history under way and one that is taken up are the same
TURN = st.lists(st.sampled_from(["", "text", "context"]), max_size=3)
"""The calls of a turn: the result of each, and whether it adds context."""
KEPT = st.one_of(st.none(), st.tuples(st.booleans(), st.integers(0, 3)))
"""After a turn: no compaction, or one that is a summary or not and keeps that many answers."""


@given(turns=st.lists(st.tuples(TURN, KEPT), max_size=8))
@settings(max_examples=150)
async def test_what_is_restored_is_what_was_shown(turns: list[tuple[list[str], tuple[bool, int] | None]]) -> None:
    notebook = Notebook()
    live = Conversation(notebook, FakeClock())
    live.begin(opening_nodes("be brief", "do it", {}, {}))
    for number, (results, compaction) in enumerate(turns):
        ids = [f"c{place}" for place, _ in enumerate(results)]  # the same in each turn: ours are made unique
        live.add_answer(ModelResponse([TextPart(f"t{number}"), *(ToolCallPart("test__shout", {}, id_) for id_ in ids)]))
        if results:
            await live.flush()
            made = [_result(part.tool_call_id, kind) for part, kind in zip(live.open_calls, results, strict=True)]
            notebook.written += [node for result in made for node in result_nodes("test.shout", result)]
            live.add_results(made)
        else:
            live.ask_again("and?")
        if compaction is not None:
            cut = Cut((), compaction[1])
            await live.compact(summary_node(cut, says(f"s{number}")) if compaction[0] else drop_node(cut))
    await live.flush()

    nodes = await notebook.nodes()
    taken_up = Conversation(notebook, FakeClock())
    taken_up.restore(nodes)

    assert text_of(taken_up.messages) == text_of(live.messages)
    assert (taken_up.turns, taken_up.is_compacted) == (live.turns, live.is_compacted)
    assert len(own_answers(nodes)) == len(turns) + sum(kept is not None and kept[0] for _, kept in turns)
    assert sorted(taken_up._call_ids) == sorted(live._call_ids)


def _result(call_id: str, kind: str) -> ToolResult:
    context = (ContextNode("skill", "s", "how to"),) if kind == "context" else ()
    return ToolResult(call_id, (TextBlock(kind * 200),), kind, context_nodes=context)
