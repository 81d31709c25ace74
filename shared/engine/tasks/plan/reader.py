"""Reads plans: text or JSON in, a checked :class:`Plan` out, or one error that lists every problem (DAG-02, DAG-08).

The models here and in :mod:`soong.shared.engine.tasks.plan.fields` define every field of the document: its type, limits
and description. The published JSON Schema is made from them. Checks across fields are
:mod:`soong.shared.engine.tasks.plan.checks`; ``soong tasks validate`` applies both.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from itertools import islice
from math import ceil
from pathlib import Path as FilePath
from typing import Annotated, Any, Final, TypeAlias

from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from soong.shared.core.errors import InvalidPlanError, Problem
from soong.shared.core.jsontext import EXPECTED, MOST_FAULTS, Json, JsonObject, faults
from soong.shared.engine.runs.budgets import MICRO, NO_BUDGET, Budget
from soong.shared.engine.tasks.plan.checks import BRANCHES, KINDS, StepDocument, check_plan, modules_of
from soong.shared.engine.tasks.plan.fields import (
    MOST_COUNTED,
    MOST_USD,
    NAME,
    Flag,
    Name,
    PlanModel,
    Seconds,
    Tags,
    Text,
    Texts,
    Title,
    WorkDocument,
)
from soong.shared.engine.tasks.plan.plan import INPUT_TYPES, InputType, Plan, PlanInput, PlanNames, Report, has_type
from soong.shared.engine.tasks.plan.validation import DocumentReader, Expected, field_names, kind_of
from soong.shared.engine.tasks.problems import MAX_CHARS, Document, Hint, Path, Problems
from soong.shared.engine.tasks.spec import StepSpec


class InputDocument(PlanModel):
    """A value that is given when the plan is run. Short form: the default itself."""

    model_config = ConfigDict(title="input")

    type: InputType | None = Field(default=None, description="The default's type, else string, when absent.")
    description: Text = Field(default="", description="What it is for.")
    required: Flag | None = Field(default=None, description="Whether it must be given; yes when it has no default.")
    default: Any = Field(default=None, description="Its value when none is given.")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        """Read the short form; keep a default of null in the long one, which makes the input optional."""
        if not isinstance(value, Mapping):
            return {} if value is None else {"default": value}
        return {name: item for name, item in value.items() if item is not None or name == "default"}


class TaskLimitsDocument(PlanModel):
    """Limits on the usage of all runs of a task together, and on the task's time. The first that is reached ends it."""

    max_turns: Annotated[int, Field(ge=1, le=MOST_COUNTED), Expected("an integer above 0")] | None = Field(
        default=None, description="Most model turns of all its runs together."
    )
    tokens: Annotated[int, Field(ge=1, le=MOST_COUNTED), Expected("an integer above 0")] | None = Field(
        default=None, description="Most tokens that all its runs together read and write."
    )
    cost_usd: Annotated[float, Field(gt=0, le=MOST_USD), Expected("a number of US dollars above 0")] | None = Field(
        default=None, description="Most US dollars that the model requests of all its runs together may cost."
    )
    wall_s: Seconds | None = Field(
        default=None,
        description="Most seconds from the start of its first step, with all pauses and all waiting for people.",
    )


class PlanDocument(PlanModel):
    """A DAG of steps that Soong runs. `soong tasks validate` checks what a schema cannot say."""

    model_config = ConfigDict(title="Plan")

    title: Title = Field(description="What the task is for, for people.")
    inputs: dict[Name, InputDocument] = Field(
        default={}, description="Values given when the plan is run. Short form: the default itself."
    )
    modules: Texts = Field(
        default=(),
        description="Python modules next to the plan's file that register its scripted agents. Only for "
        "`soong run FILE`.",
    )
    limits: TaskLimitsDocument | None = Field(
        default=None, description="What all its runs together may use, and how long it may take."
    )
    tags: Tags = Field(default=(), description="Words by which lists of tasks and runs are filtered.")
    output: Any = Field(
        default=None, description="What the plan gives: a value with references to results of its steps."
    )
    steps: Annotated[tuple[StepDocument, ...], Field(min_length=1)]


class PlanHead(PlanDocument):
    """A plan whose inputs and steps are validated one by one: each part bounds the problems of a hostile plan."""

    inputs: Annotated[dict[str, Any], Field(strict=False)] = Field(default={})
    steps: Annotated[tuple[Any, ...], Field(min_length=1, strict=False)]


_OF_THE_MAP: Final[Mapping[str, str]] = {
    "id": "the children of a map step are named after it and their key",
    "depends_on": "write it into the map step around this one",
    "on_failure": "write `on_item_failure` into the map step around this one",
}


def load_plan(path: FilePath | str, known: PlanNames | None = None) -> Plan:
    """Read a plan from a file.
    Raises: InvalidPlanError, the file cannot be read, or its content is not a plan.
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
    Raises: InvalidPlanError, with every problem, in document order.
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
    if known.imports_apps:
        plan = replace(plan, modules=tuple(modules_of(plan, known)))
    return replace(plan, steps=tuple(map(known.with_model, plan.steps))) if known.definition_models else plan


def _read_plan(document: Document, report: Report) -> Plan | None:
    value = document.value
    if not isinstance(value, Mapping):
        report((), f"the document is {kind_of(value)}", "write a mapping with `title`, `inputs` and `steps`")
        return None
    head = _HEAD.read(value, (), report, _STAND_INS)
    if head is None:
        return None
    inputs = []
    for name, written in head.inputs.items():
        path: Path = ("inputs", name)
        if not re.fullmatch(NAME, name):
            report(path, f"{name!r} cannot be used", "write letters, digits and `_`")
        elif (shape := _INPUT.read(written, path, report)) is not None:
            inputs.append(_planned_input(name, shape, path, report))
    steps = [read_step(step, ("steps", index), report) for index, step in enumerate(head.steps)]
    limits = NO_BUDGET if head.limits is None else planned_limits(head.limits)
    return Plan(head.title, tuple(inputs), tuple(steps), value, document.source, limits, head.modules, head.tags)


def planned_limits(said: TaskLimitsDocument) -> Budget:
    """Return the limits of a task; part of a millionth of a dollar is one."""
    cost, wall_s = said.cost_usd, said.wall_s
    microusd = None if cost is None else ceil(Decimal(str(cost)) * MICRO)
    return Budget(said.tokens, microusd, said.max_turns, None if wall_s is None else ceil(wall_s * MICRO))


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
    if name in _OTHER_WORDS:
        return _OTHER_WORDS[name]
    kinds = [name_of for name_of, kind in KINDS.items() if name in field_names(kind.document)]
    if len(kinds) in (1, 2):
        return f"only a step of {' or '.join(f'`kind: {kind}`' for kind in kinds)} has it; set the kind, or remove it"
    return ""


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
    "app": "builtins:app",
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


SCHEMA_ID: Final = "plan.schema.json"

_Schema: TypeAlias = dict[str, Any]


class SchemaGenerator(GenerateJsonSchema):
    """Leaves out parts without use for a reader of the schema: titles of fields, empty defaults, null for left out."""

    def field_title_should_be_set(self, _schema: Any) -> bool:
        return False

    def nullable_schema(self, schema: core_schema.NullableSchema) -> _Schema:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> _Schema:
        found = super().default_schema(schema)
        return {name: value for name, value in found.items() if name != "default" or value not in (None, "", [], {})}

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> _Schema:
        return {"anyOf": super().tagged_union_schema(schema)["oneOf"]}

    def dict_schema(self, schema: core_schema.DictSchema) -> _Schema:
        found = {name: value for name, value in super().dict_schema(schema).items() if value is not True}
        for pattern, part in found.pop("patternProperties", {}).items():
            found |= {"propertyNames": {"pattern": pattern}, "additionalProperties": part}
        return found

    def enum_schema(self, schema: core_schema.EnumSchema) -> _Schema:
        return {"type": "string", "enum": [member.value for member in schema["members"]]}


def plan_schema() -> JsonObject:
    """Return the full schema, JSON Schema 2020-12."""
    schema = PlanDocument.model_json_schema(schema_generator=SchemaGenerator)
    definitions = schema["$defs"]
    short = {"type": ["string", "number", "boolean", "array", "null"]}
    definitions["InputDocument"] = {"anyOf": [definitions["InputDocument"], short]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID, **schema}
