"""The model seam: a name becomes a Pydantic AI model, imported only when it is asked for (DIS-08)."""

import importlib
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from shared.errors import InvalidConfigError
from shared.jsontext import Json

if TYPE_CHECKING:
    from pydantic_ai.models import Model

SCRIPT = "script"

# Extras of this distribution, by the provider's name before the colon; the rest name their package themselves.
_EXTRAS = {
    "anthropic": "anthropic",
    "bedrock": "bedrock",
    "google": "google",
    "google-gla": "google",
    "groq": "groq",
    "mistral": "mistral",
    "openai": "openai",
    "openai-chat": "openai",
    "openai-responses": "openai",
    "ollama": "openai",
}


_WARM: set[str] = set()


def is_warm(name: str) -> bool:
    """Say whether a model of that name can be had without importing anything more."""
    return name in _WARM


def warm_up(name: str) -> None:
    """Import what agents on a model of that name need. Takes seconds, so a process does it once and off its loop.

    Raises:
        InvalidConfigError: as :func:`resolve_model`.
    """
    importlib.import_module("shared.agents.loop")  # the model library, and all that stands on it

    resolve_model(name, ())
    _WARM.add(name)


def resolve_model(name: str, script: Sequence[Json] | None = None) -> "Model[Any]":
    """Return the model of that name for one run. ``script`` is played by the model ``script`` and else ignored.

    Raises:
        InvalidConfigError: no such model, its package is not installed, or its key is missing; says what to do.
    """
    if name == SCRIPT:
        if script is None:
            raise InvalidConfigError("the model 'script' has no script to play; add `script:` or choose a model")
        from shared.agents.scripted import script_model  # the library costs half a second

        return script_model(script)
    return _provider_model(name)


@lru_cache(maxsize=32)
def _provider_model(name: str) -> "Model[Any]":
    """One model a name and process: its HTTP client and connection pool are shared by all runs."""
    from pydantic_ai.exceptions import UserError  # as above
    from pydantic_ai.models import infer_model

    provider = name.partition(":")[0]
    try:
        return infer_model(name)
    except ImportError as error:
        extra = _EXTRAS.get(provider)
        remedy = f"pip install 'soong[{extra}]'" if extra else f"install what it names: {error}"
        raise InvalidConfigError(f"the model {name!r} needs a package that is not installed; {remedy}") from error
    except UserError as error:
        # Its words name the missing key's variable, or the nearest known model.
        raise InvalidConfigError(f"the model {name!r} cannot be used: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidConfigError(f"the model {name!r} cannot be used: {type(error).__name__}: {error}") from error
