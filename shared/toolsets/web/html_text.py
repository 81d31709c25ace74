"""Reads HTML and writes Markdown: ``python -P -m soong.shared.toolsets.web.html_text URL < page > text``.

A process of its own, with its memory and time bounded. What a person would not see is left out: scripts, styles,
comments, hidden elements. That is for the size and the sense of the text and no defence: what remains was written by
strangers as well.
"""

import re
import resource
import sys
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin

if TYPE_CHECKING:
    from bs4 import BeautifulSoup, Tag

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
    """Keep links that can be fetched, with their full address; of others, and of pictures, only their words."""
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
    """Read standard input to its end and write the text."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))
    html = sys.stdin.buffer.read().decode("utf-8", "replace")
    sys.stdout.buffer.write(markdown_of(html, sys.argv[1]).encode("utf-8", "replace"))


if __name__ == "__main__":
    main()
