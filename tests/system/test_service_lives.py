import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import psutil
import pytest

from soong.orchestrator.embedded.listening import listen
from tests.servers import free_port
from tests.system.cli_scene import CliHarness, interrupted, scene, until

WAITS = """
title: Waits
steps:
  - id: asks
    allowed_tools: [code.write_file]
    script: builtin.calls
    inputs: {calls: [{call: code.write_file, with: {path: note.txt, content: hello}}]}
  - {id: naps, kind: python, call: test.nap}
"""

NAPS = """
import time
from pathlib import Path
from soong import step_function

@step_function("test.nap")
def nap(inputs, context):
    while not Path("/wakes/up").exists():
        time.sleep(0.05)
"""


@pytest.fixture
def cli() -> Iterator[CliHarness]:
    with scene() as one:
        (one.folder / "naps.py").write_text(NAPS.replace("/wakes/up", str(one.folder / "awake")))
        one.environment.update(SOONG_FUNCTIONS="naps", PYTHONPATH=str(one.folder))
        yield one


def wake(cli: CliHarness) -> None:
    """End the nap, which lasts until then, however long everything else takes."""
    (cli.folder / "awake").touch()


def is_answering(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/ready", timeout=10) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def is_held_by(cli: CliHarness, pid: int) -> bool:
    try:
        return bool(cli.record()["pid"] == pid)
    except FileNotFoundError:
        return False


def told(command: "subprocess.Popen[str]", words: str) -> bool:
    """Read what a command says until it says this; False when it ends before."""
    assert command.stderr is not None
    return any(words in line for line in command.stderr)


@pytest.mark.spec("OPS-01", "OPS-04")
def test_a_service_starts_again_at_once_after_it_was_killed_with_requests_under_way(cli: CliHarness) -> None:
    port = free_port()
    first = cli.start("up", "--http", str(port))
    until(lambda: is_answering(port), "the API answers", cli.logs)
    token = cli.run("tokens", "create", "--principal", "ada", "--right", "read").stdout.strip()
    with socket.create_connection(("127.0.0.1", port)) as poll:
        head = f"GET /v1/approvals?wait=55 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}"
        poll.sendall(f"{head}\r\n\r\n".encode())

        first.kill()
        second = cli.start("up", "--http", str(port))
        until(lambda: second.poll() is not None or is_held_by(cli, second.pid), "the next one starts", cli.logs)

    assert second.poll() is None
    until(lambda: is_answering(port), "the API answers again", cli.logs)
    interrupted(second)
    cli.assert_nothing_left()


@pytest.mark.parametrize("is_made_again", [False, True], ids=["deleted", "made again"])
def test_a_service_ends_whose_home_was_deleted_though_work_waits(cli: CliHarness, is_made_again: bool) -> None:
    up = cli.up()
    waits = "title: W\nsteps: [{id: a, kind: python, call: builtin.echo, inputs: {obj: 1}, needs: [gpu]}]\n"
    assert cli.run("run", cli.plan(waits), "--detach").returncode == 0

    cli.home.rename(cli.home.with_name("away"))
    shutil.rmtree(cli.home.with_name("away"))
    second = cli.up() if is_made_again else None

    until(lambda: up.poll() is not None, "it ends", cli.logs)
    assert up.returncode == 0
    if second is not None:
        assert cli.record()["pid"] == second.pid
        interrupted(second)
    cli.assert_nothing_left()


def test_a_service_waits_for_the_port_that_a_former_child_still_holds(cli: CliHarness) -> None:
    cli.home.mkdir(mode=0o700)
    listener = listen("127.0.0.1", 0, ())
    port = listener.getsockname()[1]

    up = cli.start("up", "--http", str(port))
    assert told(up, "http_port_awaited")
    listener.close()

    until(lambda: is_answering(port), "it answers", cli.logs)
    interrupted(up)
    assert up.returncode == 0
    cli.assert_nothing_left()


def test_an_api_that_still_starts_when_its_service_dies_leaves_the_port_at_once(cli: CliHarness) -> None:
    """It hangs on a database that takes connections and says nothing, as long as its driver waits for one."""
    listener = listen("127.0.0.1", 0, ())
    parent, ours = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "soong.orchestrator.http", *map(str, (listener.fileno(), parent))],
            env={**cli.env, "SOONG_DATABASE_URL": f"postgresql://{address}/x", "SOONG_REDIS_URL": f"redis://{address}"},
            pass_fds=(listener.fileno(), parent),
        )
        silent.settimeout(60)
        connection, _ = silent.accept()
        for descriptor in (parent, ours):
            os.close(descriptor)

        assert child.wait(5) == 0
        connection.close()
    listener.close()


@pytest.mark.spec("OPS-01", "OPS-06")
def test_a_service_takes_the_home_from_an_ephemeral_one_whose_client_died(cli: CliHarness) -> None:
    client = cli.start("run", cli.plan(WAITS), "--approvals", "inbox", "--project", str(cli.folder))
    cli.until_running("naps")
    until(lambda: cli.json("approvals", "list"), "the question is asked", cli.logs)
    (question,) = cli.json("approvals", "list")
    ephemeral = psutil.Process(cli.record()["pid"])
    client.kill()
    client.wait()

    up = cli.start("up")
    until(lambda: is_held_by(cli, up.pid), "`soong up` holds the home", cli.logs)
    wake(cli)

    assert not ephemeral.is_running() or ephemeral.status() == psutil.STATUS_ZOMBIE
    (asked,) = cli.json("approvals", "list")
    assert asked["id"] == question["id"]
    assert cli.run("approvals", "allow", question["id"]).returncode == 0
    until(lambda: set(cli.step_statuses().values()) == {"completed"}, "all steps are completed", cli.logs)
    assert (cli.folder / "note.txt").read_text() == "hello"
    interrupted(up)
    assert up.returncode == 0
    cli.assert_nothing_left()


def test_a_client_of_an_ephemeral_service_goes_on_with_the_one_that_takes_over(cli: CliHarness) -> None:
    client = cli.start("run", cli.plan(WAITS), "--json", "--allow", f"code.write_file:{cli.folder}")
    cli.until_running("naps")
    ephemeral = cli.record()["pid"]

    up = cli.start("up")
    until(lambda: is_held_by(cli, up.pid), "`soong up` holds the home", cli.logs)
    wake(cli)
    said, words = client.communicate(timeout=120)

    assert json.loads(said)["exit_code"] == 0
    assert "takes over" in words
    assert cli.record()["pid"] == up.pid != ephemeral
    interrupted(up)
    assert up.returncode == 0
    cli.assert_nothing_left()
