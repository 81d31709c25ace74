"""Reading what a claim tells its worker, and the results of steps.

A map step's value is the list of its children's outputs in item order; it is gathered when it is read, never copied.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from soong.shared.core.identity import Origin, Role, RunIdentity
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.tasks.failure_report import FailureReport, is_unclean, of_map
from soong.shared.engine.tasks.kinds import StepKind
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import MALFORMED, Claim, Outcome, StepError, StepResult
from soong.shared.storage.sql.claims.claim_rows import ClaimedRun, ClaimedStep, ItemRow, ResultRow
from soong.shared.storage.sql.claims.successor_hints import SuccessorHints
from soong.shared.storage.sql.engine.log_rows import preceding_of
from soong.shared.storage.sql.engine.rows import error_of, output_of, spec_of, unpack
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.strict import MalformedError, RowReader, object_of
from soong.shared.storage.sql.engine.transaction import Row, Transaction

KEPT: Final = 256
"""Parsed surfaces, task inputs and policies kept by a process, each by what names it; none of them ever changes."""

CLAIM_CONTEXT: Final = Statement(
    "claim context: run and session of each claimed step",
    """
    SELECT r.id, r.session_id, r.agent_id, r.role, r.definition, r.parent_run_id, r.parent_agent_id, r.task_id,
           r.step_key, r.step_title, r.model, r.token, r.surface, s.project, s.cwd, s.policy, r.dispatched_by,
           r.is_foreign, r.last_node
    FROM runs AS r JOIN sessions AS s ON s.id = r.session_id WHERE r.id IN @run_ids
    """,
)
TASK_CONTEXTS: Final = Statement("task contexts", "SELECT id, inputs, title FROM tasks WHERE id IN @task_ids")
SURFACES: Final = Statement("surfaces", "SELECT digest, body FROM surfaces WHERE digest IN @digests")

DEPENDENCIES: Final = Statement(
    "dependencies: the results of what these steps waited for, in the plan's order",
    """
    SELECT c.key, p.key, p.step_id, p.status, p.kind, p.output, p.outcome
    FROM steps AS c CROSS JOIN EACH OF c.depends_on AS e JOIN steps AS p ON p.key = c.task_id || '/' || e.value
    WHERE c.key IN @keys ORDER BY c.key, e.key
    """,
)
RESULTS: Final = Statement(
    "results: of single steps",
    "SELECT '', key, step_id, status, kind, output, outcome FROM steps WHERE key IN @keys",
)
ITEMS: Final = Statement(
    "items: the children of map steps, in item order",
    """
    SELECT map_key, key, kind, output FROM steps WHERE map_key IN @map_keys AND map_key <> ''
    ORDER BY map_key, item_index, ordinal
    """,
)


REMAINS: Final = Statement(
    "remains: of steps that did not end cleanly, why, how far they got, and what their last runs left",
    """
    SELECT s.key, s.error, s.progress,
        coalesce((SELECT payload FROM nodes AS n WHERE n.run_id = s.run_id AND n.kind = 'result'
                  ORDER BY n.number DESC LIMIT 1),
                 CASE WHEN s.status = 'completed' AND s.kind <> 'map'
                      THEN '{"v":1,"output":' || coalesce(s.output, 'null') || '}' END),
        (SELECT CASE WHEN n.kind = 'assistant' THEN '[[0,"assistant",' || n.payload || ']]' ELSE n.preceding END
         FROM nodes AS n WHERE n.run_id = s.run_id AND (n.kind = 'assistant' OR n.preceding LIKE '%,"assistant",{%')
         ORDER BY n.number DESC LIMIT 1),
        s.run_id
    FROM steps AS s WHERE s.key IN @keys
    """,
)
ANSWERS: Final = Statement(
    "answers: where a run's last answer may be, for one whose newest such row only looks as if it held one",
    """
    SELECT CASE WHEN n.kind = 'assistant' THEN '[[0,"assistant",' || n.payload || ']]' ELSE n.preceding END
    FROM nodes AS n WHERE n.run_id = :run_id AND (n.kind = 'assistant' OR n.preceding LIKE '%,"assistant",{%')
    ORDER BY n.number DESC
    """,
)
UNCLEAN_ITEMS: Final = Statement(
    "unclean items: the children of map steps that did not end cleanly, in item order",
    """
    SELECT map_key, key, step_id, status, kind, output, outcome FROM steps
    WHERE map_key IN @map_keys AND map_key <> ''
      AND (outcome = 'partial' OR status = 'failed' OR status = 'cancelled')
    ORDER BY map_key, item_index, ordinal
    """,
)


T = TypeVar("T")


class Contexts:
    """What claims get in addition to their steps, with the immutable part of it kept parsed. Used by one thread."""

    def __init__(self) -> None:
        self._surfaces: OrderedDict[str, JsonObject] = OrderedDict()
        self._tasks: OrderedDict[str, tuple[JsonObject, str]] = OrderedDict()
        self._policies: OrderedDict[str, JsonObject] = OrderedDict()
        self.successors = SuccessorHints()

    def read(self, tx: Transaction, run_ids: Sequence[str]) -> "ClaimContext":
        """Return what the claims of these runs get."""
        return self.told(tx, tx.rows(CLAIM_CONTEXT, run_ids=list(run_ids)))

    def know_task(self, task_id: str, inputs: str, title: str) -> None:
        """Keep what a task was given, read with a claim."""
        if task_id not in self._tasks:
            self._tasks[task_id] = (unpack(inputs), title)

    def told(self, tx: Transaction, rows: Sequence[Row]) -> "ClaimContext":
        """Return what claims get, given the rows of runs and sessions."""
        runs = {row.id: row for row in map(ClaimedRun._make, rows)}
        return ClaimContext(
            runs,
            _kept(self._tasks, {run.task_id for run in runs.values()}, lambda missing: _tasks(tx, missing)),
            _kept(self._surfaces, {run.surface for run in runs.values()}, lambda missing: _surfaces(tx, missing)),
            _kept(self._policies, {run.policy for run in runs.values()}, _policies),
        )


class ClaimContext(Value):
    """Runs with their sessions by run id, inputs and titles by task id, surfaces by digest, policies by their text."""

    runs: Mapping[str, ClaimedRun]
    tasks: Mapping[str, tuple[JsonObject, str]]
    surfaces: Mapping[str, JsonObject]
    policies: Mapping[str, JsonObject]

    def claim(self, step: ClaimedStep, dependencies: Mapping[str, StepResult]) -> Claim:
        run = self.runs[step.run_id]
        task_inputs, task_title = self.tasks[step.task_id]
        return Claim(
            step_key=step.key,
            fence=step.fence,
            identity=identity_of(run),
            spec=spec_of(step.spec),
            task_inputs=task_inputs,
            task_title=task_title,
            dependencies=dependencies,
            surface=self.surfaces[run.surface],
            token=run.token,
            attempt=step.attempt,
            project=run.project,
            cwd=run.cwd,
            policy=self.policies[run.policy],
            # A fork has a context from its beginning: its parent's.
            is_resumed=step.starts > 1 or run.role == Role.FORK,
            malformed=_what_is_wrong(step.fence, step.starts, last_node=0 if run.role == Role.FORK else run.last_node)
            or next((result.malformed for result in dependencies.values() if result.malformed), ""),
        )


def _what_is_wrong(fence: int, starts: int, *, last_node: int) -> str:
    """Say what no claim leaves behind: a context of a run that never started, or a start without a fence."""
    if fence < starts:
        return f"the step counts {starts} starts and {fence} leases"
    if starts == 1 and last_node:
        return f"the run has never started, and its context has {last_node} nodes"
    return ""


def identity_of(run: ClaimedRun) -> RunIdentity:
    return RunIdentity(
        session_id=run.session_id,
        run_id=run.id,
        agent_id=run.agent_id,
        role=Role(run.role),
        definition=run.definition,
        parent_run_id=run.parent_run_id,
        parent_agent_id=run.parent_agent_id,
        task_id=run.task_id,
        step_key=run.step_key,
        step_title=run.step_title,
        model=run.model,
        origin=Origin(run.dispatched_by, bool(run.is_foreign)),
    )


def _tasks(tx: Transaction, task_ids: Sequence[str]) -> dict[str, tuple[JsonObject, str]]:
    return {id_: (unpack(inputs), title) for id_, inputs, title in tx.rows(TASK_CONTEXTS, task_ids=task_ids)}


def _policies(texts: Sequence[str]) -> dict[str, JsonObject]:
    return {text: unpack(text) for text in texts}


def _surfaces(tx: Transaction, digests: Sequence[str]) -> dict[str, JsonObject]:
    return {digest: unpack(body) for digest, body in tx.rows(SURFACES, digests=digests)}


def _kept(
    cache: "OrderedDict[str, T]", keys: set[str], read: Callable[[Sequence[str]], Mapping[str, T]]
) -> dict[str, T]:
    """Return what these keys name, reading what is not kept yet."""
    missing = sorted(key for key in keys if key not in cache)
    found = {key: cache[key] for key in keys if key in cache}
    if missing:
        found.update(read(missing))
        cache.update((key, found[key]) for key in missing if key in found)
    for key in keys & cache.keys():
        cache.move_to_end(key)
    while len(cache) > KEPT:
        cache.popitem(last=False)
    return found


def results_for(tx: Transaction, step_keys: Sequence[str]) -> dict[str, dict[str, StepResult]]:
    """Return, by step key, the results of what each step depends on, by step id."""
    return results_of_rows(tx, tx.rows(DEPENDENCIES, keys=list(step_keys)))


def results_of_rows(tx: Transaction, rows: Sequence[Row]) -> dict[str, dict[str, StepResult]]:
    """Return the same, given the rows of :data:`DEPENDENCIES`."""
    found = [ResultRow._make(row) for row in rows]
    maps = [row.key for row in found if StepKind(row.kind).traits.has_items]
    lists = _map_outputs(tx, maps)
    told = _with_remains(tx, {row.key: _result(row, lists) for row in found}, set(maps))
    results: dict[str, dict[str, StepResult]] = {}
    for row in found:
        results.setdefault(row.child_key, {})[row.step_id] = told[row.key]
    return results


def result_of(tx: Transaction, step_key: str) -> StepResult | None:
    """Return what dependents see of a step; None when there is none of that key."""
    rows = tx.rows(RESULTS, keys=[step_key])
    if not rows:
        return None
    row = ResultRow._make(rows[0])
    is_map = StepKind(row.kind).traits.has_items
    result = _result(row, _map_outputs(tx, [step_key] if is_map else []))
    return _with_remains(tx, {step_key: result}, {step_key} if is_map else set())[step_key]


def _with_remains(tx: Transaction, read: dict[str, StepResult], maps: set[str]) -> dict[str, StepResult]:
    """Return results by step key with what remains of those that did not end cleanly; clean ones cost no statement."""
    unclean = {key: result for key, result in read.items() if is_unclean(result.status, result.outcome)}
    if not unclean:
        return read
    told = dict(read)
    children: dict[str, dict[str, StepResult]] = {}
    found = tx.rows(UNCLEAN_ITEMS, map_keys=sorted(maps & unclean.keys())) if maps & unclean.keys() else ()
    for item in map(ResultRow._make, found):
        children.setdefault(item.child_key, {})[item.key] = _result(item, _Lists())
    of_items = {key: result for items in children.values() for key, result in items.items()}
    for key, error, progress, result, answers, run_id in tx.rows(REMAINS, keys=sorted({*unclean, *of_items})):
        why = RowReader().take(partial(error_of, error), None)
        remains = FailureReport(why, progress, _object(result), _last_answer(tx, run_id, answers))
        if key in of_items:
            of_items[key] = remains.added_to(of_items[key])
        else:
            told[key] = remains.added_to(told[key])
    for key in maps & unclean.keys():
        told[key] = of_map(told[key], [of_items[child] for child in children.get(key, ())])
    return told


def _last_answer(tx: Transaction, run_id: str, newest: str | None) -> JsonObject | None:
    """Return the last answer of a run, given the newest row that may hold one, as entries of :data:`ANSWERS`."""
    if newest is None:
        return None
    if (answer := _answer_among(newest)) is not None:
        return answer
    return next(filter(None, map(_answer_among, tx.column(ANSWERS, run_id=run_id))), None)


def _answer_among(text: str) -> JsonObject | None:
    """Return the last answer among the entries of a row, as far as they can be read."""
    with suppress(MalformedError):
        for entry in reversed(preceding_of(text)):
            match entry:
                case [_, "assistant", dict(payload)]:
                    return payload
    return None


def _object(text: str | None) -> JsonObject | None:
    """Return what remains of an ended run, as far as it can be read."""
    with suppress(MalformedError):
        return None if text is None else object_of("payload", text)
    return None


def _result(row: ResultRow, lists: "_Lists") -> StepResult:
    _, key, step_id, status, kind, output, outcome = row
    try:
        value = lists.of(key) if StepKind(kind).traits.has_items else output_of(output)
    except MalformedError as error:
        words = f"the row of {step_id!r} is malformed: {error}"
        return StepResult(
            step_id, StepStatus.FAILED, None, error=StepError(MALFORMED, words, retryable=False), malformed=words
        )
    return StepResult(step_id, StepStatus(status), value, Outcome(outcome) if outcome else Outcome.CLEAN)


@dataclass(slots=True)
class _Lists:
    """The outputs of map steps by key, and what is wrong with one of their items, if it is."""

    outputs: dict[str, list[Json]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def of(self, key: str) -> Sequence[Json]:
        """Raises: MalformedError when the row of an item is malformed."""
        if key in self.problems:
            raise MalformedError(self.problems[key])
        return self.outputs.get(key, [])


def _map_outputs(tx: Transaction, map_keys: Sequence[str]) -> _Lists:
    """Return, by map key, the children's outputs in item order; of a child that is a map, its own list."""
    lists = _Lists()
    if not map_keys:
        return lists
    rows = [ItemRow._make(row) for row in tx.rows(ITEMS, map_keys=sorted(set(map_keys)))]
    inner = _map_outputs(tx, [row.key for row in rows if StepKind(row.kind).traits.has_items])
    for map_key, key, kind, output in rows:
        try:
            value: Json = inner.of(key) if StepKind(kind).traits.has_items else output_of(output)
        except MalformedError as error:
            lists.problems.setdefault(map_key, f"item {key}: {error}")
            continue
        lists.outputs.setdefault(map_key, []).append(value)
    return lists
