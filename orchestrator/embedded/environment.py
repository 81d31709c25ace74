"""The environment of a command and of its service, compared by a digest: a difference would make other rows."""

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Final

from soong.shared.core.secret_values import SECRET_ENDINGS

STARTER: Final = "SOONG_STARTER"
"""The variable by which a service knows the digest of the environment of the command that has started it."""
_OF_THE_REQUEST: Final = frozenset({"SOONG_AGENT_HOME", "SOONG_MODEL"})
"""Variables that choose the service, or that a request carries itself."""


def own_environment_digest() -> str:
    return environment_digest(os.environ)


def environment_digest(environment: Mapping[str, str]) -> str:
    """Return a digest of the variables that change what a command writes: settings, the home of ``~``, and secrets.

    Secrets count because each process keeps those of its own environment out of the rows (EVT-05). For a service that
    a command has started, these are the variables of that command.
    """
    if STARTER in environment:
        return environment[STARTER]
    wanted = {
        name: value
        for name, value in environment.items()
        if (name == "HOME" or name.startswith("SOONG_") or name.upper().endswith(SECRET_ENDINGS))
        and name not in _OF_THE_REQUEST
    }
    text = json.dumps(wanted, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
