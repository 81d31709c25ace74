"""Plans in Python as their users run them: from a program, from the command line, on a deployment (FLW-01, FLW-02)."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.words import Measured, longest, measure, split, words
from soong import ConflictError, Soong, TaskFailedError, TaskStatus, agent_step, plan, step
from soong.orchestrator.cli.plan_files import plan_text
from soong.orchestrator.operations.approvals import AnswerableApproval
from tests.spec_document import ROOT
from tests.system.cli_scene import CliHarness
from tests.system.deployment import Deployment
from tests.waiting import looks

SCENE = {"is_warm": False}
EXAMPLE = ROOT / "examples" / "words.py"
LONGEST = {"word": "durable", "letters": 7}
TEXT = "durable task graphs"
PLANS = 200
FUNCTIONS = "tests.system.test_python_plans,examples.words"


@step
def given(value: int, others: list[int] | None = None) -> list[int]:
    return [value, *(others or [])]


@step
async def added(values: list[int], more: int = 0) -> int:
    return sum(values) + more


@step
def listed(total: int, text: str = "") -> dict[str, Any]:
    return {"total": total, "text": text, "list": list(range(total % 4))}


@step
def broken(value: int) -> int:
    raise ValueError(f"no {value}")


@plan
def breaks(value: int = 3) -> int:
    return broken(value)


@pytest.fixture
def with_words(cli: CliHarness) -> CliHarness:
    (cli.folder / "words.py").write_text(EXAMPLE.read_text())
    return cli


@pytest.mark.spec("FLW-01.g", "FLW-01.a")
def test_a_file_is_printed_checked_drawn_and_run_and_its_print_is_the_same_plan(with_words: CliHarness) -> None:
    cli = with_words
    printed = cli.run("plans", "show", "words.py").stdout
    checked = cli.run("tasks", "validate", "words.py")
    drawn = cli.run("tasks", "graph", "words.py:words").stdout
    ran = cli.json("run", "words.py", "--input", f"text={TEXT}")
    (cli.folder / "printed.yaml").write_text(printed)
    again = cli.json("run", "printed.yaml", "--input", f"text={TEXT}")

    document = yaml.safe_load(printed)
    assert document == {**words.document, "modules": ["words"], "steps": _with_calls("words")}
    assert checked.stderr == "words.py is a plan: 'Measure words', 3 steps, inputs: text?\n"
    assert 's1[["measure' in drawn
    assert (ran.get("status"), ran.get("output")) == ("completed", LONGEST)
    assert [(one["id"], one["output"]) for one in again["steps"]] == [
        (one["id"], one["output"]) for one in ran["steps"]
    ]
    assert again["output"] == LONGEST


def _with_calls(module: str) -> Any:
    """Return the steps of the example as another module has them."""
    return yaml.safe_load(yaml.safe_dump(words.document["steps"]).replace("examples.words.", f"{module}."))


@pytest.mark.spec("FLW-01.g", "FLW-01.d")
def test_what_is_wrong_with_a_file_is_said_with_its_place(with_words: CliHarness) -> None:
    cli = with_words
    (cli.folder / "bad.py").write_text(
        "from soong import plan, step\n@step\ndef f(x: int) -> int: return x\n"
        "@plan\ndef one(x: int = 1) -> int:\n    return f(x) + 1\n"
        "@plan\ndef two() -> int:\n    return f('a')\n"
    )
    (cli.folder / "empty.py").write_text("x = 1\n")
    (cli.folder / "raises.py").write_text("raise RuntimeError('at import')\n")

    def error(*arguments: str) -> str:
        done = cli.run(*arguments)
        assert done.returncode == 2
        return done.stderr.removeprefix("soong: ").strip()

    assert error("run", "bad.py") == "bad.py: it has 2 plans; name one: bad.py:one"
    assert "bad.py:6 ${f.output}: the value is not known while the plan is built" in error("run", "bad.py:one")
    assert "step 'f': x: Input should be a valid integer" in error("tasks", "validate", "bad.py:two")
    assert error("run", "bad.py:three") == "bad.py: it has no plan 'three'; known: one, two"
    assert error("plans", "show", "empty.py") == "empty.py: it has no plan; decorate a function with @plan"
    assert "cannot be imported: RuntimeError: at import" in error("tasks", "validate", "raises.py")
    assert error("run", "none.py") == "none.py: there is no such file; check the path"
    assert error("run", "words.py", "--input", "txt=a").startswith("input 'txt': the plan has no such input")


AGENT_ALONE = """
from pydantic import BaseModel
from pydantic_ai import Agent
from soong import plan, step

class Verdict(BaseModel):
    owner: str

judge = step(Agent("test", output_type=Verdict), name="shop.judge")

@plan
def judged(path: str = "a.py") -> Verdict:
    return judge(prompt=f"Judge {path}.")

if __name__ == "__main__":
    print(judged.run())
"""
PROGRAM = """
import asyncio, sys
from soong import SyncSoong, TaskFailedError, UsageError
from words import Measured, words

async def main():
    first, second = await asyncio.gather(words.start(text="a bb"), words.start("ccc"))
    changes = [(one.id, str(one.status)) async for one in first.events()]
    assert ("longest", "completed") in changes, changes
    assert await second.result() == Measured(word="ccc", letters=3)
    assert words.run("in a loop") == Measured(word="loop", letters=4)

if __name__ == "__main__":
    assert words.run(text="durable task graphs") == Measured(word="durable", letters=7)
    with SyncSoong.embedded() as soong:
        task = soong.start(words, {"text": "x yy"}, tags=["mine"])
        assert task.result() == Measured(word="yy", letters=2)
        assert [one.id for one in soong.tasks(tag="mine")] == [task.id]
        assert {one.id for one in task.events()} >= {"split", "measure", "longest"}
        assert soong.run(words).output == {"word": "three", "letters": 5}
    asyncio.run(main())
    try:
        words.run(text=3)
    except UsageError as error:
        print(error)
"""


WRONG = """
import sys
from pathlib import Path
from pydantic import BaseModel
from soong import SyncSoong, UsageError, plan, step

class Item(BaseModel):
    n: int

@step
def read(path: Path, item: Item) -> int:
    return int(path.read_text()) + item.n

@plan
def reads(path: Path, item: Item) -> int:
    return read(path, item)

if __name__ == "__main__":
    Path("one.txt").write_text("1")
    echo = {"id": "echo", "kind": "python", "call": "builtin.echo", "inputs": {"a": "${inputs.a}"}}
    with SyncSoong.embedded() as soong:
        print(soong.start(reads, {"path": Path("one.txt").absolute(), "item": {"n": 1}}).result())
        written = {"title": "t", "inputs": {"a": "x"}, "output": "${echo.output.a}", "steps": [echo]}
        print(soong.run(written, {"a": Path("p")}).output)
        for plan, given in ((reads, {"path": "a", "item": {"n": "b"}}), (reads, {"path": "a"}), (written, {"a": open})):
            try:
                soong.run(plan, given)
            except UsageError as error:
                print(error)
    reads.run(Path("none.txt"), Item(n=1))
"""


HANDLERS = """
import django
from asgiref.sync import async_to_sync
from celery import Celery
from celery.contrib.testing.worker import start_worker
from django.conf import settings
from django.http import JsonResponse
from django.test import Client
from django.urls import path
from fastapi import FastAPI
from fastapi.testclient import TestClient
from words import Measured, words

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="x", ALLOWED_CIDR_NETS=[])
django.setup()

def sync_view(request, text):
    return JsonResponse(words.run(text=text).model_dump())

async def async_view(request, text):
    return JsonResponse((await (await words.start(text=text)).result()).model_dump())

urlpatterns = [path("sync/<text>", sync_view), path("async/<text>", async_view)]
app = FastAPI()

@app.get("/{text}")
async def measured(text: str) -> Measured:
    return await (await words.start(text=text)).result()

queue = Celery("shop", broker="memory://", backend="cache+memory://")

@queue.task
def longest(text):
    return words.run(text=text).word

if __name__ == "__main__":
    with TestClient(app) as client:
        print([client.get(f"/{text}").json()["letters"] for text in ("a bb", "ccc")])
    print(Client().get("/sync/a bb").json(), Client().get("/async/ccc").json())
    with start_worker(queue, perform_ping_check=False, pool="solo"):
        print(longest.delay("to be or not").get(timeout=60))
"""


def ran(cli: CliHarness, *words_: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**cli.env, "PATH": os.environ["PATH"]}
    return subprocess.run(
        [sys.executable, *words_],
        cwd=cli.folder,
        env=environment,
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def called(cli: CliHarness, program: str) -> str:
    """Run a program next to the example; return what it prints."""
    (cli.folder / "program.py").write_text(program)
    done = ran(cli, "program.py")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.spec("FLW-01.c", "FLW-01.d", "FLW-02.a")
def test_a_program_gives_paths_and_models_and_its_errors_are_short(cli: CliHarness) -> None:
    (cli.folder / "program.py").write_text(WRONG)

    done = ran(cli, "program.py")
    typed_in = ran(cli, "-", text=WRONG)

    values = done.stdout.splitlines()
    assert values[:2] == ["2", "p"]
    assert values[2].startswith("plan 'reads': item: n: Input should be a valid integer")
    assert "missing a required argument: 'item'; call it as reads(" in values[3]
    assert values[4].startswith("the inputs: the value is not JSON: ")
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1, done.stderr
    assert len(done.stderr.splitlines()) < 10, done.stderr
    assert "step 'read': execution_failed: FileNotFoundError" in done.stderr
    assert "step 'read': workers import modules, and this is in none; write it into a file NAME.py" in typed_in.stderr


@pytest.mark.spec("FLW-01.d")
def test_a_program_that_runs_its_plan_at_import_is_told_where_to_write_that(cli: CliHarness) -> None:
    program = EXAMPLE.read_text().replace('if __name__ == "__main__":', "if True:")
    (cli.folder / "program.py").write_text(program)
    done = ran(cli, "program.py")

    assert done.returncode == 1
    assert "the module 'program' runs a plan when it is imported; write that below `if __name__" in done.stderr
    assert "runs a plan when it is imported" in cli.run("tasks", "validate", "program.py").stderr


@pytest.mark.spec("FLW-02.a", "FLW-02.b", "FLW-02.c/script", "FLW-02.c/loop")
def test_a_program_runs_a_plan_with_and_without_an_event_loop(with_words: CliHarness) -> None:
    assert called(with_words, PROGRAM) == "plan 'words': text: Input should be a valid string\n"


NAPS = """
import time
from pathlib import Path
from soong import plan, step

@step
def nap(until: str) -> str:
    while not Path(until).exists():
        time.sleep(0.05)
    return "awake"

@plan
def naps(until: str) -> str:
    return nap(until)

if __name__ == "__main__":
    print(naps.run(str(Path("go").absolute())))
"""


@pytest.mark.spec("FLW-02.a", "FLW-02.c/script", "OPS-01")
def test_programs_share_a_home_and_a_task_whose_service_died_continues_in_another(with_words: CliHarness) -> None:
    cli, folder = with_words, with_words.folder / "elsewhere"
    folder.mkdir()
    (folder / "sleeper.py").write_text(NAPS)
    environment = {**cli.env, "PATH": os.environ["PATH"]}
    argv = [sys.executable, "sleeper.py"]
    sleeper = subprocess.Popen(argv, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
    cli.until_running("nap")
    task = cli.task_id()

    beside = called(cli, "from words import words\nif __name__ == '__main__':\n    print(words.run('a bb').word)\n")
    os.kill(cli.record()["pid"], signal.SIGKILL)
    _, error = sleeper.communicate(timeout=60)
    (folder / "go").touch()
    ended = cli.json("resume", task)

    assert beside == "bb\n"
    assert sleeper.returncode == 1
    assert f"UnavailableError: the service has ended; continue the task: soong resume {task}" in error
    assert (ended["status"], ended["output"]) == ("completed", "awake")


@pytest.mark.spec("BYO-01", "FLW-02.c/script")
def test_a_program_whose_only_step_is_an_agent_of_its_own_runs(cli: CliHarness) -> None:
    assert called(cli, AGENT_ALONE) == "owner='a'\n"


@pytest.mark.spec("FLW-02.c/fastapi", "FLW-02.c/django", "FLW-02.c/celery")
def test_handlers_of_web_frameworks_and_a_celery_task_run_a_plan(with_words: CliHarness) -> None:
    assert called(with_words, HANDLERS).splitlines() == [
        "[2, 3]",
        "{'word': 'bb', 'letters': 2} {'word': 'ccc', 'letters': 3}",
        "not",
    ]


@pytest.mark.spec("FLW-01.c", "FLW-02.a")
async def test_a_deployment_runs_it_with_four_workers(service: Deployment) -> None:
    await service.start_workers(4, SOONG_FUNCTIONS=FUNCTIONS)
    home = service.settings.home
    async with Soong.connect(service.database_url, service.redis_url, agent_home=home) as soong:
        handle = await soong.start(words, {"text": TEXT})
        assert await handle.result() == Measured(**LONGEST)
        assert await handle.status() is TaskStatus.COMPLETED
        failing = await soong.start(breaks)
        with pytest.raises(TaskFailedError, match=r"step 'broken': execution_failed: ValueError: no 3 \(at .*"):
            await failing.result()
        waiting = await soong.start(
            {"title": "w", "steps": [{"id": "s", "kind": "python", "call": "builtin.sleep", "inputs": {"seconds": 60}}]}
        )
        await waiting.cancel(reason="enough")
        with pytest.raises(TaskFailedError, match="is cancelled: enough"):
            await waiting.result()
        found = await soong.tasks(status=[TaskStatus.CANCELLED])
        assert [one.id for one in found] == [waiting.id]


write: Any = agent_step("Write the word.", script="builtin.calls", tools=["code.write_file"])


@plan
def noted(text: str = "a bb") -> Any:
    word = longest(measure.map(split(text)))
    call = {"call": "code.write_file", "with": {"path": "word.txt", "content": f"the word is {word.word}"}}
    return write(calls=[call], output={"word": word.word})


@pytest.mark.spec("FLW-02.a")
async def test_a_handle_has_the_questions_of_its_task_and_answers_them(service: Deployment, tmp_path: Path) -> None:
    await service.start_workers(1, SOONG_FUNCTIONS=FUNCTIONS)
    home, project = service.settings.home, tmp_path / "project"
    project.mkdir()
    async with Soong.connect(service.database_url, service.redis_url, agent_home=home) as soong:
        handle = await soong.start(noted, project=project, approvals="inbox", model="script")
        questions: Sequence[AnswerableApproval] = ()
        async for _ in looks(30):
            if questions := await handle.questions():
                break
        assert [one.tool for one in questions] == ["code.write_file"]
        with pytest.raises(ConflictError, match="look at the question again"):
            await handle.answer(questions[0].model_copy(update={"input_digest": "0" * 64}), "allow_once")
        await handle.answer(questions[0], "allow_once", reason="it may")
        assert await handle.result() == {"word": "bb"}
        with pytest.raises(ConflictError, match="somebody was first"):
            await handle.answer(questions[0], "deny")
    assert (project / "word.txt").read_text() == "the word is bb"


@pytest.mark.spec("FLW-01.f")
async def test_a_worker_with_other_code_refuses_and_a_second_attempt_takes_it(
    service: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.start_workers(1, SOONG_FUNCTIONS=FUNCTIONS)
    monkeypatch.setattr(
        "soong.orchestrator.sdk.service.versions_of", lambda names: dict.fromkeys(names, "0123456789ab")
    )
    home = service.settings.home
    async with Soong.connect(service.database_url, service.redis_url, agent_home=home) as soong:
        handle = await soong.start(words, {"text": TEXT})
        with pytest.raises(TaskFailedError, match=r"worker_incompatible: this worker has version \w{12} of"):
            await handle.result()
        await handle.resume()
        split = (await handle.wait()).steps[0]
    assert (split.status, split.attempt) == ("completed", 2)


def generated(number: int) -> Any:
    """Return a plan in Python, and the document that a person would write for the same in YAML."""
    dice = random.Random(number)
    source: list[tuple[str, Any]] = []
    nodes: list[dict[str, Any]] = []

    def reference(kind: str) -> tuple[str, Any] | None:
        found = [one for one in source if one[0] == kind]
        return dice.choice(found) if found else None

    def node(name: str, call: Any, kind: str, inputs: Any, needs: list[str], over: Any = None, **gate: str) -> Any:
        taken = sum(one["id"].split("-")[0] == name for one in nodes)
        step_id = name if not taken else f"{name}-{taken + 1}"
        edges = [one["id"] for one in nodes if one["id"] in needs]
        work = {"kind": "python", "call": f"{__name__}.{name}", "inputs": inputs}
        head = {"id": step_id, **({"depends_on": edges} if edges else {}), **gate}
        nodes.append({**head, "kind": "map", "over": over, "step": work} if over is not None else {**head, **work})
        source.append((kind, (step_id, call)))
        return call

    @plan(title=f"plan {number}")
    def made(start: int = number) -> Any:
        value: Any
        node("given", given(start), "list", {"value": "${inputs.start}"}, [])
        for _ in range(dice.randint(1, 5)):
            match dice.randint(0, 4):
                case 0:
                    name, value = (reference("list") or source[0])[1]
                    node("added", added(value, more=2), "int", {"values": f"${{{name}.output}}", "more": 2}, [name])
                case 1 if (found := reference("int")) is not None:
                    name, value = found[1]
                    inputs = {"total": f"${{{name}.output}}", "text": f"${{{name}.output}} of ${{inputs.start}}"}
                    node("listed", listed(value, text=f"{value} of {start}"), "dict", inputs, [name])
                case 2:
                    name, value = (reference("list") or source[0])[1]
                    node("given", given.map(value), "lists", {"value": "${item}"}, [name], f"${{{name}.output}}")
                case 3 if (found := reference("int")) is not None:
                    name, value = found[1]
                    when = f"(${{{name}.output}} > 5 or not (${{inputs.start}} == 3))"
                    call = given.with_options(join="any").when((value > 5) | ~(start == 3))(value)
                    node("given", call, "list", {"value": f"${{{name}.output}}"}, [name], join="any", when=when)
                case _:
                    after_name, after = dice.choice(source)[1]
                    node("given", given.after(after)(7, others=[start, 1]), "list",
                         {"value": 7, "others": ["${inputs.start}", 1]}, [after_name])  # fmt: skip
        return {"last": source[-1][1][1], "all": [one[1][1] for one in source]}

    document = dict(made.document)
    output = {"last": f"${{{source[-1][1][0]}.output}}", "all": [f"${{{one[1][0]}.output}}" for one in source]}
    inputs = {"start": {"type": "integer", "default": number}}
    wanted = {"title": f"plan {number}", "inputs": inputs, "modules": [__name__], "output": output, "steps": nodes}
    return made, document, wanted


@pytest.mark.spec("FLW-01.a", "FLW-01.b")
async def test_generated_plans_are_equal_in_each_form_and_so_are_their_outputs(service: Deployment) -> None:
    await service.start_workers(2, slots=32, SOONG_FUNCTIONS=FUNCTIONS)
    home = service.settings.home
    async with Soong.connect(service.database_url, service.redis_url, agent_home=home) as soong:
        pairs = []
        for number in range(PLANS):
            made, document, wanted = generated(number)
            assert document == wanted
            printed = yaml.safe_load(plan_text(document))
            assert printed == wanted
            pairs.append((await soong.start(made), await soong.start(printed)))
        for own, other in pairs:
            results = await asyncio.gather(own.wait(), other.wait())
            first, second = ({one.id: one.output for one in result.steps} for result in results)
            assert results[0].status is TaskStatus.COMPLETED
            assert first == second
            assert results[0].output == results[1].output != None  # noqa: E711
