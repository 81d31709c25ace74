"""The published JSON Schema of plans, for editors and for models (DAG-08).

Owns the description of each field. An editor completes and marks by it; rules beyond the shape of a plan (ids, edges,
references, scripts) is said by ``soong tasks validate``, which is the judge.
"""

from collections.abc import Iterable, Mapping
from typing import Final, cast

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.tasks.kinds import ClaimMode, FailurePolicy, StepKind
from soong.shared.engine.tasks.plan.plan import (
    DEFAULT_DEFINITION,
    DEFAULT_RETRIES,
    INPUT_TYPES,
    MAX_MAP_ITEMS,
    OnFailure,
)
from soong.shared.engine.tasks.plan.reader import LONGEST_S, NAME, STEP_ID

SCHEMA_ID: Final = "plan.schema.json"
MODELINE: Final = "# yaml-language-server: $schema="


def _text(says: str, **more: Json) -> JsonObject:
    return {"type": "string", "description": says, **more}


def _whole(says: str, low: int, high: int, default: int) -> JsonObject:
    return {"type": "integer", "description": says, "minimum": low, "maximum": high, "default": default}


def _list(says: str, **items: Json) -> JsonObject:
    return {"type": "array", "description": says, "items": {"type": "string", "minLength": 1, **items}}


def _object(says: str) -> JsonObject:
    return {"type": "object", "description": says}


_SECONDS: Final[JsonObject] = {"type": "number", "minimum": 0, "maximum": LONGEST_S}
_WORDS: Final = [word.value for word in OnFailure]
_POLICIES: Final = [word.value for word in FailurePolicy]

EVERY_STEP: Final[Mapping[str, JsonObject]] = {
    "id": _text("Unique in the plan; letters, digits, `_`, `.` or `-`.", minLength=1, maxLength=64),
    "title": _text("What people see; the id when absent."),
    "depends_on": _list("Ids of the steps whose results this one needs."),
}
WORK: Final[Mapping[str, JsonObject]] = {
    "inputs": _object("Values for the step; references such as ${look.output.files} are looked up when it starts."),
    "output": _object("JSON Schema of the result. An agent is asked again until its answer holds to it."),
    "priority": _whole("Higher first, among steps that are ready.", -1000, 1000, 0),
    "retries": _whole("More attempts after a failure.", 0, 20, 0),
    "backoff_s": {
        **_SECONDS,
        "description": "Pause before the first of these attempts, doubled each time.",
        "default": 1,
    },
    "timeout_s": {**_SECONDS, "description": "Time limit of one attempt, waiting for people not counted."},
    "pool": _text("Queue that the step waits in.", default="default"),
    "needs": _list("Capabilities that its worker must announce."),
}
_WORDS_OF_A_PROGRAM: Final[JsonObject] = {"type": "array", "minItems": 1, "items": {"type": "string"}}
PERMISSIONS: Final[JsonObject] = {
    "type": "object",
    "description": "What it will ask people for, to be seen beforehand and answered once. It grants nothing.",
    "additionalProperties": False,
    "properties": {
        "write": _list("Folders and files to write; relative ones start at the working directory."),
        "hosts": _list("Hosts to reach, such as api.example.org."),
        "run": {
            "type": "array",
            "description": "Programs to run, each as a list of words, such as [git, status].",
            "items": _WORDS_OF_A_PROGRAM,
        },
    },
}
AGENT: Final[Mapping[str, JsonObject]] = {
    "instructions": _text("What to do, for a model. References such as ${inputs.path} are looked up."),
    "agent": _text("Id of an agent definition.", default=DEFAULT_DEFINITION),
    "model": _text("A model of its own (provider:name); else the one that the task runs with."),
    "allowed_tools": _list("Tools it asks for instead of its definition's; names or globs."),
    "claim": _text(
        "Who claims it. `pull`: a run that asks for it with agent.task_claim_step and does it with its own agent, "
        "model and tools; no worker begins it by itself.",
        enum=[mode.value for mode in ClaimMode],
        default=ClaimMode.ASSIGNED.value,
    ),
    "script": _text("Name of the scripted agent that runs when no model is chosen.", minLength=1),
    "permissions": PERMISSIONS,
}
PYTHON: Final[Mapping[str, JsonObject]] = {"call": _text("Name of a registered function.", minLength=1)}
MAP: Final[Mapping[str, JsonObject]] = {
    "over": {"description": "The list: one reference such as ${survey.output.packages}, or a list."},
    "as": _text("Name of an item in references.", default="item"),
    "key": _text("What names each child, such as ${item.name}; unique. The item itself, or its index, when absent."),
    "max_items": _whole("Most items; more is a failure.", 1, MAX_MAP_ITEMS, 1000),
    "on_item_failure": _text("As on_failure, for each child.", enum=[*_POLICIES]),
}
ON_FAILURE: Final[JsonObject] = _text(
    "At the final failure: skip what depends on it, fail the task, or keep going with a null result. "
    f"`retry`: {DEFAULT_RETRIES} more attempts first, unless `retries` says how many. Left out: what depends on it "
    "is skipped, or waits for the agent that plans the task.",
    enum=[*_WORDS],
)


def plan_schema() -> JsonObject:
    """Return the full schema, JSON Schema 2020-12."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "Plan",
        "description": "A DAG of steps that Soong runs. `soong tasks validate` checks what a schema cannot say.",
        "type": "object",
        "required": ["title", "steps"],
        "additionalProperties": False,
        "properties": {
            "title": _text("What the task is for, for people.", minLength=1),
            "inputs": {
                "type": "object",
                "description": "Values given when the plan is run. Short form: the default itself.",
                "propertyNames": {"pattern": f"^{NAME}$"},
                "additionalProperties": {"$ref": "#/$defs/input"},
            },
            "modules": _list(
                "Python modules next to the plan's file that register its scripted agents. Only for `soong run FILE`."
            ),
            "steps": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/step"}},
        },
        "$defs": {
            "input": _input(),
            "step": _either(
                ("agent", ("id",), _fields(EVERY_STEP, WORK, AGENT, on_failure=ON_FAILURE)),
                ("python", ("id", "kind", "call"), _fields(EVERY_STEP, WORK, PYTHON, on_failure=ON_FAILURE)),
                ("map", ("id", "kind", "over", "step"), _map_fields()),
            ),
            "child": _either(
                ("agent", (), _fields({"title": EVERY_STEP["title"]}, WORK, AGENT)),
                ("python", ("kind", "call"), _fields({"title": EVERY_STEP["title"]}, WORK, PYTHON)),
            ),
        },
    }


def step_schema() -> JsonObject:
    """Return a step as tools describe it to models: one flat object in the subset of tool schemas (SCH-01)."""
    child: Json = _object("The child: an agent or python step without id, depends_on and on_failure.")
    properties = {
        "kind": _text("What does the work.", enum=[kind.value for kind in StepKind]),
        **EVERY_STEP,
        **AGENT,
        **PYTHON,
        **WORK,
        **MAP,
        "step": child,
        "on_failure": ON_FAILURE,
    }
    return {"type": "object", "required": ["id"], "properties": properties}


def _map_fields() -> Mapping[str, JsonObject]:
    policy: JsonObject = {**ON_FAILURE, "enum": [*_POLICIES]}
    child: JsonObject = {"$ref": "#/$defs/child", "description": "The child: an agent or python step."}
    return _fields(EVERY_STEP, MAP, {"priority": WORK["priority"], "step": child}, on_failure=policy)


def _fields(*groups: Mapping[str, JsonObject], **more: JsonObject) -> Mapping[str, JsonObject]:
    return {name: part for group in (*groups, more) for name, part in group.items()}


def _either(*kinds: tuple[str, Iterable[str], Mapping[str, JsonObject]]) -> JsonObject:
    """Return one of several kinds of step: a schema for each, so that an editor offers the fields of its ``kind``."""
    shapes: list[Json] = []
    for kind, required, properties in kinds:
        word: JsonObject = {"const": kind, "description": f"A step of kind {kind}."}
        shapes.append(
            {
                "title": f"{kind} step",
                "type": "object",
                "required": list(required),
                "additionalProperties": False,
                "properties": {"kind": word, **{name: _published(name, part) for name, part in properties.items()}},
            }
        )
    return {"anyOf": shapes}


def _published(name: str, part: JsonObject) -> Json:
    if name == "id":
        return {**part, "pattern": f"^{STEP_ID}$"}
    if name == "permissions":
        return _published_asks()
    if name in ("backoff_s", "timeout_s"):
        return {key: value for key, value in part.items() if key != "minimum"} | {"exclusiveMinimum": 0}
    return part


def _published_asks() -> JsonObject:
    """Return ``permissions`` with the short form of a program without arguments, which tool schemas cannot say."""
    properties = cast("Mapping[str, JsonObject]", PERMISSIONS["properties"])
    program: JsonObject = {"anyOf": [_WORDS_OF_A_PROGRAM, {"type": "string", "minLength": 1}]}
    return {**PERMISSIONS, "properties": {**properties, "run": {**properties["run"], "items": program}}}


def _input() -> JsonObject:
    long: JsonObject = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "type": {"enum": [*INPUT_TYPES], "default": "string"},
            "description": _text("What it is for."),
            "required": {"type": "boolean", "description": "Whether it must be given; yes when it has no default."},
            "default": {"description": "Its value when none is given."},
        },
    }
    short: JsonObject = {"type": ["string", "number", "boolean", "array", "null"]}
    return {"anyOf": [long, short]}
