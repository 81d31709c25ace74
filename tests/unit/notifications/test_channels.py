"""Channels with real receivers: what arrives, and what hostile text cannot do there; their configuration."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from email import message_from_bytes
from email.message import Message as Mail
from email.policy import default
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from soong.orchestrator.notifications.channels import (
    MAX_BYTES,
    DesktopChannel,
    EmailChannel,
    NtfyChannel,
    SlackChannel,
    command_of,
    mail_of,
)
from soong.orchestrator.notifications.message import Message
from soong.shared.core.config import Config, parse_config
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.notification_config import EmailConfig, NtfyConfig, QuietHours, SlackConfig
from soong.shared.core.timing import SystemClock
from soong.shared.engine.tasks.event_feed import Notice
from tests.notification_receivers import HttpReceiver, http_receiver

HOSTILE = "<!channel> <b>&amp; <script>alert(1)</script> @everyone *bold*"
FACTS = {
    "tool": "code.write_file",
    "risk": "write",
    "agent": HOSTILE,
    "role": "worker",
    "task": "Audit",
    "summary": HOSTILE,
}
MESSAGE = Message(
    "msg_1", [Notice("n1", "ops", "question", "sess_1", "req_1", 1, 0, FACTS)], "https://soong.example.org"
)
LINK = "https://soong.example.org/#/inbox/req_1"


# -- mail
@dataclass
class Mailbox:
    """A mail server that keeps what it takes; ``refused`` addresses are answered 550."""

    mails: list[Mail] = field(default_factory=list)
    logins: list[tuple[bytes, bytes]] = field(default_factory=list)
    refused: tuple[str, ...] = ()

    async def handle_RCPT(  # noqa: N802  # aiosmtpd calls it so, here and below
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address in self.refused:
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        assert isinstance(envelope.content, bytes)
        self.mails.append(message_from_bytes(envelope.content, policy=default))
        return "250 OK"

    def login(self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.logins.append((data.login, data.password))
        return AuthResult(success=data.password == b"right password", handled=False)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of localhost with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "localhost.pem"
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + key.private_bytes(*form))
    return path


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox()


@pytest.fixture
async def port(mailbox: Mailbox, certificate: Path) -> AsyncIterator[int]:
    """A mail server that asks for STARTTLS and a login; the port that it listens on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def serve() -> SMTP:
        return SMTP(
            mailbox,
            hostname="localhost",
            tls_context=context,
            require_starttls=True,
            auth_required=True,
            authenticator=mailbox.login,
        )

    server = await asyncio.get_running_loop().create_server(serve, "localhost", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def mail_config(port: int) -> EmailConfig:
    return EmailConfig(
        host="localhost",
        port=port,
        user="soong",
        password="env:MAIL_PASSWORD",
        sender="soong@example.org",
        to=("ada@example.org", "bob@example.org"),
    )


@pytest.mark.spec("OPS-11.a")
async def test_a_mail_arrives_over_starttls_with_a_login(
    mailbox: Mailbox, port: int, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAIL_PASSWORD", "right password")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))

    delivery = await EmailChannel("team", mail_config(port)).send(MESSAGE)

    assert delivery.error == ""
    (mail,) = mailbox.mails
    assert mailbox.logins == [(b"soong", b"right password")]
    assert (mail["Message-ID"], mail["Auto-Submitted"]) == ("<msg_1@example.org>", "auto-generated")
    assert mail["Subject"].startswith("[Soong] <!channel>")
    assert LINK in mail.get_content()  # type: ignore[attr-defined]
    assert mail.get_content_type() == "text/plain"


@pytest.mark.spec("OPS-11.a")
async def test_a_mail_server_that_is_not_who_it_says_gets_no_password(
    mailbox: Mailbox, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAIL_PASSWORD", "right password")

    delivery = await EmailChannel("team", mail_config(port)).send(MESSAGE)

    assert delivery.error == "the mail server cannot be used (SSLCertVerificationError)"
    assert mailbox.logins == []


@pytest.mark.spec("OPS-11.a")
async def test_an_address_that_is_refused_keeps_the_others_from_nothing(
    mailbox: Mailbox, port: int, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAIL_PASSWORD", "right password")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    mailbox.refused = ("bob@example.org",)

    delivery = await EmailChannel("team", mail_config(port)).send(MESSAGE)

    assert (delivery.is_sent, delivery.error) == (True, "1 of 2 addresses were refused")
    assert len(mailbox.mails) == 1


@pytest.mark.spec("OPS-11.a")
async def test_a_wrong_password_is_a_result_that_does_not_show_it(
    mailbox: Mailbox, port: int, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAIL_PASSWORD", "wrong password")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))

    delivery = await EmailChannel("team", mail_config(port)).send(MESSAGE)

    assert delivery.error == "the mail server answered 535 (SMTPAuthenticationError)"
    assert mailbox.mails == []


@pytest.mark.spec("OPS-11.a")
def test_no_text_makes_a_header() -> None:
    hostile = Message("msg_1", [Notice("n", "c", "end", "s", "", 1, 0, {"task": "x\r\nBcc: evil@example.org"})])

    with pytest.raises(ValueError, match="linefeed"):  # facts are one line already; this is the second wall
        mail_of(hostile, EmailConfig(host="h", sender="a@b.c", to=("d@e.f",)))


# -- over HTTP
@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpReceiver]:
    with http_receiver() as found:
        monkeypatch.setenv("HOOK", f"{found.url}/services/T/B/secret")
        monkeypatch.setenv("TOKEN", "tk_ntfy")
        yield found


@pytest.mark.spec("OPS-11.a")
@pytest.mark.spec("OPS-11.b")
async def test_slack_shows_text_of_others_without_reading_markup_in_it(receiver: HttpReceiver) -> None:
    assert (await SlackChannel("chat", SlackConfig(url="env:HOOK"), SystemClock()).send(MESSAGE)).is_sent

    told = receiver.taken[0].json
    texts = [block["text"] for block in told["blocks"] if "text" in block]
    (button,) = told["blocks"][-1]["elements"]
    assert {text["type"] for text in texts} == {"plain_text"}
    assert "<!channel>" not in told["text"]
    assert "&lt;!channel&gt;" in told["text"]
    assert (button["url"], button.get("value"), button.get("action_id")) == (LINK, None, None)


@pytest.mark.spec("OPS-11.a")
async def test_ntfy_gets_a_topic_a_priority_and_a_link(receiver: HttpReceiver) -> None:
    config = NtfyConfig(url=receiver.url, topic="soong-4f3a", token="env:TOKEN")

    assert (await NtfyChannel("phone", config, SystemClock()).send(MESSAGE)).is_sent

    (taken,) = receiver.taken
    assert (taken.path, taken.headers["authorization"]) == ("/", "Bearer tk_ntfy")
    assert {name: taken.json[name] for name in ("topic", "priority", "click")} == {
        "topic": "soong-4f3a",
        "priority": 4,
        "click": LINK,
    }


@pytest.mark.spec("OPS-11.a")
async def test_ntfy_gets_no_more_than_it_shows(receiver: HttpReceiver) -> None:
    facts = {"task": "ü" * 120, "summary": "€" * 200}
    notices = [Notice(f"n{number}", "ops", "end", "s", "", 1, 0, facts) for number in range(20)]

    await NtfyChannel("phone", NtfyConfig(url=receiver.url, topic="t"), SystemClock()).send(Message("msg_2", notices))

    assert len(receiver.taken[0].json["message"].encode()) <= MAX_BYTES


# -- the desktop
@pytest.mark.spec("OPS-11.a")
async def test_a_desktop_gets_words_and_no_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, shown = tmp_path / "notify-send", tmp_path / "shown"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {shown}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    delivery = await DesktopChannel(is_local=True, platform="linux").send(MESSAGE)

    words = await asyncio.to_thread(shown.read_text)
    assert delivery.is_sent
    assert words.startswith("--app-name=Soong\n--urgency=critical\n--\nSoong: ")
    assert "<script>" not in words.partition("Soong: ")[2].partition("\n")[2]


@pytest.mark.spec("OPS-11.a")
@pytest.mark.parametrize(("is_local", "said"), [(False, "`soong up` alone"), (True, "no program notify-send")])
async def test_without_a_desktop_the_result_says_what_to_do(
    is_local: bool, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert said in (await DesktopChannel(is_local=is_local, platform="linux").send(MESSAGE)).error


@pytest.mark.spec("OPS-11.a")
def test_macos_gets_texts_as_arguments_and_never_as_script() -> None:
    *_, title, text = command = command_of(Path("/usr/bin/osascript"), MESSAGE, "darwin")

    assert title == f"Soong: {MESSAGE.title}"
    assert not any(HOSTILE in word for word in command[:-2])
    assert HOSTILE in text


@pytest.mark.spec("OPS-11.a")
def test_the_name_of_a_task_is_in_quotes_where_a_title_stands_alone() -> None:
    evil = Message("m", [Notice("n", "c", "end", "s", "", 1, 0, {"task": "x”. Approve it", "outcome": "completed"})])
    unnamed = Message("m", [Notice("n", "c", "end", "s", "", 1, 0, {"task_id": "task_1", "outcome": "failed"})])

    assert (evil.title, unnamed.title) == ("Task completed: “x'. Approve it”", "Task failed: task_1")


HOOK = '[notifications.webhook.ops]\nurl = "https://example.org/hook"\nsecret = "env:OPS_SECRET"\n'
RULE = '[[notifications.rules]]\nchannel = "ops"\nevents = ["question"]\n'
MAIL = '[notifications.email.team]\nhost = "h"\nsender = "a@b.c"\nto = ["d@e.f"]\n'


@pytest.mark.spec("OPS-11.e")
def test_a_channel_and_a_rule_are_read_and_the_secret_is_known_as_one() -> None:
    config = parse_config(HOOK + RULE)

    assert list(config.notifications.channels) == ["ops"]
    assert config.secret_env == ("OPS_SECRET",)
    assert Config().notifications.rules == ()


@pytest.mark.spec("OPS-11.e")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (RULE, "a rule names the channel 'ops', which is not defined; known: none yet; add one"),
        (HOOK.replace("ops", "OPS"), "is not a name of a channel"),
        (HOOK.replace("env:OPS_SECRET", "whsec_plain"), "notifications.webhook.ops.secret: .*given by reference"),
        (HOOK.replace("https://", "ftp://"), "notifications.webhook.ops.url: .*is not an http or https URL"),
        (HOOK.replace("example", "u:p@example"), "holds a user or a password"),
        (HOOK + RULE.replace("question", "questions"), r"notifications.rules\[0\].events\[0\]: "),
        (HOOK + 'quiet_hours = {start = "22:00", end = "22:00"}', "start and end are the same"),
        (HOOK + 'quiet_hours = {start = "1:00", end = "02:00", zone = "Mars/Base"}', "is not a t"),
        (HOOK + 'quiet_hours = {start = "01:00", end = "02:00", zone = "../etc"}', "not a time zone of this machine"),
        (MAIL + 'user = "u"\n', "user and password belong together"),
        (MAIL + 'user = "u"\npassword = "env:P"\nsecurity = "none"\n', "would send the password in the clear"),
        (MAIL.replace("d@e.f", "d@e.f>\\nBcc: x@y.z"), "is not an e-mail address"),
        (
            HOOK + HOOK.replace("webhook", "ntfy").replace("secret", "token") + 'topic = "t"',
            "two channels are named 'ops'",
        ),
        ('[notifications]\nconsole = "https://example.org/?token=x"', "is an address without"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, said: str) -> None:
    with pytest.raises(InvalidConfigError, match=said):
        parse_config(text)


@pytest.mark.spec("OPS-11.e")
@pytest.mark.parametrize(
    ("start", "end", "quiet", "loud"),
    [("22:00", "07:00", ["22:00", "23:59", "06:59"], ["21:59", "07:00"]), ("12:00", "13:00", ["12:30"], ["13:00"])],
)
def test_quiet_hours_may_pass_midnight(start: str, end: str, quiet: list[str], loud: list[str]) -> None:
    hours = QuietHours(start=start, end=end)

    assert all(hours.covers(time.fromisoformat(text)) for text in quiet)
    assert not any(hours.covers(time.fromisoformat(text)) for text in loud)
