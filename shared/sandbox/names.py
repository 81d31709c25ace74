"""Names that mean something whatever their spelling: sensitive patterns, protected controls (FS-06, FS-09).

Pure: no file system is asked here. :mod:`soong.shared.sandbox.paths` resolves paths.
"""

import json
import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.jsontext import is_ignorable, is_told_apart

SENSITIVE: Final = (
    # keys and where they are kept
    *(".ssh", ".gnupg", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.pem", "*.key", "*.ppk", "*.p12", "*.pfx"),
    *("*.jks", "*.keystore", "*.kdbx", "*.kdb", "*.keychain", "*.keychain-db", ".password-store"),
    *(".local/share/keyrings", ".vault-token", "*.ovpn", "soong-backup-*"),
    # clouds and clusters
    *(".aws", ".azure", ".oci", ".aliyun", ".config/gcloud", ".config/doctl", ".config/rclone", ".s3cfg", ".boto"),
    *(".kube", "kubeconfig", ".terraform.d", ".terraformrc", "terraform.rc", "*.tfstate", "*.tfstate.backup"),
    *(".rclone.conf", "rclone.conf", ".databrickscfg", ".snowsql", ".pulumi/credentials.json", ".config/hcloud"),
    *(".config/scw", ".fly/config.yml", ".config/op", ".config/sops", "application_default_credentials.json"),
    # agents, models and MCP
    *(".claude.json", ".claude/.credentials.json", ".codex/auth.json", ".gemini/oauth_creds.json", ".mcp-auth*"),
    *(".gemini/mcp-oauth-tokens*", ".qwen/oauth_creds.json", ".config/github-copilot", ".copilot/config.json"),
    *(".local/share/opencode/auth.json", ".config/goose/secrets.yaml", ".openai", ".anthropic", ".kaggle"),
    # tools that log in somewhere
    *(".netrc", "_netrc", ".git-credentials", ".config/git/credentials", ".config/gh/hosts.yml", ".config/hub"),
    *(".config/glab-cli", ".docker/config.json", ".dockercfg", ".npmrc", ".yarnrc.yml", ".pypirc", ".gem/credentials"),
    *(".cargo/credentials", ".cargo/credentials.toml", ".m2/settings.xml", ".gradle/gradle.properties"),
    *(".composer/auth.json", ".cache/huggingface/token", ".huggingface/token", ".htpasswd", ".sentryclirc"),
    *("credentials.json", "client_secret*.json", "service-account*.json", "service_account*.json"),
    *("secrets.json", "secrets.toml", "secrets.yaml", "secrets.yml", ".config/containers/auth.json"),
    # databases
    *(".pgpass", ".my.cnf", ".mylogin.cnf"),
    # settings and what was typed
    *(".env", ".env.*", "*.env", ".envrc", ".*_history", ".histfile", "fish_history", ".lesshst"),
    # the system's passwords
    *("etc/shadow*", "etc/gshadow*"),
)
"""Patterns of one or more components; a path is sensitive when any stretch of it matches, so all below it is too."""

_GIT_FOLDERS: Final = frozenset({".git", "git~1"})
GIT_CONTROLS: Final = frozenset({"hooks", "config", "config.worktree", "commondir", "gitdir", "git-rebase-todo"})
"""Entries of a git folder that run programs, or say where git finds those that do."""

_WORKTREES: Final = frozenset({"worktrees"})
CONTROL_FOLDERS: Final[Mapping[str, frozenset[str]]] = {
    ".soong": frozenset({"runs"}),
    ".claude": _WORKTREES,
    ".codex": _WORKTREES,
    ".cursor": _WORKTREES,
    **dict.fromkeys((".gemini", ".hg", ".jj", ".husky", ".devcontainer", ".vscode"), frozenset[str]()),
}
"""Folders whose files start programs or speak to later agents in a person's name, with what runs write in them."""
CONTROL_FILES: Final = frozenset({".mcp.json", "mcp.json", ".claude.json", ".devcontainer.json"})
STEERING: Final = (
    *("AGENTS.md", "CLAUDE.md", "CLAUDE.local.md", "GEMINI.md", ".cursorrules", ".windsurfrules", ".clinerules"),
    *(".github/copilot-instructions.md", ".idea", ".gitattributes", ".gitmodules", ".git/info", ".hgsub"),
    *(".windsurf", ".continue", ".opencode", ".kiro", ".zed", ".aider.conf.yml", ".pre-commit-config.yaml"),
)
"""Patterns of files that tell other programs what to do: a write always asks, unless a rule names the file."""


@lru_cache(maxsize=4096)
def plain(name: str) -> str:
    """Return a name without what a careless reader or another file system would not tell apart.

    Compatibility forms, case, invisible characters and trailing dots and spaces: a sensitive or protected name must not
    be reached by spelling it differently.
    """
    composed = unicodedata.normalize("NFKC", name).casefold()
    return "".join(char for char in composed if not is_ignorable(char)).rstrip(" .") or name


@lru_cache(maxsize=256)
def components(pattern: str) -> tuple[str, ...]:
    """Return the globs of a sensitive pattern, one for each component it speaks of. A pattern holds wherever its
    components are together, so a leading ``~/``, ``./`` or ``/`` has no effect, nor does a trailing ``/`` or ``/**``.
    Raises: InvalidConfigError, nothing is left of it.
    """
    parts = [part for part in pattern.split("/") if part not in ("", ".", "~")]
    while len(parts) > 1 and parts[-1] == "**":
        parts.pop()
    if not parts or ".." in parts or "\0" in pattern:
        raise InvalidConfigError(f"paths.sensitive: {pattern!r} names nothing; write a name such as '*.pem' or '.ssh'")
    return tuple(parts)


def is_sensitive(path: str, patterns: tuple[str, ...]) -> bool:
    """Say whether any stretch of a path matches one of the patterns, as written or under another spelling."""
    matcher = _matcher(patterns)
    if matcher.search(path):
        return True
    return not path.isascii() and matcher.search("/".join(map(plain, path.split("/")))) is not None


def is_control(parts: tuple[str, ...]) -> bool:
    """Say whether the plain parts of a path name a control of a repository, of ours or of an agent (FS-09)."""
    if not CONTROL_FILES.isdisjoint(parts):
        return True
    # A control of git runs code or redirects a repository, a nested or linked one too; ``.git`` itself is one.
    for at, name in enumerate(parts):
        if name in _GIT_FOLDERS and (at + 1 == len(parts) or not GIT_CONTROLS.isdisjoint(parts[at + 1 :])):
            return True
    # Such a folder or what lies in one, existing or not, but for what runs write there.
    return any(
        parts[at + 1 : at + 2] == () or parts[at + 1] not in CONTROL_FOLDERS[name]
        for at, name in enumerate(parts)
        if name in CONTROL_FOLDERS
    )


def readable(name: str) -> str:
    """Return a name as a line of text shows it: quoted as JSON when it could pass for anything else there. A name may
    hold newlines, escapes and marks that turn the order of characters; it must not write lines of its own.
    """
    is_plain = is_told_apart(name) and name == name.strip() and not name.startswith('"')
    return name if is_plain else json.dumps(name)


@lru_cache(maxsize=64)
def _matcher(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Return one expression over full paths; each pattern is a glob over one or more neighbouring components."""
    stretches = dict.fromkeys(
        "/+".join(_expression(spell(part)) for part in components(pattern))
        for pattern in patterns
        for spell in (str, plain)
    )
    # Trailing dots and spaces are dropped by some file systems, and case is ignored by some.
    return re.compile(rf"(?:^|/)(?:{'|'.join(stretches)})[ .]*(?:/|$)", re.IGNORECASE)


def _expression(glob: str) -> str:
    return "".join("[^/]*" if char == "*" else "[^/]" if char == "?" else re.escape(char) for char in glob)
