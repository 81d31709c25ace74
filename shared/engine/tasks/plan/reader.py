"""Reads plans: text or JSON in, a checked :class:`Plan` out, or one error that lists every problem (DAG-02, DAG-08).

Owns which fields a plan has. What fields must say of each other is :mod:`soong.shared.engine.tasks.plan.checks`.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path as FilePath
from typing import TypeVar

from soong.shared.core.errors import InvalidPlanError, Problem
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.texts import EXPECTED, MOST_FAULTS, faults
from soong.shared.engine.tasks.kinds import ClaimMode, FailurePolicy, StepKind
from soong.shared.engine.tasks.paths import Path
from soong.shared.engine.tasks.plan.checks import check_plan
from soong.shared.engine.tasks.plan.document import MAX_CHARS, Document, read_document
from soong.shared.engine.tasks.plan.fields import Fields, kind_of
from soong.shared.engine.tasks.plan.permissions import (
    MAX_DECLARED,
    PermissionProblem,
    host_problem,
    run_problem,
    write_problem,
)
from soong.shared.engine.tasks.plan.plan import (
    DEFAULT_DEFINITION,
    DEFAULT_RETRIES,
    INPUT_TYPES,
    MAX_MAP_ITEMS,
    InputType,
    OnFailure,
    Plan,
    PlanInput,
    PlanNames,
    PlanStep,
    Report,
    has_type,
)
from soong.shared.engine.tasks.problems import Hint, Problems, Unknown
from soong.shared.engine.tasks.spec import DeclaredPermissions

_T = TypeVar("_T")

STEP_ID = r"[A-Za-z0-9_.-]{1,64}"
NAME = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
LONGEST_S = 30 * 86_400.0
_OTHER_KINDS: Mapping[str, str] = {
    "agent": "only a step of `kind: agent` has it",
    "model": "only a step of `kind: agent` has it",
    "instructions": "only a step of `kind: agent` has it",
    "allowed_tools": "only a step of `kind: agent` has it",
    "permissions": "only a step of `kind: agent` has it",
    "script": "only a step of `kind: agent` has it",
    "claim": "only a step of `kind: agent` has it",
    "call": "only a step of `kind: python` has it; set the kind, or remove it",
    "over": "only a step of `kind: map` has it; set the kind, or remove it",
    "as": "only a step of `kind: map` has it; set the kind, or remove it",
    "key": "only a step of `kind: map` has it; set the kind, or remove it",
    "step": "only a step of `kind: map` has it; set the kind, or remove it",
    "max_items": "only a step of `kind: map` has it; set the kind, or remove it",
    "on_item_failure": "only a step of `kind: map` has it; set the kind, or remove it",
    "inputs": "a map step takes no inputs; write them into its `step`",
    "output": "the output of a map step is the list of its children's; write the schema into its `step`",
    "retries": "a map step is not run itself; write it into its `step`",
    "backoff_s": "a map step is not run itself; write it into its `step`",
    "timeout_s": "a map step is not run itself; write it into its `step`",
    "pool": "a map step is not run itself; write it into its `step`",
    "needs": "a map step is not run itself; write it into its `step`",
    "depends_on": "write it into the map step around this one",
    "id": "the children of a map step are named after it and their key",
    "on_failure": "write `on_item_failure` into the map step around this one",
}


def load_plan(path: FilePath | str, known: PlanNames | None = None) -> Plan:
    """Read a plan from a file.

    Raises:
        InvalidPlanError: the file cannot be read, or what it says is not a plan.
    """
    file = FilePath(path)
    try:
        with file.open(encoding="utf-8-sig") as opened:
            text = opened.read(MAX_CHARS + 1)  # a device or a log is refused without being read to its end
    except FileNotFoundError as error:
        raise _unreadable(file, "there is no such file", "check the path") from error
    except UnicodeDecodeError as error:
        raise _unreadable(file, f"it is not UTF-8 text (byte {error.start})", "save it as UTF-8") from error
    except OSError as error:
        raise _unreadable(file, str(error.strerror or error), "name a readable plan file") from error
    return parse_plan(text, str(path), known)


def parse_plan(text: str, source: str, known: PlanNames | None = None) -> Plan:
    """Read a plan from YAML or JSON text; ``source`` names it in messages.

    Raises:
        InvalidPlanError: with every problem, in document order.
    """
    return _read(read_document(text, source), known or PlanNames())


def plan_from_json(value: Json, source: str = "plan", known: PlanNames | None = None) -> Plan:
    """Read a plan that is JSON already (an SDK's, or a stored task's). Raises: InvalidPlanError."""
    return _read(Document(source, value), known or PlanNames())


def _unreadable(file: FilePath, problem: str, hint: str) -> InvalidPlanError:
    return InvalidPlanError([Problem(str(file), problem, hint)])


def _read(document: Document, known: PlanNames) -> Plan:
    problems = Problems()

    def report(path: Path, problem: str, hint: Hint) -> None:
        problems.add(document.place(path), problem, hint, line=document.line(path))

    found = list(islice(faults(document.value), MOST_FAULTS))
    for path, fault in found:
        report(path, fault, f"write {EXPECTED}")
    if found:
        raise problems.error()
    plan = _read_plan(document, report)
    if plan is not None:
        check_plan(plan, known, report)
    if problems.count or plan is None:
        raise problems.error()
    return plan


def _read_plan(document: Document, report: Report) -> Plan | None:
    value = document.value
    if not isinstance(value, Mapping):
        report((), f"the document is {kind_of(value)}", "write a mapping with `title`, `inputs` and `steps`")
        return None
    fields = Fields(value, (), report)
    title = fields.text("title", is_required=True)
    inputs = _read_inputs(fields.mapping("inputs") or {}, report)
    steps = fields.items("steps", is_required=True)
    if steps is not None and not steps:
        report(("steps",), "the plan has no step", "add at least one step")
    read = [read_step(step, ("steps", index), report) for index, step in enumerate(steps or ())]
    modules = fields.texts("modules") or ()
    fields.done()
    return Plan(title, inputs, tuple(step for step in read if step is not None), value, document.source, modules)


def _read_inputs(value: JsonObject, report: Report) -> tuple[PlanInput, ...]:
    found = []
    for name, item in value.items():
        path: Path = ("inputs", name)
        if not Fields({"name": name}, ("inputs",), report).text("name", pattern=NAME, says="letters, digits and `_`"):
            continue
        # The short form: `path: .` is an input with that default.
        shape = item if isinstance(item, Mapping) else {"default": item} if item is not None else {}
        found.append(_read_input(name, shape, path, report))
    return tuple(found)


def _read_input(name: str, shape: JsonObject, path: Path, report: Report) -> PlanInput:
    fields = Fields(shape, path, report)
    default = fields.anything("default")
    type_name = fields.text("type", _type_name(default))
    known_type = next((one for one in INPUT_TYPES if one == type_name), None)
    if known_type is None:
        report((*path, "type"), f"{type_name!r} is not a type of inputs", Unknown(type_name, INPUT_TYPES))
    description = fields.text("description")
    is_required = fields.boolean("required", default="default" not in shape)
    fields.done()
    if known_type is not None and default is not None and not has_type(default, known_type):
        report((*path, "default"), f"{kind_of(default)} is not of type {known_type}", "fix the default or the type")
    return PlanInput(name, known_type or "string", description, is_required, default)


def _type_name(default: Json) -> InputType:
    return next((one for one in INPUT_TYPES if default is not None and has_type(default, one)), "string")


def read_step(value: Json, path: Path, report: Report) -> PlanStep | None:
    """Read one step that is a document of its own; None when it is not a step."""
    if not isinstance(value, Mapping):
        report(path, f"a step is {kind_of(value)}", "write a mapping with at least `id` and `instructions`")
        return None
    fields = Fields(value, path, report)
    kind = fields.word("kind", StepKind, StepKind.AGENT)
    step_id = fields.text("id", is_required=True, pattern=STEP_ID, says="1 to 64 letters, digits, `_`, `.` or `-`")
    depends_on = fields.texts("depends_on") or ()
    title = fields.text("title", step_id)
    policy, retries = _read_on_failure(fields, kind)
    common = {"id": step_id, "kind": kind, "title": title, "depends_on": depends_on, "on_failure": policy}
    is_map = kind is StepKind.MAP
    step = _read_map(fields, common, report) if is_map else _read_work(fields, common, retries=retries)
    fields.done(_OTHER_KINDS)
    return step


def _read_on_failure(fields: Fields, kind: StepKind) -> tuple[FailurePolicy | None, int]:
    """Read what is done at the final failure, and how many more attempts that word gives."""
    if kind is StepKind.MAP:  # it is not run itself: there is nothing to try again
        return fields.maybe_word("on_failure", FailurePolicy), 0
    word = fields.maybe_word("on_failure", OnFailure)
    if word is OnFailure.RETRY:
        return None, DEFAULT_RETRIES
    return None if word is None else FailurePolicy(word.value), 0


def _read_work(fields: Fields, common: Mapping[str, object], *, retries: int = 0) -> PlanStep:
    """Read what agent and python steps have, alone or in a map step."""
    is_agent = common["kind"] is StepKind.AGENT
    return PlanStep(
        **common,  # type: ignore[arg-type]  # the five fields that every step has, typed where they were read
        inputs=fields.mapping("inputs") or {},
        output=fields.mapping("output"),
        priority=fields.integer("priority", 0, -1000, 1000),
        retries=fields.integer("retries", retries, 0, 20),
        backoff_s=fields.seconds("backoff_s", 1.0, 3600.0) or 1.0,
        timeout_s=fields.seconds("timeout_s", None, LONGEST_S),
        pool=fields.text("pool", "default", pattern=STEP_ID, says="letters, digits, `_`, `.` or `-`"),
        needs=fields.texts("needs") or (),
        instructions=fields.text("instructions") if is_agent else "",
        agent=fields.text("agent", DEFAULT_DEFINITION) if is_agent else "",
        model=fields.text("model") if is_agent else "",
        allowed_tools=fields.texts("allowed_tools") if is_agent else None,
        permissions=_read_permissions(fields) if is_agent else DeclaredPermissions(),
        script=fields.text("script") if is_agent else "",
        claim=fields.word("claim", ClaimMode, ClaimMode.ASSIGNED) if is_agent else ClaimMode.ASSIGNED,
        call="" if is_agent else fields.text("call", is_required=True),
    )


def _read_permissions(fields: Fields) -> DeclaredPermissions:
    """Read what a step says it will ask for; every scope that could be no such thing is named."""
    value = fields.mapping("permissions")
    if value is None:
        return DeclaredPermissions()
    inner = Fields(value, (*fields.path, "permissions"), fields.report)
    write, hosts = inner.texts("write") or (), inner.texts("hosts") or ()
    run = [_words(item, index, inner) for index, item in enumerate(inner.items("run") or ())]
    inner.done()
    permissions = DeclaredPermissions(write, hosts, tuple(words for words in run if words is not None))
    _hold_to("write", permissions.write, write_problem, inner)
    _hold_to("hosts", permissions.hosts, host_problem, inner)
    _hold_to("run", permissions.run, run_problem, inner)
    return permissions


def _words(item: Json, index: int, fields: Fields) -> tuple[str, ...] | None:
    """Read a program and its arguments; a text stands for a program alone."""
    if isinstance(item, str):
        return (item,)
    if isinstance(item, Mapping) or not isinstance(item, Sequence) or not all(isinstance(word, str) for word in item):
        fields.report((*fields.path, "run", index), f"{kind_of(item)} is not a command", "write a list of texts")
        return None
    return tuple(map(str, item))


def _hold_to(name: str, items: Sequence[_T], problem: Callable[[_T], PermissionProblem | None], fields: Fields) -> None:
    if len(items) > MAX_DECLARED:
        fields.report((*fields.path, name), f"it has {len(items)} entries", f"write at most {MAX_DECLARED}")
    for index, item in enumerate(items):
        found = problem(item)
        if found is not None:
            fields.report((*fields.path, name, index), *found)


def _read_map(fields: Fields, common: Mapping[str, object], report: Report) -> PlanStep:
    child = fields.mapping("step")
    if child is None:
        report(fields.path, "a map step says nothing of its children", "add `step:` with their instructions")
    return PlanStep(
        **common,  # type: ignore[arg-type]  # the five fields that every step has, typed where they were read
        over=fields.anything("over", is_required=True),
        item_name=fields.text("as", "item", pattern=NAME, says="letters, digits and `_`"),
        item_key=fields.text("key"),
        step=None if child is None else _read_child(child, (*fields.path, "step"), report),
        max_items=fields.integer("max_items", 1000, 1, MAX_MAP_ITEMS),
        on_item_failure=fields.maybe_word("on_item_failure", FailurePolicy),
        priority=fields.integer("priority", 0, -1000, 1000),
        agent="",
    )


def _read_child(value: JsonObject, path: Path, report: Report) -> PlanStep:
    fields = Fields(value, path, report)
    kind = fields.word("kind", StepKind, StepKind.AGENT)
    if kind is StepKind.MAP:
        report((*path, "kind"), "a map step is inside a map step", "let a step after it map over its results")
        kind = StepKind.AGENT
    step = _read_work(fields, {"id": "", "kind": kind, "title": fields.text("title")})
    fields.done(_OTHER_KINDS)
    return step
