"""Which environment variables hold secrets, by the ends of their names (EVT-05)."""

from typing import Final

SECRET_ENDINGS: Final = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_CREDENTIALS", "_HEADERS")
