"""One text, two dialects."""

from soong.shared.storage.sql.engine.statements import Insert, Statement
from soong.shared.storage.sql.engine.tables.work import events


def test_a_list_named_twice_is_packed_once_and_a_cast_is_no_parameter() -> None:
    statement = Statement("s", "SELECT 1 FROM a WHERE k IN @keys UNION SELECT 1 FROM b WHERE k IN @keys")

    assert statement.parameters({"keys": ["a"]}) == {"keys": '["a"]'}

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
