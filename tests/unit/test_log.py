import io
import sys
from collections.abc import Iterator

import pytest
import structlog

from shared.log import configure, get_logger
from shared.sandbox.redact import redactor

SECRET = "hunter2-very-secret"


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)
    structlog.contextvars.clear_contextvars()


@pytest.mark.spec("EVT-05")
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
