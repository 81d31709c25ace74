"""What the parts of a plan must say of each other: ids, edges, names, schemas and references (DAG-02).

Every check reports and continues; none raises. The places are those of the document
(:mod:`soong.shared.engine.tasks.plan.document`).
"""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TypeAlias

from msgspec.structs import replace

from soong.shared.core.errors import InvalidConfigError, TemplateError
from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.functions import known_functions
from soong.shared.engine.tasks.kinds import ClaimMode, StepKind
from soong.shared.engine.tasks.paths import Path
from soong.shared.engine.tasks.plan.graph import find_cycle
from soong.shared.engine.tasks.plan.plan import ACP_PREFIX, ORCHESTRATOR, Plan, PlanNames, Registered, Report
from soong.shared.engine.tasks.plan.template import Reference, references
from soong.shared.engine.tasks.problems import MAX_WORD_CHARS, Hint, JoinedNames, Unknown
from soong.shared.engine.tasks.scripted import WHERE, known_scripts
from soong.shared.engine.tasks.spec import DEFAULT_DEFINITION, StepSpec
from soong.shared.tools.schema import schema_problems

RESERVED = frozenset({"inputs", "steps", "run_dirs"})
"""Roots of references; no step and no map item may take them."""

_ROOTS = frozenset({"inputs", "steps"})
MAX_TOOL_PATTERNS = 1_000
"""Different ones in one plan; each is compared with every tool there is."""

RESULT_FIELDS = frozenset({"output", "status", "outcome", "error", "denials", "unknown_effects", "partial"})


Standing: TypeAlias = Mapping[str, Sequence[str]]
"""The steps of a task that these ones are added to: what each depends on, by id."""

NOTHING: Standing = MappingProxyType({})


def check_plan(plan: Plan, known: PlanNames, report: Report, standing: Standing = NOTHING) -> None:
    """Report every problem between the parts of a plan, and between them and the steps that are ``standing``."""
    known = _with_modules(plan, known, report)
    ids = _check_ids(plan, report, standing)
    _check_edges(plan, ids, report, standing)
    inputs = frozenset(one.name for one in plan.inputs)
    patterns: dict[str, bool] = {}
    for index, step in enumerate(plan.steps):
        path: Path = ("steps", index)
        names = _References(inputs, step, ids, patterns)
        if step.step is not None:
            _check_map(step, path, names, report)
            _check_work(step.step, (*path, "step"), names.with_item(step.item_name), known, report)
        elif step.kind is not StepKind.MAP:
            _check_work(step, path, names, known, report)


def _check_ids(plan: Plan, report: Report, standing: Standing) -> frozenset[str]:
    seen: dict[str, int] = {}
    for index, step in enumerate(plan.steps):
        if step.id in RESERVED:
            report(("steps", index, "id"), f"{step.id!r} is a word of references", "choose another id")
        elif step.id in standing:
            report(("steps", index, "id"), f"the task has a step {step.id!r} already", "choose another id")
        elif step.id and step.id in seen:
            first = f"steps[{seen[step.id]}]"
            report(("steps", index, "id"), f"the id {step.id!r} is taken by {first}", "give each step its own id")
        seen.setdefault(step.id, index)
    return frozenset(seen) - {""} | frozenset(standing)


def _check_edges(plan: Plan, ids: frozenset[str], report: Report, standing: Standing) -> None:
    for index, step in enumerate(plan.steps):
        named: set[str] = set()
        for number, parent in enumerate(step.depends_on):
            place: Path = ("steps", index, "depends_on", number)
            if parent not in ids:
                report(place, f"there is no step {parent!r}", Unknown(parent, ids, but=step.id))
            elif parent in named:
                report(place, f"{parent!r} is listed twice", "name each dependency once")
            named.add(parent)
    edges: dict[str, Sequence[str]] = dict(standing)
    for step in plan.steps:
        edges.setdefault(step.id, step.depends_on)
    cycle = find_cycle(edges)
    if cycle:
        # A cycle belongs to all its steps; it is reported at the first of them that stands in the document.
        index = next((number for number, step in enumerate(plan.steps) if step.id in cycle), 0)
        chain = " -> ".join(cycle)
        report(("steps", index, "depends_on"), f"the steps depend on each other: {chain}", "remove one of these edges")


def _check_map(step: StepSpec, path: Path, names: "_References", report: Report) -> None:
    if step.item_name in RESERVED or step.item_name in names.results:
        report((*path, "as"), f"{step.item_name!r} already names something else", "choose another name for the item")
    if isinstance(step.over, str) or step.over is None:
        found = list(_safe_references(step.over, (*path, "over"), report))
        if step.over is not None and not found:
            report((*path, "over"), f"{step.over!r} is not a list", "write one reference, or a list")
    elif isinstance(step.over, Mapping | bool | int | float):
        report((*path, "over"), "it is not a list", "write one reference, or a list")
    _check_references(step.over, (*path, "over"), names, report)
    _check_references(step.item_key, (*path, "key"), names.with_item(step.item_name), report)


def _check_work(step: StepSpec, path: Path, names: "_References", known: PlanNames, report: Report) -> None:
    if step.inputs:
        _check_references(step.inputs, (*path, "inputs"), names, report)
    _check_references(step.instructions, (*path, "instructions"), names, report)
    _check_references(step.title, (*path, "title"), names, report)
    if step.permissions:
        _check_references(step.permissions.as_json(), (*path, "permissions"), names, report)
    if step.output is not None:
        for problem in schema_problems(step.output):
            report((*path, "output"), f"the schema {problem}", "keep to the supported keywords")
        if step.kind is StepKind.AGENT and step.output.get("type") != "object":
            report((*path, "output"), "an agent's output is not an object", "set `type: object`")
    if not step.kind.traits.is_agent:
        _check_function(step.call, (*path, "call"), known, report)
        return
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


def _check_agent(step: StepSpec, path: Path, names: "_References", known: PlanNames, report: Report) -> None:
    if not step.instructions.strip() and not step.script:
        report(path, "the step does not say what to do", "add `instructions:` (and a `script:` for the script model)")
    if known.definitions is not None and step.agent not in known.definitions:
        hint = Unknown(step.agent, known.definitions, names_all=True)
        report((*path, "agent"), f"there is no agent definition {step.agent!r}", hint)
    if (ACP_PREFIX in (step.agent[:4], step.model[:4])) and step.model not in ("", step.agent):
        words = f"the agent {step.agent!r} does not run on the model {step.model!r}"
        report((*path, "model"), words, f"an agent of others ({ACP_PREFIX}NAME) has its own model: leave it out")
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


def _check_function(name: str, place: Path, known: PlanNames, report: Report) -> None:
    functions = known.functions if known.functions is not None else frozenset(known_functions())
    # Functions of one's own are registered in the workers; where those are not known, only built-in names are judged.
    if not name or name in functions or (known.functions is None and not name.startswith("builtin.")):
        return
    after = "; modules that register functions are named by SOONG_FUNCTIONS"
    report(place, f"there is no step function {name!r}", Unknown(name, functions, after=after))


def _with_modules(plan: Plan, known: PlanNames, report: Report) -> PlanNames:
    """Return what a plan may name once its modules are known."""
    if plan.modules and known.load_module is None:
        hint = "remove them; the workers' SOONG_FUNCTIONS names modules, or `soong run FILE` takes the plan's"
        report(("modules",), "a plan that is submitted in this way cannot name modules", hint)
        return known
    found: list[Registered | None] = []
    for index, name in enumerate(plan.modules):
        try:
            found.append(None if known.load_module is None else known.load_module(name))
        except InvalidConfigError as error:
            report(("modules", index), str(error), known.module_hint)
            found.append(None)
    if not found or None in found:
        return known
    last = found[-1]
    return (
        replace(known, functions=last.functions, scripts=frozenset(last.scripts), calls=last.scripts) if last else known
    )


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


class _References:
    """What the references of one step may name, and what is known of the plan's patterns of tools."""

    def __init__(
        self, inputs: frozenset[str], step: StepSpec, ids: frozenset[str], patterns: dict[str, bool], item: str = ""
    ) -> None:
        self._step, self._ids = step, ids
        self.patterns = patterns
        self.inputs = inputs
        self.results = frozenset(step.depends_on)
        self.item = item
        self._items = frozenset({item} if item else ())
        self._roots = JoinedNames(_ROOTS, self._items, ids)

    def with_item(self, item: str) -> "_References":
        return _References(self.inputs, self._step, self._ids, self.patterns, item)

    def problem(self, reference: Reference) -> tuple[str, Hint] | None:
        """Return problem and hint of a reference; None when it is valid."""
        root = reference.root_in(self._roots)
        if root is None:
            known = JoinedNames(frozenset({"inputs"}), self._items, self.results)
            return f"{reference.parts[0]!r} is not known here", Unknown(str(reference.parts[0]), known)
        rest = reference.parts[root.count(".") + 1 :]
        if root == self.item:
            return None
        if root == "inputs":
            return self._input_problem(rest)
        if root == "steps":
            root, rest = str(rest[0]) if rest else "", rest[1:]
        return self._result_problem(root, rest)

    def _input_problem(self, rest: tuple[str | int, ...]) -> tuple[str, Hint] | None:
        if not rest or rest[0] in self.inputs:
            return None
        return f"the plan has no input {rest[0]!r}", Unknown(str(rest[0]), self.inputs)

    def _result_problem(self, root: str, rest: tuple[str | int, ...]) -> tuple[str, Hint] | None:
        if root not in self.results:
            if root in self._ids:
                return f"{root!r} is not a dependency of this step", f"add {root!r} to `depends_on`"
            return f"there is no step {root!r}", Unknown(root, self.results)
        if rest and rest[0] not in RESULT_FIELDS:
            return f"a step's result has no {rest[0]!r}", f"write `{root}.output.{rest[0]}`"
        return None


def _check_references(value: Json, path: Path, names: _References, report: Report) -> None:
    if isinstance(value, str) and "${" not in value:  # most texts
        return
    for place, reference in _safe_references(value, path, report):
        problem = names.problem(reference)
        if problem is not None:
            report(place, f"the reference '${{{reference.text}}}': {problem[0]}", problem[1])


def _safe_references(value: Json, path: Path, report: Report) -> Iterator[tuple[Path, Reference]]:
    """Yield the references; a malformed one is reported, and ends the string that contains it."""
    # What most values are comes first: to ask whether one is a Mapping takes ten times as long.
    if value is None or isinstance(value, int | float) or (isinstance(value, str) and "${" not in value):
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _safe_references(item, (*path, key), report)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _safe_references(item, (*path, index), report)
    elif isinstance(value, str):
        try:
            yield from list(references(value, path))
        except TemplateError as error:
            report(path, f"the reference '${{{error.reference}}}' is malformed", error.problem)
