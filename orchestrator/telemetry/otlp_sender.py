"""Posts messages of OTLP to a collector. The follower of the logs tries again what it did not take."""

import gzip
import ssl
from typing import Final

import httpx2

from soong.shared.core.telemetry import OtlpTarget

CONTENT_TYPE: Final = "application/x-protobuf"


class OtlpSender:
    """One collector. Its calls block; none takes much longer than the time limit of the target."""

    def __init__(self, target: OtlpTarget) -> None:
        """Raises: OSError, a certificate cannot be used."""
        headers = {"user-agent": "soong", **target.headers, "content-type": CONTENT_TYPE}
        if target.is_compressed:
            headers["content-encoding"] = "gzip"
        self._target = target
        # A collector of the operator's choice: a redirect would take its key elsewhere.
        self._client = httpx2.Client(
            headers=headers, timeout=target.timeout_s, verify=_trusted(target), follow_redirects=False
        )

    def post(self, message: bytes) -> str:
        """Return why the collector did not take a message; empty when it did. Its words are not read."""
        body = gzip.compress(message) if self._target.is_compressed else message
        try:
            with self._client.stream("POST", self._target.url, content=body) as response:
                status = response.status_code
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError, RuntimeError) as error:
            return f"it cannot be reached ({type(error).__name__})"
        return "" if 200 <= status < 300 else f"it answered {status}"

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._client.close()


def _trusted(target: OtlpTarget) -> ssl.SSLContext | bool:
    """Raises: OSError."""
    if not target.certificate and not target.client_certificate:
        return target.url.startswith("https:")  # the certificates of the system take a while to read
    context = ssl.create_default_context(cafile=target.certificate or None)
    if target.client_certificate:
        context.load_cert_chain(target.client_certificate, target.client_key or None)
    return context
