import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soong.shared.core.errors import LeaseLostError
from soong.shared.core.jsontext import JsonObject
from soong.shared.tools.definition import Permission, ToolDefinition, Traits
from soong.shared.tools.limits import TimeLimit
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.result import ErrorType, ToolFailure, ToolResult
from soong.shared.tools.schedule import GroupKind, plan_groups, run_turn
from tests.unit.tools.parts import make_tool
from tests.waiting import others_run

TOOLS = {
    "code.read": make_tool("code.read"),
    "code.serial": make_tool("code.serial", traits=lambda _: Traits(is_read_only=True)),
    "code.write": make_tool("code.write", permission=Permission.WRITE),
    "agent.dispatch_worker": make_tool("agent.dispatch_worker", is_agent_tool=True),
}
LETTERS = {"r": "code.read", "s": "code.serial", "w": "code.write", "a": "agent.dispatch_worker", "?": "no.such"}


def calls(letters: str) -> list[ToolCall]:
    return [ToolCall(f"{letter}{position}", LETTERS[letter], {}) for position, letter in enumerate(letters)]


def cut(letters: str) -> list[str]:
    return ["".join(call.id[0] for call in group.calls) for group in plan_groups(calls(letters), TOOLS.get)]


@pytest.mark.spec("EXE-03.c", "EXE-03.d")
@pytest.mark.parametrize(
    ("turn", "groups"),
    [
        ("rrr", ["rrr"]),
        ("rrwrr", ["rr", "w", "rr"]),
        ("ww", ["w", "w"]),
        ("rsr", ["r", "s", "r"]),
        ("aara", ["aa", "r", "a"]),
        ("r?r", ["r", "?", "r"]),
        ("", []),
    ],
)
def test_a_turn_is_cut_where_something_must_be_alone(turn: str, groups: list[str]) -> None:
    assert cut(turn) == groups


@pytest.mark.spec("EXE-03.d")
@given(st.text(alphabet="rswa?", max_size=30))
def test_cutting_keeps_the_models_order_and_every_call_once(turn: str) -> None:
    assert "".join(cut(turn)) == turn


def test_traits_that_fail_make_a_call_a_write() -> None:
    def broken(_: JsonObject) -> Traits:
        raise RuntimeError

    tool = make_tool("code.read", traits=broken)

    (group,) = plan_groups([ToolCall("c", "code.read", "not json")], {"code.read": tool}.get)

    assert group.kind is GroupKind.WRITE


@dataclass
class Executor:
    """Runs nothing: waits for its gate, fails where told, and remembers what overlapped."""

    failing: frozenset[str] = frozenset()
    raising: frozenset[str] = frozenset()
    holding: frozenset[str] = frozenset()
    running: int = 0
    most: int = 0
    order: list[str] = field(default_factory=list)
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    def resolve(self, name: str) -> ToolDefinition | None:
        return TOOLS.get(name)

    async def execute(self, call: ToolCall) -> ToolResult:
        self.order.append(f"+{call.id}")
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self._work(call)
        except asyncio.CancelledError:
            self.order.append(f"aborted {call.id}")
            raise
        finally:
            self.running -= 1
        self.order.append(f"-{call.id}")
        error = ToolFailure(ErrorType.EXECUTION_FAILED, "no") if call.id in self.failing else None
        return ToolResult(call.id, error=error)

    async def _work(self, call: ToolCall) -> None:
        await others_run(3)
        if call.id in self.raising:
            raise LeaseLostError("run_1", 1)
        if call.id in self.holding:
            self.reached.set()
            await asyncio.Event().wait()

    async def refuse(self, call: ToolCall, type: ErrorType, message: str) -> ToolResult:
        self.order.append(f"{type.value} {call.id}")
        return ToolResult(call.id, error=ToolFailure(type, message))


def words(results: list[ToolResult]) -> list[str]:
    return [result.error.type.value if result.error else "ok" for result in results]


@pytest.mark.spec("EXE-03.a")
async def test_reads_run_in_parallel_up_to_the_limit_which_is_ten_by_default() -> None:
    usual, limited = Executor(), Executor()

    await run_turn(calls("r" * 12), usual)
    await run_turn(calls("r" * 12), limited, parallel_limit=3)

    assert (usual.most, limited.most) == (10, 3)


@pytest.mark.spec("EXE-03.d")
async def test_nothing_crosses_the_border_of_a_group() -> None:
    executor = Executor()

    await run_turn(calls("rwr"), executor)

    assert executor.order == ["+r0", "-r0", "+w1", "-w1", "+r2", "-r2"]


@pytest.mark.spec("EXE-04.a", "EXE-04.c", "EXE-04")
async def test_a_failed_read_or_agent_stops_nothing_and_an_unknown_tool_counts_as_a_write() -> None:
    assert words(await run_turn(calls("rsw"), Executor(frozenset({"r0", "s1"})))) == ["execution_failed"] * 2 + ["ok"]

    assert words(await run_turn(calls("?r"), Executor(frozenset({"?0"})))) == ["execution_failed", "not_run"]

    results = await run_turn(calls("aaar"), Executor(frozenset({"a1"})))

    assert words(results) == ["ok", "execution_failed", "ok", "ok"]


@pytest.mark.spec("EXE-04.b", "RES-04.c")
async def test_a_failed_write_stops_the_later_calls() -> None:
    executor = Executor(frozenset({"w1"}))

    results = await run_turn(calls("rwra"), executor)

    assert words(results) == ["ok", "execution_failed", "not_run", "not_run"]
    assert executor.order[-2:] == ["not_run r2", "not_run a3"]


@pytest.mark.spec("EXE-11")
@pytest.mark.parametrize("failing", ["r0", "w1", "a2"])
async def test_a_turn_with_a_failed_call_is_yielded_with_every_call_of_it(failing: str) -> None:
    notes: list[tuple[str, JsonObject]] = []

    async def note(type: str, data: JsonObject) -> None:
        notes.append((type, data))

    await run_turn(calls("rwa"), Executor(frozenset({failing})), note=note)

    assert notes[-1] == ("tool_yielded", {"calls": ["r0", "w1", "a2"]})


@pytest.mark.spec("EXE-07.c")
async def test_an_abort_is_said_once_with_all_calls_that_had_no_result() -> None:
    notes: list[tuple[str, JsonObject]] = []

    async def note(type: str, data: JsonObject) -> None:
        notes.append((type, data))

    executor = Executor(holding=frozenset({"w1"}))
    task = asyncio.ensure_future(run_turn(calls("rwr"), executor, note=note))
    await asyncio.wait_for(executor.reached.wait(), 5)

    task.cancel("a person pressed stop")
    with pytest.raises(asyncio.CancelledError):
        await task

    assert notes[-1] == ("aborted_tools", {"calls": ["w1", "r2"], "reason": "a person pressed stop"})


@pytest.mark.spec("EXE-07.d", "EXE-05")
@pytest.mark.parametrize("held", ["r0", "r1", "w2"])
async def test_an_interrupted_turn_gives_every_call_an_end_and_leaves_nothing_running(held: str) -> None:
    executor = Executor(holding=frozenset({held}))
    task = asyncio.ensure_future(run_turn(calls("rrwra"), executor, parallel_limit=1))
    await asyncio.wait_for(executor.reached.wait(), 5)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    ends = [entry for entry in executor.order if not entry.startswith("+")]
    assert sorted(entry[-2:] for entry in ends) == ["a4", "r0", "r1", "r3", "w2"]
    assert executor.running == 0


async def test_a_lost_lease_in_one_call_ends_the_others_and_the_turn() -> None:
    executor = Executor(raising=frozenset({"r0"}), holding=frozenset({"r1"}))

    with pytest.raises(LeaseLostError):
        await run_turn(calls("rrr"), executor)

    assert executor.running == 0


async def wait_twice_and_go_on(limit_s: float, wait_s: float) -> None:
    async with TimeLimit(limit_s) as limit:
        with limit.suspended():
            with limit.suspended():
                await asyncio.sleep(wait_s)
            await asyncio.sleep(wait_s)
        await asyncio.Event().wait()


async def test_the_time_goes_on_after_the_last_of_several_waits() -> None:
    with pytest.raises(TimeoutError):
        await wait_twice_and_go_on(limit_s=0.02, wait_s=0.05)
