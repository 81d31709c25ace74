"""docs/llms.txt: each page of the documentation with its first sentence, for a reader that is a model (llmstxt.org)."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.architecture.site import PAGES
from tests.spec_document import ROOT

_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_HEAD = """# Soong

> Run DAGs of AI agents and Python functions on Celery workers. Every step is a durable row. Every permission request
> goes to one approver, and its answer is signed.

The guide is what a newcomer reads. Paths are relative to this file.
"""


def llms_text() -> str:
    """Return the pages of the site in the order of its navigation."""
    sections = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    parts = [_HEAD]
    for section in sections:
        ((title, below),) = section.items()
        lines = [f"- [{name}]({_address(page)}): {_first_sentence(page)}" for name, page in _pages(title, below)]
        parts.append("\n".join((f"## {title}", "", *lines, "")))
    return "\n".join(parts)


def _pages(title: str, part: Any) -> Iterator[tuple[str, str]]:
    if isinstance(part, str) and "/0" not in part:
        yield title, part
    for each in part if isinstance(part, list) else ():
        if isinstance(each, dict):
            ((name, below),) = each.items()
            yield from _pages(name, below)


def _address(page: str) -> str:
    sources = {name: source for source, name in PAGES.items()}
    return f"../{sources[page]}" if page in sources else page


def _first_sentence(page: str) -> str:
    text = (ROOT / "docs" / _address(page)).read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    paragraphs = (part.strip() for part in prose.split("\n\n"))
    first = next((part for part in paragraphs if part[:1] not in {"", "#", "<", "|", "!"}), "")
    plain = " ".join(_LINK.sub(r"\1", first).replace("**", "").split())
    return re.split(r"(?<=\.)\s", plain)[0]
