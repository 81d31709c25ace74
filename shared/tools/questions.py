"""Questions of a call under way: what a tool asks a person while its handler runs, by the gate of every other question.

The answer is the session's one callback's: signed for exactly this question, by a person, and never by a rule or a
grant. A person's words come with it. Hooks around what a server asks may answer it first, unless the policy refuses it.
While anybody waits, the time limit of the call is suspended; the run does not park, because its call runs.
"""

from dataclasses import dataclass, field

from msgspec.structs import replace

from soong.shared.core.jsontext import Json, JsonObject, digest
from soong.shared.tools.definition import (
    CallAnswer,
    CallQuestion,
    HandlerOutput,
    Permission,
    Risk,
    ToolContext,
    ToolDefinition,
    Traits,
)
from soong.shared.tools.elicitation import ElicitationAnswer
from soong.shared.tools.hooks.chain import NO_HOOKS, HookCall, Hooks, HookServices, derived_fields
from soong.shared.tools.ports import ASK_MARK, Gate, GateCall, effect_id_of
from soong.shared.tools.result import JsonBlock, ToolResult
from soong.shared.tools.time_limit import TimeLimit

_DIGEST_CHARS = 12


@dataclass(slots=True)
class CallQuestioner:
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
        context, call_id = self.context, gate_call.tool_call_id
        effect_id = effect_id_of(context.identity.run_id, call_id)
        derived = derived_fields(gate_call.target, context.run_dirs)
        made = HookCall(context.identity, call_id, gate_call.definition, gate_call.permission_input, context.run_dirs)
        return replace(made, derived=derived, effect_id=effect_id)

    def _gate_call(self, question: CallQuestion, number: str = "") -> GateCall:
        context, input_digest = self.context, digest(question.input)
        return GateCall(
            identity=context.identity,
            fence=context.fence,
            tool_call_id=f"{context.tool_call_id}{ASK_MARK}{input_digest[:_DIGEST_CHARS]}{number}",
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
