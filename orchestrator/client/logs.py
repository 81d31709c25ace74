"""Logs of an orchestrator process: set up once, without the secrets that the process knows (EVT-05)."""

from soong.shared.core.config import load_config
from soong.shared.core.log import configure
from soong.shared.core.secret_values import secret_values
from soong.shared.core.settings import Settings
from soong.shared.sandbox.redact import redactor


def configure_logs(settings: Settings, process: str = "orchestrator") -> None:
    """Set up logging under the settings and the configuration of the home.
    Raises: InvalidConfigError, the configuration cannot be used, and with it what it calls secret is unknown.
    """
    config = load_config(settings.home)
    known = redactor(secret_values(settings, config.secret_env, config.secret_files))
    configure(settings.log_level, process=process, clean=known.text)
