"""From the bytes of an answer to a text that a model reads: what they are, in which charset, HTML as Markdown.

HTML is read in a process of its own (:mod:`soong.shared.toolsets.web.html_text`): a page can be built to need hours or
all memory, and a thread cannot be ended.
"""

import codecs
import os
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Final

from soong.shared.core.value import Value
from soong.shared.sandbox.command import ChildCommand
from soong.shared.sandbox.process import run
from soong.shared.sandbox.threads import run_blocking
from soong.shared.tools.result import ErrorType, ToolError
from soong.shared.toolsets.web import html_text
from soong.shared.toolsets.web.body import MAX_BODY_BYTES, ResponseBody

CONVERSION: Final = timedelta(seconds=20)
_HTML: Final = ("text/html", "application/xhtml+xml")
_TEXT: Final = re.compile(
    r"text/.*|application/(?:.*\+)?(?:json|xml|yaml|toml)|application/(?:javascript|ecmascript|x-sh|x-yaml|json5|ndjson"
    r"|jsonl|x-ndjson|sql|graphql|rtf)|image/svg\+xml|message/.*"
)
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_META: Final = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([A-Za-z0-9._:-]{1,40})", re.IGNORECASE)
_META_WITHIN: Final = 2048
_NEVER: Final = frozenset({"utf-7", "idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined"})
"""Codecs that give one text several spellings, or are none of a page."""
_FALLBACK: Final = "utf-8"


class WebDocument(Value):
    """A text. ``media_type`` is what it was taken for."""

    text: str
    media_type: str
    charset: str


async def readable_text(body: ResponseBody) -> WebDocument:
    """Return the text of an answer.

    Raises:
        ToolError: it is not a text, or HTML that cannot be read within its time and memory.
    """
    media_type = _type_of(body)
    charset, text = await run_blocking(lambda _stop: _decoded(body, is_html=media_type in _HTML))
    if media_type in _HTML:
        text = await _markdown(text, body.url)
    return WebDocument(text, media_type, charset)


def _type_of(body: ResponseBody) -> str:
    """Return what the answer is: by its header, else by its beginning.

    Raises:
        ToolError: it is not a text.
    """
    head = body.data[:1024].lstrip().lower()
    declared = body.media_type
    if not declared:
        declared = "text/html" if head.startswith((b"<!doctype html", b"<html")) else "text/plain"
    has_mark = body.data.startswith(tuple(mark for mark, _ in _MARKS))
    is_wide = body.charset.lower().startswith(("utf-16", "utf-32", "utf16", "utf32"))
    if declared in _HTML or _TEXT.fullmatch(declared):
        if has_mark or is_wide or b"\0" not in body.data[:8192]:
            return declared
        declared = f"{declared} with NUL bytes"
    hint = "only text can be fetched; ask the user for another way to get the file"
    problem = f"{body.url[:500]} is not a text: {declared[:100]}, {len(body.data)} bytes"
    raise ToolError(ErrorType.BINARY_FILE, problem, hint=hint)


def _decoded(body: ResponseBody, *, is_html: bool) -> tuple[str, str]:
    """Return charset and text: a byte order mark beats the header, the header what an HTML page declares."""
    for mark, charset in _MARKS:
        if body.data.startswith(mark):
            return charset, body.data[len(mark) :].decode(charset, "replace")
    found = _META.search(body.data[:_META_WITHIN]) if is_html else None
    said = (body.charset, found[1].decode("ascii") if found else "", _FALLBACK)
    charset = next(name for name in map(_known, said) if name)
    return charset, body.data.decode(charset, "replace")


def _known(charset: str) -> str:
    """Return the name of a charset as Python has it; empty for one that is none."""
    try:
        found = codecs.lookup(charset.strip()) if charset.strip() else None
    except (LookupError, ValueError):
        return ""
    is_text = found is not None and getattr(found, "_is_text_encoding", True)
    return found.name if found is not None and is_text and found.name not in _NEVER else ""


async def _markdown(text: str, url: str) -> str:
    folder = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    try:
        ended = await run(
            ChildCommand(
                argv=(sys.executable, "-P", "-m", html_text.__name__, url),
                cwd=folder,
                cwd_path=Path("/"),
                env={},
                timeout=CONVERSION,
                max_stdout_bytes=4 * MAX_BODY_BYTES,
                stdin=text.encode("utf-8", "replace"),
            )
        )
    finally:
        os.close(folder)
    if ended.ended == "exited" and ended.code == 0:
        return ended.stdout.decode("utf-8", "replace")
    hint = "fetch another form of it, such as its plain text or a feed"
    raise ToolError(ErrorType.LIMIT_EXCEEDED, f"the HTML of {url[:500]} takes too long or too much to read", hint=hint)
