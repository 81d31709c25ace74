"""What is wrong with a request's fields and parameters, each with its place and what to do about it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, get_args

from pydantic import BaseModel

from soong.orchestrator.http.problems import MAX_ERRORS, MAX_PLACE_CHARS
from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.functions import suggestion

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
        fields = _fields(model)
        model = _model_of(model, part)
    return ".".join(parts), fields


def _fields(model: type[BaseModel] | None) -> Fields:
    fields = model.model_fields.items() if model is not None else ()
    return {field.alias or name: field.description or "" for name, field in fields}


def _model_of(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    """Return the model of a field's value, or of the items of it; None when it has none."""
    for given, field in model.model_fields.items():
        if name == (field.alias or given):
            return next(models_in(field.annotation), None)
    return None


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
