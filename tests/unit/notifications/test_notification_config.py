from datetime import time

import pytest

from soong.shared.core.config import Config, parse_config
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.notification_config import QuietHours

pytestmark = pytest.mark.spec("OPS-11.e")

HOOK = '[notifications.webhook.ops]\nurl = "https://example.org/hook"\nsecret = "env:OPS_SECRET"\n'
RULE = '[[notifications.rules]]\nchannel = "ops"\nevents = ["question"]\n'
MAIL = '[notifications.email.team]\nhost = "h"\nsender = "a@b.c"\nto = ["d@e.f"]\n'


def test_a_channel_and_a_rule_are_read_and_the_secret_is_known_as_one() -> None:
    config = parse_config(HOOK + RULE)

    assert list(config.notifications.channels) == ["ops"]
    assert config.secret_env == ("OPS_SECRET",)
    assert Config().notifications.rules == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (RULE, "a rule names the channel 'ops', which is not defined; known: none yet; add one"),
        (HOOK.replace("ops", "OPS"), "is not a name of a channel"),
        (HOOK.replace("env:OPS_SECRET", "whsec_plain"), "notifications.webhook.ops.secret: .*given by reference"),
        (HOOK.replace("https://", "ftp://"), "notifications.webhook.ops.url: .*is not an http or https URL"),
        (HOOK.replace("example", "u:p@example"), "holds a user or a password"),
        (HOOK + RULE.replace("question", "questions"), r"notifications.rules\[0\].events\[0\]: "),
        (HOOK + "groop_s = 3\n", "there is no such field; known here: quiet_hours, group_s, max_per_hour"),
        (HOOK + 'quiet_hours = {start = "22:00", end = "22:00"}', "start and end are the same"),
        (HOOK + 'quiet_hours = {start = "25:00", end = "22:00"}', "'25:00' is not a time of day"),
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


@pytest.mark.parametrize(
    ("start", "end", "quiet", "loud"),
    [("22:00", "07:00", ["22:00", "23:59", "06:59"], ["21:59", "07:00"]), ("12:00", "13:00", ["12:30"], ["13:00"])],
)
def test_quiet_hours_may_pass_midnight(start: str, end: str, quiet: list[str], loud: list[str]) -> None:
    hours = QuietHours(start=start, end=end)

    assert all(hours.covers(time.fromisoformat(text)) for text in quiet)
    assert not any(hours.covers(time.fromisoformat(text)) for text in loud)
