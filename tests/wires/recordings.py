"""Recorded conversations with providers: VCR cassettes from a folder that ``SOONG_RECORDINGS`` names."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import yaml
from botocore.eventstream import EventStreamBuffer

VARIABLE: Final = "SOONG_RECORDINGS"

_FRAMES: Final = "application/vnd.amazon.eventstream"
_WIRES: Final = {
    "openai-chat": re.compile(r"/chat/completions$"),
    "openai-responses": re.compile(r"/responses$"),
    "anthropic": re.compile(r"/v1/messages$"),
    "google": re.compile(r"/models/(?P<model>[^/:]+):(generateContent|streamGenerateContent)$"),
    "bedrock": re.compile(r"/model/(?P<model>[^/]+)/converse(-stream)?$"),
}
"""Where a provider's answer comes from. Every other exchange (files, caches, pages, MCP) is no turn of a model."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One recorded request to a model and its answer, as it went over the wire."""

    wire: str
    model: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_stream(self) -> bool:
        return self.headers["content-type"].startswith(("text/event-stream", _FRAMES))

    def documents(self) -> list[Any]:
        """Return the answer's JSON documents: one, or one for each event of a stream."""
        if self.headers["content-type"] == _FRAMES:
            frames = EventStreamBuffer()
            frames.add_data(self.body)
            return [{one.headers[":event-type"]: json.loads(one.payload)} for one in frames if one.payload]
        text = self.body.decode()
        if not self.is_stream:
            return [json.loads(text)]
        lines = (line.removeprefix("data:").strip() for line in text.splitlines() if line.startswith("data:"))
        return [json.loads(line) for line in lines if line and line != "[DONE]"]


def folder() -> Path | None:
    name = os.environ.get(VARIABLE)
    return Path(name) if name else None


def names() -> list[str]:
    """Return the names of all recordings; none where no folder is named."""
    found = folder()
    return sorted(file.name for file in found.glob("*.yaml")) if found else []


def load(name: str) -> list[Exchange]:
    """Return a recording's exchanges with models, in their order."""
    found = folder()
    assert found is not None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    recorded = yaml.load((found / name).read_text(), loader)  # both are safe loaders
    return list(_exchanges(recorded["interactions"]))


def _exchanges(interactions: list[Any]) -> Iterator[Exchange]:
    for one in interactions:
        request, response = one["request"], one["response"]
        path = str(request["uri"]).partition("?")[0]
        for wire, pattern in _WIRES.items():
            match = pattern.search(path)
            if match is None or request["method"] != "POST":
                continue
            asked = request.get("parsed_body") or {}
            model = match.groupdict().get("model") or asked["model"]
            yield Exchange(
                wire, unquote(model), response["status"]["code"], _headers(response["headers"]), _body(response)
            )


def _headers(recorded: Mapping[str, list[str]]) -> dict[str, str]:
    """Return the headers that tell a client something."""
    kept = {name.lower(): values[0] for name, values in recorded.items()}
    told = {"content-type": kept.get("content-type", "application/json")}
    return told | ({"retry-after": kept["retry-after"]} if "retry-after" in kept else {})


def _body(response: Mapping[str, Any]) -> bytes:
    if "parsed_body" in response:
        return json.dumps(response["parsed_body"], ensure_ascii=False).encode()
    body = response["body"]["string"]
    return body if isinstance(body, bytes) else str(body).encode()
