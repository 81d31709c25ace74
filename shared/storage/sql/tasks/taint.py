"""Whether a run has read what strangers wrote, itself or through what it was given (PER-21).

A run whose definition came with its project is tainted from its start: the row names the definition. Of the rest, only
a run's own reading is written down, once, with the end of the call that read, in a column that a worker fills and
does not change. What a run inherits is found when it is asked for, which happens only before a call that
reaches the network: nothing on the way of steps pays for it.
"""

from typing import Final

from soong.shared.agents.project_definitions import is_of_project
from soong.shared.core.errors import NotFoundError
from soong.shared.engine.tasks.spec import StepKind
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Row, Transaction

BELOW: Final = Statement(
    "below: the run and all that it and they started, whose results it reads; a child starts none",
    """
    WITH RECURSIVE below (id, session_id, role, step_key, is_over, tainted_us, definition) AS (
        SELECT id, session_id, role, step_key, CASE WHEN end_reason IS NULL THEN 0 ELSE 1 END, tainted_us, definition
        FROM runs WHERE id = :run_id
        UNION ALL
        SELECT child.id, child.session_id, child.role, child.step_key,
               CASE WHEN child.end_reason IS NULL THEN 0 ELSE 1 END, child.tainted_us, child.definition
        FROM below JOIN runs AS child ON child.session_id = below.session_id AND child.parent_run_id = below.id
        WHERE below.role NOT IN ('sub', 'fork', 'worker')
    )
    SELECT id, step_key, is_over, CASE WHEN tainted_us IS NULL THEN 0 ELSE 1 END,
           (SELECT kind FROM steps WHERE steps.key = below.step_key), definition
    FROM below
    """,
)
AGENTS_ABOVE: Final = Statement(
    "agents above: the agents whose instructions the run follows; the root run of a plan is held by nobody",
    """
    WITH RECURSIVE above (id, fence, parent_run_id) AS (
        SELECT parent.id, parent.fence, parent.parent_run_id
        FROM runs AS own JOIN runs AS parent ON parent.id = own.parent_run_id WHERE own.id = :run_id
        UNION ALL
        SELECT parent.id, parent.fence, parent.parent_run_id
        FROM above JOIN runs AS parent ON parent.id = above.parent_run_id
    )
    SELECT id FROM above WHERE fence > 0
    """,
)
TAINT: Final = Statement(
    "taint: a run that is held has read what strangers wrote; once is enough",
    "UPDATE runs SET tainted_us = :now_us WHERE id = :run_id AND tainted_us IS NULL",
)
FEEDING: Final = Statement(
    "feeding: the steps whose results these take in: dependencies, those of an item's map step, a map step's items",
    """
    SELECT source.key, source.kind, (SELECT 1 FROM runs WHERE runs.id = source.run_id AND runs.tainted_us IS NOT NULL),
           (SELECT definition FROM runs WHERE runs.id = source.run_id)
    FROM steps AS source
    WHERE source.key IN (
        SELECT s.task_id || '/' || e.value FROM steps AS s CROSS JOIN EACH OF s.depends_on AS e WHERE s.key IN @keys
        UNION
        SELECT m.task_id || '/' || e.value
        FROM steps AS item JOIN steps AS m ON m.key = item.map_key CROSS JOIN EACH OF m.depends_on AS e
        WHERE item.key IN @keys
        UNION
        SELECT key FROM steps WHERE map_key IN @keys AND map_key <> ''
    )
    """,
)


def is_tainted(tx: Transaction, run_id: str) -> bool:
    """Say whether the run, what it started, whose agent it is, or anything that fed them has read untrusted content.

    A function's step counts as such: nothing says what it has read. An agent passes on to those that it starts what it
    has read itself, and the results that it may have read: those of its children that have ended.

    Raises: NotFoundError.
    """
    below = tx.rows(BELOW, run_id=run_id)
    if not below:
        raise NotFoundError("run", run_id)
    if any(_is_source(row, run_id) for row in below):
        return True
    for agent in tx.column(AGENTS_ABOVE, run_id=run_id):
        results = (row for row in tx.rows(BELOW, run_id=agent) if row[0] == agent or row[2])
        if any(_is_source(row, agent) for row in results):
            return True
    return _is_fed(tx, {step_key for _, step_key, *_ in below} - {""})


def _is_source(row: Row, asker: str) -> bool:
    """Say whether a run of ``BELOW`` has read untrusted content, or is a function's whose result the asker reads."""
    run_id, _, is_over, tainted, kind, definition = row
    is_read = run_id != asker and bool(is_over)
    return (
        bool(tainted)
        or is_of_project(definition)
        or (is_read and kind is not None and StepKind(kind).traits.is_untrusted)
    )


def _is_fed(tx: Transaction, keys: set[str]) -> bool:
    """Say whether what these steps take in comes from a step that has read untrusted content."""
    seen: set[str] = set()
    while keys:
        seen |= keys
        sources = tx.rows(FEEDING, keys=sorted(keys))
        if any(
            tainted or is_of_project(definition or "") or StepKind(kind).traits.is_untrusted
            for _, kind, tainted, definition in sources
        ):
            return True
        keys = {key for key, *_ in sources} - seen
    return False
