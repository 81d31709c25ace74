"""``[notifications]`` of ``config.toml``: receivers, their events, and times (OPS-11).

A channel is a receiver; a rule sends events to a channel. Secrets are references (``env:NAME``, ``file:PATH``), which
an orchestrator resolves when it sends. Delivery is :mod:`soong.orchestrator.notifications`.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import time
from typing import Annotated, Final, Literal, Self, TypeAlias, get_args
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field, model_validator

from soong.shared.core.config_section import ConfigSection, Text, matching
from soong.shared.core.secret_values import WHOLE_REFERENCE

EventName: TypeAlias = Literal["question", "failure", "budget", "end", "worker_lost"]
EVENTS: Final[tuple[EventName, ...]] = get_args(EventName)
RiskName: TypeAlias = Literal["read", "write", "execute", "critical"]

_URL: Final = re.compile(r"[!-~]+")


def check_url(value: str) -> str:
    """Return an address that can be posted to. Raises: ValueError."""
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:
        raise ValueError("is not a URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("is not an http or https URL")
    if parts.username or parts.password:
        raise ValueError("holds a user or a password; give the URL by reference, 'env:NAME' or 'file:PATH'")
    if not _URL.fullmatch(value):
        raise ValueError("holds a character that URLs do not have")
    return value


def _url_or_reference(value: str) -> str:
    return value if WHOLE_REFERENCE.fullmatch(value) else check_url(value)


def _base(value: str) -> str:
    if not value:
        return value
    parts = urlsplit(check_url(value))
    if parts.query or parts.fragment:
        raise ValueError("is an address without '?' and '#', such as https://soong.example.org")
    return value.rstrip("/")


def _zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"{value!r} is not a time zone of this machine, such as 'Europe/Berlin' or 'UTC'") from None
    return value


_BY_REFERENCE: Final = "is a secret, so it is given by reference: 'env:NAME' or 'file:PATH'"
Secret: TypeAlias = Annotated[str, matching(WHOLE_REFERENCE.pattern, _BY_REFERENCE)]
OptionalSecret: TypeAlias = Annotated[str, matching(WHOLE_REFERENCE.pattern, _BY_REFERENCE, is_optional=True)]
Address: TypeAlias = Annotated[
    str,
    matching(
        r"[^\s@<>,;:\"\\]{1,64}@[^\s@<>,;:\"\\]{1,255}", "{!r} is not an e-mail address, such as 'ops@example.org'"
    ),
]
Host: TypeAlias = Annotated[
    str, matching(r"[A-Za-z0-9._:-]{1,255}", "{!r} is not a host name, such as 'smtp.example.org'")
]
ClockTime: TypeAlias = Annotated[
    str, matching(r"([01][0-9]|2[0-3]):[0-5][0-9]", "{!r} is not a time of day, such as '22:00'")
]
_Name: TypeAlias = Annotated[
    str,
    matching(
        r"[a-z][a-z0-9_-]{0,31}",
        "{!r} is not a name of a channel: 1 to 32 of a-z, 0-9, '_' and '-', beginning with a-z",
    ),
]


class QuietHours(ConfigSection):
    """A time of day in which only some events are sent; the rest waits until it ends."""

    start: ClockTime = Field(description="When it begins, such as `22:00`.")
    end: ClockTime = Field(description="When it ends; before `start` it is on the next day.")
    zone: Annotated[str, AfterValidator(_zone)] = Field(
        default="UTC", description="The time zone of both, such as `Europe/Berlin`."
    )
    passing: tuple[EventName, ...] = Field(
        default=("question",), strict=False, description="Events that are sent nevertheless."
    )

    @model_validator(mode="after")
    def _is_a_span(self) -> Self:
        if self.start == self.end:
            raise ValueError("start and end are the same; to send nothing to a receiver, remove its rules")
        return self

    def covers(self, local: time) -> bool:
        start, end = time.fromisoformat(self.start), time.fromisoformat(self.end)
        return start <= local < end if start < end else local >= start or local < end


class ChannelConfig(ConfigSection):
    """The fields of all channels."""

    quiet_hours: QuietHours | None = Field(default=None, description="When this receiver is left alone.")
    group_s: Annotated[float, Field(ge=0, le=86_400)] = Field(
        default=15.0,
        strict=False,
        description="Seconds that an event waits for others, to be one message with them. A question that is answered "
        "in this time is not sent.",
    )
    max_per_hour: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=60, description="Messages in one hour; additional events wait and are then sent together."
    )

    @property
    def secrets(self) -> Iterator[str]:
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, str) and WHOLE_REFERENCE.fullmatch(value):
                yield value


class WebhookConfig(ChannelConfig):
    """``[notifications.webhook.NAME]``: an HTTP server that takes signed JSON (Standard Webhooks)."""

    url: Annotated[str, AfterValidator(_url_or_reference)] = Field(
        description="Where to post to; `env:NAME` or `file:PATH` where the URL is a secret."
    )
    secret: Secret = Field(description="Reference of the key that signs, `whsec_` and base64 of 24 to 64 bytes.")


class EmailConfig(ChannelConfig):
    """``[notifications.email.NAME]``: a mailbox, by SMTP."""

    host: Host = Field(description="The mail server.")
    port: Annotated[int, Field(ge=1, le=65535)] = Field(default=587, description="Its port.")
    security: Literal["starttls", "tls", "none"] = Field(
        default="starttls", description="`tls` from the first byte (port 465), or `none`, which takes no password."
    )
    user: str = Field(default="", description="The name to log in with; empty: without a login.")
    password: OptionalSecret = Field(default="", description="Reference of the password.")
    sender: Address = Field(description="The address that it comes from.")
    to: tuple[Address, ...] = Field(min_length=1, max_length=50, strict=False, description="The addresses it goes to.")

    @model_validator(mode="after")
    def _login_is_safe(self) -> Self:
        if bool(self.user) != bool(self.password):
            raise ValueError("user and password belong together; give both or none")
        if self.password and self.security == "none":
            raise ValueError("security 'none' would send the password in the clear; use 'starttls' or 'tls'")
        return self


class NtfyConfig(ChannelConfig):
    """``[notifications.ntfy.NAME]``: a topic of ntfy, for phones and desktops."""

    url: Annotated[str, AfterValidator(_url_or_reference)] = Field(
        default="https://ntfy.sh", description="The server, without the topic."
    )
    topic: Text = Field(
        description="The topic. On a public server everybody who knows it reads it: `env:NAME` or `file:PATH` then."
    )
    token: OptionalSecret = Field(default="", description="Reference of an access token.")


class SlackConfig(ChannelConfig):
    """``[notifications.slack.NAME]``: an incoming webhook of Slack."""

    url: Secret = Field(description="Reference of the webhook's URL, which is a secret.")


class DesktopConfig(ChannelConfig):
    """``[notifications.desktop.NAME]``: the desktop of this machine; only by a service of this machine."""


class NotificationRule(ConfigSection):
    """``[[notifications.rules]]``: the events of a channel; each is sent once, however many rules match."""

    channel: Text = Field(description="The name of a channel.")
    events: tuple[EventName, ...] = Field(min_length=1, strict=False, description="What is sent.")
    sessions: tuple[Text, ...] = Field(default=("*",), strict=False, description="Globs of session ids.")
    agents: tuple[Text, ...] = Field(default=("*",), strict=False, description="Globs of agent definitions.")
    tasks: tuple[Text, ...] = Field(default=("*",), strict=False, description="Globs of titles of tasks.")
    risks: tuple[RiskName, ...] = Field(
        default=("read", "write", "execute", "critical"), strict=False, description="Risks of questions."
    )


class NotificationsConfig(ConfigSection):
    """``[notifications]``: channels by kind and name, and the rules."""

    console: Annotated[str, AfterValidator(_base)] = Field(
        default="",
        description="Address of the web console, such as `https://soong.example.org`, for links; empty: messages name "
        "the command instead.",
    )
    webhook: dict[_Name, WebhookConfig] = Field(default_factory=dict)
    email: dict[_Name, EmailConfig] = Field(default_factory=dict)
    ntfy: dict[_Name, NtfyConfig] = Field(default_factory=dict)
    slack: dict[_Name, SlackConfig] = Field(default_factory=dict)
    desktop: dict[_Name, DesktopConfig] = Field(default_factory=dict)
    rules: tuple[NotificationRule, ...] = Field(
        default=(), strict=False, description="Rules, `[[notifications.rules]]`."
    )

    @model_validator(mode="after")
    def _channels_are_known(self) -> Self:
        names = [name for channels in self._kinds for name in channels]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two channels are named {twice[0]!r}; give each a name of its own")
        for rule in self.rules:
            if rule.channel not in names:
                known = ", ".join(sorted(names)) or "none yet; add one, such as [notifications.webhook.ops]"
                raise ValueError(f"a rule names the channel {rule.channel!r}, which is not defined; known: {known}")
        return self

    @property
    def channels(self) -> Mapping[str, ChannelConfig]:
        return {name: channel for channels in self._kinds for name, channel in channels.items()}

    @property
    def references(self) -> Iterator[tuple[str, str]]:
        """Yield what the channels refer to, as (``env`` or ``file``, name)."""
        for channel in self.channels.values():
            for value in channel.secrets:
                kind, _, name = value.partition(":")
                yield kind, name

    @property
    def _kinds(self) -> tuple[Mapping[str, ChannelConfig], ...]:
        return self.webhook, self.email, self.ntfy, self.slack, self.desktop
