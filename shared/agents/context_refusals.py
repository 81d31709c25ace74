"""How servers refuse a request that is longer than what their model reads.

Owns the table, by the server that words it so; what the model library knows itself (OpenAI, Anthropic, Google, Bedrock,
Mistral) is here again as proxies repeat it.
"""

import re
from typing import Final

TOO_LARGE: Final = 413
_STATUSES: Final = frozenset({400, 413, 422, 500})

WORDS: Final = {
    "Anthropic, Fireworks": r"prompt is too long",
    "Azure and OpenAI": r"context_length_exceeded|maximum context length|exceeds? the context window",
    "Bedrock": r"input is too long|input tokens exceeded",
    "Cohere": r"too many tokens",
    "DashScope": r"range of input length should be",
    "Gemini": r"input token count.{0,80}exceeds|exceeds the maximum number of tokens",
    "GitHub Copilot": r"prompt token count.{0,80}exceeds",
    "Groq": r"reduce (your message size|the length of the messages)|request too large for model",
    "LiteLLM": r"contextwindowexceedederror",
    "llama.cpp": r"exceed_context_size|exceeds the available context size|context size has been exceeded",
    "LM Studio": r"trying to keep the first|context the overflows|greater than the context length",
    "MiniMax": r"context window exceeds limit",
    "Mistral": r"too large for model with .{0,40}maximum context length",
    "Moonshot": r"exceeded model token limit",
    "Ollama": r"input length exceeds|exceeds? (the )?(maximum )?context length|prompt too long",
    "SGLang": r"longer than the model'?s context length|exceeds the (model'?s )?maximum (allowed )?length",
    "Text Generation Inference": r"inputs` (tokens|must have less than)|input validation error.{0,80}tokens",
    "vLLM": r"longer than the maximum model length|maximum model length",
    "xAI": r"maximum prompt length",
    "Z.ai": r"prompt exceeds max(imum)? length",
}
"""Patterns in lower case, by the server."""

_ANY: Final = re.compile("|".join(f"(?:{pattern})" for pattern in WORDS.values()), re.DOTALL)


def is_too_long(status: int, words: str) -> bool:
    """Say whether a server refuses a request for its length."""
    return status == TOO_LARGE or (status in _STATUSES and _ANY.search(words.lower()) is not None)
