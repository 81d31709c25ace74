"""An answerer of questions for tests: rules by tool, and a record of what was asked."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final, Literal, TypeAlias

from soong.shared.core.errors import UsageError
from soong.shared.permissions.request import Choice, PermissionDecision, PermissionRequest

Verdict: TypeAlias = Literal["allow", "allow_session", "deny"]
_CHOICES: Final[Mapping[str, Choice]] = {
    "allow": Choice.ALLOW_ONCE,
    "allow_session": Choice.ALLOW_FOR_SESSION,
    "deny": Choice.DENY,
}
_UNEXPECTED: Final[list[str]] = []


class Answerer:
    """A ``permission_callback`` with rules. ``asked`` has every question, in order."""

    def __init__(self, rules: Mapping[str, Verdict]) -> None:
        self.rules = rules
        self.asked: list[PermissionRequest] = []

    async def __call__(self, request: PermissionRequest) -> PermissionDecision:
        self.asked.append(request)
        for tool, verdict in self.rules.items():
            if fnmatchcase(request.tool, tool):
                return PermissionDecision(_CHOICES[verdict], "a rule of the test")
        _UNEXPECTED.append(f"unexpected question: {request.tool} {request.shown}; add answer({request.tool!r}, …)")
        return PermissionDecision(Choice.DENY, "the test has no rule for this question")


def answer(tool: str | Mapping[str, Verdict], verdict: Verdict = "allow") -> Answerer:
    """Return an answerer for the ``permission_callback`` of a run.

    ``tool`` is the name of a tool or a glob (``code.*``), or a mapping of such names to verdicts, of which the first
    that fits counts. A question without a rule is denied, and fails the test.

    Raises: UsageError, a verdict is not ``allow``, ``allow_session`` or ``deny``.
    """
    rules = {tool: verdict} if isinstance(tool, str) else dict(tool)
    for name, given in rules.items():
        if given not in _CHOICES:
            raise UsageError(f"answer: {name!r} has the verdict {given!r}; expected one of {', '.join(_CHOICES)}")
    return Answerer(rules)


def take_unexpected() -> str:
    """Return the questions without a rule since the last call, one per line, and forget them."""
    taken = "\n".join(_UNEXPECTED)
    _UNEXPECTED.clear()
    return taken
