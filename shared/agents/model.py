"""The model seam: a name becomes a Pydantic AI model, imported only when it is asked for (DIS-08)."""

import importlib
import re
from collections.abc import Callable
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.installation import install_line
from soong.shared.engine.tasks.functions import resolve_script
from soong.shared.engine.tasks.plan.plan import FOREIGN_PREFIXES

if TYPE_CHECKING:
    from pydantic_ai.models import Model


SCRIPT = "script"
LOOP: Final = "soong.shared.agents.loop"
"""With it come the model library, and all that is built on it."""

# Extras of this distribution, by the provider's name before the colon; the rest name their package themselves.
_EXTRAS = {
    "anthropic": "anthropic",
    "bedrock": "bedrock",
    "google": "google",
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
    Raises: InvalidConfigError as :func:`resolve_model`.
    """
    importlib.import_module(LOOP)
    resolve_model(name, "builtin.echo")
    _WARM.add(name)


ModelOfStep = Callable[[str], "Model[Any]"]
REGISTERED: Final[dict[str, ModelOfStep]] = {}
"""Models of this process in place of those of providers, by name; each is made for the id of a step (soong.testing)."""


def check_name(name: str) -> None:
    """Check that a provider of this name exists, without its package or key: for a client of another machine's workers.
    Raises: InvalidConfigError, no provider is known by it; names the nearest known models.
    """
    if name == SCRIPT or name in REGISTERED or name.startswith(FOREIGN_PREFIXES):
        return  # plans are checked for which agents there are
    provider, separator, model = name.partition(":")
    if not separator or not model or not _is_provider(provider):
        raise InvalidConfigError(f"the model {name!r} is not known; {_suggestion(name)}")


def resolve_model(name: str, script: str = "", step_id: str = "") -> "Model[Any]":
    """Return the model of that name for one run of a step. ``script`` is what the model ``script`` runs; others ignore
    it.

    Raises:
        NotFoundError: no scripted agent has that name.
        InvalidConfigError: no such model, its package is not installed, or its key is missing; says what to do.
    """
    if name == SCRIPT:
        if not script:
            raise InvalidConfigError("the model 'script' has no scripted agent to run; add `script:` or choose a model")
        from soong.shared.agents.scripted_model import ScriptedModel  # the library costs half a second

        return ScriptedModel(resolve_script(script))
    return REGISTERED[name](step_id) if name in REGISTERED else provider_model(name)


@lru_cache(maxsize=32)
def provider_model(name: str) -> "Model[Any]":
    """One model a name and process: its HTTP client and connection pool are shared by all runs."""
    from pydantic_ai.exceptions import UserError  # as above
    from pydantic_ai.models import infer_model

    provider = name.partition(":")[0]
    try:
        model = infer_model(name)
    except ImportError as error:
        extra = _EXTRAS.get(provider)
        hint = install_line(extra) if extra else f"install what it names: {error}"
        raise InvalidConfigError(f"the model {name!r} needs a package that is not installed; {hint}") from error
    except UserError as error:
        raise InvalidConfigError(_unusable(name, str(error))) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidConfigError(f"the model {name!r} cannot be used: {type(error).__name__}: {error}") from error
    if provider == "bedrock":
        _send_once(model)
    return model


def _send_once(model: Any) -> None:
    """Turn off the retries of AWS's client, which takes no `max_retries` of a request."""
    service = "bedrock-runtime"
    model.client.meta.events.unregister(f"needs-retry.{service}", unique_id=f"retry-config-{service}")


_VARIABLE = re.compile(r"`([A-Z][A-Z0-9_]{2,})`")
"""The environment variable in the model library's error for a missing key."""


def _is_provider(name: str) -> bool:
    from pydantic_ai.providers import infer_provider_class  # as above

    try:
        infer_provider_class(name)
    except ImportError:
        return True  # known, and its package is not installed here
    except ValueError:
        return name in {"test", "gateway"}
    return True


def _unusable(name: str, words: str) -> str:
    """Return what is wrong, and in whose environment, when the model library refuses a model."""
    variables = tuple(dict.fromkeys(_VARIABLE.findall(words)))
    if variables:
        return (
            f"the model {name!r} needs {' or '.join(variables)} in the environment of the process that runs agents; "
            "set it there, then start the service or the worker again"
        )
    if words.startswith("Unknown model"):
        return f"the model {name!r} is not known; {_suggestion(name)}"
    return f"the model {name!r} cannot be used: {words}"


def _suggestion(name: str) -> str:
    from pydantic_ai.models import known_model_names  # as above

    known = (SCRIPT, *known_model_names())
    same = [each for each in known if each.partition(":")[2] == name]
    near = same or get_close_matches(name, known, 3, cutoff=0.7)
    if near:
        return f"did you mean {' or '.join(map(repr, near[:3]))}?"
    examples = [next(each for each in known if each.startswith(f"{provider}:")) for provider in ("anthropic", "openai")]
    return f"name it as provider:model, for example {' or '.join(examples)}, or 'script'"
