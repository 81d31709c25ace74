"""Where an answer comes from: the process that gave it with its ancestors, or the address of another machine (PER-13).

A value; the kernel tells what a process is and to whose family it belongs, in :mod:`soong.shared.sandbox.family`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from soong.shared.core.jsontext import Json
from soong.shared.core.value import Value
from soong.shared.sandbox.family import MOST_ANCESTORS, MOST_PROGRAM_CHARS, ProcessFacts

_NAME_CHARS = 300


class Provenance(Value):
    """``processes`` begins with the one that answers; ``address`` is set where it runs on another machine."""

    host: str = ""
    processes: tuple[ProcessFacts, ...] = ()
    address: str = ""

    @property
    def run_process(self) -> ProcessFacts | None:
        """Return the nearest process of the chain that belongs to a run; None when none does."""
        return next((process for process in self.processes if process.is_run), None)

    @property
    def problem(self) -> str:
        """Say why this cannot be a person's answer; empty when it can."""
        if self.run_process is not None:
            process = self.run_process
            return f"process {process.pid} ({process.program}) belongs to a run, and runs do not answer for people"
        if not self.processes and not self.address:
            return "the answer names no process that gave it"
        return ""

    def as_json(self) -> dict[str, Json]:
        """Return what rows, the audit log and programs see."""
        if self.address:
            return {"address": self.address}
        return {"host": self.host, "processes": [dict(asdict(process)) for process in self.processes]}


def provenance_from(value: Mapping[str, Any]) -> Provenance:
    """Read a provenance from a row; what is none of our making is an empty one, which answers nothing."""
    address, host, processes = value.get("address", ""), value.get("host", ""), value.get("processes", ())
    if not isinstance(address, str) or not isinstance(host, str) or not isinstance(processes, Sequence):
        return Provenance()
    try:
        chain = tuple(_process(**process) for process in processes[:MOST_ANCESTORS])
    except TypeError:
        return Provenance()
    return Provenance(host[:_NAME_CHARS], chain, address[:_NAME_CHARS])


def _process(*, pid: object, started_us: object, program: object, is_run: object) -> ProcessFacts:
    if not isinstance(pid, int) or not isinstance(started_us, int) or not isinstance(program, str):
        raise TypeError("a process is a pid, a start and a program")
    return ProcessFacts(pid, started_us, program[:MOST_PROGRAM_CHARS], is_run is not False)
