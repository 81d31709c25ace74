"""A service that may open few files raises its limit, or says what to do, before it starts anything."""

import subprocess
import sys

import pytest

RAISE = "import resource; from soong.shared.core.open_files import raise_open_files as r; r(2); "
SHOWN = RAISE + "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"


def limited(limits: str, program: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f'{limits}; exec "$0" -c "$1"', sys.executable, program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("limits", "raised"), [("ulimit -Sn 64", 8192), ("ulimit -n 2000; ulimit -Sn 64", 2000)], ids=["most", "hard"]
)
def test_the_limit_is_raised_as_far_as_it_may_be(limits: str, raised: int) -> None:
    assert limited(limits, SHOWN).stdout.strip() == str(raised)


def test_too_low_a_limit_is_refused_with_what_to_do() -> None:
    refused = limited("ulimit -n 100", SHOWN)

    assert refused.returncode == 1
    assert (
        "UsageError: 100 files may be open at once (RLIMIT_NOFILE), 288 are needed; run `ulimit -n 288`"
        in refused.stderr
    )
