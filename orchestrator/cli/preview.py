"""``soong run --preview``: what the steps will ask for, all together and then step by step, with one answer per step.

Paths and commands are shown uncut: what a person says yes to must not end in dots. What had been typed before a
question stood there answers nothing.
"""

import os
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from soong.orchestrator.cli.asking import why_nobody_is_asked
from soong.orchestrator.cli.console import emit, output, say
from soong.shared.core.inert import inert
from soong.shared.permissions.consent import CheckedPermission, PermissionKind, Preview, StepGrant, StepPreview
from soong.shared.permissions.rules import Effect

ALLOW: Final = frozenset({"1", "a", "y", "yes", "allow"})
LATER: Final = frozenset({"2", "l", "n", "no", "later", "ask"})
STOP: Final = frozenset({"3", "s", "q", "stop", "quit"})


class PreviewStoppedError(Exception):
    """The person at the terminal wants nothing to be started."""


def consented(
    preview: Preview, allowed: Sequence[str], *, is_shown: bool, is_json: bool
) -> tuple[StepGrant, ...] | None:
    """Return what is consented to; None when the preview was all that was wanted.

    ``allowed`` are steps consented to on the command line. Without a terminal the preview is printed, and only what
    it shows is granted.

    Raises:
        UsageError: a step of ``allowed`` is not there, or nothing of it can be allowed.
        PreviewStoppedError: the person said so, or standard input ended.
    """
    grants = preview.grants(allowed)
    if not is_shown:
        return grants
    if not is_json and not why_nobody_is_asked():
        output(text_of(preview))
        return (*grants, *_asked(preview, frozenset(allowed)))
    if allowed:
        say(text_of(preview))
        return grants
    emit(preview.as_json()) if is_json else output(text_of(preview))
    return None


def text_of(preview: Preview) -> str:
    """Return the preview for people: the union first, then what else each step can ask."""
    lines = [f"preview: {_line(preview.title)}", ""]
    for kind in PermissionKind:
        lines += _table(preview.union(kind), str(kind))
    if len(lines) == 2:
        lines.append("no step says what it will ask for (`permissions:` in the plan)")
    silent = [step for step in preview.steps if step.may_ask]
    if silent:
        lines += ["", "may also ask when they run:"]
        width = max(len(_line(step.step_id)) for step in silent)
        lines += [f"  {_line(step.step_id):<{width}}  {', '.join(map(_line, step.may_ask))}" for step in silent]
    return os.linesep.join(lines)


def _asked(preview: Preview, settled: frozenset[str]) -> Iterator[StepGrant]:
    """Ask once for each step of which something can be allowed; where there is none, whether to begin at all."""
    open_steps = [step for step in preview.steps if step.grantable and step.step_id not in settled]
    for position, step in enumerate(open_steps, 1):
        output(_question(step, position, len(open_steps)))
        if _choice("  [1] allow this for the step  [2] ask when it runs  [3] stop") == "allow":
            yield step.grant
    if not open_steps and _choice("  nothing is to be allowed beforehand: [1] run it  [3] stop") != "allow":
        raise PreviewStoppedError


def _question(step: StepPreview, position: int, count: int) -> str:
    head = f"step {_line(step.step_id)} ({position} of {count})"
    title = "" if step.title in ("", step.step_id) else f": {_line(step.title)}"
    whose = ", each of its items too" if step.kind == "map" else ""
    return os.linesep.join(
        ["", f"{head}{title}{whose}", *(row for kind in PermissionKind for row in _rows(step, kind))]
    )


def _rows(step: StepPreview, kind: PermissionKind) -> list[str]:
    return _table([asked for asked in step.permissions if asked.kind is kind], str(kind))


def _table(asks: Sequence[CheckedPermission], head: str) -> list[str]:
    shown = [(_line(asked.shown or asked.given), asked) for asked in asks]
    width = max((len(text) for text, _ in shown), default=0)
    return [
        f"  {head if place == 0 else '':<6} {text:<{min(width, 60)}}  {_outcome(asked)}"
        for place, (text, asked) in enumerate(shown)
    ]


def _outcome(asked: CheckedPermission) -> str:
    where = " (outside the write roots)" if asked.is_outside else ""
    why = _line(asked.reason)
    match asked.effect:
        case Effect.ALLOW:
            return f"runs without asking{where}"
        case Effect.DENY:
            return f"refused{where}: {why}"
        case Effect.ASK if asked.scope is None:
            return f"asks when it runs{where}: {why}"
        case Effect.ASK:
            return f"asks; can be allowed now for {', '.join(map(_line, asked.grantable))}{where}: {why}"


def _choice(question: str) -> str:
    while True:
        output(question)
        with suppress(termios.error):
            # What was typed before was not typed at this; what is typed once the mark stands counts.
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        output("  > ", end="")
        line = sys.stdin.readline()
        word = line.strip().lower()
        if not line or word in STOP:
            raise PreviewStoppedError
        if word in ALLOW:
            return "allow"
        if word in LATER:
            return "later"


def _line(text: str) -> str:
    """Return text from the plan as one line that a terminal does not obey."""
    return inert(text).replace("\n", "\\n").replace("\t", "\\t")
