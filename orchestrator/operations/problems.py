"""The problems of requests, as RFC 9457 problem documents: a closed list of codes, never a traceback.

``type`` is ``urn:soong:problem:<code>``; a code never changes its meaning. Each exception from below becomes one of
them here and nowhere else.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from http import HTTPStatus
from typing import Final, Self
from uuid import uuid4

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from soong.orchestrator.client.home_api import ApiProblemError
from soong.shared.core.errors import (
    ConflictError,
    InvalidPlanError,
    NotFoundError,
    SchemaVersionError,
    SoongError,
    UnavailableError,
    UsageError,
)
from soong.shared.core.jsontext import Json, dump
from soong.shared.core.log import get_logger

log = get_logger(__name__)

MEDIA_TYPE: Final = "application/problem+json"
TOLD: Final = "soong.told"
"""The key in a request's scope: its failure has been answered and logged."""
DISK_FULL: Final = "database or disk is full"
"""SQLite's words."""
MAX_ERRORS: Final = 50
MAX_PLACE_CHARS: Final = 200


class ProblemCode(StrEnum):
    """The codes, each with its status and its meaning; the documentation is made from them."""

    status: int
    meaning: str

    def __new__(cls, code: str, status: int, meaning: str) -> Self:
        made = str.__new__(cls, code)
        made._value_, made.status, made.meaning = code, status, meaning
        return made

    INVALID_REQUEST = (
        "invalid_request",
        400,
        "Not an HTTP/1.1 request, or a body that is not strict JSON: a duplicate key, NaN.",
    )
    UNAUTHENTICATED = "unauthenticated", 401, "There is no token, or it is unknown, expired or revoked."
    FORBIDDEN = "forbidden", 403, "The token does not carry the right that this needs."
    NOT_YOURS = "not_yours", 403, "It belongs to another principal."
    HOST_NOT_ALLOWED = "host_not_allowed", 403, "The request names a host that this server does not answer for."
    ORIGIN_NOT_ALLOWED = "origin_not_allowed", 403, "A page of another origin sent the request."
    PATH_NOT_ALLOWED = (
        "path_not_allowed",
        403,
        "The path contains empty segments, dot segments, or percent-encoded separators or control characters.",
    )
    UPGRADE_NOT_ALLOWED = "upgrade_not_allowed", 403, "There are no WebSockets here; streams are server-sent events."
    NOT_FOUND = "not_found", 404, "There is no such thing, or no such path."
    METHOD_NOT_ALLOWED = "method_not_allowed", 405, "The path takes other methods."
    BODY_TIMEOUT = "body_timeout", 408, "The body did not arrive in time."
    CONFLICT = "conflict", 409, "The rows do not allow it (any more)."
    ALREADY_DECIDED = (
        "already_decided",
        409,
        "The question has been answered; `by`, `channel`, `at` and `choice` say how.",
    )
    INPUT_CHANGED = (
        "input_changed",
        409,
        "The digest is not that of what is asked now: what was shown is another thing.",
    )
    GONE = "gone", 410, "The question was withdrawn or has expired: nobody waits for its answer."
    BODY_TOO_LARGE = "body_too_large", 413, "The body has more bytes than are read."
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type", 415, "The body is of another type than `application/json`."
    ENVIRONMENT_DIFFERS = (
        "environment_differs",
        421,
        "The service of the home has another environment than the command.",
    )
    INVALID_INPUT = (
        "invalid_input",
        422,
        "A field, parameter or header is missing, unknown or wrong; `errors` names each.",
    )
    INVALID_PLAN = "invalid_plan", 422, "The plan cannot become a task; `errors` names each problem."
    CHOICE_NOT_OFFERED = "choice_not_offered", 422, "The question does not offer that answer."
    IDEMPOTENCY_KEY_REUSED = (
        "idempotency_key_reused",
        422,
        "Something else was submitted with this `Idempotency-Key`; take a new one.",
    )
    RATE_LIMITED = "rate_limited", 429, "Too many wrong tokens came from there; see `Retry-After`."
    INTERNAL_ERROR = "internal_error", 500, "A fault of ours; `incident` is the same in the server's log."
    UNAVAILABLE = (
        "unavailable",
        503,
        "The database or an orchestrator did not answer, or the server stops; try again later.",
    )
    TOO_BUSY = "too_busy", 503, "As many requests or streams are open as are held; see `Retry-After`."


_BY_STATUS: Final[Mapping[int, ProblemCode]] = {
    404: ProblemCode.NOT_FOUND,
    405: ProblemCode.METHOD_NOT_ALLOWED,
    413: ProblemCode.BODY_TOO_LARGE,
    415: ProblemCode.UNSUPPORTED_MEDIA_TYPE,
}
"""The meaning of a status of the framework's own; any other is an invalid request."""


class ErrorSchema(BaseModel):
    """One thing wrong with a request."""

    place: str = Field(description="Where: `body.inputs.path`, `query.limit`, a line of the plan.")
    problem: str
    hint: str = Field(default="", description="What to do about it.")


class ProblemSchema(BaseModel):
    """A problem document (RFC 9457)."""

    model_config = ConfigDict(extra="allow", title="Problem")

    type: str = Field(description="`urn:soong:problem:` and the code.")
    title: str
    status: int
    detail: str = Field(description="A sentence for a person: what is wrong and what to do.")
    code: ProblemCode
    errors: list[ErrorSchema] | None = None


class ProblemError(HTTPException):
    """A refusal that was thought of. ``more`` are additional fields of its document."""

    def __init__(
        self,
        code: ProblemCode,
        detail: str,
        more: Mapping[str, Json] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.code = code
        self.more = more or {}
        super().__init__(code.status, detail, dict(headers or {}))

    @property
    def document(self) -> dict[str, Json]:
        return {
            "type": f"urn:soong:problem:{self.code}",
            "title": HTTPStatus(self.status_code).phrase,
            "status": self.status_code,
            "detail": self.detail,
            "code": str(self.code),
            **self.more,
        }

    def response(self) -> Response:
        """Return it as it is sent."""
        return Response(dump(self.document), self.status_code, dict(self.headers or {}), MEDIA_TYPE)


def problem_of(error: Exception) -> ProblemError:
    """Return the text for an exception; for an unexpected one only where to look for it."""
    match error:
        case ProblemError():
            return error
        case HTTPException():
            code = _BY_STATUS.get(error.status_code, ProblemCode.INVALID_REQUEST)
            return ProblemError(code, str(error.detail), headers=error.headers)
        case InvalidPlanError():
            listed = f"; the first {len(error.problems)} are listed" if error.rest else ""
            detail = f"the plan has {error.total:,} problems{listed}"
            return ProblemError(ProblemCode.INVALID_PLAN, detail, {"errors": plan_errors(error), "total": error.total})
        case SoongError():
            return _of_ours(error)
    incident = uuid4().hex
    log.error("http_fault", incident=incident, exc_info=error)
    return ProblemError(ProblemCode.INTERNAL_ERROR, "the server failed; its log says how", {"incident": incident})


@contextmanager
def raised_as_ours() -> Iterator[None]:
    """Raise what an operation refuses as an error of this program."""
    try:
        yield
    except ProblemError as problem:
        raise ApiProblemError(problem.status_code, problem.document).error() from problem


def _of_ours(error: SoongError) -> ProblemError:
    match error:
        case NotFoundError():
            return ProblemError(ProblemCode.NOT_FOUND, str(error))
        case UsageError():
            return ProblemError(ProblemCode.INVALID_INPUT, str(error))
        case ConflictError():
            return ProblemError(ProblemCode.CONFLICT, str(error))
        case UnavailableError() | SchemaVersionError():
            # Its own words may name hosts and users of the database: they are for the log.
            log.warning("http_unavailable", error=str(error))
            detail = "the database, Redis or an orchestrator did not answer in time; look at the rows, then try again"
            if DISK_FULL in str(error):
                detail = f"{DISK_FULL}: nothing can be written until there is space"
            return ProblemError(ProblemCode.UNAVAILABLE, detail, headers={"Retry-After": "2"})
    log.error("http_refused_unexpectedly", exc_info=error)
    return ProblemError(ProblemCode.CONFLICT, "the service refused it; its log says why")


def plan_errors(error: InvalidPlanError) -> list[Json]:
    """Return what is wrong with a plan, as the errors of a problem document."""
    return [{"place": one.place, "problem": one.problem, "hint": one.hint} for one in error.problems[:MAX_ERRORS]]


def add_handlers(app: FastAPI) -> None:
    """Let every exception of the application end as a problem document."""

    async def answer(request: Request, error: Exception) -> Response:
        request.scope[TOLD] = True  # one that nobody thought of is raised again, to whoever stands around us
        return problem_of(error).response()

    for kind in (HTTPException, SoongError, Exception):
        app.add_exception_handler(kind, answer)
