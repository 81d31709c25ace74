"""What a part of a deployment may do in the database, as far as boundaries between the parts depend on it."""

from soong.shared.core.value import Value


class DatabaseRights(Value):
    """A database role. ``decides``: it may insert decisions or public keys, as an orchestrator's may."""

    role: str
    owns_tables: bool
    decides: bool
