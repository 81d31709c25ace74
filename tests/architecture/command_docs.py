"""The part of docs/reference/commands.md that is made from the command line: every command, its options, examples."""

from collections.abc import Iterator
from typing import Any

from soong.orchestrator.cli.application import build
from soong.orchestrator.cli.commands import GROUPS, CommandEntry

_SHARED = {"is_quiet", "is_verbose", "help"}


def commands() -> str:
    """Return every command by its group, as ``soong --help`` orders them."""
    return "\n\n".join(
        "\n\n".join((f"## {title}", *(_command(name, entry) for name, entry in entries.items())))
        for title, entries in GROUPS.items()
    )


def _command(name: str, entry: CommandEntry) -> str:
    command: Any = None if name == "help" else build([name]).commands[name]
    parts = [f"### soong {name}", entry.summary]
    for below in getattr(command, "commands", {}).values():
        parts.append(f"**`{_line(f'{name} {below.name}', below)}`** {' '.join(below.help.split())}")
        parts += _options(below)
    parts += _options(command) if command is not None else []
    if entry.examples:
        parts.append("\n".join(("```sh", *entry.examples, "```")))
    return "\n\n".join(parts)


def _line(words: str, command: Any) -> str:
    taken = (each for each in command.params if each.param_type_name == "argument")
    return " ".join(("soong", words, *((each.metavar or each.name).upper().strip("{}") for each in taken)))


def _options(command: Any) -> Iterator[str]:
    rows = [
        f"| `{_plain(' '.join(filter(None, (*each.opts, each.metavar))))}` | {_plain(each.help or '')} |"
        for each in command.params
        if each.name not in _SHARED and not getattr(each, "hidden", False) and each.param_type_name == "option"
    ]
    if rows:
        yield "\n".join(("| option | meaning |", "|---|---|", *rows))


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("*", "\\*")
