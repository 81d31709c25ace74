"""The meaning of ``config.toml``: the policy, the limits of the tool set and the write roots from its plain values.

Checked completely when a process starts, with the place of each problem, so that no rule fails when it is needed.
The same file is read twice in a deployment: by the client, whose policy becomes the session's, and by each worker,
which may only tighten that (PER-10).
"""

import os
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from soong.shared.core.config import CONFIG_FILE, Config, NetworkConfig, RuleConfig
from soong.shared.core.errors import InvalidConfigError, UsageError
from soong.shared.core.identity import Role
from soong.shared.permissions.policy import Mode, NetworkMode, NetworkPolicy, Policy
from soong.shared.permissions.rules import (
    Effect,
    Rule,
    ScopeKind,
    is_of_step,
    is_too_wide,
    read_folder,
    read_host,
    read_scope,
)
from soong.shared.tools.definition import Permission, RunDirs, ToolDefinition, Withheld
from soong.shared.tools.surface import RunMode, SurfaceRequest, ToolRule

WORKER_SOURCE: Final = f"the worker's {CONFIG_FILE}"


def policy_of(config: Config, *, source: str = CONFIG_FILE, home: str = "") -> Policy:
    """Return the policy of a configuration; ``source`` is the stated origin of its rules.
    Raises: InvalidConfigError, names the rule or host and what to write.
    """
    return Policy(
        tuple(
            _rule(rule, f"{CONFIG_FILE}: permission.rules[{position}]", source, home)
            for position, rule in enumerate(config.permission.rules)
        ),
        Mode(config.permission.mode),
        _network(config.network, source),
        config.tools.dangerous,
        configured_read_roots(config, home=home),
    )


def surface_request(
    config: Config,
    role: Role,
    mode: RunMode = RunMode.DEFAULT,
    *,
    default_tools: tuple[str, ...] | None = None,
    allowed_tools: tuple[str, ...] | None = None,
    source: str = CONFIG_FILE,
) -> SurfaceRequest:
    """Return what a run's tool set is computed from under a configuration (ETS-01, ETS-05). A deny rule with a scope is
    about calls and takes no tool away; one without is about the tool.
    """
    denied = (rule for rule in config.permission.rules if rule.effect == "deny" and not rule.scope)
    return SurfaceRequest(
        role,
        mode,
        default_tools=default_tools,
        allowed_tools=allowed_tools,
        denied=tuple(ToolRule(rule.tools, frozenset(rule.tags), source) for rule in denied),
        hidden=tuple(ToolRule(pattern, source=source) for pattern in config.tools.hidden),
        is_dangerous_enabled=config.tools.dangerous,
        toolsets=config.toolsets,
        for_workers=config.tools.for_workers,
    )


def configured_write_roots(config: Config, *, home: str = "") -> tuple[Path, ...]:
    """Return the folders that the configuration lets runs write in addition to the project, resolved (FS-07).
    Raises: InvalidConfigError, one is relative, or the root of the disk or a home.
    """
    roots = _folders("allowed_write_roots", config.paths.allowed_write_roots, home, is_grant=True)
    if config.paths.temp_writes:
        roots += [os.path.realpath(folder) for folder in ("/tmp", tempfile.gettempdir())]  # noqa: S108  # by its own setting
    return tuple(map(Path, dict.fromkeys(roots)))


def configured_read_roots(config: Config, *, home: str = "") -> tuple[str, ...]:
    """Return the folders that runs read unasked in addition to what they work on, resolved.
    Raises: InvalidConfigError, one is relative.
    """
    return tuple(dict.fromkeys(_folders("read_roots", config.paths.read_roots or (), home, is_grant=False)))


def _folders(field: str, named: Iterable[str], home: str, *, is_grant: bool) -> list[str]:
    with _as_config():
        return [
            read_folder(folder, f"{CONFIG_FILE}: paths.{field}[{position}]", home=home, is_grant=is_grant)
            for position, folder in enumerate(named)
        ]


def _rule(rule: RuleConfig, place: str, source: str, home: str) -> Rule:
    effect = Effect(rule.effect)
    if not any(char.isalnum() or char == "*" for char in rule.tools):
        raise InvalidConfigError(f"{place}: tools {rule.tools!r} names no tool; write a name or a glob such as code.*")
    if effect is Effect.ALLOW and not rule.scope.strip():
        raise InvalidConfigError(
            f"{place}: an allow rule needs a scope; write an absolute folder or file, host:NAME or exact:TEXT"
        )
    with _as_config():
        scope = read_scope(rule.scope, place, home=home, is_grant=effect is Effect.ALLOW) if rule.scope else None
    return Rule(effect, rule.tools, frozenset(rule.tags), scope, source)


def _network(network: NetworkConfig, source: str) -> NetworkPolicy:
    mode = NetworkMode(network.mode)
    if network.hosts and mode is not NetworkMode.ALLOWLIST:
        raise InvalidConfigError(
            f"{CONFIG_FILE}: network.hosts is only read in mode allowlist, not {mode}; write mode = 'allowlist'"
        )
    if network.allowed and mode in {NetworkMode.OFF, NetworkMode.ALWAYS_ASK}:
        raise InvalidConfigError(
            f"{CONFIG_FILE}: network.allowed says hosts that are not asked for, and mode {mode} allows none; "
            "take one of them away"
        )
    hosts, allowed = _hosts("hosts", network.hosts), _hosts("allowed", network.allowed)
    # An unconfigured policy is the runtime's default, and explain shows that.
    is_default = mode is NetworkMode.ASK and not allowed
    return NetworkPolicy(mode, hosts, allowed, source="runtime" if is_default else source)


def _hosts(field: str, names: Iterable[str]) -> tuple[str, ...]:
    with _as_config():
        return tuple(
            read_host(name, f"{CONFIG_FILE}: network.{field}[{position}]") for position, name in enumerate(names)
        )


@contextmanager
def _as_config() -> Iterator[None]:
    """An error here is one of the configuration, not of a command line."""
    try:
        yield
    except UsageError as error:
        raise InvalidConfigError(str(error)) from error


def writable_by_rule(policy: Policy, tools: Iterable[ToolDefinition]) -> tuple[Path, ...]:
    """Return the files and folders that an allow rule opens to a tool that writes, whichever run has that tool. One run
    of a session finds the files of another, so a rule for one step counts for all of them.
    """
    allowed = [(rule, rule.scope) for rule in policy.rules if rule.effect is Effect.ALLOW and rule.scope is not None]
    writing = [tool for tool in tools if tool.permission is Permission.WRITE]
    opened = (scope for rule, scope in allowed if any(map(rule.is_about, writing)))
    return tuple(dict.fromkeys(Path(scope.value) for scope in opened if scope.kind is ScopeKind.PATH))


def run_dirs_of(
    project: Path,
    cwd: Path,
    run_dir: Path,
    policy: Policy,
    tools: Collection[ToolDefinition],
    *,
    write_roots: Iterable[Path],
    home: str,
    step: str = "",
) -> RunDirs:
    """Return the folders of a run under its session's policy; ``write_roots`` are the configured ones. A person who
    plans from their home has not thereby opened all of it.
    """
    own = (project,) if cwd == project or is_too_wide(str(cwd), home) else (project, cwd)
    roots = (*own, run_dir / "workspace", run_dir / "deliverables", *write_roots)
    by_rule, withheld = writable_by_rule(policy, tools), withheld_by_rule(policy, tools, step)
    return RunDirs(project, cwd, run_dir, roots, by_rule, policy.read_folders, withheld)


def withheld_by_rule(policy: Policy, tools: Iterable[ToolDefinition], step: str) -> tuple[Withheld, ...]:
    """Return what deny and ask rules keep from the tools that read, for the run of a step (its key, or empty). A rule
    decides on calls by the path that a call names; a search or a listing from above reaches unnamed paths.
    """
    rules = [rule for rule in policy.rules if not rule.step or is_of_step(step, rule.step)]
    reading = [tool for tool in tools if tool.permission is Permission.READONLY]
    found: dict[Withheld, None] = {}
    for rule in rules:
        named = frozenset(tool.name for tool in reading if rule.is_about(tool))
        is_place = rule.scope is None or rule.scope.kind is ScopeKind.PATH
        if named and is_place and rule.effect is not Effect.ALLOW:
            path = Path("/" if rule.scope is None else rule.scope.value)
            found[Withheld(path, named, is_asked=rule.effect is Effect.ASK)] = None
    return tuple(found)
