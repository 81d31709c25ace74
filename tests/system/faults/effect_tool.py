"""``test.effect`` as a tool, for steps that run an agent: workers and clients import it through SOONG_TOOLS."""

from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.tasks.functions import StepContext
from soong.shared.tools.definition import HandlerOutput, Permission, ToolContext, ToolDefinition
from soong.shared.tools.registry import Toolset
from tests.system.faults.plugin import effect

tools = Toolset()


async def _effect(context: ToolContext, call_input: JsonObject) -> HandlerOutput:
    return await effect(call_input, StepContext(context.identity, 1, effect_key=context.identity.step_key))


tools.add(
    ToolDefinition(
        name="test.effect",
        description="Leave a line when it starts and one when it ends, so many seconds later.",
        input_schema={"type": "object", "properties": {"seconds": {"type": "number"}}, "required": ["seconds"]},
        handler=_effect,
        permission=Permission.READONLY,
    )
)
