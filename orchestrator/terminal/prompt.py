"""The terminal as responder: shows one question with all that is needed to decide, and reads the answer (PER-13).

Three answers and no others; the other keys only show. Everything that comes from a run is shown inert. Input typed
before the question is shown answers nothing, and the end of the input is not an answer.
"""

import asyncio
import os
import sys
import termios
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from soong.orchestrator.approvals.full_input import VALUE_CHARS, facts_of
from soong.orchestrator.client.program import program
from soong.orchestrator.terminal.api import Api
from soong.orchestrator.terminal.console import cut, folded, short_id, visible
from soong.orchestrator.terminal.question_text import GOES_ON, MARGIN, age_text, aligned, input_lines, quoted
from soong.orchestrator.terminal.responder import (
    ResponderClosedError,
    SkipQuestionError,
    TerminalResponder,
    TypedAnswer,
)
from soong.orchestrator.terminal.summary import Document
from soong.shared.core.errors import SoongError
from soong.shared.core.jsontext import inert
from soong.shared.core.startup import drawing_stream
from soong.shared.permissions.request import Choice, PermissionRequest, Question, RequestState, offered_choices
from soong.shared.tools.definition import asks_for_words

LEAST_PREVIEW_ROWS: Final = 6
OTHER_ROWS: Final = 20
"""The rows that a question needs in addition to its preview: facts and choices, all visible at once."""
LISTED: Final = 5
"""Questions that are listed above the one that is shown; `l` lists all."""
MAX_FULL_LINES: Final = 2_000
_SERVERS_LABELS: Final = {
    Choice.ALLOW_ONCE: "accept (the words after it are the answer)",
    Choice.DENY: "decline (a reason may follow)",
}
"""The labels of the answers to a question of an MCP server."""
_STYLES = {"+": "green", "-": "red", "@": "cyan"}
HELP: Final = """\
  1 a once      allow this call, once
  2 s session   allow this tool here for the rest of the session, where offered
  3 d deny      deny; words after it are the reason, which the agent receives
  f full        show the full input; no answer
  l list        list all questions that wait; no answer
  n next        show another question first; no answer
  Ctrl-C        pause the task; the question stays open"""
ReadFullInput = Callable[[str], Awaitable[Document]]
"""Returns the detail of a question, with its full input. May raise SoongError."""
ReadLine = Callable[[Callable[[], None]], Awaitable[str]]
"""Reads a line that is typed after the mark appears; it is given what shows the mark."""


class TerminalConsole(Console):
    """Draws on a standard stream. Output of other code to that stream during a live picture is drawn inert, too."""

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
    """Asks the person at the terminal. ``hold`` keeps the live display away meanwhile.

    ``detail`` reads what the question has only in part; without it the preview is all there is.
    """

    console: Console
    hold: Callable[[bool], None]
    read_line: ReadLine = field(default_factory=lambda: Keyboard().line)
    detail: ReadFullInput | None = None
    now_s: Callable[[], float] = time.time
    waiting: Sequence[Document] = ()
    """All questions that wait, oldest first; only where there are others can another be asked for."""

    def take_waiting(self, waiting: Sequence[Document]) -> None:
        """Update the waiting questions, oldest first; the screen does not change."""
        self.waiting = waiting

    async def __call__(self, question: Document) -> TypedAnswer:
        """Ask until there is an answer.
        Raises: SkipQuestionError, the person wants to see another question first; ResponderClosedError, standard input
        ended.
        """
        self.hold(True)
        try:
            if self._others(question):
                self._list(self.waiting, question, LISTED)
            room = max(LEAST_PREVIEW_ROWS, self.console.height - OTHER_ROWS)
            self.console.print(picture(question, room=room, columns=self.console.width))
            while True:
                self.console.print(choices(question, self._others(question), self.console.width))
                line = await self.read_line(lambda: self.console.print(Text("  > ", style="bold"), end=""))
                answer = await self._take(line, question)
                if answer is not None:
                    self.console.print(Text(f"  answered: {answer.choice.value.replace('_', ' ')}\n", style="dim"))
                    return answer
        except asyncio.CancelledError:
            self.console.print(Text("\n  no answer was given here", style="dim"))
            raise
        finally:
            self.hold(False)

    def _list(self, waiting: Sequence[Document], shown: Document, most: int) -> None:
        self.console.print(head(waiting, shown, self.now_s(), self.console.width, most))

    async def _take(self, line: str, question: Document) -> TypedAnswer | None:
        """Do what a line says; return the answer if it is one."""
        answer = read_answer(line, question)
        if answer is not None:
            return answer
        match line.strip().lower():
            case "f" | "full" | "v" | "view":
                await self._show_full_input(question)
            case "l" | "list":
                waiting = self.waiting or (question,)
                self._list(waiting, question, len(waiting))
            case "n" | "next":
                if self._others(question):
                    raise SkipQuestionError
                none = "  no other question waits; this one is answered by 1, 2 or 3"
                self.console.print(Text(none, style="dim"))
            case "?" | "h" | "help":
                self.console.print(Text(HELP, style="dim"))
            case "":
                pass
            case word:
                said = visible(word, limit=40)
                choices = "1, 2 or 3" if Choice.ALLOW_FOR_SESSION in question["choices"] else "1 or 3"
                self.console.print(Text(f"  {said!r} is not an answer; type {choices}, or ? for help", style="dim"))
        return None

    async def _show_full_input(self, question: Document) -> None:
        columns = self.console.width
        lines = quoted(question["preview"], columns=columns) if question["preview"] else []
        if self.detail is not None:
            try:
                whole = (await self.detail(question["id"]))["full_input"]
                lines += input_lines(whole["input"], whole["note"], columns=columns)
            except SoongError as error:
                lines.append(f"  the full input cannot be read now: {visible(str(error))}")
        for line in lines[:MAX_FULL_LINES]:
            self.console.print(_styled(line))
        if len(lines) > MAX_FULL_LINES:
            show = f"{program()} approvals show {short_id(question['id'])} --full"
            more = f"… {len(lines) - MAX_FULL_LINES} lines more: {show}"
            self.console.print(Text(f"  {more}", style="bold"))

    def _others(self, question: Document) -> int:
        return sum(other["id"] != question["id"] for other in self.waiting)


class Keyboard:
    """Reads lines of standard input without blocking the loop; a read that is cancelled leaves nothing behind."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor

    async def line(self, show_mark: Callable[[], None]) -> str:
        """Return the next line that is typed at the mark. Raises: ResponderClosedError at the end of input."""
        with suppress(termios.error):
            # Input typed before this question does not answer it; input after the mark does.
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
    """Return a question of this process, with the answers that it offers, as its document."""
    from soong.orchestrator.schemas.approval import ApprovalSchema  # pydantic

    document = ApprovalSchema.of_question(Question(request, RequestState.PENDING)).model_dump()
    return {**document, "choices": [str(one) for one in offered_choices(may_grant=request.offers_session)]}


def read_answer(line: str, question: Document) -> TypedAnswer | None:
    """Read an answer: a choice by number, letter or name, and after it a reason; None when it is none of those."""
    word, _, reason = line.strip().partition(" ")
    for choice in offered(question):
        if word.lower() in (*choice.traits.words, choice.value):
            return TypedAnswer(choice, reason.strip())
    return None


def offered(question: Document) -> Sequence[Choice]:
    return [Choice(choice) for choice in question["choices"]]


def head(waiting: Sequence[Document], shown: Document, now_s: float, columns: int, most: int) -> Text:
    """Return how many questions wait, and the first of them a line each, with a mark at the one that is shown."""
    count = "1 question waits" if len(waiting) == 1 else f"{len(waiting)} questions wait"
    text = Text(f"{count}\n", style="bold")
    for one in waiting[:most]:
        mark, style = ("> ", "bold") if one["id"] == shown["id"] else ("  ", "dim")
        age = age_text(now_s - datetime.fromisoformat(one["asked"]).timestamp())
        step = one["identity"]["step_key"].partition("/")[2]
        facts = f"{short_id(one['id'])}  {age}  {step}  {one['tool']}  {one['target']['shown']}"
        text.append(f"{mark}{cut(visible(facts, limit=VALUE_CHARS), columns - 2)}\n", style=style)
    if len(waiting) > most:
        text.append(f"  … and {len(waiting) - most} more; l lists them\n", style="dim")
    return text


def picture(question: Document, *, room: int, columns: int) -> Text:
    """Return the question as it is shown, with as many lines of the preview as fit into ``room``."""
    style = "red" if question["is_dangerous"] or question["risk"] in ("execute", "critical") else "yellow"
    what = "asks you" if asks_for_words(question["tool"]) else "asks for permission"
    tool = cut(visible(question["tool"], limit=80), columns - len(what) - 1)  # a wrapped name would begin a line
    parts = [Text(f"{tool} {what}", style=f"bold {style}")]
    parts += map(Text, aligned(facts_of(question), indent="  ", width=columns))
    preview = quoted(question["preview"], columns=columns) if question["preview"] else []
    parts += map(_styled, preview[:room])
    if len(preview) > room:
        rest = f"… {len(preview) - room} of {len(preview)} lines more, {len(question['preview'])} characters in all"
        parts.append(Text(f"  {rest}: f shows them", style="bold"))
    return Text("\n").join(parts)


def _styled(line: str) -> Text:
    return Text(line, style=_STYLES.get(line.removeprefix(MARGIN)[:1], ""), overflow="fold")


def choices(question: Document, others: int = 0, columns: int = 80) -> Text:
    """Return what may be answered, a line each, and the keys that only look."""
    lines: list[str] = []
    for choice in offered(question):
        key, *_ = choice.traits.words
        # All of the scope, or it would not be offered.
        scope = f": {visible(question['session_grant'])}" if choice.is_grant else ""
        label = _SERVERS_LABELS.get(choice, "") if asks_for_words(question["tool"]) else ""
        first, *more = folded(f"[{key}] {label or choice.traits.label}{scope}", columns - len(GOES_ON))
        lines += [f"  {first}", *(f"    {GOES_ON}{piece}" for line in more for piece in folded(line, columns - 8))]
    keys = ["f full", *(["l list", "n next"] if others else []), "? help"]
    return Text("\n".join([*lines, f"  {'  '.join(keys)}"]), style="bold")


def responder_here(
    api: Api, session_id: str, hold: Callable[[bool], None], notify: Callable[[str], None]
) -> TerminalResponder:
    """Return a responder that asks the person at this terminal."""
    prompt = TerminalPrompt(terminal_console(), hold, detail=lambda question: api.get(f"/v1/approvals/{question}"))
    return TerminalResponder(api, session_id, prompt, lambda sentence: notify(visible(sentence)), prompt.take_waiting)


def terminal_console() -> Console:
    """Return the console that questions are shown on: standard output, where the live display is."""
    return TerminalConsole(sys.stdout)
