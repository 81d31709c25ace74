"""Looks at a plan before it starts: each scope that its steps name, resolved and judged as a call on it (PER-17).

The same parts decide as when the step runs: the sandbox resolves paths, the tool its program, the policy decides. A
scope can be granted beforehand exactly where a rule of the step would change that policy's answer from ask to allow, so
nothing is offered here that the gate would not honour. Looks at the disk, changes nothing; the real calls of a run are
judged again, one by one.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from soong.shared.core.errors import BudgetExceededError, TemplateError
from soong.shared.core.foreign import call_foreign
from soong.shared.core.identity import Role, RunIdentity
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.tasks.plan.agent_kind import (
    REFERENCE,
    PermissionProblem,
    host_problem,
    looked_up,
    run_problem,
    write_problem,
)
from soong.shared.engine.tasks.plan.budget import MIB, ExpansionBudget
from soong.shared.engine.tasks.plan.plan import Plan, scope_of, with_item
from soong.shared.engine.tasks.plan.template import Scope as Names
from soong.shared.engine.tasks.plan.template import render
from soong.shared.engine.tasks.spec import StepSpec
from soong.shared.permissions.consent import CheckedPermission, PermissionKind, Preview, StepPreview, distinct
from soong.shared.permissions.policy import Policy, judge
from soong.shared.permissions.rules import CallFacts, Effect, Rule, Scope, ScopeKind, is_too_wide, is_within
from soong.shared.sandbox.descriptors import PathRefusedError
from soong.shared.sandbox.hosts import normal_host
from soong.shared.sandbox.paths import PathPolicy
from soong.shared.tools.definition import NO_PROGRESS, Permission, RunDirs, Target, ToolContext, ToolDefinition, Traits
from soong.shared.tools.permission_check import risk_of
from soong.shared.tools.ports import GateCall
from soong.shared.tools.result import ErrorType
from soong.shared.tools.results.normalize import failure_of

COMMAND_TOOL: Final = "code.run_command"
MAX_ITEMS: Final = 1000
"""Previewed items of a map; the others ask when they start."""
MAX_SCOPES: Final = 20_000
MAX_SHOWN_BYTES: Final = 16 * MIB
"""The size of references that are looked up for one preview, and of their texts."""
_STEP: Final = "preview/step"
"""Stands for the step's key, which there is none of yet."""
_NOBODY: Final = RunIdentity("sess_preview", "run_preview", "agent_preview", Role.WORKER, "", step_key=_STEP)
_LATER: Final = "it is known only when the step starts, and asked then"
_TAINT: Final = "; asked all the same once the run has read untrusted content"
_SHOWN_FIRST: Final = (Effect.ASK, Effect.DENY, Effect.ALLOW)
"""The order in which the verdict of several tools is shown: a question if any of them asks, else a refusal."""


class Previewer(Value):
    """The judge of declared permissions: the session's future policy, and the folders and tools of its runs.
    ``tools_of`` returns the tool set of a step's run (:mod:`soong.shared.tools.surface`).
    """

    policy: Policy
    paths: PathPolicy
    run_dirs: RunDirs
    tools_of: Callable[[StepSpec], Sequence[ToolDefinition]]
    home: str

    def preview(self, plan: Plan, inputs: JsonObject) -> Preview:
        """Return what the plan will ask for with these (bound) inputs; beyond ``MAX_SCOPES`` it is asked later."""
        budget = ExpansionBudget("what the steps ask for", MAX_SHOWN_BYTES, MAX_SCOPES)
        scope = scope_of(inputs, {})
        return Preview(plan.title, tuple(self._step(step, scope, budget) for step in plan.steps))

    def _step(self, step: StepSpec, scope: Names, budget: ExpansionBudget) -> StepPreview:
        work = step.step or step
        if not work.kind.traits.is_agent:
            return StepPreview(step.id, step.title, str(step.kind))
        tools = self.tools_of(work)
        found: list[CheckedPermission] = []
        for names in _names_of(step, scope):
            found += self._asks(work, names, tools, budget)
            if budget.is_spent:
                break  # its other items are like the ones that are not known yet
        asks = distinct(found)
        spoken_of = {tool for one in asks for tool in one.tools}
        others = (tool for tool in tools if tool.name not in spoken_of)
        may_ask = (tool.name for tool in others if judge(self.policy, _facts(tool, Target())).effect is Effect.ASK)
        return StepPreview(step.id, step.title, str(step.kind), asks, tuple(may_ask))

    def _asks(
        self, work: StepSpec, names: Names | None, tools: Sequence[ToolDefinition], budget: ExpansionBudget
    ) -> Iterator[CheckedPermission]:
        for kind, words in _declared(work):
            given = shlex.join(words) if kind is PermissionKind.RUN else words[0]
            known = words if "${" not in given else None if names is None else _known(words, names, budget)
            if known is None:
                users = tuple(tool.name for tool in _users(kind, tools))
                yield CheckedPermission(kind, given, "", Effect.ASK, _LATER, tools=users)
                continue
            problem = _PROBLEMS[kind](known)
            if problem is not None:
                yield _refused(kind, given, known[0], problem[0])
            elif kind is PermissionKind.WRITE:
                yield self._write(given, known[0], tools)
            elif kind is PermissionKind.HOSTS:
                yield self._host(given, known[0], tools)
            else:
                yield self._run(given, known, tools)

    # -- one scope
    def _write(self, given: str, path: str, tools: Sequence[ToolDefinition]) -> CheckedPermission:
        try:
            located = self.paths.locate(self.run_dirs, path)
        except PathRefusedError as error:
            return _refused(PermissionKind.WRITE, given, path, str(error))
        shown = str(located.resolved)
        if located.is_protected:
            protected = "a protected name: no tool writes it and nobody can allow it"
            return _refused(PermissionKind.WRITE, given, shown, protected)
        target = Target(
            "path", shown, shown, is_inside_roots=located.is_inside_write_roots, is_sensitive=located.is_sensitive
        )
        users = [(tool, _facts(tool, target)) for tool in _users(PermissionKind.WRITE, tools)]
        asked = self._judged(PermissionKind.WRITE, given, target, Scope(ScopeKind.PATH, shown), users)
        return replace(asked, reason=asked.reason + self._refused_within(shown))

    def _host(self, given: str, host: str, tools: Sequence[ToolDefinition]) -> CheckedPermission:
        name = normal_host(host)
        target = Target("host", name, name, name)
        users = [(tool, _facts(tool, target)) for tool in _users(PermissionKind.HOSTS, tools)]
        asked = self._judged(PermissionKind.HOSTS, given, target, Scope(ScopeKind.HOST, name), users)
        return replace(asked, reason=asked.reason + _TAINT) if asked.scope is not None else asked

    def _run(self, given: str, words: Sequence[str], tools: Sequence[ToolDefinition]) -> CheckedPermission:
        """Let the tools say what the program is; a declared tool is spoken of when it starts that very program."""
        users: list[tuple[ToolDefinition, CallFacts]] = []
        problem: CheckedPermission | None = None
        for tool in _users(PermissionKind.RUN, tools):
            is_general = tool.name == COMMAND_TOOL
            target = self._target(tool, {"argv": list(words)} if is_general else {}, given)
            if isinstance(target, Target):
                if is_general or _starts(target.shown, words):
                    users.append((tool, _facts(tool, target, asks=self._own_ask(tool))))
            elif is_general:
                problem = target
        if problem is not None and not users:
            return problem
        target = users[0][1].target if users else Target("command", "", shlex.join(words))
        return self._judged(PermissionKind.RUN, given, target, Scope(ScopeKind.EXACT, target.scope), users)

    def _target(self, tool: ToolDefinition, call_input: JsonObject, given: str) -> Target | CheckedPermission:
        assert tool.target is not None
        try:
            return call_foreign(tool.target, self._context, call_input)
        except Exception as error:  # noqa: BLE001  # whatever a target raises is how the call would end
            failure = failure_of(error)
            if failure.type is ErrorType.FILE_NOT_FOUND:
                # Another machine may have it: the worker's own look decides.
                reason = f"not found here: {failure.message}"
                return CheckedPermission(PermissionKind.RUN, given, given, Effect.ASK, reason, tools=(tool.name,))
            return _refused(PermissionKind.RUN, given, given, failure.message)

    def _judged(
        self,
        kind: PermissionKind,
        given: str,
        target: Target,
        scope: Scope,
        users: Sequence[tuple[ToolDefinition, CallFacts]],
    ) -> CheckedPermission:
        if not users:
            reason = "the step has no tool that could do it: `allowed_tools` asks for one, the configuration lets it in"
            return CheckedPermission(
                kind, given, target.shown, Effect.ASK, reason, is_outside=not target.is_inside_roots
            )
        verdicts = [(tool, judge(self.policy, facts)) for tool, facts in users]
        told = min((verdict for _, verdict in verdicts), key=lambda verdict: _SHOWN_FIRST.index(verdict.effect))
        is_wide = not scope.value or (scope.kind is ScopeKind.PATH and is_too_wide(scope.value, self.home))
        grantable = () if is_wide else tuple(tool.name for tool, facts in users if self._would_answer(scope, facts))
        reason = "too wide to be allowed beforehand" if is_wide and told.effect is Effect.ASK else told.reason
        return CheckedPermission(
            kind,
            given,
            target.shown,
            told.effect,
            reason,
            told.rule,
            told.source,
            not target.is_inside_roots,
            tuple(tool.name for tool, _ in users),
            scope if grantable else None,
            grantable,
        )

    def _would_answer(self, scope: Scope, facts: CallFacts) -> bool:
        """Say whether a rule of the step is what turns ask into allow; and no such answer is asked for each time."""
        rule = Rule(Effect.ALLOW, facts.tool, scope=scope, source="step consent", step=_STEP)
        if judge(self.policy, facts).effect is not Effect.ASK or self.policy.asks_each_time(facts):
            return False
        return judge(self.policy.with_rules([rule]), facts).effect is Effect.ALLOW

    def _refused_within(self, folder: str) -> str:
        """Name what is refused inside a folder, whatever the verdict on the folder."""
        inside = [
            str(rule.scope)
            for rule in self.policy.rules
            if rule.effect is Effect.DENY and rule.scope is not None and rule.scope.kind is ScopeKind.PATH
            if rule.scope.value != folder and is_within(rule.scope.value, folder)
        ]
        return f"; refused within it: {', '.join(sorted(inside))}" if inside else ""

    # -- tools
    def _own_ask(self, tool: ToolDefinition) -> bool:
        try:
            own = tool.check_permissions
            return own is not None and call_foreign(own, self._context, {}) is not None
        except Exception:  # noqa: BLE001  # foreign code; a permission check that fails is not taken for a yes
            return True

    @property
    def _context(self) -> ToolContext:
        return ToolContext(_NOBODY, self.run_dirs, "call_preview", "preview", 0, NO_PROGRESS)


def _declared(work: StepSpec) -> Iterator[tuple[PermissionKind, Sequence[str]]]:
    yield from ((PermissionKind.WRITE, (path,)) for path in work.permissions.write)
    yield from ((PermissionKind.HOSTS, (host,)) for host in work.permissions.hosts)
    yield from ((PermissionKind.RUN, words) for words in work.permissions.run)


_PROBLEMS: Final[Mapping[PermissionKind, Callable[[Sequence[str]], PermissionProblem | None]]] = {
    PermissionKind.WRITE: lambda words: write_problem(words[0]),
    PermissionKind.HOSTS: lambda words: host_problem(words[0]),
    PermissionKind.RUN: run_problem,
}


def _known(words: Sequence[str], names: Names, budget: ExpansionBudget) -> tuple[str, ...] | None:
    """Return words with their references looked up; None when they are not known yet, or enough has been shown."""
    try:
        return looked_up(words, names, budget)
    except BudgetExceededError:
        return None


def _names_of(step: StepSpec, scope: Names) -> Iterator[Names | None]:
    """Yield what a step's references may name before the start: for a map once an item, None where those come later."""
    work = step.step or step
    if not step.kind.traits.has_items or not any(REFERENCE in word for _, words in _declared(work) for word in words):
        yield scope
        return
    try:
        items: Json = render(step.over, scope, ExpansionBudget("the items of the map step"))
    except TemplateError:
        yield None
        return
    if isinstance(items, str) or not isinstance(items, Sequence):
        yield None
        return
    for item in items[:MAX_ITEMS]:
        yield with_item(scope, step.item_name, item)
    if len(items) > MAX_ITEMS:
        yield None


def _users(kind: PermissionKind, tools: Sequence[ToolDefinition]) -> list[ToolDefinition]:
    """Return the tools whose calls name such a target, and so could be judged by its scope."""
    named = [tool for tool in tools if tool.target is not None]
    match kind:
        case PermissionKind.WRITE:
            return [
                tool
                for tool in named
                if tool.permission is Permission.WRITE and "filesystem" in tool.tags and "dangerous" not in tool.tags
            ]
        case PermissionKind.HOSTS:
            return [tool for tool in named if tool.reaches_out and "declarative" not in tool.tags]
        case PermissionKind.RUN:
            return [tool for tool in named if tool.name == COMMAND_TOOL or _is_plain_program(tool)]


def _is_plain_program(tool: ToolDefinition) -> bool:
    """Say whether a declared tool's program is the same for every input, as far as can be judged without one."""
    return "declarative" in tool.tags and not tool.input_schema.get("required")


def _starts(line: str, words: Sequence[str]) -> bool:
    """Say whether a command line starts the program that is asked for, with these words if any are named."""
    try:
        program, *arguments = shlex.split(line)
    except ValueError:
        return False
    return words[0] in (program, Path(program).name) and (len(words) == 1 or list(words[1:]) == arguments)


def _facts(tool: ToolDefinition, target: Target, *, asks: bool = False) -> CallFacts:
    """Return the mildest facts that a call of a tool on this target can have: the call itself may only be worse."""
    is_readonly = tool.permission is Permission.READONLY
    traits = Traits(is_read_only=is_readonly, is_concurrency_safe=is_readonly, is_open_world=tool.reaches_out)
    call = GateCall(
        identity=_NOBODY,
        fence=0,
        tool_call_id="call_preview",
        definition=tool,
        permission_input={},
        input_digest="",
        traits=traits,
        target=target,
        risk=risk_of(tool, traits),
        cwd="",
        hook_result="ask" if asks else "none",
    )
    return CallFacts.of(call)


def _refused(kind: PermissionKind, given: str, shown: str, reason: str) -> CheckedPermission:
    return CheckedPermission(kind, given, shown, Effect.DENY, reason, rule="refused", source="sandbox")
