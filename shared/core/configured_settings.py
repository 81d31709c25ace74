"""Settings that ``config.toml`` can give as well: limits of tools, and times of questions (EXE-08, PER-13).

A value of the environment or of a command's option wins over the file. Each process completes its settings by the file
of its own home when it starts.
"""

from collections.abc import Mapping
from typing import Any, Final

from soong.shared.core.config import Config
from soong.shared.core.settings import Settings

FILE_KEYS: Final[Mapping[str, tuple[str, str]]] = {
    "permission_timeout_s": ("permission", "timeout_s"),
    "park_after_s": ("permission", "park_after_s"),
    "tool_timeout_ms": ("tools", "default_timeout_ms"),
    "tool_max_timeout_ms": ("tools", "max_timeout_ms"),
}
"""The section and the key of each such setting."""


def with_config(settings: Settings, config: Config) -> Settings:
    """Return the settings with what only the configuration gives."""
    found = {name: value for name, value in given_by(config).items() if name not in settings.model_fields_set}
    return settings.model_copy(update=found) if found else settings


def given_by(config: Config) -> dict[str, Any]:
    """Return the settings that a configuration gives, by the name of the setting."""
    values = {name: getattr(getattr(config, section), key) for name, (section, key) in FILE_KEYS.items()}
    return {name: value for name, value in values.items() if value is not None}
