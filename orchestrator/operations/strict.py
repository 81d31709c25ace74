"""Requests read strictly: JSON as everywhere here, no field and no parameter that is not known, one value each.

A refusal names each field or parameter with what to do about it. Parameters that several routes take are defined here.
"""

import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import wraps
from itertools import islice
from typing import Annotated, Any, ClassVar, Final, get_args
from urllib.parse import parse_qsl

from fastapi import Path, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BaseModel, ConfigDict
from starlette.responses import Response

from soong.orchestrator.operations.context import ServiceParts, service_of
from soong.orchestrator.operations.documents import respond
from soong.orchestrator.operations.problems import MAX_ERRORS, MAX_PLACE_CHARS, ProblemCode, ProblemError
from soong.shared.core import timing
from soong.shared.core.errors import InvalidJsonError, NotFoundError
from soong.shared.core.jsontext import EXPECTED, Json, fault, faults, parse_strict
from soong.shared.engine.tasks.functions import suggestion
from soong.shared.engine.tasks.plan.fields import TAG

Fields = Mapping[str, str]
"""The fields of one object by the name that is sent, each with its description."""

_TYPES: Final[Mapping[str, str]] = {
    "string": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "dict": "an object",
    "list": "an array",
    "model_attributes": "an object",
    "model": "an object",
}
_KIND: Final = re.compile(r"(?P<name>.+)_(?:type|parsing|parsing_size|from_float|sub_type)")

MAX_LIMIT: Final = 200
ID: Final = r"[0-9a-z]{1,64}"
Cursor = Annotated[str, Query(max_length=80, description="`next` of the page before.")]
StepCursor = Annotated[str, Query(max_length=300, description="`next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="At most so many.")]
Wait = Annotated[int, Query(ge=0, le=timing.LONG_POLL_S, description="Seconds to wait for a change; at most 55.")]
InSession = Annotated[str, Query(max_length=80, description="Only of this session.")]
InTask = Annotated[str, Query(max_length=80, description="Only of this task.")]
WithTitle = Annotated[str, Query(max_length=200, description="Only with this in the title of the task.")]
WithTag = Annotated[str, Query(pattern=rf"^({TAG})?$", description="Only of tasks with this tag.")]
MadeWithin = Annotated[str, Query(max_length=10, description="Only what was made within this time: `12h` or `30d`.")]


def errors_of(found: Sequence[Mapping[str, Any]], body: type[BaseModel] | None) -> list[Json]:
    """Return pydantic's errors as those of a problem document, one for each place.

    ``body`` is the model of the request's body, by which its fields are known.
    """
    by_place: dict[str, dict[str, Json]] = {}
    for error in found[:MAX_ERRORS]:
        place, fields = _place(error["loc"], body)
        told = {"place": place[:MAX_PLACE_CHARS], "problem": str(error["msg"]), "hint": _hint(error, fields)}
        first = by_place.setdefault(place, dict(told))
        if first["problem"] != told["problem"]:  # a field that takes several types fails once for each
            first["problem"] = f"{first['problem']}; or: {told['problem']}"
            first["hint"] = f"{first['hint']}, or {told['hint']}"
    return list(by_place.values())


def _place(location: Sequence[str | int], body: type[BaseModel] | None) -> tuple[str, Fields]:
    """Return the place in words, without the names of types, and the fields of the object that it lies in."""
    if not location or location[0] != "body":
        return ".".join(map(str, location)), {}
    parts, model, fields = ["body"], body, _fields(body)
    for part in location[1:]:
        if isinstance(part, int):
            parts.append(str(part))
            continue
        if model is None:
            break
        parts.append(part)
        fields, named = _fields(model), model.model_fields.items()
        annotations = (field.annotation for name, field in named if part == (field.alias or name))
        model = next(models_in(next(annotations, None)), None)
    return ".".join(parts), fields


def _fields(model: type[BaseModel] | None) -> Fields:
    fields = model.model_fields.items() if model is not None else ()
    return {field.alias or name: field.description or "" for name, field in fields}


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that a type names, itself or inside a union or a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from models_in(inner)


def _hint(error: Mapping[str, Any], fields: Fields) -> str:
    """Return what to do about an error: a sentence that begins with a verb."""
    kind, limits, name = str(error["type"]), error.get("ctx", {}), str(error["loc"][-1] if error["loc"] else "")
    match kind:
        case "missing":
            return f"add `{name}`: {fields[name]}" if fields.get(name) else f"add `{name}`"
        case "extra_forbidden":
            return f"remove it; {suggestion(name[:MAX_PLACE_CHARS], fields)}" if fields else "remove it"
        case "literal_error" | "enum":
            return f"write {limits.get('expected', 'one of the values of the documentation')}"
        case "string_pattern_mismatch":
            return f"write text that matches {limits.get('pattern')}"
        case "string_too_long" | "too_long":
            return f"send at most {limits.get('max_length')} {'characters' if kind[0] == 's' else 'entries'}"
        case "greater_than_equal" | "less_than_equal":
            bound = f"at least {limits.get('ge')}" if kind[0] == "g" else f"at most {limits.get('le')}"
            return f"send a number that is {bound}"
    found = _KIND.fullmatch(kind)
    wanted = _TYPES.get(found["name"], "") if found is not None else ""
    return f"send {wanted}" if wanted else "send what the documentation of this path says"


class Body(BaseModel):
    """A request's body: no unknown field, and no value of another type that could be taken for the right one."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    holds_plan: ClassVar[bool] = False
    """Whether a plan is in it, whose checks take much memory when it is large."""

    @classmethod
    async def also_wrong(cls, _service: ServiceParts, _given: Mapping[str, Any]) -> Sequence[Json]:
        """Return what else is wrong with a body whose fields are, so that everything is reported at once."""
        return ()


class StrictRequest(Request):
    """A request whose JSON is read as :mod:`soong.shared.core.jsontext` does."""

    async def json(self) -> Any:
        body = await self.body()
        try:
            value = parse_strict(body)
        except InvalidJsonError as error:
            detail = f"the body is not JSON that is read here: {error}"
            raise ProblemError(ProblemCode.INVALID_REQUEST, detail) from error
        if b"\\u0000" in body:
            named = islice(faults(value), MAX_ERRORS)
            _refuse([_fault(".".join(("body", *map(str, path))), found) for path, found in named])
        return value


class StrictRoute(APIRoute):
    """A route that refuses what it does not know, and sends what its operation returns."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        @wraps(endpoint)
        async def responding(**given: Any) -> Response:
            returned = await endpoint(**given)
            return returned if isinstance(returned, Response) else respond(returned)

        super().__init__(path, responding, **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = frozenset(_query_names(self.dependant))
        body = next(models_in(self.body_field.field_info.annotation), None) if self.body_field is not None else None

        holds_plan = body is not None and issubclass(body, Body) and body.holds_plan

        async def strictly(request: Request) -> Response:
            strict = StrictRequest(request.scope, request.receive)  # it keeps the body that it has read
            _check_query(strict, known)
            size = len(await strict.body()) if self.body_field is not None else 0
            media_type = strict.headers.get("content-type", "").partition(";")[0].strip().lower()
            if size and media_type != "application/json":
                detail = "send the body as `Content-Type: application/json`"
                raise ProblemError(ProblemCode.UNSUPPORTED_MEDIA_TYPE, detail)
            service = await service_of(strict)
            # Before a body is read as JSON: a large plan waits for others of its like.
            is_large = holds_plan and size > service.limits.large_plan_bytes
            async with service.large_plans if is_large else nullcontext():
                try:
                    return await handle(strict)
                except RequestValidationError as error:
                    errors = errors_of(error.errors(), body)
                    if body is not None and issubclass(body, Body) and isinstance(error.body, Mapping):
                        errors += await body.also_wrong(service, error.body)
                    detail = "the request is not what this path takes"
                    raise ProblemError(ProblemCode.INVALID_INPUT, detail, {"errors": errors[:MAX_ERRORS]}) from error

        return strictly


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
