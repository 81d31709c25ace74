"""The mark of a project: a file by which a worker proves that it has the folder that a session means.

A path alone proves nothing between hosts: another machine may have another folder of that name, or an empty one. The
mark lies in ``.soong/``, which no file tool writes (FS-09), so that no run can pass a folder off as a project.
"""

import os
import re
import secrets
from pathlib import Path
from typing import Final

from soong.shared.core.errors import ForeignEntryError, InvalidConfigError
from soong.shared.sandbox.rooted import RootedFolder

MARK: Final = Path(".soong", "project")
MAX_BYTES: Final = 200

_ID: Final = re.compile(r"prj_[0-9a-f]{16,64}")


def project_id(folder: Path) -> str:
    """Return the id in a folder's mark; nothing when it has none, or one that is not ours."""
    try:
        descriptor = os.open(folder / MARK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        text = os.read(descriptor, MAX_BYTES).decode("ascii", "replace").strip()
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return text if _ID.fullmatch(text) else ""


def mark_project(folder: Path) -> str:
    """Mark a folder as a project and return its id; one that is marked keeps its own.

    Raises:
        InvalidConfigError: the mark cannot be written, or what lies in its place is none.
    """
    if found := project_id(folder):
        return found
    made = f"prj_{secrets.token_hex(16)}"
    place = folder / MARK
    try:
        RootedFolder(folder, is_private=False).create(str(MARK), f"{made}\n".encode("ascii"))
    except ForeignEntryError as error:
        raise InvalidConfigError(f"the mark of a project cannot be written: {error}") from error
    except FileExistsError as error:
        if found := project_id(folder):
            return found  # somebody else was faster
        raise InvalidConfigError(f"{place} is not a mark of a project; look what it is, and remove it") from error
    except OSError as error:
        raise InvalidConfigError(f"{place} cannot be written: {error.strerror}") from error
    return made
