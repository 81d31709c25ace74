import asyncio
import base64
import signal
from collections.abc import Iterator, Sequence

import pytest
from standardwebhooks.webhooks import Webhook

from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.tasks.spec import TaskStatus
from tests.notification_receivers import HttpReceiver, Received, http_receiver
from tests.scripted import call, calls
from tests.spec_document import ROOT
from tests.system.cli_scene import scene
from tests.system.deployment import Deployment

pytestmark = pytest.mark.spec("OPS-11.a", "OPS-11.c")

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
        await service.until(lambda: _holds(receiver.refused))
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


async def _holds(received: Sequence[Received]) -> bool:
    return bool(received)


async def _is_sent(service: Deployment) -> bool:
    notices = await service.store.outbox.notices(include_ended=True, limit=10)
    return [notice.state.value for notice in notices] == ["sent"]


def test_the_first_minute_of_the_page_sends_what_it_shows(receiver: HttpReceiver) -> None:
    text = (ROOT / "docs" / "reference" / "notifications.md").read_text(encoding="utf-8")
    page = text.partition("## First minute")[2]
    config, commands, shown = (page.partition(f"```{kind}\n")[2].partition("```")[0] for kind in ("toml", "sh", "text"))
    with scene() as cli:
        cli.environment["WEBHOOK_KEY"] = SECRET
        cli.home.mkdir(parents=True, exist_ok=True)
        cli.home.joinpath("config.toml").write_text(config.replace("http://127.0.0.1:8099", receiver.url))

        for line in commands.splitlines():
            if line.startswith("soong "):
                done = cli.run(*line.replace("examples/", f"{ROOT}/examples/").split()[1:])
                assert done.returncode == 0, done.stdout + done.stderr
        cli.assert_nothing_left()  # the service that the command started sends what is left before it ends

    told = [(taken.json["type"], taken.json["data"]["title"]) for taken in receiver.taken]
    assert told == [tuple(line.split(maxsplit=1)) for line in shown.splitlines()]
    assert all(Webhook(SECRET).verify(taken.body, taken.headers) for taken in receiver.taken)
