"""What all tables share: their catalogue, with the names of constraints, and the conditions of partial indexes."""

from typing import Final

from sqlalchemy import MetaData

from soong.shared.storage.sql.engine.columns import by_dialect

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

READY = "status = 'ready' AND is_paused = 0"
TASK_OVER = "status IN ('completed', 'failed', 'cancelled')"
LEASED = "status = 'running'"
UNSETTLED = "status = 'failed' AND is_settled = 0"
DUE = "status = 'pending' AND not_before_us IS NOT NULL"
UNTOLD = "kind = 'map' AND ready_us IS NOT NULL"

ROOM: Final = by_dialect(postgresql_with={"fillfactor": 30})
"""Of a table whose rows change often: the next versions fit on the page, and little of them is written ahead."""
