"""The Typer application: one command imported, the others by their summary; help in groups with examples."""

import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from soong.orchestrator.cli.commands import COMMANDS, GROUPS, CommandEntry
from soong.orchestrator.cli.options import as_command
from soong.orchestrator.terminal.console import Verbosity, choose, chosen

COMPLETE_VARIABLE = "_SOONG_COMPLETE"
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
_FOOTER = (
    "Run `soong help COMMAND` for one command, `soong config show` for the settings (SOONG_*). "
    "The documentation is docs/ of the source: begin with docs/tutorial.md."
)


class CommandGroup(TyperGroup):
    """A group that shows its help, and ends with 0, when no command is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            raise typer.Exit
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command with its first sentence, however long."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_sentence(command.help)) for name, command in self.commands.items()])


class CommandLine(CommandGroup):
    """The program itself: its commands are listed by group."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section per group of commands."""
        del ctx
        width = max(map(len, COMMANDS))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), entry.summary) for name, entry in commands.items()])


def build(arguments: Sequence[str]) -> TyperGroup:
    """Return the program with the one command that ``arguments`` name; the others are known by their summary."""
    app = typer.Typer(
        name="soong",
        cls=CommandLine,
        help="Run DAGs of AI agents on Celery workers. Every step is durable; "
        "every permission request goes to one approver.",
        epilog=_FOOTER,
        no_args_is_help=True,
        add_completion=False,
        # Rich help costs more time than the rest of the start.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=CONTEXT,
    )
    app.callback()(_options)
    named = next((word for word in arguments if not word.startswith("-")), "")
    for name, entry in COMMANDS.items():
        if name == named:
            _mount(app, name, entry)
        else:
            app.command(name, help=entry.summary)(lambda: None)  # the place of a command that is not called
    program = typer.main.get_command(app)
    assert isinstance(program, TyperGroup)
    # --quiet and --verbose can be given at any place of the command line.
    shared = [param for param in program.params if param.name in {"is_quiet", "is_verbose"}]
    for command in _commands_below(program):
        taken = {word for param in command.params for word in param.opts}
        command.params += [param for param in shared if not taken.intersection(param.opts)]
    return program


def words_to_complete() -> list[str]:
    """Return the command line that a shell wants completed, as the shell's script passes it; else nothing."""
    if COMPLETE_VARIABLE not in os.environ:
        return []
    from typer.completion import completion_init  # type: ignore[attr-defined]  # not in its list of exports

    completion_init()
    text = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
    return text.split()[1:]


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version  # slow, and rarely asked

        from soong.shared.core.installation import DISTRIBUTION

        typer.echo(f"soong {version(DISTRIBUTION)}")
        raise typer.Exit


def _options(
    *,
    _version: bool = typer.Option(
        False, "--version", "-V", help="Show the version and exit.", is_eager=True, callback=_show_version
    ),
    is_quiet: bool = typer.Option(
        False,
        "--quiet",
        "-q",
        help="Print results and errors only.",
        callback=lambda is_given: choose(Verbosity.QUIET) if is_given else None,
        expose_value=False,
    ),
    is_verbose: bool = typer.Option(
        False,
        "--verbose",
        "-v",
        help="Log more, and show tracebacks.",
        callback=lambda is_given: choose(Verbosity.VERBOSE) if is_given else None,
        expose_value=False,
    ),
) -> None:
    """Take the options before the command."""


def _mount(app: typer.Typer, name: str, entry: CommandEntry) -> None:
    place, _, attribute = entry.place.partition(":")
    module = import_module(f"soong.orchestrator.cli.{place}")
    command = getattr(module, attribute or ("app" if hasattr(module, "app") else "command"))
    from soong.shared.core.log import configure  # after the command's own imports, which a bare --help does not pay

    # A client tells what matters in sentences; what its parts log belongs neither into those nor on standard output.
    configure("info" if chosen() is Verbosity.VERBOSE else "error", process="cli")
    facts: dict[str, Any] = {"name": name, "help": entry.summary}
    if entry.examples:
        # \b keeps the lines of a paragraph as they are.
        facts["epilog"] = "\b\n" + "\n".join(("Examples:", *(f"  {example}" for example in entry.examples)))
    if isinstance(command, typer.Typer):
        app.add_typer(command, cls=CommandGroup, context_settings=CONTEXT, **facts)
    else:
        app.command(context_settings=CONTEXT, **facts)(as_command(command))


def _first_sentence(text: str | None) -> str:
    paragraph = " ".join((text or "").split("\n\n")[0].split())
    return paragraph.split(". ")[0].rstrip(".") + "."


def _commands_below(group: TyperGroup) -> Iterator[TyperCommand | TyperGroup]:
    for command in group.commands.values():
        assert isinstance(command, TyperCommand | TyperGroup)
        yield command
        if isinstance(command, TyperGroup):
            yield from _commands_below(command)
