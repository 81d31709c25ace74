"""The workbenches of durable peers: libraries that keep what their steps returned in PostgreSQL, as the service does.

Both run their steps in the process that asks for them: nothing is handed to a worker. Each is a program in an
environment of its own (``make bench`` makes it; ``DURABLE_PEERS`` names its Python), beside a PostgreSQL of its own:
one whose steps are functions, and one whose steps are agents.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.ledger import Ledger, PostgresLedger
from benchmarks.peer import PeerError
from benchmarks.workload import Work, Workload
from tests.servers import postgres_server

PYTHON: Final = "DURABLE_PEERS"
"""The variable that names the Python of their environment; where it is not set, they are not measured."""
PROGRAMS: Final = {"dbos": "dbos_peer.py", "langgraph": "langgraph_peer.py"}
AGENTS: Final = {"dbos": "Pydantic AI agents", "langgraph": "agent graphs"}
FOLDER: Final = Path(__file__).resolve().parent / "durable"
STOP_LIMIT_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class DurableWorkbench:
    """A running program of a peer."""

    library: str
    program: subprocess.Popen[str]
    server_pid: int
    ledger: Ledger
    has_agents: bool

    @property
    def name(self) -> str:
        form = f"{self.library}, PostgreSQL"
        return f"{form}, {AGENTS[self.library]}" if self.has_agents else form

    def does(self, work: Work) -> bool:
        return work is (Work.AGENT if self.has_agents else Work.PYTHON)  # three calls would take it minutes

    def run(self, workload: Workload) -> Sequence[float]:
        assert self.program.stdin is not None
        asked = {"shape": workload.shape.value, "size": workload.size, "calls": workload.work.calls}
        self.program.stdin.write(json.dumps(asked) + "\n")
        self.program.stdin.flush()
        return self.answer()

    def answer(self) -> Sequence[float]:
        """Return what the program says next."""
        assert self.program.stdout is not None
        line = self.program.stdout.readline()
        if not line:
            raise PeerError(f"{self.name} ended with {self.program.wait(STOP_LIMIT_S)}")
        return [float(seconds) for seconds in json.loads(line)]

    def processes(self) -> Sequence[int]:
        return (self.program.pid, self.server_pid)

    def transactions(self) -> int | None:
        return self.ledger.transactions()

    def log_bytes(self) -> int | None:
        return self.ledger.log_bytes()


@contextmanager
def durable_workbenches(agents_in: Path | None = None) -> Iterator[Sequence[DurableWorkbench]]:
    """Start the peers' programs, each beside its own server; none where no environment is named.

    ``agents_in`` is the folder that agents look into; without it there are no agents.
    """
    python = os.environ.get(PYTHON, "")
    folders = (None,) if agents_in is None else (None, agents_in)
    forms = [(library, folder) for library in PROGRAMS for folder in folders] if python else []
    with ExitStack() as stack:
        yield [stack.enter_context(_running(python, library, folder)) for library, folder in forms]


@contextmanager
def _running(python: str, library: str, agents_in: Path | None) -> Iterator[DurableWorkbench]:
    with postgres_server(durable=True) as server, server.fresh_database(library):
        url = server.url(library, driver="postgresql")
        pipe = subprocess.PIPE
        command = [python, str(FOLDER / PROGRAMS[library]), url, *([str(agents_in)] if agents_in else [])]
        program = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        bench = DurableWorkbench(library, program, server.pid, PostgresLedger(url), agents_in is not None)
        try:
            bench.answer()
            yield bench
        finally:
            program.communicate(timeout=STOP_LIMIT_S)
