import asyncio
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
import redis

from soong.shared.engine.tasks.spec import TaskStatus
from soong.shared.engine.wire.notifier import MAX_LENGTH
from soong.shared.permissions.request import Choice
from soong.shared.storage.redis.client import RedisClients, RedisNotifier
from soong.shared.storage.redis.subscriptions import RedisSubscriber
from tests.extra import redis_7
from tests.system.deployment import Deployment, end
from tests.system.test_consent import Person
from tests.system.test_flower import AGENT, TROUBLED, Flower, flower_process
from tests.waiting import blocking_looks

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class AclServer:
    """A Redis with the users of a deployment."""

    port: int
    secrets: Path

    def url(self, user: str) -> str:
        return f"redis://{user}:{self.password(user)}@127.0.0.1:{self.port}/0"

    def password(self, user: str) -> str:
        return (self.secrets / f"redis_password_{user}").read_text()

    def client(self, user: str) -> redis.Redis:
        return redis.Redis(port=self.port, username=user, password=self.password(user), protocol=2)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AclServer]:
    program = redis_7()
    folder = tmp_path_factory.mktemp("acl")
    shutil.copytree(ROOT / "deploy", folder / "deploy", ignore=shutil.ignore_patterns("secrets"))
    subprocess.run([folder / "deploy" / "make-secrets.sh"], check=True, capture_output=True, timeout=60)
    secrets = folder / "deploy" / "secrets"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        server = AclServer(int(probe.getsockname()[1]), secrets)
    users = ("--aclfile", str(secrets / "redis_users"))
    place = ("--bind", "127.0.0.1", "--port", str(server.port), "--appendonly", "no", *users)
    settings = folder / "deploy" / "redis.conf"
    settings.write_text(settings.read_text().replace("dir /data", f"dir {folder}"))
    with (folder / "redis.log").open("wb") as log:
        command = [program, str(settings), *place]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    try:
        _await(server, folder / "redis.log")
        yield server
    finally:
        end(process)


def _await(server: AclServer, log: Path) -> None:
    for _ in blocking_looks(20, f"the start of redis-server, see {log}"):
        with suppress(redis.ConnectionError), server.client("health") as client:
            client.ping()
            return


@pytest.fixture
async def service(server: AclServer, tmp_path: Path) -> AsyncIterator[Deployment]:
    with server.client("orchestrator") as client:
        for key in client.scan_iter("soong:*"):
            client.delete(key)
    async with Deployment(f"sqlite:///{tmp_path / 'soong.db'}", server.url("orchestrator"), tmp_path) as deployment:
        yield deployment


COMMON = {
    "list what there is": ("KEYS", "*"),
    "walk over what there is": ("SCAN", "0"),
    "read the server's settings": ("CONFIG", "GET", "*"),
    "change the server's settings": ("CONFIG", "SET", "maxmemory", "1"),
    "empty the server": ("FLUSHALL",),
    "read who may what": ("ACL", "LIST"),
    "make itself a user": ("ACL", "SETUSER", "mine", "on", "nopass", "allkeys", "allcommands"),
    "see who is connected": ("CLIENT", "LIST"),
    "disconnect others": ("CLIENT", "KILL", "TYPE", "normal"),
    "watch what others do": ("MONITOR",),
    "stop the server": ("SHUTDOWN", "NOSAVE"),
    "make it follow another": ("REPLICAOF", "127.0.0.1", "1"),
    "load a module": ("MODULE", "LOAD", "/tmp/x.so"),
    "use a key that is not ours": ("SET", "other", "x"),
    "debug the server": ("DEBUG", "SLEEP", "0"),
}
FORBIDDEN = {
    "worker": {
        **COMMON,
        "send a dispatch": ("LPUSH", "soong:soong.default", "x"),
        "empty a queue": ("DEL", "soong:soong.default"),
        "steer the other workers": ("PUBLISH", "soong:/0.celery.pidbox", "x"),
        "decide for another": ("XADD", "soong:perm:dec:wrk_other", "*", "request", "x"),
        "read what others ask": ("XRANGE", "soong:perm:req", "-", "+"),
        "take what others ask away": ("XTRIM", "soong:perm:req", "MAXLEN", "0"),
        "hear what wakes everybody": ("PSUBSCRIBE", "*"),
        "script its way to a dispatch": ("EVAL", 'return redis.call("LPUSH", "soong:soong.default", "x")', "0"),
        "script its way over a key of its own": ("EVAL", "return 1", "1", "soong:soong.default"),
        "read by a script": ("EVAL_RO", "return 1", "0"),
        "leave a script": ("SCRIPT", "LOAD", "return 1"),
        "run a script that is there": ("EVALSHA", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "0"),
        "leave a library": ("FUNCTION", "LOAD", "#!lua name=x\nredis.register_function('x', function() end)"),
        "call a function": ("FCALL", "x", "0"),
        "look into kombu's books": ("HGETALL", "soong:unacked"),
    },
    "flower": {
        **COMMON,
        "script without a key of kombu's": ("EVAL", "return 1", "0"),
        "script over one": ("EVAL", "return 1", "1", "soong:_kombu.binding.x"),
        "send a dispatch": ("LPUSH", "soong:soong.default", "x"),
        "take a dispatch": ("RPOP", "soong:soong.default"),
        "raise a question": ("XADD", "soong:perm:req", "*", "request", "x"),
        "decide": ("XADD", "soong:perm:dec:wrk_other", "*", "request", "x"),
        "read decisions": ("XRANGE", "soong:perm:dec:wrk_other", "-", "+"),
        "wake owners": ("PUBLISH", "soong:wake:owners", "x"),
        "hear owners being woken": ("SUBSCRIBE", "soong:wake:owners"),
    },
    "client": {
        **COMMON,
        "raise a question": ("XADD", "soong:perm:req", "*", "request", "x"),
        "decide": ("XADD", "soong:perm:dec:wrk_1", "*", "request", "x"),
        "read decisions": ("XREAD", "STREAMS", "soong:perm:dec:wrk_1", "0"),
        "send a dispatch": ("LPUSH", "soong:soong.default", "x"),
        "take a dispatch": ("BRPOP", "soong:soong.default", "1"),
        "steer workers": ("PUBLISH", "soong:/0.celery.pidbox", "x"),
        "hear workers": ("SUBSCRIBE", "soong:/0.celeryev/worker.heartbeat"),
    },
    "orchestrator": {name: act for name, act in COMMON.items() if name != "walk over what there is"},
    "health": {**COMMON, "read a queue's length": ("LLEN", "soong:soong.default"), "read the server": ("INFO",)},
}


# By the user's rules, or for everybody by the server's own settings.
REFUSED = re.compile(r"permission|can't run this command|command not allowed")


@pytest.mark.spec("PER-12")
@pytest.mark.parametrize("user", FORBIDDEN)
def test_a_user_may_do_nothing_else(server: AclServer, user: str) -> None:
    allowed = []
    for what, command in FORBIDDEN[user].items():
        with server.client(user) as client:
            try:
                client.execute_command(*command)
            except redis.ResponseError as error:
                if not REFUSED.search(str(error)):
                    allowed.append(f"{what}: {error}")
            else:
                allowed.append(what)

    assert allowed == []


def test_nobody_gets_in_without_a_name(server: AclServer) -> None:
    with redis.Redis(port=server.port, protocol=2) as client, pytest.raises(redis.AuthenticationError):
        client.ping()


@pytest.mark.spec("PER-12")
async def test_a_worker_does_all_its_work_as_its_own_user(server: AclServer, service: Deployment) -> None:
    folder = service.home / "notes"
    folder.mkdir()
    person = Person(Choice.ALLOW_ONCE)
    await service.start_workers(2, slots=2, SOONG_REDIS_URL=server.url("worker"), SOONG_LOG_LEVEL="info")

    plan = ROOT / "examples" / "approve.yaml"
    task = await service.submit(plan, {"folder": str(folder)}, project=folder.parent, callback=person)
    ended = await service.finished(task)
    sleeping = await service.submit(
        {"title": "t", "steps": [{"id": "s", "kind": "python", "call": "builtin.sleep", "inputs": {"seconds": 30}}]}
    )
    await service.until(lambda: _is_held(service, sleeping.id))
    await service.command(sleeping, "cancel")
    cancelled = await service.finished(sleeping, within_s=5)
    for worker in service.workers:
        end(worker)

    assert (ended.status, cancelled.status) == (TaskStatus.COMPLETED, TaskStatus.CANCELLED)
    assert sorted(path.name for path in folder.iterdir()) == ["left.txt", "right.txt"]
    assert len(person.asked) == 2
    logs = service.logs()
    refused = ("NOPERM", "no permissions", "can't run this command", "subscription_lost")
    assert [word for word in refused if word in logs] == []
    assert {worker.returncode for worker in service.workers} == {0}


@pytest.mark.spec("PER-12")
async def test_a_worker_hears_its_decisions_as_its_own_user(server: AclServer) -> None:
    """Without the hint it learns of a decision by the clock alone, seconds later."""
    worker, owner = RedisClients.of(server.url("worker")), RedisClients.of(server.url("orchestrator"))
    told, subscription = (
        RedisNotifier(owner.commands),
        await RedisSubscriber(worker.blocking).subscribe_decisions("wrk_1"),
    )
    try:
        await told.permission_decided("req_1", "wrk_1")

        assert await subscription.wait(10) == ("req_1",)
    finally:
        await subscription.close()
        for one in (told, worker, owner):
            await one.close()


@pytest.mark.spec("PER-12")
async def test_hints_that_a_bad_worker_forges_decide_nothing_and_hold_nobody_back(
    server: AclServer, service: Deployment
) -> None:
    """It may add to the stream of questions, as every worker: ids of nobody's, endless ones, ten thousand at once."""
    folder = service.home / "notes"
    folder.mkdir()
    person = Person(Choice.ALLOW_ONCE)
    await service.start_workers(1, slots=2, SOONG_REDIS_URL=server.url("worker"))
    with server.client("worker") as bad:
        forged = bad.pipeline(transaction=False)
        for number in range(10_000):
            forged.xadd("soong:perm:req", {"v": "1", "request": f"req_{number}" + "x" * 200, "session": "sess_x"})
        forged.execute()

        plan = ROOT / "examples" / "approve.yaml"
        task = await service.submit(plan, {"folder": str(folder)}, project=folder.parent, callback=person)
        forged.execute()
        ended = await service.finished(task)

    assert ended.status is TaskStatus.COMPLETED
    assert len(person.asked) == 2
    assert "Traceback" not in service.logs()
    await service.until(lambda: _is_cut(server))


LARGE_ENTRIES = {
    "in one field": ("x", "y" * 8_000_000),
    "in many fields": tuple(word for number in range(60) for word in (f"x{number}", "y" * 2_000_000)),
}


@pytest.mark.spec("OPS-12.d")
@pytest.mark.parametrize("fields", LARGE_ENTRIES.values(), ids=LARGE_ENTRIES)
def test_a_worker_adds_no_large_entry_to_the_stream_of_questions(server: AclServer, fields: tuple[str, ...]) -> None:
    with server.client("worker") as bad, server.client("orchestrator") as owner:
        owner.delete("soong:perm:req")

        with pytest.raises((redis.RedisError, OSError)):
            bad.execute_command("XADD", "soong:perm:req", "*", *fields)

        assert owner.xlen("soong:perm:req") == 0


async def _is_cut(server: AclServer) -> bool:
    with server.client("orchestrator") as owner:
        return cast(int, owner.xlen("soong:perm:req")) <= MAX_LENGTH + 500  # cut as it is cheap: by whole nodes


async def _is_held(service: Deployment, task_id: str) -> bool:
    return any(step.status.is_leased for step in await service.store.tasks.steps(task_id))


@pytest.mark.spec("OPS-02", "OPS-08")
async def test_flower_sees_everything_as_its_own_user(server: AclServer, service: Deployment, tmp_path: Path) -> None:
    with flower_process(server.url("flower"), tmp_path) as flower:
        await service.until(lambda: _answers(flower), within_s=40)
        await service.start_workers(1, SOONG_REDIS_URL=server.url("worker"), SOONG_MAX_TURNS="3")
        task = await service.finished(await service.submit(TROUBLED, project=tmp_path))

        async def has_counted() -> bool:
            counted = await asyncio.to_thread(flower.counted)
            return {("task-agent-budget-stop", f"{AGENT}:turns"), ("task-succeeded", f"{AGENT}:asks")} <= counted.keys()

        await service.until(has_counted)

    assert task.status is TaskStatus.FAILED
    assert "NOPERM" not in (tmp_path / "flower.log").read_text()


async def _answers(flower: Flower) -> bool:
    return bool(await asyncio.to_thread(flower.page, "/healthcheck"))


@pytest.mark.spec("OPS-04", "PER-13")
async def test_the_api_rings_and_hears_as_its_own_user(server: AclServer) -> None:
    clients, owner = RedisClients.of(server.url("client")), RedisClients.of(server.url("orchestrator"))
    notifier, heard, told = (
        RedisNotifier(clients.commands),
        RedisSubscriber(clients.blocking),
        RedisNotifier(owner.commands),
    )
    subscriptions = [
        await heard.subscribe_session("sess_1"),
        await heard.subscribe_run("run_1"),
        await heard.subscribe_permissions(),
    ]
    rung = await RedisSubscriber(owner.blocking).subscribe_owner()
    try:
        await notifier.notify_owners(["sess_1"])
        await told.notify_session("sess_1")
        await told.notify_runs(["run_1"])
        await told.permission_raised("req_1", "sess_1")

        assert await rung.wait(10) == ("sess_1",)
        assert [await subscription.wait(10) for subscription in subscriptions] == [("sess_1",), ("run_1",), ("sess_1",)]
    finally:
        for subscription in (*subscriptions, rung):
            await subscription.close()
        for one in (notifier, told, clients, owner):
            await one.close()


@pytest.mark.spec("OPS-04")
@pytest.mark.parametrize("who", ["worker", "orchestrator"])
async def test_the_api_hears_the_answers_that_agents_get(server: AclServer, who: str) -> None:
    clients, agents = RedisClients.of(server.url("client")), RedisClients.of(server.url(who))
    notifier = RedisNotifier(agents.commands)
    subscription = await RedisSubscriber(clients.blocking).subscribe_answer("run_1")
    try:
        assert await notifier.publish_answer("run_1", "a piece") == 1
        assert await subscription.wait(10) == ("a piece",)
    finally:
        await subscription.close()
        for one in (notifier, clients, agents):
            await one.close()
