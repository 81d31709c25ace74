"""The process that Flower runs in: ``python -P -m soong.orchestrator.cli.flower_process AUTH_FILE ADDRESS PORT``.

Its options are set here and nowhere else: no command line, no FLOWER_ variables, so nobody opens it by accident.
"""

import errno
import sys
from pathlib import Path

PORT_TAKEN = 98


def main(auth_file: str, address: str, port: str) -> int:
    from flower.app import Flower
    from flower.options import options
    from flower.urls import settings as flower_settings

    from soong.orchestrator.client.bootstrap import open_broker
    from soong.shared.core.settings import load_settings
    from soong.shared.core.terminal import guard_streams

    guard_streams()
    options.basic_auth = [Path(auth_file).read_text(encoding="utf-8").strip()]
    options.read_only = True
    options.address = address
    options.port = int(port)
    options.natural_time = True
    options.max_tasks = 20_000
    flower = Flower(capp=open_broker(load_settings()), options=options, **flower_settings)
    try:
        flower.start_http_server()
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
            return PORT_TAKEN
        raise
    try:
        flower.start()
    except KeyboardInterrupt:
        flower.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
