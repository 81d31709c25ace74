"""The public import: what a program that uses Soong needs, re-exported. Each name is imported when it is first used."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.direct.bootstrap import call_tool, open_tools
    from orchestrator.direct.session import DirectSession
    from orchestrator.outcome import Deliverable, Denial, ExitCode, TaskOutcome
    from orchestrator.sdk import Soong
    from shared.errors import (
        ConflictError,
        InvalidPlanError,
        NotFoundError,
        SoongError,
        UnavailableError,
        UsageError,
    )
    from shared.permissions.consent import Asked, Preview, StepGrant, StepPreview
    from shared.permissions.request import Choice, PermissionCallback, PermissionDecision, PermissionRequest
    from shared.tasks.functions import StepContext, step_function
    from shared.tasks.status import StepStatus, TaskStatus
    from shared.tools.definition import Permission, Target, ToolContext, ToolDefinition, Traits
    from shared.tools.hooks import HookCall, PostOutcome, PreOutcome
    from shared.tools.registry import ToolRegistry
    from shared.tools.result import ErrorType, ToolError, ToolResult
    from shared.tools.sdk_hooks import post_hook, pre_hook
    from shared.tools.toolset import Toolset

_HOMES = {
    "orchestrator.direct.bootstrap": ("call_tool", "open_tools"),
    "orchestrator.direct.session": ("DirectSession",),
    "orchestrator.outcome": ("Deliverable", "Denial", "ExitCode", "TaskOutcome"),
    "orchestrator.sdk": ("Soong",),
    "shared.errors": (
        "ConflictError",
        "InvalidPlanError",
        "NotFoundError",
        "SoongError",
        "UnavailableError",
        "UsageError",
    ),
    "shared.permissions.consent": ("Asked", "Preview", "StepGrant", "StepPreview"),
    "shared.permissions.request": ("Choice", "PermissionCallback", "PermissionDecision", "PermissionRequest"),
    "shared.tasks.functions": ("StepContext", "step_function"),
    "shared.tasks.status": ("StepStatus", "TaskStatus"),
    "shared.tools.definition": ("Permission", "Target", "ToolContext", "ToolDefinition", "Traits"),
    "shared.tools.hooks": ("HookCall", "PostOutcome", "PreOutcome"),
    "shared.tools.registry": ("ToolRegistry",),
    "shared.tools.result": ("ErrorType", "ToolError", "ToolResult"),
    "shared.tools.sdk_hooks": ("post_hook", "pre_hook"),
    "shared.tools.toolset": ("Toolset",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Asked",
    "Choice",
    "ConflictError",
    "Deliverable",
    "Denial",
    "DirectSession",
    "ErrorType",
    "ExitCode",
    "HookCall",
    "InvalidPlanError",
    "NotFoundError",
    "Permission",
    "PermissionCallback",
    "PermissionDecision",
    "PermissionRequest",
    "PostOutcome",
    "PreOutcome",
    "Preview",
    "Soong",
    "SoongError",
    "StepContext",
    "StepGrant",
    "StepPreview",
    "StepStatus",
    "Target",
    "TaskOutcome",
    "TaskStatus",
    "ToolContext",
    "ToolDefinition",
    "ToolError",
    "ToolRegistry",
    "ToolResult",
    "Toolset",
    "Traits",
    "UnavailableError",
    "UsageError",
    "call_tool",
    "open_tools",
    "post_hook",
    "pre_hook",
    "step_function",
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
