"""``soong permissions``: what decides on calls here, in order, and what would become of one."""

import asyncio
import os
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer
from msgspec.structs import replace

from soong.orchestrator.cli.console import emit, output
from soong.orchestrator.cli.ids import opened_store
from soong.orchestrator.cli.options import JSON
from soong.orchestrator.operations.ids import find_task
from soong.shared.core.errors import UsageError
from soong.shared.core.identity import Role
from soong.shared.core.ids import step_key
from soong.shared.core.inert import inert
from soong.shared.core.settings import load_settings

if TYPE_CHECKING:
    from soong.orchestrator.client.explanation import Explainer
    from soong.shared.permissions.explain import CallExplanation, EffectivePolicy, SkillDeclaration

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_NAMES_CHARS: Final = 100
"""How long a row of names is."""

VERBS = {"deny": "refuse", "ask": "ask", "allow": "allow"}


@app.callback()
def permissions() -> None:
    """Show what decides on the calls of tools."""


@app.command()
def explain(
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
    from soong.orchestrator.cli.tool_arguments import read_arguments
    from soong.orchestrator.client.catalog import Catalogue
    from soong.orchestrator.client.explanation import Explainer
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
        explainer = asyncio.run(_in_session(explainer, task))
    effective = explainer.effective()
    if name is None:
        if is_json:
            emit(effective.as_json())
        else:
            output(policy_text(effective))
        return
    tool = explainer.tool(name)
    explained = explainer.call(tool, read_arguments(tool.name, tool.input_schema, words or [], text), role)
    if is_json:
        emit({**effective.as_json(), "call": explained.as_json()})
    else:
        output(call_text(explained))


async def _in_session(explainer: "Explainer", text: str) -> "Explainer":
    """Return an explainer of the session of a task, and of one of its steps where the text names one."""
    from soong.shared.permissions.policy import Policy

    task_text, _, step_id = text.partition("/")
    async with opened_store(load_settings()) as store:
        task = await find_task(store, task_text)
        step = (await store.tasks.step(step_key(task.id, step_id))).key if step_id else ""
        session = await store.sessions.session(task.session_id)
    return replace(
        explainer,
        project=Path(session.project),
        cwd=Path(session.cwd),
        stored=Policy.from_json(session.policy),
        step=step,
    )


def policy_text(effective: "EffectivePolicy") -> str:
    """Return the effective policy for people."""
    lines = [
        (str(place), VERBS[line.effect], line.what, line.source) for place, line in enumerate(effective.lines(), 1)
    ]
    return os.linesep.join(
        [
            *_heads(effective),
            "",
            *_uncut(("", "does", "what", "by"), *lines),
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
    rows += [(name, str(facts[name])) for name in ("risk", "shown", "host") if facts.get(name)]
    if explained.facts is not None:
        rows.append(("traits", ", ".join(_held(facts.get("traits"))) or "none"))
    if explained.effect == "ask":
        scope = explained.grant_scope
        rows.append(("a session grant", f"would cover {scope}" if scope else "is not offered: it asks each time"))
    width = max(len(name) for name, _ in rows)
    return os.linesep.join([*lines, *(f"  {name:<{width}}  {inert(value)}" for name, value in rows)])


def _uncut(*rows: tuple[str, ...]) -> Iterator[str]:
    """Yield rows in columns, uncut: a scope or a step that ends in dots is not what it says."""
    shown = [[inert(cell).replace("\n", "\\n") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _heads(effective: "EffectivePolicy") -> Iterator[str]:
    policy, network = effective.policy, effective.policy.network
    dangerous = "on, each call asks" if policy.is_dangerous_enabled else "off"
    for name, values in (
        ("project", [str(effective.project)]),
        ("mode", [str(policy.mode)]),
        ("dangerous", [dangerous]),
        ("network", [f"{network.mode} ({network.source})"]),
        ("may write in", [str(root) for root in effective.write_roots]),
        ("reads also", policy.read_roots or ["nothing else"]),
        ("sensitive", [*_rows_of(effective.paths.sensitive), *effective.own_files()]),
        ("protected", list(effective.protected())),
        ("skills ask", [_declared(skill) for skill in effective.skills] or ["for nothing"]),
    ):
        for place, value in enumerate(values):
            yield f"{'' if place else name:<13} {inert(value)}"


def _declared(skill: "SkillDeclaration") -> str:
    asked = ", ".join((*skill.allowed_tools, *skill.permissions))
    return f"{skill.skill} ({skill.level}): {asked}; this grants nothing"


def _rows_of(names: tuple[str, ...]) -> list[str]:
    return textwrap.wrap(", ".join(names), _NAMES_CHARS, break_long_words=False, break_on_hyphens=False)


def _held(traits: object) -> list[str]:
    """Return the names of the traits that hold."""
    return [name.removeprefix("is_") for name, holds in traits.items() if holds] if isinstance(traits, dict) else []
