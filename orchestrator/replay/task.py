"""Replays a recorded task: its DAG, and each run of its agents, with no model, no tool and nobody to ask (DAG-11)."""

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, cast

from msgspec.structs import replace

from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.replay.dag import dag_differences
from soong.orchestrator.replay.recording import TaskRecord
from soong.shared.agents.definition import DEFINITION, AgentDefinition
from soong.shared.agents.ports import AgentTask
from soong.shared.agents.replay.differences import Difference
from soong.shared.agents.replay.lives import RunRecord
from soong.shared.agents.replay.replay import replay_run
from soong.shared.agents.runtime.agent_task import ModelRules, agent_task
from soong.shared.core.errors import SoongError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.settings import Settings, secret_values
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import Node, NodeKind
from soong.shared.engine.tasks.kinds import StepKind
from soong.shared.engine.tasks.plan.inputs import bind_step
from soong.shared.engine.tasks.plan.plan import ACP_PREFIX
from soong.shared.engine.tasks.spec import BoundStep
from soong.shared.sandbox.redact import Redactor, redactor
from soong.shared.tools.deferred import DeferredTools, stored_deferred, with_search
from soong.shared.tools.definition import ToolDefinition
from soong.shared.tools.surface import Surface


class ReplayVerdict(StrEnum):
    """What a replay says of a run. GIVEN: what it did is taken from the record; Soong decides nothing of it."""

    SAME = "same"
    DIFFERENT = "different"
    GIVEN = "given"


FUNCTION: Final = "a function's step: its result is the recorded one"
OUTSIDE: Final = "an agent of others: what it did is the recorded one"
NOT_BEGUN: Final = "it never began"


class RunVerdict(Value):
    """What became of one run: an attempt of a step, or an ask's own."""

    name: str
    run_id: str
    verdict: ReplayVerdict
    lives: int = 0
    turns: int = 0
    calls: int = 0
    events: int = 0
    note: str = ""
    differences: Sequence[Difference] = ()

    def as_json(self) -> dict[str, Json]:
        return {
            "step": self.name,
            "run_id": self.run_id,
            "verdict": str(self.verdict),
            "lives": self.lives,
            "turns": self.turns,
            "calls": self.calls,
            "events": self.events,
            "note": self.note,
            "differences": [one.as_json() for one in self.differences],
        }


class TaskReplay(Value):
    """What a replay of a task found. ``dag`` are differences of its steps, ``runs`` its runs in order."""

    task_id: str
    title: str
    steps: int
    dag: Sequence[Difference]
    runs: Sequence[RunVerdict]

    @property
    def is_same(self) -> bool:
        return not self.dag and all(run.verdict is not ReplayVerdict.DIFFERENT for run in self.runs)

    def as_json(self) -> dict[str, Json]:
        return {
            "task_id": self.task_id,
            "title": self.title,
            "is_same": self.is_same,
            "steps": self.steps,
            "dag": [one.as_json() for one in self.dag],
            "runs": [run.as_json() for run in self.runs],
        }


class Replayer(Value):
    """Replays under the settings, the configuration and the tools of this process."""

    settings: Settings
    catalogue: Catalogue

    async def replay(self, record: TaskRecord, step_id: str = "") -> TaskReplay:
        """Replay a task; with a step's id only the runs of that step."""
        chosen = [one for one in record.runs if self._is_chosen(record, one, step_id)]
        verdicts = [await self._run(record, one) for one in chosen]
        dag = [] if step_id else dag_differences(record)
        return TaskReplay(record.task.id, record.task.title, len(record.steps), dag, verdicts)

    def _is_chosen(self, record: TaskRecord, one: RunRecord, step_id: str) -> bool:
        step = record.step_of(one.run)
        if step is None:
            return not step_id and bool(one.nodes)  # an ask's own; the root run of a plan has no agent
        return not step_id or step.step_id == step_id

    async def _run(self, record: TaskRecord, one: RunRecord) -> RunVerdict:
        step = record.step_of(one.run)
        name = record.task.title if step is None else step.step_id
        if step is not None and step.kind is StepKind.PYTHON:
            return RunVerdict(name, one.run.id, ReplayVerdict.GIVEN, note=FUNCTION)
        if one.run.identity.definition.startswith(ACP_PREFIX):
            return RunVerdict(name, one.run.id, ReplayVerdict.GIVEN, note=OUTSIDE)
        if not one.nodes:
            return RunVerdict(name, one.run.id, ReplayVerdict.GIVEN, note=NOT_BEGUN)
        try:
            task = self._task(record, one)
        except SoongError as error:
            found = [Difference("its work", "bound", str(error))]
            return RunVerdict(name, one.run.id, ReplayVerdict.DIFFERENT, differences=found)
        played = await replay_run(one, task, ModelRules(self.catalogue.config), self._redactor())
        verdict = ReplayVerdict.DIFFERENT if played.differences else ReplayVerdict.SAME
        facts = (played.lives, played.turns, played.calls, played.events)
        return RunVerdict(name, one.run.id, verdict, *facts, differences=played.differences)

    def _task(self, record: TaskRecord, one: RunRecord) -> AgentTask:
        """Return the work of a run as a worker would be given it now. Raises: SoongError."""
        step, run = record.step_of(one.run), one.run
        told = _told(one.nodes)
        bound = BoundStep(told.instructions, told.inputs)
        if step is not None and step.run_id == run.id and not told.is_inherited:
            bound = bind_step(step.spec, record.task.inputs, record.dependencies(step))
        tools, deferred = self._tools(run.surface)
        model = run.identity.model or self.settings.model
        return agent_task(
            replace(run.identity, model=model),
            bound,
            AgentDefinition.from_json(run.surface.get(DEFINITION)),
            tools,
            deferred,
            run_dirs=told.run_dirs,
            output_schema=None if step is None else step.spec.output,
            settings=self.settings,
            rules=ModelRules(self.catalogue.config),
            is_limited=step is not None and step.spec.is_limited,
        )

    def _tools(self, surface: JsonObject) -> tuple[tuple[ToolDefinition, ...], DeferredTools]:
        known = {tool.name: tool for tool in self.catalogue.tools}
        tools = tuple(known[name] for name in Surface.from_json(surface).tools if name in known)
        deferred = stored_deferred(surface, tools)
        return with_search(tools, deferred), deferred

    def _redactor(self) -> Redactor:
        config = self.catalogue.config
        return redactor(secret_values(self.settings, config.secret_env, config.secret_files))


class _Opening(Value):
    """What a run was given when it began. ``is_inherited``: it began with the conversation of another."""

    instructions: str
    inputs: JsonObject
    run_dirs: JsonObject
    is_inherited: bool = False


def _told(nodes: Sequence[Node]) -> _Opening:
    texts = next((cast(Any, node.payload.get("texts")) for node in nodes if node.kind is NodeKind.USER), ())
    if not isinstance(texts, list | tuple) or len(texts) != 2:
        return _Opening("", {}, {}, is_inherited=True)
    facts = json.loads(str(texts[1]))
    return _Opening(str(texts[0]), facts.get("inputs", {}), facts.get("run_dirs", {}))
