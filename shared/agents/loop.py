"""The agent loop: model, tool calls, results, and again, until there is an answer (DAG-02, EXE-05).

Reads top to bottom as the story of a run. The run is cancelled by cancelling its asyncio task; the pipeline then
records the end of calls under way. A lost lease passes through: the new holder of the run writes it.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models import Model, ModelRequestParameters

from soong.shared.agents.compaction import (
    Cut,
    cut_of,
    drop_node,
    due,
    has_grown,
    inherited,
    own_answers,
    room_of,
    summary_node,
    summary_request,
)
from soong.shared.agents.conversation import Conversation
from soong.shared.agents.definition import CompactionStrategy
from soong.shared.agents.early_reads import EarlyReads, stop_of
from soong.shared.agents.messages import calls_of, opening_nodes, results_by_turn, text_of
from soong.shared.agents.model import SCRIPT
from soong.shared.agents.model_request import ContextFullError, ProviderFailedError
from soong.shared.agents.ports import GIVEN_UP, AgentEnd, AgentTask, AnswerFollower, AnswerView, RunTranscript
from soong.shared.agents.provider_schema import SchemaUnsupportedError, names_for
from soong.shared.agents.requests import ModelRequests, Spending, limit_reached
from soong.shared.agents.run_models import NO_FALLBACKS, Fallbacks, Pacing, RunModel, Sleep
from soong.shared.agents.scripted_model import ScriptedModel
from soong.shared.agents.turn import FINAL_TOOL, ModelAnswer, RepeatedFailures, ToolOffer, judge
from soong.shared.core.errors import ScriptFailedError
from soong.shared.core.jsontext import Json
from soong.shared.core.timing import Clock
from soong.shared.engine.runs.budgets import BudgetSpentError
from soong.shared.engine.runs.events import EventType, Node
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.runs.store import CallStatus
from soong.shared.engine.tasks.failure_report import StepIncidents, unknown_after_crash
from soong.shared.engine.tasks.step import StepError
from soong.shared.tools.naming import NameTable, unmangle
from soong.shared.tools.ports import CallLog, ToolCall
from soong.shared.tools.result import ErrorType, ToolFailure, ToolResult
from soong.shared.tools.results.normalize import refusal
from soong.shared.tools.schedule import Executor, run_turn
from soong.shared.tools.surface import TOOL_SEARCH

STEP_REPORT: Final = "agent.task_update_step"
"""The tool by which a run ends a step that it holds in addition to its own; such a report's data has its status."""

CONTENT_FILTER: Final = "the provider's content filter stopped the answer"


async def run_agent(
    task: AgentTask,
    model: Model[Any],
    executor: Executor,
    transcript: RunTranscript,
    log: CallLog,
    clock: Clock,
    *,
    sleep: Sleep = asyncio.sleep,
    incidents: StepIncidents | None = None,
    view: AnswerView | None = None,
    budgets: Spending | None = None,
    pacing: Pacing | None = None,
    fallbacks: Fallbacks = NO_FALLBACKS,
    loop_type: "type[AgentLoop] | None" = None,
) -> AgentEnd:
    """Run an agent to its end, from the start or from where its nodes stop. ``sleep`` is the pause after a failure.

    ``loop_type`` is the loop of an agent that has its own (:mod:`soong.shared.agents.own.loop`).
    ``view`` shows answers as they arrive; requests count against ``budgets``, wait as ``pacing`` says, and go to
    ``fallbacks`` where ``model`` fails for good. ``incidents`` gets denials and unknown effects as they occur (DAG-10).
    Raises: LeaseLostError, the run is no longer ours; asyncio.CancelledError, it was interrupted.
    """
    found = StepIncidents() if incidents is None else incidents
    repeats = RepeatedFailures(task.limits.max_repeated_failures)
    talk = Conversation(transcript, clock)
    name = task.identity.model or model.model_name
    own = RunModel(name, model, task.price, task.compaction.window, pacing)
    requests = ModelRequests(task, own, talk, sleep, budgets, fallbacks)
    made = loop_type or AgentLoop
    loop = made(task, model, executor, log, clock, talk, requests, repeats, incidents=found, view=view or AnswerView())
    try:
        return await loop.run(transcript)
    finally:
        await loop.early.close()
        # It calls back into the loop: as a cycle, all that the run had would wait for the garbage collector.
        del loop.early
        if isinstance(model, ScriptedModel):
            model.close()


@dataclass(slots=True)
class AgentLoop:
    """One run of an agent whose turns Soong makes."""

    task: AgentTask
    model: Model[Any]
    executor: Executor
    log: CallLog
    clock: Clock
    talk: Conversation
    requests: ModelRequests
    repeats: RepeatedFailures
    incidents: StepIncidents = field(default_factory=StepIncidents)
    reasks: int = 0
    early: EarlyReads = field(init=False)
    names: NameTable = field(init=False)
    offer: ToolOffer = field(init=False)
    view: AnswerView = field(default_factory=AnswerView)
    given_up: str = ""
    """Why the run cannot do its own step, in its own words; empty while it tries."""
    steps_done: int = 0
    """How many additional steps the run has ended: each gives it the turns of one step more (DIS-07)."""

    def __post_init__(self) -> None:
        limit = self.task.limits.parallel_reads
        self.early = EarlyReads(self.executor, self._early_call, self.talk.spend, limit, self.view)

    async def run(self, transcript: RunTranscript) -> AgentEnd:
        try:
            fallbacks = self.requests.fallbacks.names
            self.names = names = names_for(self.model, self.task.tools, has_fallbacks=bool(fallbacks))
            self.offer = ToolOffer(self.task, names)
            self.requests.check = self.offer.check
            self.requests.check(self.model)
        except SchemaUnsupportedError as error:
            return self._failed(EndReason.SCHEMA_UNSUPPORTED, str(error))
        await self._begin(transcript, names)
        if isinstance(self.model, ScriptedModel) and self.talk.open_calls:
            try:
                await self.model.confirm(self.talk.messages, self.offer.parameters)
            except ScriptFailedError as error:  # it does not make the calls that are open: none of them is run
                return self._script_failed(error)
        while True:
            answer = self.talk.answer or await self._next_answer()
            if isinstance(answer, AgentEnd):
                return answer
            if answer.finish_reason == "content_filter":
                return self._failed(EndReason.FAILED, CONTENT_FILTER, type="content_filter")
            cut = self.talk.cut_answers()
            end = await self._follow(judge(answer, self.task.output_schema, cut), names, len(cut))
            if end is not None:
                return end

    async def _next_answer(self) -> ModelResponse | AgentEnd:
        """Ask the model, or return the run's end where it gets no other turn or no answer."""
        if self.early.stop or self.given_up:
            reason = EndReason.STOPPED_BY_HOOK if self.early.stop else EndReason.FAILED
            return self._failed(reason, self.early.stop or self.given_up)
        max_turns = self.task.limits.max_turns * (1 + self.steps_done)
        if self.talk.turns >= max_turns:
            return self._failed(EndReason.MAX_TURNS, f"the run had {max_turns} model turns", is_retryable=True)
        if reached := limit_reached(self.requests.usage, self.task.limits, self.requests.model.name):
            return self._failed(reached[0], reached[1])
        try:
            return await self._ask_with_room()
        except BudgetSpentError as error:
            return self._failed(error.end_reason, str(error), type=error.code)
        except ContextFullError as error:
            return self._failed(EndReason.TOKEN_LIMIT, f"the model's context is full: {error}")
        except ProviderFailedError as error:
            return self._failed(EndReason.PROVIDER_FAILED, str(error), is_retryable=error.is_retryable)
        except ScriptFailedError as error:
            return self._script_failed(error)

    def _script_failed(self, error: ScriptFailedError) -> AgentEnd:
        words = f"the script failed: {error}"
        return self._failed(EndReason.FAILED, words, type=error.type, is_retryable=error.is_retryable)

    # -- beginning
    async def _begin(self, transcript: RunTranscript, names: NameTable) -> None:
        task = self.task
        nodes = await transcript.nodes() if task.is_resumed else ()
        if not nodes:
            self.talk.begin(opening_nodes(task.system, task.instructions, task.inputs, task.run_dirs))
            return
        turns = results_by_turn(node for node in nodes if not inherited(node))
        await self._restore(nodes)
        self.repeats.restore(turns[:-1] if self.talk.answer else turns)  # the last one is still under way
        await self._settle_unfinished(transcript, names)

    async def _restore(self, nodes: Sequence[Node]) -> Sequence[ToolResult]:
        """Take a history up, and count what its answers used and its calls met; return the results in it."""
        tools = {str(node.payload.get("tool_call_id")): str(node.payload.get("tool", "")) for node in nodes}
        results = self.talk.restore(nodes)
        for result in results:
            self._account(result, tools.get(result.tool_call_id, ""))
        await self.requests.restore(own_answers(nodes))
        return results

    async def _settle_unfinished(self, transcript: RunTranscript, names: NameTable) -> None:
        """After a crash: a write that had started may have happened, so it ends as unknown and is not repeated.

        Calls after it in its turn are not run. Everything else without a result is run by the loop as usual.
        """
        done = {result.tool_call_id for result in self.talk.answered}
        if not self.talk.open_calls:
            return
        rows = await transcript.calls()
        started = {row.tool_call_id: row for row in rows if row.is_write and row.status is CallStatus.STARTED}
        for row in rows:
            if row.open_input is not None:
                self.talk.whole[row.tool_call_id] = row.open_input.get("arguments")
        is_after_unknown = False
        for part in self.talk.open_calls:
            call = self._call(part, names)
            if part.tool_call_id in done:
                continue
            if part.tool_call_id in started:
                failure = unknown_after_crash(started[part.tool_call_id])
                is_after_unknown = True
            elif is_after_unknown:
                failure = ToolFailure(ErrorType.NOT_RUN, "not run: an earlier write of this turn did not succeed")
            else:
                continue
            result = refusal(call.id, failure)
            await self.log.finished(call, result, duration_ms=0)
            self._account(result, call.tool)
            self.talk.answered.append(result)

    # -- one turn
    async def _ask_with_room(self) -> ModelResponse:
        """Ask the model, or a fallback; make a history shorter that is too long. Raises: ProviderFailedError."""
        rooms = iter((1, 0) if self.task.compaction.strategy is not CompactionStrategy.OFF else ())
        while True:
            if not self.talk.is_compacted and (cut := due(self.talk.messages, self.requests.compaction)):
                await self._compact(cut)
            try:
                return await self._ask(self.talk.messages, self.offer.parameters, self.early)
            except ProviderFailedError as error:
                is_full = isinstance(error, ContextFullError)
                if is_full or (error.is_of_request and not self.talk.is_compacted and has_grown(self.talk.messages)):
                    cut = next((found for kept in rooms if (found := cut_of(self.talk.messages, kept))), None)
                    if cut is not None:
                        await self._compact(cut)
                        continue
                if is_full or not await self.requests.fall_back(error):
                    raise

    async def _compact(self, cut: Cut) -> None:
        """Make the history shorter: by a summary, or without one where the model gives none."""
        summary = None
        if self.task.compaction.strategy is CompactionStrategy.SUMMARISE:
            window = room_of(self.talk.messages, self.requests.compaction)
            # A failure is in the log; leaving results out needs nobody.
            with suppress(ProviderFailedError):
                summary = await self.requests.send(
                    summary_request(cut.dropped, window), ModelRequestParameters(), turns=0
                )
        node = summary_node(cut, summary) if summary is not None and text_of(summary).strip() else drop_node(cut)
        facts: dict[str, Json] = {
            "turn": self.talk.turns + 1,
            "strategy": node.payload["strategy"],
            "kept_answers": cut.kept_answers,
        }
        if summary is not None:
            facts |= self.requests.last_facts()
        self.talk.note(EventType.CONTEXT_COMPACTED, facts)
        await self.talk.compact(node)

    async def _ask(
        self, messages: list[ModelMessage], parameters: ModelRequestParameters, follower: AnswerFollower
    ) -> ModelResponse:
        """Send a request and return its answer, which is in the history then. Raises as :meth:`ModelRequests.send`."""
        turn = self.talk.turns + 1
        self.talk.note(EventType.MODEL_REQUESTED, {"turn": turn, "model": self.requests.model.name})
        started_s = self.clock.monotonic_s()
        self.view.begin(turn)
        response = await self.requests.send(messages, parameters, follower)
        self.view.complete()
        self.talk.add_answer(response)
        elapsed_ms = int((self.clock.monotonic_s() - started_s) * 1000)
        facts: dict[str, Json] = {
            "turn": turn,
            "duration_ms": elapsed_ms,
            "calls": len(calls_of(response)),
            "finish_reason": response.finish_reason,
            "response_id": response.provider_response_id,
            **self.requests.last_facts(),
        }
        self.talk.note(EventType.MODEL_RESPONDED, facts)
        # The answer as it was taken in: call ids may have been made unique.
        return self.talk.answer or response

    async def _follow(self, answer: ModelAnswer, names: NameTable, cut_before: int) -> AgentEnd | None:
        """Do what an answer asks for; return the run's end when that is what it asks for."""
        if answer.calls:
            results = await self._run_calls(answer.calls, names)
            results += [self._refuse_final(part, answer.problem) for part in answer.finals]
            self.talk.add_results(results)
            if self.requests.note:
                self.talk.ask_again(self.requests.note)
                self.requests.note = ""
            # Warn a model that repeats a failing call, and end its run if it continues. A script may wait.
            if self.model.model_name == SCRIPT:
                return None
            if reason := self.repeats.end:
                return self._failed(EndReason.FAILED, reason, type="repeated_failure")
            if warning := self.repeats.warning:
                self.talk.ask_again(warning)
            return None
        if not answer.problem:
            return self.talk.end(self.task, self.incidents, self.requests.usage, EndReason.COMPLETED, answer.output)
        if answer.is_cut and cut_before >= self.task.limits.max_continuations:
            words = f"{cut_before + 1} answers in a row were cut at the model's limit of output tokens"
            return self._failed(EndReason.TOKEN_LIMIT, words)
        self.reasks += not answer.is_cut
        if self.reasks > self.task.limits.max_reasks:
            return self._failed(EndReason.FAILED, answer.problem, type="invalid_output", is_retryable=True)
        if answer.finals:
            self.talk.add_results([self._refuse_final(part, answer.problem) for part in answer.finals])
        else:
            self.talk.ask_again(answer.problem)
        return None

    async def _run_calls(self, parts: Sequence[ToolCallPart], names: NameTable) -> list[ToolResult]:
        done = {result.tool_call_id for result in self.talk.answered}
        calls = [self._call(part, names) for part in parts if part.tool_call_id not in done]
        await self.talk.flush(calls)  # from here on things happen outside
        await self.early.keep(calls)
        limit = self.task.limits.parallel_reads
        results = await run_turn(calls, self.early, note=self.log.note, parallel_limit=limit) if calls else []
        for call, result in zip(calls, results, strict=True):
            self._account(result, call.tool)
        self.repeats.take(calls, results)
        return list(results)

    def _refuse_final(self, part: ToolCallPart, problem: str) -> ToolResult:
        failure = ToolFailure(ErrorType.INVALID_INPUT, problem, f"fix it and call {FINAL_TOOL} again")
        return self.talk.refuse(FINAL_TOOL, refusal(part.tool_call_id, failure))

    def _account(self, result: ToolResult, tool: str) -> None:
        if tool == TOOL_SEARCH:
            self.task.deferred.take(result)  # it is offered from the next request on
        if result.error is None:
            if tool == STEP_REPORT and isinstance(result.data, Mapping):
                self.steps_done += "status" in result.data
                self.given_up = self.given_up or str(result.data.get(GIVEN_UP, ""))
            return
        self.early.stop = self.early.stop or stop_of(result)
        self.incidents.take(tool, result)

    def _call(self, part: ToolCallPart, names: NameTable) -> ToolCall:
        return self.talk.call_of(part, self._tool_name(part, names))

    def _early_call(self, part: ToolCallPart, before: Collection[str]) -> ToolCall:
        return self.talk.early_call(part, self._tool_name(part, self.names), before)

    def _tool_name(self, part: ToolCallPart, names: NameTable) -> str:
        """Return the canonical name of a call's tool (REG-04, REG-10)."""
        canonical = names.to_canonical(part.tool_name)
        if canonical == part.tool_name and "__" in canonical:
            canonical = unmangle(canonical)  # a tool that is not of this run, by the name that it would have
        definition = self.executor.resolve(canonical)
        return canonical if definition is None else definition.name

    # -- ends
    def _failed(self, reason: EndReason, message: str, *, type: str = "", is_retryable: bool = False) -> AgentEnd:
        error = StepError(type or str(reason), message[:2000], is_retryable)
        return self.talk.end(self.task, self.incidents, self.requests.usage, reason, error=error)
