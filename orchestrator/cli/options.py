"""Options that several commands take."""

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, Final, TypeVar

import typer

from soong.shared.core.amounts import WorkerRange
from soong.shared.core.errors import InvalidJsonError, UsageError
from soong.shared.core.jsontext import Json, parse_strict

_Function = TypeVar("_Function", bound=Callable[..., Any])


STATUS: Any = typer.Option([], "--status", help="Only in this status; repeatable.")
TITLE = typer.Option("", "--title", metavar="TEXT", help="Only with this in the title of the task.")
TAGGED = typer.Option("", "--tag", metavar="TAG", help="Only of tasks with this tag.")
SINCE = typer.Option("", "--since", metavar="AGE", help="Only what was made within this time: 12h, 30d.")
TAGS: Any = typer.Option([], "--tag", metavar="TAG", help="A word by which lists are filtered (repeatable).")


class CommandTable(typer.Typer):
    """A group of commands, each a function or a coroutine function."""

    def __init__(self) -> None:
        super().__init__(no_args_is_help=True, rich_markup_mode=None)

    def command(self, name: str | None = None, **facts: Any) -> Callable[[_Function], _Function]:
        add = super().command(name, **facts)

        def added(function: _Function) -> _Function:
            add(as_command(function))
            return function

        return added


def as_command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs a coroutine function to its end; any other as it is."""
    if not iscoroutinefunction(function):
        return function

    @wraps(function)
    def run(*args: Any, **values: Any) -> Any:
        import asyncio  # a bare --help does not pay it

        return asyncio.run(function(*args, **values))

    return run


def workers_option(text: str) -> Any:
    """Return ``--workers``, a number or a range; its help says what they are for."""

    def read(word: str) -> WorkerRange:
        try:
            return WorkerRange.of(word)
        except ValueError as error:
            raise typer.BadParameter(f"{word!r}: {error}") from error

    return typer.Option(None, "--workers", metavar="N|MIN-MAX", parser=read, help=text)


def pairs_of(words: Iterable[str], option: str, hint: str) -> dict[str, str]:
    """Read the ``NAME=VALUE`` words of an option, each name once. Raises: UsageError."""
    pairs: dict[str, str] = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise UsageError(f"{option} {word!r} is not NAME=VALUE, {hint}")
        if name in pairs:
            raise UsageError(f"{option} {name!r} is given twice; give it once")
        pairs[name] = value
    return pairs


def value_of(text: str) -> Json:
    """Return the JSON value of a text, or the text itself where it is none."""
    try:
        return parse_strict(text)
    except InvalidJsonError:
        return text


JSON: Final[Any] = typer.Option(False, "--json", help="Print one JSON document.")
RESULT_AS_JSON: Final[Any] = typer.Option(
    False, "--json", help="Print one JSON document; progress goes to standard error."
)
ALLOW: Final[Any] = typer.Option(
    [], "--allow", metavar="TOOL:SCOPE", help="Allow a tool for one folder, file or host; may be repeated."
)
BUDGET: Final[Any] = typer.Option(
    [], "--budget", metavar="LIMIT", help="What it may use in all: 2usd, 200ktok, or both [the configuration's]."
)
DETACH: Final[Any] = typer.Option(False, "--detach", help="Leave it running and print its id.")
INPUT: Final[Any] = typer.Option([], "--input", metavar="NAME=VALUE", help="An input of the plan; may be repeated.")
MODEL: Final[Any] = typer.Option(None, "--model", help="Model of agents that name none [SOONG_MODEL].")
SETTING: Final[Any] = typer.Option(
    [],
    "--setting",
    metavar="NAME=VALUE",
    help="How the model is asked: temperature, max_tokens, thinking, timeout_s, parallel_calls, cache; "
    "may be repeated.",
)
WORKERS: Final[Any] = workers_option("Workers of a service started for this.")
SLOTS: Final[Any] = typer.Option(None, "--slots", min=1, help="Slots of each of those workers.")
