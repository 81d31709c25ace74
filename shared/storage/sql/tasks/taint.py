"""Whether a run has read what strangers wrote, itself or through what it was given (PER-21).

Only a run's own reading is written down, once, with the end of the call that read, in a table in which a worker
inserts and changes nothing. What a run inherits is found when it is asked for, which happens only before a call that
reaches the network: nothing on the way of steps pays for it.
"""

from typing import Final

from soong.shared.core.errors import NotFoundError
from soong.shared.engine.tasks.kinds import StepKind
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Transaction

OWN: Final = Statement(
    "own: the run and the runs that it started, whose results it reads; a child starts none",
    """
    SELECT own.id, own.step_key, (SELECT 1 FROM taints WHERE taints.run_id = own.id)
    FROM runs AS own WHERE own.id = :run_id
    UNION ALL
    SELECT child.id, child.step_key, (SELECT 1 FROM taints WHERE taints.run_id = child.id) FROM runs AS asker
    JOIN runs AS child ON child.session_id = asker.session_id AND child.parent_run_id = asker.id
    WHERE asker.id = :run_id AND asker.role NOT IN ('sub', 'fork', 'worker')
    """,
)
TAINT: Final = Statement(
    "taint: a run that is held has read what strangers wrote; once is enough",
    "INSERT INTO taints (run_id, tainted_us) VALUES (:run_id, :now_us) ON CONFLICT DO NOTHING",
)
FEEDING: Final = Statement(
    "feeding: the steps whose results these take in: dependencies, those of an item's map step, a map step's items",
    """
    SELECT source.key, source.kind, (SELECT 1 FROM taints WHERE taints.run_id = source.run_id)
    FROM steps AS source
    WHERE source.key IN (
        SELECT parent_key FROM edges WHERE child_key IN @keys
        UNION
        SELECT edges.parent_key FROM steps AS item JOIN edges ON edges.child_key = item.map_key WHERE item.key IN @keys
        UNION
        SELECT key FROM steps WHERE map_key IN @keys AND map_key <> ''
    )
    """,
)


def is_tainted(tx: Transaction, run_id: str) -> bool:
    """Say whether the run, what it started, or anything that fed them has read untrusted content.

    A function's step counts as such: nothing says what it has read. Raises: NotFoundError.
    """
    own = tx.rows(OWN, run_id=run_id)
    if not own:
        raise NotFoundError("run", run_id)
    if any(tainted for *_, tainted in own):
        return True
    seen: set[str] = set()
    keys = {step_key for _, step_key, _ in own} - {""}
    while keys:
        seen |= keys
        sources = tx.rows(FEEDING, keys=sorted(keys))
        if any(tainted or StepKind(kind).traits.is_untrusted for _, kind, tainted in sources):
            return True
        keys = {key for key, *_ in sources} - seen
    return False
