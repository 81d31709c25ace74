"""Questions of a call under way: what a tool asks a person while its handler runs, by the gate of every other question.

The answer is the session's one callback's: signed for exactly this question, by a person, and never by a rule or a
grant. A person's words come with it. While anybody waits, the time limit of the call is suspended; the run does not
park, because its call runs.
"""

from dataclasses import dataclass, field

from soong.shared.core.jsontext import digest
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
from soong.shared.tools.ports import Gate, GateCall
from soong.shared.tools.time_limit import TimeLimit

_DIGEST_CHARS = 12


@dataclass(slots=True)
class CallQuestioner:
    """Asks for one call. ``definition`` is its tool, whose tags the questions have."""

    gate: Gate
    context: ToolContext
    definition: ToolDefinition
    limit: TimeLimit
    _asked: dict[str, int] = field(default_factory=dict)

    async def ask(self, question: CallQuestion) -> CallAnswer:
        """Ask, and wait as long as the session lets a question wait.

        Raises:
            InvalidJsonError: the input of the question has no digest.
            asyncio.CancelledError: the call is over; the question is withdrawn.
        """
        with self.limit.suspended():
            verdict = await self.gate.decide(self._gate_call(question))
        if verdict.is_allowed and verdict.author != "person":
            return CallAnswer(is_accepted=False, reason="no person has answered it")
        return CallAnswer(verdict.is_allowed, verdict.reason, is_person=verdict.author == "person")

    def _gate_call(self, question: CallQuestion) -> GateCall:
        context, input_digest = self.context, digest(question.input)
        self._asked[input_digest] = number = self._asked.get(input_digest, 0) + 1
        return GateCall(
            identity=context.identity,
            fence=context.fence,
            # The same when the call is made again after a crash: it finds the question that was asked before.
            tool_call_id=f"{context.tool_call_id}.ask-{input_digest[:_DIGEST_CHARS]}-{number}",
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
