"""What an autoscaler asks PostgreSQL: how many slots a pool wants. Its role may ask this question and read nothing.

The answer is ``soong_steps_claimable + soong_steps_running`` of the metrics: what runs, and what would run if
there were more workers. A step that a concurrency limit holds back counts for nothing, so it calls for no worker.
"""

from collections.abc import Iterator
from typing import Final

from soong.shared.storage.sql.claims.claiming import LANES, LIVE_LEASES
from soong.shared.storage.sql.tasks.metrics import BESIDE

SLOTS_WANTED: Final = "soong_slots_wanted"
"""``SELECT soong_slots_wanted('default')``."""

COUNTED: Final = 10_000
"""How far ready steps of a lane are counted: more call for no other number of workers."""

_SCOPES: Final = (
    "ARRAY['session:' || its.session_id, 'definition:' || its.definition, 'model:' || its.model, 'pool:' || its.pool]"
)

# A definer's function: who asks needs no right on the tables. The limits are shared out lane by lane.
_FUNCTION: Final = f"""
CREATE OR REPLACE FUNCTION {{schema}}.{SLOTS_WANTED}(wanted_pool text) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = {{schema}}, pg_temp AS $soong$
#variable_conflict use_column
DECLARE
    room jsonb;
    found_row record;
    one_scope text;
    fitting bigint;
    slots_wanted bigint := 0;
BEGIN
    SELECT coalesce(jsonb_object_agg(scope, slots), jsonb_build_object()) INTO room FROM concurrency_limits;
    FOR found_row IN SELECT its.pool, its.number, {_SCOPES} AS scopes FROM ({LIVE_LEASES.postgres}) AS its LOOP
        IF found_row.pool = wanted_pool THEN
            slots_wanted := slots_wanted + greatest(found_row.number, 0);
        END IF;
        FOREACH one_scope IN ARRAY found_row.scopes LOOP
            IF room ? one_scope THEN
                room := room || jsonb_build_object(one_scope, (room->>one_scope)::bigint - found_row.number);
            END IF;
        END LOOP;
    END LOOP;
    FOR found_row IN {BESIDE.postgres} LOOP
        IF found_row.pool = wanted_pool THEN
            slots_wanted := slots_wanted - found_row.count;
        END IF;
    END LOOP;
    FOR found_row IN
        SELECT its.pool, its.count, {_SCOPES} AS scopes
        FROM ({LANES.postgres.replace("%(most)s", str(COUNTED))}) AS its WHERE its.claim_mode = 'assigned'
    LOOP
        fitting := found_row.count;
        FOREACH one_scope IN ARRAY found_row.scopes LOOP
            fitting := least(fitting, greatest(coalesce((room->>one_scope)::bigint, fitting), 0));
        END LOOP;
        FOREACH one_scope IN ARRAY found_row.scopes LOOP
            IF room ? one_scope THEN
                room := room || jsonb_build_object(one_scope, (room->>one_scope)::bigint - fitting);
            END IF;
        END LOOP;
        IF found_row.pool = wanted_pool THEN
            slots_wanted := slots_wanted + fitting;
        END IF;
    END LOOP;
    RETURN slots_wanted;
END $soong$
"""  # noqa: S608  # of texts of our own


def scaler_grants(schema: str, role: str) -> Iterator[str]:
    """Return what makes the question one that this role alone may ask, besides the owner. Both names are quoted."""
    yield _FUNCTION.format(schema=schema)
    yield f"REVOKE ALL ON FUNCTION {schema}.{SLOTS_WANTED}(text) FROM PUBLIC"
    yield f"GRANT EXECUTE ON FUNCTION {schema}.{SLOTS_WANTED}(text) TO {role}"
