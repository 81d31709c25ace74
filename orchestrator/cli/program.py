"""The commands on this program: its settings and where each comes from, completion for shells, its version."""

import platform
import sys
from enum import StrEnum
from importlib.metadata import version
from pathlib import PurePath
from typing import Final

import typer
from msgspec.structs import asdict
from typer.completion import get_completion_script  # type: ignore[attr-defined]  # not in its list of exports

from soong.orchestrator.cli.application import COMPLETE_VARIABLE
from soong.orchestrator.cli.console import emit, emit_text, output, table
from soong.orchestrator.cli.options import JSON
from soong.shared.core.config import CONFIG_FILE, Config, load_config
from soong.shared.core.configured_settings import given_by, with_config
from soong.shared.core.errors import UsageError
from soong.shared.core.installation import DISTRIBUTION, INSTALL_ROOT
from soong.shared.core.settings import Settings, load_settings, source_of, without_password
from soong.shared.core.value import Value

config = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
_URLS: Final = frozenset({"artifacts_url", "database_url", "redis_url"})


class SettingValue(Value):
    """One setting as it is in force.

    ``source`` is `environment`, `file` (``SOONG_<NAME>_FILE``), `config.toml` or `default`.
    """

    name: str
    value: str
    source: str
    description: str


@config.command()
def show(*, is_json: bool = JSON) -> None:
    """Show the settings that a command started here uses, and the configuration file of the home."""
    settings = load_settings()
    values = settings_in_force(settings, load_config(settings.home))
    path = settings.home / CONFIG_FILE
    if is_json:
        emit({"settings": [asdict(one) for one in values], "file": {"path": str(path), "exists": path.exists()}})
        return
    output(table(("setting", "value", "source"), [(one.name, one.value, one.source) for one in values]))
    output(f"\npermissions, tools and hooks: {path}{'' if path.exists() else ' (does not exist: defaults)'}")
    output("A running service keeps the settings that it was started with.")


def settings_in_force(settings: Settings, file: Config) -> list[SettingValue]:
    """Return every setting in the order of its class. Passwords in URLs are left out."""
    in_force, configured = with_config(settings, file), given_by(file)
    return [
        SettingValue(
            f"SOONG_{name.upper()}",
            _text(name, getattr(in_force, name)),
            CONFIG_FILE if name in configured and source_of(name) == "default" else source_of(name),
            field.description or "",
        )
        for name, field in Settings.model_fields.items()
    ]


def _text(name: str, value: object) -> str:
    if name in _URLS:
        return without_password(str(value))
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


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
    if is_json:
        emit(found)
        return
    output(f"soong {found['version']}")
    output(f"Python {found['python']} ({found['executable']}), {found['platform']}")
    output(f"installed in {found['location']}")
