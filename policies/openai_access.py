"""Where a server is, and the key that it is asked with."""

from __future__ import annotations

import os

from stepsearch.search.errors import ConfigurationError
from stepsearch.search.parameters import require_text


def check_address(base_url: str) -> None:
    """Raise `ConfigurationError` when nothing can be asked there."""
    import httpx2

    require_text("base_url", base_url)
    if not base_url.startswith(("http://", "https://")):
        raise ConfigurationError(
            f"base_url={base_url!r} must begin with http:// or https://, and most often ends with"
            " /v1"
        )
    try:
        url = httpx2.URL(base_url)
    except httpx2.InvalidURL as error:
        raise ConfigurationError(f"base_url={base_url!r} is no address: {error}") from error
    if url.userinfo:
        raise ConfigurationError(
            "base_url holds a name or a password, which traces and messages would show; put a key"
            " into the environment variable that api_key_variable names, or let a proxy hold it"
        )
    if not url.host:
        raise ConfigurationError(f"base_url={base_url!r} names no host")
    if "?" in base_url or "#" in base_url:
        raise ConfigurationError(
            f"base_url={base_url!r} holds a query or a fragment; requests go to paths below the"
            " address, so leave it out"
        )
    if url.port is not None and not 0 < url.port < 1 << 16:
        raise ConfigurationError(
            f"base_url={base_url!r}: port {url.port} must be between 1 and 65535"
        )


def read_key(variable: str) -> str:
    """The key in an environment variable, without space around it; empty where there is none.

    Raises:
        ConfigurationError: no header may hold it; the message does not, either.
    """
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigurationError(
            f"api_key_variable={variable}: the key in this environment variable holds a character"
            " that no key has (a line end, a control character, or one beyond ASCII); set it anew"
        )
    return key
