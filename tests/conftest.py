"""What every test stands on: a clean environment, a home of its own, and real servers that are started once."""

import gc
import importlib
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import execnet
import pytest
import redis
import structlog
from hypothesis import settings

from tests.servers import PostgresServer, RedisServer, postgres_server, redis_server
from tests.spec_plugin import SpecResults
from tests.warm import ROOT, warm_program

# Modules and tests are no garbage: looking for it among them is a quarter of the collection, in each process of a run.
gc.set_threshold(1_000_000, 20, 20)

# The same examples in every run, so that a failure is a change of ours and never luck. `make chaos` looks for others,
# and for more of them.
settings.register_profile("same", derandomize=True, database=None, deadline=None, max_examples=25)
settings.register_profile("explore", database=None, deadline=None, print_blob=True)
settings.load_profile("same")

# Tests make and remove files by the ten thousand. A disk can take a third of a second of CPU for the files of one
# database; memory takes a hundredth. The processes of a run inherit the folder, which goes with it: set TMPDIR to keep
# what a test has left.
_MEMORY = Path("/dev/shm")
_IN_MEMORY = _MEMORY / f"soong-test-{os.getpid()}"  # short: paths of unix sockets end at 108 bytes
_room = os.statvfs(_MEMORY) if os.access(_MEMORY, os.W_OK) else None
if (
    "TMPDIR" not in os.environ
    and _room
    and not _room.f_flag & os.ST_NOEXEC
    and _room.f_bavail * _room.f_frsize > 4 << 30
):
    for _left in _MEMORY.glob("soong-test-*"):  # of runs that were killed
        if _left == _IN_MEMORY or not Path("/proc", _left.name.rpartition("-")[2]).exists():
            shutil.rmtree(_left, ignore_errors=True)
    _IN_MEMORY.mkdir()  # one that another user has put there is an error
    os.environ["TMPDIR"] = tempfile.tempdir = str(_IN_MEMORY)

# Set before any module of ours can look: a test run reads nothing of its user's settings, home or session.
_OWN_HOME = tempfile.mkdtemp(prefix="soong-home-")
for _name in [name for name in os.environ if name.startswith(("SOONG_", "FLOWER_", "CELERY_", "XDG_"))]:
    if _name != "SOONG_RECORDINGS":  # a folder of recordings for tests/wires, no setting of the product
        del os.environ[_name]
os.environ["HOME"] = _OWN_HOME
# Sockets of services that a test starts lie here, so that they go with it.
os.environ["XDG_RUNTIME_DIR"] = _OWN_HOME

# As our processes log: without what variables held, which takes seconds to render on a busy machine.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
        structlog.dev.ConsoleRenderer(colors=False),
    ]
)


_LOGGING = structlog.get_config()


@pytest.fixture(autouse=True)
def _same_logging() -> Iterator[None]:
    """A command that a test runs in this process sets a level for all of it; the next test logs as the first did."""
    yield
    structlog.configure(**_LOGGING)
    structlog.contextvars.clear_contextvars()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the modules of tests/system, which wait for processes, among those that compute; last come short tests."""
    modules = list(dict.fromkeys(item.path for item in items))
    waiting = [path for path in modules if "system" in path.parts]
    computing = [path for path in modules if path not in waiting]
    places = {path: 0.7 * place / len(waiting) for place, path in enumerate(waiting)}
    places |= {path: place / len(computing) for place, path in enumerate(computing)}
    items.sort(key=lambda item: places[item.path])


def pytest_collection_finish() -> None:
    """Search for cycles what tests leave, and not all modules and tests each time."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: Sequence[execnet.XSpec]) -> None:
    """Fork the processes of a run from one that has imported what all of them need."""
    os.environ["TEST_RUN"] = f"{os.getpid()}"
    program = warm_program(Path(_OWN_HOME, "forked"), "tests.forked")
    for spec in specs:
        spec.python = shlex.join([sys.executable, "-IS", str(program)])


def pytest_sessionstart(session: pytest.Session) -> None:
    """Begin to import tests at another place in each process: of a fresh checkout each compiles its share for all."""
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        paths = sorted(path for place in session.config.args for path in Path(place).rglob("test_*.py"))
        start = len(paths) * int(worker.removeprefix("gw")) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        for path in (*paths[start:], *paths[:start]):
            with suppress(Exception, pytest.skip.Exception):  # its collection shows it
                importlib.import_module(".".join(path.resolve().relative_to(ROOT).with_suffix("").parts))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SpecResults(config), "spec-results")


def pytest_unconfigure() -> None:
    shutil.rmtree(_OWN_HOME, ignore_errors=True)
    shutil.rmtree(_IN_MEMORY, ignore_errors=True)


@pytest.fixture(scope="session")
def redis_session_server() -> Iterator[RedisServer]:
    """The one Redis of this test run. Ask for ``redis_live`` unless a test is about the server itself."""
    with redis_server() as server:
        yield server


@pytest.fixture
def redis_live(redis_session_server: RedisServer) -> RedisServer:
    """A real, empty Redis."""
    with redis.Redis(unix_socket_path=str(redis_session_server.socket_path)) as client:
        client.flushall()
    return redis_session_server


@pytest.fixture
def redis_url(redis_live: RedisServer) -> str:
    """A real, empty Redis by its unix socket."""
    return redis_live.socket_url


@pytest.fixture
def redis_tcp_url(redis_live: RedisServer) -> str:
    """A real, empty Redis by TCP on the loopback interface."""
    return redis_live.tcp_url


@pytest.fixture(scope="session")
def postgres_session_server() -> Iterator[PostgresServer]:
    """The one PostgreSQL of this test run."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_session_server: PostgresServer) -> Iterator[str]:
    """An empty PostgreSQL database for one test."""
    with postgres_session_server.fresh_database() as url:
        yield url


@pytest.fixture(scope="module")
def postgres_module_url(postgres_session_server: PostgresServer) -> Iterator[str]:
    """An empty PostgreSQL database that the tests of one module share."""
    with postgres_session_server.fresh_database() as url:
        yield url
