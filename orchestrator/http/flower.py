"""Flower on the queues and events of a deployment: it shows, and changes nothing."""

import errno
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flower.app import Flower
from flower.options import options
from flower.urls import settings as flower_settings
from tornado.ioloop import IOLoop

from soong.orchestrator.client.bootstrap import open_broker
from soong.shared.core.errors import UsageError
from soong.shared.core.settings import Settings


def read_auth(file: Path, *, may_make: bool) -> str:
    """Return ``user:password``. A missing file is written with mode 0600 if ``may_make``.
    Raises: UsageError, it cannot be read, is open to others, or has another form.
    """
    if may_make and not file.exists():
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(f"soong:{secrets.token_urlsafe(18)}\n")
    try:
        text = file.read_text(encoding="utf-8").strip()
        mode = file.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--auth-file {str(file)!r} cannot be read: {error}") from error
    if may_make and mode & 0o077:
        raise UsageError(f"{str(file)!r} holds a password and is open to others; run: chmod 600 {str(file)!r}")
    user, separator, password = text.partition(":")
    if not separator or not user or not password:
        raise UsageError(f"{str(file)!r} must hold one line USER:PASSWORD")
    return text


@contextmanager
def running_flower(service: Settings, credentials: str, address: str, port: int) -> Iterator[None]:
    """Serve Flower on the loop of the caller meanwhile. Raises: UsageError, the port is taken."""
    # Workers take no remote control, so Flower's questions to them have no answer; its pages are made from events.
    logging.getLogger("flower.inspector").setLevel(logging.CRITICAL)
    options.basic_auth = [credentials]
    options.read_only = True
    options.address = address
    options.port = port
    options.natural_time = True
    options.max_tasks = 20_000
    flower = Flower(capp=open_broker(service), options=options, io_loop=IOLoop.current(), **flower_settings)
    try:
        flower.start_http_server()
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
            raise UsageError(f"port {port} of {address} is taken; choose another with --port") from error
        raise
    flower.events.start()
    flower.started = True
    try:
        yield
    finally:
        flower.events.stop()
        flower.executor.shutdown(wait=False, cancel_futures=True)
