"""Asking an OpenAI-compatible server: bounded, with timeouts, and again after what may pass."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepsearch.search.background import BackgroundLoop
from stepsearch.search.errors import ConfigurationError, ModelNotFoundError

_MAY_PASS = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST_WAIT = 30.0
_SHOWN = 300


class RefusedError(Exception):
    """The server answered that it will not do this.

    Attributes:
        status: HTTP status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status


class BadReplyError(Exception):
    """The server's answer is not what was asked for; asking again may help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How a server is asked.

    Attributes:
        concurrency: most requests at once.
        timeout: seconds that one request may take.
        attempts: how often it is asked before it counts as out of reach.
        first_wait: seconds before the second attempt, twice as many before every other one; each
            wait is drawn between half of that and all of it, so that many clients do not come back
            at once.
    """

    concurrency: int = 64
    timeout: float = 600.0
    attempts: int = 4
    first_wait: float = 1.0

    def __post_init__(self) -> None:
        for name in ("concurrency", "timeout", "attempts", "first_wait"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"server.{name}={getattr(self, name)} must be positive")


class OpenAIClient:
    """One server; `post` must be awaited on `loop`.

    Args:
        base_url: with the version, such as `http://localhost:8000/v1`.
        api_key_variable: environment variable that holds the key; it may be unset.
        patience: how it is asked.

    Attributes:
        loop: the loop that this client lives on.
    """

    loop = BackgroundLoop()

    def __init__(self, base_url: str, api_key_variable: str, patience: Patience) -> None:
        import httpx2

        if not base_url.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"base_url={base_url!r} must begin with http:// or https://, and most often ends"
                " with /v1"
            )
        key = os.environ.get(api_key_variable)
        self._patience = patience
        self._failures = (httpx2.TransportError, httpx2.DecodingError)
        self._timeouts = httpx2.TimeoutException
        self._slots = asyncio.Semaphore(patience.concurrency)
        self._random = random.Random()  # waits must not move anybody's random numbers
        self._http = httpx2.AsyncClient(
            base_url=base_url.rstrip("/") + "/",
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=patience.timeout,
            limits=httpx2.Limits(max_connections=patience.concurrency),
        )

    def context_length(self, model: str) -> int | None:
        """The longest sequence of a model, where the server's list of models tells.

        Raises:
            ModelNotFoundError: there is no server, or it does not serve the model.
        """

        async def ask() -> Any:
            return await self._http.get("models")

        try:
            reply = self.loop.submit(ask()).result()
            listed = reply.json()["data"] if reply.status_code == 200 else None
        except self._failures as error:
            raise ModelNotFoundError(
                f"base_url={self._http.base_url}: no server answers there ({error!r}); start it,"
                " or correct the address"
            ) from error
        except (ValueError, KeyError, TypeError):
            listed = None
        if not listed:
            return None
        names = {str(entry.get("id")): entry for entry in listed}
        if model not in names:
            self.close()
            raise ModelNotFoundError(
                f"model={model}: the server at {self._http.base_url} has"
                f" {', '.join(sorted(names))}; give one of these names"
            )
        length = names[model].get("max_model_len")
        return length if isinstance(length, int) else None

    @property
    def root(self) -> str:
        """The address of routes that stand beside those of OpenAI, not below them."""
        return str(self._http.base_url).rstrip("/").removesuffix("/v1")

    async def post(
        self, path: str, body: Mapping[str, Any], expects: str = "choices"
    ) -> dict[str, Any]:
        """The server's answer to a request.

        Args:
            path: below the base address, or a whole address.
            body: the request.
            expects: the field of the answer that holds what was asked for, and is never empty.

        Raises:
            RefusedError: it refused, and will refuse again.
            ConnectionError, TimeoutError: it did not answer in all attempts.
        """
        async with self._slots:
            for attempt in range(1, self._patience.attempts + 1):
                try:
                    return await self._post_once(path, body, expects)
                except (ConnectionError, TimeoutError, BadReplyError) as error:
                    if attempt == self._patience.attempts:
                        if isinstance(error, BadReplyError):
                            raise ConnectionError(str(error)) from error
                        raise
                    await asyncio.sleep(self._wait(attempt, error))
        raise AssertionError("every attempt returns or raises")

    async def _post_once(self, path: str, body: Mapping[str, Any], expects: str) -> dict[str, Any]:
        try:
            reply = await self._http.post(path, json=body)
        except self._timeouts as error:
            raise TimeoutError(
                f"{self._http.base_url.join(path)} did not answer in {self._patience.timeout:g} s"
            ) from error
        except self._failures as error:
            raise ConnectionError(
                f"{self._http.base_url.join(path)}: {type(error).__name__}: {error}"
            ) from error
        if reply.status_code in _MAY_PASS:
            busy = ConnectionError(f"HTTP {reply.status_code}: {reply.text[:_SHOWN]}")
            busy.add_note(reply.headers.get("retry-after", ""))
            raise busy
        if reply.status_code >= 400:
            raise RefusedError(reply.status_code, reply.text[:_SHOWN])
        try:
            found = reply.json()
        except ValueError as error:
            raise BadReplyError(f"the answer is no JSON: {reply.text[:_SHOWN]}") from error
        if not isinstance(found, dict) or not found.get(expects):
            raise BadReplyError(f"the answer has no {expects}: {reply.text[:_SHOWN]}")
        return found

    def _wait(self, attempt: int, error: Exception) -> float:
        longest = min(self._patience.first_wait * 2.0 ** (attempt - 1), _LONGEST_WAIT)
        asked_for = 0.0
        for note in getattr(error, "__notes__", ()):
            with contextlib.suppress(ValueError):
                asked_for = min(float(note), _LONGEST_WAIT)
        return max(asked_for, self._random.uniform(0.5, 1.0) * longest)

    def close(self) -> None:
        """Close all connections. Closing twice does nothing."""
        self.loop.submit(self._http.aclose()).result(timeout=10)
