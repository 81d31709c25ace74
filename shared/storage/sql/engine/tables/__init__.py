"""The tables, their constraints and their indexes: what a database of ours looks like at its head.

``ordinal`` is the order of insertion. The partial indexes hold live rows only, so that no hot statement grows with what
has ended; the checks are the last line behind the status tables in :mod:`soong.shared.engine.tasks.status` and
:mod:`soong.shared.engine.runs.status`.
"""

from soong.shared.storage.sql.engine.columns import metadata
from soong.shared.storage.sql.engine.tables import service, work

__all__ = ["metadata", "service", "work"]
