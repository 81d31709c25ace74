import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.system.cli_scene import until
from tests.system.http_scene import Service, http_service

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers restart under their subreaper"),
]

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ledger:
    """What the functions themselves wrote."""

    folder: Path

    def step(self, step_id: str, call: str = "test.note", *, until: str = "until", **more: object) -> dict[str, object]:
        """Return a step whose function ends when it is let to; at once without ``until``."""
        inputs = {"ledger": str(self.folder / "ledger"), "until": str(self.folder / until) if until else ""}
        return {"id": step_id, "kind": "python", "call": call, "inputs": inputs, **more}

    def agent(self, step_id: str, script: str, **more: object) -> dict[str, object]:
        """Return a step whose scripted agent, or a tool of its, ends when it is let to."""
        inputs = {"ledger": str(self.folder / "ledger"), "until": str(self.folder / "until")}
        return {"id": step_id, "script": script, "inputs": inputs, "allowed_tools": ["test.*"], **more}

    def quick(self, step_id: str) -> dict[str, object]:
        return self.step(step_id, until="")

    def let_end(self) -> None:
        (self.folder / "until").touch()

    def lines(self) -> list[list[str]]:
        path = self.folder / "ledger"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def count(self, what: str) -> int:
        return sum(line[0] == what for line in self.lines())

    def most_at_once(self, *, step: str = "") -> int:
        most = now = 0
        for what, step_id, *_ in self.lines():
            if step in ("", step_id):
                now += 1 if what == "begin" else -1
                most = max(most, now)
        return most


@dataclass(frozen=True)
class Scene:
    service: Service
    token: str
    ledger: Ledger

    def submit(self, *steps: object) -> str:
        return self.service.submit(self.token, {"title": "t", "steps": list(steps)})

    def act(self, task: str, what: str) -> tuple[int, Any]:
        return self.service.call(self.token, f"{task}/{what}", {})

    def read(self, task: str) -> dict[str, Any]:
        return self.service.read(self.token, task)

    def until_status(self, task: str, status: str, limit_s: float = 60) -> dict[str, Any]:
        until(lambda: self.read(task)["status"] == status, f"{task} is {status}", self.service.cli.logs, limit_s)
        return self.read(task)

    def until_count(self, what: str, number: int) -> None:
        until(lambda: self.ledger.count(what) >= number, f"{number} {what}", self.service.cli.logs)

    def cli(self, *arguments: str) -> str:
        done = self.service.cli.run(*arguments)
        return done.stdout + done.stderr


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.chaos)])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def database(request: pytest.FixtureRequest, store: str) -> Iterator[dict[str, str]]:
    """Give one service what names its database, and the Redis that such a database asks for."""
    if store == "sqlite":
        yield {}
        return
    redis_url = request.getfixturevalue("redis_session_server").tcp_url
    with request.getfixturevalue("postgres_session_server").fresh_database() as url:
        yield {"SOONG_DATABASE_URL": url, "SOONG_REDIS_URL": redis_url}


@pytest.fixture(scope="module", params=[{}], ids=["10 slots"])
def service(request: pytest.FixtureRequest, store: str) -> Iterator[Service]:
    modules = {
        "SOONG_FUNCTIONS": "tests.system.functions,tests.system.hanging_tools",
        "SOONG_TOOLS": "tests.system.hanging_tools",
    }
    given = {**modules, "PYTHONPATH": str(ROOT), "SOONG_WORKERS": "1", "SOONG_BEAT_S": "0.5"}
    given |= {"SOONG_SLOTS": "10", "SOONG_STUCK_S": "2", "SOONG_DRAIN_S": "1", **request.param}
    with database(request, store) as urls, http_service(**given, **urls) as one:
        yield one


@pytest.fixture
def scene(service: Service, tmp_path: Path) -> Iterator[Scene]:
    one = Scene(service, service.token("ada", "run"), Ledger(tmp_path))
    yield one
    one.ledger.let_end()


def test_ten_quick_steps_complete_within_a_second_beside_eight_cancelled_functions(scene: Scene) -> None:
    hanging = scene.submit(*(scene.ledger.step(f"h{number}") for number in range(8)))
    scene.until_count("begin", 8)
    assert scene.act(hanging, "cancel")[0] == 200
    scene.until_status(hanging, "cancelled", 2)

    quick = scene.submit(*(scene.ledger.quick(f"q{number}") for number in range(10)))
    scene.until_status(quick, "completed", 1)

    status = scene.cli("status")
    assert all(f"h{number}" in status and "test.note" in status for number in range(8))
    assert scene.ledger.most_at_once() <= 10
    scene.ledger.let_end()
    until(lambda: scene.read(hanging)["steps"]["h0"]["status"] == "cancelled", "h0 has ended")


def test_a_paused_function_is_not_run_twice_and_its_result_counts(scene: Scene) -> None:
    task = scene.submit(scene.ledger.step("one"))
    scene.until_count("begin", 1)

    scene.act(task, "pause")
    scene.until_status(task, "paused", 2)
    scene.act(task, "resume")
    scene.until_status(task, "running", 2)
    scene.ledger.let_end()

    assert scene.until_status(task, "completed")["steps"]["one"]["status"] == "completed"
    assert [line[0] for line in scene.ledger.lines()] == ["begin", "end"]


def test_a_function_that_was_paused_and_resumed_fails_at_its_time_limit(scene: Scene) -> None:
    task = scene.submit(scene.ledger.step("slow", timeout_s=4))
    scene.until_count("begin", 1)
    scene.act(task, "pause")
    scene.until_status(task, "paused", 2)
    scene.act(task, "resume")

    failed = scene.until_status(task, "failed", 8)

    assert "took longer than 4.0 s" in failed["reason"]
    assert not _is_reported(scene, task)
    scene.ledger.let_end()
    until(lambda: scene.read(task)["steps"]["slow"]["status"] == "failed", "slow has ended")


def test_a_function_reaches_its_time_limit_during_a_pause(scene: Scene) -> None:
    task = scene.submit(scene.ledger.step("slow", timeout_s=1.5))
    scene.until_count("begin", 1)
    scene.act(task, "pause")
    progress = "took longer than 1.5 s; test.note still runs"
    until(lambda: progress in str(scene.read(task)["steps"]["slow"]["progress"]), "its time is over")
    assert scene.read(task)["status"] == "paused"

    scene.act(task, "resume")

    scene.until_status(task, "failed", 8)


@pytest.mark.parametrize(
    ("script", "tool"),
    [("tests.hang_in_tool", "test.hang"), ("tests.hang_in_limited_deaf_tool", "test.hang_deaf_limited")],
    ids=["thread", "coroutine"],
)
def test_an_agent_that_has_completed_does_not_wait_for_its_tool_that_still_runs(
    scene: Scene, script: str, tool: str
) -> None:
    task = scene.submit(
        scene.ledger.agent("agent", script),
        {"id": "after", "kind": "python", "call": "builtin.echo", "depends_on": ["agent"]},
    )

    completed = scene.until_status(task, "completed", 8)

    assert completed["steps"]["agent"]["output"] == {"type": "timeout"}
    stuck = f'"function": "{tool}"'
    until(lambda: stuck in _log_of_worker(scene), "it counts as stuck", scene.service.cli.logs)
    entry = next(line for line in _log_of_worker(scene).splitlines() if stuck in line)
    assert f", in {tool.removeprefix('test.')}\n" in json.loads(entry)["stack"]
    left_over = f"agent ({tool}): completed, still running"
    until(lambda: left_over in scene.cli("status"), "status names it", scene.service.cli.logs)
    assert left_over in scene.cli("workers", "list")
    scene.ledger.let_end()
    until(lambda: left_over not in scene.cli("status"), "it has ended", scene.service.cli.logs)


def test_the_thread_of_a_scripted_agent_keeps_its_step_after_a_cancellation(scene: Scene) -> None:
    task = scene.submit(scene.ledger.agent("agent", "tests.hang_itself"))
    scene.until_count("begin", 1)
    scene.act(task, "cancel")

    scene.until_status(task, "cancelled", 3)

    until(lambda: "tests.hang_itself" in scene.cli("status"), "status names it", scene.service.cli.logs)
    assert scene.read(task)["steps"]["agent"]["status"] == "running"
    scene.ledger.let_end()
    until(lambda: scene.read(task)["steps"]["agent"]["status"] == "cancelled", "agent has ended")


@pytest.mark.parametrize("how", ["time limit", "cancel"])
def test_an_agent_whose_tool_ignores_its_cancellation_ends_at_once_and_is_named(scene: Scene, how: str) -> None:
    limit: dict[str, Any] = {"timeout_s": 5.0} if how == "time limit" else {}
    task = scene.submit(scene.ledger.agent("agent", "tests.hang_in_deaf_tool", **limit))
    scene.until_count("begin", 1)
    if how == "cancel":
        scene.act(task, "cancel")

    ended = scene.until_status(task, "failed" if limit else "cancelled", 10)

    assert ended["steps"]["agent"]["status"] == "running"
    until(lambda: "test.hang_deaf" in scene.cli("status"), "status names it", scene.service.cli.logs)
    assert "test.hang_deaf" in scene.cli("workers", "list")
    scene.ledger.let_end()
    final = "failed" if limit else "cancelled"
    until(lambda: scene.read(task)["steps"]["agent"]["status"] == final, "agent has ended")


def _log_of_worker(scene: Scene) -> str:
    return "".join(log.read_text() for log in (scene.service.cli.home / "logs").glob("*.log"))


def _is_reported(scene: Scene, task: str) -> bool:
    """Say whether a function of a task was logged as stuck."""
    key = f"{task.rpartition('/')[2]}/"
    return any("function_stuck" in line and key in line for line in _log_of_worker(scene).splitlines())


@pytest.mark.parametrize(("command", "status"), [("cancel", "cancelled"), ("pause", "paused")])
def test_commands_name_the_functions_that_still_run(scene: Scene, command: str, status: str) -> None:
    task = scene.submit(scene.ledger.step("one"), scene.ledger.step("two"))
    scene.until_count("begin", 2)

    said = scene.cli("tasks", command, task.rpartition("/")[2])

    assert f"is {status}, 2 functions still running" in said
    assert f"{status}, 2 functions still running" in scene.cli("tasks", "show", task.rpartition("/")[2])


def test_a_limit_counts_functions_that_were_cancelled_and_still_run(scene: Scene) -> None:
    scene.cli("limits", "set", "pool:default", "3")
    try:
        task = scene.submit(*(scene.ledger.step(f"l{number}") for number in range(3)))
        scene.until_count("begin", 3)
        scene.act(task, "cancel")
        later = scene.submit(scene.ledger.quick("later"))
        scene.until_status(task, "cancelled", 2)
        assert scene.read(later)["steps"]["later"]["status"] == "ready"
        scene.ledger.let_end()
        scene.until_status(later, "completed")
    finally:
        scene.cli("limits", "set", "pool:default", "0")
    assert scene.ledger.most_at_once() == 3


def test_a_retry_waits_for_the_function_whose_time_is_over(scene: Scene) -> None:
    task = scene.submit(scene.ledger.step("again", timeout_s=0.5, retries=1, backoff_s=0.1))
    scene.until_count("begin", 1)
    until(lambda: scene.read(task)["steps"]["again"]["progress"], "its time is over")

    assert scene.ledger.count("begin") == 1
    assert "took longer than 0.5 s; test.note still runs" in scene.read(task)["steps"]["again"]["progress"]
    scene.ledger.let_end()

    scene.until_status(task, "completed")
    assert scene.ledger.most_at_once(step="again") == 1


@pytest.mark.parametrize("call", ["test.note", "test.note_deaf"])
def test_a_task_whose_function_ignores_its_time_limit_fails_at_the_limit(scene: Scene, call: str) -> None:
    task = scene.submit(
        scene.ledger.step("late", call, timeout_s=0.5),
        {"id": "after", "kind": "python", "call": "builtin.echo", "depends_on": ["late"]},
    )

    failed = scene.until_status(task, "failed", 4)

    assert "took longer than 0.5 s" in failed["reason"]
    assert failed["steps"]["late"]["status"] == "running"
    assert "late" in scene.cli("status")
    refused = scene.act(task, "retry")
    assert refused[0] == 409
    assert "still run" in str(refused[1])
    scene.ledger.let_end()
    until(lambda: scene.read(task)["steps"]["late"]["status"] == "failed", "late has ended")


@pytest.mark.parametrize("how", ["time limit", "cancel", "pause"])
def test_an_isolated_function_ends_at_once_with_all_that_it_has_started(scene: Scene, how: str) -> None:
    limit: dict[str, Any] = {"timeout_s": 3.0} if how == "time limit" else {}
    task = scene.submit(scene.ledger.step("one", "test.sleep_with_child", isolation="process", **limit))
    scene.until_count("begin", 1)
    pids = [int(word) for word in scene.ledger.lines()[0][1:]]
    assert all(psutil.pid_exists(pid) for pid in pids)

    if how == "pause":
        scene.act(task, "pause")
        until(lambda: scene.read(task)["steps"]["one"]["status"] == "ready", "it is handed back", limit_s=5)
    elif how == "cancel":
        scene.act(task, "cancel")
        until(lambda: scene.read(task)["steps"]["one"]["status"] == "cancelled", "it is cancelled", limit_s=5)
    else:
        failed = scene.until_status(task, "failed", 6)
        assert failed["steps"]["one"]["status"] == "failed"
        assert "took longer than 3.0 s" in failed["steps"]["one"]["error"]["message"]

    assert not any(psutil.pid_exists(pid) for pid in pids)
    scene.act(task, "cancel")


@pytest.mark.parametrize("call", ["test.answer", "test.answer_later"])
def test_results_and_errors_of_isolated_functions_are_those_of_others(scene: Scene, call: str) -> None:
    hows = ("result", "raise", "exit", "unjsonable", "large", "unknown", "print")
    ends = {}
    for isolation in ("thread", "process"):
        steps = (
            {"id": how, "kind": "python", "call": call, "isolation": isolation, "inputs": {"how": how}} for how in hows
        )
        task = scene.submit(*steps)
        until(lambda task=task: scene.read(task)["status"] in ("failed", "completed"), "it has ended")  # type: ignore[misc]
        found = scene.read(task)["steps"]
        ends[isolation] = {how: (found[how]["status"], _without_task(found[how]), found[how]["error"]) for how in hows}

    assert ends["process"] == ends["thread"]
    assert ends["process"]["result"][0] == "completed"
    assert "ValueError: no such" in ends["process"]["raise"][2]["message"]
    assert "tests/system/functions.py:" in ends["process"]["raise"][2]["message"]


def _without_task(step: dict[str, Any]) -> object:
    output = step["output"]
    return {**output, "task": output["task"][:5]} if isinstance(output, dict) else output


def test_an_isolated_function_that_kills_itself_fails_alone_with_its_last_words(scene: Scene) -> None:
    task = scene.submit(scene.ledger.step("one", "test.die", isolation="process"))

    error = scene.until_status(task, "failed")["steps"]["one"]["error"]

    assert error["message"] == "its process ended before its result: SIGKILL; out of memory, perhaps"


def test_a_function_says_itself_that_it_is_isolated(scene: Scene) -> None:
    task = scene.submit(scene.ledger.step("one", "test.isolated"))

    assert scene.until_status(task, "completed")["steps"]["one"]["output"] is True


@pytest.mark.parametrize("service", [{"SOONG_SLOTS": "2", "SOONG_STUCK_S": "1"}], indirect=True, ids=["2 slots"])
def test_a_worker_without_a_slot_left_restarts_and_repeats_nothing(scene: Scene) -> None:
    task = scene.submit(*(scene.ledger.step(f"h{number}", timeout_s=1, retries=3) for number in range(8)))
    scene.until_count("begin", 2)

    quick = scene.submit(*(scene.ledger.quick(f"q{number}") for number in range(4)))

    scene.until_status(quick, "completed", 90)
    failed = scene.until_status(task, "failed", 90)
    begun = [line[1] for line in scene.ledger.lines() if line[0] == "begin" and line[1].startswith("h")]
    assert len(begun) == len(set(begun))
    until(lambda: all(one["status"] == "failed" for one in scene.read(task)["steps"].values()), "all steps failed")
    assert {one["error"]["type"] for one in scene.read(task)["steps"].values()} == {"unknown_after_crash"}
    assert failed["reason"]
