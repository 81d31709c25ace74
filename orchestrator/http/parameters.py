"""Parameters that several routes take: ids in their form, pages, waits."""

from typing import Annotated, Final

from fastapi import Path, Query

MAX_LIMIT: Final = 200
MAX_WAIT_S: Final = 55
"""Below the minute after which proxies give up on an answer."""

ID: Final = r"[0-9a-z]{1,64}"

SessionId = Annotated[str, Path(pattern=rf"^sess_{ID}$")]
TaskId = Annotated[str, Path(pattern=rf"^task_{ID}$")]
RunId = Annotated[str, Path(pattern=rf"^run_{ID}$")]
RequestId = Annotated[str, Path(pattern=rf"^req_{ID}$")]

Cursor = Annotated[str, Query(max_length=80, description="`next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="At most so many.")]
Wait = Annotated[int, Query(ge=0, le=MAX_WAIT_S, description="Seconds to wait for a change; at most 55.")]
InSession = Annotated[str, Query(max_length=80, description="Only of this session.")]
InTask = Annotated[str, Query(max_length=80, description="Only of this task.")]
