"""``{{field}}`` in the arguments of a command tool: its permitted forms and its rendering (CMD-04).

A value is put in once and never looked at again. In a command line it is one argument; in a shell line it is a
positional parameter, so that no value is ever part of the text that the shell parses.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from soong.shared.core.jsontext import Json, JsonObject, dump
from soong.shared.core.value import Value
from soong.shared.tools.result import ErrorType, ToolError

OPENING: Final = "{{"
SCALARS: Final = frozenset({"string", "number", "integer", "boolean"})
MAX_ARGUMENT_BYTES: Final = 128 * 1024 - 1
"""The maximum of one argument on Linux."""

_FIELD = re.compile(r"\{\{([A-Za-z_][A-Za-z0-9_-]*)\}\}")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./:=,@%+-]*", re.ASCII)
_OPERATORS = re.compile(r"[;&|()`\n]")
_EVALUATES_AGAIN = re.compile(
    # Each of these reads a word that the shell has finished with a second time, as code.
    r"\$\(\(|(?:^|[\s;&|])\(\(|(?:^|\s)\[\[\s|(?:^|[\s;&|(`])(?:eval|let|trap|source)\s|(?:^|[\n;&|(`]\s*)\.\s"
    r"|\b(?:ba|da|z|k|mk|a|fi|c|tc)?sh\s+(?:-\S+\s+)*-\w*c\b"
)


class TemplateArgument(Value):
    """One element of ``args``: literal texts with fields between them, so one literal more than fields."""

    literals: tuple[str, ...]
    fields: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "TemplateArgument":
        """Read an element.
        Raises: ValueError, two opening braces that begin no field; the message states the form of a field.
        """
        parts = _FIELD.split(text)
        if any(OPENING in literal for literal in parts[::2]):
            raise ValueError("holds '{{' that begins no field; a field is written {{name}}, without spaces or dots")
        return cls(tuple(parts[::2]), tuple(parts[1::2]))

    @property
    def is_end_of_options(self) -> bool:
        return self.literals == ("--",)

    def values(self, call_input: JsonObject) -> list[str] | None:
        """Return the texts of the element's fields; None when one is absent and the element is left out."""
        if any(field not in call_input for field in self.fields):
            return None
        return [_text_of(field, call_input[field]) for field in self.fields]

    def joined(self, values: Sequence[str]) -> str:
        """Return the element with texts in the places of its fields."""
        pieces = zip(self.literals, [*values, ""], strict=True)
        return "".join(literal + value for literal, value in pieces)


def field_problems(arguments: Sequence[TemplateArgument], input_schema: JsonObject) -> Iterator[tuple[int, str]]:
    """Yield (position, problem) for every field that is not a scalar of the input schema."""
    properties = input_schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    for position, argument in enumerate(arguments):
        for field in argument.fields:
            part = known.get(field)
            if not isinstance(part, Mapping):
                names = ", ".join(map(str, known)) or "none"
                yield position, f"names {field!r}, which is not a field of input_schema; its fields: {names}"
            elif part.get("type") not in SCALARS:
                kind = part.get("type", "without type")
                yield position, f"names {field!r}, which is {kind}; only string, number, integer and boolean fit here"


def shell_problems(arguments: Sequence[TemplateArgument]) -> Iterator[tuple[int, str]]:
    """Yield (position, problem) for what keeps a value from being exactly one word of a shell line.

    Position 0 is the command itself. Values cannot break out of their word whatever is around them; these rules
    keep the word from being split, or read as code by something behind the shell's own parsing.
    """
    quote = ""
    for position, argument in enumerate(arguments):
        if not argument.fields:
            quote = _quote_after(argument.literals[0], quote)
            continue
        if quote:
            yield position, "is inside quotes; the value is quoted already, so take the quotes away"
        elif not all(map(_PLAIN_WORD.fullmatch, argument.literals)):
            yield (
                position,
                "has shell syntax next to a field; only letters, digits and _ . / : = , @ % + - are allowed there",
            )
    if quote:
        yield len(arguments) - 1, f"leaves a {quote} open"
    text = " ".join(argument.joined(["x"] * len(argument.fields)) for argument in arguments)
    found = _EVALUATES_AGAIN.search(text)
    first = next((position for position, argument in enumerate(arguments) if argument.fields), None)
    if found and first is not None:
        yield first, f"is a value in a line with {found[0].strip()!r}, which would read it again as code"


def render_arguments(arguments: Sequence[TemplateArgument], call_input: JsonObject) -> list[str]:
    """Return the argv elements that a validated input makes; elements with an absent field are left out.
    Raises: ToolError, ``invalid_input``, a value cannot be an argument or would become an option.
    """
    rendered: list[str] = []
    is_past_options = False
    for argument in arguments:
        values = argument.values(call_input)
        if values is None:
            continue
        element = argument.joined(values)
        if not is_past_options:
            _refuse_option(argument, element)
        is_past_options = is_past_options or argument.is_end_of_options
        _refuse_unusable(argument, element)
        rendered.append(element)
    return rendered


class ShellLine(Value):
    """A line for ``sh -c`` and its positional parameters. ``shown`` is the same with each value quoted in place."""

    text: str
    values: tuple[str, ...]
    shown: str


def render_shell(arguments: Sequence[TemplateArgument], call_input: JsonObject) -> ShellLine:
    """Return the shell line that a validated input makes. Raises: ToolError as :func:`render_arguments`."""
    texts: list[str] = []
    shown: list[str] = []
    values: list[str] = []
    is_past_options = False
    for argument in arguments:
        given = argument.values(call_input)
        if given is None:
            continue
        if argument.fields:
            if not is_past_options:
                _refuse_option(argument, argument.joined(given))
            for value in given:
                _refuse_unusable(argument, value)
        else:
            # Another command may begin behind each operator, and its options with it.
            *before, last = _OPERATORS.split(argument.literals[0])
            is_past_options = "--" in last.split() or (is_past_options and not before)
        first = len(values) + 1
        texts.append(argument.joined([f'"${{{first + index}}}"' for index in range(len(given))]))
        shown.append(argument.joined([shlex.quote(value) for value in given]))
        values += given
    return ShellLine(" ".join(texts), tuple(values), " ".join(shown))


def _text_of(field: str, value: Json) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return dump(value)
    raise ToolError(ErrorType.INVALID_INPUT, f"$.{field}: is not a scalar and cannot be in an argument")


def _refuse_option(argument: TemplateArgument, element: str) -> None:
    if element.startswith("-") and argument.fields and not argument.literals[0]:
        field = argument.fields[0]
        raise ToolError(
            ErrorType.INVALID_INPUT,
            f"$.{field}: begins with '-' and would be taken for an option",
            hint="give a value that does not begin with '-', for a file for example ./-name",
        )


def _refuse_unusable(argument: TemplateArgument, element: str) -> None:
    names = ", ".join(f"$.{field}" for field in argument.fields) or "an argument"
    if "\0" in element:
        raise ToolError(ErrorType.INVALID_INPUT, f"{names}: holds a NUL character, which no argument can")
    size = len(element.encode("utf-8", "surrogatepass"))
    if size > MAX_ARGUMENT_BYTES:
        raise ToolError(
            ErrorType.INVALID_INPUT, f"{names}: makes an argument of {size} bytes; at most {MAX_ARGUMENT_BYTES} fit"
        )


def _quote_after(text: str, quote: str) -> str:
    """Return the quote that is open after a literal text, given the one that is open before it."""
    is_escaped = False
    for char in text:
        if is_escaped:
            is_escaped = False
        elif char == "\\" and quote != "'":
            is_escaped = True
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
    return quote
