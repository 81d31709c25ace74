"""The terminal that pictures and questions are drawn on: colours and cursor movements are ours, text is inert."""

from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from soong.shared.core.inert import inert
from soong.shared.core.terminal import drawing_stream


class TerminalConsole(Console):
    """Draws on a standard stream. What other code writes to that stream during a live picture is drawn inert, too."""

    def __init__(self, stream: TextIO) -> None:
        # A live picture puts a proxy before the stream, which would read our colours as text of others.
        below = getattr(stream, "rich_proxied_file", stream)
        super().__init__(file=drawing_stream(below), highlight=False, markup=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield what is drawn, every text of it inert; controls are those of the drawing itself."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=inert(segment.text))
