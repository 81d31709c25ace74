"""Reading the content of a claim for its worker, and the results of steps.

A map step's value is the list of its children's outputs in item order; it is gathered when it is read, never copied.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from soong.shared.core.identity import Role
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.runs.store import CallRow
from soong.shared.engine.tasks.failure_report import FailureReport, is_unclean, of_map
from soong.shared.engine.tasks.spec import StepKind, StepStatus
from soong.shared.engine.tasks.step import MALFORMED, Claim, Outcome, StepError, StepResult
from soong.shared.storage.sql.engine.log_rows import preceding_of
from soong.shared.storage.sql.engine.owned_writes import report
from soong.shared.storage.sql.engine.row_mapper import MalformedError, RowReader, object_of, unpack
from soong.shared.storage.sql.engine.rows import IDENTITIES, RUN_COLUMNS, error_of, output_of, spec_of
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Row, Transaction
from soong.shared.tools.ports import effect_id_of

KEPT: Final = 256
"""Parsed surfaces, task inputs and policies kept by a process, each by what names it; none of them ever changes."""

CLAIM_CONTEXT: Final = Statement(
    "claim context: run and session of each claimed step",
    f"""
    SELECT {", ".join(f"r.{name}" for name in RUN_COLUMNS)}, r.token, r.surface, r.last_node, s.project, s.cwd, s.policy
    FROM runs AS r JOIN sessions AS s ON s.id = r.session_id WHERE r.id IN @run_ids
    """,  # noqa: S608  # our own words
)
TASK_CONTEXTS: Final = Statement("task contexts", "SELECT id, inputs, title FROM tasks WHERE id IN @task_ids")
SURFACES: Final = Statement("surfaces", "SELECT digest, body FROM surfaces WHERE digest IN @digests")

DEPENDENCIES: Final = Statement(
    "dependencies: the results of what these steps waited for, in the plan's order",
    """
    SELECT c.key AS child_key, p.key, p.step_id, p.status, p.kind, p.output, p.outcome
    FROM steps AS c CROSS JOIN EACH OF c.depends_on AS e JOIN steps AS p ON p.key = c.task_id || '/' || e.value
    WHERE c.key IN @keys ORDER BY c.key, e.key
    """,
)
RESULTS: Final = Statement(
    "results: of single steps", "SELECT key, step_id, status, kind, output, outcome FROM steps WHERE key IN @keys"
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
    SELECT s.key, s.error, s.progress, s.run_id,
        (SELECT payload FROM nodes AS n WHERE n.run_id = s.run_id AND n.kind = 'result'
         ORDER BY n.number DESC LIMIT 1) AS result,
        (SELECT CASE WHEN n.kind = 'assistant' THEN '[[0,"assistant",' || n.payload || ']]' ELSE n.preceding END
         FROM nodes AS n WHERE n.run_id = s.run_id AND (n.kind = 'assistant' OR n.preceding LIKE '%,"assistant",{%')
         ORDER BY n.number DESC LIMIT 1) AS answers
    FROM steps AS s WHERE s.key IN @keys
    """,
)
OPEN_WRITES: Final = Statement(
    "open writes: of runs, the first calls that were to change something and whose end is not known",
    """
    SELECT run_id, tool_call_id, tool, effect_id, CASE WHEN length(facts) <= 20000 THEN facts ELSE '{}' END AS facts
    FROM calls WHERE run_id IN @run_ids AND is_write = 1 AND status = 'started' LIMIT 100
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
    """The context of claims in addition to their steps, with its immutable part kept parsed. Used by one thread."""

    def __init__(self) -> None:
        self._surfaces: dict[str, JsonObject] = {}
        self._tasks: dict[str, tuple[JsonObject, str]] = {}
        self._policies: dict[str, JsonObject] = {}

    def of_runs(self, tx: Transaction, rows: Sequence[Row]) -> "ClaimContext":
        """Return what claims get, given the rows of ``CLAIM_CONTEXT``."""
        tasks = _kept(
            self._tasks,
            {row.task_id for row in rows},
            lambda ids: {id_: (unpack(inputs), title) for id_, inputs, title in tx.rows(TASK_CONTEXTS, task_ids=ids)},
        )
        surfaces = _kept(
            self._surfaces,
            {row.surface for row in rows},
            lambda digests: {digest: unpack(body) for digest, body in tx.rows(SURFACES, digests=digests)},
        )
        policies = _kept(
            self._policies, {row.policy for row in rows}, lambda texts: {one: unpack(one) for one in texts}
        )
        return ClaimContext({row.id: row for row in rows}, tasks, surfaces, policies)


class ClaimContext(Value):
    """Runs with their sessions by run id, inputs and titles by task id, surfaces by digest, policies by their text."""

    runs: Mapping[str, Row]
    tasks: Mapping[str, tuple[JsonObject, str]]
    surfaces: Mapping[str, JsonObject]
    policies: Mapping[str, JsonObject]

    def claim(self, step: Row, dependencies: Mapping[str, StepResult]) -> Claim:
        """Return the claim of a step, given its row."""
        run = self.runs[step.run_id]
        # No claim leaves behind a start without a fence, or a context of a run that never started. A fork has a context
        # from its beginning: its parent's.
        if step.fence < step.starts:
            malformed = f"the step counts {step.starts} starts and {step.fence} leases"
        elif step.starts == 1 and run.role != Role.FORK and run.last_node:
            malformed = f"the run has never started, and its context has {run.last_node} nodes"
        else:
            malformed = next((result.malformed for result in dependencies.values() if result.malformed), "")
        return self.claim_of(
            run,
            step_key=step.key,
            fence=step.fence,
            spec=spec_of(step.spec),
            dependencies=dependencies,
            attempt=step.attempt,
            is_resumed=step.starts > 1 or run.role == Role.FORK,
            malformed=malformed,
        )

    def claim_of(self, run: Row, **of_step: Any) -> Claim:
        """Return a claim with what its run, task and session add."""
        task_inputs, task_title = self.tasks[run.task_id]
        return Claim(
            identity=IDENTITIES.read(run),
            task_inputs=task_inputs,
            task_title=task_title,
            surface=self.surfaces[run.surface],
            token=run.token,
            project=run.project,
            cwd=run.cwd,
            policy=self.policies[run.policy],
            **of_step,
        )


def _kept(cache: dict[str, T], keys: set[str], read: Callable[[Sequence[str]], Mapping[str, T]]) -> dict[str, T]:
    """Return what these keys name, reading what is not kept yet."""
    if missing := sorted(keys - cache.keys()):
        cache.update(read(missing))
    found = {key: cache[key] for key in keys if key in cache}
    while len(cache) > KEPT:
        del cache[next(iter(cache))]
    return found


def results_of(tx: Transaction, rows: Sequence[Row]) -> dict[str, dict[str, StepResult]]:
    """Return, by step key, the results of what each step depends on, by step id, given rows of ``DEPENDENCIES``."""
    if not rows:
        return {}
    maps = [row.key for row in rows if StepKind(row.kind).traits.has_items]
    lists = _map_outputs(tx, maps)
    told = _with_remains(tx, {row.key: _result(row, lists) for row in rows}, set(maps))
    results: dict[str, dict[str, StepResult]] = {}
    for row in rows:
        results.setdefault(row.child_key, {})[row.step_id] = told[row.key]
    return results


def result_of(tx: Transaction, step_key: str) -> StepResult | None:
    """Return what dependents see of a step; None when there is none of that key."""
    row = tx.first(RESULTS, keys=[step_key])
    if row is None:
        return None
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
    for item in found:
        children.setdefault(item.map_key, {})[item.key] = _result(item, {})
    of_items = {key: result for items in children.values() for key, result in items.items()}
    rows = tx.rows(REMAINS, keys=sorted({*unclean, *of_items}))
    open_writes = _open_writes(tx, [row.run_id for row in rows if row.run_id])
    for row in rows:
        error = RowReader().take(partial(error_of, row.error), None)
        answer = _last_answer(tx, row.run_id, row.answers)
        remains = FailureReport(error, row.progress, _object(row.result), answer, open_writes.get(row.run_id, ()))
        if row.key in of_items:
            of_items[row.key] = remains.added_to(of_items[row.key])
        else:
            told[row.key] = remains.added_to(told[row.key])
    for key in maps & unclean.keys():
        told[key] = of_map(told[key], [of_items[child] for child in children.get(key, ())])
    return told


def _open_writes(tx: Transaction, run_ids: Sequence[str]) -> dict[str, list[CallRow]]:
    """Return, by run, the writes that have started and not ended, with what they were about to touch."""
    found: dict[str, list[CallRow]] = {}
    for row in tx.rows(OPEN_WRITES, run_ids=run_ids):
        effect_id = row.effect_id or effect_id_of(row.run_id, row.tool_call_id)
        call = CallRow(row.run_id, row.tool_call_id, row.tool, effect_id, True, "", {}, _object(row.facts) or {})
        found.setdefault(row.run_id, []).append(call)
    return found


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


def _result(row: Row, lists: "_Lists") -> StepResult:
    try:
        value = _value(row, lists)
    except MalformedError as error:
        words = f"the row of {row.step_id!r} is malformed: {error}"
        return StepResult(
            row.step_id, StepStatus.FAILED, None, error=StepError(MALFORMED, words, retryable=False), malformed=words
        )
    outcome = Outcome(row.outcome) if row.outcome else Outcome.CLEAN
    return StepResult(row.step_id, StepStatus(row.status), value, outcome)


_Lists: TypeAlias = Mapping[str, Sequence[Json] | MalformedError]
"""The outputs of map steps by key, or what is wrong with one of their items."""


def _value(row: Row, lists: _Lists) -> Json:
    """Return the output of a step, of a map step its list. Raises: MalformedError."""
    if not StepKind(row.kind).traits.has_items:
        return output_of(row.output)
    found = lists.get(row.key, [])
    if isinstance(found, MalformedError):
        raise found
    return found


def _map_outputs(tx: Transaction, map_keys: Sequence[str]) -> _Lists:
    """Return, by map key, the children's outputs in item order; the output of a child map is its own list."""
    if not map_keys:
        return {}
    rows = tx.rows(ITEMS, map_keys=sorted(set(map_keys)))
    inner = _map_outputs(tx, [row.key for row in rows if StepKind(row.kind).traits.has_items])
    lists: dict[str, list[Json]] = {}
    problems: dict[str, MalformedError] = {}
    for row in rows:
        try:
            lists.setdefault(row.map_key, []).append(_value(row, inner))
        except MalformedError as error:
            problems.setdefault(row.map_key, MalformedError(f"item {row.key}: {error}"))
    return {**lists, **problems}


def tell_malformed(tx: Transaction, run_log: RunLogBuffer, claims: Iterable[Claim], now_us: int) -> None:
    """Tell of claims whose rows are malformed, in their runs' logs and, by the owner, in the audit log."""
    for claim in claims:
        if claim.malformed:
            problem: dict[str, Json] = {"what": MALFORMED, "step": claim.step_key, "reason": claim.malformed}
            event = NewEvent(EventType.SECURITY, problem)
            report(tx, claim.identity.run_id, [event], now_us)
            run_log.add(claim.identity.run_id, events=[event])
