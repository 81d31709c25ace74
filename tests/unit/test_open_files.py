"""A service that may open few files raises its limit, or says what to do, before it starts anything."""

import subprocess
import sys
from pathlib import Path

import pytest

RAISE = "import resource; from soong.shared.core.startup import raise_open_files as r; r(2); "
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


@pytest.mark.parametrize("service", ["up", "worker", "orchestrator"])
def test_a_service_does_not_start_under_too_low_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    monkeypatch.setenv("SOONG_AGENT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SOONG_DATABASE_URL", f"sqlite:///{tmp_path}/soong.db")
    monkeypatch.setenv("SOONG_REDIS_URL", "redis://127.0.0.1:1/0")
    called = f"import sys; sys.argv = ['soong', '{service}']; from soong.orchestrator.cli.main import main; main()"

    refused = limited("ulimit -n 40", called)

    assert (refused.returncode, "40 files may be open at once" in refused.stderr) == (2, True)
    assert not (tmp_path / "soong.db").exists()
