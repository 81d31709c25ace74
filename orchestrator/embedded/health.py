"""The state of an embedded service's workers, as the service reports it over its control socket."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from soong.orchestrator.embedded.control import ask_once
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError
from soong.shared.core.jsontext import Json
from soong.shared.core.value import Value

DYING_AFTER: Final = 3
"""Ends in a row after which a worker counts as one that does not stay alive."""


class ChildHealth(Value):
    """A worker that the service keeps running: how often it ended by itself, how often in a row, and how last."""

    name: str
    ends: int = 0
    deaths: int = 0
    last_exit: str = ""
    up_s: int = 0
    """How long it has run since; 0 between two starts."""

    @property
    def is_dying(self) -> bool:
        """Say whether it does not stay alive: it ended again and again, and has not proved itself since."""
        return self.deaths >= DYING_AFTER and self.up_s < timing.STEADY_AFTER_S

    @property
    def words(self) -> str:
        """What there is to say of its ends, for people."""
        times = "once" if self.ends == 1 else f"{self.ends} times"
        row = f", {self.deaths} of them in a row" if 1 < self.deaths < self.ends else ""
        since = f"; it runs since {self.up_s} s" if self.up_s else ""
        return f"{self.name} ended unexpectedly {times}{row}, last by {self.last_exit}{since}"


class ServiceHealth(Value):
    """``starting`` workers are not ready yet; with ``is_hopeless`` none will be, and ``problem`` says why.

    ``functions`` are the modules of ``SOONG_FUNCTIONS`` that the service was started with, ``folders`` where it looks
    for them, ``log`` is the file of its words if it knows one.
    """

    starting: int = 0
    is_hopeless: bool = False
    problem: str = ""
    functions: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    log: str = ""
    workers: tuple[ChildHealth, ...] = ()

    @property
    def modules(self) -> str:
        """Its modules of step functions, for people."""
        return modules_text(self.functions, self.folders)


async def health_of(control: str | Path) -> ServiceHealth | None:
    """Ask the service; None when it does not answer: its supervisor finds out soon enough."""
    try:
        said = await ask_once(control, "status")
    except UnavailableError:
        return None
    return ServiceHealth(
        starting=_number(said.get("starting")),
        is_hopeless=said.get("is_hopeless") is True,
        problem=str(said.get("problem") or ""),
        functions=_texts(said.get("functions")),
        folders=_texts(said.get("folders")),
        log=str(said.get("log") or ""),
        workers=tuple(_workers(said.get("children"))),
    )


def modules_text(functions: Sequence[str], folders: Sequence[str]) -> str:
    """Return the modules of SOONG_FUNCTIONS with where they are looked for."""
    return f"{', '.join(functions)} (in {', '.join(folders)})" if functions else "none"


def _workers(value: Json) -> Iterator[ChildHealth]:
    for child in value if isinstance(value, list) else ():
        if isinstance(child, Mapping) and str(child.get("name")).startswith("worker-"):
            ended = str(child.get("last_exit") or "")
            ends, deaths, up_s = (_number(child.get(name)) for name in ("ends", "deaths", "up_s"))
            yield ChildHealth(str(child["name"]), ends, deaths, ended, up_s)


def _number(value: Json) -> int:
    return value if isinstance(value, int) else 0


def _texts(value: Json) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()
