"""One call, from the model's words to a recorded result, in an order that never changes (EXE-01).

Lookup, validate, PreToolUse hook, permission, execute, PostToolUse hook, normalise, persist. Owns the order, the time
limit and the abort of a handler. Whatever goes wrong with a call becomes its result; what goes wrong with the run
(a lost lease, a database that is away, cancellation) passes through as an exception.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal

from shared.clock import Clock, SystemClock
from shared.errors import AlreadyConsumedError, InvalidJsonError, LeaseLostError, NotOwnerError
from shared.identity import RunIdentity
from shared.jsontext import Json, JsonObject, digest, parse_strict
from shared.sandbox.redact import Redactor
from shared.tools.definition import HandlerOutput, Target, ToolContext, ToolDefinition, Workplace
from shared.tools.execution import (
    CallProgress,
    Course,
    HandlerTimeoutError,
    aborted,
    timed,
    timed_out,
    unbroken,
    withheld,
)
from shared.tools.hooks import NO_HOOKS, HookCall, Hooks, HookWires, PreResult, derived_fields, with_context
from shared.tools.normalise import Renderer, check_output, failure_of, refusal, wrap
from shared.tools.ports import ArtifactStore, CallLog, Gate, GateCall, StartedCall, ToolCall
from shared.tools.result import ErrorType, ToolError, ToolFailure, ToolResult
from shared.tools.risk import Classifier, by_keywords, effective_traits, risk_of
from shared.tools.schema import validate


@dataclass(frozen=True, slots=True)
class RunScope:
    """The run whose calls these are. ``fence`` is the lease under which they are made."""

    identity: RunIdentity
    fence: int
    workplace: Workplace


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """Limits, from settings. ``max_data_chars`` bounds what is kept for programs beside the model's content."""

    default_timeout: timedelta = timedelta(milliseconds=120_000)
    max_timeout: timedelta = timedelta(milliseconds=600_000)
    max_result_chars: int = 12_000
    max_data_chars: int = 512 * 1024


@dataclass(frozen=True, slots=True)
class _Facts:
    """A validated, permitted call on its way to the handler."""

    definition: ToolDefinition
    hook_input: JsonObject
    gate_call: GateCall
    context: ToolContext
    pre: PreResult


class ToolPipeline:
    """Executes the calls of one run. Concurrency-safe; the order of a turn's calls is the scheduler's business."""

    def __init__(
        self,
        tools: Iterable[ToolDefinition],
        run: RunScope,
        gate: Gate,
        log: CallLog,
        *,
        hooks: Hooks = NO_HOOKS,
        artifacts: ArtifactStore | None = None,
        redactor: Redactor | None = None,
        clock: Clock | None = None,
        config: PipelineConfig | None = None,
        classify: Classifier = by_keywords,
    ) -> None:
        self.tools = {tool.name: tool for tool in tools}
        """The run's surface by canonical name: nothing else can be called."""
        self._aliases = {alias: tool.name for tool in self.tools.values() for alias in tool.aliases}
        self._run = run
        self._gate = gate
        self._log = log
        self._hooks = hooks
        self._redactor = redactor or Redactor()
        self._clock = clock or SystemClock()
        self._config = config or PipelineConfig()
        self._classify = classify
        limits = (self._config.max_result_chars, self._config.max_data_chars)
        self._renderer = Renderer(*limits, redactor=self._redactor, artifacts=artifacts)

    def resolve(self, name: str) -> ToolDefinition | None:
        """Return a tool of the surface by canonical name or alias."""
        return self.tools.get(self._aliases.get(name, name))

    async def execute(self, call: ToolCall) -> ToolResult:
        """Run one call to its terminal result and record it.

        Raises:
            LeaseLostError: the run is no longer ours; nothing more is written.
            asyncio.CancelledError: the run was interrupted; the call's aborted result has been recorded.
        """
        definition = self.resolve(call.tool)
        if definition is not None and definition.name != call.tool:
            call = replace(call, tool=definition.name, raw={**call.raw, "alias": call.tool})
        course = Course(call)
        try:
            result = await self._attempt(course, definition)
        except asyncio.CancelledError as signal:
            await unbroken(self._end(course, aborted(course, signal)))
            raise
        except ToolError as error:
            result = refusal(call.id, error.failure, error.data)
        if course.signal is not None:
            await unbroken(self._end(course, result))
            raise course.signal
        return await unbroken(self._end(course, result))

    async def refuse(self, call: ToolCall, type: ErrorType, message: str) -> ToolResult:
        """Record a terminal result for a call that is not made: ``not_run``, ``aborted``, ``stream_discarded``."""
        metadata: dict[str, Json] = {"aborted": True} if type is ErrorType.ABORTED else {}
        return await unbroken(self._end(Course(call), refusal(call.id, ToolFailure(type, message), None, **metadata)))

    async def _attempt(self, course: Course, definition: ToolDefinition | None) -> ToolResult:
        if definition is None:
            known = ", ".join(self.tools) or "none"
            problem = f"there is no tool {course.call.tool[:200]!r} in this run"
            raise ToolError(ErrorType.TOOL_NOT_AVAILABLE, problem, hint=f"available: {known}")
        model_input = self._validated(definition, course.call.arguments)
        pre = await self._before(course, definition, model_input)
        facts = await self._facts(course, definition, pre)
        verdict = await self._gate.decide(facts.gate_call)
        if not verdict.is_allowed:
            reason = verdict.reason or verdict.rule or "no reason was given"
            raise ToolError(verdict.error or ErrorType.PERMISSION_DENIED, f"not permitted: {reason}")
        effect_id = facts.context.effect_id
        is_write = not facts.gate_call.traits.is_read_only
        shown = self._redactor.mapping(pre.call_input)
        try:
            await self._log.started(
                StartedCall(
                    course.call, facts.gate_call, verdict, facts.hook_input, pre.call_input, effect_id, is_write, shown
                )
            )
        except AlreadyConsumedError as error:
            raise ToolError(ErrorType.PERMISSION_STALE, str(error), hint="call again to be asked anew") from error
        return await self._invoked(course, facts)

    def _validated(self, definition: ToolDefinition, arguments: Json) -> JsonObject:
        try:
            value = parse_strict(arguments or "{}") if isinstance(arguments, str) else arguments
        except InvalidJsonError as error:
            raise ToolError(ErrorType.INVALID_INPUT, f"the arguments are not JSON: {error}") from error
        value = {} if value is None else value
        violations = validate(definition.input_schema, value)
        if violations or not isinstance(value, dict):
            message = "; ".join(map(str, violations)) or "$: must be object"
            details: Json = [{"path": each.path, "rule": each.rule} for each in violations]
            raise ToolError(ErrorType.INVALID_INPUT, message, details={"violations": details})
        problem = _guarded(definition.validate_input, value) if definition.validate_input else None
        if problem:
            raise ToolError(ErrorType.INVALID_INPUT, problem)
        return value

    async def _before(self, course: Course, definition: ToolDefinition, model_input: JsonObject) -> PreResult:
        if not self._hooks.pre:
            return PreResult("none", "", model_input)
        run, call = self._run, course.call
        wires = self._wires(course, definition)
        hook_call = HookCall(run.identity, call.id, definition, model_input, run.workplace)
        pre = await self._hooks.before(hook_call, wires)
        if pre.action in ("deny", "stop"):
            details: dict[str, Json] = {"hook": pre.decided_by}
            if pre.action == "stop":
                details["stop_run"] = True
            problem = pre.reason or f"the hook {pre.decided_by!r} refused the call"
            raise ToolError(ErrorType.HOOK_DENIED, problem, details=details)
        if pre.is_rewritten:
            try:
                self._validated(definition, pre.call_input)
            except ToolError as error:
                problem = f"a hook rewrote the input, and as rewritten it is refused: {error}"
                raise ToolError(ErrorType.INVALID_INPUT, problem, details=error.failure.details) from error
        return pre

    def _wires(self, course: Course, definition: ToolDefinition) -> HookWires:
        call = course.call

        async def note(type: str, data: JsonObject) -> None:
            await self._log.note(type, {"tool_call_id": call.id, "tool": call.tool, **self._redactor.mapping(data)})

        async def derive(call_input: JsonObject) -> JsonObject:
            try:
                target = await _target(definition, self._context(course), call_input)
            except ToolError:
                target = None  # the call ends with this error after the hooks, unless one of them mends it
            return derived_fields(target, self._run.workplace)

        return HookWires(note, derive, self._clock)

    def _context(self, course: Course) -> ToolContext:
        run, call = self._run, course.call
        progress = CallProgress(self._log, self._redactor, course)
        return ToolContext(
            run.identity, run.workplace, call.id, f"{run.identity.run_id}/{call.id}", run.fence, progress
        )

    async def _facts(self, course: Course, definition: ToolDefinition, pre: PreResult) -> _Facts:
        run, call, call_input = self._run, course.call, pre.call_input
        context = self._context(course)
        course.target = target = await _target(definition, context, call_input)
        hook_result = _hook_result(pre, _tightened(definition, context, call_input))
        traits = effective_traits(definition, call_input)
        try:
            input_digest = digest(call_input)
        except InvalidJsonError as error:
            raise ToolError(ErrorType.INVALID_INPUT, str(error)) from error
        gate_call = GateCall(
            identity=run.identity,
            fence=run.fence,
            tool_call_id=call.id,
            definition=definition,
            permission_input=call_input,
            input_digest=input_digest,
            traits=traits,
            target=target,
            risk=risk_of(definition, traits, self._classify),
            cwd=str(run.workplace.cwd),
            hook_result=hook_result,
        )
        is_beyond = target.is_sensitive or not target.is_inside_roots
        # Reached by the handler only after permission; what was shown is what it may touch.
        context = replace(context, target=target, precondition=target.precondition, allowed_outside=is_beyond)
        course.is_withheld = target.is_sensitive and traits.is_read_only
        return _Facts(definition, call_input, gate_call, context, pre)

    async def _invoked(self, course: Course, facts: _Facts) -> ToolResult:
        course.started_s = self._clock.monotonic_s()
        definition, call = facts.definition, course.call
        try:
            result = wrap(call.id, await self._handled(course, facts))
        except (LeaseLostError, NotOwnerError):
            raise
        except HandlerTimeoutError as error:
            result = timed_out(course, error)
        except Exception as error:  # noqa: BLE001  # the handler's edge: whatever it raises is the call's result
            data = error.data if isinstance(error, ToolError) else None
            result = refusal(call.id, failure_of(error), data)
        result = with_context(result, facts.pre.context)
        if self._hooks.post:
            result = await self._after(course, facts, result)
        return check_output(definition, result)

    async def _after(self, course: Course, facts: _Facts, result: ToolResult) -> ToolResult:
        """Tell the Post hooks what will be kept: no secret, and nothing of what only the model may read (RES-03)."""
        derived = derived_fields(course.target, self._run.workplace)
        call_input, workplace = facts.pre.call_input, self._run.workplace
        call = HookCall(self._run.identity, course.call.id, facts.definition, call_input, workplace, derived)
        told = self._renderer.redact(withheld(course, result) if course.is_withheld else result)
        post = await self._hooks.after(call, told, self._wires(course, facts.definition))
        return post.applied_to(result)

    async def _handled(self, course: Course, facts: _Facts) -> HandlerOutput:
        seconds = self._limit_s(facts.definition, facts.pre.call_input)
        running = timed(facts.definition.handler(facts.context, facts.pre.call_input), seconds)
        if facts.definition.interrupt == "cancel":
            return await running
        task = asyncio.ensure_future(running)
        while True:
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError as signal:
                if task.cancelled():
                    raise
                course.signal = signal  # the tool asked to be waited for; the abort goes on when it has ended

    def _limit_s(self, definition: ToolDefinition, call_input: JsonObject) -> float | None:
        """Return the handler's time in seconds: the model may lower it, nothing raises it above the maximum."""
        if definition.is_agent_tool:
            return None
        limit = min(definition.timeout or self._config.default_timeout, self._config.max_timeout)
        asked = call_input.get("timeout_ms")
        if isinstance(asked, int) and not isinstance(asked, bool) and asked > 0:
            limit = min(limit, timedelta(milliseconds=min(asked, 2**31)))
        return limit.total_seconds()

    async def _end(self, course: Course, result: ToolResult) -> ToolResult:
        definition = self.resolve(course.call.tool)
        kept = self._renderer.redact(withheld(course, result) if course.is_withheld else result)
        if definition is not None:
            kept = await self._fitted(definition, kept, self._renderer)
        arguments = self._redactor.value(course.call.arguments)
        call = course.call if arguments is course.call.arguments else replace(course.call, arguments=arguments)
        elapsed_s = 0.0 if course.started_s is None else self._clock.monotonic_s() - course.started_s
        await self._log.finished(call, kept, duration_ms=int(elapsed_s * 1000))
        if definition is not None and course.is_withheld and result.ok:
            return await self._fitted(definition, result, replace(self._renderer, artifacts=None))
        return kept

    async def _fitted(self, definition: ToolDefinition, result: ToolResult, renderer: Renderer) -> ToolResult:
        try:
            return await renderer.fit(definition, result)
        except ToolError as error:
            return refusal(result.tool_call_id, error.failure)


async def _target(definition: ToolDefinition, context: ToolContext, call_input: JsonObject) -> Target:
    """Compute what a call touches; a file tool looks at the disk for it, which is not done on the loop."""
    if definition.target is None:
        return Target()
    try:
        if "filesystem" in definition.tags:
            return await asyncio.to_thread(definition.target, context, call_input)
        return definition.target(context, call_input)
    except Exception as error:
        failure = failure_of(error)
        raise ToolError(failure.type, failure.message, hint=failure.hint, details=failure.details) from error


def _guarded(check: Callable[[JsonObject], str | None], call_input: JsonObject) -> str | None:
    try:
        return check(call_input)
    except Exception as error:  # noqa: BLE001  # foreign code; an input it cannot judge is not accepted
        return f"the input could not be checked: {type(error).__name__}"


def _tightened(
    definition: ToolDefinition, context: ToolContext, call_input: JsonObject
) -> Literal["ask", "deny"] | None:
    if definition.check_permissions is None:
        return None
    try:
        return definition.check_permissions(context, call_input)
    except Exception:  # noqa: BLE001  # foreign code; a permission check that fails denies
        return "deny"


def _hook_result(pre: PreResult, check: Literal["ask", "deny"] | None) -> Literal["none", "allow", "ask"]:
    if check == "deny":
        raise ToolError(ErrorType.PERMISSION_DENIED, "not permitted: the tool itself refuses this input")
    if check == "ask" or pre.action == "ask":
        return "ask"
    return "allow" if pre.action == "allow" else "none"
