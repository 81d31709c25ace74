"""What a step of the machine's clock changes for those who ask when a process started: the time of the boot."""

from pathlib import Path

import psutil
import pytest


def step_clock(monkeypatch: pytest.MonkeyPatch, folder: Path, by_s: int) -> None:
    """Have psutil see the processes that run now as it would after a step of the clock."""
    stepped = folder / "stepped-proc"
    stepped.mkdir()
    for entry in Path("/proc").iterdir():
        if entry.name != "stat":
            (stepped / entry.name).symlink_to(entry)
    booted = f"btime {int(psutil.boot_time())}"
    text = Path("/proc/stat").read_text(encoding="ascii")
    assert booted in text
    (stepped / "stat").write_text(text.replace(booted, f"btime {int(psutil.boot_time()) + by_s}"), encoding="ascii")
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(stepped))
