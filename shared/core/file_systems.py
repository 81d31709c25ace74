"""The file system of a path, by the kernel's list of mounts; flushing it, and files that are replaced."""

import ctypes
import os
import tempfile
from pathlib import Path
from typing import Final

MOUNTS: Final = Path("/proc/self/mounts")

NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "lustre", "afs", "fuse.sshfs"}
)
"""Locks and shared memory do not work between hosts on these: SQLite loses data there."""


def file_system_of(path: Path, mounts: Path = MOUNTS) -> str:
    """Return the type of the file system that a path lies on; empty when it is unknown."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    points = [
        (fields[1].replace("\\040", " "), fields[2]) for fields in (line.split() for line in lines) if len(fields) > 2
    ]
    real = path.resolve()
    below = [(len(point), kind) for point, kind in points if real.is_relative_to(point)]
    return max(below, default=(0, ""))[1]


def flush_file_system(descriptor: int) -> None:
    """Bring all that was written to the file system of an open file to the disk (syncfs(2)). A system without that call
    flushes all file systems. Raises: OSError.
    """
    flush = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if flush is None:
        os.sync()
    elif flush(descriptor):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def replace_file(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace the text of a file, whose folder is made. A reader sees the old text or the new one. Raises: OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
