"""git as a judge: its ``diff`` and ``apply`` without any configuration, in folders of their own."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

_SETTINGS = ("core.autocrlf=false", "core.hooksPath=/dev/null", "core.fsmonitor=false", "core.quotePath=true")


@dataclass(frozen=True)
class Git:
    """``folder`` is empty and ours; nothing above it is taken for a repository."""

    folder: Path

    @classmethod
    def at(cls, folder: Path) -> "Git":
        if shutil.which("git") is None:
            pytest.skip("git is not installed")
        for name in ("a", "b", "tree", "home"):
            (folder / name).mkdir(parents=True)
        return cls(folder)

    def run(self, *arguments: str, cwd: Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.folder / "home"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_CEILING_DIRECTORIES": str(self.folder.parent),
            "LC_ALL": "C",
        }
        settings = [word for setting in (*_SETTINGS, f"safe.directory={cwd}") for word in ("-c", setting)]
        argv = ["git", *settings, *arguments]
        return subprocess.run(argv, cwd=cwd, env=environment, input=stdin, capture_output=True, check=False, timeout=60)

    def diff(self, before: bytes | None, after: bytes, context: int = 3) -> bytes:
        """Return the diff of one file ``x``; None: it did not exist. Empty when nothing changed."""
        (self.folder / "a/x").write_bytes(before or b"")
        (self.folder / "b/x").write_bytes(after)
        options = ("--no-index", "--no-prefix", "--no-ext-diff", "--no-color", f"--unified={context}")
        old = "/dev/null" if before is None else "a/x"
        return self.run("diff", *options, old, "b/x", cwd=self.folder).stdout

    def apply(self, before: bytes | None, diff: bytes) -> bytes | None:
        """Return what git makes of a file ``x`` by a diff; None: it refuses."""
        tree = self.folder / "tree"
        shutil.rmtree(tree)
        tree.mkdir()
        if before is not None:
            (tree / "x").write_bytes(before)
        applied = self.run("apply", "-", cwd=tree, stdin=diff)
        if applied.returncode != 0 or not (tree / "x").exists():
            return None
        return (tree / "x").read_bytes()
