"""Result nodes that have no row: those of completed runs whose step's output is all that there is to them.

A run that ends without a result node of its own, such as a function's, counts one more node than it has rows. Readers
make that node from the step's row, as long as the step is that run's. The owner that gives the step another run, or
removes it, writes the node before.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.runs.events import Node, NodeKind
from soong.shared.engine.tasks.step import MALFORMED
from soong.shared.storage.sql.engine.log_rows import nodes_of
from soong.shared.storage.sql.engine.rows import output_of
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.strict import RowReader
from soong.shared.storage.sql.engine.transaction import Transaction

RESULT_OF_STEP: Final = Statement(
    "result of step: the last node of a completed run, if it has no row",
    """
    SELECT r.last_node, s.output, r.ended_us FROM runs AS r JOIN steps AS s ON s.key = r.step_key AND s.run_id = r.id
    WHERE r.id = :run_id AND r.status || '' = 'completed' AND s.status || '' = 'completed' AND r.last_node > :after
      AND NOT EXISTS (SELECT 1 FROM nodes AS n WHERE n.run_id = r.id AND n.number >= r.last_node)
    """,
)
_KEEP: Final = """
    INSERT INTO nodes (run_id, number, parent, kind, payload, created_us)
    SELECT r.id, r.last_node, r.last_node - 1, 'result', '{"v":1,"output":' || coalesce(s.output, 'null') || '}',
           r.ended_us
    FROM steps AS s JOIN runs AS r ON r.id = s.run_id AND r.status || '' = 'completed' AND r.last_node > 0
    WHERE %s AND s.status || '' = 'completed'
      AND NOT EXISTS (SELECT 1 FROM nodes AS n WHERE n.run_id = r.id AND n.number >= r.last_node)
"""
KEEP_RESULTS: Final = Statement("keep results: of steps that get other runs", _KEEP % "s.key IN @keys")
KEEP_CHILD_RESULTS: Final = Statement(
    "keep child results: of the children of map steps, which are removed",
    _KEEP % "s.map_key IN @keys AND s.map_key <> ''",
)


def nodes_after(tx: Transaction, run_id: str, rows: Sequence[Any], after: int, limit: int | None = None) -> list[Node]:
    """Return the nodes of a run's rows after a number, at most ``limit``, and its result if that has no row."""
    found = list(islice(nodes_of(rows, after), limit))
    if (limit is not None and len(found) >= limit) or (found and found[-1].kind is NodeKind.RESULT):
        return found
    results = [_result(run_id, *row) for row in tx.rows(RESULT_OF_STEP, run_id=run_id, after=after)]
    # A page that its size ends has others before the result.
    is_cut = bool(results and found and limit is not None and results[0].parent != found[-1].number)
    return found if is_cut else [*found, *results]


def _result(run_id: str, number: int, output: str | None, ended_us: int) -> Node:
    reading = RowReader()
    value = reading.take(lambda: output_of(output), None)
    payload: JsonObject = {"v": 1, MALFORMED: reading.problem} if reading.problems else {"v": 1, "output": value}
    return Node(run_id, number, number - 1, NodeKind.RESULT, payload, ended_us)
