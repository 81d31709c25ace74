"""A real service with its HTTP API, and how tests call it."""

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.servers import free_port
from tests.system.cli_scene import CliHarness, WarmCommand, scene, until


@dataclass(frozen=True, slots=True)
class Service:
    """A service with its API, and how to call it."""

    cli: CliHarness
    port: int
    up: WarmCommand

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def project(self, name: str = "project") -> Path:
        """Make a folder for tasks to work in."""
        folder = self.cli.folder / name
        folder.mkdir()
        return folder

    def token(self, principal: str, *rights: str) -> str:
        given = [word for right in rights for word in ("--right", right)]
        done = self.cli.run("tokens", "create", "--principal", principal, *given)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() not in done.stderr
        return done.stdout.strip()

    def call(self, token: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        """Return status and document."""
        request = urllib.request.Request(
            f"{self.address}{path}", headers={"Authorization": f"Bearer {token}", **headers}
        )
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def submit(self, token: str, plan: object, *, project: Path | None = None, **more: object) -> str:
        """Submit a plan; return the path of its task."""
        body = {"plan": plan, "project": str(project or self.cli.folder), **more}
        status, document = self.call(token, "/v1/tasks", body)
        assert status == 201, document
        return f"/v1/tasks/{document['task']['id']}"

    def read(self, token: str, task: str) -> dict[str, Any]:
        """Return a task; its steps by their ids are ``steps``."""
        found = self.call(token, task)[1]
        return {**found, "steps": {step["id"]: step for step in found["steps"]}}

    def ended(self, token: str, task: str) -> dict[str, Any]:
        """Return a task once it has ended."""
        until(lambda: self.read(token, task)["status"] not in ("queued", "running"), f"{task} ends", self.cli.logs)
        return self.read(token, task)

    def is_answering(self) -> bool:
        return is_answering(self.port)

    def api(self) -> psutil.Process:
        """Return the API's own process."""
        children = psutil.Process(self.cli.record()["pid"]).children()
        return next(child for child in children if "soong.orchestrator.http" in child.cmdline())


def is_answering(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/ready", timeout=10) as response:
            return bool(response.status == 200)
    except OSError:
        return False


@contextmanager
def http_service(config: str = "", **environment: str) -> Iterator[Service]:
    """Run a service with this configuration and these settings in its environment until the context ends."""
    with scene() as cli:
        cli.environment.update(environment)
        if config:
            cli.home.mkdir(mode=0o700)
            (cli.home / "config.toml").write_text(config)
            (cli.home / "config.toml").chmod(0o600)
        port = free_port()
        up = cli.start("up", "--http", str(port))
        one = Service(cli, port, up)
        until(one.is_answering, "the API answers", cli.logs)
        yield one
        up.send_signal(signal.SIGINT)
        said = up.communicate(timeout=60)[1]
        assert f"HTTP API: http://127.0.0.1:{port}/v1/" in said
        assert not one.is_answering()
        cli.assert_nothing_left()
