"""Parameters that several routes take: ids in their form, pages, waits."""

import re
from collections.abc import Callable
from typing import Annotated, Final

from fastapi import Path, Query
from pydantic import AfterValidator

from soong.orchestrator.http.problems import MAX_PLACE_CHARS
from soong.shared.core import timing
from soong.shared.core.errors import NotFoundError

MAX_LIMIT: Final = 200

ID: Final = r"[0-9a-z]{1,64}"


def _known(form_text: str, kind: str) -> Callable[[str], str]:
    """Return what looks at an id in a path: text that no row can have as its id names nothing, as an unknown one."""
    form = re.compile(form_text)

    def check(text: str) -> str:
        if form.fullmatch(text) is None:
            raise NotFoundError(kind, text[:MAX_PLACE_CHARS])
        return text

    return check


SessionId = Annotated[str, AfterValidator(_known(rf"sess_{ID}", "session")), Path(description="`sess_…`")]
TaskId = Annotated[str, AfterValidator(_known(rf"task_{ID}", "task")), Path(description="`task_…`")]
RunId = Annotated[str, AfterValidator(_known(rf"run_{ID}", "run")), Path(description="`run_…`")]
RequestId = Annotated[str, AfterValidator(_known(rf"req_{ID}", "permission request")), Path(description="`req_…`")]

ArtifactDigest = Annotated[
    str,
    AfterValidator(_known(r"[0-9a-f]{64}", "artifact")),
    Path(description="SHA-256 of its bytes, as results and events name it."),
]

Cursor = Annotated[str, Query(max_length=80, description="`next` of the page before.")]
StepCursor = Annotated[str, Query(max_length=300, description="`next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="At most so many.")]
Wait = Annotated[int, Query(ge=0, le=timing.LONG_POLL_S, description="Seconds to wait for a change; at most 55.")]
InSession = Annotated[str, Query(max_length=80, description="Only of this session.")]
InTask = Annotated[str, Query(max_length=80, description="Only of this task.")]
