"""``soong ask`` on a deployment: two servers, a database role for each part, owners and workers that are killed."""

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from llmock.scenarios import Behavior, Delay, Fail, Match, Reply, ToolCall
from llmock.testing import LLMockServer

from soong.shared.engine.runs.events import EventType, NodeKind
from soong.shared.engine.tasks.spec import StepStatus, TaskKind
from soong.shared.engine.tasks.step import Step, Task
from tests.integration.roles import RoleUrls, with_roles
from tests.system.auditor import audit
from tests.system.cli_scene import CliHarness, WarmCommand, permitting
from tests.system.deployment import Deployment
from tests.system.test_cli_ask import says
from tests.wires.wire import Wires

pytestmark = pytest.mark.timeout(180)

PLANNER, WRITER, SLOW, READER = "gpt-5", "gpt-5-mini", "gpt-5-nano", "gpt-4.1"
REFUSED, INSTEAD, JOINER = "gpt-4o", "gpt-4o-mini", "gpt-4.1-mini"
HELD_S = 15.0
"""How long the provider keeps the slow one waiting: longer than it takes until its worker is killed."""

STEPS = [
    {"id": "bugs", "kind": "python", "call": "builtin.echo", "inputs": {"value": "three bugs"}},
    {"id": "read", "instructions": "Read ${steps.bugs}.", "depends_on": ["bugs"], "model": f"openai-chat:{READER}"},
    {
        "id": "write",
        "instructions": "Note them.",
        "allowed_tools": ["code.write_file"],
        "model": f"openai-chat:{WRITER}",
    },
    {"id": "slow", "instructions": "Take your time.", "model": f"openai-chat:{SLOW}"},
    {"id": "judge", "instructions": "Judge them.", "model": f"openai-chat:{REFUSED}"},
    {
        "id": "join",
        "instructions": "Join ${steps.read}, ${steps.slow} and ${steps.judge}.",
        "depends_on": ["read", "write", "slow", "judge"],
        "model": f"openai-chat:{JOINER}",
    },
]


SCRIPT: tuple[Behavior, ...] = (
    says(PLANNER, ToolCall("agent__task_create", {"title": "three bugs", "steps": STEPS})),
    says(PLANNER, ToolCall("agent__dispatch_worker", {})),
    says(PLANNER, ToolCall("agent__dispatch_worker", {"step_id": "judge", "model": f"openai-chat:{INSTEAD}"})),
    says(PLANNER, ToolCall("agent__dispatch_worker", {})),
    says(PLANNER, ToolCall("agent__task_complete", {})),
    says(PLANNER, text="The second bug is the worst."),
    says(READER, text="there are three"),
    says(WRITER, ToolCall("code__write_file", {"path": "notes.txt", "content": "three bugs\n"})),
    says(WRITER, text="noted"),
    Delay(seconds=HELD_S, match=Match(model=SLOW)),
    says(SLOW, text="heard by nobody: its worker is dead"),
    says(SLOW, text="took its time"),
    Fail(status=401, match=Match(model=REFUSED)),
    says(INSTEAD, text="the second is the worst"),
    says(JOINER, text="three, the second the worst"),
)
UNDER_WAY = {
    "bugs": StepStatus.COMPLETED,
    "read": StepStatus.COMPLETED,
    "write": StepStatus.RUNNING,
    "slow": StepStatus.RUNNING,
    "judge": StepStatus.FAILED,
    "join": StepStatus.PENDING,
}
"""The moment of the deaths: one child waits for a person, one for its provider, one for a decision of the agent."""


@dataclass(frozen=True, slots=True)
class AskScene:
    """A deployment, the commands of its user, and the server of its models."""

    service: Deployment
    cli: CliHarness
    wires: Wires
    worker_url: str

    async def start(self, owners: int, workers: int) -> None:
        if owners:
            await self.service.start_owners(owners, **self.wires.environment)
        mine = {**self.wires.environment, "SOONG_DATABASE_URL": self.worker_url}
        if workers:
            await self.service.start_workers(workers, slots=1, **mine)

    def ask(self, goal: str, *more: str) -> WarmCommand:
        return self.cli.start_forked("ask", goal, "--model", f"openai-chat:{PLANNER}", "--json", *more)

    async def answer_of(self, asking: WarmCommand) -> dict[str, Any]:
        """Return what the command printed at its end."""
        out, err = await asyncio.to_thread(asking.communicate, timeout=90)
        assert out, f"{asking.returncode}\n{err}{self.service.logs()}"
        return dict(json.loads(out))

    async def task(self, kind: TaskKind) -> Task:
        """Return the newest task of a kind, once there is one."""
        found: list[Task] = []

        async def is_there() -> bool:
            found[:] = [task for task in await self.service.store.tasks.list_tasks(limit=10) if task.kind is kind]
            return bool(found)

        await self.service.until(is_there)
        return found[0]

    async def until_steps_are(self, task: Task, wanted: dict[str, StepStatus]) -> dict[str, Step]:
        async def are() -> bool:
            return {one.step_id: one.status for one in (await self.service.steps(task)).values()} == wanted

        await self.service.until(are)
        return await self.service.steps(task)

    async def until_turns_are(self, ask: Task, number: int) -> None:
        """Wait until an agent has had so many answers of its model, and does what the last one asks for."""

        async def are() -> bool:
            nodes = await self.service.store.runs.nodes(ask.root_run_id)
            return sum(node.kind is NodeKind.ASSISTANT for node in nodes) == number

        await self.service.until(are)

    async def until_one_is_held(self) -> None:
        """Wait until the slow model has been asked: its step runs before its worker asks."""
        scenarios = self.wires.server.state.scenarios
        await self.service.until(lambda: not any(isinstance(one, Delay) for one in scenarios.pending()))

    async def question(self) -> dict[str, Any]:
        """Return the one question that waits, as the inbox shows it."""
        found: list[dict[str, Any]] = []

        async def waits() -> bool:
            found[:] = await asyncio.to_thread(self.cli.json, "approvals", "list")
            return bool(found)

        await self.service.until(waits)
        (question,) = found
        return question

    def asked(self, model: str) -> list[Any]:
        """Return what a model was sent."""
        return [one.body for one in self.wires.requests if one.body["model"] == model]


@pytest.fixture
def urls(postgres_url: str) -> RoleUrls:
    return with_roles(postgres_url)


@pytest.fixture
def wires() -> Iterator[Wires]:
    with LLMockServer() as server:
        yield Wires(server)


@contextmanager
def scene_of(service: Deployment, wires: Wires, worker_url: str) -> Iterator[AskScene]:
    project = service.home / "project"
    project.mkdir()
    servers = {"SOONG_DATABASE_URL": service.database_url, "SOONG_REDIS_URL": service.redis_url}
    cli = CliHarness(service.settings.home, project, servers, is_warm=False)
    cli.home.mkdir(parents=True, exist_ok=True)
    (cli.home / "config.toml").write_text(permitting("openai-chat:gpt-*"))
    try:
        yield AskScene(service, cli, wires, worker_url)
    finally:
        cli.close()


@pytest.fixture
async def scene(urls: RoleUrls, redis_tcp_url: str, tmp_path: Path, wires: Wires) -> AsyncIterator[AskScene]:
    async with Deployment(urls.orchestrator, redis_tcp_url, tmp_path, has_own_owner=False) as service:
        with scene_of(service, wires, urls.worker) as one:
            yield one


@pytest.mark.spec(
    "DAG-07.a", "DAG-07.b", "DAG-05.e", "DIS-01.e", "OPS-03", "CARD-3.a", "CARD-3.b", "PER-13.a", "PER-13.c"
)
async def test_an_ask_survives_the_deaths_of_a_worker_and_of_its_owner(scene: AskScene, urls: RoleUrls) -> None:
    scene.wires.will(*SCRIPT)
    await scene.start(owners=2, workers=3)
    asking = scene.ask("Which bug is the worst?", "--approvals", "inbox")
    ask, task = await scene.task(TaskKind.ASK), await scene.task(TaskKind.PLAN)
    before = await scene.until_steps_are(task, UNDER_WAY)
    await scene.until_turns_are(ask, 2)
    await scene.until_one_is_held()
    question = await scene.question()

    (await scene.service.worker_of(before["slow"])).kill()
    (await scene.service.owner_of(ask)).kill()
    allowed = await asyncio.to_thread(scene.cli.run, "approvals", "allow", question["id"], "--wait", "20")
    ended = await scene.answer_of(asking)

    assert allowed.returncode == 0, allowed.stderr
    assert (ended["id"], ended["status"], ended["answer"]) == (ask.id, "completed", "The second bug is the worst.")
    assert (scene.cli.folder / "notes.txt").read_text() == "three bugs\n"
    after = await scene.service.steps(task)
    assert {one.status for one in after.values()} == {StepStatus.COMPLETED}
    assert after["slow"].worker_id != before["slow"].worker_id
    await assert_lineage(scene, question, ask, task)
    await assert_nothing_was_done_twice(scene, task)
    assert "permission denied" not in scene.service.logs(all_of_it=True)
    assert audit(urls.admin, at_rest=True).broken == []


async def assert_lineage(scene: AskScene, question: dict[str, Any], ask: Task, task: Task) -> None:
    """The question names the child that asked, and what is above it up to the agent of the ask."""
    runs = {run.id: run.identity for run in await scene.service.store.runs.list_runs(task_id=task.id)}
    asker = runs[(await scene.service.steps(task))["write"].run_id]
    who = question["identity"]
    assert (who["run_id"], who["agent_id"], who["role"]) == (asker.run_id, asker.agent_id, "worker")
    assert (who["parent_run_id"], who["parent_agent_id"]) == (asker.parent_run_id, asker.parent_agent_id)
    assert who["parent_run_id"] == task.root_run_id
    assert runs[task.root_run_id].parent_run_id == ask.root_run_id


async def assert_nothing_was_done_twice(scene: AskScene, task: Task) -> None:
    """Each turn of each model was asked for once, but for the one whose worker was killed; only that lost a lease."""
    assert scene.wires.server.state.scenarios.pending() == []
    turns = Counter(one.body["model"] for one in scene.wires.requests)
    # The killed worker's request may still be held.
    assert turns.pop(SLOW) in (1, 2)
    assert turns == {PLANNER: 6, READER: 1, WRITER: 2, REFUSED: 1, INSTEAD: 1, JOINER: 1}
    runs = [run for run in await scene.service.store.runs.list_runs(task_id=task.id) if run.identity.step_key]
    assert len(runs) == len(STEPS) + 1
    lost = [
        run.identity.step_key.rpartition("/")[2]
        for run in runs
        for event in await scene.service.store.runs.events(run.id)
        if event.type == EventType.STEP_LEASE_EXPIRED
    ]
    assert lost == ["slow"]


@pytest.mark.spec("ETS-02.a")
async def test_the_agent_of_an_ask_touches_no_file_where_the_signing_key_is(scene: AskScene) -> None:
    forged = (
        ToolCall("code__write_file", {"path": "notes.txt", "content": "x"}),
        ToolCall("code__run_command", {"command": "touch notes.txt"}),
        ToolCall("code__read_file", {"path": str(scene.service.settings.key_file)}),
    )
    scene.wires.will(*(says(PLANNER, call) for call in forged), says(PLANNER, text="I may not."))
    await scene.start(owners=1, workers=0)
    home, project = scene.service.settings.home, scene.cli.folder
    rules = (
        f"code.write_file:{project}",
        f"code.read_file:{home}",
        f"code.read_file:{scene.service.settings.key_file}",
    )
    allowed = [word for rule in rules for word in ("--allow", rule)]

    ended = await scene.answer_of(scene.ask("Write it.", "--agent", "implementer", *allowed))

    assert (ended.get("status"), ended.get("answer")) == ("completed", "I may not."), ended
    requests = scene.asked(PLANNER)
    offered = {tool["function"]["name"] for body in requests for tool in body["tools"]}
    assert offered
    assert all(name.startswith(("agent__", "internal__")) for name in offered), offered
    results = [str(body["messages"][-1]["content"]) for body in requests[1:]]
    assert len(results) == len(forged)
    assert all("tool_not_available" in result for result in results), results
    assert not (project / "notes.txt").exists()


DEATHS = [
    f"{method}:{moment}"
    for method in ("take_up", "send_command", "update_task", "create_task", "end_task", "end_ask")
    for moment in ("before", "after")
]
"""Where the owner of an ask is killed, in the order in which its agent comes there: before it commits, and after."""
ONE_STEP = {"title": "join", "steps": [{"id": "join", "instructions": "Join.", "model": f"openai-chat:{JOINER}"}]}


@pytest.mark.spec("DAG-07.b", "DIS-01.e")
@pytest.mark.parametrize(
    "deaths",
    [
        ["take_up:after", "update_task:after", "create_task:after", "end_ask:before"],
        pytest.param(DEATHS, marks=pytest.mark.chaos),
    ],
    ids=["some borders", "every border"],
)
async def test_owners_killed_at_one_border_after_another_start_no_child_twice(
    no_owner: Deployment, wires: Wires, deaths: list[str]
) -> None:
    wires.will(
        says(PLANNER, ToolCall("agent__dispatch_worker", {"instructions": "Read.", "model": f"openai-chat:{READER}"})),
        says(READER, text="there are three"),
        says(PLANNER, ToolCall("agent__task_create", ONE_STEP)),
        says(JOINER, text="joined"),
        says(PLANNER, ToolCall("agent__dispatch_worker", {})),
        says(PLANNER, ToolCall("agent__task_complete", {})),
        Reply(text="done", times=None, match=Match(model=PLANNER)),
    )
    async with no_owner as service:
        with scene_of(service, wires, no_owner.database_url) as scene:
            await scene.start(owners=0, workers=1)
            asking = scene.ask("Join them.")
            for death in deaths:
                await service.start_owners(1, **wires.environment, FAULT_DIE=death)
                assert await asyncio.to_thread(service.owners[-1].wait, 20) == -signal.SIGKILL, death
            await scene.start(owners=1, workers=0)

            ended = await scene.answer_of(asking)
            tasks = await service.store.tasks.list_tasks(limit=10)
            steps = [step.status for task in tasks for step in (await service.steps(task)).values()]

    assert (ended.get("status"), ended.get("answer")) == ("completed", "done"), ended
    assert steps == [StepStatus.COMPLETED] * 2
    turns = Counter(one.body["model"] for one in wires.requests)
    # Only the last answer died with who had asked for it: it is written together with the end.
    assert turns == {PLANNER: 6, READER: 1, JOINER: 1}
    assert audit(no_owner.database_url, at_rest=True).broken == []
