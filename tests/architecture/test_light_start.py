"""The part of the product that a step enters, and the modules that a start imports."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.walk import walked

SERVER = {"celery", "kombu", "pydantic_ai", "alembic", "fastapi", "starlette", "uvicorn", "soong.orchestrator.owner"}
TRACED = {"opentelemetry.exporter", "opentelemetry.proto", "google.protobuf"}
SHOWN = {"rich", "structlog", "pydantic_settings", "psycopg", "dotenv"}
CHECKS, CLIENT = {"jsonschema", "psutil"}, {"soong.orchestrator.client.client"}
STORE = {"sqlalchemy", "redis", "cryptography", "soong.shared.storage.sql"}
CLI = "from soong.orchestrator.cli.main import main; import sys; sys.argv = ['soong', *{words!r}]; main()"
DRIVERS = {"sqlalchemy.dialects.postgresql", "sqlalchemy.dialects.mysql", "sqlalchemy.orm", "sqlalchemy.ext.asyncio"}
CASES = {
    "soong --help": (CLI.format(words=["--help"]), SERVER | SHOWN | STORE | CHECKS | {"pydantic", "yaml", "asyncio"}),
    "soong tools list": (CLI.format(words=["tools", "list"]), SERVER | SHOWN | STORE | CHECKS | CLIENT),
    "soong run, by a running service": (
        "import soong.orchestrator.cli.main, soong.orchestrator.cli.run",
        SERVER | SHOWN | STORE | {"pydantic", "yaml", "psutil"},
    ),
    "a client of the rows": (
        "import soong.orchestrator.client.bootstrap",
        SERVER
        | SHOWN
        | DRIVERS
        | {"soong.orchestrator.retention", "soong.shared.storage.sql.roles", "soong.orchestrator.http"},
    ),
    "a worker": (
        "import soong.worker.bootstrap",
        {"alembic", "fastapi", "uvicorn", "rich", "soong.orchestrator"} | TRACED | DRIVERS,
    ),
    "an orchestrator without telemetry": (
        "import soong.orchestrator.owner.bootstrap",
        TRACED | {"soong.orchestrator.telemetry.otlp", "soong.orchestrator.telemetry.consumers"},
    ),
}


@pytest.mark.spec("OPS-04")
@pytest.mark.parametrize(("code", "unwanted"), CASES.values(), ids=CASES)
def test_a_process_imports_no_library_that_it_does_not_use(code: str, unwanted: set[str], tmp_path: Path) -> None:
    report = f"import atexit, sys\natexit.register(lambda: print(sorted({unwanted!r} & sys.modules.keys())))\n{code}"

    done = subprocess.run(
        [sys.executable, "-P", "-c", report],
        capture_output=True,
        text=True,
        check=False,
        env={"SOONG_AGENT_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


BOUNDS = {"echo": (627, 128), "agent": (1_059, 179)}
"""The most functions and files of a walk: as few as there are now, so that none come in unseen."""


@pytest.mark.timeout(300)
def test_a_step_enters_few_functions_and_files(tmp_path: Path) -> None:
    found: dict[str, tuple[int, int]] = {}
    for folder in (tmp_path / "first", tmp_path / "second"):  # a busy machine enters more: the shorter walk counts
        folder.mkdir()
        found = {name: (functions, files) for name, (functions, files, _) in walked(folder).items()}
        if all(most[0] >= found[name][0] for name, most in BOUNDS.items()):
            break

    assert found.keys() == BOUNDS.keys()
    for name, (functions, files) in found.items():
        assert 100 < functions <= BOUNDS[name][0], name
        assert 50 < files <= BOUNDS[name][1], name
