"""The terminal as responder: shows one question with all that is needed to decide, and reads the answer.

Everything that comes from a run is shown inert. What had been typed before the question stood there answers nothing.
"""

import asyncio
import os
import sys
import termios
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from orchestrator.cli.console import compact, inert
from shared.permissions.request import Choice, PermissionDecision, PermissionRequest

LEAST_PREVIEW_ROWS = 6
OTHER_ROWS = 20
"""What a question needs beside its preview: the facts, the frame and the choices, so that all of it is seen at once."""

BORDER = 4
VIEW_ALL = frozenset({"4", "v", "view"})
VALUE_CHARS = 300
_STYLES = {"+": "green", "-": "red", "@": "cyan"}


class NoAnswerError(Exception):
    """Standard input ended instead of answering."""


@dataclass(slots=True)
class TerminalPrompt:
    """A permission callback that asks the person at the terminal. ``hold`` keeps the live display away meanwhile."""

    console: Console
    hold: Callable[[bool], None]
    read_line: Callable[[], Awaitable[str]] = field(default_factory=lambda: Keyboard().line)

    async def __call__(self, request: PermissionRequest) -> PermissionDecision:
        self.hold(True)
        try:
            room = max(LEAST_PREVIEW_ROWS, self.console.height - OTHER_ROWS)
            shown, is_cut = preview_of(request, room=room, width=self.console.width - BORDER)
            self.console.print(question(request, shown))
            while True:
                self.console.print(choices(request, is_cut=is_cut), end="")
                line = await self.read_line()
                if is_cut and line.lower() in VIEW_ALL:
                    self.console.print(*preview_of(request)[0], sep="\n")
                decision = read_decision(line, request)
                if decision is not None:
                    self.console.print(Text(f"  answered: {decision.choice.value.replace('_', ' ')}\n", style="dim"))
                    return decision
        except asyncio.CancelledError:
            self.console.print(Text("\n  no answer is needed any more\n", style="dim"))
            raise
        finally:
            self.hold(False)


class Keyboard:
    """Reads lines of standard input without blocking the loop; a read that is cancelled leaves nothing behind."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor

    async def line(self) -> str:
        """Return the next line that is typed. Raises: NoAnswerError at the end of input."""
        with suppress(termios.error):
            # Whatever was typed before was not typed at this question.
            termios.tcflush(self._descriptor, termios.TCIFLUSH)
        loop = asyncio.get_running_loop()
        typed: asyncio.Future[bytes] = loop.create_future()

        def read() -> None:
            if not typed.done():
                typed.set_result(os.read(self._descriptor, 4096))

        loop.add_reader(self._descriptor, read)
        try:
            text = await typed
        finally:
            loop.remove_reader(self._descriptor)
        if not text:
            raise NoAnswerError("standard input ended")
        return text.decode(errors="replace").strip()


def read_decision(line: str, request: PermissionRequest) -> PermissionDecision | None:
    """Read an answer: a choice by number, letter or name, and after it a reason; None when it is none of those."""
    word, _, reason = line.strip().partition(" ")
    for choice, names in _names(request):
        if word.lower() in names:
            return PermissionDecision(choice, reason.strip())
    return None


def question(request: PermissionRequest, preview: Sequence[Text]) -> RenderableType:
    """Return the question as it is shown, with as much of the preview as is given."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(request):
        if value:
            facts.add_row(name, Text(inert(value, limit=VALUE_CHARS)))
    parts: list[RenderableType] = [facts]
    if preview:
        parts += [Text(), *preview]
    style = "red" if request.is_dangerous or request.risk in ("execute", "critical") else "yellow"
    title = Text(f" {inert(request.tool)} asks for permission ", style=f"bold {style}")
    return Panel(Group(*parts), title=title, title_align="left", border_style=style)


def preview_of(request: PermissionRequest, *, room: int | None = None, width: int = 80) -> tuple[list[Text], bool]:
    """Return the preview's lines, as many as fit into ``room`` rows (None: all), and whether any is missing."""
    lines = inert(request.preview).splitlines()
    styled = [Text(line, style=_STYLES.get(line[:1], ""), overflow="fold") for line in lines]
    if room is None:
        return styled, False
    used = 0
    for number, line in enumerate(lines):
        used += max(1, -(-cell_len(line) // width))
        if used > room:
            rest = len(lines) - number
            return [*styled[:number], Text(f"… and {rest} of {len(lines)} lines more", style="dim")], True
    return styled, False


def choices(request: PermissionRequest, *, is_cut: bool) -> Text:
    """Return what may be answered, a line each, and the mark where the answer is typed."""
    lines = ["  [1] allow once"]
    if request.offers_session:
        lines.append(f"  [2] allow for this session: {inert(request.scope, limit=VALUE_CHARS)}")
    lines.append("  [3] deny (a reason may follow)")
    if is_cut:
        lines.append("  [4] view all of it")
    return Text("\n".join([*lines, "  > "]), style="bold")


def _names(request: PermissionRequest) -> Iterator[tuple[Choice, tuple[str, ...]]]:
    yield Choice.ALLOW_ONCE, ("1", "a", "y", "once", "allow", "allow_once")
    if request.offers_session:
        yield Choice.ALLOW_FOR_SESSION, ("2", "s", "session", "allow_for_session")
    yield Choice.DENY, ("3", "d", "n", "no", "deny")


def _facts(request: PermissionRequest) -> Iterator[tuple[str, str]]:
    who = request.identity
    yield "step", f"{who.step_key.partition('/')[2]}  {who.step_title}".strip()
    yield "who", f"{who.role} agent {who.agent_id}, run {who.run_id} ({who.definition}, model {who.model or 'default'})"
    yield "parent", f"agent {who.parent_agent_id}, run {who.parent_run_id}" if who.parent_run_id else "none"
    words = dict.fromkeys((request.permission, *request.tags))
    yield "tool", f"{request.tool} ({', '.join(words)})"
    yield request.target_kind or "target", request.shown
    yield "host", request.host
    yield "risk", f"{request.risk}{' - DANGEROUS' if request.is_dangerous else ''}{_after(request.risk_summary)}"
    yield "hook", request.hook_result if request.hook_result != "none" else ""
    yield "in", request.cwd
    yield "with env", ", ".join(request.env)
    yield "arguments", compact(request.arguments, VALUE_CHARS) if not request.preview else ""
    yield "advice", request.suggested.value.replace("_", " ")


def _after(text: str) -> str:
    return f": {text}" if text else ""


def terminal_console() -> Console:
    """Return the console that questions are shown on: standard output, where the live display is."""
    return Console(file=sys.stdout, highlight=False, markup=False)
