"""Reads plans: text or JSON in, a checked :class:`Plan` out, or one error that lists every problem (DAG-02, DAG-08).

The fields of a plan are :mod:`soong.shared.engine.tasks.plan.fields`; checks across fields are
:mod:`soong.shared.engine.tasks.plan.checks`.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from itertools import islice
from math import ceil
from pathlib import Path as FilePath
from typing import Final

from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, TypeAdapter

from soong.shared.core.errors import InvalidPlanError, Problem
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.texts import EXPECTED, MOST_FAULTS, faults
from soong.shared.engine.runs.budgets import MICRO, NO_BUDGET, Budget
from soong.shared.engine.tasks.plan.checks import check_plan
from soong.shared.engine.tasks.plan.document import MAX_CHARS, Document
from soong.shared.engine.tasks.plan.fields import NAME, WorkDocument
from soong.shared.engine.tasks.plan.kinds.registry import BRANCHES, KINDS, StepDocument
from soong.shared.engine.tasks.plan.models import InputDocument, PlanHead, TaskLimitsDocument
from soong.shared.engine.tasks.plan.plan import INPUT_TYPES, InputType, Plan, PlanInput, PlanNames, Report, has_type
from soong.shared.engine.tasks.plan.validation import DocumentReader, field_names, kind_of
from soong.shared.engine.tasks.problems import Hint, Path, Problems
from soong.shared.engine.tasks.spec import StepSpec

_OF_THE_MAP: Final[Mapping[str, str]] = {
    "id": "the children of a map step are named after it and their key",
    "depends_on": "write it into the map step around this one",
    "on_failure": "write `on_item_failure` into the map step around this one",
}


def load_plan(path: FilePath | str, known: PlanNames | None = None) -> Plan:
    """Read a plan from a file.

    Raises:
        InvalidPlanError: the file cannot be read, or its content is not a plan.
    """
    return parse_plan(plan_text(path), str(path), known)


def plan_text(path: FilePath | str) -> str:
    """Return the text of a plan file. Raises: InvalidPlanError, when the file cannot be read."""
    if "\n" in str(path):
        hint = "name a file, or give the plan as a mapping: yaml.safe_load(text)"
        raise InvalidPlanError([Problem("plan", "it is the text of a plan, and a path is expected", hint)])
    file = FilePath(path)
    try:
        with file.open(encoding="utf-8-sig") as opened:
            return opened.read(MAX_CHARS + 1)  # a device or a log is refused without being read to its end
    except FileNotFoundError as error:
        raise _unreadable(file, "there is no such file", "check the path") from error
    except UnicodeDecodeError as error:
        raise _unreadable(file, f"it is not UTF-8 text (byte {error.start})", "save it as UTF-8") from error
    except OSError as error:
        raise _unreadable(file, str(error.strerror or error), "name a readable plan file") from error


def parse_plan(text: str, source: str, known: PlanNames | None = None) -> Plan:
    """Read a plan from YAML or JSON text; ``source`` names it in messages.

    Raises:
        InvalidPlanError: with every problem, in document order.
    """
    from soong.shared.engine.tasks.plan.yaml_document import read_document

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
    return replace(plan, steps=tuple(map(known.with_model, plan.steps))) if known.definition_models else plan


def _read_plan(document: Document, report: Report) -> Plan | None:
    value = document.value
    if not isinstance(value, Mapping):
        report((), f"the document is {kind_of(value)}", "write a mapping with `title`, `inputs` and `steps`")
        return None
    head = _HEAD.read(value, (), report, _STAND_INS)
    if head is None:
        return None
    inputs = _read_inputs(head.inputs, report)
    steps = [read_step(step, ("steps", index), report) for index, step in enumerate(head.steps)]
    limits = NO_BUDGET if head.limits is None else planned_limits(head.limits)
    return Plan(head.title, inputs, tuple(steps), value, document.source, limits, head.modules, head.tags)


def planned_limits(said: TaskLimitsDocument) -> Budget:
    """Return the limits of a task; part of a millionth of a dollar is one."""
    cost, wall_s = said.cost_usd, said.wall_s
    microusd = None if cost is None else ceil(Decimal(str(cost)) * MICRO)
    return Budget(said.tokens, microusd, said.max_turns, None if wall_s is None else ceil(wall_s * MICRO))


def _read_inputs(values: JsonObject, report: Report) -> tuple[PlanInput, ...]:
    found = []
    for name, value in values.items():
        path: Path = ("inputs", name)
        if not re.fullmatch(NAME, name):
            report(path, f"{name!r} cannot be used", "write letters, digits and `_`")
        elif (shape := _INPUT.read(value, path, report)) is not None:
            found.append(_planned_input(name, shape, path, report))
    return tuple(found)


def _planned_input(name: str, shape: InputDocument, path: Path, report: Report) -> PlanInput:
    default = shape.default
    shown: InputType = next((one for one in INPUT_TYPES if default is not None and has_type(default, one)), "string")
    type_name = shape.type or shown
    if default is not None and not has_type(default, type_name):
        report((*path, "default"), f"{kind_of(default)} is not of type {type_name}", "fix the default or the type")
    is_required = "default" not in shape.model_fields_set if shape.required is None else shape.required
    return PlanInput(name, type_name, shape.description, is_required, default)


def read_step(value: Json, path: Path, report: Report) -> StepSpec:
    """Read one step that is a document of its own; a step with problems keeps its readable parts."""
    if not isinstance(value, Mapping):
        report(path, f"a step is {kind_of(value)}", "write a mapping with at least `id` and `instructions`")
        return _UNREADABLE
    step = _STEP.read(value, path, report, _STAND_INS)
    if step is None:
        return _UNREADABLE
    planned = step.planned()
    return planned if planned.id != _STAND_INS["id"] else replace(planned, id="")


def _elsewhere(model: type[BaseModel], name: str) -> str:
    """Say where a field belongs that a step of this kind does not have."""
    if name in _OF_THE_MAP and any(kind.child is model for kind in KINDS.values()):
        return _OF_THE_MAP[name]
    if name in WorkDocument.model_fields and not issubclass(model, WorkDocument):
        return "a map step is not run itself; write it into its `step`"
    kinds = [name_of for name_of, kind in KINDS.items() if name in field_names(kind.document)]
    if len(kinds) == 1:
        return f"only a step of `kind: {kinds[0]}` has it; set the kind, or remove it"
    return _OTHER_WORDS.get(name, "")


_CALL: Final = "a step with `kind: python` calls a step function, by `call:`"
_OTHER_WORDS: Final = {
    **dict.fromkeys(("function", "python", "func"), _CALL),
    **dict.fromkeys(("run", "command", "cmd"), f"{_CALL}; an agent runs programs by the tool `code.run_command`"),
    **dict.fromkeys(("with", "args", "params", "input"), "write `inputs:`"),
    **dict.fromkeys(("prompt", "goal", "task"), "write `instructions:`"),
    "after": "write `depends_on:`",
    "tools": "write `allowed_tools:`",
    "type": "write `kind:`",
}
"""Names that other systems have for a field of a step."""
_STAND_INS: Final[JsonObject] = {
    "title": "-",
    "steps": [{"id": "-", "instructions": "-"}],
    "id": "-.-",
    "call": "builtin.echo",
    "over": [],
    "step": {"instructions": "-"},
}
"""For required fields that are missing or wrong, and in which the checks that follow find nothing else."""
_UNREADABLE: Final = StepSpec("", instructions="-")
_HEAD: Final = DocumentReader.of(PlanHead)
_INPUT: Final = DocumentReader.of(InputDocument)
_STEP: Final[DocumentReader[StepDocument]] = DocumentReader(
    TypeAdapter(StepDocument, config=ConfigDict(defer_build=True)), BRANCHES, _elsewhere
)
