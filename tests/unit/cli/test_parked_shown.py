"""A parked step is shown as what it is: waiting for consent, and in nobody's slot."""

import io
from collections import Counter

import pytest
from rich.console import Console

from soong.orchestrator.cli.display import LineDisplay
from soong.orchestrator.cli.live import Live
from soong.orchestrator.cli.step_words import counted, status_text
from soong.orchestrator.cli.workers import text_of
from soong.orchestrator.client.client import TaskSnapshot
from soong.orchestrator.client.workers import WorkersView
from soong.orchestrator.schemas.task import StepSchema
from soong.orchestrator.schemas.worker import WorkersSchema
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.storage.store import Store
from tests.contract.scene import ContractHarness, held, open_scene
from tests.model.builders import make_request
from tests.model.memory import MemoryStore


async def snapshot_of(scene: ContractHarness, store: Store) -> TaskSnapshot:
    claim = await scene.start("asks")
    request = await scene.raised(make_request(claim))
    assert await store.claims.park(scene.worker, held(claim), [request.id], max_parked=1, now_us=scene.now_us)
    steps = tuple(await store.tasks.steps(claim.identity.task_id))
    return TaskSnapshot(await store.tasks.task(claim.identity.task_id), steps, (), (request,))


@pytest.mark.spec("DAG-04", "PER-13")
async def test_lines_and_the_live_picture_say_that_a_parked_step_waits_for_consent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = MemoryStore()
    view = await snapshot_of(await open_scene(store), store)
    output = io.StringIO()
    live = Live(Console(file=output, width=100, height=40, force_terminal=False))

    LineDisplay().show(view)
    live.console.print(live.picture(view))
    live.close()

    assert "? asks blocked: waits for consent, without a slot" in capsys.readouterr().err
    assert "waits for consent, without a slot" in output.getvalue()
    assert "1 waiting for consent" in output.getvalue()
    assert status_text(StepSchema.of(view.steps[0]).model_dump()) == "blocked (waits for consent)"


def test_parked_steps_are_counted_in_words() -> None:
    counts = Counter({StepStatus.BLOCKED: 2, StepStatus.RUNNING: 1})

    assert [f"{number} {counted(status)}" for status, number in counts.items()] == [
        "2 waiting for consent",
        "1 running",
    ]


def test_the_list_of_workers_says_how_many_runs_are_parked() -> None:
    assert "parked" not in text_of(document_of(WorkersView((), ())))
    assert "1 run is parked and holds no slot" in text_of(document_of(WorkersView((), (), parked=1)))
    assert "3 runs are parked and hold no slot" in text_of(document_of(WorkersView((), (), parked=3)))


def document_of(view: WorkersView) -> dict[str, object]:
    return WorkersSchema.of_view(view).model_dump()
