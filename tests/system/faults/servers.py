"""Servers that tests kill, freeze and start again at the same address with the same files."""

import os
import pwd
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import psycopg
import redis

from tests.servers import free_port, plain_environment, postgres_programs, redis_executable, run_bounded, short_folder
from tests.unit.sandbox.families import is_alive
from tests.waiting import blocking_looks, wait_until

START_LIMIT_S = 60.0

_GUARD = '"$@" >&2 & echo $!; read -r _; kill -9 $! 2>/dev/null; wait'


@dataclass
class MortalServer:
    """A server by its command line. ``user`` runs it where the superuser may not."""

    command: Sequence[str]
    folder: Path
    user: "pwd.struct_passwd | None" = None
    pid: int = 0
    stop_signal: int = signal.SIGTERM
    _guard: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    def answers(self) -> bool:
        raise NotImplementedError

    def start(self) -> None:
        """Start it and wait until it answers; again and again while what a killed one left behind is in the way."""
        self._begin()
        for _ in blocking_looks(START_LIMIT_S, f"an answer of {self.command[0]}"):
            if self.answers():
                return
            if not is_alive(self.pid):
                self._let_go()
                self._begin()

    def kill(self) -> None:
        """End it in the hardest way, its children too."""
        for process in self._family():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._let_go()

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, self.stop_signal)
        self._await_end()
        self._let_go()

    def freeze(self) -> None:
        """Stop every process of it: connections stay open and nothing answers."""
        for process in self._family():
            with suppress(psutil.NoSuchProcess):  # a backend whose client has just left
                process.suspend()

    def thaw(self) -> None:
        for process in self._family():
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def log(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")

    def _family(self) -> list[psutil.Process]:
        try:
            server = psutil.Process(self.pid)
            return [server, *server.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _await_end(self) -> None:
        with suppress(psutil.NoSuchProcess):
            wait_until(lambda: psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE, 20)

    def _begin(self) -> None:
        with (self.folder / "server.log").open("ab") as log:
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "sh", *self.command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self.folder,
                env=plain_environment(self.folder),
                process_group=0,
                user=self.user.pw_uid if self.user else None,
                group=self.user.pw_gid if self.user else None,
                extra_groups=[] if self.user else None,
            )
        assert self._guard.stdout is not None
        self.pid = int(self._guard.stdout.readline())

    def _let_go(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            for pipe in (guard.stdin, guard.stdout):
                if pipe is not None:
                    pipe.close()
            guard.wait(20)


@dataclass
class MortalRedis(MortalServer):
    """A Redis over TCP."""

    port: int = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def forget(self) -> None:
        """Remove what it would read when it starts."""
        for path in self.folder.glob("appendonly*"):
            path.unlink()

    def answers(self) -> bool:
        try:
            with redis.Redis(port=self.port, socket_timeout=1) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


@dataclass
class MortalPostgres(MortalServer):
    """A PostgreSQL over TCP on 127.0.0.1."""

    port: int = 0
    database: str = "postgres"
    # PostgreSQL's fast shutdown: it ends sessions; TERM would wait for them and meanwhile take no new ones.
    stop_signal: int = signal.SIGINT

    @property
    def url(self) -> str:
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        """Return the URL of the same database by another port, such as a proxy's."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{port}/{self.database}"

    def answers(self) -> bool:
        try:
            plain = self.url.replace("+psycopg", "").replace(f"/{self.database}", "/postgres")
            psycopg.connect(plain, connect_timeout=2).close()
        except psycopg.Error:
            return False
        return True

    def make_database(self, name: str) -> None:
        """Create an empty database and let ``url`` name it."""
        with psycopg.connect(f"postgresql://postgres@127.0.0.1:{self.port}/postgres", autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        self.database = name


@contextmanager
def mortal_redis(*options: str, folder: Path | None = None) -> Iterator[MortalRedis]:
    """Run a Redis without persistence unless ``options`` say otherwise; its files lie in ``folder``."""
    with short_folder("soong-redis-") as own:
        port = free_port()
        command = [
            *(redis_executable(), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder or own)),
            *("--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction", *options),
        ]
        server = MortalRedis([*command], own, port=port)
        try:
            server.start()
            yield server
        finally:
            server.kill()


@contextmanager
def mortal_postgres(*options: str, folder: Path | None = None) -> Iterator[MortalPostgres]:
    """Run a PostgreSQL that survives being killed; its data lie in ``folder``."""
    user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
    with short_folder("soong-pg-") as own:
        programs = postgres_programs(own, readable_by_all=user is not None)
        data, port = (folder or own) / "data", free_port()
        if user is not None:
            for each in filter(None, (own, folder)):
                os.chown(each, user.pw_uid, user.pw_gid)
        initdb = [str(programs / "initdb"), "-D", str(data), "-U", "postgres", "-E", "utf8", "--locale=C"]
        run_bounded([*initdb, "--auth=trust", "--no-sync", "--no-instructions"], own, user)
        command = [
            *(str(programs / "postgres"), "-D", str(data), "-k", str(own), "-h", "127.0.0.1", "-p", str(port)),
            *("-c", "max_connections=100", "-c", "shared_buffers=64MB", "-c", "restart_after_crash=off"),
            # Killed processes lose nothing that the kernel has; waiting for the disk would only make recovery slow.
            *("-c", "fsync=off"),
            *(part for option in options for part in ("-c", option)),
        ]
        server = MortalPostgres(command, own, user, port=port)
        try:
            server.start()
            yield server
        finally:
            server.kill()
