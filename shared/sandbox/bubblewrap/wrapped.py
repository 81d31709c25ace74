"""One program with its arguments, wrapped into a sandbox: the argv to start instead, and the descriptors it needs."""

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from soong.shared.core.value import Value
from soong.shared.sandbox.bubblewrap.mounts import HostLayout, Mount, SandboxView, view_of
from soong.shared.sandbox.bubblewrap.probe import ISOLATION, BubblewrapProbe
from soong.shared.sandbox.bubblewrap.seccomp import filter_program
from soong.shared.sandbox.command import CommandAccess

MAX_MEMORY_FOLDER_BYTES: Final = 2 * 1024**3
"""What each folder in memory (home, temporary files) takes at most."""
MAX_PROCESSES: Final = 1024
"""Of one sandbox; the kernel counts them for each user namespace (5.14 or newer) and exempts root."""
_LIMITER: Final = Path("/usr/bin/prlimit")
_ROOT: Final = Path("/")


class WrappedCommand(Value):
    """What to start: ``argv`` with ``descriptors`` inherited by their numbers. They are closed by who opened it."""

    argv: tuple[str, ...]
    descriptors: tuple[int, ...]
    view: SandboxView
    status: int

    def has_started(self) -> bool:
        """Say, once it has ended, whether the program itself was started: Bubblewrap then tells its exit code."""
        os.set_blocking(self.status, False)
        with contextlib.suppress(BlockingIOError):
            documents = os.read(self.status, 65_536).decode("utf-8", "replace").splitlines()
            return any("exit-code" in json.loads(line) for line in documents if line.startswith("{"))
        return False


@contextlib.contextmanager
def wrapped(
    found: BubblewrapProbe,
    host: HostLayout,
    access: CommandAccess,
    argv: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    reports: bool = True,
) -> Iterator[WrappedCommand]:
    """Wrap a program; the descriptors stay open as long as the context.

    With ``reports`` the context must last until the program has ended: Bubblewrap then tells its exit code.

    Raises:
        OSError: a place that it is to see cannot be opened.
    """
    view = view_of(host, access, Path(argv[0]), environment)
    with contextlib.ExitStack() as stack:
        status, told = _pipe(stack) if reports else (-1, -1)
        mounted = _Mounted(stack, by_descriptor=found.binds_descriptors)
        arguments = [str(found.program), *mounted.arguments(view), *(["--share-net"] if access.has_network else [])]
        if not any(mount.path == _ROOT for mount in view.mounts):
            arguments += ["--remount-ro", str(_ROOT)]
        arguments += ["--chdir", str(cwd if view.kind_at(cwd) else _ROOT)]
        arguments += ["--json-status-fd", str(told)] if reports else []
        descriptors = [*([told] if reports else []), *mounted.descriptors]
        if rules := filter_program():
            descriptors.append(_in_memory(rules, stack))
            arguments += ["--seccomp", str(descriptors[-1])]
        yield WrappedCommand((*arguments, "--", *_limited(), *argv), tuple(descriptors), view, status)


def _limited() -> tuple[str, ...]:
    if not _LIMITER.is_file():
        return ()
    return (str(_LIMITER), f"--nproc={MAX_PROCESSES}", "--core=0", "--")


class _Mounted:
    """The arguments of all mounts, and the descriptors of what is mounted by one."""

    def __init__(self, stack: contextlib.ExitStack, *, by_descriptor: bool) -> None:
        self.descriptors: list[int] = []
        self._stack = stack
        self._by_descriptor = by_descriptor

    def arguments(self, view: SandboxView) -> Iterator[str]:
        """Yield the mounts in their order; processes and devices lie on the root, and below them may be projects."""
        root = [mount for mount in view.mounts if mount.path == _ROOT]
        for mount in root:
            yield from self._one(mount)
        if not root:
            for name, target in view.links.items():
                yield from ("--symlink", target, f"/{name}")
        yield from ISOLATION
        for mount in view.mounts[len(root) :]:
            yield from self._one(mount)

    def _one(self, mount: Mount) -> tuple[str, ...]:
        path = str(mount.path)
        match mount.kind:
            case "private":
                return ("--size", str(MAX_MEMORY_FOLDER_BYTES), "--tmpfs", path)
            case "empty":
                return ("--ro-bind", os.devnull, path)
            case "read" | "write":
                option, descriptor = "--ro-bind" if mount.kind == "read" else "--bind", self._opened(mount.path)
                return (f"{option}-fd", str(descriptor), path) if self._by_descriptor else (option, path, path)
            case "link":
                return ("--symlink", str(mount.target), path)

    def _opened(self, source: Path) -> int:
        """Open a place and hold it to its path: a link that was put there since leads elsewhere."""
        descriptor = os.open(source, os.O_PATH | os.O_CLOEXEC)
        self._stack.callback(os.close, descriptor)
        if os.readlink(f"/proc/self/fd/{descriptor}") != str(source):  # noqa: PTH115  # a name, not a path
            raise OSError(errno.ELOOP, "was replaced while its sandbox was made", str(source))
        if self._by_descriptor:
            self.descriptors.append(descriptor)
        return descriptor


def _pipe(stack: contextlib.ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        stack.callback(os.close, end)
    return ends


def _in_memory(content: bytes, stack: contextlib.ExitStack) -> int:
    descriptor = os.memfd_create("seccomp")
    stack.callback(os.close, descriptor)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
