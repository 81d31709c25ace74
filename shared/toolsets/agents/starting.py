"""Starting agents: sub-agents, workers for single instructions and for steps, pull workers (DIS-02, 03).

A started agent is a step, of the ask's own task or of one that the agent made, so that leases, limits, consent and
retries are those of every step. A call waits until all its agents have ended, and reports every outcome together. It
starts nothing twice: its effect id names the step and the command, so a call that is made again after the death of its
owner waits for the same runs (DIS-08).
"""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from soong.shared.core.identity import Role, step_key
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.tasks.failure_report import is_unclean
from soong.shared.engine.tasks.spec import DEFAULT_DEFINITION, StepStatus, TaskKind
from soong.shared.engine.tasks.step import Step, StepResult, Task
from soong.shared.tools.definition import HandlerOutput, ToolContext, ToolDefinition
from soong.shared.tools.result import ErrorType, ToolError
from soong.shared.toolsets.agents.looking import (
    GIVE_AGAIN,
    START_ANOTHER,
    Patience,
    child_outcome,
    moves_by_itself,
    needs_decision,
    task_outcome,
    wait_until,
)
from soong.shared.toolsets.tasks.showing import (
    MAX_SHOWN_STEPS,
    STEP_ID,
    TASK_ID,
    as_principal,
    check_models,
    command_id,
    digest_of_call,
    refused_as_error,
    result_facts,
    step_facts,
    task_facts,
    task_named,
    task_tool,
)

if TYPE_CHECKING:
    from soong.shared.engine.tasks.service import TaskService

_TEXT: Final[JsonObject] = {"type": "string", "minLength": 1}
_AGENT: Final[JsonObject] = {**_TEXT, "description": "Id of its definition (agent.list_agent_definitions)."}
_MODEL: Final[JsonObject] = {**_TEXT, "description": "Its model; by default the definition's, else yours."}
_TOOLS: Final[JsonObject] = {
    "type": "array",
    "items": _TEXT,
    "description": "Names or globs of the tools that it is to have instead of the definition's. Ask for few.",
}
_INSTRUCTIONS: Final[JsonObject] = {
    **_TEXT,
    "description": "What it is to do. It sees nothing of your conversation: say all that it needs to know.",
}
_OUTPUT: Final[JsonObject] = {
    "type": "object",
    "description": "JSON Schema that its result has to satisfy; left out: text.",
    "additionalProperties": True,
}
_INPUTS: Final[JsonObject] = {
    "type": "object",
    "description": "Values for it, shown to it with the instructions.",
    "additionalProperties": True,
}
_CHILD: Final[JsonObject] = {
    "instructions": _INSTRUCTIONS,
    "title": {**_TEXT, "description": "A few words for people who watch.", "maxLength": 200},
    "agent": _AGENT,
    "model": _MODEL,
    "allowed_tools": _TOOLS,
    "inputs": _INPUTS,
    "output": _OUTPUT,
}
_DISPATCH: Final[JsonObject] = {
    **_CHILD,
    "task_id": TASK_ID,
    "step_id": STEP_ID,
    "mode": {"type": "string", "enum": ["assigned", "pull"], "default": "assigned"},
    "count": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 1},
    "max_steps": {"type": "integer", "minimum": 1, "description": "Most steps of each pull worker."},
    "pool": {**_TEXT, "description": "Pool of the pull workers."},
    "leave_failed": {
        "type": "array",
        "items": STEP_ID,
        "description": "Failed steps of the task that you leave as they are: the rest is waited for.",
    },
}
_OF_STEP: Final = ("agent", "model", "allowed_tools", "instructions")
_OF_PULL: Final = ("agent", "model", "instructions", "pool")

MAX_TITLE_CHARS: Final = 100
ENDS: Final = (
    ErrorType.EXECUTION_FAILED,
    ErrorType.CANCELLED,
    ErrorType.BUDGET_EXCEEDED,
    ErrorType.WORKER_INCOMPATIBLE,
    ErrorType.LIMIT_EXCEEDED,
)
"""How a call ends whose child did not complete, or that may start none."""
_tool: Final = partial(task_tool, errors=ENDS, is_agent_tool=True)


class StartingTools(Value):
    """A :class:`soong.shared.tools.definition.ToolAdapter` over the task service."""

    service: "TaskService"
    patience_s: float = 60.0
    """How long a step that no living worker can take is waited for."""

    def tools(self) -> tuple[ToolDefinition, ...]:
        fork = {name: _CHILD[name] for name in ("instructions", "title", "model", "allowed_tools", "output")}
        return (
            _tool(
                "agent.create_sub_agent",
                "Create sub-agent",
                "Start an agent of its own for one piece of work and wait for its result. It has the tools of its "
                "definition and never starts agents. Several calls of one turn run side by side.",
                "delegate sub agent child start",
                dict(_CHILD),
                ("instructions",),
                partial(self._spawn, role=Role.SUB),
            ),
            _tool(
                "agent.fork_agent",
                "Fork agent",
                "Start a copy of yourself that knows this conversation, for a side path whose details you do not need, "
                "and wait for its result. It never starts agents. Several calls of one turn run side by side.",
                "fork copy context side path explore",
                {**fork, "instructions": {**_TEXT, "description": "What it is to do; it knows all that you know."}},
                ("instructions",),
                self._fork,
            ),
            _tool(
                "agent.dispatch_worker",
                "Dispatch worker",
                "Have workers do something, and wait. With `instructions` alone: one worker for them. With `task_id`: "
                "wait until the task's steps have ended or one needs a decision of yours, as a failed one does; their "
                "workers start by themselves. With `step_id`, too: give that failed step to a worker again, with what "
                "you change. With `mode: pull`: let `count` workers take the task's pull steps one by one. "
                "Several calls of one turn run side by side.",
                "worker dispatch delegate wait reassign pull",
                _DISPATCH,
                (),
                self._dispatch,
            ),
        )

    async def _fork(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        return await self._spawn(context, {**call_input, "agent": context.identity.definition}, Role.FORK)

    async def _dispatch(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        names_task = "task_id" in call_input or "step_id" in call_input
        if call_input.get("mode") == "pull":
            return await self._pull(context, call_input)
        if "step_id" in call_input:
            return await self._reassign(context, call_input)
        if "instructions" in call_input:
            if names_task:
                problem = "`instructions` with a task and without a step: what are they for?"
                hint = "name step_id to change a failed step; leave task_id out for a worker of its own"
                raise ToolError(ErrorType.INVALID_INPUT, problem, hint=hint)
            return await self._spawn(context, call_input, Role.WORKER)
        task = await self._task(context, call_input)
        return await self._rest_of(context, task, call_input)

    # -- one child
    async def _spawn(
        self, context: ToolContext, call_input: JsonObject, role: Literal[Role.SUB, Role.FORK, Role.WORKER]
    ) -> HandlerOutput:
        """Start a child of the calling run, as a step of its ask, and wait for its end."""
        ask = await self.service.store.tasks.task(context.identity.task_id)
        if ask.kind is not TaskKind.ASK:
            raise ToolError(ErrorType.TOOL_NOT_AVAILABLE, "only an agent with a goal of its own starts agents")
        step_id = f"{role.value}-{digest_of_call(context)[:8]}"
        first_line = str(call_input["instructions"]).strip().partition("\n")[0][:MAX_TITLE_CHARS]
        step: dict[str, Json] = {name: call_input[name] for name in ("allowed_tools", "output") if name in call_input}
        agent = str(call_input.get("agent") or DEFAULT_DEFINITION)
        step |= {
            "id": step_id,
            "agent": agent,
            "model": await self._model_of(context, call_input, agent, role),
            "inputs": _literal(call_input.get("inputs", {})),
            "instructions": _literal(call_input["instructions"]),
            "title": _literal(call_input.get("title") or first_line),
            "on_failure": "keep",
        }
        service = as_principal(self.service, context)
        call_id = context.tool_call_id
        spawning = service.spawn(ask, role, step, call_id=call_id, command_id=command_id(context))
        await refused_as_error(spawning)
        return await self._outcome_of(context, step_key(ask.id, step_id), hint=START_ANOTHER)

    async def _model_of(self, context: ToolContext, call_input: JsonObject, agent: str, role: Role = Role.SUB) -> str:
        """Return the model of a child: the call's, that of its definition as it is now, or that of the calling run."""
        if named := str(call_input.get("model", "")):
            await check_models(self.service, context, [named], is_fork=role is Role.FORK)
            return named
        if role is Role.FORK:
            return context.identity.model
        planner = await self.service.planner.at(str(context.run_dirs.project))
        return planner.known.definition_models.get(agent) or context.identity.model

    async def _reassign(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        """Try a failed step again with what is to be different, and wait for its end; one that runs is waited for."""
        task = await self._task(context, call_input)
        steps = await self.service.store.tasks.steps(task.id)
        step = next((one for one in steps if one.step_id == call_input["step_id"]), None)
        if step is None:
            problem = f"task {task.id} has no step {call_input['step_id']!r}"
            raise ToolError(ErrorType.INVALID_INPUT, problem, hint="agent.task_get shows its steps")
        changes = {name: call_input[name] for name in _OF_STEP if name in call_input}
        await check_models(self.service, context, [str(changes.get("model", ""))], steps)
        if step.status is StepStatus.FAILED or changes:
            attempt: dict[str, Json] = {"step": step.step_id, **changes}
            service = as_principal(self.service, context)
            update = service.update(task, {"retry_steps": [attempt]}, command_id=command_id(context))
            await refused_as_error(update)
        return await self._outcome_of(context, step.key, hint=GIVE_AGAIN)

    async def _outcome_of(self, context: ToolContext, key: str, *, hint: str) -> HandlerOutput:
        store, patience = self.service.store.tasks, self._patience()
        lacks: dict[str, str] = {}

        async def ended() -> Step | None:
            step = await store.step(key)
            lacks.update(await patience.lacks([step]))
            return step if lacks or (step.status.is_terminal and not moves_by_itself(step)) else None

        step = await wait_until(self.service.subscriber, context.identity.session_id, ended)
        result = {} if lacks else result_facts(await store.result(key))
        facts = {"run_id": step.run_id, **step_facts(step, {}), **result, **_lack(lacks, key)}
        return child_outcome(step, facts, lack=lacks.get(key, ""), hint=hint)

    # -- tasks
    async def _pull(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        task = await self._task(context, call_input)
        tools, model = call_input.get("allowed_tools"), str(call_input.get("model", ""))
        if model:
            await check_models(self.service, context, [model], await self.service.store.tasks.steps(task.id))
        dispatching = as_principal(self.service, context).dispatch_worker(
            task,
            count=int(str(call_input.get("count", 1))),
            max_steps=None if "max_steps" not in call_input else int(str(call_input["max_steps"])),
            allowed_tools=[str(name) for name in tools] if isinstance(tools, list) else None,
            command_id=command_id(context),
            **{name: str(call_input[name]) for name in _OF_PULL if name in call_input},
        )
        await refused_as_error(dispatching)
        return await self._rest_of(context, task, call_input)

    async def _rest_of(self, context: ToolContext, task: Task, call_input: JsonObject) -> HandlerOutput:
        """Wait until a task has ended or waits for a decision; return what its steps came to."""
        store, patience, named = self.service.store.tasks, self._patience(), call_input.get("leave_failed")
        left = set(map(str, named)) if isinstance(named, list) else set()
        lacks: dict[str, str] = {}

        async def resting() -> list[Step] | None:
            is_over = (await store.task(task.id)).status.is_terminal
            steps = list(await store.steps(task.id))
            lacks.update(await patience.lacks(steps))
            return steps if lacks or is_over or needs_decision(steps, left) else None

        steps = await wait_until(self.service.subscriber, context.identity.session_id, resting)
        ids = {step.key: step.step_id for step in steps}
        own = [step for step in steps if not step.map_key][:MAX_SHOWN_STEPS]
        outcomes: list[Json] = [
            {
                **step_facts(step, ids),
                **(result_facts(await self._result(step)) if step.status.is_terminal else {}),
                **_lack(lacks, step.key),
            }
            for step in own
        ]
        task = await store.task(task.id)
        facts: dict[str, Json] = {
            "task": task_facts(task, await store.counts(task.id)),
            "steps": outcomes,
            "steps_left_out": max(0, len(steps) - len(own)),
        }
        return task_outcome(task, steps, facts, lacks)

    async def _result(self, step: Step) -> StepResult:
        """Return a step's result; the row of a clean step has all of it."""
        if step.kind.traits.has_items or is_unclean(step.status, step.outcome):
            return await self.service.store.tasks.result(step.key)
        return StepResult(step.step_id, step.status, step.output)

    def _patience(self) -> Patience:
        return Patience(self.service.store.sessions, self.patience_s)

    async def _task(self, context: ToolContext, call_input: JsonObject) -> Task:
        return await task_named(self.service.store.tasks, context, call_input)


def _lack(lacks: Mapping[str, str], key: str) -> dict[str, Json]:
    """Return what an agent gets about a step that no worker can take; it waits on, and may be cancelled."""
    return {"waits_because": lacks[key]} if key in lacks else {}


def _literal(value: Json) -> Json:
    """Return a value whose texts hold no references: a model's text is not a template."""
    match value:
        case str():
            return value.replace("${", "$${")
        case Mapping():
            return {name: _literal(each) for name, each in value.items()}
        case list():
            return [_literal(each) for each in value]
        case _:
            return value
