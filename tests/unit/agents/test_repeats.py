"""A model that repeats a failing call is told so, then ended; what it costs until then is bounded."""

from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, UserPromptPart

from soong.shared.agents.definition import AgentLimits
from soong.shared.engine.runs.record import EndReason
from tests.unit.agents.parts import Notebook, RuleGate, make_task
from tests.unit.agents.test_loop import Talker, calls, run, says

pytestmark = pytest.mark.spec("DIS-07")

INVALID = ("test__shout", {"txt": "x"})


def repeated(turns: int, *more: tuple[str, dict[str, Any]]) -> list[ModelResponse]:
    """Return answers that each make the same call, after ``more`` of the same turn."""
    return [
        calls(*((name, arguments, f"c{turn}-{index}") for index, (name, arguments) in enumerate((*more, INVALID))))
        for turn in range(turns)
    ]


def warnings(messages: list[ModelMessage]) -> list[str]:
    parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
    texts = [str(part.content) for part in parts if isinstance(part, UserPromptPart)]
    return [text for text in texts if text.startswith("You repeat a call")]


async def test_the_same_failing_call_is_reported_after_three_and_ends_the_run_after_six() -> None:
    talker = Talker(*repeated(50))

    end, _ = await run(talker)

    assert [len(warnings(told)) for told in talker.told] == [0, 0, 0, 1, 2, 3]
    assert (end.end_reason, end.error and end.error.type) == (EndReason.FAILED, "repeated_failure")
    assert end.error is not None
    assert end.error.message.startswith("the same call failed 6 turns in a row: test.shout failed with invalid_input")
    assert not end.error.retryable


@pytest.mark.parametrize(
    "between",
    [("test__shout", {"text": "fine"}), ("test__shout", {"txt": "another"})],
    ids=["a call that succeeds", "a call that fails in another way"],
)
async def test_a_turn_without_it_restarts_the_count(between: tuple[str, dict[str, Any]]) -> None:
    other = calls((*between, "other"))
    talker = Talker(*repeated(5), other, *repeated(5), says("done"))

    end, _ = await run(talker)

    assert end.end_reason is EndReason.COMPLETED


async def test_calls_beside_it_in_its_turn_do_not_hide_it() -> None:
    talker = Talker(*repeated(50, ("test__shout", {"text": "fine"}), ("test__break", {})))

    end, _ = await run(talker)

    assert end.error is not None
    assert end.error.type == "repeated_failure"


async def test_the_limit_may_be_lifted() -> None:
    talker = Talker(*repeated(10))

    end, _ = await run(talker, make_task(limits=AgentLimits(max_turns=8, max_repeated_failures=0)))

    assert end.end_reason is EndReason.MAX_TURNS


# -- denials
def denying(turns: int) -> list[ModelResponse]:
    """Return answers that each make a write with arguments of its own."""
    return [calls(("test__write_it", {"text": str(turn)}, f"w{turn}")) for turn in range(turns)]


def denial_warnings(messages: list[ModelMessage]) -> int:
    parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
    return sum(isinstance(part, UserPromptPart) and "were denied again" in str(part.content) for part in parts)


async def test_an_agent_that_goes_on_asking_after_denials_is_warned_and_ended() -> None:
    talker = Talker(*denying(50))
    gate = RuleGate(allows=lambda _call: False)

    end, _ = await run(talker, gate=gate)

    assert [denial_warnings(told) for told in talker.told] == [0, 0, 0, 1, 2, 3]
    assert len(gate.asked) == 6
    assert (end.end_reason, end.error and end.error.type) == (EndReason.FAILED, "repeated_failure")
    assert end.error is not None
    assert end.error.message == "calls of test.write_it were denied in 6 turns, and the agent asked for more"
    assert len(end.denials) == 6


async def test_other_turns_between_denials_do_not_reset_their_count() -> None:
    shout = calls(("test__shout", {"text": "x"}, "s"))
    talker = Talker(*(answer for write in denying(6) for answer in (write, shout)))

    end, _ = await run(talker, gate=RuleGate(allows=lambda _call: False))

    assert end.end_reason is EndReason.FAILED
    assert len(talker.told) == 11


async def test_a_permitted_call_of_the_tool_resets_the_count() -> None:
    talker = Talker(*denying(12), says("done"))
    gate = RuleGate(allows=lambda call: call.tool_call_id in ("w3", "w7", "w11"))

    end, _ = await run(talker, gate=gate)

    assert (end.end_reason, end.output) == (EndReason.COMPLETED, "done")
    assert len(gate.asked) == 12


async def test_a_limit_of_zero_ends_no_run_for_denials() -> None:
    talker = Talker(*denying(9), says("done"))
    limits = AgentLimits(max_repeated_failures=0)

    end, _ = await run(talker, make_task(limits=limits), gate=RuleGate(allows=lambda _call: False))

    assert end.output == "done"


async def test_denials_are_counted_across_the_lives_of_a_run() -> None:
    gate, notebook = RuleGate(allows=lambda _call: False), Notebook()
    with pytest.raises(IndexError):  # the process ends after four turns
        await run(Talker(*denying(4)), gate=gate, notebook=notebook)

    end, _ = await run(Talker(*denying(50)[4:]), make_task(is_resumed=True), gate=gate, notebook=notebook)

    assert len(gate.asked) == 6
    assert end.end_reason is EndReason.FAILED
