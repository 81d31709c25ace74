"""The events of logs one by one, for questions in SQL: their rows hold those of one write together."""

from typing import Final

POSTGRES_EVENTS: Final = """(
    SELECT run_id, seq, type, time_us, data FROM events
    UNION ALL
    SELECT run_id, seq - json_array_length(preceding::json) + told.place - 1, told.entry->>0,
           (told.entry->>1)::bigint, told.entry->>2
    FROM events CROSS JOIN LATERAL json_array_elements(preceding::json) WITH ORDINALITY AS told(entry, place)
    WHERE preceding <> ''
)"""
SQLITE_EVENTS: Final = """(
    SELECT run_id, seq, type, time_us, data FROM events
    UNION ALL
    SELECT run_id, seq - json_array_length(preceding) + told.key, json_extract(told.value, '$[0]'),
           json_extract(told.value, '$[1]'), json_extract(told.value, '$[2]')
    FROM events, json_each(preceding) AS told
    WHERE preceding <> ''
)"""
"""A table of run_id, seq, type, time_us and data as text."""
