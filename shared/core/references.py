"""Secrets by reference: ``env:NAME`` is a variable of this process, ``file:PATH`` the content of a file.

A value of ``env`` and ``headers`` is such a reference, or a text that holds some as ``${env:NAME}``; else it is taken
as it is. References are resolved when a server is started, so a secret is in no row, no command line and no snapshot.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.mcp_config import INNER_REFERENCE, WHOLE_REFERENCE

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
