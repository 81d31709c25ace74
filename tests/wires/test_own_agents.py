"""An agent of Pydantic AI as it is, on a wire server: its requests, its tools, its crashes (BYO-01)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from agents import Agent as SdkAgent
from llmock.scenarios import Fail, Reply, ToolCall
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.messages import BinaryContent, PartDeltaEvent
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import ExternalToolset

from soong import InvalidPlanError, plan, step
from soong.shared.agents.definition import AgentLimits, ModelOptions
from soong.shared.agents.model import resolve_model
from soong.shared.agents.own.registration import register_agent
from soong.shared.agents.requests import Reserved
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.runs.budgets import BudgetSpentError, Charge
from soong.shared.engine.runs.events import EventType, NodeKind
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.tasks.functions import StepContext
from soong.shared.engine.tasks.plan.reader import plan_from_json
from soong.shared.engine.tasks.step import Outcome
from soong.shared.tools.hooks.chain import Hooks
from soong.shared.tools.hooks.hook import HookCall, Matcher, NamedHook, PreOutcome
from tests.unit.agents.parts import RuleGate
from tests.wires.own_run import READ, BorderView, KilledError, Ledger, OwnRun, World, killed_at_every_border
from tests.wires.wire import Wires

NAME = "tests.reviewer"


class Report(BaseModel):
    owner: str
    bugs: int


WORLD = World()


@asynccontextmanager
async def opened(inputs: JsonObject, context: StepContext) -> AsyncIterator[str]:
    """Give a dependency that is open while the agent runs."""
    WORLD.opened.append(f"{inputs['prompt']} {context.identity.run_id}")
    yield "blue"
    WORLD.opened.append("closed")


MODEL = "openai-chat:gpt-5"
agent = Agent(MODEL, deps_type=str, output_type=Report, instructions="You look for bugs.", defer_model_check=True)


@agent.tool
async def owner_of(ctx: RunContext[str], path: str) -> str:
    """Return who owns a file."""
    WORLD.owners.append(path)
    return f"{ctx.deps} owns {path}"


@agent.tool_plain
def file_issue(title: str) -> dict[str, int]:
    """File an issue."""
    if title == "vague":
        raise ModelRetry("say what is wrong")
    WORLD.issues.append(title)
    WORLD.ledger.border("the effect of a call")
    return {"number": len(WORLD.issues)}


@agent.output_validator
def has_bugs(output: Report) -> Report:
    if output.bugs < 1:
        raise ModelRetry("look again, there is one")
    return output


REPORT = {"owner": "blue", "bugs": 1}
REPLIES = (
    Reply(tool_calls=(ToolCall("owner_of", {"path": "a.py"}), ToolCall("code__read_file", {"path": "a.py"}))),
    Reply(tool_calls=(ToolCall("file_issue", {"title": "vague"}),)),
    Reply(tool_calls=(ToolCall("file_issue", {"title": "x is unused"}), ToolCall("owner_of", {"path": "b.py"}))),
    Reply(tool_calls=(ToolCall("final_result", {"owner": "blue", "bugs": 0}),)),
    Reply(tool_calls=(ToolCall("final_result", {"owner": "blue", "bugs": 1}),)),
)


@pytest.fixture
def own(wires: Wires) -> OwnRun:
    register_agent(NAME, agent, deps=opened, readonly=["owner_of"])
    WORLD.begin()
    return OwnRun(wires, NAME, REPLIES, tools=(READ,))


@pytest.mark.spec("BYO-01.a", "BYO-01.b")
async def test_an_agent_runs_as_it_is(own: OwnRun) -> None:
    ledger = Ledger()

    end = await own(ledger)

    assert (end.end_reason, end.outcome, end.output) == (
        EndReason.COMPLETED,
        Outcome.CLEAN,
        {"owner": "blue", "bugs": 1},
    )
    assert (WORLD.owners, WORLD.issues) == (["a.py", "b.py"], ["x is unused"])
    assert [tool for tool, _ in ledger.results] == [
        *("code.read_file", "final_result"),
        *(f"{NAME}.file_issue",) * 2,
        *(f"{NAME}.owner_of",) * 2,
    ]
    assert [call.definition.name for call in own.gate.asked] == [f"{NAME}.file_issue"] * 2
    assert (end.usage.requests, len(own.wires.requests)) == (5, 5)
    assert WORLD.opened == ["Look at a.py run_1", "closed"]


@pytest.mark.spec("BYO-01.c")
async def test_killed_at_any_border_it_goes_on_and_nothing_is_done_or_charged_twice(own: OwnRun) -> None:
    assert await killed_at_every_border(own, WORLD, 5) > 40


@pytest.mark.spec("BYO-01.c")
@pytest.mark.parametrize("what", ["prompt", "tool"])
async def test_an_agent_that_does_something_else_than_recorded_ends_its_run(own: OwnRun, what: str) -> None:
    dying = Ledger(dies_at=20)
    with pytest.raises(KilledError):
        await own(dying)
    again = dying.resumed()
    if what == "prompt":
        own.overrides = {"inputs": {"prompt": "Look at b.py"}}
    else:
        nodes = [node for node in again.written if node.kind is NodeKind.TOOL_RESULT]
        nodes[0].payload["tool"] = "code.other"  # type: ignore[index]

    end = await own(again)

    assert end.error is not None
    assert (end.error.type, end.error.retryable) == ("replay_differs", False)
    assert "Look at b.py" in end.error.message or "code.other" in end.error.message
    assert own.wires.requests == []


@pytest.mark.spec("BYO-01.b")
async def test_a_denied_call_is_the_agents_to_handle(own: OwnRun) -> None:
    own.gate = RuleGate(allows=lambda call: False)

    end = await own()

    assert (end.outcome, end.output, WORLD.issues) == (Outcome.PARTIAL, REPORT, [])
    assert {one["tool"] for one in end.denials} == {f"{NAME}.file_issue"}
    told = str(own.wires.requests[-1].body)
    assert "permission_denied" in told


@pytest.mark.spec("BYO-01.b")
async def test_a_hook_rewrites_the_call_of_an_own_tool(own: OwnRun) -> None:
    async def elsewhere(_call: HookCall) -> PreOutcome:
        return PreOutcome(call_input={"path": "c.py"})

    own.hooks = Hooks((NamedHook("elsewhere", elsewhere, Matcher(f"{NAME}.owner_of")),))

    await own()

    assert WORLD.owners == ["c.py", "c.py"]


@pytest.mark.spec("BYO-01.a")
async def test_answers_are_shown_while_they_arrive(own: OwnRun) -> None:
    view = BorderView(Ledger())
    own.view = lambda _ledger: view

    await own()

    assert sum(isinstance(piece, PartDeltaEvent) for piece in view.pieces) > 5


@pytest.mark.spec("BYO-01.a")
async def test_busy_providers_are_asked_again_and_a_final_failure_ends_the_step_for_another_attempt(
    own: OwnRun,
) -> None:
    own.replies = (Fail(503, times=2), *REPLIES)  # type: ignore[assignment]
    busy = await own(ledger := Ledger())
    own.replies = (Fail(503, times=None),)  # type: ignore[assignment]

    down = await own()

    assert busy.output == REPORT
    assert ledger.events.count(EventType.MODEL_FAILED) == 2
    assert down.error is not None
    assert (down.end_reason, down.error.retryable) == (EndReason.PROVIDER_FAILED, True)


@pytest.mark.spec("BYO-01.a")
async def test_a_limit_ends_the_run_before_the_next_request(own: OwnRun) -> None:
    own.overrides = {"limits": AgentLimits(max_turns=2)}

    end = await own()

    assert (end.end_reason, len(own.wires.requests)) == (EndReason.MAX_TURNS, 2)


@dataclass
class NearlySpent:
    """A budget that has room for one request."""

    charges: list[Charge] = field(default_factory=list)

    async def reserve(self, charge: Charge) -> Reserved | None:
        if self.charges:
            raise BudgetSpentError("the session has used its budget", "tokens")
        return Reserved(1, charge.tokens / 10**6)

    async def settle(self, _reserved: Reserved, charge: Charge) -> None:
        self.charges.append(charge)


@pytest.mark.spec("BYO-01.a")
async def test_a_request_is_charged_and_a_spent_budget_ends_the_run(own: OwnRun) -> None:
    own.more = {"budgets": (budget := NearlySpent())}

    end = await own()

    assert end.error is not None
    assert (end.end_reason, end.error.type) == (EndReason.TOKEN_LIMIT, "budget_exceeded")
    assert ([charge.turns for charge in budget.charges], len(own.wires.requests)) == ([1], 1)
    assert budget.charges[0].tokens == end.usage.input_tokens + end.usage.output_tokens


@pytest.mark.spec("BYO-01.a")
async def test_the_steps_model_and_settings_replace_the_agents(own: OwnRun) -> None:
    own.overrides = {"options": ModelOptions(max_tokens=77)}

    await own(model=resolve_model("anthropic:claude-sonnet-5-5"))

    body = own.wires.requests[0].body
    assert (body["model"], body["max_tokens"]) == ("claude-sonnet-5-5", 77)


@pytest.mark.spec("BYO-01")
@pytest.mark.parametrize(
    ("reply", "type", "words"),
    [
        (Reply(text="no report"), "invalid_output", "Exceeded maximum output retries"),
        (Reply(tool_calls=(ToolCall("breaks", {}),)), "execution_failed", "ValueError: it broke"),
    ],
)
async def test_what_ends_the_agent_fails_its_step(wires: Wires, reply: Reply, type: str, words: str) -> None:
    failing = Agent(MODEL, output_type=Report, defer_model_check=True)

    @failing.tool_plain
    def breaks() -> str:
        raise ValueError("it broke")

    register_agent("tests.failing", failing)

    end = await OwnRun(wires, "tests.failing", (reply,) * 9)()

    assert end.error is not None
    assert (end.error.type, end.error.retryable) == (type, True)
    assert words in end.error.message


@pytest.mark.spec("BYO-01")
async def test_an_agent_on_the_librarys_model_for_tests_has_one_request_a_turn(wires: Wires) -> None:
    trial = Agent(TestModel(custom_output_text="done"))

    @trial.tool_plain
    def look() -> str:
        return "seen"

    register_agent("tests.trial", trial, readonly=["look"])

    end = await OwnRun(wires, "tests.trial", ())()

    assert (end.output, end.usage.requests, end.usage.tool_calls) == ("done", 2, 1)


@pytest.mark.spec("BYO-01")
async def test_files_in_results_and_calls_that_ask_for_approval_keep_their_meaning(wires: Wires) -> None:
    looking = Agent(MODEL, defer_model_check=True)

    @looking.tool_plain
    def picture() -> list[str | BinaryContent]:
        return ["a cat", BinaryContent(b"\x89PNG", media_type="image/png")]

    @looking.tool_plain(requires_approval=True)
    def buy() -> str:
        return "bought"

    register_agent("tests.looking", looking, readonly=["picture", "buy"])
    calls = (ToolCall("picture", {}), ToolCall("buy", {}))
    own = OwnRun(wires, "tests.looking", (Reply(tool_calls=calls), Reply(text="done")))

    end = await own()

    assert end.output == "done"
    assert [call.definition.name for call in own.gate.asked] == ["tests.looking.buy"]
    assert "iVBORw==" not in str(own.wires.requests[-1].body["messages"][-1]["content"])[:20]
    assert "image/png;base64" in str(own.wires.requests[-1].body)


@pytest.mark.spec("BYO-01")
@pytest.mark.parametrize(
    ("name", "given", "readonly", "words"),
    [
        ("Reviewers", agent, (), "'Reviewers' is not the name of an agent"),
        ("code.reviewer", agent, (), "the first part is none of"),
        ("tests.other", object(), (), "is not an agent of Pydantic AI"),
        ("tests.other", agent, ("owner",), "no tool 'owner' of its own; readonly can name: file_issue, owner_of"),
        ("tests.other", Agent(toolsets=[ExternalToolset([])]), (), "ExternalToolset"),
        ("tests.other", Agent(deps_type=World), (), "has a `deps_type`, and its step gives it no dependencies; pass"),
        (NAME, Agent(), (), "two agents are registered as 'tests.reviewer'"),
    ],
)
def test_what_cannot_be_registered_says_why(
    own: OwnRun, name: str, given: object, readonly: tuple[str, ...], words: str
) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        register_agent(name, given, readonly=readonly, origin="here")


@pytest.mark.spec("BYO-01", "FLW-01.b")
def test_a_step_of_an_agent_is_a_node_of_a_plan_in_python() -> None:
    review = step(Agent("test", name="r"), name="tests.of-a-plan", tools=["code.read_file"], retries=1)

    @plan
    def audit(path: str = "a.py") -> str:
        return review(prompt=f"Review {path}.")

    assert audit.document["modules"] == [__name__]
    assert audit.document["steps"] == [
        {
            "id": "of-a-plan",
            "kind": "agent",
            "agent": "python:tests.of-a-plan",
            "allowed_tools": ["code.read_file"],
            "retries": 1,
            "inputs": {"prompt": "Review ${inputs.path}."},
        }
    ]
    assert plan_from_json({key: value for key, value in audit.document.items() if key != "modules"}).steps
    with pytest.raises(InvalidPlanError, match="an agent of pydantic_ai has no name here"):
        step(Agent("test"))  # type: ignore[call-overload]


@pytest.mark.spec("BYO-01", "FLW-01.c")
@pytest.mark.parametrize(
    "agent", [Agent("test", output_type=Report), SdkAgent("a", output_type=Report)], ids=["pydantic_ai", "openai"]
)
def test_the_output_of_an_agent_is_checked_like_that_of_a_function(agent: Any) -> None:
    review = step(agent, name="tests.of-a-type")

    @plan
    def audit() -> str:
        return f"{review(prompt='x').ownr}"

    with pytest.raises(InvalidPlanError, match="ownr"):
        _ = audit.document
