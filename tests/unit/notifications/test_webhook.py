"""Webhooks over real connections: signed so that others verify it, and answers read as RFC 9110 has them."""

import base64
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from soong.orchestrator.notifications.channels import Delivery, WebhookChannel, keys_of, seconds_of
from soong.orchestrator.notifications.message import Message
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.notification_config import WebhookConfig
from soong.shared.core.timing import SystemClock
from soong.shared.engine.tasks.event_feed import Notice
from tests.notification_receivers import HttpReceiver, http_receiver

pytestmark = pytest.mark.spec("OPS-11.d")

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
OTHER = "whsec_" + base64.b64encode(bytes(range(1, 33))).decode()
NOTICE = Notice("n1", "ops", "question", "sess_1", "req_1", 1_800_000_000_000_000, 0, {"tool": "code.write_file"})
MESSAGE = Message("msg_1", [NOTICE], "https://soong.example.org")


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpReceiver]:
    with http_receiver() as found:
        monkeypatch.setenv("OPS_SECRET", SECRET)
        monkeypatch.setenv("OPS_URL", f"{found.url}/hook?key=hidden")
        yield found


async def send(message: Message = MESSAGE) -> Delivery:
    return await WebhookChannel("ops", WebhookConfig(url="env:OPS_URL", secret="env:OPS_SECRET"), SystemClock()).send(
        message
    )


async def test_the_specifications_own_library_verifies_what_is_sent(receiver: HttpReceiver) -> None:
    assert (await send()).is_sent

    (taken,) = receiver.taken
    told = Webhook(SECRET).verify(taken.body, taken.headers)
    assert (taken.path, taken.headers["webhook-id"]) == ("/hook?key=hidden", "msg_1")
    assert told["type"] == "soong.question"
    assert told["data"]["notices"][0]["link"] == "https://soong.example.org/#/inbox/req_1"


async def test_a_forged_or_changed_webhook_is_not_verified(receiver: HttpReceiver) -> None:
    await send()
    (taken,) = receiver.taken

    for key, body, headers in (
        (OTHER, taken.body, taken.headers),
        (SECRET, taken.body.replace(b"req_1", b"req_2"), taken.headers),
        (SECRET, taken.body, {**taken.headers, "webhook-id": "msg_2"}),
        (SECRET, taken.body, {**taken.headers, "webhook-timestamp": "1"}),
    ):
        with pytest.raises(WebhookVerificationError):
            Webhook(key).verify(body, headers)


async def test_while_a_key_is_replaced_both_verify(receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPS_SECRET", f"{SECRET} {OTHER}")
    await send()

    (taken,) = receiver.taken
    assert Webhook(SECRET).verify(taken.body, taken.headers) == Webhook(OTHER).verify(taken.body, taken.headers)


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (204, {}, Delivery()),
        (410, {}, Delivery("the receiver answered 410 Gone: it takes no more messages", is_gone=True)),
        (500, {}, Delivery("the receiver answered 500")),
        (429, {"Retry-After": "120"}, Delivery("the receiver answered 429", retry_after_s=120)),
        (
            302,
            {"Location": "http://169.254.169.254/"},
            Delivery("the receiver answered 302; redirects are not followed, so name its final address"),
        ),
    ],
)
async def test_an_answer_decides_what_becomes_of_the_message(
    receiver: HttpReceiver, status: int, headers: dict[str, str], expected: Delivery
) -> None:
    receiver.status, receiver.headers = status, headers

    assert await send() == expected
    assert len(receiver.taken) + len(receiver.refused) == 1


async def test_no_result_shows_the_address_or_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPS_SECRET", SECRET)
    monkeypatch.setenv("OPS_URL", "http://127.0.0.1:1/hidden")

    delivery = await send()

    assert delivery.error.startswith("the receiver cannot be reached")
    assert "hidden" not in delivery.error


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_AAAA", "not base64!", "whsec_" + "A" * 200])
def test_a_key_that_is_none_is_named_without_showing_it(secret: str) -> None:
    with pytest.raises(
        InvalidConfigError, match=r"^p\.secret: is .*expected whsec_ and the base64 of 24 to 64"
    ) as raised:
        keys_of(secret, "p")

    assert not secret or secret not in str(raised.value).replace("whsec_ and", "")


def test_retry_after_is_seconds_or_a_date_and_never_more_than_a_day() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    now_us = round(now.timestamp() * 1_000_000)
    in_a_minute = (now + timedelta(minutes=1)).strftime("%a, %d %b %Y %H:%M:%S GMT")

    found = [seconds_of(text, now_us) for text in ("7", in_a_minute, "", "-1", "soon", "9" * 400, "٣")]

    assert found == [7, 60, 0, 0, 0, 86_400, 0]


def test_a_large_message_describes_some_and_counts_the_rest() -> None:
    message = replace(MESSAGE, notices=[replace(NOTICE, id=f"n{number}") for number in range(15)])

    assert message.title == "15 questions"
    assert message.lines[-1] == "and 5 more"
