"""The kinds of channels: each makes one attempt to bring one message to one receiver."""

import asyncio
import base64
import binascii
import hashlib
import hmac
import html
import json
import smtplib
import ssl
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, localtime, parsedate_to_datetime
from pathlib import Path
from typing import Final, Protocol

from soong.orchestrator.notifications.message import Message
from soong.shared.core import timing
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.jsontext import Json
from soong.shared.core.notification_config import EmailConfig, NtfyConfig, SlackConfig, WebhookConfig
from soong.shared.core.secret_values import resolved
from soong.shared.core.timing import Clock
from soong.shared.core.value import Value
from soong.shared.sandbox.descriptors import PathRefusedError
from soong.shared.sandbox.programs import child_environment, find_own_program

GONE: Final = 410
MAX_HEADER: Final = 150
MAX_TEXT: Final = 3000
MAX_BYTES: Final = 3500
"""A server makes an attachment of a longer message (4,096 bytes)."""
PREFIX: Final = "whsec_"
KEY_BYTES: Final = range(24, 65)
MAX_SUBJECT: Final = 150
SESSION: Final = ("DISPLAY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR")
"""Variables by which notify-send finds the desktop."""
_SCRIPT: Final = (
    *("-e", "on run argv"),
    *("-e", "display notification (item 2 of argv) with title (item 1 of argv)"),
    *("-e", "end run"),
)


class Delivery(Value):
    """The result of an attempt. ``error`` is one sentence without secrets, empty when it was accepted.

    ``is_gone``: the receiver wants nothing any more. ``retry_after_s`` is how long it asked to wait.
    ``is_partial``: some of several addresses accepted it, so it is not sent again.
    """

    error: str = ""
    is_gone: bool = False
    retry_after_s: float = 0.0
    is_partial: bool = False

    @property
    def is_sent(self) -> bool:
        return not self.error or self.is_partial


class Channel(Protocol):
    async def send(self, message: Message) -> Delivery:
        """Send it once. Every failure of the receiver or the network is a result and raises nothing.

        Raises: InvalidConfigError, a secret that the channel refers to cannot be read.
        """
        ...


async def post(url: str, body: bytes, headers: Mapping[str, str], now_us: int) -> Delivery:
    """Post JSON and return the outcome. The URL may be a secret, so no result contains it."""
    import httpx2  # not needed where nobody is notified over HTTP

    sent = {"Content-Type": "application/json", "User-Agent": "soong-notifications", **headers}
    try:
        async with (
            httpx2.AsyncClient(follow_redirects=False, timeout=timing.EXCHANGE_LIMIT_S) as client,
            client.stream("POST", url, content=body, headers=sent) as response,
        ):
            status, retry_after = response.status_code, response.headers.get("Retry-After", "")
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
        return Delivery(f"the receiver cannot be reached ({type(error).__name__})")
    if 200 <= status < 300:
        return Delivery()
    if status == GONE:
        return Delivery("the receiver answered 410 Gone: it takes no more messages", is_gone=True)
    if 300 <= status < 400:
        return Delivery(f"the receiver answered {status}; redirects are not followed, so name its final address")
    return Delivery(f"the receiver answered {status}", retry_after_s=seconds_of(retry_after, now_us))


def seconds_of(retry_after: str, now_us: int) -> float:
    """Return the seconds of a ``Retry-After`` header (RFC 9110, section 10.2.3); 0 where there is none or another."""
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:10]), timing.DAY_S)
    try:
        until = parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError, OverflowError):
        return 0.0
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    delay_s = (until - datetime.fromtimestamp(now_us / 1_000_000, UTC)).total_seconds()
    return min(max(0.0, delay_s), timing.DAY_S)


class SlackChannel(Value):
    """Slack, by an incoming webhook (https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks).

    All of the content is in ``plain_text`` objects, in which Slack reads no markup, mention or link. The fallback text
    is markup, so it is escaped.
    """

    name: str
    config: SlackConfig
    clock: Clock

    async def send(self, message: Message) -> Delivery:
        url = resolved({"url": self.config.url}, f"notifications.slack.{self.name}")["url"]
        return await post(url, json.dumps(blocks_of(message)).encode(), {}, self.clock.now_us())


def blocks_of(message: Message) -> dict[str, Json]:
    blocks: list[Json] = [
        {"type": "header", "text": _plain(message.title, MAX_HEADER)},
        {"type": "section", "text": _plain("\n".join(message.lines), MAX_TEXT)},
    ]
    if message.link:
        button: Json = {"type": "button", "text": _plain("Open", MAX_HEADER), "url": message.link}
        blocks.append({"type": "actions", "elements": [button]})
    return {"text": html.escape(message.title, quote=False), "blocks": blocks}


def _plain(text: str, limit: int) -> Json:
    return {"type": "plain_text", "text": text if len(text) <= limit else f"{text[: limit - 1]}…", "emoji": False}


class NtfyChannel(Value):
    """ntfy: a topic that phones and desktops subscribe to (https://docs.ntfy.sh/publish/#publish-as-json)."""

    name: str
    config: NtfyConfig
    clock: Clock

    async def send(self, message: Message) -> Delivery:
        place = f"notifications.ntfy.{self.name}"
        config = self.config
        values = resolved({"url": config.url, "topic": config.topic, "token": config.token}, place)
        published = {
            "topic": values["topic"],
            "title": message.title,
            "message": cut("\n".join(message.lines), MAX_BYTES),
            "priority": 4 if message.is_question else 3,
            **({"click": message.link} if message.link else {}),
        }
        headers = {"Authorization": f"Bearer {values['token']}"} if values["token"] else {}
        body = json.dumps(published, ensure_ascii=True).encode()
        return await post(f"{values['url'].rstrip('/')}/", body, headers, self.clock.now_us())


def cut(text: str, limit: int) -> str:
    """Return text of at most so many bytes of UTF-8, with a mark where it was longer."""
    data = text.encode("utf-8", "backslashreplace")
    return text if len(data) <= limit else f"{data[: limit - 3].decode('utf-8', 'ignore')}…"


class WebhookChannel(Value):
    """Signed webhooks, by the Standard Webhooks specification 1.0 (https://www.standardwebhooks.com)."""

    name: str
    config: WebhookConfig
    clock: Clock

    async def send(self, message: Message) -> Delivery:
        place = f"notifications.webhook.{self.name}"
        values = resolved({"url": self.config.url, "secret": self.config.secret}, place)
        now_us = self.clock.now_us()
        body = json.dumps(message.as_json(), separators=(",", ":"), ensure_ascii=True).encode()
        headers = signed_headers(message.id, now_us // 1_000_000, body, keys_of(values["secret"], place))
        return await post(values["url"], body, headers, now_us)


def signed_headers(message_id: str, timestamp_s: int, body: bytes, keys: Sequence[bytes]) -> dict[str, str]:
    """Return the three headers; with several keys there is a signature by each, so that a key can be replaced."""
    content = f"{message_id}.{timestamp_s}.".encode() + body
    digests = [base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode() for key in keys]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": " ".join(f"v1,{digest}" for digest in digests),
    }


def keys_of(secret: str, place: str) -> list[bytes]:
    """Return the keys of a secret, which may be several, separated by spaces.

    Raises: InvalidConfigError, which shows nothing of it.
    """
    expected = f"{PREFIX} and the base64 of {KEY_BYTES.start} to {KEY_BYTES.stop - 1} random bytes"
    keys = []
    for word in secret.split():
        try:
            key = base64.b64decode(word.removeprefix(PREFIX), validate=True)
        except (binascii.Error, ValueError):
            raise InvalidConfigError(f"{place}.secret: is not a signing secret; expected {expected}") from None
        if len(key) not in KEY_BYTES:
            raise InvalidConfigError(f"{place}.secret: is a key of {len(key)} bytes; expected {expected}")
        keys.append(key)
    if not keys:
        raise InvalidConfigError(f"{place}.secret: is empty; expected {expected}")
    return keys


class EmailChannel(Value):
    """Mail by SMTP, as plain text. Its ``Message-ID`` is the message's id, so a mailbox can tell a second copy."""

    name: str
    config: EmailConfig

    async def send(self, message: Message) -> Delivery:
        place = f"notifications.email.{self.name}"
        password = resolved({"password": self.config.password}, place)["password"]
        return await asyncio.to_thread(self._sent, mail_of(message, self.config), password)

    def _sent(self, mail: EmailMessage, password: str) -> Delivery:
        """Send it from this thread. No reply of the server is passed on: it may repeat what it was given."""
        try:
            with self._connected() as client:
                if password:
                    client.login(self.config.user, password)
                refused = client.send_message(mail, self.config.sender, list(self.config.to))
        except smtplib.SMTPResponseException as error:
            return Delivery(f"the mail server answered {error.smtp_code} ({type(error).__name__})")
        except (smtplib.SMTPException, OSError) as error:
            return Delivery(f"the mail server cannot be used ({type(error).__name__})")
        if refused:
            # Another attempt would send it again to those who have it.
            return Delivery(is_partial=True, error=f"{len(refused)} of {len(self.config.to)} addresses were refused")
        return Delivery()

    def _connected(self) -> smtplib.SMTP:
        config = self.config
        if config.security == "tls":
            return smtplib.SMTP_SSL(
                config.host, config.port, timeout=timing.EXCHANGE_LIMIT_S, context=ssl.create_default_context()
            )
        client = smtplib.SMTP(config.host, config.port, timeout=timing.EXCHANGE_LIMIT_S)
        if config.security == "starttls":
            try:
                client.starttls(context=ssl.create_default_context())
            except BaseException:
                client.close()
                raise
        return client


def mail_of(message: Message, config: EmailConfig) -> EmailMessage:
    """Return the mail. Texts are single lines already; the policy refuses a line break in a header."""
    mail = EmailMessage(policy=SMTP)
    subject = f"[Soong] {message.title}"
    mail["Subject"] = subject if len(subject) <= MAX_SUBJECT else f"{subject[: MAX_SUBJECT - 1]}…"
    mail["From"] = config.sender
    mail["To"] = ", ".join(config.to)
    mail["Date"] = format_datetime(localtime())
    mail["Message-ID"] = f"<{message.id}@{config.sender.rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"
    inbox = [message.link] if message.link and len(message.notices) > 1 else []
    mail.set_content("\n".join([message.title, "", *message.lines, *inbox]) + "\n", charset="utf-8")
    return mail


class DesktopChannel(Value):
    """The desktop of this machine: notify-send on Linux, osascript on macOS. Only an embedded service uses it."""

    is_local: bool
    platform: str = sys.platform

    async def send(self, message: Message) -> Delivery:
        if not self.is_local:
            return Delivery("this orchestrator serves other machines too; a desktop is notified by `soong up` alone")
        name = "osascript" if self.platform == "darwin" else "notify-send"
        try:
            program = find_own_program(name, ())
        except PathRefusedError:
            return Delivery(f"there is no program {name} on this machine; install it, or use another channel")
        return await _run(command_of(program, message, self.platform))


def command_of(program: Path, message: Message, platform: str) -> list[str]:
    """Return the command. Its words are public on this machine, and hold nothing secret.

    notify-send reads markup in its second text, and options in what begins with ``-``.
    """
    title, text = f"Soong: {message.title}", "\n".join(message.lines)[:500]
    if platform == "darwin":
        return [str(program), *_SCRIPT, title, text]
    urgency = "critical" if message.is_question else "normal"
    return [str(program), "--app-name=Soong", f"--urgency={urgency}", "--", title, html.escape(text)]


async def _run(command: Sequence[str]) -> Delivery:
    quiet = asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=quiet, stdout=quiet, stderr=quiet, env=child_environment(SESSION)
        )
    except OSError as error:
        return Delivery(f"{command[0]} cannot be started ({type(error).__name__})")
    try:
        async with asyncio.timeout(timing.EXCHANGE_LIMIT_S):
            code = await process.wait()
    except TimeoutError:
        return Delivery(f"{command[0]} took longer than {timing.EXCHANGE_LIMIT_S:g} s")
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return Delivery() if code == 0 else Delivery(f"{command[0]} ended with code {code}; is there a desktop session?")
