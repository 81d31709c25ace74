"""The cost of a workload counts until its processes rest."""

import subprocess
import sys

import pytest

import benchmarks.meter
from benchmarks.meter import RestlessError, cpu_s, settled_cpu_s

BUSY = """
import sys, time
end = time.process_time() + float(sys.argv[1])
while time.process_time() < end:
    pass
input()
"""


def process_that_works(seconds: float) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", BUSY, str(seconds)], stdin=subprocess.PIPE)


def test_work_that_comes_after_the_result_is_counted() -> None:
    with process_that_works(0.5) as process:
        assert cpu_s([process.pid]) < 0.4
        assert settled_cpu_s([process.pid]) > 0.4
        process.communicate(b"\n")


def test_processes_that_never_rest_are_an_error_and_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks.meter, "SETTLING_S", 0.3)
    with process_that_works(60) as process:
        with pytest.raises(RestlessError, match="did not come to rest"):
            settled_cpu_s([process.pid])
        process.kill()
