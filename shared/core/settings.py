"""Every setting, and the only place that reads the environment.

A setting is named ``SOONG_<NAME>`` in the environment; secrets may come as ``SOONG_<NAME>_FILE``. Durations are seconds
at this border. docs/reference/settings.md lists each one.
"""

import hashlib
import os
import re
import tempfile
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, ValidationError, model_validator

from soong.shared.core.amounts import WorkerRange
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.jsontext import EXPECTED, fault

RUNS: Final = "runs"
ARTIFACTS: Final = "artifacts"
"""The parts of the data folder."""

Seconds = Annotated[float, Field(gt=0)]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(lambda value: str(value).lower())]


class Settings(BaseModel):
    """Values, checked once at start. Frozen: a process runs under the settings it started with."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    agent_home: Path = Field(
        default=Path("~/.soong"),
        description="Home: configuration, user tools, skills, the embedded database. Workers only read it.",
    )
    data_dir: Path | None = Field(
        default=None, description="Folder of runs and artifacts, which workers write; empty: the home."
    )
    artifacts_url: str = Field(
        default="",
        description="Where artifacts are stored: `s3://BUCKET/PREFIX`, with the standard `AWS_*` variables and the "
        "extra `s3`; empty: `artifacts/` of the data folder.",
    )
    database_url: str = Field(
        default="",
        description="PostgreSQL or SQLite URL; empty: the embedded SQLite file in the home. "
        "A pooler must be in session mode.",
    )
    redis_url: str = Field(default="", description="Redis URL; empty: an embedded Redis on a unix socket.")
    signing_key_file: Path | None = Field(
        default=None, description="Ed25519 private key of the deployment; made (0600) when absent."
    )
    model: str = Field(default="script", description="Default model of agent steps, any Pydantic AI name or `script`.")
    principal: str = Field(
        default="local", min_length=1, description="Who works with this client: opens sessions and answers for them."
    )
    log_level: LogLevel = Field(default="warning", description="debug, info, warning or error.")

    beat_s: Seconds = Field(default=5.0, description="Interval of a process's heartbeat.")
    lease_s: Seconds = Field(
        default=20.0, description="A process whose beat has not moved for this long is declared gone."
    )
    sweep_s: Seconds = Field(default=2.0, description="Interval of the owner's safety sweep.")
    loop_stall_s: Seconds = Field(
        default=10.0, description="A worker whose event loop has not ticked for this long stops beating."
    )
    hang_s: float = Field(
        default=15.0,
        ge=0,
        description="A worker whose event loop is silent for this long is ended by its subreaper (Linux); 0: never.",
    )
    stuck_s: Seconds = Field(
        default=30.0,
        description="A function that still runs for this long after its step was cancelled, paused or timed out is "
        "reported; a worker whose slots are all held by such functions restarts.",
    )
    max_lost_leases: int = Field(
        default=3, ge=1, description="A step that lost its lease this often is quarantined as poisoned."
    )
    drain_s: Seconds = Field(default=30.0, description="Grace period of a stopping worker; then it releases its steps.")

    recycle_after: int = Field(default=0, ge=0, description="A worker restarts after about this many runs; 0: never.")
    recycle_memory_mb: int = Field(
        default=0, ge=0, description="A worker that uses about this many MiB restarts; 0: never."
    )

    workers: Annotated[InstanceOf[WorkerRange], BeforeValidator(WorkerRange.of)] = Field(
        default=WorkerRange(1, 2),
        description="Worker processes of an embedded service: a number, or `MIN-MAX`, which starts more workers when "
        "there is work for them.",
    )
    worker_idle_s: Seconds = Field(
        default=60.0, description="A worker above MIN ends when it has held no step for this long."
    )
    slots: int = Field(default=32, ge=1, le=1000, description="Child runs that one worker process holds at once.")
    pools: tuple[str, ...] = Field(
        default=("default",), description="Queues a worker serves and Flower lists, comma separated."
    )
    labels: tuple[str, ...] = Field(default=(), description="Capabilities a worker announces, comma separated.")
    projects: tuple[str, ...] = Field(
        default=(), description="Marked project folders that a worker has (`soong projects mark`), comma separated."
    )
    functions: tuple[str, ...] = Field(
        default=(), description="Modules imported by workers that register step functions."
    )
    celery_app: str = Field(
        default="",
        description="Your Celery app as `module:attribute`, for celery steps without `app`; workers import its module.",
    )
    tools: tuple[str, ...] = Field(
        default=(), description="Modules that add tools, imported by workers and clients alike."
    )
    import_path: str = Field(
        default="",
        description="Folders of those modules in addition to installed packages, separated as in PYTHONPATH; "
        "empty: the folder of the command that starts.",
    )
    flower_events: bool = Field(default=True, description="Emit Celery events for each run, so that Flower shows them.")

    max_concurrent_children_per_session: int = Field(
        default=0, ge=0, description="Steps of one session that run at once; 0: as many as there are slots."
    )
    max_children_per_run: int = Field(
        default=100_000, ge=0, description="Steps that a task may ever have, items of maps among them; 0: any number."
    )

    metrics_port: int = Field(
        default=0, ge=0, le=65535, description="Port of an orchestrator's /metrics and /healthz; 0: none."
    )
    metrics_address: str = Field(default="127.0.0.1", description="Address that port listens on; loopback unless set.")

    http_port: int = Field(
        default=0, ge=0, le=65535, description="Port of the HTTP API of an embedded service; 0: none."
    )
    http_host: str = Field(
        default="127.0.0.1", description="Address that the API listens on; beyond loopback only with allowed hosts."
    )
    http_allow_hosts: tuple[str, ...] = Field(
        default=(), description="Host names of the API in addition to the loopback ones, comma separated."
    )
    http_origins: tuple[str, ...] = Field(
        default=(), description="Origins of web pages that may call the API, comma separated; none by default."
    )
    http_projects: tuple[str, ...] = Field(
        default=(),
        description="Folders that tasks submitted over HTTP may work in, and that `paths.read_roots` counts for there, "
        "comma separated; empty: any.",
    )

    permission_timeout_s: Seconds = Field(
        default=300.0,
        description="How long an attached responder may take for one question; in `config.toml`: "
        "`permission.timeout_s`.",
    )
    no_worker_s: Seconds = Field(
        default=30.0, description="Warn when no live worker has been able to run a ready step for this long."
    )
    responder_lease_s: Seconds = Field(
        default=15.0, description="A responder that has not beaten for this long is away."
    )
    responder_wait_s: Seconds = Field(
        default=30.0, description="How long a question waits for a responder to attach or come back."
    )
    park_after_s: float = Field(
        default=30.0,
        ge=0,
        description="A run all of whose calls have waited for consent this long gives up its slot; 0: at once. So"
        " does one that its provider makes wait for longer. In `config.toml`: `permission.park_after_s`.",
    )
    max_asks: int = Field(
        default=100, ge=1, description="Agents that an orchestrator runs itself at once (`soong ask`); others wait."
    )
    max_parked: int = Field(
        default=1000, ge=0, description="Runs of a session parked at once; others keep their slots. 0: all do."
    )
    decision_ttl_s: Seconds = Field(default=86400.0, description="An unused decision expires after this long.")

    tool_timeout_ms: int = Field(
        default=120_000,
        ge=1,
        description="Default time of a tool's handler; in `config.toml`: `tools.default_timeout_ms`.",
    )
    tool_max_timeout_ms: int = Field(
        default=600_000,
        ge=1,
        description="Longest time a tool definition may set; in `config.toml`: `tools.max_timeout_ms`.",
    )
    max_result_chars: int = Field(
        default=12_000,
        ge=100,
        description="Longer tool output becomes an artifact with a preview; a page of a file ends early.",
    )
    stream: bool = Field(
        default=True, description="Answers of models arrive piece by piece where they can; off: in one piece."
    )
    max_retry_after_s: Seconds = Field(
        default=600.0,
        description="Longest pause that a provider may ask for (`Retry-After`); a longer one fails the model at once, "
        "and its fallbacks apply.",
    )
    parallel_reads: int = Field(
        default=10, ge=1, le=100, description="Neighbouring reading calls of one model turn that run at once."
    )
    max_repeated_failures: int = Field(
        default=6,
        ge=0,
        description="A run whose model makes the same failing call this many turns in a row is ended; 0: never.",
    )
    gc_older_than: str = Field(
        default="", description="The service removes tasks that ended longer ago, such as `30d`; empty: never."
    )
    gc_keep: str = Field(
        default="",
        description="The service removes the oldest ended tasks until this is left, such as `10GiB`; empty: never.",
    )
    gc_every_s: Seconds = Field(default=3600.0, description="Seconds between two collections by those two settings.")
    max_turns: int = Field(
        default=50, ge=1, description="Model turns of a run; as many again for each additional step."
    )

    @property
    def home(self) -> Path:
        """The home, absolute, with ``~`` expanded."""
        return self.agent_home.expanduser().absolute()

    @property
    def data(self) -> Path:
        """The folder that workers write, absolute, with ``~`` expanded."""
        return self.home if self.data_dir is None else self.data_dir.expanduser().absolute()

    @property
    def runs(self) -> Path:
        return self.data / RUNS

    @property
    def key_file(self) -> Path:
        """The deployment's private key: the configured file, or the one in the home."""
        return self.signing_key_file or self.home / "signing.key"

    @model_validator(mode="before")
    @classmethod
    def _with_celery_app(cls, values: Any) -> Any:
        """Import the module of the Celery app as those of functions."""
        module = str(values.get("celery_app") or "").partition(":")[0]
        named = dict.fromkeys((*(values.get("functions") or ()), module))
        return values | {"functions": tuple(named)} if module else values

    @property
    def import_folders(self) -> tuple[str, ...]:
        """The folders of :attr:`import_path`, absolute; without any the current one, if there is one."""
        named = [folder for folder in self.import_path.split(os.pathsep) if folder]
        try:
            here = os.getcwd()  # noqa: PTH109  # text, as Python's own path
        except FileNotFoundError:
            return tuple(folder for folder in named if os.path.isabs(folder))  # noqa: PTH117
        return tuple(os.path.join(here, folder) for folder in named) or (here,)  # noqa: PTH118

    @property
    def of_user(self) -> Self:
        """The settings for the user of this machine, whom the projects of the HTTP API do not bound."""
        return self.model_copy(update={"http_projects": ()})

    @property
    def is_embedded(self) -> bool:
        """Say whether the database is the home's own SQLite file."""
        return not self.database_url

    @property
    def effective_database_url(self) -> str:
        return self.database_url or f"sqlite:///{self.home / 'soong.db'}"

    @property
    def runtime_dir(self) -> Path:
        """The short folder for sockets: unix socket paths end at 108 bytes, so it never lies below a long home."""
        digest = hashlib.sha256(os.fsencode(self.home)).hexdigest()[:12]
        base = os.environ.get("XDG_RUNTIME_DIR", "")
        if base and len(base) < 60 and os.access(base, os.W_OK):
            return Path(base) / f"soong-{digest}"
        return Path(_short_temp_dir()) / f"soong-{os.getuid()}-{digest}"


OTHER_NAMES: Final = (
    *("SOONG_SIGNING_KEY_FILE", "SOONG_DATABASE_URL_FILE", "SOONG_REDIS_URL_FILE"),
    *("SOONG_PARENT_FD", "SOONG_STATUS_FD", "SOONG_PULSE_FD", "SOONG_HANDOVER_FD", "SOONG_EFFECT_ID", "SOONG_STARTER"),
    *("SOONG_CONFIG_DIR", "SOONG_POSTGRES", "SOONG_REDIS", "SOONG_RECORDINGS"),
)
"""Names besides those of settings: files of secrets, what a process gives its children, and what our scripts read."""

_SERVICE_LINK: Final = re.compile(
    r"_SERVICE_(?:HOST|PORT(?:_\w+)?)$|_PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?$"
)
"""The variables that Kubernetes and Docker add for a service named ``soong`` (also ``SOONG_PORT=tcp://…``)."""

_LISTS = ("pools", "labels", "projects", "functions", "tools", "http_allow_hosts", "http_origins", "http_projects")
"""Settings that the environment gives comma separated."""


def load_settings(**overrides: object) -> Settings:
    """Read the environment, with ``overrides`` (command line) above it.
    Raises: InvalidConfigError, names every wrong setting, its value and what it may be; an unknown name among
    ``overrides`` or in the environment is one.
    """
    _refuse_unknown(overrides, Settings.model_fields)
    require_known_variables()
    from_files = {name: value for name, value in _secret_files().items() if name not in overrides}
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        settings = Settings.model_validate({**_environment(), **from_files, **given})
    except ValidationError as error:
        wrong = "; ".join(
            f"SOONG_{str(item['loc'][0]).upper()}={item['input']!r}: {item['msg'].removeprefix('Value error, ')}"
            for item in error.errors()
        )
        raise InvalidConfigError(f"settings: {wrong}") from error
    _require_texts(settings)
    return settings


def require_known_variables() -> None:
    """Refuse variables of the environment that look like a setting and are none.
    Raises: InvalidConfigError, names each, and the setting that is probably meant.
    """
    ours = (name for name in os.environ if name.startswith("SOONG_") and not _SERVICE_LINK.search(name))
    named = (name for name in ours if not (name.endswith("_PORT") and "://" in os.environ[name]))
    _refuse_unknown(named, (*(f"SOONG_{name.upper()}" for name in Settings.model_fields), *OTHER_NAMES))


def _refuse_unknown(names: Iterable[str], known: Collection[str]) -> None:
    unknown = sorted(set(names).difference(known))
    if unknown:
        near = {name: get_close_matches(name, known, 1) for name in unknown}
        shown = ", ".join(f"{name!r}" + (f" (perhaps {near[name][0]!r})" if near[name] else "") for name in unknown)
        raise InvalidConfigError(f"settings: there is no {shown}")


def _require_texts(settings: Settings) -> None:
    """Raises: InvalidConfigError for bytes that are not UTF-8, which the environment passes on as lone surrogates."""
    for name, value in settings:
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str) and (found := fault(text)):
                shown = found if not name.endswith("_url") else "the URL is not UTF-8 text or holds a NUL character"
                raise InvalidConfigError(f"settings: SOONG_{name.upper()}: {shown}; expected {EXPECTED}")


def source_of(name: str) -> Literal["environment", "file", "default"]:
    """Say where the value of a setting comes from; ``file`` is ``SOONG_<NAME>_FILE``."""
    variable = f"SOONG_{name.upper()}"
    if variable in os.environ:
        return "environment"
    return "file" if os.environ.get(f"{variable}_FILE") else "default"


def without_password(url: str) -> str:
    parts = urlsplit(url)
    if not parts.password:
        return url
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{parts.netloc.rpartition('@')[2]}"))


def _environment() -> dict[str, str | tuple[str, ...]]:
    """Return the settings that the environment names, lists split at their commas."""
    found: dict[str, str | tuple[str, ...]] = {}
    for name in Settings.model_fields:
        value = os.environ.get(f"SOONG_{name.upper()}")
        if value is not None:
            found[name] = tuple(part.strip() for part in value.split(",") if part.strip()) if name in _LISTS else value
    return found


def _secret_files() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in ("database_url", "redis_url"):
        path = os.environ.get(f"SOONG_{name.upper()}_FILE")
        if path:
            try:
                found[name] = Path(path).read_text(encoding="utf-8").strip()
            except OSError as error:
                raise InvalidConfigError(
                    f"SOONG_{name.upper()}_FILE={path!r} cannot be read: {error.strerror}"
                ) from error
            except UnicodeDecodeError as error:
                raise InvalidConfigError(
                    f"SOONG_{name.upper()}_FILE={path!r} is not UTF-8 text (byte {error.start}); write the URL as UTF-8"
                ) from error
    return found


@lru_cache(maxsize=1)
def _short_temp_dir() -> str:
    candidate = tempfile.gettempdir()
    return candidate if len(candidate) < 60 else "/tmp"  # noqa: S108  # only its 0700 child is used
