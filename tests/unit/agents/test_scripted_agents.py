"""Scripted agents, and the threads that they run in."""

import asyncio
import gc
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

from soong.shared.agents.ports import AgentEnd
from soong.shared.agents.scripted_model import ScriptedModel
from soong.shared.agents.turn import FINAL_TOOL
from soong.shared.core.errors import InvalidConfigError, ToolCallError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.runs.events import NodeKind
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.tasks.failure_report import FailureReport
from soong.shared.engine.tasks.functions import AgentHandle, ScriptBody, ScriptedAgent, scripted_agent
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Outcome, StepResult
from soong.shared.tools.definition import Permission, ToolContext, ToolDefinition
from soong.shared.tools.ports import GateCall
from tests.unit.agents.parts import Notebook, RuleGate, make_task, run_task
from tests.unit.agents.test_loop import SHOUT, WRITE, Talker, calls, final, run, says
from tests.waiting import others_run

INPUT: JsonObject = {"type": "object", "properties": {"n": {"type": "integer"}, "text": {"type": "string"}}}


@dataclass
class Scene:
    """What the tools touch, and what the run leaves behind."""

    notebook: Notebook = field(default_factory=Notebook)
    allows: Callable[[GateCall], bool] = lambda _call: True
    is_cheap: bool = False
    reads: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    most_at_once: int = 0
    _now: int = 0

    async def double(self, _context: ToolContext, call_input: JsonObject) -> Json:
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        await others_run(5)
        self._now -= 1
        self.reads.append(int(str(call_input["n"])))
        return {"doubled": self.reads[-1] * 2}

    async def store(self, _context: ToolContext, call_input: JsonObject) -> Json:
        self.writes.append(int(str(call_input.get("n", 0))))
        return self.writes[-1]

    async def play(self, body: ScriptBody, *, is_resumed: bool = False, **inputs: Json) -> AgentEnd:
        tools = (
            ToolDefinition("test.double", "Doubles.", INPUT, self.double, Permission.READONLY),
            ToolDefinition("test.store", "Stores.", INPUT, self.store, Permission.WRITE),
        )
        task = make_task(tools=tools, inputs=inputs, run_dirs={"project": "/p", "cwd": "/c"}, is_resumed=is_resumed)
        model = ScriptedModel(ScriptedAgent("test.script", body, self.is_cheap))
        return await run_task(task, model, self.notebook, gate=RuleGate(self.allows))

    @property
    def turns(self) -> list[list[str]]:
        """The ids of the calls of each turn."""
        answers = [node for node in self.notebook.written if node.kind is NodeKind.ASSISTANT]
        parts: list[Any] = [node.payload["message"] for node in answers]
        return [[part["tool_call_id"] for part in message["parts"] if "tool_call_id" in part] for message in parts]


@pytest.fixture(params=[False, True], ids=["on a thread", "cheap"])
def is_cheap(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.spec("DIS-13")
async def test_a_cheap_one_makes_its_calls_one_after_the_other_without_a_thread() -> None:
    threads: set[str] = set()

    async def doubled(inputs: dict[str, Any], agent: AgentHandle) -> Any:
        threads.add(threading.current_thread().name)
        found = [(await agent.call("test.double", n=n))["doubled"] for n in inputs["numbers"]]
        threads.add(threading.current_thread().name)
        return {"sum": sum(found)}

    scene = Scene(is_cheap=True)
    end = await scene.play(doubled, numbers=[1, 2])
    nodes = [*scene.notebook.written, *end.nodes]

    assert (end.output, scene.turns) == ({"sum": 6}, [["t1c1"], ["t2c1"]])
    assert threads == {threading.current_thread().name}
    for cut in range(3, len(nodes)):  # the first three are written at once
        again = Scene(Notebook(written=nodes[:cut]), is_cheap=True)
        assert (await again.play(doubled, is_resumed=True, numbers=[1, 2])).output == {"sum": 6}


@pytest.mark.spec("DIS-13")
async def test_more_calls_at_once_than_a_turn_holds_are_several_turns() -> None:
    async def many(_inputs: dict[str, Any], agent: AgentHandle) -> Any:
        return len(await asyncio.gather(*(agent.call("test.double", n=n) for n in range(201))))

    scene = Scene()

    end = await scene.play(many)

    assert end.output == "201"
    assert [len(turn) for turn in scene.turns] == [200, 1]


def calling(*calls: tuple[str, dict[str, Any]]) -> ScriptBody:
    """Return a function that makes these calls one after another."""

    async def body(_inputs: dict[str, Any], agent: AgentHandle) -> Any:
        for tool, arguments in calls:
            await agent.call(tool, **arguments)
        return "done"

    return body


@pytest.mark.spec("DIS-13", "DIS-13.b")
@pytest.mark.parametrize(
    ("calls", "words"),
    [
        pytest.param([("test.double", {"n": 2})], ('{"n":1}', '{"n":2}'), id="other-arguments"),
        pytest.param([("test.store", {"n": 1})], ("test.double", "came test.store"), id="another-tool"),
        pytest.param([], ('test.double {"n":1}', "came the end"), id="no-call"),
    ],
)
async def test_a_call_that_differs_from_the_recorded_one_ends_the_run(
    calls: Sequence[tuple[str, dict[str, Any]]], words: tuple[str, str]
) -> None:
    first = Scene()
    await first.play(calling(("test.double", {"n": 1}), ("test.store", {"n": 5})))
    second = Scene(Notebook(written=first.notebook.written[:4]))

    end = await second.play(calling(*calls), is_resumed=True)

    assert end.error is not None
    assert (end.end_reason, end.error.type, end.error.retryable) == (EndReason.FAILED, "replay_differs", False)
    assert "call 1 of turn 1 differs from the recorded one: recorded " in end.error.message
    assert all(word in end.error.message for word in words)
    assert (second.reads, second.writes) == ([], [])


@pytest.mark.spec("DIS-13", "DIS-13.a")
async def test_a_denied_call_raises_at_its_await_and_the_run_ends_partial(is_cheap: bool) -> None:
    async def careful(_inputs: dict[str, Any], agent: AgentHandle) -> Any:
        try:
            await agent.call("test.store", n=1)
        except ToolCallError as error:
            return {"tool": error.tool, "status": error.status, "type": error.type, "text": error.text}
        return {}

    end = await Scene(allows=lambda _call: False, is_cheap=is_cheap).play(careful)

    assert end.outcome is Outcome.PARTIAL
    assert isinstance(end.output, dict)
    assert (end.output["tool"], end.output["status"], end.output["type"]) == (
        "test.store",
        "denied",
        "permission_denied",
    )


@pytest.mark.spec("DIS-13")
async def test_an_error_that_it_lets_through_ends_the_run_as_failed(is_cheap: bool) -> None:
    end = await Scene(allows=lambda _call: False, is_cheap=is_cheap).play(calling(("test.store", {"n": 1})))

    assert end.error is not None
    assert end.error.type == "execution_failed"
    assert "ToolCallError: test.store was denied" in end.error.message


@pytest.mark.spec("DIS-13")
@pytest.mark.parametrize(
    "raised",
    [SystemExit(3), StopIteration(), asyncio.CancelledError(), BaseExceptionGroup("several", [KeyboardInterrupt()])],
    ids=lambda error: type(error).__name__,
)
async def test_what_is_no_ordinary_exception_ends_the_run_alone(raised: BaseException, is_cheap: bool) -> None:
    async def broken(_inputs: dict[str, Any], _agent: AgentHandle) -> Any:
        raise raised

    end = await Scene(is_cheap=is_cheap).play(broken)

    assert end.error is not None
    assert end.error.type == "execution_failed"


@pytest.mark.spec("DIS-13")
async def test_waiting_for_something_else_ends_the_run(is_cheap: bool) -> None:
    async def waits(_inputs: dict[str, Any], _agent: AgentHandle) -> Any:
        await asyncio.Event().wait()

    end = await Scene(is_cheap=is_cheap).play(waits)

    assert end.error is not None
    assert "'test.script' waits for something that is not a tool call; await only `agent.call`" in end.error.message


@pytest.mark.spec("DIS-13")
@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}], ids=["object", "nan", "set"])
async def test_an_output_or_an_argument_that_is_not_json_ends_the_run(value: object, is_cheap: bool) -> None:
    async def returns(_inputs: dict[str, Any], _agent: AgentHandle) -> Any:
        return value

    outputs = await Scene(is_cheap=is_cheap).play(returns)
    arguments = await Scene(is_cheap=is_cheap).play(calling(("test.store", {"n": value})))

    assert (outputs.end_reason, arguments.end_reason) == (EndReason.FAILED, EndReason.FAILED)


@pytest.mark.spec("DIS-13")
async def test_a_cancelled_run_cancels_the_function_where_it_waits(is_cheap: bool) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def waits(_inputs: dict[str, Any], agent: AgentHandle) -> Any:
        try:
            await agent.call("test.store", n=1)
        finally:
            loop.call_soon_threadsafe(ended.set)

    scene = Scene(is_cheap=is_cheap)
    stuck = asyncio.Event()

    async def store(_context: ToolContext, _input: JsonObject) -> Json:
        stuck.set()
        return await asyncio.Event().wait()

    scene.store = store  # type: ignore[method-assign, assignment]  # a tool that never ends
    run = asyncio.create_task(scene.play(waits))
    await stuck.wait()

    run.cancel()

    with pytest.raises(asyncio.CancelledError):
        await run
    async with asyncio.timeout(5):
        await ended.wait()


@pytest.mark.spec("DIS-13")
async def test_tasks_that_it_leaves_behind_make_no_noise() -> None:
    async def careless(_inputs: dict[str, Any], agent: AgentHandle) -> Any:
        left = asyncio.ensure_future(agent.call("test.double", n=1))
        await others_run()
        return "left one" if not left.done() else ""

    end = await Scene().play(careless)
    gc.collect()

    assert end.output == "left one"


@pytest.mark.spec("DIS-13")
async def test_it_knows_its_folders_and_none_is_no_argument(is_cheap: bool) -> None:
    async def asks(_inputs: dict[str, Any], agent: AgentHandle) -> Any:
        await agent.call("test.store", n=3, text=None)
        return f"{agent.project} {agent.cwd}"

    end = await Scene(is_cheap=is_cheap).play(asks)

    assert end.output == "/p /c"


@pytest.mark.spec("DIS-13")
def test_a_name_is_given_to_one_coroutine_function() -> None:
    async def one(_inputs: dict[str, Any], _agent: AgentHandle) -> Any:
        return None

    async def other(_inputs: dict[str, Any], _agent: AgentHandle) -> Any:
        return None

    scripted_agent("tests.one")(one)

    assert scripted_agent("tests.one")(one) is one
    with pytest.raises(InvalidConfigError, match=r"two scripted agents are called 'tests\.one'"):
        scripted_agent("tests.one")(other)
    with pytest.raises(InvalidConfigError, match="define it with `async def`"):
        scripted_agent("tests.plain")(lambda _inputs, _agent: None)  # type: ignore[type-var]  # a plain one


SUM: JsonObject = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}


def nothing(_call: GateCall) -> bool:
    return False


@pytest.mark.spec("DAG-10", "DAG-10.a")
async def test_a_child_whose_every_write_was_denied_does_not_count_as_clean() -> None:
    """anthropics/claude-code#32402: a sub-agent reported success although all its writes were auto-denied."""
    talker = Talker(
        calls(("test__write_it", {"text": "a"}, "c1")),
        calls(("test__write_it", {"text": "b"}, "c2")),
        says("All files are written."),
    )

    end, _ = await run(talker, gate=RuleGate(nothing))

    assert (end.end_reason, end.outcome) == (EndReason.COMPLETED, Outcome.PARTIAL)
    assert [(one["tool_call_id"], one["type"]) for one in end.denials] == [
        ("c1", "permission_denied"),
        ("c2", "permission_denied"),
    ]


@pytest.mark.spec("DAG-10", "DAG-10.c")
async def test_a_provider_that_fails_for_good_leaves_what_the_child_had_got_so_far() -> None:
    """Kilo-Org/kilocode#11797: an overloaded provider threw away all that a sub-agent had done."""
    talker = Talker(
        calls(("test__write_it", {"text": "a"}, "c1")),
        ModelResponse(parts=[TextPart("Two of three are fine."), ToolCallPart("test__shout", {"text": "x"}, "c2")]),
        *(ModelHTTPError(status_code=529, model_name="m", body=None) for _ in range(10)),
    )

    end, notebook = await run(talker, gate=RuleGate(nothing))

    payloads = {node.kind: node.payload for node in (*notebook.written, *end.nodes)}
    remains = FailureReport(result=payloads[NodeKind.RESULT], answer=payloads[NodeKind.ASSISTANT])
    left = remains.added_to(StepResult("a", StepStatus.FAILED, None))
    assert end.end_reason is EndReason.PROVIDER_FAILED
    assert left.partial == {"text": "Two of three are fine."}
    assert [one["tool"] for one in left.denials] == ["test.write_it"]


@pytest.mark.spec("DAG-10")
async def test_a_child_restricted_to_one_tool_still_ends_with_its_result() -> None:
    """HazAT/pi-interactive-subagents#41: restricting the tools took away those that a child reports with."""
    talker = Talker(final({"sum": 3}))

    end, _ = await run(talker, make_task(tools=(SHOUT,), output_schema=SUM))

    assert [tool.name for tool in talker.info[0].function_tools] == ["test__shout"]
    assert [tool.name for tool in talker.info[0].output_tools] == [FINAL_TOOL]
    assert (end.end_reason, end.output, end.outcome) == (EndReason.COMPLETED, {"sum": 3}, Outcome.CLEAN)


@pytest.mark.spec("DAG-10", "ETS-01.d", "ETS-02.c", "REG-04.d")
async def test_what_the_model_is_shown_is_what_runs_and_what_is_recorded() -> None:
    """jin-bo/agentao#255: two registries, the model saw one list and the runner executed another."""
    notebook = Notebook()
    talker = Talker(calls(("test__shout", {"text": "a"}, "c1"), ("test__write_it", {"text": "b"}, "c2")), says("done"))

    end, _ = await run(talker, make_task(tools=(SHOUT,)), notebook=notebook)

    offered = [tool.name for tool in talker.info[0].function_tools]
    results = {
        str(node.payload["tool"]): node.payload["error"]
        for node in notebook.written
        if node.kind is NodeKind.TOOL_RESULT
    }
    (report,) = [node.payload for node in end.nodes if node.kind is NodeKind.RESULT]
    assert (offered, report["tools"]) == (["test__shout"], ["test.shout"])
    assert results["test.shout"] is None
    assert cast("Mapping[str, Json]", results["test.write_it"])["type"] == "tool_not_available"
    assert WRITE.name not in notebook.started_calls
