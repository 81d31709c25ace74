"""Metrics, traces and notifications that leave a deployment."""

import asyncio
import base64
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from standardwebhooks.webhooks import Webhook

from soong.orchestrator.owner.service import Orchestrator
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.runs.events import Event, EventType
from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Task
from tests.answering import allow
from tests.notification_receivers import HttpReceiver, http_receiver
from tests.otlp_receiver import OtlpReceiver, facts, otlp_receiver
from tests.scripted import call, calls
from tests.spec_document import ROOT
from tests.system.cli_scene import CliHarness
from tests.system.deployment import ON_POSTGRES, ON_SQLITE, Deployment, kill
from tests.system.test_consent import PARKS, answer, appends, stands
from tests.waiting import others_run

ENDS = (EventType.TOOL_COMPLETED, EventType.TOOL_FAILED, EventType.TOOL_DENIED)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    with otlp_receiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        yield receiver


@pytest.fixture
async def traced(collector: OtlpReceiver, service: Deployment) -> Deployment:
    service.settings.home.joinpath("config.toml").write_text("[tools]\ndangerous = true\n", encoding="utf-8")
    return service


def reads(step_id: str, *after: str) -> dict[str, Json]:
    return {
        "id": step_id,
        "instructions": "x",
        "allowed_tools": ["code.list_dir"],
        "depends_on": list(after),
        **calls(call("code.list_dir", path="."), call("code.list_dir", path="/nowhere")),
    }


async def log_of(service: Deployment, task: Task) -> list[Event]:
    runs = await service.store.runs.list_runs(task_id=task.id)
    return list(await service.store.runs.events_of([run.id for run in runs]))


async def arrived(service: Deployment, collector: OtlpReceiver) -> None:
    """Wait for the span that comes last."""
    await service.until(lambda: "invoke_workflow" in collector.by_operation())


@pytest.mark.spec("OPS-05.a")
@ON_POSTGRES
async def test_a_run_over_three_processes_with_one_killed_is_one_tree_that_equals_the_rows(
    collector: OtlpReceiver, traced: Deployment
) -> None:
    slow: JsonObject = {
        **appends(traced.home / "unused.txt"),
        "id": "slow",
        **calls(call("code.list_dir", path="."), call("code.run_command", argv=["sleep", "2"])),
        "allowed_tools": ["code.list_dir", "code.run_command"],
    }
    plan: JsonObject = {"title": "three", "steps": [slow, *(reads(f"r{n}") for n in range(3)), reads("last", "slow")]}
    await traced.start_workers(2, slots=2)
    task = await traced.submit(plan, project=traced.home, callback=allow)

    async def is_in_its_command() -> bool:
        run_id = (await traced.steps(task))["slow"].run_id
        return any(e.type == EventType.TOOL_STARTED for e in await traced.store.runs.events(run_id))

    await traced.until(is_in_its_command)
    kill(await traced.worker_of((await traced.steps(task))["slow"]))
    ended = await traced.finished(task)
    await arrived(traced, collector)

    log, spans = await log_of(traced, task), collector.by_operation()
    types = Counter(event.type for event in log)
    (root,) = collector.roots()
    assert root.name == "invoke_workflow three"
    assert ended.status.is_terminal
    assert types[EventType.STEP_LEASE_EXPIRED] >= 1
    assert {span.trace_id for span in collector.spans} == {root.trace_id}
    assert spans["chat"] == types[EventType.MODEL_REQUESTED]
    tools = Counter(str(facts(span)["gen_ai.tool.call.id"]) for span in collector.of("execute_tool"))
    assert tools == Counter(str(event.data["tool_call_id"]) for event in log if event.type in ENDS)
    assert spans["invoke_agent"] == types[EventType.RUN_STARTED] + types[EventType.RUN_RESUMED]
    assert len({span.span_id for span in collector.spans}) == len(collector.spans)
    lost = [span for span in collector.of("invoke_agent") if facts(span)["soong.segment.end"] == "lost"]
    assert lost
    assert all(span.status.code == span.status.STATUS_CODE_ERROR for span in lost)


@pytest.mark.spec("OPS-05.a")
@ON_SQLITE
async def test_a_run_that_waits_is_short_spans_that_are_linked(collector: OtlpReceiver, traced: Deployment) -> None:
    file = traced.home / "lines.txt"
    file.write_text("", encoding="utf-8")
    await traced.start_workers(1, slots=1, **PARKS)
    task = await traced.submit(
        {"title": "asks", "steps": [appends(file)]}, project=traced.home, approval_mode=ApprovalMode.INBOX
    )
    await traced.until(lambda: stands(traced, task, StepStatus.BLOCKED))
    (request,) = await traced.store.consent.pending(task.session_id)
    await answer(traced, request)
    await traced.finished(task)
    await arrived(traced, collector)

    first, second = sorted(collector.of("invoke_agent"), key=lambda span: span.start_time_unix_nano)
    (asked,) = collector.of("permission")
    assert facts(first)["soong.segment.end"] == "parked"
    assert [link.span_id for link in second.links] == [first.span_id]
    assert first.end_time_unix_nano <= second.start_time_unix_nano
    assert asked.parent_span_id == first.span_id
    assert facts(asked)["soong.decision.choice"] == "allow_once"
    assert len(collector.roots()) == 1


@pytest.mark.spec("OPS-05.a")
@ON_SQLITE
async def test_a_collector_that_is_down_gets_every_span_later_and_holds_nothing_up(
    collector: OtlpReceiver, traced: Deployment
) -> None:
    collector.status = 503
    await traced.start_workers(1)
    task = await traced.submit({"title": "down", "steps": [reads("a"), reads("b")]}, project=traced.home)
    ended = await traced.finished(task)

    await traced.until(lambda: collector.refused > 0)
    nothing = len(collector.spans)
    collector.status = 200
    await arrived(traced, collector)

    assert (ended.status, nothing) == (TaskStatus.COMPLETED, 0)
    assert collector.by_operation()["execute_tool"] == sum(event.type in ENDS for event in await log_of(traced, task))


@pytest.mark.spec("OPS-05.a")
@pytest.mark.parametrize("variable", ["OTEL_SDK_DISABLED=true", "OTEL_TRACES_EXPORTER=none", "OTEL_X=1"])
async def test_nothing_follows_the_logs_where_nobody_asks(
    variable: str, monkeypatch: pytest.MonkeyPatch, no_owner: Deployment, tmp_path: Path
) -> None:
    name, _, value = variable.partition("=")
    monkeypatch.setenv(name, value)
    if name != "OTEL_X":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    async with no_owner as service:
        await service.start_orchestrator()
        owner: Orchestrator = service.orchestrator
        await owner.stop()

    assert not [begin for begin in owner.parts.background if "EventFollower" in repr(begin)]
    assert os.environ[name] == value
    await others_run()


def drawn(collector: OtlpReceiver) -> list[str]:
    """Return the one tree of all spans as the page shows it: a span a line, steps by their ids, in order of time."""
    spans = sorted(collector.spans, key=lambda span: span.start_time_unix_nano)

    def below(parent: bytes, indent: str) -> Iterator[str]:
        children = [span for span in spans if span.parent_span_id == parent]
        for number, span in enumerate(children, start=1):
            is_last = number == len(children)
            step = str(facts(span).get("soong.step.id", "")) if span.name.startswith("invoke_agent") else ""
            yield f"{indent}{'└' if is_last else '├'}── {span.name} {step}".rstrip()
            yield from below(span.span_id, f"{indent}{'    ' if is_last else '│   '}")

    (root,) = collector.roots()
    return [root.name, *below(root.span_id, "")]


@pytest.mark.spec("OPS-05.a")
def test_the_first_minute_of_the_page_gives_the_trace_that_it_shows(cli: CliHarness, collector: OtlpReceiver) -> None:
    page = (ROOT / "docs" / "reference" / "telemetry.md").read_text(encoding="utf-8")
    shown = page.partition("```text\n")[2].partition("```")[0].splitlines()
    cli.environment.update(OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint, OTEL_METRICS_EXPORTER="none")
    cli.serve_with("hello", ROOT / "examples")

    done = cli.run("run", str(ROOT / "examples" / "hello.yaml"))

    assert done.returncode == 0, done.stdout + done.stderr
    cli.assert_nothing_left()  # the service sends what is left before it ends
    assert drawn(collector) == [re.sub(r"(?<=\w) {2,}(?=\w)", " ", line) for line in shown]


SECRET = "whsec_" + base64.b64encode(b"a key of thirty-two random bytes").decode()

CONFIG = """
[notifications.webhook.ops]
url = "env:OPS_URL"
secret = "env:OPS_SECRET"
group_s = 0
[[notifications.rules]]
channel = "ops"
events = ["end"]
"""

PLAN: JsonObject = {
    "title": "notified",
    "steps": [
        {
            "id": "look",
            "instructions": "x",
            "allowed_tools": ["code.list_dir"],
            **calls(call("code.list_dir", path=".")),
        }
    ],
}


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpReceiver]:
    with http_receiver() as found:
        monkeypatch.setenv("OPS_URL", found.url)
        monkeypatch.setenv("OPS_SECRET", SECRET)
        yield found


@pytest.mark.spec("OPS-11.a", "OPS-11.c")
async def test_a_receiver_that_is_down_and_a_sender_killed_after_it_sent_lose_nothing(
    receiver: HttpReceiver, no_owner: Deployment
) -> None:
    receiver.status = 503
    async with no_owner as service:
        service.settings.home.joinpath("config.toml").write_text(CONFIG, encoding="utf-8")
        await service.start_owners(1)
        await service.start_workers(1)
        task = await service.submit(PLAN)
        ended = await service.finished(task)
        await service.until(lambda: bool(receiver.refused))
        first = receiver.refused[0].headers["webhook-id"]
        service.owners[-1].kill()
        receiver.status = 200

        await service.start_owners(1, FAULT_DIE="record_outcome:before")
        assert await asyncio.to_thread(service.owners[-1].wait, 60) == -signal.SIGKILL
        sent = len(receiver.taken)
        await service.start_owners(1)
        await service.until(lambda: _is_sent(service), within_s=60)

    assert ended.status is TaskStatus.COMPLETED
    assert sent == 1
    assert receiver.ids == [first] * len(receiver.ids)
    assert len(receiver.ids) >= 2
    for taken in receiver.taken:
        told = Webhook(SECRET).verify(taken.body, taken.headers)
        assert told["data"]["notices"][0]["outcome"] == "completed"
    assert receiver.taken[0].body == receiver.taken[1].body


async def _is_sent(service: Deployment) -> bool:
    notices = await service.store.outbox.notices(include_ended=True, limit=10)
    return [notice.state.value for notice in notices] == ["sent"]


@pytest.mark.spec("OPS-11.a", "OPS-11.c")
def test_the_first_minute_of_the_page_sends_what_it_shows(cli: CliHarness, receiver: HttpReceiver) -> None:
    text = (ROOT / "docs" / "reference" / "notifications.md").read_text(encoding="utf-8")
    page = text.partition("## First minute")[2]
    config, commands, shown = (page.partition(f"```{kind}\n")[2].partition("```")[0] for kind in ("toml", "sh", "text"))
    cli.environment["WEBHOOK_KEY"] = SECRET
    cli.home.mkdir(parents=True, exist_ok=True)
    cli.home.joinpath("config.toml").write_text(config.replace("http://127.0.0.1:8099", receiver.url))
    cli.serve_with("hello", ROOT / "examples")

    for line in commands.splitlines():
        if line.startswith("soong "):
            done = cli.run(*line.replace("examples/", f"{ROOT}/examples/").split()[1:])
            assert done.returncode == 0, done.stdout + done.stderr
    cli.assert_nothing_left()  # the service sends what is left before it ends

    told = [(taken.json["type"], taken.json["data"]["title"]) for taken in receiver.taken]
    assert told == [tuple(line.split(maxsplit=1)) for line in shown.splitlines()]
    assert all(Webhook(SECRET).verify(taken.body, taken.headers) for taken in receiver.taken)
