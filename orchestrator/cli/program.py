"""The commands on this program: its settings and where each comes from, completion for shells, its version."""

import platform
import sys
from enum import StrEnum
from importlib.metadata import version
from pathlib import PurePath
from typing import Final

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]  # not in its list of exports

from soong.orchestrator.cli.application import COMPLETE_VARIABLE
from soong.orchestrator.cli.options import JSON, CommandTable
from soong.orchestrator.terminal.console import emit_text, table
from soong.orchestrator.terminal.console import show as show_result
from soong.shared.core.config import CONFIG_FILE, Config, given_by, load_config, with_config
from soong.shared.core.errors import UsageError
from soong.shared.core.installation import DISTRIBUTION, INSTALL_ROOT
from soong.shared.core.settings import Settings, load_settings, source_of, without_password

config = CommandTable()
_URLS: Final = frozenset({"artifacts_url", "database_url", "redis_url"})


@config.command()
def show(*, is_json: bool = JSON) -> None:
    """Show the settings that a command started here uses, and the configuration file of the home."""
    settings = load_settings()
    values = settings_in_force(settings, load_config(settings.home))
    path = settings.home / CONFIG_FILE
    text = (
        table(("setting", "value", "source"), [(one["name"], one["value"], one["source"]) for one in values]),
        f"\npermissions, tools and hooks: {path}{'' if path.exists() else ' (does not exist: defaults)'}",
        "A running service keeps the settings that it was started with.",
    )
    document = {"settings": values, "file": {"path": str(path), "exists": path.exists()}}
    show_result(document, lambda: "\n".join(text), is_json=is_json)


def settings_in_force(settings: Settings, file: Config) -> list[dict[str, str]]:
    """Return every setting in the order of its class. Passwords in URLs are left out.

    ``source`` is `environment`, `file` (``SOONG_<NAME>_FILE``), `config.toml` or `default`.
    """
    in_force, configured = with_config(settings, file), given_by(file)
    return [
        {
            "name": f"SOONG_{name.upper()}",
            "value": _text(name, getattr(in_force, name)),
            "source": CONFIG_FILE if name in configured and source_of(name) == "default" else source_of(name),
            "description": field.description or "",
        }
        for name, field in Settings.model_fields.items()
    ]


def _text(name: str, value: object) -> str:
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return without_password(str(value)) if name in _URLS else "" if value is None else str(value)


class Shell(StrEnum):
    """The shells that are completed."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: str = typer.Argument("", envvar="SHELL", help=f"{', '.join(Shell)}; by default the shell that SHELL names."),
) -> None:
    """Print the completion script of a shell: eval "$(soong completion bash)"."""
    name = PurePath(shell).name
    try:
        wanted = Shell(name)
    except ValueError:
        raise UsageError(f"the shell {name!r} is not known; name one of {', '.join(Shell)}") from None
    script = get_completion_script(prog_name="soong", complete_var=COMPLETE_VARIABLE, shell=wanted.value)
    emit_text(f"{script}\n")


def show_version(*, is_json: bool = JSON) -> None:
    """Show the version of this program, of Python, and where it is installed."""
    found = {
        "version": version(DISTRIBUTION),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "executable": sys.executable,
        "location": str(INSTALL_ROOT),
    }
    lines = (
        f"soong {found['version']}",
        f"Python {found['python']} ({found['executable']}), {found['platform']}",
        f"installed in {found['location']}",
    )
    show_result(found, lambda: "\n".join(lines), is_json=is_json)
