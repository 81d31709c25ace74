"""Requests read strictly: JSON as everywhere here, no field and no parameter that is not known, one value each."""

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from orchestrator.http.problems import Problem, ProblemError
from shared.errors import InvalidJsonError
from shared.jsontext import parse_strict


class Body(BaseModel):
    """A request's body: no further field, and no value of another type that could be taken for the right one."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class StrictRequest(Request):
    """A request whose JSON is read as :mod:`shared.jsontext` does."""

    async def json(self) -> Any:
        try:
            return parse_strict(await self.body())
        except InvalidJsonError as error:
            raise ProblemError(Problem.INVALID_REQUEST, f"the body is not JSON that is read here: {error}") from error


class StrictRoute(APIRoute):
    """A route that refuses what it does not know."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = frozenset(_query_names(self.dependant))
        takes_body = self.body_field is not None

        async def strictly(request: Request) -> Response:
            strict = StrictRequest(request.scope, request.receive)  # it keeps the body that it has read
            _check_query(strict, known)
            await _check_body(strict, takes_body=takes_body)
            return await handle(strict)

        return strictly


def _query_names(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _query_names(inner)


def _check_query(request: Request, known: frozenset[str]) -> None:
    given = [name for name, _ in request.query_params.multi_items()]
    errors: list[Any] = [
        {"place": f"query.{name}"[:200], "problem": problem, "remedy": ""}
        for problem, names in (
            ("there is no such parameter", set(given) - known),
            ("it stands twice", {name for name in given if given.count(name) > 1}),
        )
        for name in sorted(names)
    ]
    if errors:
        raise ProblemError(Problem.INVALID_INPUT, "the address has parameters that are not taken", {"errors": errors})


async def _check_body(request: Request, *, takes_body: bool) -> None:
    if not takes_body or not await request.body():
        return
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ProblemError(Problem.UNSUPPORTED_MEDIA_TYPE, "send the body as `Content-Type: application/json`")
