"""Templates for those who plan: how a plan is written, and what a task of a common shape looks like (DAG-01)."""

from collections.abc import Mapping
from typing import Final

import msgspec

from soong.shared.core.jsontext import JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.tasks.plan.plan import PlanNames
from soong.shared.tools.definition import HandlerOutput, Permission, ToolContext, ToolDefinition
from soong.shared.toolsets.tasks.showing import TAGS

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
            {
                "id": "second",
                "depends_on": ["first"],
                "instructions": "Continue from ${first.output}.",
            },
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


class PlanTemplates(Value):
    """A :class:`soong.shared.tools.definition.ToolAdapter` that needs nothing but what plans may name."""

    known: PlanNames = msgspec.field(default_factory=PlanNames)

    def tools(self) -> tuple[ToolDefinition, ...]:
        return (
            ToolDefinition(
                name="agent.plan_template",
                title="Plan template",
                description="Show how a plan is written: every kind of step, references, failure policies, and the "
                "agents that steps may name.",
                search_hint="plan dag yaml steps template how to write",
                input_schema={"type": "object", "properties": {}},
                handler=self._plan,
                permission=Permission.READONLY,
                tags=TAGS,
            ),
            ToolDefinition(
                name="agent.task_template",
                title="Task template",
                description="Show the arguments of agent.task_create for a task of a common shape, to be filled in.",
                search_hint="task create example chain fan-out map",
                input_schema={
                    "type": "object",
                    "properties": {
                        "shape": {
                            "type": "string",
                            "enum": list(SHAPES),
                            "default": "chain",
                            "description": "chain: one after another. fan_out: side by side, then together. "
                            "map: one for each item of a list that a step finds.",
                        }
                    },
                },
                handler=self._task,
                permission=Permission.READONLY,
                tags=TAGS,
            ),
        )

    async def _plan(self, _context: ToolContext, _call_input: JsonObject) -> HandlerOutput:
        return {"plan": PLAN, "agents": tuple(sorted(self.known.definitions or ()))}

    async def _task(self, _context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        return dict(SHAPES[str(call_input.get("shape", "chain"))])
