"""The task tools of main and orchestrator agents: they make tasks, watch them, change and end them (DAG-01).

All go through the service that the command line and programs use, so the same checks hold and the session's owner alone
writes the result. An agent reaches the tasks of its own session and no others. A call that is made again after a
crash asks for nothing twice: its effect id names the task it makes and the command it sends.
"""

import json
from collections.abc import Awaitable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.tasks.plan.plan import PlanNames
from soong.shared.engine.tasks.step import Task
from soong.shared.tools.definition import HandlerOutput, ToolContext, ToolDefinition
from soong.shared.tools.result import ErrorType
from soong.shared.toolsets.tasks.showing import (
    TASK_ID,
    as_principal,
    changes_state,
    check_models,
    command_id,
    models_of,
    named,
    refused_as_error,
    task_facts,
    task_named,
    task_tool,
)

if TYPE_CHECKING:
    from soong.shared.engine.tasks.service import TaskService


MAX_LISTED: Final = 100

SCHEMA_FILE: Final = Path(__file__).with_name("planning.schema.json")
"""Generated from the models of plans, which a process that only lists tools does not build."""

_REASON: Final[JsonObject] = {"type": "string", "description": "Why, for people and for the log.", "maxLength": 2000}
_ENDS: Final = (ErrorType.EXECUTION_FAILED, ErrorType.LIMIT_EXCEEDED)
_tool: Final = partial(task_tool, errors=_ENDS, traits=changes_state)

PLAN: Final = """\
title: What the task is for
inputs:
  path: .                                # a value with a default; ${inputs.path} names it
steps:
  - id: survey                           # letters, digits, _ . -
    instructions: List the packages under ${inputs.path}.
    output:                              # JSON Schema of the answer; what others are to use belongs into it
      type: object
      required: [packages]
      properties: {packages: {type: array, items: {type: string}}}
  - id: review                           # one child for each item of a list, in parallel
    kind: map
    depends_on: [survey]
    over: ${survey.output.packages}
    as: package
    on_item_failure: keep                # a null result instead of a failed task
    step:
      instructions: Review the package ${package}.
      retries: 1
  - id: report
    depends_on: [review]
    instructions: Write the report from ${review.output}.
    allowed_tools: [code.read_file, code.write_file]     # asked for; policy and people still decide
    permissions: {write: [report.md]}    # what people will be asked for, to be seen before the start; also hosts, run
    # claim: pull                        # no worker begins it: runs ask for it with agent.task_claim_step
    on_failure: fail_task                # skip_dependents, fail_task, keep, retry; left out: you decide
"""

_SURVEY: Final[JsonObject] = {
    "id": "survey",
    "instructions": "Find what there is to do.",
    "output": {
        "type": "object",
        "required": ["items"],
        "properties": {"items": {"type": "array", "items": {"type": "string"}}},
    },
}
SHAPES: Final[Mapping[str, JsonObject]] = {
    "chain": {
        "title": "One after another",
        "steps": [
            {"id": "first", "instructions": "Do the first thing."},
            {"id": "second", "depends_on": ["first"], "instructions": "Continue from ${first.output}."},
        ],
    },
    "fan_out": {
        "title": "Side by side, then together",
        "steps": [
            {"id": "left", "instructions": "Do one half."},
            {"id": "right", "instructions": "Do the other half."},
            {
                "id": "join",
                "depends_on": ["left", "right"],
                "instructions": "Put ${left.output} and ${right.output} together.",
            },
        ],
    },
    "map": {
        "title": "One for each item of a list that is found first",
        "steps": [
            _SURVEY,
            {
                "id": "each",
                "kind": "map",
                "depends_on": ["survey"],
                "over": "${survey.output.items}",
                "as": "item",
                "step": {"instructions": "Work on ${item}."},
            },
            {"id": "join", "depends_on": ["each"], "instructions": "Put ${each.output} together."},
        ],
    },
}


class PlanningTools(Value):
    """A :class:`soong.shared.tools.definition.ToolAdapter` over the task service."""

    service: "TaskService"

    def tools(self) -> tuple[ToolDefinition, ...]:
        return (*self._making(), *self._ending())

    def _making(self) -> tuple[ToolDefinition, ...]:
        return (
            _tool(
                "agent.task_create",
                "Create task",
                "Create a task: a DAG of steps that worker agents carry out. It starts at once. You end it with "
                "agent.task_complete, agent.task_fail or agent.task_cancel; a failed step waits for your decision.",
                "create start task dag plan",
                {
                    "title": {"type": "string", "description": "What the task is for.", "minLength": 1},
                    "steps": {
                        "type": "array",
                        "items": _schemas()["step"],
                        "description": "The steps, as agent.plan_template shows them.",
                        "minItems": 1,
                    },
                    "inputs": {
                        "type": "object",
                        "description": "Values that references may name as ${inputs.name}.",
                        "additionalProperties": True,
                    },
                    "limits": _schemas()["limits"],
                    "model": {"type": "string", "description": "Model of the steps that name none; yours by default."},
                },
                ("title", "steps"),
                self._create,
            ),
            _tool(
                "agent.task_list",
                "List tasks",
                "List the tasks of your session, newest first, with the states of their steps.",
                "tasks list status",
                {"limit": {"type": "integer", "minimum": 1, "maximum": MAX_LISTED, "default": 20}},
                (),
                self._list,
                errors=(),
                traits=None,
            ),
            _tool(
                "agent.task_update",
                "Update task",
                "Change a running task: add steps, let pending steps wait for more, try failed steps again with "
                "another agent, change priorities, skip or cancel steps. All of it happens, or nothing.",
                "grow add steps retry reassign skip cancel priority",
                _update(),
                (),
                self._update,
            ),
        )

    def _ending(self) -> tuple[ToolDefinition, ...]:
        return (
            _tool(
                "agent.task_complete",
                "Complete task",
                "End a task as completed once all its steps have ended.",
                "finish end task done",
                {"task_id": TASK_ID, "reason": _REASON},
                (),
                partial(self._ended, "complete"),
            ),
            _tool(
                "agent.task_fail",
                "Fail task",
                "End a task as failed and stop what still runs of it.",
                "fail end task give up",
                {"task_id": TASK_ID, "reason": {**_REASON, "minLength": 1}},
                ("reason",),
                partial(self._ended, "fail"),
            ),
            _tool(
                "agent.task_cancel",
                "Cancel task",
                "Cancel a task: nothing of it starts any more, and what runs is stopped.",
                "cancel stop task",
                {"task_id": TASK_ID, "reason": _REASON},
                (),
                partial(self._ended, "cancel"),
            ),
        )

    async def _create(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        from soong.shared.engine.tasks.plan.reader import plan_from_json  # not for who only lists tools

        given = call_input.get("inputs")
        inputs = given if isinstance(given, dict) else {}
        document: JsonObject = {
            "title": call_input["title"],
            "steps": call_input["steps"],
            "inputs": {name: {"default": value, "required": False} for name, value in inputs.items()},
            **({"limits": call_input["limits"]} if call_input.get("limits") else {}),
        }

        models = (str(call_input.get("model") or ""), *models_of(call_input["steps"]))
        await check_models(self.service, context, models)

        async def create() -> Task:
            planner = await self.service.planner.at(str(context.run_dirs.project))
            plan = plan_from_json(document, "task", planner.known)
            return await self.service.create(
                context.identity.session_id,
                plan,
                inputs,
                agent=context.identity,
                model=str(call_input.get("model") or context.identity.model),
                task_id=named("task", context),
            )

        task = await refused_as_error(create())
        return task_facts(task, await self.service.store.tasks.counts(task.id))

    async def _list(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        limit = int(str(call_input.get("limit", 20)))
        tasks = await self.service.store.tasks.list_tasks(session_id=context.identity.session_id, limit=limit)
        shown: list[Json] = [task_facts(task, await self.service.store.tasks.counts(task.id)) for task in tasks]
        return {"tasks": shown}

    async def _update(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        change = {name: value for name, value in call_input.items() if name != "task_id"}
        task = await self._task(context, call_input)
        models = (*models_of(change.get("add_steps")), *models_of(change.get("retry_steps")))
        if models:
            await check_models(self.service, context, models, await self.service.store.tasks.steps(task.id))
        return await self._done(
            task, as_principal(self.service, context).update(task, change, command_id=command_id(context))
        )

    async def _ended(
        self, act: Literal["complete", "fail", "cancel"], context: ToolContext, call_input: JsonObject
    ) -> HandlerOutput:
        task = await self._task(context, call_input)
        asked = getattr(as_principal(self.service, context), act)
        return await self._done(
            task, asked(task, reason=str(call_input.get("reason", "")), command_id=command_id(context))
        )

    async def _task(self, context: ToolContext, call_input: JsonObject) -> Task:
        return await task_named(self.service.store.tasks, context, call_input)

    async def _done(self, task: Task, asking: Awaitable[None]) -> HandlerOutput:
        await refused_as_error(asking)
        return task_facts(await self.service.store.tasks.task(task.id), await self.service.store.tasks.counts(task.id))


@cache
def _schemas() -> dict[str, Any]:
    return cast(dict[str, Any], json.loads(SCHEMA_FILE.read_bytes()))


def _update() -> JsonObject:
    changes = _schemas()["changes"]
    steps = {**changes["add_steps"], "items": _schemas()["step"]}
    return {"task_id": TASK_ID, **changes, "add_steps": steps, "reason": _REASON}


class PlanTemplates(Value):
    """A :class:`soong.shared.tools.definition.ToolAdapter` that needs nothing but what plans may name."""

    known: PlanNames = msgspec.field(default_factory=PlanNames)

    def tools(self) -> tuple[ToolDefinition, ...]:
        return (
            task_tool(
                "agent.plan_template",
                "Plan template",
                "Show how a plan is written: every kind of step, references, failure policies, and the agents that "
                "steps may name.",
                "plan dag yaml steps template how to write",
                {},
                (),
                self._plan,
            ),
            task_tool(
                "agent.task_template",
                "Task template",
                "Show the arguments of agent.task_create for a task of a common shape, to be filled in.",
                "task create example chain fan-out map",
                {
                    "shape": {
                        "type": "string",
                        "enum": list(SHAPES),
                        "default": "chain",
                        "description": "chain: one after another. fan_out: side by side, then together. "
                        "map: one for each item of a list that a step finds.",
                    }
                },
                (),
                self._task,
            ),
        )

    async def _plan(self, _context: ToolContext, _call_input: JsonObject) -> HandlerOutput:
        return {"plan": PLAN, "agents": tuple(sorted(self.known.definitions or ()))}

    async def _task(self, _context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        return dict(SHAPES[str(call_input.get("shape", "chain"))])
