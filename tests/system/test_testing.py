"""``soong.testing`` as its users have it: a service in the test's process, a scripted model, answers, a clock."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic_ai.exceptions import ModelHTTPError

from examples.words import Measured, words
from soong import (
    JsonObject,
    PermissionDecision,
    PermissionRequest,
    Soong,
    StepContext,
    SyncSoong,
    TaskFailedError,
    TaskStatus,
    UsageError,
    plan,
    step,
)
from soong.shared.agents.model import REGISTERED
from soong.shared.core.errors import InvalidConfigError
from soong.testing import LocalService, answer, call, scripted_model
from soong.testing.bootstrap import local_service
from tests.architecture.document_examples import files
from tests.spec_document import ROOT
from tests.spec_plugin import ONE_PLUGIN

LIMIT_S = 1.0
WRITE = call("code.write_file", path="a.txt", content="x")
OUTPUT: JsonObject = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def agents(*ids: str, **fields: Any) -> JsonObject:
    """Return a plan of agents that may write files."""
    step: JsonObject = {"instructions": "Write a.txt.", "allowed_tools": ["code.write_file"], **fields}
    return {"title": "Agents", "steps": [{"id": one, **step} for one in ids]}


def fails(**fields: Any) -> JsonObject:
    function: JsonObject = {"kind": "python", "call": "builtin.fail", "inputs": {"message": "not yet"}}
    return {"title": "Fails", "steps": [{"id": "a", **function, **fields}]}


@step
def doubled(value: int) -> int:
    return 2 * value


@step
def noted(text: str) -> int:
    context = StepContext.current()
    (context.folder / "note.txt").write_text(text)
    context.log.info("attempt %d", context.attempt)
    return context.attempt


@pytest.mark.spec("TST-01")
def test_a_function_that_asks_for_its_context_is_called_in_a_test(step_context: StepContext, tmp_path: Path) -> None:
    assert noted("a") == 1
    assert (tmp_path / "note.txt").read_text() == "a"
    with pytest.raises(UsageError, match="the fixture step_context have no files"):
        step_context.artifact("note.txt")


async def test_an_async_test_has_the_context_too(step_context: StepContext) -> None:
    assert StepContext.current() is step_context


@pytest.mark.spec("TST-01")
def test_without_it_the_error_names_it() -> None:
    with pytest.raises(UsageError, match=r"no step runs here; .* a test has the fixture step_context"):
        noted("a")


@plan
def doubles(value: int) -> int:
    return doubled(value)


@pytest.mark.spec("TST-01.a/async", "TST-01.b", "TST-01.c")
@pytest.mark.parametrize("time_of", ["with imports", "as usual"])
async def test_a_plan_with_an_agent_and_a_question_takes_less_than_a_second(
    soong_service: LocalService, time_of: str
) -> None:
    model, person = scripted_model([WRITE, "done"]), answer("code.write_file", "allow")
    before = psutil.Process().children()
    began_s = time.perf_counter()

    result = await soong_service.run(agents("write"), model=model.name, permission_callback=person)

    file = soong_service.project / "a.txt"
    assert (result.status, result.outputs, file.read_text()) == (TaskStatus.COMPLETED, {"write": "done"}, "x")
    assert [(one.tool, one.shown) for one in person.asked] == [("code.write_file", str(file))]
    assert [len(messages) for messages in model.requests] == [1, 3]
    assert set(psutil.Process().children()) <= set(before)
    if time_of == "as usual":
        assert time.perf_counter() - began_s < LIMIT_S


@pytest.mark.spec("TST-01.a/sync")
def test_every_form_of_a_program_uses_the_service_of_the_test(soong_service: LocalService, tmp_path: Path) -> None:
    async def started() -> tuple[Measured, object]:
        async with Soong.connect("postgresql://nowhere/none") as soong:
            return await (await words.start("ccc dd")).result(), await (await soong.start(words)).status()

    with SyncSoong.embedded() as soong:
        task = soong.start(doubles, {"value": 4}, tags=["mine"])
        assert task.result() == 8
        assert [one.id for one in soong.tasks(tag="mine")] == [task.id]
    assert words.run(text="a bb") == Measured(word="bb", letters=2)
    assert asyncio.run(started())[0] == Measured(word="ccc", letters=3)
    assert soong_service.home.parent == tmp_path


@pytest.mark.spec("TST-01.a/file")
async def test_a_file_names_modules_next_to_it_and_a_function_of_later_is_found(
    soong_service: LocalService, tmp_path: Path
) -> None:
    (tmp_path / "later_steps.py").write_text(
        "from soong import step\n@step\ndef tripled(value: int) -> int:\n    return 3 * value\n"
    )
    file = tmp_path / "later.yaml"
    step = "{id: a, kind: python, call: later_steps.tripled, inputs: {value: 5}}"
    file.write_text(f"title: Later\nmodules: [later_steps]\nsteps: [{step}]\n")

    assert (await soong_service.run(file)).outputs == {"a": 15}
    assert (await (await soong_service.start(file)).wait()).outputs == {"a": 15}


@pytest.mark.spec("TST-01.a")
@pytest.mark.parametrize(
    ("step", "words"),
    [
        (
            {"kind": "celery", "call": "a.b", "app": "shop:app"},
            "step 'a' would wait for ever: .*Celery app shop; soong_s",
        ),
        ({"kind": "celery", "call": "a.b"}, "steps.0..app: the step names no Celery app; .*SOONG_CELERY_APP"),
        ({"kind": "python", "call": "builtin.echo", "pool": "gpu"}, "step 'a' would wait for ever: .*gpu.*`pools`"),
    ],
    ids=["app", "no app", "pool"],
)
async def test_a_step_that_no_worker_of_the_service_can_run_is_refused(
    soong_service: LocalService, step: JsonObject, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        await soong_service.run({"title": "t", "steps": [{"id": "a", **step}]})


@pytest.mark.spec("TST-01.b")
async def test_a_model_has_answers_by_step_and_its_turns_and_prices_count(soong_service: LocalService) -> None:
    twice = [WRITE, call("code.write_file", path="b.txt", content="y")]
    model = scripted_model({"first": [twice, {"n": 1}], "sec*": [{"n": 2}]}, name="openai:gpt-4o")
    both = agents("first", "second", output=OUTPUT, model="openai:gpt-4o")

    result = await soong_service.run(
        {**both, "limits": {"max_turns": 9, "cost_usd": 1}}, permission_callback=answer("code.*")
    )

    assert result.outputs == {"first": {"n": 1}, "second": {"n": 2}}
    assert result.limits is not None
    turns, cost = result.limits.max_turns, result.limits.cost_usd
    assert turns is not None
    assert cost is not None
    assert (turns.used, 0 < cost.used < 1) == (3, True)
    assert sorted(one.name for one in soong_service.project.iterdir()) == ["a.txt", "b.txt"]
    assert len(model.requests) == 3


@pytest.mark.spec("TST-01.b")
@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([WRITE], "has 1 answers for step 'a', which asks for another; add an answer"),
        ({"b*": []}, "has 0 answers for step 'a'"),
        ([ModelHTTPError(400, "m", "too long")], "too long"),
    ],
    ids=["at its end", "no such step", "a failure of the provider"],
)
async def test_a_step_without_an_answer_fails_and_says_what_is_missing(
    soong_service: LocalService, answers: Any, words: str
) -> None:
    person = answer("code.write_file", "deny")

    result = await soong_service.run(agents("a"), model=scripted_model(answers).name, permission_callback=person)

    (failed,) = result.steps
    assert failed.error is not None
    assert words in failed.error.message
    assert len(result.denials) == len(person.asked)


@pytest.mark.spec("TST-01.c")
async def test_the_first_rule_that_fits_counts_and_a_session_is_asked_once(soong_service: LocalService) -> None:
    person = answer({"code.write_*": "allow_session", "code.*": "deny"})
    model = scripted_model({"a": [WRITE, call("code.write_file", path="b.txt", content="y"), "done"]})

    result = await soong_service.run(agents("a"), model=model.name, permission_callback=person)

    assert (result.denials, len(person.asked)) == ([], 1)
    with pytest.raises(
        UsageError, match=r"'code.\*' has the verdict 'yes'; expected one of allow, allow_session, deny"
    ):
        answer("code.*", "yes")  # type: ignore[arg-type]


@pytest.mark.spec("TST-01.d/retry")
async def test_the_delays_of_retries_pass_at_once(soong_service: LocalService) -> None:
    handle = await soong_service.start(fails(retries=2, backoff_s=600))
    async for change in handle.events():
        if change.status == "pending" and change.attempt > 1:  # it waits for its next attempt
            soong_service.clock.advance(600)

    with pytest.raises(TaskFailedError, match="not yet"):
        await handle.result()
    assert (await handle.details()).steps[0].attempt == 3


@pytest.mark.spec("TST-01.d/limit")
async def test_a_step_reaches_its_time_limit(soong_service: LocalService) -> None:
    sleeps: JsonObject = {
        "id": "a",
        "kind": "python",
        "call": "builtin.sleep",
        "inputs": {"seconds": 7200},
        "timeout_s": 3600,
    }
    handle = await soong_service.start({"title": "Sleeps", "steps": [sleeps]})
    async for change in handle.events():
        if change.status == "running":
            soong_service.clock.advance(3600)

    with pytest.raises(TaskFailedError, match="took longer than 3600"):
        await handle.result()


@pytest.mark.spec("TST-01.d/question", "TST-01.d/wait")
async def test_a_question_that_nobody_answers_expires_while_its_provider_is_waited_for(
    soong_service: LocalService,
) -> None:
    asked = asyncio.Event()

    async def silent(_request: PermissionRequest) -> PermissionDecision:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    model = scripted_model([WRITE, ModelHTTPError(503, "m"), "it was refused"])
    running = asyncio.create_task(soong_service.run(agents("a"), model=model.name, permission_callback=silent))
    await asked.wait()
    while len(model.requests) < 3:
        soong_service.clock.advance(60)
        await asyncio.sleep(0.01)
    result = await running

    assert [one.error for one in result.denials] == ["permission_timeout"]
    assert result.outputs == {"a": "it was refused"}


UNEXPECTED = """
import asyncio
from soong.testing import answer, call, scripted_model

def test_it(soong_service):
    model = scripted_model([call("code.write_file", path="a.txt", content="x"), "done"])
    step = {"id": "a", "instructions": "x", "allowed_tools": ["code.write_file"]}
    run = soong_service.run({"title": "t", "steps": [step]}, model=model.name, permission_callback=answer("web.*"))
    assert asyncio.run(run).outputs == {"a": "done"}

def test_the_next_one_is_not_concerned(soong_service):
    pass
"""


@pytest.mark.spec("TST-01", "TST-01.c")
def test_the_test_of_the_page_passes_and_a_question_without_a_rule_fails_its_test(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    (tests,) = [text for path, text in files(page) if path.endswith("test_greeting.py")]
    (tmp_path / "test_greeting.py").write_text(tests)
    (tmp_path / "test_unexpected.py").write_text(UNEXPECTED)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "soong.testing.plugin", "-W", "error"]
    env = {**ONE_PLUGIN, "PATH": os.environ["PATH"], "HOME": str(tmp_path)}

    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=90, check=False)

    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "unexpected question: code.write_file" in done.stdout
    assert "add answer('code.write_file', …)" in done.stdout


@step
def slow() -> None:
    time.sleep(2)


@plan
def waits() -> None:
    return slow()


@pytest.mark.spec("TST-01.a")
def test_a_service_leaves_no_thread_no_model_and_no_task(tmp_path: Path) -> None:
    before = set(threading.enumerate())

    with local_service(tmp_path, {"max_turns": 1}) as service:
        model = scripted_model([WRITE, "done"], name="openai:gpt-4o")
        (ended,) = service.sync.run(agents("a"), model=model.name).steps
        next(change for change in service.sync.start(waits).events() if change.status == "running")

    assert ended.error is not None
    assert ended.error.type == "max_turns"
    assert model.name not in REGISTERED
    ours = {one.name for one in set(threading.enumerate()) - before if one.name.startswith("soong")}
    assert {
        name for name in ours if not name.startswith(("soong-call", "soong-step"))
    } == set()  # those are for the next
    assert not asyncio.all_tasks(service._host.thread.loop)


@pytest.mark.spec("TST-01.a")
@pytest.mark.parametrize(
    ("settings", "words"),
    [({"slot": 2}, "there is no setting 'slot'"), ({"slots": "many"}, r"slots\n.*valid integer.*'many'")],
    ids=["name", "value"],
)
def test_a_wrong_setting_is_named(tmp_path: Path, settings: Mapping[str, object], words: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"(?s)soong_settings: .*{words}"), local_service(tmp_path, settings):
        pass


@pytest.mark.spec("TST-01")
def test_pytest_imports_nothing_of_the_product_with_the_plugin() -> None:
    code = "import sys, pytest\nbefore = {*sys.modules}\nimport soong.testing.plugin\nprint(*{*sys.modules} - before)"

    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)

    assert set(done.stdout.split()) == {"soong", "soong.testing", "soong.testing.plugin"}
