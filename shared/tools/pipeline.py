"""One call, from the model's words to a recorded result, in an order that never changes (EXE-01).

Lookup, validate, PreToolUse hook, permission, execute, PostToolUse hook, normalise, persist. Owns the order and what is
recorded on the way; each stage is a module of its own. Whatever goes wrong with a call becomes its result; what goes
wrong with the run (a lost lease, a database that is away, cancellation) passes through as an exception.
"""

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from msgspec.structs import replace

from soong.shared.core.clock import Clock, SystemClock
from soong.shared.core.errors import AlreadyConsumedError, LeaseLostError, NotOwnerError, UnconfirmedDecisionError
from soong.shared.core.foreign import is_interrupted
from soong.shared.core.identity import RunIdentity
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.log import get_logger
from soong.shared.core.value import Value
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.arguments import parsed, validated
from soong.shared.tools.deferred import DeferredTools
from soong.shared.tools.definition import HandlerOutput, RunDirs, ToolContext, ToolDefinition
from soong.shared.tools.early import answer_kept
from soong.shared.tools.execution import (
    CallProgress,
    CallState,
    HandlerTimeoutError,
    SelfCancelledError,
    aborted,
    aborted_by_person,
    run_to_end,
    timed,
    timed_out,
    too_late_to_abort,
    unbroken,
    withheld,
)
from soong.shared.tools.hooks.chain import (
    NO_HOOKS,
    HookCall,
    Hooks,
    HookServices,
    PreResult,
    derived_fields,
    with_context,
)
from soong.shared.tools.permission_check import (
    REFUSED_BY_TOOL,
    check_rewrite,
    gate_call_of,
    own_check,
    refused_by_tool,
    target_of,
)
from soong.shared.tools.ports import (
    ArtifactStore,
    CallLog,
    CallRecord,
    Gate,
    GateCall,
    StartedCall,
    ToolCall,
    Verdict,
    effect_id_of,
)
from soong.shared.tools.questions import CallQuestioner
from soong.shared.tools.result import ErrorType, ToolError, ToolFailure, ToolResult
from soong.shared.tools.results.normalize import (
    check_context,
    check_output,
    failed,
    own_deliverable,
    refusal,
    sound,
    with_reason,
    wrap,
)
from soong.shared.tools.results.output_limits import Fitter
from soong.shared.tools.risk import Classifier, classified, for_call
from soong.shared.tools.surface import DELEGATION_TOOLS
from soong.shared.tools.time_limit import TimeLimit, taken_back

log = get_logger(__name__)

DECIDED_EVENT: Final = "permission_decided"


class RunScope(Value):
    """The run whose calls these are. ``fence`` is the lease under which they are made."""

    identity: RunIdentity
    fence: int
    run_dirs: RunDirs


class PipelineConfig(Value):
    """Limits, from settings. ``max_data_chars`` bounds what is kept for programs besides the model's content."""

    default_timeout: timedelta = timedelta(milliseconds=120_000)
    max_timeout: timedelta = timedelta(milliseconds=600_000)
    max_result_chars: int = 12_000
    max_data_chars: int = 512 * 1024


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
        classify: Classifier = classified,
        deferred: DeferredTools | None = None,
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
        self._deferred = deferred or DeferredTools()
        limits = (self._config.max_result_chars, self._config.max_data_chars)
        self._fitter = Fitter(*limits, redactor=self._redactor, artifacts=artifacts)

    def resolve(self, name: str) -> ToolDefinition | None:
        """Return a tool of the surface by canonical name or alias."""
        return self.tools.get(self._aliases.get(name, name))

    async def execute(self, call: ToolCall) -> ToolResult:
        """Run one call to its terminal result and record it.

        One that a person aborts alone ends with that result; one that must not be cut, or is over, ends as it does.

        Raises:
            LeaseLostError: the run is no longer ours; nothing more is written.
            asyncio.CancelledError: the run was interrupted; the call's aborted result has been recorded.
        """
        call, definition = self._looked_up(call)
        call_state = CallState(call, self._run.fence, call.arguments)
        try:
            result = await self._attempt(call_state, definition)
        except asyncio.CancelledError as signal:
            if not (reason := taken_back()):
                await unbroken(self._end(call_state, definition, aborted(call_state, signal)))
                raise
            result = aborted_by_person(call_state, reason)
        except ToolError as error:
            result = refusal(call.id, error.failure, error.data)
        if call_state.signal is not None and not taken_back():
            await unbroken(self._end(call_state, definition, result))
            raise call_state.signal
        return await too_late_to_abort(self._end(call_state, definition, result))

    async def refuse(self, call: ToolCall, type: ErrorType, message: str) -> ToolResult:
        """Record a terminal result for a call that is not made: ``not_run`` or ``aborted``."""
        call, definition = self._looked_up(call)
        metadata: dict[str, Json] = {}
        if type is ErrorType.ABORTED:
            metadata = {"aborted": True, "partial": False, "abort_reason": message}
        result = refusal(call.id, ToolFailure(type, message), None, **metadata)
        return await unbroken(self._end(CallState(call, self._run.fence, call.arguments), definition, result))

    def _looked_up(self, call: ToolCall) -> tuple[ToolCall, ToolDefinition | None]:
        """Return the call under its canonical name, with its tool (REG-03, REG-10)."""
        definition = self.resolve(call.tool)
        if definition is not None and definition.name != call.tool:
            call = replace(call, tool=definition.name, raw={**call.raw, "alias": call.tool})
        return call, definition

    async def _attempt(self, call_state: CallState, definition: ToolDefinition | None) -> ToolResult:
        if definition is None:
            known = ", ".join(self.tools) or "none"
            problem = f"there is no tool {call_state.call.tool[:200]!r} in this run"
            raise ToolError(ErrorType.TOOL_NOT_AVAILABLE, problem, hint=f"available: {known}")
        call_state.model_input = value = parsed(call_state.call.arguments)
        call_state.is_bounded = True
        model_input = validated(definition, value, self._deferred.hint(definition.name))
        call_state.is_repaired = model_input is not value
        pre = await self._before(call_state, for_call(definition, model_input), model_input)
        definition = for_call(definition, pre.call_input)
        context, gate_call = await self._judged(call_state, definition, pre)
        verdict = self._decided(call_state, await self._gate.decide(gate_call))
        try:
            await self._start(call_state, gate_call, verdict, context)
        except UnconfirmedDecisionError as error:  # asked again, the gate reads the row
            log.warning("decision_unconfirmed", run=self._run.identity.run_id, error=str(error))
            verdict = self._decided(call_state, await self._gate.decide(gate_call))
            await self._start(call_state, gate_call, verdict, context)
        return await self._invoked(call_state, definition, replace(context, egress=verdict.egress), pre)

    # -- hooks before
    async def _before(self, call_state: CallState, definition: ToolDefinition, model_input: JsonObject) -> PreResult:
        call_state.hook_input = model_input
        if not self._hooks.pre:
            return PreResult("none", "", model_input)
        run, call = self._run, call_state.call
        effect_id = effect_id_of(run.identity.run_id, call.id)
        hook_call = HookCall(run.identity, call.id, definition, model_input, run.run_dirs, effect_id=effect_id)
        pre = await self._hooks.before(hook_call, self._wires(call_state, definition))
        if pre.action in ("deny", "stop"):
            details: dict[str, Json] = {"hook": pre.decided_by}
            if pre.action == "stop":
                details["stop_run"] = True
            problem = pre.reason or f"the hook {pre.decided_by!r} refused the call"
            raise ToolError(ErrorType.HOOK_DENIED, problem, details=details)
        return self._rewritten(definition, model_input, pre) if pre.is_rewritten else pre

    def _rewritten(self, definition: ToolDefinition, model_input: JsonObject, pre: PreResult) -> PreResult:
        """Validate what hooks made of the input like the model's own words."""
        try:
            call_input = validated(definition, parsed(pre.call_input))
            check_rewrite(definition, model_input, call_input)
        except ToolError as error:
            problem = f"a hook rewrote the input, and as rewritten it is refused: {error}"
            raise ToolError(ErrorType.INVALID_INPUT, problem, details=error.failure.details) from error
        return replace(pre, call_input=call_input)

    def _wires(self, call_state: CallState, definition: ToolDefinition) -> HookServices:
        async def note(type: str, data: JsonObject) -> None:
            await self._note(call_state, type, self._redactor.mapping(data))

        async def derive(call_input: JsonObject) -> JsonObject:
            try:
                target = await target_of(definition, self._context(call_state), call_input)
            except ToolError:
                target = None  # the call ends with this error after the hooks, unless one of them mends it
            return derived_fields(target, self._run.run_dirs)

        return HookServices(note, derive, self._clock)

    # -- permission
    def _context(self, call_state: CallState) -> ToolContext:
        run, call = self._run, call_state.call
        progress = CallProgress(self._log, self._redactor, call_state, self._clock)
        effect_id = effect_id_of(run.identity.run_id, call.id)
        context = ToolContext(run.identity, run.run_dirs, call.id, effect_id, run.fence, progress)
        return replace(context, keep_partial=call_state.keep_partial, store_artifact=self._fitter.store)

    async def _judged(
        self, call_state: CallState, definition: ToolDefinition, pre: PreResult
    ) -> tuple[ToolContext, GateCall]:
        """Gather what permission is asked about; the handler's context is bound to what was computed here."""
        call_state.permission_input = pre.call_input
        context = self._context(call_state)
        call_state.target = target = await target_of(definition, context, pre.call_input)
        check = own_check(definition, context, pre.call_input)
        gate_call = gate_call_of(definition, context, pre, target, asks=check == "ask", classify=self._classify)
        call_state.gate_call, call_state.facts = gate_call, gate_call.facts(self._redactor.text)
        if check == "deny":
            await self._note(call_state, DECIDED_EVENT, refused_by_tool(call_state.facts))
            self._decided(call_state, REFUSED_BY_TOOL)
        is_beyond = target.is_sensitive or not target.is_inside_roots
        call_state.is_withheld = target.is_sensitive and gate_call.traits.is_read_only
        # Reached by the handler only after permission; what was shown is what it may touch.
        return replace(context, target=target, precondition=target.precondition, allowed_outside=is_beyond), gate_call

    def _decided(self, call_state: CallState, verdict: Verdict) -> Verdict:
        """Keep the decision apart from the facts (PER-19); the gate has written its event."""
        call_state.verdict, call_state.decision = verdict, verdict.as_json(self._redactor.text)
        if not verdict.is_allowed:
            silent = "a person denied it without a reason" if verdict.author == "person" else "no reason was given"
            reason = verdict.reason or verdict.rule or silent
            raise ToolError(verdict.error or ErrorType.PERMISSION_DENIED, reason)
        return verdict

    # -- execution
    async def _start(self, call_state: CallState, gate_call: GateCall, verdict: Verdict, context: ToolContext) -> None:
        call_input = gate_call.permission_input
        call_state.call_input = call_input
        record = self._record(call_state, call_state.next_event())
        shown = record.inputs.call or {}
        hook_input = call_state.hook_input or {}
        effect = context.effect_id, record.is_write
        started = StartedCall(call_state.call, gate_call, verdict, hook_input, call_input, *effect, shown, record)
        try:
            await self._log.started(started)
        except AlreadyConsumedError as error:
            raise ToolError(ErrorType.PERMISSION_STALE, str(error), hint="call again for a new question") from error

    async def _invoked(
        self, call_state: CallState, definition: ToolDefinition, context: ToolContext, pre: PreResult
    ) -> ToolResult:
        call_state.started_s = self._clock.monotonic_s()
        call_id = call_state.call.id
        try:
            result = wrap(call_id, await self._handled(call_state, definition, context, pre.call_input))
        except (LeaseLostError, NotOwnerError):
            raise
        except HandlerTimeoutError as error:
            result = timed_out(call_state, error)
        except asyncio.CancelledError:
            if is_interrupted():
                raise
            result = failed(call_id, SelfCancelledError())
        except Exception as error:  # noqa: BLE001  # the handler's edge: whatever it raises is the call's result
            result = failed(call_id, error)
        result = with_reason(own_deliverable(result, call_state.target), call_state.verdict)
        result = with_context(result, pre.context)
        if self._hooks.post:
            telling = self._after(call_state, definition, pre, result)
            result = await (telling if definition.interrupt == "cancel" else run_to_end(telling, call_state))
        return self._normalised(call_state, definition, result)

    async def _handled(
        self, call_state: CallState, definition: ToolDefinition, context: ToolContext, call_input: JsonObject
    ) -> HandlerOutput:
        limit_s = self._limit_s(definition, call_input)
        limit = TimeLimit(limit_s)
        wires = self._wires(call_state, definition)
        questioner = CallQuestioner(self._gate, context, definition, limit, self._hooks, wires)
        asking = replace(context, ask=questioner.ask, around_question=questioner)
        running = timed(lambda: definition.handler(asking, call_input), limit, limit_s)
        return await (running if definition.interrupt == "cancel" else run_to_end(running, call_state))

    def _limit_s(self, definition: ToolDefinition, call_input: JsonObject) -> float | None:
        """Return the handler's time in seconds: the model may lower it, nothing raises it above the maximum."""
        if definition.is_agent_tool or definition.name in DELEGATION_TOOLS:
            return None
        limit = min(definition.timeout or self._config.default_timeout, self._config.max_timeout)
        asked = call_input.get("timeout_ms")
        if isinstance(asked, int) and not isinstance(asked, bool) and asked > 0:
            limit = min(limit, timedelta(milliseconds=min(asked, 2**31)))
        return limit.total_seconds()

    async def _after(
        self, call_state: CallState, definition: ToolDefinition, pre: PreResult, result: ToolResult
    ) -> ToolResult:
        """Tell the Post hooks what will be kept: no secret, and nothing of what only the model may read (RES-03)."""
        run_dirs = self._run.run_dirs
        derived = derived_fields(call_state.target, run_dirs)
        identity, effect_id = self._run.identity, effect_id_of(self._run.identity.run_id, call_state.call.id)
        call = HookCall(
            identity, call_state.call.id, definition, pre.call_input, run_dirs, derived, effect_id=effect_id
        )
        told = self._fitter.redact(withheld(call_state, result) if call_state.is_withheld else result)
        post = await self._hooks.after(call, told, self._wires(call_state, definition))
        return post.applied_to(result)

    # -- the end
    def _normalised(self, call_state: CallState, definition: ToolDefinition, result: ToolResult) -> ToolResult:
        """Hold the result to what the tool promised and may add; hooks are foreign code like the handler."""
        is_alone = call_state.gate_call is None or not call_state.gate_call.traits.is_concurrency_safe
        try:
            result = sound(result) if self._hooks.post else result
            return check_context(check_output(definition, result), may_add=is_alone)
        except ToolError as error:
            return refusal(call_state.call.id, error.failure)

    async def _end(self, call_state: CallState, definition: ToolDefinition | None, result: ToolResult) -> ToolResult:
        if call_state.is_withheld:
            result = replace(result, context_nodes=())  # a node would be kept
        kept = self._fitter.redact(withheld(call_state, result) if call_state.is_withheld else result)
        if definition is not None:
            kept = await self._fitter.fit(definition, kept)
        record = self._record(call_state, call_state.next_event())
        kept = replace(kept, evidence=call_state.evidence)
        arguments = record.inputs.model
        call = (
            call_state.call if arguments is call_state.call.arguments else replace(call_state.call, arguments=arguments)
        )
        elapsed_s = 0.0 if call_state.started_s is None else self._clock.monotonic_s() - call_state.started_s
        if not await answer_kept():
            failure = ToolFailure(ErrorType.STREAM_DISCARDED, "the answer that made this call broke off")
            kept = replace(refusal(call.id, failure), evidence=call_state.evidence)
        await self._log.finished(call, kept, duration_ms=int(elapsed_s * 1000), record=record)
        if definition is not None and call_state.is_withheld and result.ok:
            whole = replace(result, evidence=call_state.evidence)
            return await replace(self._fitter, artifacts=None).fit(definition, whole)
        return kept

    # -- what is recorded
    async def _note(self, call_state: CallState, type: str, data: JsonObject) -> None:
        call = call_state.call
        await self._log.note(
            type, {"tool_call_id": call.id, "tool": call.tool, **data, "event_id": call_state.next_event()}
        )

    def _record(self, call_state: CallState, event_id: str) -> CallRecord:
        gate_call, verdict = call_state.gate_call, call_state.verdict
        return CallRecord(
            inputs=call_state.shown_inputs(self._redactor),
            facts={**call_state.facts, "is_repaired": True} if call_state.is_repaired else call_state.facts,
            decision=call_state.decision,
            input_digest="" if gate_call is None else gate_call.input_digest,
            effect_id=effect_id_of(self._run.identity.run_id, call_state.call.id),
            is_write=gate_call is not None and not gate_call.traits.is_read_only,
            decision_id="" if verdict is None else verdict.decision_id,
            event_id=event_id,
        )
