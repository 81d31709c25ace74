"""Running tasks on a terminal: the live picture, the lines and the summary."""

import io
import json
import time
from pathlib import Path

import pytest
from rich.console import Console

from soong.orchestrator.approvals.approval import question_of
from soong.orchestrator.operations.outcome import read_result
from soong.orchestrator.operations.progress import TaskWatch
from soong.orchestrator.schemas.approval import ApprovalSchema
from soong.orchestrator.terminal.display import LineDisplay, LostLeases, TaskView
from soong.orchestrator.terminal.live import Live
from soong.orchestrator.terminal.summary import status_text
from soong.orchestrator.terminal.summary import text_of as summary_text
from soong.shared.core.jsontext import Json
from soong.shared.core.timing import utc_date
from soong.shared.engine.runs.budgets import Budget, Charge, session_scope
from soong.shared.engine.tasks.spec import FailurePolicy
from soong.shared.storage.store import Store
from tests.contract.scene import ContractHarness, cancelled, held, open_scene
from tests.model.builders import make_map, make_request, make_step
from tests.model.memory import MemoryStore

HOSTILE = "\x1b[2J\x1b]0;title\x07 [red]not markup[/red] \u202eevil\r\n  ✓ look completed"


async def drawn(root: str, step: str = "") -> str:
    """Return the picture of a running step while the agent of its task and its own are writing."""
    store = MemoryStore()
    claim = await (await open_scene(store)).start("look")
    task = await store.tasks.task(claim.identity.task_id)
    output = io.StringIO()
    live = Live(Console(file=output, width=100, height=40, force_terminal=False))
    live.show(await view_of(store, task.id))
    live.speak(task.root_run_id, "said before")
    live.speak(task.root_run_id, root)
    live.speak(claim.identity.run_id, step)
    live.console.print(live.drawn())
    live.close()
    return output.getvalue()


async def test_the_end_of_what_an_agent_and_a_step_are_writing_is_shown() -> None:
    lines = "\n".join(f"line {number}" for number in range(100))

    picture = await drawn(f"{lines}\nthe newest line", "first\nthe step's newest line")

    assert "the newest line" in picture
    assert "line 99" in picture
    assert "line 1\n" not in picture
    assert "the step's newest line" in picture


async def test_what_a_model_writes_imitates_nothing_and_commands_no_terminal() -> None:
    picture = await drawn(HOSTILE, HOSTILE)

    assert "\x1b" not in picture
    assert "\u202e" not in picture
    assert "\x07" not in picture
    assert "[red]not markup[/red]" in picture


async def test_an_answer_that_is_over_leaves_nothing() -> None:
    assert "said before" not in await drawn("")


async def drawn_budget(budgets: dict[str, Budget], *charges: Charge) -> str:
    store = MemoryStore()
    scene = await open_scene(store)
    claim = await scene.start("look")
    for scope, budget in budgets.items():
        await store.budgets.set_budget(scope or session_scope(claim.identity.session_id), budget)
    today = utc_date(time.time_ns() // 1000)
    for number, charge in enumerate(charges, 1):
        await store.budgets.reserve(claim.identity.run_id, claim.fence, number, charge, day=today)
    output = io.StringIO()
    live = Live(Console(file=output, width=100, height=40, force_terminal=True, color_system="standard"))
    live.show(await view_of(store, claim.identity.task_id))
    live.console.print(live.drawn())
    live.close()
    return output.getvalue()


@pytest.mark.spec("DIS-11")
async def test_what_is_charged_is_shown_with_its_limits_where_there_are_any() -> None:
    assert "budget" not in await drawn_budget({})

    picture = await drawn_budget({"": Budget(200_000, 2_000_000)}, Charge(10_000, 31_200), Charge(2_345, 0))

    assert "budget  $0.0312 of $2, 12,345 of 200,000 tokens (6%)" in picture


DIED = "worker-2@vm died (SIGKILL, killed, perhaps out of memory)"


async def expired(scene: ContractHarness, *, most: int = 3) -> None:
    await scene.store.claims.expire_worker(scene.worker, 0, max_lost_leases=most, now_us=scene.now_us, because=DIED)


@pytest.mark.spec("DAG-05")
@pytest.mark.parametrize(
    ("number", "most", "consequence"),
    [(1, 3, "; 1 step starts again"), (3, 3, "; 3 steps start again"), (2, 1, "")],
    ids=["one", "several", "failed"],
)
async def test_a_lost_worker_is_reported_once_with_its_steps(number: int, most: int, consequence: str) -> None:
    store, losses = MemoryStore(), LostLeases()
    scene = await open_scene(store)
    task_id = await scene.task(*"abc"[:number])
    await scene.claim()

    told = [losses.news(await view_of(store, task_id))]
    await expired(scene, most=most)
    told += [losses.news(await view_of(store, task_id)) for _ in range(2)]

    assert told == [[], [f"{DIED}{consequence}"], []]


async def test_what_was_lost_before_is_not_reported() -> None:
    store = MemoryStore()
    scene = await open_scene(store)
    task_id = (await scene.start("a")).identity.task_id
    await expired(scene)

    assert LostLeases().news(await view_of(store, task_id)) == []
    assert LostLeases({}).news(await view_of(store, task_id)) == [f"{DIED}; 1 step starts again"]


async def parked(scene: ContractHarness, store: Store) -> TaskView:
    claim = await scene.start("asks")
    request = await scene.raised(make_request(claim))
    assert await store.claims.park(scene.worker, held(claim), [request.id], max_parked=1, now_us=scene.now_us)
    return await view_of(store, claim.identity.task_id)


@pytest.mark.spec("DAG-04", "PER-13")
async def test_lines_and_the_live_picture_say_that_a_parked_step_waits_for_consent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = MemoryStore()
    view = await parked(await open_scene(store), store)
    output = io.StringIO()
    live = Live(Console(file=output, width=100, height=40, force_terminal=False))

    LineDisplay().show(view)
    live.console.print(live.picture(view))
    live.close()

    assert "? asks blocked: waits for consent, without a slot" in capsys.readouterr().err
    assert "waits for consent, without a slot" in output.getvalue()
    assert "1 waiting for consent" in output.getvalue()
    assert status_text(view.steps[0]) == "blocked (waits for consent)"


async def test_of_a_task_with_many_steps_a_few_are_read_and_the_number_of_all_is_shown() -> None:
    scene = await open_scene(MemoryStore())
    task_id = await scene.task(*(f"s{number}" for number in range(1_200)))
    (claim,) = await scene.claim(1)
    await scene.fail(claim)

    result = await read_result(scene.store, task_id, Path("/runs"), brief=True)
    text = summary_text(result.model_dump())

    assert len(result.steps) == 60
    assert "… and 1140 steps more" in text
    assert f"tasks show {task_id} --json" in text
    assert f"runs logs {claim.identity.run_id}" in text


async def summary_of(output: Json, **more: object) -> list[str]:
    scene = await open_scene(MemoryStore())
    claim = await scene.start("look")
    await scene.complete(claim, output)
    result = await read_result(scene.store, claim.identity.task_id, Path("/runs"))
    return summary_text({**result.model_dump(), **more}).splitlines()


async def test_a_failed_map_keeps_the_outputs_of_its_other_items_in_their_order() -> None:
    scene = await open_scene(MemoryStore())
    task_id = await scene.task(make_map("m"))
    await scene.expand(f"{task_id}/m", "x", "y", "z")
    first, second, third = await scene.claim(3)
    for claim, output in ((third, {"n": 3}), (first, {"n": 1})):
        await scene.complete(claim, output)
    await scene.fail(second)
    await scene.settle(second.step_key, FailurePolicy.SKIP_DEPENDENTS)

    result = await read_result(scene.store, task_id, Path("/runs"))

    (failed,) = [step for step in result.steps if step.id == "m"]
    assert [(item["step"], item["status"], item.get("output")) for item in failed.partial] == [
        ("m[x]", "completed", {"n": 1}),
        ("m[y]", "failed", None),
        ("m[z]", "completed", {"n": 3}),
    ]


@pytest.mark.parametrize(("kind", "act"), [("python", "logs"), ("agent", "tail")])
async def test_what_a_failed_function_printed_is_named(kind: str, act: str) -> None:
    scene = await open_scene(MemoryStore())
    claim = await scene.start("look")
    await scene.fail(claim)
    task = (await read_result(scene.store, claim.identity.task_id, Path("/runs"))).model_dump()

    text = summary_text({**task, "steps": [{**task["steps"][0], "kind": kind}]})

    assert f"runs {act} {claim.identity.run_id}" in text


async def test_the_text_of_the_only_last_step_is_shown_as_text() -> None:
    lines = await summary_of("# Report\n\n- one\n")

    at = lines.index("result of look:")
    assert lines[at + 1 :] == ["", "# Report", "", "- one"]


async def test_a_result_that_is_one_line_or_no_text_is_shown_as_json() -> None:
    assert 'result of look: "done"' in await summary_of("done")
    assert 'result of look: {"a": "b\\nc"}' in await summary_of({"a": "b\nc"})


@pytest.mark.spec("LOG-01.f")
async def test_an_answer_is_the_last_and_the_results_that_it_is_made_of_are_left_out() -> None:
    files = [{"path": f"/p/{number}.txt", "stored_at": "/runs/x"} for number in range(12)]

    lines = await summary_of("a part", answer="first line\nlast line", deliverables=files)

    assert lines[-3:] == ["", "first line", "last line"]
    assert not [line for line in lines if line.startswith("result of")]
    assert [line for line in lines if line.startswith("wrote")] == [f"wrote /p/{number}.txt" for number in range(10)]
    assert "… and 2 files more" in lines


async def test_a_very_long_answer_shows_its_begin_and_how_to_read_all_of_it() -> None:
    lines = await summary_of(None, answer="\n".join(map(str, range(300))))

    shown = lines[lines.index("next:") + 1].strip()
    assert lines[-2:] == ["199", f"… and 100 lines more: {shown} --json"]


async def test_of_many_results_there_is_a_count_and_where_to_look() -> None:
    scene = await open_scene(MemoryStore())
    task_id = await scene.task(*(f"s{number}" for number in range(20)))
    for claim in await scene.claim(20):
        await scene.complete(claim, {"n": 1})

    lines = summary_text((await read_result(scene.store, task_id, Path("/runs"))).model_dump()).splitlines()

    assert lines[-1].endswith(f"tasks show {task_id} --result")
    assert lines[-1].startswith("20 results: ")


async def test_only_the_log_of_a_step_that_was_begun_is_worth_following() -> None:
    scene = await open_scene(MemoryStore())
    claim = await scene.start("long", "first", make_step("after", depends_on=["first"]))
    task_id = claim.identity.task_id
    await scene.store.tasks.cancel_task(scene.own, task_id, reason="not needed", now_us=scene.now_us)
    await scene.advance([cancelled(claim)])
    result = await read_result(scene.store, task_id, Path("/runs"))
    begun, _, never = result.steps

    text = summary_text(result.model_dump())

    assert never.run
    assert f"soong runs logs {begun.run}" in text
    assert never.run not in text
    assert f"soong resume {task_id}" in text


async def view_of(store: Store, task_id: str) -> TaskView:
    """Return the first view of a task, with the questions that wait."""
    watch, view = TaskWatch(task_id, store), TaskView(task_id)
    await watch.look()
    event = json.loads(watch.since(0).partition(b"data: ")[2])
    view.take(task_id, event, is_whole=True)
    questions = [await question_of(store.consent, one) for one in event["approvals"]]
    view.questions = [ApprovalSchema.of_question(one).model_dump(mode="json") for one in questions]
    return view
