"""The public import: what a program that uses Soong needs, re-exported. Each name is imported when it is first used."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from soong.orchestrator.direct.bootstrap import call_tool, open_tools
    from soong.orchestrator.direct.exports import ExportedTools, export_tools
    from soong.orchestrator.direct.pydantic_ai_toolset import pydantic_ai_toolset
    from soong.orchestrator.direct.session import DirectSession
    from soong.orchestrator.schemas.task import (
        DeliverableSchema,
        DenialSchema,
        ExitCode,
        StepDetail,
        StepErrorSchema,
        TaskResult,
    )
    from soong.orchestrator.sdk.plan import PlanFunction, plan
    from soong.orchestrator.sdk.service import PlanSource, Soong
    from soong.orchestrator.sdk.sync import SyncSoong, SyncTask
    from soong.orchestrator.sdk.task import StepChange, TaskHandle
    from soong.shared.agents.own.steps import step
    from soong.shared.core.errors import (
        ConflictError,
        InvalidPlanError,
        NotFoundError,
        SoongError,
        TaskFailedError,
        ToolCallError,
        UnavailableError,
        UsageError,
    )
    from soong.shared.core.jsontext import Json, JsonObject
    from soong.shared.core.log_lines import LogLine
    from soong.shared.engine.tasks.functions import AgentHandle, StepContext, scripted_agent
    from soong.shared.engine.tasks.python_plan.function_step import TypedStep
    from soong.shared.engine.tasks.python_plan.other_steps import AgentNode, CeleryNode, agent_step, celery_step
    from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
    from soong.shared.engine.wire.notifier import AnswerDelta
    from soong.shared.permissions.consent import CheckedPermission, Preview, StepGrant, StepPreview
    from soong.shared.permissions.request import (
        Choice,
        ElicitationCallback,
        ElicitationRequest,
        PermissionCallback,
        PermissionDecision,
        PermissionRequest,
    )
    from soong.shared.tools.definition import (
        ElicitationAnswer,
        Permission,
        Risk,
        Target,
        ToolContext,
        ToolDefinition,
        Traits,
    )
    from soong.shared.tools.hooks.hook import (
        ElicitationOutcome,
        HookCall,
        PostOutcome,
        PreOutcome,
        elicitation_hook,
        elicitation_result_hook,
        post_hook,
        pre_hook,
    )
    from soong.shared.tools.permission_check import risk_classifier
    from soong.shared.tools.registry import ToolRegistry, Toolset
    from soong.shared.tools.result import ErrorType, ToolError, ToolResult
    from soong.shared.toolsets.memory.provider import Memory, MemoryProvider, MemoryScope
    from soong.shared.toolsets.modules import from_langchain, from_pydantic_ai

_HOMES = {
    "soong.orchestrator.direct.bootstrap": ("call_tool", "open_tools"),
    "soong.orchestrator.direct.exports": ("ExportedTools", "export_tools"),
    "soong.orchestrator.direct.pydantic_ai_toolset": ("pydantic_ai_toolset",),
    "soong.orchestrator.direct.session": ("DirectSession",),
    "soong.orchestrator.schemas.task": (
        *("DeliverableSchema", "DenialSchema", "ExitCode", "StepDetail", "StepErrorSchema", "TaskResult"),
    ),
    "soong.orchestrator.sdk.plan": ("PlanFunction", "plan"),
    "soong.orchestrator.sdk.service": ("PlanSource", "Soong"),
    "soong.orchestrator.sdk.sync": ("SyncSoong", "SyncTask"),
    "soong.orchestrator.sdk.task": ("StepChange", "TaskHandle"),
    "soong.shared.agents.own.steps": ("step",),
    "soong.shared.core.errors": (
        "ConflictError",
        "InvalidPlanError",
        "NotFoundError",
        "SoongError",
        "TaskFailedError",
        "ToolCallError",
        "UnavailableError",
        "UsageError",
    ),
    "soong.shared.core.jsontext": ("Json", "JsonObject"),
    "soong.shared.core.log_lines": ("LogLine",),
    "soong.shared.permissions.consent": ("CheckedPermission", "Preview", "StepGrant", "StepPreview"),
    "soong.shared.permissions.request": (
        *("Choice", "ElicitationCallback", "ElicitationRequest"),
        *("PermissionCallback", "PermissionDecision", "PermissionRequest"),
    ),
    "soong.shared.engine.wire.notifier": ("AnswerDelta",),
    "soong.shared.engine.tasks.functions": ("AgentHandle", "StepContext", "scripted_agent"),
    "soong.shared.engine.tasks.python_plan.function_step": ("TypedStep",),
    "soong.shared.engine.tasks.python_plan.other_steps": ("AgentNode", "CeleryNode", "agent_step", "celery_step"),
    "soong.shared.engine.tasks.spec": ("StepStatus", "TaskStatus"),
    "soong.shared.tools.definition": (
        *("ElicitationAnswer", "Permission", "Risk", "Target", "ToolContext", "ToolDefinition", "Traits"),
    ),
    "soong.shared.tools.hooks.hook": (
        *("ElicitationOutcome", "HookCall", "PostOutcome", "PreOutcome"),
        *("elicitation_hook", "elicitation_result_hook", "post_hook", "pre_hook"),
    ),
    "soong.shared.tools.registry": ("ToolRegistry", "Toolset"),
    "soong.shared.tools.result": ("ErrorType", "ToolError", "ToolResult"),
    "soong.shared.tools.permission_check": ("risk_classifier",),
    "soong.shared.toolsets.modules": ("from_langchain", "from_pydantic_ai"),
    "soong.shared.toolsets.memory.provider": ("Memory", "MemoryProvider", "MemoryScope"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AgentHandle",
    "AgentNode",
    "AnswerDelta",
    "CeleryNode",
    "CheckedPermission",
    "Choice",
    "ConflictError",
    "DeliverableSchema",
    "DenialSchema",
    "DirectSession",
    "ElicitationAnswer",
    "ElicitationCallback",
    "ElicitationOutcome",
    "ElicitationRequest",
    "ErrorType",
    "ExitCode",
    "ExportedTools",
    "HookCall",
    "InvalidPlanError",
    "Json",
    "JsonObject",
    "LogLine",
    "Memory",
    "MemoryProvider",
    "MemoryScope",
    "NotFoundError",
    "Permission",
    "PermissionCallback",
    "PermissionDecision",
    "PermissionRequest",
    "PlanFunction",
    "PlanSource",
    "PostOutcome",
    "PreOutcome",
    "Preview",
    "Risk",
    "Soong",
    "SoongError",
    "StepChange",
    "StepContext",
    "StepDetail",
    "StepErrorSchema",
    "StepGrant",
    "StepPreview",
    "StepStatus",
    "SyncSoong",
    "SyncTask",
    "Target",
    "TaskFailedError",
    "TaskHandle",
    "TaskResult",
    "TaskStatus",
    "ToolCallError",
    "ToolContext",
    "ToolDefinition",
    "ToolError",
    "ToolRegistry",
    "ToolResult",
    "Toolset",
    "Traits",
    "TypedStep",
    "UnavailableError",
    "UsageError",
    "agent_step",
    "call_tool",
    "celery_step",
    "elicitation_hook",
    "elicitation_result_hook",
    "export_tools",
    "from_langchain",
    "from_pydantic_ai",
    "open_tools",
    "plan",
    "post_hook",
    "pre_hook",
    "pydantic_ai_toolset",
    "risk_classifier",
    "scripted_agent",
    "step",
]


def __getattr__(name: str) -> object:
    try:
        home = _HOME_OF[name]
    except KeyError:
        raise AttributeError(f"module 'soong' has no attribute {name!r}") from None
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
