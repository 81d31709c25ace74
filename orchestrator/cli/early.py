"""``python -P -m soong.orchestrator.cli.early``: see :mod:`soong.orchestrator.embedded.early_service`."""

import importlib
import json
import os
import sys
from contextlib import suppress
from typing import Any

from soong.orchestrator.cli.main import main
from soong.orchestrator.embedded.preforked_workers import IMPORTED, SQLITE
from soong.shared.core.startup import begin


def wait() -> None:
    """Import what a service imports, then become what the order on standard input says; end where none comes."""
    begin()
    for name in ("soong.orchestrator.cli.up", *IMPORTED, SQLITE):
        importlib.import_module(name)
    order = _read()
    while order is not None and "modules" in order:
        for name in order["modules"]:
            with suppress(ImportError):  # who needs it says what is to be installed
                importlib.import_module(name)
        order = _read()
    if order is None:
        return  # the command has ended
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    _open_streams(order["log"])
    sys.argv = ["soong", *order["arguments"]]
    main()


def _read() -> dict[str, Any] | None:
    line = sys.stdin.buffer.readline()
    return dict(json.loads(line)) if line.endswith(b"\n") else None


def _open_streams(log: str) -> None:
    """Read nothing more, and write to the log, as a service that a command starts in the ordinary way."""
    for path, flags, descriptors in ((os.devnull, os.O_RDONLY, (0,)), (log, os.O_WRONLY | os.O_APPEND, (1, 2))):
        opened = os.open(path, flags)
        for descriptor in descriptors:
            os.dup2(opened, descriptor)
        os.close(opened)


if __name__ == "__main__":
    wait()
