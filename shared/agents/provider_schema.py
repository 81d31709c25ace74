"""The limits of a provider and a model on a run's tools, checked before the first request (SCH-04, REG-04).

The table holds limits that providers document or answer with, each with its source. An unstated limit is not guessed:
the provider enforces it. Our schemas are of a subset that every provider takes (SCH-01) and are never sent as *strict*,
so the limits of strict schemas (nesting, optional parameters, enum sizes) do not meet them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic_ai.exceptions import AgentRunError, UserError
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel

from soong.shared.core.errors import InvalidToolError, SoongError
from soong.shared.core.value import Value
from soong.shared.tools.definition import ToolDefinition
from soong.shared.tools.naming import PROVIDER_MAX_CHARS, PROVIDER_PATTERN, NameTable

SCRIPTED: Final = "soong"
"""The system of the scripted model: it takes everything."""


class SchemaUnsupportedError(SoongError):
    """The run's tools or its output schema cannot be sent to the model; ``tool`` is empty when it is about all."""

    def __init__(self, model: str, problem: str, *, tool: str = "") -> None:
        self.tool = tool
        about = f"the tool {tool!r}" if tool else "the run's tools"
        super().__init__(f"the model {model!r} cannot take {about}: {problem}")


class ProviderLimits(Value):
    """The limits of one provider. ``max_tools`` None: it states no number. ``source`` is where they are stated."""

    source: str
    name_pattern: str = PROVIDER_PATTERN
    name_max_chars: int = PROVIDER_MAX_CHARS
    max_tools: int | None = None


_OPENAI: Final = ProviderLimits(
    "OpenAI API reference, Create chat completion: function.name (a-z, A-Z, 0-9, underscores, dashes, at most 64), "
    "tools (at most 128); the 1,024 characters of a description are enforced no more since May 2025",
    max_tools=128,
)
_GEMINI_NAME: Final = r"[a-zA-Z_][a-zA-Z0-9_-]*"  # dots and colons are taken too, but we have no use for them

LIMITS: Final[Mapping[str, ProviderLimits]] = {
    "openai": _OPENAI,
    "azure": _OPENAI,
    "anthropic": ProviderLimits(
        "platform.claude.com/docs/en/agents-and-tools/tool-use/define-tools: name ^[a-zA-Z0-9_-]{1,128}$",
        name_max_chars=128,
    ),
    "bedrock": ProviderLimits(
        "docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ToolSpecification.html: [a-zA-Z0-9_-]+, 1 to 64"
    ),
    "google": ProviderLimits(
        "ai.google.dev/api/caching#FunctionDeclaration: name of at most 64; the API's answer: at most 512 function "
        "declarations can be specified",
        name_pattern=_GEMINI_NAME,
        max_tools=512,
    ),
    "google-cloud": ProviderLimits(
        "googleapis GoogleCloudAiplatformV1FunctionDeclaration: starts with a letter or underscore, at most 64; 512 "
        "function declarations",
        name_pattern=_GEMINI_NAME,
        max_tools=512,
    ),
    "mistral": ProviderLimits("Mistral API, Function: a-z, A-Z, 0-9, underscores and dashes, at most 64"),
}
"""Limits by the name that Pydantic AI gives a provider."""

UNKNOWN: Final = ProviderLimits("the narrowest names of those above: Ollama and OpenAI-compatible servers state none")


def limits_of(model: Model[Any]) -> ProviderLimits:
    """Return the limits of a model's provider; for a fallback model those that fit every member."""
    found = [LIMITS.get(each.canonical_system, UNKNOWN) for each in _members(model)]
    if len(found) == 1:
        return found[0]
    counts = [limits.max_tools for limits in found if limits.max_tools is not None]
    patterns = dict.fromkeys(limits.name_pattern for limits in found)
    *others, last = patterns
    return ProviderLimits(
        "; ".join(dict.fromkeys(limits.source for limits in found)),
        "".join(rf"(?=(?:{pattern})\Z)" for pattern in others) + last,
        min(limits.name_max_chars for limits in found),
        min(counts, default=None),
    )


def names_for(model: Model[Any], tools: Sequence[ToolDefinition], *, has_fallbacks: bool = False) -> NameTable:
    """Return the run's names in the provider's alphabet and length; with fallbacks, in those of every provider.
    Raises: SchemaUnsupportedError, a name cannot be written in it.
    """
    limits = UNKNOWN if has_fallbacks else limits_of(model)
    try:
        names = tuple(tool.name for tool in tools)
        return NameTable(names, pattern=limits.name_pattern, max_length=limits.name_max_chars)
    except InvalidToolError as error:
        raise SchemaUnsupportedError(model.model_name, error.problem, tool=error.tool) from error


def check_offer(model: Model[Any], parameters: ModelRequestParameters, names: NameTable) -> None:
    """Find out whether a model can take what a run will offer it, without asking the provider.
    Raises: SchemaUnsupportedError, names the tool, where it is about one, and the reason.
    """
    if model.system == SCRIPTED:
        return
    for member in _members(model):
        most = LIMITS.get(member.canonical_system, UNKNOWN).max_tools
        count = len(parameters.function_tools) + len(parameters.output_tools)
        if most is not None and count > most:
            problem = f"there are {count}, the final result's among them, and {member.system} takes at most {most}"
            raise SchemaUnsupportedError(member.model_name, f"{problem}; allow fewer tools")
        _check_profile(member, parameters)
        _check_prepared(member, parameters, names)


def _members(model: Model[Any]) -> Iterator[Model[Any]]:
    """Yield the models that may be sent the request: a fallback model's own, looked for behind wrappers too."""
    inner = model
    while isinstance(inner, WrapperModel):
        inner = inner.wrapped
    if not isinstance(inner, FallbackModel):
        yield model
        return
    for each in inner.models:
        yield from _members(each)


def _check_profile(model: Model[Any], parameters: ModelRequestParameters) -> None:
    if model.profile.get("supports_tools", True):
        return
    if parameters.output_tools:
        raise SchemaUnsupportedError(model.model_name, "it calls no tools, and the step's output schema needs one")
    if parameters.function_tools:
        problem = f"it calls no tools, and the run has {len(parameters.function_tools)}; allow none, or choose another"
        raise SchemaUnsupportedError(model.model_name, problem)


def _check_prepared(model: Model[Any], parameters: ModelRequestParameters, names: NameTable) -> None:
    """Let Pydantic AI prepare the request as it will before each call; one tool at a time where that fails."""
    try:
        model.prepare_request(None, parameters)
    except (UserError, AgentRunError) as error:
        raise SchemaUnsupportedError(model.model_name, str(error), tool=_culprit(model, parameters, names)) from error


def _culprit(model: Model[Any], parameters: ModelRequestParameters, names: NameTable) -> str:
    for tool in parameters.function_tools:
        try:
            model.prepare_request(None, ModelRequestParameters(function_tools=[tool]))
        except (UserError, AgentRunError):
            return names.to_canonical(tool.name)
    return ""
