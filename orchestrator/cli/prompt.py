"""The terminal as responder: shows one question with all that is needed to decide, and reads the answer (PER-13).

Three answers and no others; the other keys only look. Everything that comes from a run is shown inert. What had been
typed before the question stood there answers nothing, and the end of the input is not an answer.
"""

import asyncio
import os
import sys
import termios
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from soong.orchestrator.approvals.full_input import FullInput, read_full_input
from soong.orchestrator.approvals.question_facts import VALUE_CHARS, facts_of
from soong.orchestrator.approvals.remote_responder import ResponderClosedError, SkipQuestionError
from soong.orchestrator.cli.console import cut, folded, visible
from soong.orchestrator.cli.question_text import (
    GOES_ON,
    MARGIN,
    age_text,
    input_lines,
    quoted,
    short_id,
)
from soong.orchestrator.cli.step_words import Document
from soong.orchestrator.client.program import program
from soong.orchestrator.schemas.approval import ApprovalSchema
from soong.shared.core.clock import Clock, SystemClock
from soong.shared.core.errors import SoongError
from soong.shared.core.inert import inert
from soong.shared.core.terminal import drawing_stream
from soong.shared.core.value import Value
from soong.shared.engine.runs.store import RunStore
from soong.shared.permissions.request import (
    Choice,
    PermissionDecision,
    PermissionRequest,
    Question,
    RequestState,
    offered_choices,
)

LEAST_PREVIEW_ROWS: Final = 6
OTHER_ROWS: Final = 20
"""The rows that a question needs in addition to its preview: facts, frame and choices, all visible at once."""
LISTED: Final = 5
"""Questions that are listed above the one that is shown; `l` lists all."""
MAX_FULL_LINES: Final = 2_000
NARROW: Final = 60
"""Below this width values begin in the row of their names."""
BORDER: Final = 4
_SERVERS_LABELS: Final = {
    Choice.ALLOW_ONCE: "accept (the words after it are the answer)",
    Choice.DENY: "decline (a reason may follow)",
}
"""What the answers to a question of an MCP server are called."""
_STYLES = {"+": "green", "-": "red", "@": "cyan"}
HELP: Final = """\
  1 a once      allow this call, once
  2 s session   allow this tool here for the rest of the session, where offered
  3 d deny      deny; words after it are the reason, which the agent receives
  f full        show the full input; no answer
  l list        list all questions that wait; no answer
  n next        show another question first; no answer
  Ctrl-C        pause the task; the question stays open"""
ReadFullInput = Callable[[PermissionRequest], Awaitable[FullInput]]
"""Reads a call's full input. May raise SoongError."""
ReadLine = Callable[[Callable[[], None]], Awaitable[str]]
"""Reads a line that is typed after the mark appears; it is given what shows the mark."""


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


@dataclass(slots=True)
class TerminalPrompt:
    """A permission callback that asks the person at the terminal. ``hold`` keeps the live display away meanwhile.

    ``whole`` reads what the question has only in part; without it the preview is all there is. A remote responder
    tells ``take_waiting`` what else waits; only then can another question be asked for.
    """

    console: Console
    hold: Callable[[bool], None]
    read_line: ReadLine = field(default_factory=lambda: Keyboard().line)
    whole: ReadFullInput | None = None
    clock: Clock = field(default_factory=SystemClock)
    _waiting: Sequence[PermissionRequest] = ()

    def take_waiting(self, waiting: Sequence[PermissionRequest]) -> None:
        """Update the waiting questions, oldest first; the screen does not change."""
        self._waiting = tuple(waiting)

    async def __call__(self, request: PermissionRequest) -> PermissionDecision:
        """Ask until there is an answer.

        Raises:
            SkipQuestionError: the person wants to see another question first.
            ResponderClosedError: standard input ended.
        """
        self.hold(True)
        try:
            self._show(request)
            while True:
                self.console.print(choices(request, self._others(request), self.console.width))
                decision = await self._take(await self.read_line(self._mark), request)
                if decision is not None:
                    self.console.print(Text(f"  answered: {decision.choice.value.replace('_', ' ')}\n", style="dim"))
                    return decision
        except asyncio.CancelledError:
            self.console.print(Text("\n  no answer was given here", style="dim"))
            raise
        finally:
            self.hold(False)

    def _mark(self) -> None:
        self.console.print(Text("  > ", style="bold"), end="")

    def _show(self, request: PermissionRequest) -> None:
        if self._others(request):
            self.console.print(head(self._waiting, request, self.clock.now_us(), self.console.width, LISTED))
        room = max(LEAST_PREVIEW_ROWS, self.console.height - OTHER_ROWS)
        self.console.print(question(request, preview_of(request, room=room, width=self.console.width - BORDER)))

    async def _take(self, line: str, request: PermissionRequest) -> PermissionDecision | None:
        """Do what a line says; return the answer if it is one."""
        decision = read_decision(line, request)
        if decision is not None:
            return decision
        match line.strip().lower():
            case "f" | "full" | "v" | "view":
                await self._show_full_input(request)
            case "l" | "list":
                waiting = self._waiting or (request,)
                self.console.print(head(waiting, request, self.clock.now_us(), self.console.width, len(waiting)))
            case "n" | "next":
                self._leave(request)
            case "?" | "h" | "help":
                self.console.print(Text(HELP, style="dim"))
            case "":
                pass
            case word:
                said = visible(word, limit=40)
                choices = "1, 2 or 3" if request.offers_session else "1 or 3"
                self.console.print(Text(f"  {said!r} is not an answer; type {choices}, or ? for help", style="dim"))
        return None

    def _leave(self, request: PermissionRequest) -> None:
        """Raises: SkipQuestionError."""
        if self._others(request):
            raise SkipQuestionError
        self.console.print(Text("  no other question waits; this one is answered by 1, 2 or 3", style="dim"))

    async def _show_full_input(self, request: PermissionRequest) -> None:
        columns = self.console.width
        lines = quoted(request.preview, columns=columns) if request.preview else []
        if self.whole is not None:
            try:
                whole = await self.whole(request)
                lines += input_lines(whole.input, whole.note, columns=columns)
            except SoongError as error:
                lines.append(f"  the full input cannot be read now: {visible(str(error))}")
        for line in lines[:MAX_FULL_LINES]:
            self.console.print(Text(line, style=_STYLES.get(line.removeprefix(MARGIN)[:1], ""), overflow="fold"))
        if len(lines) > MAX_FULL_LINES:
            show = f"{program()} approvals show {short_id(request.id)} --full"
            more = f"… {len(lines) - MAX_FULL_LINES} lines more: {show}"
            self.console.print(Text(f"  {more}", style="bold"))

    def _others(self, request: PermissionRequest) -> int:
        return sum(other.id != request.id for other in self._waiting)


class Keyboard:
    """Reads lines of standard input without blocking the loop; a read that is cancelled leaves nothing behind."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor

    async def line(self, show_mark: Callable[[], None]) -> str:
        """Return the next line that is typed at the mark. Raises: ResponderClosedError at the end of input."""
        with suppress(termios.error):
            # Whatever was typed before was not typed at this question; what is typed once the mark stands counts.
            termios.tcflush(self._descriptor, termios.TCIFLUSH)
        show_mark()
        loop = asyncio.get_running_loop()
        typed: asyncio.Future[bytes] = loop.create_future()
        with self._unblocked() as descriptor:

            def read() -> None:
                if not typed.done():
                    try:
                        typed.set_result(os.read(descriptor, 4096))
                    except BlockingIOError:  # a Ctrl-C has thrown away what was typed before it
                        return
                    except OSError:  # the terminal is gone
                        typed.set_result(b"")

            loop.add_reader(descriptor, read)
            try:
                text = await typed
            finally:
                loop.remove_reader(descriptor)
        if not text:
            raise ResponderClosedError("standard input ended: nothing more is answered here")
        return text.decode(errors="replace").strip()

    @contextmanager
    def _unblocked(self) -> Iterator[int]:
        """Open the terminal once more, so that reading never waits: the shell's own descriptor must keep waiting."""
        try:
            descriptor = os.open(os.ttyname(self._descriptor), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:  # no terminal, or one of another namespace: what can be read there stays readable
            yield self._descriptor
            return
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def document_of(request: PermissionRequest) -> Document:
    """Return a question that waits as its document."""
    return ApprovalSchema.of_question(Question(request, RequestState.PENDING)).model_dump()


def full_input_reader(store: RunStore) -> Callable[[PermissionRequest], Awaitable[FullInput]]:
    """Return what reads a call's full input from the rows, for a prompt."""

    async def read(request: PermissionRequest) -> FullInput:
        return await read_full_input(store, request)

    return read


def read_decision(line: str, request: PermissionRequest) -> PermissionDecision | None:
    """Read an answer: a choice by number, letter or name, and after it a reason; None when it is none of those."""
    word, _, reason = line.strip().partition(" ")
    for choice, names in _names(request):
        if word.lower() in names:
            return PermissionDecision(choice, reason.strip())
    return None


def head(waiting: Sequence[PermissionRequest], shown: PermissionRequest, now_us: int, columns: int, most: int) -> Text:
    """Return how many questions wait, and the first of them a line each, with a mark at the one that is shown."""
    count = "1 question waits" if len(waiting) == 1 else f"{len(waiting)} questions wait"
    text = Text(f"{count}\n", style="bold")
    for request in waiting[:most]:
        mark, style = ("> ", "bold") if request.id == shown.id else ("  ", "dim")
        age = age_text((now_us - request.created_us) / 1_000_000)
        step = request.identity.step_key.partition("/")[2]
        row = visible(f"{short_id(request.id)}  {age}  {step}  {request.tool}  {request.shown}", limit=VALUE_CHARS)
        text.append(f"{mark}{cut(row, columns - 2)}\n", style=style)
    if len(waiting) > most:
        text.append(f"  … and {len(waiting) - most} more; l lists them\n", style="dim")
    return text


def question(request: PermissionRequest, preview: Sequence[Text]) -> RenderableType:
    """Return the question as it is shown, with as much of the preview as is given."""
    parts: list[RenderableType] = [_Facts(tuple(facts_of(document_of(request))))]
    if preview:
        parts += [Text(), *preview]
    style = "red" if request.is_dangerous or request.risk in ("execute", "critical") else "yellow"
    what = "asks you" if request.takes_words else "asks for permission"
    title = Text(f" {visible(request.tool, limit=80)} {what} ", style=f"bold {style}")
    return Panel(Group(*parts), title=title, title_align="left", border_style=style)


class _Facts(Value):
    """Names and values, in one row where the terminal is wide enough."""

    facts: tuple[tuple[str, str], ...]

    def __rich_console__(self, console: Console, options: object) -> Iterator[RenderableType]:
        shown = [(name, visible(value, limit=VALUE_CHARS)) for name, value in self.facts if value]
        if console.width < NARROW:
            for name, value in shown:
                yield Text.assemble((f"{name}: ", "dim"), value, overflow="fold")
            return
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in shown:
            table.add_row(visible(name, limit=20), Text(value))
        yield table


def preview_of(request: PermissionRequest, *, room: int | None = None, width: int = 80) -> list[Text]:
    """Return the preview's lines, as many as fit into ``room`` rows (None: all), with a note on the rest."""
    lines = inert(request.preview).splitlines()
    styled = [Text(line, style=_STYLES.get(line[:1], ""), overflow="fold") for line in lines]
    if room is None:
        return styled
    used = 0
    for number, line in enumerate(lines):
        used += max(1, -(-cell_len(line) // max(1, width)))
        if used > room:
            rest = f"… {len(lines) - number} of {len(lines)} lines more, {len(request.preview)} characters in all"
            return [*styled[:number], Text(f"{rest}: f shows them", style="bold")]
    return styled


def choices(request: PermissionRequest, others: int = 0, columns: int = 80) -> Text:
    """Return what may be answered, a line each, and the keys that only look."""
    lines: list[str] = []
    for choice in offered_choices(may_grant=request.offers_session):
        key, *_ = choice.traits.words
        scope = f": {visible(request.scope)}" if choice.is_grant else ""  # all of it, or it would not be offered
        label = _SERVERS_LABELS.get(choice, "") if request.takes_words else ""
        first, *more = folded(f"[{key}] {label or choice.traits.label}{scope}", columns - len(GOES_ON))
        lines += [f"  {first}", *(f"    {GOES_ON}{piece}" for line in more for piece in folded(line, columns - 8))]
    keys = ["f full", *(["l list", "n next"] if others else []), "? help"]
    return Text("\n".join([*lines, f"  {'  '.join(keys)}"]), style="bold")


def _names(request: PermissionRequest) -> Iterator[tuple[Choice, tuple[str, ...]]]:
    for choice in offered_choices(may_grant=request.offers_session):
        yield choice, (*choice.traits.words, choice.value)


def terminal_console() -> Console:
    """Return the console that questions are shown on: standard output, where the live display is."""
    return TerminalConsole(sys.stdout)
