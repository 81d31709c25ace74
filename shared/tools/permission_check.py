"""The facts of one call for permission: tags, target, traits and risk, by declarations and the input (PER-11, PER-19).

Declarations come first, then whatever can only raise them (REG-05). A tool's own judgement of a call is foreign code:
if it fails, the unsafe side counts. A call under way asks a person by the gate of every other question: the answer is
the session's one callback's, signed for exactly this question, and never by a rule or a grant. During a question the
time limit of the call is suspended; the run does not park.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, TypeVar

from msgspec.structs import replace

from soong.shared.core.errors import InvalidConfigError, InvalidJsonError
from soong.shared.core.foreign import call_foreign, in_thread, origin_of, words_of
from soong.shared.core.jsontext import Json, JsonObject, digest
from soong.shared.core.log import get_logger
from soong.shared.tools.definition import (
    NAMESPACE_TAGS,
    AroundQuestion,
    CallAnswer,
    CallQuestion,
    ElicitationAnswer,
    HandlerOutput,
    Permission,
    Risk,
    Target,
    ToolContext,
    ToolDefinition,
    Traits,
)
from soong.shared.tools.hooks.chain import NO_HOOKS, Hooks, PreResult
from soong.shared.tools.hooks.hook import HookCall, HookServices, derived_fields
from soong.shared.tools.limits import TimeLimit
from soong.shared.tools.ports import ASK_MARK, Gate, GateCall, Verdict
from soong.shared.tools.result import ErrorType, JsonBlock, ToolError, ToolResult
from soong.shared.tools.results.normalize import failure_of

Classifier: TypeAlias = Callable[[ToolDefinition], Risk]
"""Guesses a risk from a tool's name. The guess counts only when it is higher."""
_Classify = TypeVar("_Classify", bound=Classifier)

log = get_logger(__name__)

_REGISTERED: Final[list[Classifier]] = []
"""Classifiers of the process's modules. A duplicate has no effect, so an import under two names needs no care."""

WRITE_KEYWORDS = ("patch", "write", "edit", "create", "delete")

_FIXED_TAGS: Final = NAMESPACE_TAGS | {permission.value for permission in Permission}


def by_keywords(definition: ToolDefinition) -> Risk:
    """Classify by keywords in the name, the highest level wins.

    Our own tools are declared one by one and reviewed: ``agent.task_create`` changes no project and stays a read. The
    guess is for names that come from elsewhere.
    """
    if definition.name.startswith(("code.", "agent.", "internal.")):
        return Risk.READ
    name = definition.name.partition(".")[2]
    if any(keyword in name for keyword in ("shell", "exec", "command", "run", "spawn")):
        return Risk.EXECUTE
    return Risk.WRITE if any(keyword in name for keyword in WRITE_KEYWORDS) else Risk.READ


def risk_classifier(classify: _Classify) -> _Classify:
    """Register the decorated function, which returns the risk of a tool. It counts only where it is the highest.

    For a module that ``SOONG_TOOLS`` names. It is asked at each call, on the event loop: it has to be quick. If it
    raises, or returns anything but a :class:`Risk`, the call is critical, and the log names the function.
    Raises: InvalidConfigError, it is not a plain function.
    """
    given: object = classify
    if not callable(given) or inspect.iscoroutinefunction(given):
        problem = "is not a plain function; write `def classify(tool: ToolDefinition) -> Risk`"
        raise InvalidConfigError(f"the risk classifier {origin_of(classify)} {problem}")
    _REGISTERED.append(classify)
    return classify


def has_classifier(values: Iterable[object]) -> bool:
    """Say whether one of these values, such as those of a module, is registered."""
    return any(value is one for value in values for one in _REGISTERED)


def classified(definition: ToolDefinition) -> Risk:
    return max((by_keywords(definition), *(_said_by(one, definition) for one in _REGISTERED)))


def _said_by(classify: Classifier, definition: ToolDefinition) -> Risk:
    try:
        said: object = call_foreign(classify, definition)
    except Exception as error:  # noqa: BLE001  # foreign code: no answer does not mean a low risk
        problem = words_of(error)
    else:
        if isinstance(said, Risk):
            return said
        problem = f"it returned {type(said).__name__}, not a Risk"
    log.error("risk_classifier_failed", classifier=origin_of(classify), tool=definition.name, error=problem[:500])
    return Risk.CRITICAL


def for_call(definition: ToolDefinition, call_input: JsonObject) -> ToolDefinition:
    """Return the definition with the tags of one call: rules, hooks and permission see no other.

    Its function may add tags and takes none away, nor does it make a tool one of ours, or another permission. Failing
    means unsafe, and so does an answer of another type.
    """
    if definition.call_tags is None:
        return definition
    try:
        said: object = call_foreign(definition.call_tags, call_input)
    except Exception:  # noqa: BLE001  # foreign code; whatever it raises, the call counts as unsafe
        said = None
    is_sound = isinstance(said, frozenset) and all(isinstance(tag, str) for tag in said)
    added = said - _FIXED_TAGS if is_sound and isinstance(said, frozenset) else frozenset({"dangerous", "network"})
    return definition if added <= definition.tags else replace(definition, tags=definition.tags | added)


def effective_traits(definition: ToolDefinition, call_input: JsonObject) -> Traits:
    """Return a call's traits: its function may raise it above the definition and never below; failing means unsafe.

    So does an answer of another type: only an exact answer counts.
    """
    try:
        said: object = call_foreign(definition.traits_of, call_input)
    except Exception:  # noqa: BLE001  # a trait function is foreign code; whatever it raises, the call counts as unsafe
        said = None
    declared = said if isinstance(said, Traits) else Traits(is_destructive=True, is_open_world=True)
    is_read_only = declared.is_read_only is True and definition.permission is Permission.READONLY
    return Traits(
        is_read_only=is_read_only,
        is_concurrency_safe=declared.is_concurrency_safe is True and is_read_only,
        is_destructive=declared.is_destructive is not False,
        is_open_world=declared.is_open_world is not False or definition.reaches_out,
    )


def risk_of(definition: ToolDefinition, traits: Traits, classify: Classifier = classified) -> Risk:
    """Return how bad a wrong yes would be."""
    declared = Risk.READ if traits.is_read_only else Risk.WRITE
    if "dangerous" in definition.tags:
        declared = max(declared, Risk.EXECUTE)
    if traits.is_destructive:
        declared = Risk.CRITICAL
    return max(declared, classify(definition))


REFUSED_BY_TOOL = Verdict(
    is_allowed=False,
    author="rule",
    rule="check_permissions (tool)",
    reason="the tool itself refuses this input",
    error=ErrorType.PERMISSION_DENIED,
)


def refused_by_tool(facts: JsonObject) -> dict[str, Json]:
    """Return the data of ``permission_decided`` for a call that its own tool refuses; no gate is asked about it."""
    return {
        "choice": "deny",
        "author": "rule",
        "rule": "check_permissions",
        "source": "tool",
        "reason": REFUSED_BY_TOOL.reason,
        "error": ErrorType.PERMISSION_DENIED.value,
        "facts": facts,
    }


async def target_of(definition: ToolDefinition, context: ToolContext, call_input: JsonObject) -> Target:
    """Compute what a call touches; a tool that looks at files for it does not do so on the loop.
    Raises: ToolError, it cannot be determined, or is refused even if permitted.
    """
    if definition.target is None:
        return Target()
    try:
        if not definition.tags.isdisjoint(_LOOKS_AT_FILES):
            return _sound(await in_thread(call_foreign, definition.target, context, call_input))
        return _sound(call_foreign(definition.target, context, call_input))
    except Exception as error:
        failure = failure_of(error)
        raise ToolError(failure.type, failure.message, hint=failure.hint, details=failure.details) from error


def _sound(target: object) -> Target:
    """Hold a target to its types: people are shown it, rules and grants compare it.
    Raises: ToolError, ``invalid_output``, it is not a target.
    """
    if not isinstance(target, Target):
        problem = f"the tool says what it touches by a {type(target).__name__}, not a Target"
        raise ToolError(ErrorType.INVALID_OUTPUT, problem)
    wrong = [name for name in _TEXTS if not isinstance(getattr(target, name), str)]
    wrong += [name for name in _FLAGS if not isinstance(getattr(target, name), bool)]
    if wrong or target.kind not in _KINDS:
        problem = f"the tool's target is unsound in {', '.join(wrong) or 'kind'}"
        raise ToolError(ErrorType.INVALID_OUTPUT, problem)
    return target


_LOOKS_AT_FILES: Final = frozenset({"filesystem", "declarative"})
_KINDS: Final = frozenset({"path", "command", "host", "resource", "none"})
_TEXTS: Final = ("kind", "scope", "shown", "host", "precondition", "preview")
_FLAGS: Final = ("is_inside_roots", "is_sensitive")


def gate_call_of(
    definition: ToolDefinition, context: ToolContext, pre: PreResult, target: Target, *, asks: bool
) -> GateCall:
    """Return the question that permission answers.
    Raises: ToolError, ``invalid_input``, the input has no digest, or a hook made of a harmless call one that is not.
    """
    call_input = pre.call_input
    traits = effective_traits(definition, call_input)
    try:
        input_digest = digest(call_input)
    except InvalidJsonError as error:
        raise ToolError(ErrorType.INVALID_INPUT, str(error)) from error
    return GateCall(
        identity=context.identity,
        fence=context.fence,
        tool_call_id=context.tool_call_id,
        definition=definition,
        permission_input=call_input,
        input_digest=input_digest,
        traits=traits,
        target=target,
        risk=risk_of(definition, traits),
        cwd=str(context.run_dirs.cwd),
        hook_result="ask" if asks or pre.action == "ask" else "allow" if pre.action == "allow" else "none",
        is_rewritten=pre.is_rewritten,
    )


def own_check(
    definition: ToolDefinition, context: ToolContext, call_input: JsonObject
) -> Literal["ask", "deny"] | None:
    """Return the outcome of the tool's own permission check; it can only tighten."""
    if definition.check_permissions is None:
        return None
    try:
        verdict = call_foreign(definition.check_permissions, context, call_input)
    except Exception:  # noqa: BLE001  # foreign code; a permission check that fails denies
        return "deny"
    return verdict if verdict in ("ask", None) else "deny"


def check_rewrite(definition: ToolDefinition, before: JsonObject, after: JsonObject) -> None:
    """Hold a rewritten input to the place that the call has in its turn (EXE-03).
    Raises: ToolError, ``invalid_input``, a call planned in parallel with others would not be safe there any more.
    """
    if definition.traits is None:
        return
    planned, now = effective_traits(definition, before), effective_traits(definition, after)
    if planned.is_concurrency_safe and not now.is_concurrency_safe:
        problem = "a hook rewrote the input into one that may not run in parallel with other calls"
        raise ToolError(ErrorType.INVALID_INPUT, problem, hint="call it with such an input yourself")


@dataclass(slots=True)
class CallQuestioner(AroundQuestion):
    """Asks for one call. ``definition`` is its tool, whose tags the questions have."""

    gate: Gate
    context: ToolContext
    definition: ToolDefinition
    limit: TimeLimit
    hooks: Hooks = NO_HOOKS
    wires: HookServices = field(default_factory=HookServices)
    _asked: dict[str, int] = field(default_factory=dict)

    async def ask(self, question: CallQuestion) -> CallAnswer:
        """Ask, and wait as long as the session lets a question wait; hooks run around it (MCP-01.d).

        A Pre hook may refuse the question, and a Post hook sees its answer. Neither changes it.

        Raises:
            InvalidJsonError: the input of the question has no digest.
            asyncio.CancelledError: the call is over; the question is withdrawn.
        """
        input_digest = digest(question.input)
        self._asked[input_digest] = number = self._asked.get(input_digest, 0) + 1
        # The same when the call is made again after a crash: it finds the question that was asked before.
        gate_call = self._gate_call(question, f"-{number}")
        refusal = await self._refused_by_hook(gate_call)
        answer = await self._answer(gate_call) if refusal is None else refusal
        if self.hooks.post:
            said: dict[str, Json] = {"is_accepted": answer.is_accepted, "words": answer.reason}
            result = ToolResult(gate_call.tool_call_id, (JsonBlock(said),), answer.reason[:200], said)
            await self.hooks.after(self._hook_call(gate_call), result, self.wires)
        return answer

    async def before(self, question: CallQuestion) -> ElicitationAnswer | None:
        """Return what the hooks answer in the person's place; a deny rule refuses that, too (MCP-01.m)."""
        if not self.hooks.elicitation:
            return None
        gate_call = self._gate_call(question)
        with self.limit.suspended():
            outcome = await self.hooks.before_elicitation(self._hook_call(gate_call), self.wires)
        if outcome.action == "none":
            return None
        if outcome.action == "accept":
            verdict = await self.gate.decide(replace(gate_call, is_answered=True))
            if not verdict.is_allowed:
                return ElicitationAnswer("decline", reason=verdict.reason)
        return ElicitationAnswer(outcome.action, outcome.content, outcome.reason)

    async def after(self, question: CallQuestion, answer: ElicitationAnswer) -> ElicitationAnswer:
        """Return the answer as the hooks leave it."""
        if not self.hooks.elicitation_result:
            return answer
        with self.limit.suspended():
            return await self.hooks.after_elicitation(self._hook_call(self._gate_call(question)), answer, self.wires)

    async def _answer(self, gate_call: GateCall) -> CallAnswer:
        with self.limit.suspended():
            verdict = await self.gate.decide(gate_call)
        if verdict.is_allowed and verdict.author != "person":
            return CallAnswer(is_accepted=False, reason="no person has answered it")
        return CallAnswer(verdict.is_allowed, verdict.reason, is_person=verdict.author == "person")

    async def _refused_by_hook(self, gate_call: GateCall) -> CallAnswer | None:
        if not self.hooks.pre:
            return None
        derived = derived_fields(gate_call.target, self.context.run_dirs)

        async def derive(_input: JsonObject) -> JsonObject:
            return derived

        pre = await self.hooks.before(self._hook_call(gate_call), replace(self.wires, derive=derive))
        if pre.is_rewritten:
            return CallAnswer(
                is_accepted=False, reason="a hook rewrote the question, so it is not the question of the tool"
            )
        if pre.action in ("deny", "stop"):
            return CallAnswer(is_accepted=False, reason=pre.reason or f"the hook {pre.decided_by!r} refused it")
        return None

    def _hook_call(self, gate_call: GateCall) -> HookCall:
        run_dirs, call_input = self.context.run_dirs, gate_call.permission_input
        derived = derived_fields(gate_call.target, run_dirs)
        definition = gate_call.definition
        return HookCall(self.context.identity, gate_call.tool_call_id, definition, call_input, run_dirs, derived)

    def _gate_call(self, question: CallQuestion, number: str = "") -> GateCall:
        context, input_digest = self.context, digest(question.input)
        return GateCall(
            identity=context.identity,
            fence=context.fence,
            tool_call_id=f"{context.tool_call_id}{ASK_MARK}{input_digest[:12]}{number}",
            definition=ToolDefinition(
                name=question.name,
                description="",
                input_schema={"type": "object"},
                handler=_never,
                permission=Permission.WRITE,
                tags=self.definition.tags,
                open_world=True,
            ),
            permission_input=question.input,
            input_digest=input_digest,
            traits=Traits(is_open_world=True),
            target=question.target,
            risk=Risk.WRITE,
            cwd=str(context.run_dirs.cwd),
            hook_result="ask",
            is_under_way=True,
        )


async def _never(_context: ToolContext, _call_input: object) -> HandlerOutput:
    raise AssertionError("a question has no handler")
