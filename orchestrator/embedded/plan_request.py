"""A plan that a command hands to the running service of its home: the request on the control socket, for both sides.

A command of one short step would spend most of its time on importing what the service has imported already. It
therefore sends what it was given, and the service does what the command would do. A service takes a request only from
a process that could do the same by itself, and only where the result would be the same: see :func:`environment_digest`.

This module imports little: commands pay for it at their start.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec.structs import asdict

from soong.shared.core.jsontext import Json
from soong.shared.core.secret_names import SECRET_ENDINGS
from soong.shared.core.value import Value

MAX_REQUEST_BYTES: Final = 60_000
"""Below the limit of a line of the control socket; larger plans take the way over the database."""
MAX_REPLY_BYTES: Final = 4 * 2**20
NOT_SERVED: Final = ("SOONG_DATABASE_URL", "SOONG_TOOLS", "SOONG_IMPORT_PATH", "TRACEPARENT")
"""Variables whose meaning is that of the command alone: a deployment, its own modules, its own trace."""

_OF_THE_REQUEST: Final = frozenset({"SOONG_AGENT_HOME", "SOONG_MODEL"})
"""Variables that the request carries itself."""


class PlanRequest(Value):
    """The arguments of one `soong run`, as its command line has them. Paths are absolute.

    ``session_id`` and ``task_id`` are chosen by the command: written again, they are the same session and task, so a
    command that heard no answer can continue by itself. ``model`` is None for the default; ``max_concurrent`` 0 for the
    setting.
    """

    plan: str
    source: str
    inputs: Mapping[str, str]
    project: str
    cwd: str
    approval_mode: str
    model: str | None
    allow: tuple[str, ...]
    budget: tuple[str, ...]
    settings: tuple[str, ...]
    max_concurrent: Annotated[int, msgspec.Meta(ge=0)]
    session_id: str
    task_id: str
    is_json: bool
    is_detached: bool
    program: str
    """How the user calls this program: the commands that texts propose begin with it."""
    home: str
    environment: str

    def line(self) -> bytes:
        """Return the request as the line that is sent."""
        return json.dumps({"v": 1, "op": "run", **asdict(self)}).encode() + b"\n"


def request_of(message: Mapping[str, Json]) -> PlanRequest:
    """Read a request. Raises: ValueError, which says what is not as it has to be."""
    try:
        return msgspec.convert(dict(message), PlanRequest)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def environment_digest(environment: Mapping[str, str]) -> str:
    """Return a digest of the variables that change what a run writes: settings, the home of ``~``, and secrets.

    Secrets count because each process keeps those of its own environment out of the rows (EVT-05).
    """
    wanted = {
        name: value
        for name, value in environment.items()
        if (name == "HOME" or name.startswith("SOONG_") or name.upper().endswith(SECRET_ENDINGS))
        and name not in _OF_THE_REQUEST
    }
    text = json.dumps(wanted, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
