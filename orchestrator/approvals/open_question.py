"""A question as its session's broker remembers it between two looks at the rows."""

from collections.abc import Iterable, Sequence

from soong.orchestrator.approvals.responders import Lane, lane_of
from soong.shared.core.lazy_dataclass import dataclass
from soong.shared.permissions.request import PermissionRequest
from soong.shared.permissions.signing import check_proof


@dataclass(slots=True)
class OpenQuestion:
    """A question at the broker. ``asked_s`` is when its turn came, ``attended_s`` when somebody was there to see it."""

    request: PermissionRequest
    is_proven: bool = False
    asked_s: float | None = None
    attended_s: float | None = None

    @classmethod
    def of(cls, request: PermissionRequest, token: str) -> "OpenQuestion":
        """Return a question that was just read, with its proof checked by the token of its run."""
        return cls(request, check_proof(token, request))


def next_of(questions: Iterable[OpenQuestion]) -> Sequence[OpenQuestion]:
    """Return the first of each lane that is not being asked yet; the questions are oldest first."""
    first: dict[Lane, OpenQuestion] = {}
    for question in questions:
        first.setdefault(lane_of(question.request), question)
    return [question for question in first.values() if question.asked_s is None]
