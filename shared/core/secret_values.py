"""Secrets of a process: the values that are shown nowhere (EVT-05), and secrets by reference.

``env:NAME`` is a variable of this process, ``file:PATH`` the content of a file. A value of ``env`` and ``headers`` is
such a reference, or a text that holds some as ``${env:NAME}``; else it is taken as it is. References are resolved when
a server is started, so a secret is in no row, no command line and no snapshot.
"""

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from soong.shared.core.errors import InvalidConfigError

if TYPE_CHECKING:
    from soong.shared.core.settings import Settings


WHOLE_REFERENCE: Final = re.compile(r"(env|file):(.+)", re.DOTALL)
INNER_REFERENCE: Final = re.compile(r"\$\{(env|file):([^}]+)\}")
"""How a value refers to a secret: as a whole, or within a text."""
SECRET_ENDINGS: Final = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_CREDENTIALS", "_HEADERS")
MIN_SECRET_CHARS = 8
"""Shorter values are not treated as secrets, and redacting them would tear ordinary text apart."""


def secret_values(settings: "Settings", marked: Collection[str] = (), files: Collection[Path] = ()) -> tuple[str, ...]:
    """Return what may be shown nowhere: the passwords in our URLs, and the keys in the environment (EVT-05). ``marked``
    are more variables that the configuration calls secret, ``files`` those that hold a secret each.
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


_MAX_SECRET_BYTES: Final = 64 * 1024


def resolved(values: Mapping[str, str], place: str) -> dict[str, str]:
    """Return the values with what they refer to; ``place`` is their section of the configuration.
    Raises: InvalidConfigError, a variable is not set, or a file cannot be read. Names it, and no secret.
    """
    return {name: _resolved(value, f"{place}.{name}") for name, value in values.items()}


def _resolved(value: str, place: str) -> str:
    whole = WHOLE_REFERENCE.fullmatch(value)
    if whole:
        return _secret(whole[1], whole[2], place)
    return INNER_REFERENCE.sub(lambda match: _secret(match[1], match[2], place), value)


def _secret(kind: str, name: str, place: str) -> str:
    if kind == "env":
        found = os.environ.get(name)
        if found is None:
            raise InvalidConfigError(f"{place}: the variable {name!r} is not set in this process")
        return found
    path = Path(name).expanduser()
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_SECRET_BYTES + 1)
        text = content.decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"{place}: the file {str(path)!r} cannot be read: {error}") from error
    if len(content) > _MAX_SECRET_BYTES:
        raise InvalidConfigError(f"{place}: the file {str(path)!r} has more than {_MAX_SECRET_BYTES} bytes")
    return text
