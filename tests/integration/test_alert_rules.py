"""The alert rules under the tool of Prometheus: each fires on series that call for it, and on no others."""

import subprocess
from pathlib import Path

import pytest

from tests.extra import promtool

ROOT = Path(__file__).parents[2]


@pytest.mark.spec("OPS-05.b")
@pytest.mark.parametrize("words", [("check", "deploy/alerts.yaml"), ("test", "tests/alerts/alerts_test.yaml")])
def test_alert_rules_are_valid_and_fire_when_they_should(words: tuple[str, str]) -> None:
    what, file = words

    done = subprocess.run(
        [promtool(), what, "rules", file], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )

    assert done.returncode == 0, done.stdout + done.stderr
