"""The tables, their constraints and their indexes: the schema of a database of ours at its head.

``ordinal`` is the order of insertion. The partial indexes hold live rows only, so that no hot statement grows with
ended rows; the checks are the last line behind the status tables in :mod:`soong.shared.engine.tasks.spec` and
:mod:`soong.shared.engine.runs.record`.
"""

from soong.shared.storage.sql.engine.columns import metadata
from soong.shared.storage.sql.engine.tables import service, work

__all__ = ["metadata", "service", "work"]
