"""A page of a text by lines, and the result that shows it (NET-01); as code.read_file pages a file."""

from typing import Final

from soong.shared.core.value import Value
from soong.shared.sandbox.terminal_text import inert_text
from soong.shared.tools.result import TextBlock, ToolResult
from soong.shared.toolsets.web.body import ResponseBody
from soong.shared.toolsets.web.document import WebDocument

DEFAULT_LINES: Final = 200
MAX_LINES: Final = 1000
MAX_START_LINE: Final = 2**53 - 1
MAX_PAGE_CHARS: Final = 10_000
_MAX_LINE_CHARS: Final = 2_000
"""Of a line; a longer one is continued on the next, so that every character is on some page."""


class TextPage(Value):
    """Some lines of a text, counted from 1."""

    lines: tuple[str, ...]
    start: int
    total: int
    whole: str

    @classmethod
    def of(cls, text: str, start: int, max_lines: int) -> "TextPage":
        """Cut a page out of a text: at most ``max_lines``, and as many as fit."""
        lines = _lines(text)
        page: list[str] = []
        size = 0
        for line in lines[start - 1 : start - 1 + max_lines]:
            size += len(line) + 1
            if page and size > MAX_PAGE_CHARS:
                break
            page.append(line)
        return cls(tuple(page), start, len(lines), "\n".join(lines))

    @property
    def end(self) -> int:
        return self.start + len(self.lines) - 1

    def result(self, tool_call_id: str, url: str, body: ResponseBody, document: WebDocument) -> ToolResult:
        """Return the page with where it comes from; with a first page that is not all of it, the full text is kept."""
        is_kept = self.start == 1 and self.end < self.total
        place = (
            f"lines {self.start}-{self.end} of {self.total}" if self.lines else f"no line {self.start}: {self.total}"
        )
        head = f"{body.url} ({document.media_type}, {place})"
        more = f"\n[continue with start_line={self.end + 1}]" if self.lines and self.end < self.total else ""
        text = f"{head}\n\n" + "\n".join(self.lines) + more
        original = self.whole.encode("utf-8") if is_kept else b""
        return ToolResult(
            tool_call_id,
            (TextBlock(text, original=original),),
            head,
            {
                "url": url,
                "final_url": body.url,
                "status": body.status,
                "media_type": document.media_type,
                "charset": document.charset,
                "bytes": len(body.data),
                "start_line": self.start,
                "end_line": self.end,
                "total_lines": self.total,
                "has_more": self.end < self.total,
            },
        )


def _lines(text: str) -> list[str]:
    found = []
    for line in inert_text(text).splitlines():
        found += [line[at : at + _MAX_LINE_CHARS] for at in range(0, len(line), _MAX_LINE_CHARS)] or [""]
    return found
