"""The reference of the public Python names, made from their sources and docstrings."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final, TypeAlias

import soong
import soong.testing
from soong.orchestrator.schemas.base import Schema
from soong.shared.engine.tasks.plan.plan import ORCHESTRATOR
from soong.shared.tools.hooks.hook import DEFAULT_HOOK_TIMEOUT

Callable_: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Services and tasks": (
        *("Soong", "PlanSource", "TaskResult", "StepDetail", "StepErrorSchema", "DeliverableSchema", "DenialSchema"),
        *("TaskHandle", "StepChange", "SyncSoong", "SyncTask", "AnswerDelta", "LogLine"),
        *("TaskStatus", "StepStatus", "ExitCode"),
    ),
    "Plans in Python": (
        *("plan", "PlanFunction", "step", "TypedStep", "agent_step", "AgentNode", "celery_step", "CeleryNode"),
    ),
    "Steps": ("StepContext", "scripted_agent", "AgentHandle", "Json", "JsonObject"),
    "Permissions": (
        *("PermissionCallback", "PermissionRequest", "PermissionDecision", "Choice", "StepGrant", "Preview"),
        *("StepPreview", "CheckedPermission", "ElicitationCallback", "ElicitationRequest", "ElicitationAnswer"),
    ),
    "Tools": (
        *("ToolDefinition", "Permission", "Traits", "Target", "ToolContext", "ToolResult", "ToolError", "ErrorType"),
        *("Toolset", "ToolRegistry", "from_langchain", "from_pydantic_ai", "call_tool", "open_tools", "DirectSession"),
        *("export_tools", "ExportedTools", "pydantic_ai_toolset", "risk_classifier", "Risk"),
    ),
    "Hooks": (
        *("pre_hook", "post_hook", "HookCall", "PreOutcome", "PostOutcome"),
        *("elicitation_hook", "elicitation_result_hook", "ElicitationOutcome"),
    ),
    "Memory": ("Memory", "MemoryProvider", "MemoryScope"),
    "Testing": ("LocalService", "MovableClock", "scripted_model", "ScriptedAnswers", "call", "answer", "Answerer"),
    "Errors": (
        *("SoongError", "UsageError", "InvalidPlanError", "NotFoundError", "ConflictError", "UnavailableError"),
        *("TaskFailedError", "ToolCallError"),
    ),
}
_ROLE: Final = re.compile(r":(?:class|func|meth|mod|attr|data):`~?([\w.]+)`")
_SECTION: Final = re.compile(r"^(Raises|Args|Returns|Yields|Source|Attributes):$", re.MULTILINE)
_ENTRY: Final = re.compile(r"^    ([\w., *]+): ", re.MULTILINE)


def python_api() -> str:
    """Return every public name by its subject: what it is, how it is called, its fields and methods."""
    named = [name for names in GROUPS.values() for name in names]
    assert sorted(named) == sorted((*soong.__all__, *soong.testing.__all__)), (
        "give each public name its group in tests/architecture/python_docs.py"
    )
    parts = [(f"## {title}", *(part for name in names for part in _name(name))) for title, names in GROUPS.items()]
    return "\n\n".join(part for group in parts for part in group)


def _name(name: str) -> Iterator[str]:
    is_of_tests = name in GROUPS["Testing"]
    value = getattr(soong.testing if is_of_tests else soong, name)
    yield f"### `soong.testing.{name}`" if is_of_tests else f"### `{name}`"
    if name in _ALIASES:
        yield f"A type: `{_ALIASES[name]}`."
        return
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
    if isinstance(node, ast.ClassDef):
        yield from _class(name, value, node)
    elif isinstance(node, Callable_):
        yield f"```python\n{_signature(node)}\n```"
        yield _prose(ast.get_docstring(node) or "")


_ALIASES: Final = {
    "Json": "None | bool | int | float | str | Sequence[Json] | Mapping[str, Json]",
    "PlanSource": "str | Path | Mapping[str, Json]",
    "JsonObject": "Mapping[str, Json]",
    "ElicitationCallback": "Callable[[ElicitationRequest], Awaitable[ElicitationAnswer]]",
    "PermissionCallback": "Callable[[PermissionRequest], Awaitable[PermissionDecision]]",
}


def _class(name: str, value: type[Any], node: ast.ClassDef) -> Iterator[str]:
    if text := ast.get_docstring(node):
        yield _prose(text)
    if issubclass(value, Enum):
        yield "Values: " + ", ".join(f"`{_value(member)}`" for member in value) + "."
        return
    if issubclass(value, Exception):
        made = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
        yield from (f"```python\n{_signature(each).replace('def __init__', name)}\n```" for each in made)
    if fields := [line for one in _written(value) for line in (*_fields(one), *_plain_properties(one))]:
        yield "\n".join(fields)
    for each in node.body:
        if isinstance(each, Callable_) and not each.name.startswith("_") and (said := ast.get_docstring(each)):
            yield f"#### `{name}.{each.name}`"
            typed = each.returns if _is_property(each) else None
            kind = f"{each.name}: {ast.unparse(typed)}" if typed else _signature(each)
            yield f"```python\n{kind}\n```"
            yield _prose(said)


def _written(value: type[Any]) -> Iterator[ast.ClassDef]:
    """Yield what is written of a class, that of its bases in this project before it."""
    for base in reversed(value.__mro__):
        if base.__module__.startswith("soong.") and base is not Schema:
            (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
            assert isinstance(node, ast.ClassDef)
            yield node


def _is_property(node: Callable_) -> bool:
    names = {one.id for one in node.decorator_list if isinstance(one, ast.Name)}
    return not names.isdisjoint({"property", "cached_property"})


def _plain_properties(node: ast.ClassDef) -> Iterator[str]:
    """Yield the public properties whose names say all: those without a docstring."""
    for each in node.body:
        if not isinstance(each, ast.FunctionDef) or each.name.startswith("_") or ast.get_docstring(each) is not None:
            continue
        if _is_property(each) and each.returns:
            yield f"- `{each.name}: {ast.unparse(each.returns)}`"


def _value(member: Enum) -> str:
    return f"{member.name} = {member.value}" if isinstance(member.value, int) else str(member.value)


def _fields(node: ast.ClassDef) -> Iterator[str]:
    """Yield the public fields of a class with their types, and the docstring below each."""
    for place, each in enumerate(node.body):
        if not isinstance(each, ast.AnnAssign) or not isinstance(each.target, ast.Name):
            continue
        if each.target.id.startswith("_") or "ClassVar" in ast.unparse(each.annotation):
            continue
        follower = node.body[place + 1] if place + 1 < len(node.body) else None
        text = ""
        if isinstance(follower, ast.Expr) and isinstance(follower.value, ast.Constant):
            text = f": {_prose(' '.join(str(follower.value.value).split()))}"
        yield f"- `{each.target.id}: {ast.unparse(_plain_type(each.annotation))}`{text}"


def _plain_type(annotation: ast.expr) -> ast.expr:
    """Return the type of a field without the place that a schema reads it from."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
        assert isinstance(annotation.slice, ast.Tuple)
        return annotation.slice.elts[0]
    return annotation


def _signature(node: Callable_) -> str:
    """Return a signature as it is written, on one line or with one argument on each."""
    arguments = node.args
    for one in (arguments.posonlyargs, arguments.args):
        if one and one[0].arg in {"self", "cls"}:
            del one[0]
    _name_values(node)
    start = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{start} {node.name}({ast.unparse(arguments)}){result}"
    if len(line) <= 100:
        return line
    parts = re.split(r", (?=(?:\*\*?)?\w*(?:: |$|,)|\*(?:,|$))", ast.unparse(arguments))
    return f"{start} {node.name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"


def _name_values(node: Callable_) -> None:
    """Put the values of constants in the place of their names, where a default is one."""
    for each in (node.args.defaults, node.args.kw_defaults):
        for place, default in enumerate(each):
            if isinstance(default, ast.Name) and default.id.isupper():
                each[place] = ast.parse(_CONSTANTS[default.id].removeprefix("datetime."), mode="eval").body


_CONSTANTS: Final = {
    "DEFAULT_HOOK_TIMEOUT": repr(DEFAULT_HOOK_TIMEOUT),
    "NO_HOOKS": "Hooks()",
    "ORCHESTRATOR": repr(ORCHESTRATOR),
}


def _prose(text: str) -> str:
    """Return a docstring as Markdown."""
    text = _ROLE.sub(lambda role: f"`{role[1].rpartition('.')[2]}`", inspect.cleandoc(text)).replace("``", "`")
    head, *sections = _SECTION.split(text)
    shown = head.strip()
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        shown += f"\n\n{title}:\n\n" + _ENTRY.sub(r"- `\1`: ", body.strip("\n")).replace("\n        ", "\n  ").rstrip()
    return shown
