"""From the bytes of an answer to a text for a model: their type, their charset, HTML as Markdown.

HTML is read in a process of its own (:mod:`soong.shared.toolsets.web.document`): a page can be built to need hours or
all memory, and a thread cannot be ended.
"""

import codecs
import os
import re
import resource
import sys
import zlib
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin

from soong.shared.core.value import Value
from soong.shared.sandbox.command import ChildCommand
from soong.shared.sandbox.process import run
from soong.shared.sandbox.threads import run_blocking
from soong.shared.tools.result import ErrorType, ToolError

if TYPE_CHECKING:
    import httpx2
    from bs4 import BeautifulSoup, Tag


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

MAX_MEMORY_BYTES: Final = 1024**3
MAX_SECONDS: Final = 20
_LEFT_OUT: Final = (
    *("script", "style", "noscript", "template", "iframe", "object", "embed", "svg", "canvas", "audio", "video"),
    *("input", "select", "textarea", "button", "dialog", "meta", "link", "head", "title"),
)
_HIDDEN: Final = re.compile(
    r"display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse)|opacity\s*:\s*0(?:\.0*)?\s*(?:;|!|$)"
    r"|font-size\s*:\s*0(?:\.0*)?\s*(?:[a-z%]+)?\s*(?:;|!|$)|clip-path\s*:\s*inset\(\s*(?:50|100)%",
    re.IGNORECASE,
)
_BLANK: Final = re.compile(r"\n[ \t]*(?:\n[ \t]*)+\n")

MAX_BODY_BYTES: Final = 5 * 1024 * 1024
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS
_PIECE_BYTES: Final = 64 * 1024


class WebDocument(Value):
    """A text. ``media_type`` is what it was taken for."""

    text: str
    media_type: str
    charset: str


class ResponseBody(Value):
    """The final answer of a server. ``media_type`` is in lower case, ``charset`` as received; both may be empty."""

    url: str
    status: int
    media_type: str
    charset: str
    data: bytes


async def readable_text(body: ResponseBody) -> WebDocument:
    """Return the text of an answer.
    Raises: ToolError, it is not a text, or HTML that cannot be read within its time and memory.
    """
    media_type = _type_of(body)
    charset, text = await run_blocking(lambda _stop: _decoded(body, is_html=media_type in _HTML))
    if media_type in _HTML:
        text = await _markdown(text, body.url)
    return WebDocument(text, media_type, charset)


def _type_of(body: ResponseBody) -> str:
    """Return what the answer is: by its header, else by its beginning. Raises: ToolError, it is not a text."""
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
                argv=(sys.executable, "-P", "-m", __name__, url),
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


def markdown_of(html: str, url: str) -> str:
    """Return the visible text of a page as Markdown, its links made absolute."""
    from bs4 import BeautifulSoup, Comment

    soup = BeautifulSoup(html, "html.parser")
    title = soup.title.get_text(" ", strip=True) if soup.title else ""
    for comment in soup.find_all(string=lambda text: isinstance(text, Comment)):
        comment.extract()
    for element in soup.find_all(_is_left_out):
        if not element.decomposed:
            element.decompose()
    _settle_links(soup, url)
    text = _BLANK.sub("\n\n", _converted(soup)).strip()
    return f"# {title}\n\n{text}" if title and not text.startswith("# ") else text


def _converted(soup: "BeautifulSoup") -> str:
    from markdownify import MarkdownConverter

    try:
        return str(MarkdownConverter(heading_style="ATX", bullets="-", escape_misc=False).convert_soup(soup))
    except RecursionError:  # nested deeper than any page that is meant to be read
        return str(soup.get_text("\n", strip=True))


def _is_left_out(element: "Tag") -> bool:
    style = element.get("style")
    is_hidden = element.has_attr("hidden") or element.get("aria-hidden") == "true"
    return element.name in _LEFT_OUT or is_hidden or (isinstance(style, str) and _HIDDEN.search(style) is not None)


def _settle_links(soup: "BeautifulSoup", url: str) -> None:
    """Keep links that can be fetched, with their full address; keep only the words of others, and of pictures."""
    base = soup.find("base")
    start = urljoin(url, str(base["href"])) if base is not None and base.get("href") else url
    for link in soup.find_all("a"):
        target = _joined(start, str(link.get("href", "")))
        if target.startswith(("http://", "https://")):
            link.attrs = {"href": target}
        else:
            link.unwrap()
    for picture in soup.find_all("img"):
        picture.replace_with(f"[image: {picture['alt']}]" if picture.get("alt") else "")


def _joined(start: str, target: str) -> str:
    try:
        return urljoin(start, target.strip())
    except ValueError:
        return ""


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))
    html = sys.stdin.buffer.read().decode("utf-8", "replace")
    sys.stdout.buffer.write(markdown_of(html, sys.argv[1]).encode("utf-8", "replace"))


if __name__ == "__main__":
    main()


async def read_body(response: "httpx2.Response", max_bytes: int) -> ResponseBody:
    """Read an answer to its end.
    Raises: ToolError, it is longer than ``max_bytes``, packed or unpacked, or packed in a way that was not asked for.
    """
    packing = response.headers.get("content-encoding", "").strip().lower()
    unpacker = None if packing in ("", "identity") else _Unpacker(packing, max_bytes)
    received, data = 0, bytearray()
    async for piece in response.aiter_raw(_PIECE_BYTES):
        received += len(piece)
        data += piece if unpacker is None else unpacker.unpacked(piece)
        if max(received, len(data)) > max_bytes:
            raise too_long(str(response.url), max_bytes)
    media_type, _, parameters = response.headers.get("content-type", "").partition(";")
    charset = response.charset_encoding if "charset" in parameters.lower() else None
    return ResponseBody(str(response.url), response.status_code, media_type.strip().lower(), charset or "", bytes(data))


def too_long(url: str, max_bytes: int) -> ToolError:
    hint = "fetch a page of it that the server offers, or its parts"
    return ToolError(ErrorType.LIMIT_EXCEEDED, f"{url[:500]} has more than {max_bytes} bytes", hint=hint)


class _Unpacker:
    """Unpacks piece by piece, and never more than one byte beyond the limit: a small answer may hold a huge one."""

    def __init__(self, packing: str, max_bytes: int) -> None:
        if packing not in ("gzip", "x-gzip", "deflate"):
            problem = f"the answer is packed as {packing[:80]!r}, which was not asked for"
            raise ToolError(ErrorType.EXECUTION_FAILED, problem)
        self._inflating = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._room = max_bytes + 1
        self._is_raw = packing == "deflate"

    def unpacked(self, piece: bytes) -> bytes:
        try:
            data = self._inflating.decompress(piece, self._room)
        except zlib.error as error:
            if not self._is_raw:
                raise ToolError(ErrorType.EXECUTION_FAILED, f"the answer cannot be unpacked: {error}") from error
            # Some servers send deflate without the header that it should have.
            self._is_raw, self._inflating = False, zlib.decompressobj(-zlib.MAX_WBITS)
            return self.unpacked(piece)
        self._is_raw = False
        self._room -= len(data)
        return data
