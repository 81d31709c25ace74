"""A process of pytest-xdist that begins with everything imported: what stands for the interpreter in its command."""

import os
import signal
import sys
from pathlib import Path

if __name__ == "__main__":
    if sys.argv[1:2] == ["-u"]:
        sys.path.insert(0, str(Path(__file__).parents[1]))
        from tests.warm import warm_parent

        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that began the run ends this one
        process = warm_parent().start("tests.forked", (), env=os.environ, cwd=Path.cwd(), stdin=0, stdout=1, stderr=2)
        sys.exit(process.wait())
    exec(eval(sys.stdin.readline()))  # as execnet's own command does
