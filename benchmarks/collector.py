"""``python -P -m benchmarks.collector``: an OTLP collector in a process of its own, which counts what it takes.

It prints its port, and then a line with the number of spans each time that there are more.
"""

import time

from tests.otlp_receiver import otlp_receiver

LOOK_EVERY_S = 0.05


def main() -> None:
    """Serve until standard input ends or the process is ended."""
    with otlp_receiver() as receiver:
        print(receiver.port, flush=True)
        seen = 0
        while True:
            if len(receiver.spans) > seen:
                seen = len(receiver.spans)
                print(seen, flush=True)
            time.sleep(LOOK_EVERY_S)


if __name__ == "__main__":
    main()
