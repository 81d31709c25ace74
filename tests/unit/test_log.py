import io
import json
import sys
from collections.abc import Iterator

import pytest
import structlog

from soong.shared.core.log import configure, get_logger
from soong.shared.sandbox.redact import redactor

SECRET = "hunter2-very-secret"


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)
    structlog.contextvars.clear_contextvars()


@pytest.mark.spec("OPS-05.c")
def test_each_line_of_the_log_is_one_json_object_with_its_event_process_time_and_facts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    configure("info", process="worker")
    log = get_logger("tests")

    log.debug("not_said")
    log.info("lease_lost", run="run_1", fence=3)
    log.warning("two\nlines", text="a\nb")

    first, second = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert first.pop("timestamp").endswith("Z")
    assert first == {
        "event": "lease_lost", "level": "info", "module": "tests", "process": "worker", "run": "run_1", "fence": 3,
    }  # fmt: skip
    assert (second["event"], second["text"]) == ("two\nlines", "a\nb")


@pytest.mark.spec("EVT-05.c")
def test_no_field_and_no_traceback_of_a_log_line_holds_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    configure("info", process="test", clean=redactor([SECRET]).text)
    log = get_logger("tests")

    try:
        raise ValueError(SECRET)
    except ValueError as error:
        log.exception("it_failed", words=[SECRET, {SECRET: 1}], error=error, count=3)

    written = stream.getvalue()
    assert SECRET not in written
    assert "it_failed" in written
    assert '"count": 3' in written
