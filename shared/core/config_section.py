"""The base of every section of ``config.toml``: it is closed, frozen, and converts nothing in silence."""

import re
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from soong.shared.core.jsontext import dotted

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Text: TypeAlias = Annotated[str, Field(min_length=1)]
Seconds: TypeAlias = Annotated[float, Field(gt=0, le=600)]


class ConfigSection(BaseModel):
    """One table of the configuration. Its validator is built when a file is read: most homes have none."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


def matching(pattern: str, problem: str, *, is_optional: bool = False) -> AfterValidator:
    """Return what holds a text (or, if optional, an empty one) to a pattern; ``problem`` shows it at ``{!r}``."""
    form = re.compile(pattern, re.ASCII | re.DOTALL)

    def checked(value: str) -> str:
        if not form.fullmatch(value) and (value or not is_optional):
            raise ValueError(problem.format(value))
        return value

    return AfterValidator(checked)


_WORDS: Final = {
    "tuple_type": "takes a list, such as ['a', 'b']",
    "model_type": "takes a table of fields",
    "string_type": "takes text in quotes",
    "bool_type": "takes true or false",
    "int_type": "takes an integer",
    "float_type": "takes a number",
    "missing": "is missing",
}


def wrong_places(error: ValidationError, document: type[BaseModel]) -> str:
    return "; ".join(f"{dotted(item['loc'])}: {_said(item, document)}" for item in error.errors())


def _said(item: "ErrorDetails", document: type[BaseModel]) -> str:
    """Return what is wrong at one place in words of a configuration, not of a program."""
    if item["type"] == "extra_forbidden":
        known = ", ".join(_fields_at(item["loc"][:-1], document))
        return f"there is no such field; known here: {known}"
    return _WORDS.get(item["type"], item["msg"])


def _fields_at(place: tuple[int | str, ...], section: type[BaseModel]) -> list[str]:
    for name in place:
        if isinstance(name, str) and name in section.model_fields:  # others are keys of a table of sections
            kinds = (section.model_fields[name].annotation, *get_args(section.model_fields[name].annotation))
            section = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    return list(section.model_fields)
