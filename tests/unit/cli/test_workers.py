"""Workers, limits and tokens of a deployment from the command line."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from soong.orchestrator.cli.access import seconds_of
from soong.orchestrator.cli.workers import text_of
from soong.orchestrator.client.task_limits import limits_of, raise_limits
from soong.orchestrator.operations.administration import all_tokens, make_api_token, revoke_token
from soong.orchestrator.schemas.worker import PoolSchema, WorkerSchema, WorkersSchema
from soong.shared.core.errors import ConflictError, NotFoundError, UsageError
from soong.shared.engine.runs.budgets import NO_BUDGET, Budget, session_scope, task_scope
from soong.shared.engine.sessions.session import ProcessState, Worker
from soong.shared.engine.tasks.metrics import WorkerLoad
from soong.shared.engine.tasks.spec import TaskStatus
from soong.shared.permissions.access.token import Right, read_token
from soong.shared.storage.sql.store import open_store
from tests.contract.scene import open_scene
from tests.model.builders import make_worker
from tests.model.memory import MemoryStore
from tests.unit.cli.calling import soong


async def deployed(tmp_path: Path, *workers: Worker) -> Path:
    """Return a home whose database knows these workers."""
    home = tmp_path / "home"
    (home / "soong").mkdir(parents=True)
    store = await open_store(f"sqlite:///{home / 'soong' / 'soong.db'}", migrate=True)
    for worker in workers:
        await store.sessions.register_worker(worker)
    await store.close()
    return home


@pytest.mark.spec("DIS-04", "OPS-04")
async def test_a_program_gets_one_document(tmp_path: Path) -> None:
    home = await deployed(tmp_path, make_worker("wrk_1", slots=7, pools=("big",)))

    done = soong("workers", "list", "--json", home=home)

    report = json.loads(done.stdout)
    assert (report["workers"][0]["id"], report["workers"][0]["slots"]) == ("wrk_1", 7)
    assert report["pools"] == [{"pool": "big", "queue": "soong.big", "waiting": 0, "free_slots": 7}]


async def test_metrics_are_printed_without_prometheus(tmp_path: Path) -> None:
    home = await deployed(tmp_path, make_worker(slots=7))

    done = soong("metrics", home=home)

    assert done.returncode == 0, done.stderr
    assert 'soong_slots_free{pool="default"} 7.0' in done.stdout


async def test_a_host_with_a_worker_is_healthy_until_it_is_declared_gone(tmp_path: Path) -> None:
    here = make_worker("wrk_here")
    home = await deployed(tmp_path, here)
    healthy = soong("workers", "check", "--host", here.host, home=home)
    other = soong("workers", "check", "--host", "elsewhere.example", home=home)

    store = await open_store(f"sqlite:///{home / 'soong' / 'soong.db'}")
    await store.sessions.set_worker_state(here.id, ProcessState.GONE)
    await store.close()
    gone = soong("workers", "check", "--host", here.host, home=home)

    assert (healthy.returncode, other.returncode, gone.returncode) == (0, 1, 1)
    assert here.host in gone.stderr


def test_what_a_worker_says_of_itself_moves_no_terminal() -> None:
    hostile = make_worker(capabilities=("\x1b[31mred", "version:1\x1b]0;x\x07"))
    held = WorkerLoad(hostile.id, "run_1", "task_1/a", "\x1b[2Jtitle", 1, "sess_1", None)

    pool = PoolSchema(pool="default", queue="soong.default", waiting=0, free_slots=1)
    view = WorkersSchema(workers=[WorkerSchema.holding(hostile, [held])], pools=[pool], limits=[], parked=0)
    shown = text_of(view.model_dump())

    assert "\x1b" not in shown
    assert "title" in shown


@pytest.mark.spec("DIS-03", "OPS-04")
async def test_a_limit_is_set_changed_listed_and_removed(tmp_path: Path) -> None:
    home = await deployed(tmp_path, make_worker())

    done = [
        soong("limits", *words, home=home)
        for words in (("set", "pool:default", "4"), ("set", "model:openai:gpt", "2"), ("set", "pool:default", "3"))
    ]
    listed = json.loads(soong("limits", "list", "--json", home=home).stdout)
    removed = soong("limits", "remove", "pool:default", home=home)
    shown = soong("limits", "list", home=home)

    assert [one.returncode for one in done] == [0, 0, 0], done
    assert listed["limits"] == [
        {"scope": "model:openai:gpt", "limit": 2, "used": 0, "is_paused": False},
        {"scope": "pool:default", "limit": 3, "used": 0, "is_paused": False},
    ]
    assert removed.returncode == 0
    assert "model:openai:gpt" in shown.stdout
    assert "pool:default" not in shown.stdout


@pytest.mark.spec("DIS-03", "OPS-04")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("set", "queue:default", "4"), "is not a scope of a concurrency limit"),
        (("set", "pol:default", "4"), "did you mean 'pool'?"),
        (("set", "pool:", "4"), "pool:NAME"),
        (("set", "session:sess_none", "4"), "there is no session 'sess_none'"),
        (("set", "pool:default", "0"), "greater than or equal to 1"),
    ],
    ids=["another kind", "a slip", "no name", "no such session", "a limit of nothing"],
)
async def test_a_wrong_limit_is_refused_by_name(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    home = await deployed(tmp_path)

    done = soong("limits", *words, home=home)

    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.spec("DIS-07")
async def test_only_the_named_limits_change_and_a_task_without_limits_gets_none() -> None:
    scene = await open_scene(MemoryStore())
    budgets = scene.store.budgets
    limited, plain = [await scene.store.tasks.task(await scene.task(name)) for name in ("a", "b")]
    await budgets.set_budget(task_scope(limited.id), Budget(tokens=5, turns=3))

    await raise_limits(budgets, limited, of_session=NO_BUDGET, of_task=Budget(turns=9))
    with pytest.raises(UsageError, match="has no limits; write `limits:` into its plan"):
        await raise_limits(budgets, plain, of_session=Budget(tokens=9), of_task=Budget(turns=9))

    scopes = [task_scope(limited.id), session_scope(plain.session_id)]
    (state,) = (await budgets.budgets(scopes, day="2026-11-24")).values()
    assert state.budget == Budget(tokens=5, turns=9)
    assert await limits_of(scene.store, plain) == ()


@pytest.mark.spec("DIS-07")
async def test_nothing_is_raised_of_a_completed_task() -> None:
    scene = await open_scene(MemoryStore())
    budgets = scene.store.budgets
    task = replace(await scene.store.tasks.task(await scene.task("a")), status=TaskStatus.COMPLETED)

    with pytest.raises(ConflictError, match=f"`soong budget {task.session_id} --set`"):
        await raise_limits(budgets, task, of_session=Budget(tokens=9), of_task=NO_BUDGET)
    await raise_limits(budgets, task, of_session=NO_BUDGET, of_task=NO_BUDGET)

    assert await budgets.budgets([session_scope(task.session_id)], day="2026-11-24") == {}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in which nothing has run yet."""
    monkeypatch.setenv("SOONG_AGENT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SOONG_DATABASE_URL", raising=False)
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("text", "seconds"), [("", None), ("90s", 90), ("15m", 900), ("12h", 43_200), ("30d", 2_592_000), ("2w", 1_209_600)]
)
def test_a_time_is_written_as_people_do(text: str, seconds: int | None) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["30", "d", "-1d", "0d", "1.5h", "30 d", "1y", "99999999d", "0s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="30d"):
        seconds_of(text)


async def test_the_first_token_of_a_home_needs_no_service(home: Path) -> None:
    token, text = await make_api_token("ada", [Right.RUN], lives_s=60)

    assert [one["id"] for one in await all_tokens()] == [token.id]
    assert token.expires_us == token.created_us + 60_000_000
    found = read_token(text)
    assert found is not None
    assert found[0] == token.id
    assert found[1].encode() not in (home / "soong.db").read_bytes()


@pytest.mark.usefixtures("home")
async def test_a_token_is_revoked_by_its_id_or_the_end_of_it() -> None:
    first, second = [(await make_api_token(name, [Right.READ], lives_s=None))[0] for name in ("ada", "bob")]

    assert await revoke_token(first.id)
    assert await revoke_token(second.id[-12:])
    assert not await revoke_token(first.id)
    for unknown in ("tok_unknown", "", second.id[-3:]):
        with pytest.raises(NotFoundError):
            await revoke_token(unknown)
