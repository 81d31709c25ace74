"""Requests read strictly: JSON as everywhere here, no field and no parameter that is not known, one value each."""

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from itertools import islice
from typing import Any, ClassVar
from urllib.parse import parse_qsl

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from soong.orchestrator.http.context import api_of
from soong.orchestrator.http.hints import errors_of, models_in
from soong.orchestrator.http.problems import MAX_ERRORS, MAX_PLACE_CHARS, ProblemCode, ProblemError
from soong.shared.core.errors import InvalidJsonError
from soong.shared.core.jsontext import Json, parse_strict
from soong.shared.core.texts import EXPECTED, fault, faults


class Body(BaseModel):
    """A request's body: no unknown field, and no value of another type that could be taken for the right one."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    holds_plan: ClassVar[bool] = False
    """Whether a plan is in it, whose checks take much memory when it is large."""

    @classmethod
    async def also_wrong(cls, _request: Request, _given: Mapping[str, Any]) -> Sequence[Json]:
        """Return what else is wrong with a body whose fields are, so that everything is reported at once."""
        return ()


class StrictRequest(Request):
    """A request whose JSON is read as :mod:`soong.shared.core.jsontext` does."""

    async def json(self) -> Any:
        body = await self.body()
        try:
            value = parse_strict(body)
        except InvalidJsonError as error:
            raise ProblemError(
                ProblemCode.INVALID_REQUEST, f"the body is not JSON that is read here: {error}"
            ) from error
        if b"\\u0000" in body:
            named = islice(faults(value), MAX_ERRORS)
            _refuse([_fault(".".join(("body", *map(str, path))), found) for path, found in named])
        return value


class StrictRoute(APIRoute):
    """A route that refuses what it does not know."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = frozenset(_query_names(self.dependant))
        takes_body = self.body_field is not None
        body = next(models_in(self.body_field.field_info.annotation), None) if self.body_field is not None else None

        async def strictly(request: Request) -> Response:
            strict = StrictRequest(request.scope, request.receive)  # it keeps the body that it has read
            _check_query(strict, known)
            await _check_body(strict, takes_body=takes_body)
            async with await _room_for(strict, body):
                try:
                    return await handle(strict)
                except RequestValidationError as error:
                    raise await _invalid(strict, error, body) from error

        return strictly


async def _room_for(request: Request, body: type[BaseModel] | None) -> AbstractAsyncContextManager[None]:
    """Return what has to be entered before a body is read as JSON: a large plan waits for others of its like."""
    if body is None or not issubclass(body, Body) or not body.holds_plan:
        return nullcontext()
    api = api_of(request)
    is_large = len(await request.body()) > api.limits.large_plan_bytes
    return api.large_plans if is_large else nullcontext()


async def _invalid(request: Request, error: RequestValidationError, body: type[BaseModel] | None) -> ProblemError:
    errors = errors_of(error.errors(), body)
    if body is not None and issubclass(body, Body) and isinstance(error.body, Mapping):
        errors += await body.also_wrong(request, error.body)
    return ProblemError(
        ProblemCode.INVALID_INPUT, "the request is not what this path takes", {"errors": errors[:MAX_ERRORS]}
    )


def _query_names(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _query_names(inner)


def _check_query(request: Request, known: frozenset[str]) -> None:
    pairs = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True, errors="surrogateescape")
    _refuse(
        [
            _fault("query" if fault(name) else f"query.{name}", found)
            for name, value in pairs
            if (found := fault(name) or fault(value))
        ]
    )
    given = [name for name, _ in pairs]
    hint = f"remove it; this path takes {', '.join(sorted(known))}" if known else "remove it; this path takes none"
    errors: list[Any] = [
        {"place": f"query.{name}"[:MAX_PLACE_CHARS], "problem": problem, "hint": what_to_do}
        for problem, what_to_do, names in (
            ("unknown query parameter", hint, set(given) - known),
            ("duplicate parameter", "give it once", {name for name in given if given.count(name) > 1}),
        )
        for name in sorted(names)
    ]
    if errors:
        raise ProblemError(ProblemCode.INVALID_INPUT, "unknown or duplicate query parameters", {"errors": errors})


def _fault(place: str, found: str) -> Json:
    return {"place": place[:MAX_PLACE_CHARS], "problem": found, "hint": f"send {EXPECTED}"}


def _refuse(errors: Sequence[Json]) -> None:
    """Raises: ProblemError (invalid_input) when there are errors."""
    if errors:
        detail = "the request holds text that cannot be stored; `errors` names each"
        raise ProblemError(ProblemCode.INVALID_INPUT, detail, {"errors": errors[:MAX_ERRORS]})


async def _check_body(request: Request, *, takes_body: bool) -> None:
    if not takes_body or not await request.body():
        return
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ProblemError(ProblemCode.UNSUPPORTED_MEDIA_TYPE, "send the body as `Content-Type: application/json`")
