"""Opens where memories are kept, as the configuration says: the files of the home, or a module of the user's."""

from soong.shared.core.config import Config
from soong.shared.core.settings import Settings, secret_values
from soong.shared.sandbox.redact import redactor
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.storage.memory.files import FileMemory
from soong.shared.toolsets.memory.module import FILES, import_provider
from soong.shared.toolsets.memory.provider import MemoryProvider

FOLDER = "memory"


def open_memory(settings: Settings, config: Config) -> MemoryProvider:
    """Return the provider; nothing is read yet.

    Raises: InvalidConfigError, the module that it names cannot be used.
    """
    wanted = config.memory.provider
    if wanted != FILES:
        return import_provider(wanted, settings.import_folders)
    secrets = redactor(secret_values(settings, config.commands.secret_env))
    return FileMemory(RootedFolder(settings.home, FOLDER), secrets)
