"""Validates a document with a Pydantic model and reports what is wrong in the words of plans (DAG-08).

Owns how a problem in a field is worded. Each problem is reported; then the part that has it is taken out, so that
reading continues and one message lists all that is wrong.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Generic, TypeAlias, TypeVar, get_args

from pydantic import BaseModel, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.tasks.functions import nearest
from soong.shared.engine.tasks.plan.plan import Report
from soong.shared.engine.tasks.problems import Hint, Path, Unknown

_T = TypeVar("_T")
_M = TypeVar("_M", bound=BaseModel)

_ROUNDS: Final = 3
"""Rounds of repairs: an unknown kind hides the problems in the fields of the step."""
_MOST_REPAIRED: Final = 200
"""Problems of one document beyond which it is not repaired: each repair copies the mappings around it."""
_KEY: Final = "[key]"
_BRANCH: Final = "\0"
"""The first character of a union branch's name in the place of an error; no key of a document holds it."""
_COLLECTIONS: Final = {
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}
_REMOVED: Final = object()
_NOTHING: Final[JsonObject] = MappingProxyType({})

Elsewhere: TypeAlias = Callable[[type[BaseModel], str], str]
"""Says where a field belongs that a model does not have; empty: nowhere."""


class Expected(Value):
    """Metadata of a type: the words for what it takes, one message for all rules of the type."""

    words: str

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.custom_error_schema(
            handler(source),
            "expected",
            custom_error_message="write {expected}",
            custom_error_context={"expected": self.words},
        )


def unexpected(words: str) -> PydanticCustomError:
    """Return the error of a value that is not what ``words`` say; for validators in Python."""
    return PydanticCustomError("expected", "write {expected}", {"expected": words})


def problem(text: str, hint: str) -> PydanticCustomError:
    """Return the error of a rule that words its own problem."""
    return PydanticCustomError("problem", "{text}; {hint}", {"text": text, "hint": hint})


def kind_of(value: Json) -> str:
    """Return what a value is called in a message."""
    names: dict[type, str] = {bool: "a boolean", int: "a number", float: "a number", str: "a text", type(None): "null"}
    return names.get(type(value), "a list" if isinstance(value, Sequence) else "a mapping")


def branch(union: str, kind: object) -> str:
    """Return the name of a union's branch."""
    return f"{_BRANCH}{union}/{kind}"


class DocumentReader(Value, Generic[_T]):
    """The form of a document: ``models`` are those of the branches of its unions, and at ``""`` that of its root."""

    adapter: TypeAdapter[_T]
    models: Mapping[str, type[BaseModel]]
    elsewhere: Elsewhere = lambda _model, _name: ""

    @staticmethod
    def of(model: type[_M]) -> "DocumentReader[_M]":
        """Return the form of a model without unions."""
        return DocumentReader(TypeAdapter(model), {"": model})

    def read(self, value: Json, path: Path, report: Report, stand_ins: JsonObject = _NOTHING) -> _T | None:
        """Return the document at ``path`` without the parts that have a problem; None when nothing can be read.

        Every problem is reported. ``stand_ins`` are values for required fields that are missing or wrong.
        """
        for number in range(_ROUNDS):
            try:
                return self.adapter.validate_python(value)
            except ValidationError as error:
                found = error.errors(include_url=False)
            for one in found:
                self._report(one, path, report, is_repaired=number > 0)
            if len(found) > _MOST_REPAIRED:
                return None
            for one in reversed(found):
                value = _repaired(value, one, stand_ins)
        return None

    def _report(self, error: ErrorDetails, path: Path, report: Report, *, is_repaired: bool) -> None:
        place = _place(error["loc"])
        if error["type"] == "extra_forbidden":
            name, model = str(place[-1]), self._model_at(error["loc"][:-1])
            belongs = self.elsewhere(model, name)
            if is_repaired and belongs:  # perhaps to the kind that was meant
                return
            text = f"the field {name!r} does not belong here" if belongs else f"unknown field {name!r}"
            hint: Hint = belongs or Unknown(name, field_names(model))
        else:
            place, text, hint = _worded(error, place)
        report((*path, *place), text, hint)

    def _model_at(self, loc: Path) -> type[BaseModel]:
        """Return the model of a mapping in the document."""
        branches = [index for index, part in enumerate(loc) if str(part) in self.models]
        at = branches[-1] if branches else -1
        model = self.models[str(loc[at]) if branches else ""]
        for part in loc[at + 1 :]:
            model = _model_in(field_names(model).get(str(part))) or model
        return model


def field_names(model: type[BaseModel]) -> Mapping[str, Any]:
    """Return the types of a model's fields by their names in a document."""
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)


# -- words
def _worded(error: ErrorDetails, place: Path) -> tuple[Path, str, Hint]:
    """Return the place, the problem and the hint of an error."""
    context, value = error.get("ctx", {}), error["input"]
    unusable = f"{_shown(value)} cannot be used"
    match error["type"]:
        case "missing":
            return place[:-1], f"the field {str(place[-1])!r} is missing", f"add `{place[-1]}:`"
        case "expected":
            return place, unusable, f"write {context['expected']}"
        case "problem":
            return place, context["text"], context["hint"]
        case "union_tag_invalid":
            kinds = re.findall(r"/(\w+)", context["expected_tags"])
            return (*place, "kind"), *_not_one_of(context["tag"].partition("/")[2], kinds)
        case "enum" | "literal_error":
            return place, *_not_one_of(value, re.findall(r"'([^']*)'", context["expected"]))
        case "too_long":
            return place, f"it has {context['actual_length']} entries", f"write at most {context['max_length']}"
        case "too_short":
            return place, "the list is empty", "add at least one entry"
        case other:
            return place, unusable, f"write {_COLLECTIONS[other]}" if other in _COLLECTIONS else error["msg"]


def _not_one_of(value: Any, words: Sequence[str]) -> tuple[str, Hint]:
    hint = nearest(str(value), words).strip() or "write one of them"
    return f"{value!r} is not one of {', '.join(words)}", hint


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return repr(value[:60])[:60]
    return repr(value)[:60] if isinstance(value, int | float) else kind_of(value)


def _place(loc: Path) -> Path:
    """Return the place in the document: without the branches of unions, and of a key that of its value."""
    place = tuple(part for part in loc if not str(part).startswith(_BRANCH))
    return place[:-1] if place[-1:] == (_KEY,) else place


# -- repair
def _repaired(value: Any, error: ErrorDetails, stand_ins: JsonObject) -> Any:
    """Return the document without the part of an error, or with a stand-in for a required one."""
    place = _place(error["loc"])
    if error["type"] == "union_tag_invalid":
        return _changed(value, (*place, "kind"), _REMOVED)
    return _changed(value, place, stand_ins.get(str(place[-1]), _REMOVED) if place else _REMOVED)


def _changed(value: Any, place: Path, new: Any) -> Any:
    """Return a copy with another value at a place, or without it; a place that is no longer there changes nothing."""
    if not place:
        return {} if new is _REMOVED else new
    at, deeper = place[0], place[1:]
    is_there = at in value if isinstance(value, Mapping) else isinstance(at, int) and at < len(value)
    if not is_there and (deeper or new is _REMOVED):
        return value
    part = _changed(value[at], deeper, new) if deeper else new
    if isinstance(value, Mapping):
        return {name: item for name, item in {**value, at: part}.items() if item is not _REMOVED}
    return [*value[:at], *([] if part is _REMOVED else [part]), *value[int(at) + 1 :]]
