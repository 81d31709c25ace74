"""Secrets of a process: variables that hold one, by the ends of their names, and the files of ours (EVT-05)."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from soong.shared.core.settings import Settings

SECRET_ENDINGS: Final = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_CREDENTIALS", "_HEADERS")
MIN_SECRET_CHARS = 8
"""Shorter values are not treated as secrets, and redacting them would tear ordinary text apart."""


def secret_values(settings: "Settings", marked: Collection[str] = (), files: Collection[Path] = ()) -> tuple[str, ...]:
    """Return what may be shown nowhere: the passwords in our URLs, and the keys in the environment (EVT-05).

    ``marked`` are more variables that the configuration calls secret, ``files`` those that hold a secret each.
    """
    passwords = (urlsplit(url).password or "" for url in (settings.database_url, settings.redis_url))
    keys = (value for name, value in os.environ.items() if name in marked or name.upper().endswith(SECRET_ENDINGS))
    contents = map(_secret_in, files)
    return tuple({value for value in (*passwords, *keys, *contents) if len(value) >= MIN_SECRET_CHARS})


def _secret_in(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""  # its reader reports the problem


def secret_files(settings: "Settings") -> tuple[Path, ...]:
    """Return the files that hold a key or a password of the deployment: the signing key and every SOONG_*_FILE."""
    named = (
        value
        for name, value in sorted(os.environ.items())
        if name.startswith("SOONG_") and name.endswith("_FILE") and value
    )
    return tuple(
        dict.fromkeys((settings.key_file.absolute(), *(Path(value).expanduser().absolute() for value in named)))
    )
