"""One text, two dialects."""

from soong.shared.storage.sql.engine.statements import Insert, Statement
from soong.shared.storage.sql.engine.tables.work import events


def test_lists_are_one_json_value_in_both_dialects() -> None:
    statement = Statement("s", "SELECT 1 FROM steps WHERE key IN @keys AND fence = :fence")

    assert (
        statement.sqlite == "SELECT 1 FROM steps WHERE key IN (SELECT value FROM json_each(:keys)) AND fence = :fence"
    )
    assert (
        "key = ANY(ARRAY(SELECT json_array_elements_text(%(keys)s::json))) AND fence = %(fence)s" in statement.postgres
    )
    assert statement.parameters({"keys": ["a", "b"], "fence": 3}) == {"keys": '["a","b"]', "fence": 3}


def test_tables_are_read_from_one_json_value() -> None:
    statement = Statement("s", "SELECT e.key FROM @ends e(key text, fence bigint)")

    assert "json_extract(value, '$[1]') AS fence FROM json_each(:ends)) AS e" in statement.sqlite
    assert "(value->>1)::bigint AS fence FROM jsonb_array_elements(%(ends)s::jsonb)) AS e" in statement.postgres
    assert statement.parameters({"ends": [("a", 1), ("b", None)]}) == {"ends": '[["a",1],["b",null]]'}


def test_a_list_named_twice_is_packed_once() -> None:
    statement = Statement("s", "SELECT 1 FROM a WHERE k IN @keys UNION SELECT 1 FROM b WHERE k IN @keys")

    assert statement.parameters({"keys": ["a"]}) == {"keys": '["a"]'}


def test_what_postgres_needs_besides_is_a_comment_to_sqlite() -> None:
    statement = Statement("s", "SELECT 1 FROM concurrency_limits /*pg FOR UPDATE */")

    assert statement.sqlite.endswith("/*pg FOR UPDATE */")
    assert statement.postgres.endswith("FROM concurrency_limits FOR UPDATE ")


def test_casts_are_not_taken_for_parameters() -> None:
    assert Statement("s", "SELECT :worker::text").postgres == "SELECT %(worker)s::text"


def test_locking_rows_is_not_writing_them() -> None:
    assert not Statement("s", "SELECT 1 FROM a FOR UPDATE OF a").writes
    assert not Statement("s", "SELECT 1 FROM a FOR NO KEY UPDATE").writes
    assert Statement("s", "UPDATE a SET b = 1").writes
    assert Statement("s", "WITH x AS (UPDATE a SET b = 1 RETURNING b) SELECT b FROM x").writes


def test_inserts_compute_what_is_not_given() -> None:
    insert = Insert(events, ["run_id"], more={"back": "bigint"}, computed={"seq": "last(:run_id) - :back"})

    assert insert.sqlite == "INSERT INTO events (run_id, seq) VALUES (?1, last(?1) - ?2) "
    assert insert.postgres.startswith(
        "INSERT INTO events (run_id, seq) SELECT given.run_id, last(given.run_id) - given.back"
    )


def test_a_list_in_a_column_is_a_table_with_places() -> None:
    statement = Statement("s", "SELECT d.value FROM steps AS s CROSS JOIN EACH OF s.dependents AS d ORDER BY d.key")

    assert statement.sqlite == ("SELECT d.value FROM steps AS s CROSS JOIN json_each(s.dependents) AS d ORDER BY d.key")
    assert statement.postgres == (
        "SELECT d.value FROM steps AS s CROSS JOIN"
        " json_array_elements_text(s.dependents::json) WITH ORDINALITY AS d(value, key) ORDER BY d.key"
    )
