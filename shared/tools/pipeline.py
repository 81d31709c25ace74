"""One call, from the model's words to a recorded result, in an order that never changes (EXE-01).

Lookup, validate, PreToolUse hook, permission, execute, PostToolUse hook, normalise, persist. Owns the order and the
records on the way; each stage is a module of its own. An error of a call becomes its result; an error of the run (a
lost lease, a database that is away, cancellation) passes through as an exception.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeAlias

from msgspec.structs import replace

from soong.shared.core.errors import AlreadyConsumedError, LeaseLostError, NotOwnerError
from soong.shared.core.foreign import is_interrupted
from soong.shared.core.identity import RunIdentity
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.log import get_logger
from soong.shared.core.timing import Clock, SystemClock
from soong.shared.core.value import Value
from soong.shared.sandbox.redact import Redactor
from soong.shared.sandbox.threads import unbroken
from soong.shared.tools.deferred import DeferredTools
from soong.shared.tools.definition import RunDirs, ToolContext, ToolDefinition
from soong.shared.tools.execution import (
    CallProgress,
    CallState,
    HandlerTimeoutError,
    SelfCancelledError,
    aborted,
    aborted_by_person,
    parsed,
    run_to_end,
    timed,
    timed_out,
    too_late_to_abort,
    validated,
    withheld,
)
from soong.shared.tools.hooks.chain import NO_HOOKS, Hooks, PreResult, applied, with_context
from soong.shared.tools.hooks.hook import HookCall, HookServices, derived_fields
from soong.shared.tools.limits import TimeLimit, answer_kept, taken_back
from soong.shared.tools.permission_check import (
    REFUSED_BY_TOOL,
    CallQuestioner,
    check_rewrite,
    for_call,
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
from soong.shared.tools.results.rendering import Fitter
from soong.shared.tools.surface import DELEGATION_TOOLS

log = get_logger(__name__)

Around: TypeAlias = Callable[[ToolCall], AbstractContextManager[object]]
"""Is entered around each call that is made, until it has ended."""

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


@dataclass(eq=False)
class ToolPipeline:
    """Executes the calls of one run. Concurrency-safe; the order of a turn's calls is the scheduler's business."""

    listed: Iterable[ToolDefinition]
    run: RunScope
    gate: Gate
    log: CallLog
    hooks: Hooks = NO_HOOKS
    artifacts: ArtifactStore | None = None
    redactor: Redactor = field(default_factory=Redactor)
    clock: Clock = field(default_factory=SystemClock)
    config: PipelineConfig = field(default_factory=PipelineConfig)
    deferred: DeferredTools = field(default_factory=DeferredTools)
    around: Sequence[Around] = ()
    tools: dict[str, ToolDefinition] = field(init=False)
    """The run's surface by canonical name: nothing else can be called."""
    _aliases: dict[str, str] = field(init=False)
    _fitter: Fitter = field(init=False)

    def __post_init__(self) -> None:
        self.tools = {tool.name: tool for tool in self.listed}
        self._aliases = {alias: tool.name for tool in self.tools.values() for alias in tool.aliases}
        limits = (self.config.max_result_chars, self.config.max_data_chars)
        self._fitter = Fitter(*limits, redactor=self.redactor, artifacts=self.artifacts)

    def add(self, definition: ToolDefinition) -> None:
        """Let a tool be called in this run that its surface does not have: one of its agent's own."""
        self.tools[definition.name] = definition

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
        call_state = CallState(call, self.run.fence, call.arguments)
        with ExitStack() as stack:
            for each in self.around:
                stack.enter_context(each(call))
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
        return await unbroken(self._end(CallState(call, self.run.fence, call.arguments), definition, result))

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
        model_input = validated(definition, value, self.deferred.hint(definition.name))
        call_state.is_repaired = model_input is not value
        pre = await self._before(call_state, for_call(definition, model_input), model_input)
        definition = for_call(definition, pre.call_input)
        context, gate_call = await self._judged(call_state, definition, pre)
        verdict = self._decided(call_state, await self.gate.decide(gate_call))
        call_state.call_input = gate_call.permission_input
        record = self._record(call_state, call_state.next_event())
        try:
            await self.log.started(StartedCall(call_state.call, gate_call, verdict, record))
        except AlreadyConsumedError as error:
            raise ToolError(ErrorType.PERMISSION_STALE, str(error), hint="call again for a new question") from error
        return await self._invoked(call_state, definition, replace(context, egress=verdict.egress), pre)

    # -- hooks before
    async def _before(self, call_state: CallState, definition: ToolDefinition, model_input: JsonObject) -> PreResult:
        call_state.hook_input = model_input
        if not self.hooks.pre:
            return PreResult("none", "", model_input)
        run, call = self.run, call_state.call
        hook_call = HookCall(run.identity, call.id, definition, model_input, run.run_dirs)
        pre = await self.hooks.before(hook_call, self._wires(call_state, definition))
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
            await self._note(call_state, type, self.redactor.mapping(data))

        async def derive(call_input: JsonObject) -> JsonObject:
            try:
                target = await target_of(definition, self._context(call_state), call_input)
            except ToolError:
                target = None  # the call ends with this error after the hooks, unless one of them mends it
            return derived_fields(target, self.run.run_dirs)

        return HookServices(note, derive, self.clock)

    # -- permission
    def _context(self, call_state: CallState) -> ToolContext:
        run, call = self.run, call_state.call
        progress = CallProgress(self.log, self.redactor, call_state, self.clock)
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
        gate_call = gate_call_of(definition, context, pre, target, asks=check == "ask")
        call_state.gate_call, call_state.facts = gate_call, gate_call.facts(self.redactor.text)
        if check == "deny":
            await self._note(call_state, DECIDED_EVENT, refused_by_tool(call_state.facts))
            self._decided(call_state, REFUSED_BY_TOOL)
        is_beyond = target.is_sensitive or not target.is_inside_roots
        call_state.is_withheld = target.is_sensitive and gate_call.traits.is_read_only
        # Reached by the handler only after permission; it may touch only the shown target.
        return replace(context, target=target, precondition=target.precondition, allowed_outside=is_beyond), gate_call

    def _decided(self, call_state: CallState, verdict: Verdict) -> Verdict:
        """Keep the decision apart from the facts (PER-19); the gate has written its event."""
        call_state.verdict, call_state.decision = verdict, verdict.as_json(self.redactor.text)
        if not verdict.is_allowed:
            silent = "a person denied it without a reason" if verdict.author == "person" else "no reason was given"
            reason = verdict.reason or verdict.rule or silent
            raise ToolError(verdict.error or ErrorType.PERMISSION_DENIED, reason)
        return verdict

    async def _invoked(
        self, call_state: CallState, definition: ToolDefinition, context: ToolContext, pre: PreResult
    ) -> ToolResult:
        call_state.started_s = self.clock.monotonic_s()
        call_id = call_state.call.id
        limit_s = self._limit_s(definition, pre.call_input)
        limit = TimeLimit(limit_s)
        wires = self._wires(call_state, definition)
        questioner = CallQuestioner(self.gate, context, definition, limit, self.hooks, wires)
        asking = replace(context, ask=questioner.ask, around_question=questioner)
        running = timed(lambda: definition.handler(asking, pre.call_input), limit, limit_s)
        try:
            result = wrap(
                call_id, await (running if definition.interrupt == "cancel" else run_to_end(running, call_state))
            )
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
        if self.hooks.post:
            telling = self._after(call_state, definition, pre, result)
            result = await (telling if definition.interrupt == "cancel" else run_to_end(telling, call_state))
        return self._normalised(call_state, definition, result)

    def _limit_s(self, definition: ToolDefinition, call_input: JsonObject) -> float | None:
        """Return the handler's time in seconds: the model may lower it, nothing raises it above the maximum."""
        if definition.is_agent_tool or definition.name in DELEGATION_TOOLS:
            return None
        limit = min(definition.timeout or self.config.default_timeout, self.config.max_timeout)
        asked = call_input.get("timeout_ms")
        if isinstance(asked, int) and not isinstance(asked, bool) and asked > 0:
            limit = min(limit, timedelta(milliseconds=min(asked, 2**31)))
        return limit.total_seconds()

    async def _after(
        self, call_state: CallState, definition: ToolDefinition, pre: PreResult, result: ToolResult
    ) -> ToolResult:
        """Tell the Post hooks what will be kept: no secret, and nothing of what only the model may read (RES-03)."""
        identity, run_dirs = self.run.identity, self.run.run_dirs
        derived = derived_fields(call_state.target, run_dirs)
        call = HookCall(identity, call_state.call.id, definition, pre.call_input, run_dirs, derived)
        told = self._fitter.redact(withheld(call_state, result) if call_state.is_withheld else result)
        post = await self.hooks.after(call, told, self._wires(call_state, definition))
        return applied(post, result)

    # -- the end
    def _normalised(self, call_state: CallState, definition: ToolDefinition, result: ToolResult) -> ToolResult:
        """Hold the result to what the tool promised and may add; hooks are foreign code like the handler."""
        is_alone = call_state.gate_call is None or not call_state.gate_call.traits.is_concurrency_safe
        try:
            result = sound(result) if self.hooks.post else result
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
        elapsed_s = 0.0 if call_state.started_s is None else self.clock.monotonic_s() - call_state.started_s
        if not await answer_kept():
            failure = ToolFailure(ErrorType.STREAM_DISCARDED, "the answer that made this call broke off")
            kept = replace(refusal(call.id, failure), evidence=call_state.evidence)
        await self.log.finished(call, kept, duration_ms=int(elapsed_s * 1000), record=record)
        if definition is not None and call_state.is_withheld and result.ok:
            whole = replace(result, evidence=call_state.evidence)
            return await replace(self._fitter, artifacts=None).fit(definition, whole)
        return kept

    # -- what is recorded
    async def _note(self, call_state: CallState, type: str, data: JsonObject) -> None:
        call = call_state.call
        await self.log.note(
            type, {"tool_call_id": call.id, "tool": call.tool, **data, "event_id": call_state.next_event()}
        )

    def _record(self, call_state: CallState, event_id: str) -> CallRecord:
        gate_call, verdict = call_state.gate_call, call_state.verdict
        return CallRecord(
            inputs=call_state.shown_inputs(self.redactor),
            facts={**call_state.facts, "is_repaired": True} if call_state.is_repaired else call_state.facts,
            decision=call_state.decision,
            input_digest="" if gate_call is None else gate_call.input_digest,
            effect_id=effect_id_of(self.run.identity.run_id, call_state.call.id),
            is_write=gate_call is not None and not gate_call.traits.is_read_only,
            decision_id="" if verdict is None else verdict.decision_id,
            event_id=event_id,
        )
