"""The live picture of a task on a terminal: steps by state, what runs, workers and their slots, waiting questions."""

import time
from collections.abc import Mapping

from rich.console import Console, Group, RenderableType
from rich.live import Live as RichLive
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from soong.orchestrator.cli.console import cut, folded, one_line, visible
from soong.orchestrator.cli.prompt import terminal_console
from soong.orchestrator.cli.step_words import SYMBOLS, WAITS_FOR_CONSENT, counted, pull_text, seconds_of, time_text
from soong.orchestrator.client.client import TaskSnapshot
from soong.orchestrator.client.program import program
from soong.orchestrator.schemas.task import StepSchema
from soong.shared.engine.runs.budgets import DAY, WARN_AT, BudgetState, charged_text
from soong.shared.engine.sessions.session import ProcessState
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import Step

STYLES = {
    StepStatus.RUNNING: "cyan",
    StepStatus.WAITING: "cyan",
    StepStatus.BLOCKED: "yellow",
    StepStatus.COMPLETED: "green",
    StepStatus.FAILED: "red",
    StepStatus.CANCELLED: "magenta",
    StepStatus.SKIPPED: "dim",
}
QUESTIONS_SHOWN = 3
MAX_SPOKEN_CHARS = 4000
ROW_CHARS = 60
OTHER_LINES = 10
"""Lines that are not steps: title, counts, workers, questions and room for the shell's prompt."""


class Live:
    """Draws below what was written before, and leaves nothing behind: the summary replaces it."""

    shows_answers = True

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or terminal_console()
        self._began = time.monotonic()
        self._spinner = Spinner("dots", style="cyan")
        self._view: TaskSnapshot | None = None
        self._voices: dict[str, str] = {}
        """By run: what its model is writing."""
        self._is_held = False
        self._is_closed = False
        self._live = self._started()

    def show(self, view: TaskSnapshot) -> None:
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
        """Return all of what is shown now."""
        if self._view is None:
            return Text()
        said = self._said(self._view)
        return Group(said, self.picture(self._view)) if said else self.picture(self._view)

    def _said(self, view: TaskSnapshot) -> Text:
        """Return the end of what the agent of an ask is writing, as much as has room above the picture."""
        width, height = max(20, self.console.width - 4), max(3, self.console.height // 3)
        spoken = self._voices.get(view.task.root_run_id, "")[-MAX_SPOKEN_CHARS:].splitlines()
        lines = [piece for line in spoken for piece in folded(visible(line), width)]
        return Text("\n").join(Text(f"  {line}", style="italic") for line in lines[-height:])

    def close(self) -> None:
        self._is_closed = True
        self._live.stop()

    def _started(self) -> RichLive:
        live = RichLive(get_renderable=self.drawn, console=self.console, transient=True, refresh_per_second=8)
        live.start()
        return live

    def picture(self, view: TaskSnapshot) -> RenderableType:
        """Return the picture of a view."""
        room = max(3, self.console.height - OTHER_LINES)
        parts: list[RenderableType] = [
            self._title(view),
            self._bar(view),
            _steps(view, room, self._voices),
            _workers(view),
            *(_budget(state) for state in view.budgets),
        ]
        if sentence := pull_text(view.to_be_pulled, view.task.id):
            parts.append(Text(f"  {sentence}", style="yellow"))
        parts += [
            Text(f"  ? {cut(visible(f'{one.tool} waits for an answer: {one.shown}'), 150)}", style="yellow")
            for one in view.questions[:QUESTIONS_SHOWN]
        ]
        if len(view.questions) > QUESTIONS_SHOWN:
            more = len(view.questions) - QUESTIONS_SHOWN
            parts.append(Text(f"  … and {more} more: {program()} approvals list", style="yellow"))
        return Group(*parts)

    def _title(self, view: TaskSnapshot) -> RenderableType:
        title = Table.grid(padding=(0, 1))
        spent = time_text(time.monotonic() - self._began)
        title.add_row(
            self._spinner, Text(one_line(view.task.title), style="bold"), Text(f"{view.task.id}  {spent}", style="dim")
        )
        return title

    def _bar(self, view: TaskSnapshot) -> RenderableType:
        done = sum(count for status, count in view.counts.items() if status.is_terminal)
        line = Table.grid(padding=(0, 1))
        counts = Text("  ").join(
            Text(f"{SYMBOLS[status]} {view.counts[status]} {counted(status)}", style=STYLES.get(status, "dim"))
            for status in StepStatus
            if view.counts.get(status)
        )
        line.add_row(Text(" "), ProgressBar(total=max(1, len(view.steps)), completed=done, width=24), counts)
        return line


def _steps(view: TaskSnapshot, room: int, voices: Mapping[str, str]) -> RenderableType:
    """Return the steps as they were planned when they fit, else those that something can be said about now."""
    steps = [step for step in view.steps if not step.map_key or step.status is not StepStatus.COMPLETED]
    if len(steps) > room:
        order = [StepStatus.FAILED, StepStatus.BLOCKED, StepStatus.RUNNING, StepStatus.WAITING]
        steps = [step for status in order for step in view.steps if step.status is status][: room - 1]
    table = Table.grid(padding=(0, 2))
    for step in steps:
        table.add_row(*_row(step, view, voices.get(step.run_id, "")))
    left = len(view.steps) - len(steps)
    return Group(table, Text(f"    … and {left} steps more", style="dim")) if left else table


def _row(step: Step, view: TaskSnapshot, voice: str) -> tuple[Text, ...]:
    style = STYLES.get(step.status, "dim")
    indent = "    " if step.map_key else "  "
    said = view.lacks.get(step.key) or step.progress or (step.error.message if step.error is not None else "")
    if voice and step.status is StepStatus.RUNNING:
        said = voice[-ROW_CHARS:].strip().rpartition("\n")[2]
    if step.status is StepStatus.BLOCKED:
        said = WAITS_FOR_CONSENT
    if step.status is StepStatus.WAITING:
        children = [child for child in view.steps if child.map_key == step.key]
        said = f"{sum(child.status.is_terminal for child in children)} of {len(children)} done"
    return (
        Text(f"{indent}{SYMBOLS[step.status]} {one_line(step.step_id, 40)}", style=style),
        Text(time_text(seconds_of(StepSchema.of(step).model_dump())), style="dim"),
        Text(one_line(said or (step.title if step.title != step.step_id else ""), 60), style="dim"),
    )


def _budget(state: BudgetState) -> Text:
    """Return what of a budget is charged: used, and reserved by requests under way."""
    whose = "of the day" if state.scope == DAY else ""
    money, tokens = charged_text(state)
    said = ", ".join(one for one in (money, tokens) if one)
    style = "red" if state.share >= 1 else "yellow" if state.share >= WARN_AT else "dim"
    return Text(f"  budget {whose}".rstrip() + f"  {said} ({state.share:.0%})", style=style)


def _workers(view: TaskSnapshot) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for worker in view.workers[:8]:
        # A slot that is lent has two runs: what waits in it, and what works.
        full = min(10, round(10 * worker.busy / worker.slots)) if worker.slots else 0
        bar = Text("▰" * max(full, int(worker.busy > 0)), style="cyan").append(
            "▱" * (10 - max(full, int(worker.busy > 0))), style="dim"
        )
        state = "" if worker.state is ProcessState.LIVE else f" {worker.state}"
        table.add_row(
            Text(f"  {one_line(worker.node_name, 40)}", style="dim"),
            bar,
            Text(f"{worker.busy} of {worker.slots} slots{state}", style="dim"),
        )
    return table
