"""``soong config``: every setting with its value and where the value comes from; nothing is changed here."""

from typing import Final

import typer
from msgspec.structs import asdict

from soong.orchestrator.cli.console import emit, output, table
from soong.shared.core.config import CONFIG_FILE, Config, load_config
from soong.shared.core.configured_settings import given_by, with_config
from soong.shared.core.settings import Settings, load_settings, source_of, without_password
from soong.shared.core.value import Value

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
_URLS: Final = frozenset({"artifacts_url", "database_url", "redis_url"})


class SettingValue(Value):
    """One setting as it is in force.

    ``source`` is `environment`, `file` (``SOONG_<NAME>_FILE``), `config.toml` or `default`.
    """

    name: str
    value: str
    source: str
    description: str


@app.callback()
def _group() -> None:
    """Show every setting, its value and its source."""


@app.command()
def show(*, is_json: bool = typer.Option(False, "--json", help="Print one JSON document.")) -> None:
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


def settings_in_force(settings: Settings, config: Config) -> list[SettingValue]:
    """Return every setting in the order of the README. Passwords in URLs are left out."""
    in_force, configured = with_config(settings, config), given_by(config)
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
