"""``soong permissions``: what decides on calls here, in order, and what would become of one."""

import os
import sys
import termios
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer
from msgspec.structs import replace

from soong.orchestrator.cli.options import JSON, CommandTable
from soong.orchestrator.terminal.api import Api
from soong.orchestrator.terminal.console import (
    details,
    emit,
    output,
    say,
    show,
    spelled_out,
    table,
    why_nobody_is_asked,
)
from soong.shared.core.errors import UsageError
from soong.shared.core.identity import Role
from soong.shared.core.jsontext import inert
from soong.shared.core.settings import load_settings
from soong.shared.permissions.consent import CheckedPermission, PermissionKind, Preview, StepGrant, StepPreview
from soong.shared.permissions.rules import Effect

if TYPE_CHECKING:
    from soong.orchestrator.operations.explanation import Explainer
    from soong.shared.permissions.explain import CallExplanation, EffectivePolicy


app = CommandTable()

_NAMES_CHARS: Final = 100
"""How long a row of names is."""

HEADS: Final = ("", "does", "what", "by")
VERBS = {"deny": "refuse", "ask": "ask", "allow": "allow"}

ALLOW: Final = frozenset({"1", "a", "y", "yes", "allow"})
LATER: Final = frozenset({"2", "l", "n", "no", "later", "ask"})
STOP: Final = frozenset({"3", "s", "q", "stop", "quit"})


@app.callback()
def permissions() -> None:
    """Show what decides on the calls of tools."""


@app.command()
async def explain(
    words: list[str] = typer.Argument(None, metavar="[KEY=VALUE]...", help="Arguments of the call."),
    *,
    name: str | None = typer.Option(None, "--tool", metavar="NAME", help="Explain a call of this tool."),
    text: str | None = typer.Option(None, "--args", metavar="JSON|-|@FILE", help="Arguments as a JSON object."),
    role: Role = typer.Option(Role.MAIN, "--role", help="Whose call."),
    project: Path = typer.Option(Path(), "--project", help="Folder that is worked on."),
    allow: list[str] = typer.Option([], "--allow", metavar="TOOL:SCOPE", help="With this rule; may be repeated."),
    task: str = typer.Option(
        "", "--task", metavar="TASK[/STEP]", help="As in the session of this task; with STEP as a call of that step."
    ),
    is_tainted: bool = typer.Option(False, "--tainted", help="As if the run had read what strangers wrote."),
    is_json: bool = JSON,
) -> None:
    """Show the effective policy and where each part of it comes from; with --tool, what would become of a call.

    Nothing is called, and no service is needed. The consent to a step is in the policy of its session:
    --task shows it.
    """
    from soong.orchestrator.cli.tool_call import read_arguments
    from soong.orchestrator.client.catalog import Catalogue
    from soong.orchestrator.operations.explanation import Explainer
    from soong.shared.toolsets.sources import ToolEnvironment

    if name is None and (words or text is not None):
        raise UsageError("arguments of which tool? Name it with --tool")
    settings = load_settings()
    catalogue = Catalogue.of(settings)
    paths = ToolEnvironment.of(settings, catalogue.config).paths
    explainer = Explainer(catalogue, paths, project, allow=tuple(allow), is_tainted=is_tainted)
    if task:
        if allow:
            raise UsageError(
                "--allow and --task cannot be combined: --allow describes a new session, --task an existing one"
            )
        explainer = await _in_session(explainer, task)
    effective = explainer.effective()
    if name is None:
        show(effective.as_json(), lambda: policy_text(effective), is_json=is_json)
        return
    tool = explainer.tool(name)
    explained = explainer.call(tool, read_arguments(tool.name, tool.input_schema, words or [], text), role)
    show({**effective.as_json(), "call": explained.as_json()}, lambda: call_text(explained), is_json=is_json)


async def _in_session(explainer: "Explainer", text: str) -> "Explainer":
    """Return an explainer of the session of a task, and of one of its steps where the text names one."""
    from soong.shared.permissions.policy import Policy

    task_text, _, step_id = text.partition("/")
    async with Api() as api:
        path = f"/v1/tasks/{await api.find('task', task_text)}"
        if step_id:
            await api.get(f"{path}/step", id=step_id)
        task = await api.get(path, limit=1)
        session = await api.get(f"/v1/sessions/{task['session']}")
    return replace(
        explainer,
        project=Path(session["project"]),
        cwd=Path(session["cwd"]),
        stored=Policy.from_json(session["policy"]),
        step=f"{task['id']}/{step_id}" if step_id else "",
    )


def policy_text(effective: "EffectivePolicy") -> str:
    lines = [
        (str(place), VERBS[line.effect], line.what, line.source) for place, line in enumerate(effective.lines(), 1)
    ]
    return os.linesep.join(
        [
            *_heads(effective),
            "",
            table(HEADS, lines, uncut=HEADS),
            "",
            "The first that speaks of a call decides. Allow lines answer only what asks by default, for their scope,",
            "and never a dangerous or critical call: that takes a person's yes.",
        ]
    )


def call_text(explained: "CallExplanation") -> str:
    """Return what would become of a call, for people."""
    outcome = {"deny": "is refused", "ask": "asks", "allow": "runs without asking"}[explained.effect]
    lines = [f"{explained.tool} {outcome}: {inert(explained.reason)}", ""]
    rows = [("decided by", f"{explained.layer}: {explained.rule} ({explained.source})")]
    if explained.error:
        rows.append(("error", explained.error))
    facts = explained.facts or {}
    found = facts.get("traits")
    traits = [name.removeprefix("is_") for name, holds in found.items() if holds] if isinstance(found, dict) else []
    rows += [(name, str(facts[name])) for name in ("risk", "shown", "host") if facts.get(name)]
    if explained.facts is not None:
        rows.append(("traits", ", ".join(traits) or "none"))
    if explained.effect == "ask":
        scope = explained.grant_scope
        rows.append(("a session grant", f"would cover {scope}" if scope else "is not offered: it asks each time"))
    return os.linesep.join([*lines, textwrap.indent(details(rows), "  ")])


def _heads(effective: "EffectivePolicy") -> Iterator[str]:
    policy, network = effective.policy, effective.policy.network
    dangerous = "on, each call asks" if policy.is_dangerous_enabled else "off"
    names = ", ".join(effective.paths.sensitive)
    sensitive = textwrap.wrap(names, _NAMES_CHARS, break_long_words=False, break_on_hyphens=False)
    skills = [
        f"{one.skill} ({one.level}): {', '.join((*one.allowed_tools, *one.permissions))}; this grants nothing"
        for one in effective.skills
    ]
    for name, values in (
        ("project", [str(effective.project)]),
        ("mode", [str(policy.mode)]),
        ("dangerous", [dangerous]),
        ("network", [f"{network.mode} ({network.source})"]),
        ("may write in", [str(root) for root in effective.write_roots]),
        ("reads also", policy.read_roots or ["nothing else"]),
        ("sensitive", [*sensitive, *effective.own_files()]),
        ("protected", list(effective.protected())),
        ("skills ask", skills or ["for nothing"]),
    ):
        for place, value in enumerate(values):
            yield f"{'' if place else name:<13} {inert(value)}"


class PreviewStoppedError(Exception):
    """The person at the terminal wants nothing to be started."""


def consented(
    preview: Preview, allowed: Sequence[str], *, is_shown: bool, is_json: bool
) -> tuple[StepGrant, ...] | None:
    """Return what is consented to; None when the preview was all that was wanted.

    ``allowed`` are steps consented to on the command line. Without a terminal the preview is printed, and only what
    it shows is granted.
    Raises: UsageError, a step of ``allowed`` is not there, or nothing of it can be allowed; PreviewStoppedError, the
    person said so, or standard input ended.
    """
    grants = preview.grants(allowed)
    if not is_shown:
        return grants
    if not is_json and not why_nobody_is_asked():
        output(preview_text(preview))
        return (*grants, *_asked(preview, frozenset(allowed)))
    if allowed:
        say(preview_text(preview))
        return grants
    emit(preview.as_json()) if is_json else output(preview_text(preview))
    return None


def preview_text(preview: Preview) -> str:
    """Return the preview for people: the union first, then what else each step can ask."""
    lines = [f"preview: {spelled_out(preview.title)}", ""]
    for kind in PermissionKind:
        lines += _rows_table(preview.union(kind), str(kind))
    if len(lines) == 2:
        lines.append("no step says what it will ask for (`permissions:` in the plan)")
    silent = [step for step in preview.steps if step.may_ask]
    if silent:
        lines += ["", "may also ask when they run:"]
        rows = [(spelled_out(step.step_id), ", ".join(map(spelled_out, step.may_ask))) for step in silent]
        lines.append(textwrap.indent(details(rows), "  "))
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
    head = f"step {spelled_out(step.step_id)} ({position} of {count})"
    title = "" if step.title in ("", step.step_id) else f": {spelled_out(step.title)}"
    whose = ", each of its items too" if step.kind == "map" else ""
    rows = [
        row
        for kind in PermissionKind
        for row in _rows_table([asked for asked in step.permissions if asked.kind is kind], str(kind))
    ]
    return os.linesep.join(["", f"{head}{title}{whose}", *rows])


def _rows_table(asks: Sequence[CheckedPermission], head: str) -> list[str]:
    shown = [(spelled_out(asked.shown or asked.given), asked) for asked in asks]
    width = max((len(text) for text, _ in shown), default=0)
    return [
        f"  {head if place == 0 else '':<6} {text:<{min(width, 60)}}  {_outcome(asked)}"
        for place, (text, asked) in enumerate(shown)
    ]


def _outcome(asked: CheckedPermission) -> str:
    where = " (outside the write roots)" if asked.is_outside else ""
    why = spelled_out(asked.reason)
    match asked.effect:
        case Effect.ALLOW:
            return f"runs without asking{where}"
        case Effect.DENY:
            return f"refused{where}: {why}"
        case Effect.ASK if asked.scope is None:
            return f"asks when it runs{where}: {why}"
        case Effect.ASK:
            return f"asks; can be allowed now for {', '.join(map(spelled_out, asked.grantable))}{where}: {why}"


def _choice(question: str) -> str:
    while True:
        output(question)
        with suppress(termios.error):
            # Input typed before this question does not answer it; input after the mark does.
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
