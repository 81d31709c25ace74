"""``soong runs`` and ``soong replay``: runs and their logs, and a task replayed offline from its record."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import typer

from soong.orchestrator.cli.options import JSON, SINCE, STATUS, TAGGED, TITLE, CommandTable
from soong.orchestrator.terminal.api import MOST_OF_A_PAGE, Api, open_task
from soong.orchestrator.terminal.console import (
    Columns,
    compact,
    emit,
    listed,
    number_of,
    one_line,
    output,
    say,
    table,
    visible,
)
from soong.orchestrator.terminal.console import show as show_result
from soong.orchestrator.terminal.summary import Document, seconds_between, time_text
from soong.shared.core.errors import NotFoundError, UsageError
from soong.shared.core.jsontext import Json, inert
from soong.shared.core.settings import load_settings
from soong.shared.engine.tasks.functions import suggestion

if TYPE_CHECKING:
    from soong.orchestrator.replay.task import RunVerdict, TaskReplay

app = CommandTable()

LAST_EVENTS = 5
"""The end of a step and of its run are among the last ones of a log."""
RESULT_LINES = 20
TASK_SHOWN = 8
"""Characters of a task's id in the list: its end is enough to name it."""
_RUN = typer.Argument(..., help="The run's id, enough of it to be the only one, or TASK/STEP.")

SOONG: Final = "soong."
FAILED: Final = "soong.step_failed"
_APART: Final = frozenset({"tools", "surface", "settings"})
"""The fields of a run's document that the first table does not show."""
EXIT_DIFFERENT: Final = 1
_SYMBOLS: Final = {"same": "✓", "different": "✗", "given": "·"}


@app.command("list")
async def list_runs(
    *,
    task: str = typer.Option("", "--task", help="Only the runs of this task."),
    status: list[str] = STATUS,
    title: str = TITLE,
    tag: str = TAGGED,
    since: str = SINCE,
    limit: int = typer.Option(50, "--limit", min=1, help="At most this many."),
    is_json: bool = JSON,
) -> None:
    """List runs, newest first."""
    async with Api() as api:
        task_id = await api.find("task", task) if task else ""
        only = {"task": task_id, "title": title, "tag": tag, "since": since}
        runs = await api.pages("/v1/runs", limit=limit, status=status, **only)
    columns: Columns = {
        "run": "id",
        "task": lambda run: run["task"][-TASK_SHOWN:],
        "step": lambda run: run["step"] or run["role"],
        "status": lambda run: f"{run['status']}, malformed row" if run["malformed"] else run["status"],
        "agent": "definition",
        "time": lambda run: time_text(seconds_between(run["started"], run["ended"]) if run["ended"] else None),
        "attempt": "attempt",
    }
    listed(runs, columns, is_json=is_json)


@app.command()
async def show(
    run: str = _RUN,
    *,
    is_transcript: bool = typer.Option(
        False, "--transcript", help="Show instead what the agent was given, wrote and called, and each result."
    ),
    is_json: bool = JSON,
) -> None:
    """Show a run: lineage, tools with the reason for each, usage, times; or its transcript."""
    async with Api() as api:
        run_id = await api.find("run", run)
        if is_transcript:
            nodes = await _all_of(api, run_id, "nodes", "number")
            show_result(nodes, lambda: transcript(nodes), is_json=is_json)
            return
        found = await api.get(f"/v1/runs/{run_id}")
        error = "" if is_json else await _error(api, found)
    if is_json:
        emit(found)
        return
    shown = {name: value for name, value in found.items() if name not in _APART and value not in ("", None)}
    shown |= {"error": error} if error else {}
    shown |= {"settings": found["settings"]} if found["settings"] else {}
    facts = [(name, compact(value) if isinstance(value, dict) else str(value)) for name, value in shown.items()]
    output(table(("run", found["id"]), facts))
    rows = [(one["tool"], "yes" if one["is_in"] else "no", one["rule"]) for one in found["surface"]]
    if rows:
        output("\n" + table(("tool", "has it", "because"), rows, uncut=("because",)))


async def _error(api: Api, run: Document) -> str:
    """Return why a run failed, also one that was followed by another attempt; empty for any other."""
    last = (await api.get(f"/v1/runs/{run['id']}/events", after=max(0, run["events"] - LAST_EVENTS)))["items"]
    failed: Document = next((event["data"] for event in reversed(last) if event["type"] == FAILED), {})
    return f"{failed['type']}: {failed.get('message', '')}" if failed.get("type") else ""


@app.command()
async def tail(
    run: str = _RUN,
    *,
    start: int = typer.Option(1, "--from", min=1, metavar="N", help="Begin with the event of this number."),
    follow: bool = typer.Option(False, "--follow", "-f", help="Follow the log until the run has ended."),
    is_json: bool = typer.Option(
        False, "--json", help="Print CloudEvents: one document, or a line each with --follow."
    ),
) -> None:
    """Show what happened in a run, event by event."""
    from soong.orchestrator.terminal.display import events_of_run

    async with Api() as api:
        run_id = await api.find("run", run)
        if follow:
            await api.get(f"/v1/runs/{run_id}")  # an unreachable deployment is an error, not one to wait for
            async for name, event in events_of_run(api, run_id, start - 1):
                if not name:
                    _print_event(event, is_json=is_json)
            return
        events = await _all_of(api, run_id, "events", "id", after=start - 1)
    if is_json:
        emit(events)
        return
    for event in events:
        _print_event(event, is_json=False)


@app.command()
async def logs(
    run: str = _RUN,
    *,
    follow: bool = typer.Option(False, "--follow", "-f", help="Follow the run until its end."),
    start: int = typer.Option(1, "--from", min=1, help="Begin at this line."),
    tail: int = typer.Option(0, "--tail", min=0, max=MOST_OF_A_PAGE, help="Only so many of the last lines."),
    is_json: bool = typer.Option(False, "--json", help="Print one JSON document, or a line each with --follow."),
) -> None:
    """Show what the code of a run printed, logged and raised: functions, tools of modules, scripted agents."""
    from soong.orchestrator.terminal.display import followed

    async with Api() as api:
        run_id = await api.find("run", run)
        path = f"/v1/runs/{run_id}/logs"
        if follow:
            # An unreachable deployment is an error, not one to wait for.
            begun = (await api.get(path, tail=tail or 1))["items"]
            seen = int(begun[0]["number"]) - 1 if tail and begun else start - 1
            async for _name, line in followed(api, f"{path}/stream", "number", seen):
                emit(line, is_line=True) if is_json else output(line_text(line))
            return
        if tail:
            lines = (await api.get(path, tail=tail))["items"]
        else:
            lines = await _all_of(api, run_id, "logs", "number", after=start - 1)
    show_result(lines, lambda: "\n".join(map(line_text, lines)) or "it has written nothing", is_json=is_json)


def line_text(line: Document) -> str:
    """Return a line of a run: its time, stream or level, and text."""
    return f"{line['time'][11:23]}  {line['level'] or line['stream']:<9} {visible(line['text'])}"


async def _all_of(api: Api, run_id: str, kind: str, number: str, *, after: int = 0) -> list[Document]:
    """Return the entries of a run's log or tree that come after one, page by page."""
    found: list[Document] = []
    while page := (await api.get(f"/v1/runs/{run_id}/{kind}", after=after, limit=MOST_OF_A_PAGE))["items"]:
        found += page
        after = int(page[-1][number])
    return found


def transcript(nodes: Sequence[Document]) -> str:
    """Return a conversation as text, its turns numbered."""
    turns = 0
    texts = []
    for node in nodes:
        turns += node["kind"] == "assistant"
        texts.append(node_text(node, turns))
    return "\n\n".join(texts)


def node_text(node: Document, turn: int = 0) -> str:
    """Return a node of a transcript: its kind or tool, then its text, of which a tool's is cut to its first lines."""
    head, payload = str(node["kind"]), node["payload"]
    parts = [compact({name: value for name, value in payload.items() if name != "v"}, 0)]
    match head, payload:
        case "system", {"text": str(text)}:
            head, parts = "instructions", [_first_lines(text)]
        case "user", {"texts": [*texts]}:
            head, parts = "user", [*map(str, texts)]
        case "assistant", {"message": {"parts": [*pieces]}}:
            head, parts = f"agent, turn {turn}" if turn else "agent", [_piece_text(one) for one in pieces]
        case "tool_result", {"tool": tool, "content": [*blocks]}:
            head = f"{tool}{' failed' if payload.get('is_error') else ''}"
            parts = [_block_text(one) for one in blocks]
    lines = [line for part in parts for line in inert(part).rstrip("\n").split("\n")]
    return "\n".join([one_line(head), *(f"  {line}".rstrip() for line in lines)])


def _block_text(block: Json) -> str:
    match block:
        case {"text": str(text)}:
            return _first_lines(text)
        case _:
            return compact(block)


def _piece_text(piece: Document) -> str:
    match piece:
        case {"part_kind": "text" | "thinking" as kind, "content": str(text)}:
            return text if kind == "text" else f"(thinking) {text}"
        case {"part_kind": "tool-call", "tool_name": str(name)}:
            shown = one_line(args, 300) if isinstance(args := piece.get("args"), str) else compact(args, 300)
            return f"calls {name.replace('__', '.')} {shown}"
        case _:
            return compact(piece)


def _first_lines(text: str) -> str:
    lines = text.rstrip("\n").split("\n")
    more = len(lines) - RESULT_LINES
    return text if more <= 0 else "\n".join([*lines[:RESULT_LINES], f"… and {number_of(more, 'line')} more (--json)"])


def _print_event(event: Document, *, is_json: bool) -> None:
    if is_json:
        emit(event, is_line=True)
    else:
        data = compact(event["data"], 300) if event["data"] else ""
        output(f"{event['id']:>4}  {event['time'][11:23]}  {one_line(event['type'].removeprefix(SOONG)):<22} {data}")


@app.command()
async def abort(
    run: str = _RUN,
    call: str = typer.Argument("", help="The id of a tool call; left out: any that is under way."),
    *,
    reason: str = typer.Option("", "--reason", help="Why; it is in the results of the calls."),
    goes_on: bool = typer.Option(False, "--continue", help="End the call alone: its agent continues."),
) -> None:
    """End a run with its tool calls; with --continue one call alone, whose result the agent reads."""
    async with Api() as api:
        run_id = await api.find("run", run)
        await open_task(api, (await api.get(f"/v1/runs/{run_id}"))["task"])
        await api.post(f"/v1/runs/{run_id}/abort", {"call": call, "reason": reason, "continue": goes_on})
    say(f"aborts {'a call of ' if goes_on else ''}run {run_id}")


async def replay(
    task: str = typer.Argument(..., help="The task's id, or enough of it to be the only one."),
    *,
    step: str = typer.Option("", "--step", metavar="STEP", help="Replay the runs of this step only."),
    is_json: bool = JSON,
) -> None:
    """Replay a task from its record, offline: no model is asked, no tool is called, nothing is written.

    Every agent decides again from the answers and results that it had then. Exit code 1: something differs.
    """
    from soong.orchestrator.client.catalog import Catalogue
    from soong.orchestrator.operations.administration import opened_store
    from soong.orchestrator.operations.service import find_task
    from soong.orchestrator.replay.task import Replayer, read_task

    settings = load_settings()
    async with opened_store(settings=settings) as store:
        record = await read_task(store, await store.tasks.task(await find_task(store, task)))
    if not record.task.status.is_terminal:
        raise UsageError(f"task {record.task.id} is {record.task.status}; replay it when it has ended")
    if step and step not in (known := [one.step_id for one in record.steps]):
        raise NotFoundError("step", step, suggestion(step, known))
    found = await Replayer(settings, Catalogue.of(settings, starts_servers=False)).replay(record, step)
    say(f"task {found.task_id}: {visible(found.title)}")
    show_result(found.as_json(), lambda: _replay_text(found, is_whole=not step), is_json=is_json)
    raise typer.Exit(0 if found.is_same else EXIT_DIFFERENT)


def _replay_text(found: "TaskReplay", *, is_whole: bool) -> str:
    lines = []
    if is_whole:
        symbol = _SYMBOLS["different" if found.dag else "same"]
        lines = [f"  {symbol} the DAG: {number_of(found.steps, 'step')}"]
        lines += [f"      {visible(str(difference))}" for difference in found.dag]
    for run in found.runs:
        lines.append(f"  {_SYMBOLS[run.verdict]} {visible(run.step)}  {_facts(run)}")
        lines += [f"      {visible(str(difference))}" for difference in run.differences]
    changed = sum(run.verdict == "different" for run in found.runs)
    played = number_of(sum(run.verdict != "given" for run in found.runs), "run")
    if found.is_same:
        events = sum(run.events for run in found.runs)
        return "\n".join([*lines, f"the same: {played}, {number_of(events, 'event')}"])
    return "\n".join([*lines, f"different: {changed} of {played}" + (", and the DAG" if found.dag else "")])


def _facts(run: "RunVerdict") -> str:
    if run.note:
        return run.note
    lives = f", {run.lives} lives" if run.lives > 1 else ""
    return f"{number_of(run.turns, 'turn')}, {number_of(run.calls, 'call')}{lives}"
