"""``python -P -m benchmarks.collector``: an OTLP collector in a process of its own, which counts what it takes.

It prints its port, and then a line with the number of spans each time that a trace is complete.
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
            ended = sum(span.name.startswith("invoke_workflow") for span in tuple(receiver.spans))
            for _ in range(seen, ended):
                print(len(receiver.spans), flush=True)
            seen = ended
            time.sleep(LOOK_EVERY_S)


if __name__ == "__main__":
    main()
