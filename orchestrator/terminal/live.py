"""The live picture of a task on a terminal: steps by state, what runs, workers and their slots, waiting questions."""

import time
from collections.abc import Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live as RichLive
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from soong.orchestrator.client.program import program
from soong.orchestrator.terminal.console import cut, folded, one_line, visible
from soong.orchestrator.terminal.display import LineDisplay, TaskView
from soong.orchestrator.terminal.prompt import terminal_console
from soong.orchestrator.terminal.summary import (
    ENDED,
    LIVE,
    SYMBOLS,
    WAITS_FOR_CONSENT,
    Document,
    counted,
    pull_text,
    said_of,
    seconds_between,
    time_text,
)
from soong.shared.engine.runs.budgets import DAY, WARN_AT

STYLES = {
    "running": "cyan",
    "waiting": "cyan",
    "blocked": "yellow",
    "completed": "green",
    "failed": "red",
    "cancelled": "magenta",
    "skipped": "dim",
}
QUESTIONS_SHOWN = 3
MAX_SPOKEN_CHARS = 4000
ROW_CHARS = 60
OTHER_LINES = 10
"""Lines that are not steps: title, counts, workers, questions and room for the shell's prompt."""


class Live(LineDisplay):
    """Draws below what was written before, and leaves nothing behind: the summary replaces it."""

    shows_answers = True

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or terminal_console()
        self._began = time.monotonic()
        self._spinner = Spinner("dots", style="cyan")
        self._view: TaskView | None = None
        self._voices: dict[str, str] = {}
        """By run: what its model is writing."""
        self._is_held = False
        self._is_closed = False
        self._live = self._started()

    def show(self, view: TaskView) -> None:
        self._view = view

    def hold(self, held: bool) -> None:
        if self._is_closed:
            return
        if held and not self._is_held:
            self._live.stop()
        elif not held and self._is_held:
            # A new one: the old remembers where it stood, and would draw over what was written since.
            self._live = self._started()
        self._is_held = held

    def note(self, sentence: str) -> None:
        self.console.print(Text(f"  {sentence}", style="dim"))

    def speak(self, run_id: str, text: str) -> None:
        self._voices.pop(run_id, None)
        if text:
            self._voices[run_id] = text

    def drawn(self) -> RenderableType:
        if self._view is None:
            return Text()
        said = self._said(self._view)
        return Group(said, self.picture(self._view)) if said else self.picture(self._view)

    def _said(self, view: TaskView) -> Text:
        """Return the end of what the agent of an ask is writing, as much as has room above the picture."""
        width, height = max(20, self.console.width - 4), max(3, self.console.height // 3)
        spoken = self._voices.get(view.head["root_run"], "")[-MAX_SPOKEN_CHARS:].splitlines()
        lines = [piece for line in spoken for piece in folded(visible(line), width)]
        return Text("\n").join(Text(f"  {line}", style="italic") for line in lines[-height:])

    def close(self) -> None:
        self._is_closed = True
        self._live.stop()

    def _started(self) -> RichLive:
        live = RichLive(get_renderable=self.drawn, console=self.console, transient=True, refresh_per_second=8)
        live.start()
        return live

    def picture(self, view: TaskView) -> RenderableType:
        room = max(3, self.console.height - OTHER_LINES)
        parts: list[RenderableType] = [
            self._title(view),
            self._bar(view),
            _steps(view, room, self._voices),
            _workers(view),
        ]
        for one in view.head["budgets"]:  # used, and reserved by requests under way
            whose, share = " of the day" if one["scope"] == DAY else "", one["share"]
            style = "red" if share >= 1 else "yellow" if share >= WARN_AT else "dim"
            parts.append(Text(f"  budget{whose}  {one['charged']} ({share:.0%})", style=style))
        if sentence := pull_text(view.task, view.steps):
            parts.append(Text(f"  {sentence}", style="yellow"))
        parts += [
            Text(f"  ? {cut(visible(f'{tool} waits for an answer: {shown}'), 150)}", style="yellow")
            for tool, shown in ((one["tool"], one["target"]["shown"]) for one in view.questions[:QUESTIONS_SHOWN])
        ]
        if len(view.questions) > QUESTIONS_SHOWN:
            more = len(view.questions) - QUESTIONS_SHOWN
            parts.append(Text(f"  … and {more} more: {program()} approvals list", style="yellow"))
        return Group(*parts)

    def _title(self, view: TaskView) -> RenderableType:
        title = Table.grid(padding=(0, 1))
        spent = time_text(time.monotonic() - self._began)
        title.add_row(
            self._spinner,
            Text(one_line(view.task["title"]), style="bold"),
            Text(f"{view.task_id}  {spent}", style="dim"),
        )
        return title

    def _bar(self, view: TaskView) -> RenderableType:
        step_counts = view.counts
        done = sum(count for status, count in step_counts.items() if status in ENDED)
        line = Table.grid(padding=(0, 1))
        counts = Text("  ").join(
            Text(f"{SYMBOLS[status]} {step_counts[status]} {counted(status)}", style=STYLES.get(status, "dim"))
            for status in SYMBOLS
            if step_counts.get(status)
        )
        line.add_row(Text(" "), ProgressBar(total=max(1, sum(step_counts.values())), completed=done, width=24), counts)
        return line


def _steps(view: TaskView, room: int, voices: Mapping[str, str]) -> RenderableType:
    """Return the steps as they were planned when they fit, else those that something can be said about now."""
    planned = view.steps
    steps = [step for step in planned if not step["map"] or step["status"] != "completed"]
    if len(steps) > room:
        order = ("failed", "blocked", "running", "waiting")
        steps = [step for status in order for step in planned if step["status"] == status][: room - 1]
    table = Table.grid(padding=(0, 2))
    for step in steps:
        table.add_row(*_row(step, planned, voices.get(step["run"], "")))
    left = len(planned) - len(steps)
    return Group(table, Text(f"    … and {left} steps more", style="dim")) if left else table


def _row(step: Document, planned: Sequence[Document], voice: str) -> tuple[Text, ...]:
    style = STYLES.get(step["status"], "dim")
    indent = "    " if step["map"] else "  "
    said = said_of(step)
    if voice and step["status"] == "running":
        said = voice[-ROW_CHARS:].strip().rpartition("\n")[2]
    if step["status"] == "blocked":
        said = WAITS_FOR_CONSENT
    if step["status"] == "waiting":
        items = [one for one in planned if one["map"] == step["id"]]
        said = f"{sum(one['status'] in ENDED for one in items)} of {len(items)} done"
    return (
        Text(f"{indent}{SYMBOLS[step['status']]} {one_line(step['id'], 40)}", style=style),
        Text(time_text(seconds_between(step["started"], step["ended"])), style="dim"),
        Text(one_line(said or (step["title"] if step["title"] != step["id"] else ""), 60), style="dim"),
    )


def _workers(view: TaskView) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for worker in view.workers[:8]:
        # A slot that is lent has two runs: what waits in it, and what works.
        busy, slots = worker["busy"], worker["slots"]
        full = max(min(10, round(10 * busy / slots)) if slots else 0, int(busy > 0))
        bar = Text("▰" * full, style="cyan").append("▱" * (10 - full), style="dim")
        state = "" if worker["state"] == LIVE else f" {worker['state']}"
        table.add_row(
            Text(f"  {one_line(worker['name'], 40)}", style="dim"),
            bar,
            Text(f"{busy} of {slots} slots{state}", style="dim"),
        )
    return table
