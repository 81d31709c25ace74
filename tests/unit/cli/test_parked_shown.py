import io
from collections import Counter

import pytest
from rich.console import Console

from soong.orchestrator.cli.display import LineDisplay, TaskView
from soong.orchestrator.cli.live import Live
from soong.orchestrator.cli.summary import counted, status_text
from soong.orchestrator.cli.workers import text_of
from soong.orchestrator.schemas.worker import WorkersSchema
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.storage.store import Store
from tests.contract.scene import ContractHarness, held, open_scene
from tests.model.builders import make_request
from tests.model.memory import MemoryStore
from tests.unit.cli.views import view_of


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


def test_parked_steps_are_counted_in_words() -> None:
    counts = Counter({StepStatus.BLOCKED: 2, StepStatus.RUNNING: 1})

    assert [f"{number} {counted(status)}" for status, number in counts.items()] == [
        "2 waiting for consent",
        "1 running",
    ]


def test_the_list_of_workers_says_how_many_runs_are_parked() -> None:
    assert "parked" not in text_of(document_of(0))
    assert "1 run is parked and holds no slot" in text_of(document_of(1))
    assert "3 runs are parked and hold no slot" in text_of(document_of(3))


def document_of(parked: int) -> dict[str, object]:
    return WorkersSchema(workers=[], pools=[], limits=[], parked=parked).model_dump()
