"""Mail by SMTP, as plain text. Its ``Message-ID`` is the message's id, so a mailbox can tell a second copy."""

import asyncio
import smtplib
import ssl
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, localtime
from typing import Final

from soong.orchestrator.notifications.channels.channel import Delivery
from soong.orchestrator.notifications.message import Message
from soong.shared.core import timing
from soong.shared.core.notification_config import EmailConfig
from soong.shared.core.references import resolved
from soong.shared.core.value import Value

MAX_SUBJECT: Final = 150


class EmailChannel(Value):
    """Implements :class:`soong.orchestrator.notifications.channels.channel.Channel`."""

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
