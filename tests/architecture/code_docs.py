"""The parts of the documentation that are made from code: state pictures, error types, settings, tools, plan fields.

A part stands in any Markdown file between ``<!-- made from code: NAME -->`` and ``<!-- end: NAME -->``. A test compares
each with what the code says now; ``PYTHONPATH=. .venv/bin/python -P -m tests.architecture.code_docs`` writes them anew.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from pydantic.fields import FieldInfo

from soong.orchestrator.client.tool_registry import registry_of
from soong.shared.agents.definition import builtin_definitions
from soong.shared.core.identity import Role
from soong.shared.core.settings import Settings
from soong.shared.engine.runs.record import RUN_TRANSITIONS, RunStatus
from soong.shared.engine.tasks.plan.reader import plan_schema
from soong.shared.engine.tasks.spec import STEP_TRANSITIONS, TASK_TRANSITIONS, StepStatus, TaskStatus
from soong.shared.tools.definition import ToolDefinition
from soong.shared.tools.result import EVERY_CALL, RESERVED, ErrorType
from soong.shared.tools.schema import ArgumentDoc, arguments_of
from soong.shared.tools.surface import SurfaceRequest, compute_surface
from soong.shared.toolsets.sources import ToolEnvironment
from tests.architecture.api_docs import api_endpoints, api_problems, api_rights, api_shapes, openapi_text
from tests.architecture.chart_docs import chart_values
from tests.architecture.command_docs import commands
from tests.architecture.llms_docs import llms_text
from tests.architecture.planning_schemas import planning_schemas
from tests.architecture.python_docs import python_api
from tests.spec_document import ROOT

Status = TypeVar("Status", bound=StrEnum)
Event = TypeVar("Event", bound=StrEnum)

_PART = re.compile(r"(<!-- made from code: ([a-z-]+) -->\n).*?(<!-- end: \2 -->)", re.DOTALL)


def step_states() -> str:
    return _picture(StepStatus.PENDING, STEP_TRANSITIONS, (status for status in StepStatus if status.is_terminal))


def task_states() -> str:
    return _picture(TaskStatus.RUNNING, TASK_TRANSITIONS, (status for status in TaskStatus if status.is_terminal))


def run_states() -> str:
    return _picture(RunStatus.QUEUED, RUN_TRANSITIONS, (status for status in RunStatus if status.is_terminal))


def error_types() -> str:
    """Return the closed set of error types, with the flag that tells whether the same call may succeed later."""
    rows = [
        f"| `{error.value}` | {'yes' if error.is_retryable else 'no'} | {RESERVED.get(error, '')} |"
        for error in ErrorType
    ]
    return "\n".join(
        ("| type | the same call may succeed later | no tool call ends with it yet; kept for |", "|---|---|---|", *rows)
    )


def settings() -> str:
    """Return every setting with its default and meaning."""
    rows = [
        f"| `SOONG_{name.upper()}` | {_default(field)} | {field.description} |"
        for name, field in Settings.model_fields.items()
    ]
    return "\n".join(("| setting | default | meaning |", "|---|---|---|", *rows))


def tools() -> str:
    """Return every tool that a run can have: what for, arguments, permission, tags, holders, ends."""
    registered = registry_of(ToolEnvironment()).definitions()
    return "\n\n".join(_tool(tool, _holders(registered, tool)) for tool in registered)


def every_call() -> str:
    """Return how any call may end, whatever its tool."""
    rows = [f"| {when} | {', '.join(f'`{error.value}`' for error in errors)} |" for when, errors in EVERY_CALL.items()]
    return "\n".join(("| when | errors |", "|---|---|", *rows))


def plan_schema_text() -> str:
    """Return the published schema of plans, as ``soong tasks schema`` prints it."""
    return json.dumps(plan_schema(), ensure_ascii=False, indent=2) + "\n"


def planning_schema_text() -> str:
    """Return what the planning tools show of steps and changes."""
    return json.dumps(planning_schemas(), ensure_ascii=False, indent=1) + "\n"


FILES: Mapping[str, Callable[[], str]] = {
    "docs/llms.txt": llms_text,
    "docs/plan.schema.json": plan_schema_text,
    "docs/openapi.json": openapi_text,
    "shared/toolsets/tasks/planning.schema.json": planning_schema_text,
}
"""Files that are made from code as a whole."""

PARTS: Mapping[str, Callable[[], str]] = {
    "step-states": step_states,
    "task-states": task_states,
    "run-states": run_states,
    "error-types": error_types,
    "settings": settings,
    "commands": commands,
    "tools": tools,
    "every-call": every_call,
    "api-rights": api_rights,
    "api-problems": api_problems,
    "api-endpoints": api_endpoints,
    "api-shapes": api_shapes,
    "chart-values": chart_values,
    "python-api": python_api,
}


def part_names(text: str) -> list[str]:
    return [match[2] for match in _PART.finditer(text)]


def refreshed(text: str) -> str:
    """Return ``text`` with each of its parts as the code says it now."""
    return _PART.sub(lambda match: f"{match[1]}{PARTS[match[2]]()}\n{match[3]}", text)


def documents() -> list[Path]:
    """Return every Markdown file of the project that has a part made from code."""
    candidates = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(path for path in candidates if part_names(path.read_text(encoding="utf-8")))


def _picture(first: Status, transitions: Mapping[tuple[Status, Event], Status], ends: Iterable[Status]) -> str:
    arrows: dict[tuple[Status, Status], list[str]] = {}
    for (status, event), target in transitions.items():
        arrows.setdefault((status, target), []).append(event.value)
    lines = [f"    {status} --> {target}: {', '.join(events)}" for (status, target), events in arrows.items()]
    closing = [f"    {status} --> [*]" for status in ends]
    return "\n".join(("```mermaid", "stateDiagram-v2", f"    [*] --> {first}", *lines, *closing, "```"))


def _holders(registered: Sequence[ToolDefinition], tool: ToolDefinition) -> str:
    """Return the roles that have a tool without asking for it."""
    roles = [role.value for role in Role if tool.name in _default_tools(registered, role)]
    enabled = "" if "dangerous" not in tool.tags else " once `tools.dangerous` of config.toml is set"
    return f"{', '.join(roles)}{enabled}"


def _default_tools(registered: Sequence[ToolDefinition], role: Role) -> tuple[str, ...]:
    definition = builtin_definitions().get("default_worker_agent") if role is Role.WORKER else None
    suggested = None if definition is None else definition.suggested_tools
    wanted = SurfaceRequest(role, default_tools=suggested, is_dangerous_enabled=True)
    return compute_surface(registered, wanted).tools


def _tool(tool: ToolDefinition, holders: str) -> str:
    facts = [
        f"permission `{tool.permission.value}`",
        f"tags {', '.join(f'`{tag}`' for tag in sorted(tool.tags))}",
        *([f"also called {', '.join(f'`{alias}`' for alias in tool.aliases)}"] if tool.aliases else []),
        *([f"time {tool.timeout // timedelta(milliseconds=1)} ms"] if tool.timeout is not None else []),
        *(["an abort waits for it"] if tool.interrupt == "block" else []),
    ]
    errors = ", ".join(f"`{error.value}`" for error in tool.errors) or "nothing of its own"
    return "\n\n".join(
        (
            f"### {tool.name}",
            " ".join(tool.description.split()),
            _arguments(arguments_of(tool.input_schema)),
            f"{'; '.join(facts)}. By default for: {holders}. May end in: {errors}.",
        )
    )


def _arguments(arguments: Sequence[ArgumentDoc]) -> str:
    if not arguments:
        return "No arguments."
    rows = [f"| `{one.name}` | {one.says} | {_need(one)} | {_plain(one.description)} |" for one in arguments]
    return "\n".join(("| argument | takes | default | meaning |", "|---|---|---|---|", *rows))


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


def _need(argument: ArgumentDoc) -> str:
    if argument.is_required:
        return "required"
    return "" if argument.default is None else f"`{json.dumps(argument.default)}`"


def _default(field: FieldInfo) -> str:
    value: object = field.default
    if isinstance(value, tuple):
        value = ",".join(str(part) for part in value)
    elif isinstance(value, bool):
        value = str(value).lower()
    return "" if value in ("", None) else f"`{value}`"


def main() -> int:
    for path in documents():
        text = path.read_text(encoding="utf-8")
        path.write_text(refreshed(text), encoding="utf-8")
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")
    for name, made in FILES.items():
        (ROOT / name).write_text(made(), encoding="utf-8")
        sys.stdout.write(f"{name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
