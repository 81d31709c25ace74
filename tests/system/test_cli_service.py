"""The service of a home: found, started, joined, handed over, stopped and survived."""

import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import httpx
import psutil
import pytest

from soong.orchestrator.embedded.listening import listen
from tests.servers import free_port
from tests.system.cli_scene import CliHarness, Terminal, interrupted, scene, until
from tests.system.http_scene import is_answering
from tests.warm import warm_parent

NAP = "title: Nap\nsteps:\n- {id: nap, kind: python, call: builtin.sleep, inputs: {seconds: %s}}\n"
ECHO = "title: Echo\nsteps:\n- {id: echo, kind: python, call: builtin.echo, inputs: {x: 1}}\n"


@pytest.fixture
def service(cli: CliHarness) -> Iterator[CliHarness]:
    """A service that stays, as in another terminal."""
    up = cli.up()
    yield cli
    if up.poll() is None:
        up.send_signal(signal.SIGINT)
    up.communicate(timeout=60)


def test_interrupted_twice_at_once_a_task_of_a_service_that_stays_is_paused(service: CliHarness) -> None:
    command = service.start("run", service.plan(NAP % 600))
    service.until_running("nap")

    command.send_signal(signal.SIGSTOP)  # both are there when it looks
    command.send_signal(signal.SIGINT)
    command.send_signal(signal.SIGTERM)
    command.send_signal(signal.SIGCONT)
    _, told = command.communicate(timeout=60)

    assert (command.returncode, "continue it: " in told) == (130, True)
    until(lambda: [task["status"] for task in service.json("tasks", "list")] == ["paused"], "the pause", service.logs)


def test_two_terminals_at_once_and_commands_one_after_another_share_one_service(cli: CliHarness) -> None:
    cli.is_warm = False
    commands = [cli.start("run", cli.plan(NAP % 3, f"p{number}.yaml"), "--json") for number in range(2)]

    reports = [json.loads(command.communicate(timeout=120)[0]) for command in commands]

    assert [report["exit_code"] for report in reports] == [0, 0]
    for _ in range(4):
        time.sleep(0.6)  # a pause between commands, shorter than the second for which the service stays
        assert cli.run("run", cli.plan(ECHO)).returncode == 0
    # One of two services that were started at once found the home held and ended.
    ready = [log for log in (cli.home / "logs").glob("service-*.log") if "soong is up" in log.read_text()]
    assert len(ready) == 1
    assert f"database: sqlite:///{cli.home / 'soong.db'}; Redis: its own" in ready[0].read_text()
    cli.assert_nothing_left()


def test_down_stops_the_service_and_everything_of_it(service: CliHarness) -> None:
    done = service.run("down")

    assert done.returncode == 0, done.stderr
    service.assert_nothing_left()
    assert not (service.home / "service.json").exists()


BROKEN = {
    "no such module": ("nothing_of_that_name", "SOONG_FUNCTIONS names 'nothing_of_that_name'", False),
    "a module that fails": ("broken", "which cannot be imported: ZeroDivisionError", True),
    "a module that leaves": ("leaving", "which cannot be imported: SystemExit: 4", True),
}


@pytest.mark.parametrize(("functions", "words", "is_warm"), BROKEN.values(), ids=list(BROKEN))
def test_workers_that_cannot_start_are_reported_and_nothing_waits_for_them(
    cli: CliHarness, functions: str, words: str, is_warm: bool
) -> None:
    (cli.folder / "broken.py").write_text("1 / 0\n")
    (cli.folder / "leaving.py").write_text("import sys; sys.exit(4)\n")
    cli.environment |= {"SOONG_WORKERS": "2", "SOONG_FUNCTIONS": functions}
    cli.is_warm = is_warm

    done = cli.run("run", cli.plan(ECHO))

    assert done.returncode == 1
    assert "the workers do not start: " in done.stderr
    assert words in done.stderr
    assert any(f"its log: {log}" in done.stderr for log in (cli.home / "logs").glob("*.log"))
    assert "Traceback" not in done.stderr
    assert "the task is paused; continue it: " in done.stderr
    cli.assert_nothing_left()


def test_workers_that_cannot_start_are_reported_to_a_client_of_a_service_that_runs(cli: CliHarness) -> None:
    cli.environment["SOONG_FUNCTIONS"] = "nothing_of_that_name"
    up = cli.up()
    del cli.environment["SOONG_FUNCTIONS"]

    done = cli.run("run", cli.plan(ECHO))

    assert done.returncode == 1
    assert "the workers do not start: SOONG_FUNCTIONS names 'nothing_of_that_name'" in done.stderr
    up.send_signal(signal.SIGINT)
    assert "SOONG_FUNCTIONS names 'nothing_of_that_name'" in up.communicate(timeout=60)[1]


def test_a_cold_start_says_that_workers_start_and_asks_for_none(cli: CliHarness) -> None:
    cli.environment["SOONG_FUNCTIONS"] = "slow_start"
    (cli.folder / "slow_start.py").write_text("import time; time.sleep(4)\n")
    cli.is_warm = False

    done = cli.run("run", cli.plan(ECHO), "--workers", "2", "--slots", "1")

    assert done.returncode == 0, done.stderr
    assert "  starting 2 workers\n" in done.stderr
    assert "start one" not in done.stderr
    assert "starting 2 workers of 1 slots" in cli.logs()


def test_a_killed_last_worker_is_said_to_be_replaced(cli: CliHarness) -> None:
    cli.environment["SOONG_FUNCTIONS"] = "slow_start"
    (cli.folder / "slow_start.py").write_text("import time; time.sleep(4)\n")  # the next worker is missed for a while
    terminal = Terminal(cli, "run", cli.plan(NAP % 6), "--json")
    terminal.expect("▸ nap running")  # the command has seen the worker

    cli.workers()[0].kill()
    assert terminal.wait() == 0

    said = terminal.text
    assert "died (SIGKILL, killed, perhaps out of memory); 1 step starts again" in said
    assert "no worker is left: the service starts 1 worker" in said
    assert "start one" not in said


@pytest.mark.parametrize("call", ["team.sqare", "nobody.has_it"])
def test_a_function_that_no_worker_of_the_service_has_is_named_with_its_modules(cli: CliHarness, call: str) -> None:
    (cli.folder / "steps.py").write_text(
        "from soong import step\n@step(name='team.square')\ndef square(**inputs): return 4\n"
    )
    cli.environment["SOONG_FUNCTIONS"] = "steps"

    done = cli.run("run", cli.plan(ECHO.replace("builtin.echo", call)))

    assert done.returncode == 1
    assert f"step 'echo' needs the function '{call}', which no worker of the running service has" in done.stderr
    assert ("did you mean 'team.square'?" if call == "team.sqare" else "known: team.square") in done.stderr
    assert "the service's modules (SOONG_FUNCTIONS): steps" in done.stderr
    assert "down` and run again with SOONG_FUNCTIONS=MODULE" in done.stderr
    cli.assert_nothing_left()


def test_a_service_that_cannot_start_says_why(cli: CliHarness) -> None:
    (cli.home / "soong.db").mkdir(parents=True)
    cli.is_warm = False

    done = cli.run("run", cli.plan(ECHO))

    assert done.returncode == 1
    assert "the service did not start" in done.stderr
    assert "its log:" in done.stderr
    cli.assert_nothing_left()


def test_a_home_path_of_120_characters_works() -> None:
    with scene(home="h" * 60 + "/" + "o" * 59) as cli:
        assert len(str(cli.home)) > 120

        assert cli.json("run", cli.plan(ECHO))["exit_code"] == 0

        cli.assert_nothing_left()


@pytest.mark.spec("OPS-01.b")
def test_a_deployment_of_two_urls_runs_with_parts_started_on_their_own(
    cli: CliHarness, postgres_url: str, redis_tcp_url: str
) -> None:
    cli.environment |= {"SOONG_DATABASE_URL": postgres_url, "SOONG_REDIS_URL": redis_tcp_url}
    cli.is_warm = False
    early = cli.run("run", cli.plan(ECHO))
    assert cli.run("migrate").returncode == 0
    owner, worker = cli.start("orchestrator"), cli.start("worker")

    report = cli.json("run", cli.plan(ECHO))

    assert (early.returncode, "the database has no schema yet" in early.stderr) == (1, True)
    assert "Traceback" not in early.stderr
    assert report["exit_code"] == 0
    assert cli.json("doctor")["ok"] is True
    assert not (cli.home / "service.json").exists()
    for process in (worker, owner):
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0


@pytest.mark.spec("OPS-02.b")
def test_flower_is_behind_a_password_and_changes_nothing(service: CliHarness) -> None:
    port = free_port()
    flower = service.start("flower", "--port", str(port))
    auth = service.home / "flower.auth"
    until(lambda: auth.exists() and auth.read_text(), f"{auth} is written")
    user, _, password = auth.read_text().strip().partition(":")
    url = f"http://127.0.0.1:{port}"
    with httpx.Client(base_url=url, auth=(user, password), trust_env=False) as person:
        until(lambda: _answers(person), "Flower answers")

        assert auth.stat().st_mode & 0o777 == 0o600
        assert person.get("/", auth=None).status_code == 401
        assert person.get("/workers").status_code == 200
        assert person.post("/api/worker/shutdown/x").status_code in (403, 405)

        assert service.json("run", service.plan(ECHO))["exit_code"] == 0
        until(lambda: "python:builtin.echo:echo" in person.get("/api/tasks").text, "the run is shown by name")

    second = service.run("flower", "--port", str(port))
    assert second.returncode == 2
    assert f"port {port} of 127.0.0.1 is taken" in second.stderr

    flower.send_signal(signal.SIGINT)
    flower.communicate(timeout=30)
    assert not [process for process in service.processes() if "flower_process" in " ".join(process.cmdline())]


def test_doctor_tells_a_frozen_service(service: CliHarness) -> None:
    process = psutil.Process(service.record()["pid"])
    process.suspend()
    try:
        done = service.run("doctor")
    finally:
        process.resume()

    assert done.returncode == 1
    assert f"kill {process.pid}" in done.stdout


def _answers(person: httpx.Client) -> bool:
    with suppress(httpx.TransportError):
        return person.get("/healthcheck").is_success
    return False


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
from soong import step

@step(name="test.nap")
def nap(**inputs):
    while not Path("/wakes/up").exists():
        time.sleep(0.05)
"""


@pytest.fixture
def napping(cli: CliHarness) -> CliHarness:
    (cli.folder / "naps.py").write_text(NAPS.replace("/wakes/up", str(cli.folder / "awake")))
    cli.environment["SOONG_FUNCTIONS"] = "naps"
    return cli


def wake(cli: CliHarness) -> None:
    """End the nap, which lasts until then, however long everything else takes."""
    (cli.folder / "awake").touch()


def is_held_by(cli: CliHarness, pid: int) -> bool:
    try:
        return bool(cli.record()["pid"] == pid)
    except FileNotFoundError:
        return False


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
        first.wait()
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
    listener = listen("127.0.0.1", 0, ())
    port = listener.getsockname()[1]

    up = cli.start("up", "--http", str(port))
    until(lambda: "http_port_awaited" in cli.logs(), "it waits for the port", cli.logs)
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
        child = warm_parent().start(
            "soong.orchestrator.http",
            [str(listener.fileno()), str(parent)],
            env={**cli.env, "SOONG_DATABASE_URL": f"postgresql://{address}/x", "SOONG_REDIS_URL": f"redis://{address}"},
            cwd=cli.folder,
            stdout=1,
            stderr=2,
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
def test_a_service_takes_the_home_from_an_ephemeral_one_whose_client_died(napping: CliHarness) -> None:
    cli = napping
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


def test_a_client_of_an_ephemeral_service_goes_on_with_the_one_that_takes_over(napping: CliHarness) -> None:
    cli = napping
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
