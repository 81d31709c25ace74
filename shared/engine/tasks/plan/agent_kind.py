"""An agent step: a child agent does it, with instructions, a model, tools and the permissions that it declares."""

import json
import posixpath
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec.structs import replace
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from soong.shared.core.errors import BudgetExceededError, TemplateError, UsageError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.tasks.functions import WHERE, WHERE_AGENTS, known_scripts
from soong.shared.engine.tasks.plan.budget import ExpansionBudget
from soong.shared.engine.tasks.plan.fields import (
    ON_FAILURE,
    AnswerTokens,
    Flag,
    Item,
    Kind,
    NodeDocument,
    PlanModel,
    References,
    Seconds,
    Temperature,
    Text,
    Texts,
    Thinking,
    WorkDocument,
    check_references,
    check_work,
    sequence,
)
from soong.shared.engine.tasks.plan.plan import (
    ACP_PREFIX,
    FOREIGN_PREFIXES,
    ORCHESTRATOR,
    OWN_PREFIX,
    OnFailure,
    Plan,
    PlanNames,
    Report,
)
from soong.shared.engine.tasks.plan.template import Scope, as_text, render
from soong.shared.engine.tasks.plan.validation import DocumentReader, field_names, problem, unexpected
from soong.shared.engine.tasks.problems import MAX_WORD_CHARS, Path, Problems, Unknown
from soong.shared.engine.tasks.spec import DEFAULT_DEFINITION, NO_PERMISSIONS, ClaimMode, DeclaredPermissions, StepSpec
from soong.shared.sandbox.hosts import HostRefusedError, host_of_url, normal_host

MAX_DECLARED: Final = 100
"""Permissions of each kind: a person could not review a longer list."""
MAX_WORDS: Final = 200
REFERENCE: Final = "${"

PermissionProblem = tuple[str, str]
"""Problem and hint."""


def looked_up(texts: Sequence[str], scope: Scope, budget: ExpansionBudget) -> tuple[str, ...] | None:
    """Return texts with their references looked up; None when one of them is not known yet.
    Raises: BudgetExceededError.
    """
    found = []
    try:
        for text in texts:
            value = render(text, scope, budget)
            budget.spend_text(budget.size_of(value))
            found.append(as_text(value))
    except BudgetExceededError:
        raise
    except TemplateError:
        return None
    return tuple(found)


def rendered(permissions: DeclaredPermissions, scope: Scope, budget: ExpansionBudget) -> DeclaredPermissions:
    """Return what is declared with its references looked up. One that names nothing stays as it was written.

    A declaration must not keep a step from running. Raises: BudgetExceededError.
    """
    return DeclaredPermissions(
        tuple((looked_up([text], scope, budget) or (text,))[0] for text in permissions.write),
        tuple((looked_up([text], scope, budget) or (text,))[0] for text in permissions.hosts),
        tuple(looked_up(words, scope, budget) or words for words in permissions.run),
    )


def write_problem(path: str) -> PermissionProblem | None:
    """Say what is wrong with a folder or file to be written; None when nothing is, or it is not known yet."""
    if REFERENCE in path:
        return None
    if not path.strip() or "\0" in path:
        return f"{path!r} is not a path", "name a folder or a file"
    if "*" in path:
        return f"{path!r} is a pattern", "name the folder, or each file"
    if path.startswith("~"):
        return f"{path!r} begins with `~`, which no tool expands", "write the full path"
    if posixpath.normpath(path).strip("/") == "":
        return f"{path!r} is the entire file system", "name the folder that the step writes in"
    return None


def host_problem(host: str) -> PermissionProblem | None:
    """Say what is wrong with a host; None when nothing is, or it is not known yet."""
    if REFERENCE in host:
        return None
    if "*" in host:
        return f"{host!r} is a pattern", "name each host"
    if "://" in host:
        return f"{host!r} is a URL", _host_hint(host)
    try:
        normal_host(host)
    except HostRefusedError as error:
        return str(error), "write a host such as api.example.org, without scheme, port and path"
    return None


def run_problem(words: Sequence[str]) -> PermissionProblem | None:
    """Say what is wrong with a program and its arguments; None when nothing is."""
    if not words or not words[0].strip():
        return "it names no program", "write the program first, such as [git, status]"
    if len(words) > MAX_WORDS:
        return f"it has {len(words)} words", f"write at most {MAX_WORDS}"
    if any("\0" in word for word in words):
        return "it holds a NUL character", "no program can be given one"
    if len(words) == 1 and REFERENCE not in words[0] and " " in words[0].strip():
        return f"{words[0]!r} is a command line", f"write its words one by one: [{', '.join(words[0].split())}]"
    return None


def _host_hint(url: str) -> str:
    try:
        return f"write {host_of_url(url)}"
    except HostRefusedError:
        return "write its host alone, such as api.example.org"


MAX_TOOL_PATTERNS = 1_000
"""Different ones in one plan; each is compared with every tool there is."""


class SettingsDocument(PlanModel):
    """How an agent's model is asked; a missing value is the definition's."""

    temperature: Temperature | None = None
    max_tokens: AnswerTokens | None = Field(default=None, description="Most tokens of one answer.")
    thinking: Thinking | None = None
    timeout_s: Seconds | None = Field(default=None, description="Time limit of one model request, in seconds.")
    parallel_calls: Flag | None = Field(default=None, description="Whether one answer may make several calls.")
    cache: Flag | None = Field(default=None, description="Whether the provider may keep the history for the next turn.")


SETTING_NAMES: Final = ", ".join(field_names(SettingsDocument))
_READER: Final = DocumentReader.of(SettingsDocument)


# -- how it is written
def _program(value: Any) -> Any:
    """Take a text for a program alone."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
        return value
    raise unexpected("a list of texts, such as [git, status]")


def held_to(rule: Callable[[Any], PermissionProblem | None]) -> AfterValidator:
    def check(value: Any) -> Any:
        found = rule(value)
        if found is not None:
            raise problem(*found)
        return value

    return AfterValidator(check)


_Declared = Field(max_length=MAX_DECLARED, strict=False)
_Program: TypeAlias = Annotated[
    tuple[str, ...],
    Field(strict=False),
    held_to(run_problem),
    BeforeValidator(_program, json_schema_input_type=Annotated[list[str], Field(min_length=1)] | Item),
]


class PermissionsDocument(PlanModel):
    """The permissions that a step declares beforehand."""

    write: Annotated[tuple[Annotated[Item, held_to(write_problem)], ...], _Declared, BeforeValidator(sequence)] = Field(
        default=(), description="Folders and files to write; relative ones start at the working directory."
    )
    hosts: Annotated[tuple[Annotated[Item, held_to(host_problem)], ...], _Declared, BeforeValidator(sequence)] = Field(
        default=(), description="Hosts to reach, such as api.example.org."
    )
    run: Annotated[tuple[_Program, ...], _Declared, BeforeValidator(sequence)] = Field(
        default=(), description="Programs to run, each as a list of words, such as [git, status]."
    )


class AgentWork(WorkDocument):
    """The work of an agent."""

    model_config = ConfigDict(title="agent step without an id")

    kind: Literal["agent"] = Field(default="agent", description="A child agent does it.")
    instructions: Text = Field(
        default="", description="What to do, for a model. References such as ${inputs.path} are looked up."
    )
    agent: Text = Field(
        default=DEFAULT_DEFINITION,
        description="Id of an agent definition; `python:NAME` for a registered agent of another library.",
    )
    model: Text = Field(
        default="", description="A model of its own (provider:name); else the one that the task runs with."
    )
    settings: SettingsDocument | None = Field(
        default=None, description="How its model is asked, instead of what its definition says."
    )
    allowed_tools: Texts | None = Field(
        default=None, description="Tools it asks for instead of its definition's; names or globs."
    )
    claim: Annotated[ClaimMode, Field(strict=False)] = Field(
        default=ClaimMode.ASSIGNED,
        description="Who claims it. `pull`: a run that asks for it with agent.task_claim_step and does it with its own "
        "agent, model and tools; no worker begins it by itself.",
    )
    script: Text = Field(default="", description="Name of the scripted agent that runs when no model is chosen.")
    permissions: PermissionsDocument | None = Field(
        default=None,
        description="What it will ask people for, to be seen beforehand and answered once. It grants nothing.",
    )

    def planned(self, **values: Any) -> StepSpec:
        declared = DeclaredPermissions(**dict(self.permissions)) if self.permissions else NO_PERMISSIONS
        settings = self.settings.model_dump(exclude_none=True) if self.settings else {}
        return super().planned(permissions=declared, settings=settings, **values)


class AgentStep(AgentWork, NodeDocument):
    """A step that an agent does."""

    model_config = ConfigDict(title="agent step")

    on_failure: Annotated[OnFailure, Field(strict=False)] | None = Field(default=None, description=ON_FAILURE)


# -- what is checked
def _check(step: StepSpec, path: Path, names: References, known: PlanNames, report: Report) -> None:
    check_work(step, path, names, report)
    if step.permissions:
        check_references(step.permissions.as_json(), (*path, "permissions"), names, report)
    is_own = step.agent.startswith(OWN_PREFIX)
    if step.output is not None and step.output.get("type") != "object" and not is_own:
        report((*path, "output"), "an agent's output is not an object", "set `type: object`")
    if step.claim is ClaimMode.PULL:
        _check_pulled(step, path, report)
    _check_agent(step, path, names, known, report)


def _check_pulled(step: StepSpec, path: Path, report: Report) -> None:
    """Report fields of a pulled step that set its agent: the run that claims it does the work."""
    hint = "remove it; `soong tasks add-workers` says it for the runs that pull"
    names = ("model", "allowed_tools", "script", "timeout_s")
    said = [name for name in names if getattr(step, name) not in (None, "")]
    said += ["agent"] if step.agent != DEFAULT_DEFINITION else []
    said += [name for name in ("permissions", "settings") if getattr(step, name)]
    for name in said:
        report((*path, name), f"a step of `claim: pull` has no {name} of its own", hint)


def _check_agent(step: StepSpec, path: Path, names: References, known: PlanNames, report: Report) -> None:
    is_own = step.agent.startswith(OWN_PREFIX)
    if not step.instructions.strip() and not step.script and not (is_own and step.inputs):
        more = "or `inputs:` for your agent" if is_own else "(and a `script:` for the script model)"
        report(path, "the step does not say what to do", f"add `instructions:` {more}")
    if is_own:
        name, agents = step.agent.removeprefix(OWN_PREFIX), known.agents
        if agents is not None and name not in agents:
            report((*path, "agent"), f"no agent is registered as {name!r}", Unknown(name, agents, after=WHERE_AGENTS))
    elif known.definitions is not None and step.agent not in known.definitions:
        near = Unknown(step.agent, known.definitions, names_all=True)
        report((*path, "agent"), f"there is no agent definition {step.agent!r}", near)
    is_others = step.agent.startswith(ACP_PREFIX) or step.model.startswith(FOREIGN_PREFIXES)
    if is_others and step.model not in ("", step.agent):
        words = f"the agent {step.agent!r} does not run on the model {step.model!r}"
        hint = f"an agent of others ({ACP_PREFIX}NAME) has its own model: leave it out"
        report((*path, "model"), words, "name a model as provider:name" if is_own else hint)
    if step.agent == ORCHESTRATOR and not known.may_name_orchestrator:
        words = f"{ORCHESTRATOR!r} plans and delegates, and the agent of a step starts no other agents"
        report((*path, "agent"), words, "give the goal with `soong ask`, or write what it would plan as steps")
    if known.tools is not None:
        _check_tools(step, known.tools, names.patterns, path, report)
    if step.script:
        _check_script(step, path, known, report)


def _check_tools(step: StepSpec, tools: frozenset[str], patterns: dict[str, bool], path: Path, report: Report) -> None:
    """Report names of tools and globs that mean none; ``patterns`` keeps what is known of the plan's globs."""
    for index, pattern in enumerate(step.allowed_tools or ()):
        place = (*path, "allowed_tools", index)
        if pattern in tools:
            continue
        if pattern not in patterns:
            if len(patterns) == MAX_TOOL_PATTERNS:
                report(place, f"the plan has more than {MAX_TOOL_PATTERNS:,} patterns of tools", "name the tools")
                return
            is_short = len(pattern) <= 2 * MAX_WORD_CHARS
            patterns[pattern] = is_short and any(fnmatchcase(name, pattern) for name in tools)
        if not patterns[pattern]:
            report(place, f"there is no tool {pattern!r}", Unknown(pattern, tools))


def _check_script(step: StepSpec, path: Path, known: PlanNames, report: Report) -> None:
    name, place = step.script, (*path, "script")
    scripts = known.scripts if known.scripts is not None else frozenset(known_scripts())
    if name not in scripts and (known.scripts is not None or name.startswith("builtin.")):
        report(place, f"there is no scripted agent {name!r}", Unknown(name, scripts, after=WHERE))
    if known.tools is None:
        return
    for tool in known.calls.get(name, ()):
        if tool not in known.tools:
            report(place, f"{name!r} calls the tool {tool!r}, which does not exist", Unknown(tool, known.tools))
    calls = step.inputs.get("calls") if name == "builtin.calls" else None
    for index, call in enumerate(calls if isinstance(calls, list | tuple) else ()):
        called = call.get("call") if isinstance(call, Mapping) else None
        if isinstance(called, str) and "${" not in called and called not in known.tools:
            place = (*path, "inputs", "calls", index, "call")
            report(place, f"there is no tool {called!r}", Unknown(called, known.tools))


AGENT: Final = Kind(AgentStep, AgentWork, _check)


def read_settings(given: JsonObject, source: str = "settings") -> JsonObject:
    """Return the settings that are set, checked. Raises: InvalidPlanError, with every problem."""
    if not given:
        return {}
    problems = Problems(source, joint=".")
    said = _READER.read(dict(given), (), problems.report)
    problems.refuse()
    return {} if said is None else said.model_dump(exclude_none=True)


def parse_settings(words: Sequence[str]) -> JsonObject:
    """Read settings as they are typed: ``temperature=0.2``, ``thinking=off``; the last of one name counts.
    Raises: UsageError, one is not NAME=VALUE; InvalidPlanError, a name or a value is wrong.
    """
    found: dict[str, Json] = {}
    for word in words:
        name, sign, text = word.partition("=")
        if not sign or not name.strip():
            raise UsageError(f"--setting {word!r} is not NAME=VALUE; the settings are {SETTING_NAMES}")
        found[name.strip()] = _value(text.strip())
    return read_settings(found, "--setting")


def with_settings(plan: Plan, settings: JsonObject) -> Plan:
    """Return the plan whose agents' models are asked with these settings, whatever its steps say of the same."""
    return replace(plan, steps=tuple(_with(step, settings) for step in plan.steps))


def _with(step: StepSpec, settings: JsonObject) -> StepSpec:
    if step.step is not None:
        return replace(step, step=_with(step.step, settings))
    return replace(step, settings={**step.settings, **settings}) if step.is_own_agent else step


def _value(text: str) -> Json:
    try:
        value: Json = json.loads(text)
    except ValueError:
        return text
    return value
