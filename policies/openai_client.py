"""Asking an OpenAI-compatible server: bounded, with timeouts, and again after what may pass."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import math
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from stepsearch.policies.openai_access import check_address, read_key
from stepsearch.policies.openai_fields import BadReplyError, excerpt, parse, start_of
from stepsearch.policies.openai_models import known_length, read_lengths
from stepsearch.search.background import BackgroundLoop, forget_in_children
from stepsearch.search.errors import ModelNotFoundError
from stepsearch.search.parameters import known_values, number, whole

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

_MAY_PASS = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST_WAIT = 30.0
_TO_CONNECT = 0.5
"""Part of a request's time for its connection; with all of it, none and no answer look alike."""
LARGEST_BODY = 64 << 20
"""Most bytes of an answer: the rows or log-probabilities of a million tokens are smaller."""


class RefusedError(Exception):
    """The server answered that it will not do this.

    Attributes:
        status: HTTP status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status


class UnreachableError(ConnectionError):
    """No connection could be made."""


class _Answer(NamedTuple):
    url: str
    status: int
    retry_after: str
    content: bytes

    @property
    def text(self) -> str:
        """The start of it, for a message; whatever encoding the server names may not exist."""
        return start_of(self.content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How a server is asked.

    Attributes:
        concurrency: most requests at once.
        timeout: seconds that one request may take, to the last byte of its answer; its connection
            must be made in half of them.
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
        for name in ("concurrency", "attempts"):
            whole(f"server.{name}", getattr(self, name), least=1)
        for name in ("timeout", "first_wait"):
            number(f"server.{name}", getattr(self, name), above=0)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any] | None) -> Patience:
        """Patience as a configuration names it; None takes the defaults.

        Raises:
            ConfigurationError: a key is unknown, or a value does not fit.
        """
        return cls(**known_values(cls, "server", mapping))


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

        check_address(base_url)
        key = read_key(api_key_variable)
        self._patience = patience
        self._failures = (httpx2.TransportError, httpx2.DecodingError)
        self._timeouts = httpx2.TimeoutException
        self._unreachable = (httpx2.ConnectError, httpx2.ConnectTimeout)
        self._to_connect = patience.timeout * _TO_CONNECT
        self._random = random.Random()  # waits must not move anybody's random numbers
        self._options: dict[str, Any] = {
            "base_url": base_url.rstrip("/") + "/",
            "headers": {"Authorization": f"Bearer {key}"} if key else {},
            "timeout": httpx2.Timeout(patience.timeout, connect=self._to_connect),
            "limits": httpx2.Limits(max_connections=patience.concurrency),
        }
        forget_in_children(self)

    @functools.cached_property
    def _http(self) -> httpx2.AsyncClient:
        import httpx2

        return httpx2.AsyncClient(**self._options)

    @functools.cached_property
    def _slots(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(self._patience.concurrency)

    def forget(self) -> None:
        """In a forked child: connections and their loop are the parent's."""
        for name in ("_http", "_slots"):
            vars(self).pop(name, None)

    def context_length(self, model: str, max_length: int | None = None) -> int | None:
        """The longest sequence of a model, where the server's list of models tells.

        Args:
            model: its name on the server.
            max_length: what is set, and then holds whatever the server tells.

        Raises:
            ModelNotFoundError: there is no server, it does not serve the model, or its list cannot
                be read.
            ConfigurationError: what it tells is no length.
        """
        listed = self._listed()
        if listed and model not in listed:
            raise ModelNotFoundError(
                f"model={model}: the server at {self._http.base_url} has"
                f" {', '.join(sorted(listed))}; give one of these names"
            )
        return known_length(model, listed.get(model)) if max_length is None else max_length

    def _listed(self) -> dict[str, object]:
        """What the server tells of its models' lengths; nothing where it has no list."""

        async def once() -> dict[str, object]:
            answer = await self._fetch("GET", "models")
            return {} if _has_no_list(answer.status) else read_lengths(_accepted(answer).content)

        try:  # a wrong address is told at once
            return self.loop.submit(self._repeat(once, UnreachableError)).result()
        except UnreachableError as error:
            raise ModelNotFoundError(
                f"base_url={self._http.base_url}: no server answers there ({error}); start it,"
                " or correct the address"
            ) from error
        except RefusedError as error:
            raise ModelNotFoundError(f"base_url={self._http.base_url}: {error}") from error
        except (ConnectionError, TimeoutError) as error:
            raise ModelNotFoundError(
                f"base_url={self._http.base_url}: the list of models cannot be read: {error}"
            ) from error

    @property
    def root(self) -> str:
        """The address of routes that stand beside those of OpenAI, not below them."""
        return str(self._http.base_url).rstrip("/").removesuffix("/v1")

    async def post(
        self, path: str, body: Mapping[str, Any], read: Callable[[Mapping[str, Any]], T]
    ) -> T:
        """What is read out of the server's answer to a request.

        Args:
            path: below the base address, or a whole address.
            body: the request.
            read: reads an answer; where it raises `BadReplyError` the server is asked again.

        Raises:
            RefusedError: it refused, and will refuse again.
            BadReplyError, ConnectionError, TimeoutError: it gave no answer that can be read in all
                attempts.
        """

        async def once() -> T:
            return read(await self._post_once(path, body))

        async with self._slots:
            return await self._repeat(once)

    async def _repeat(self, once: Callable[[], Awaitable[T]], *final: type[Exception]) -> T:
        """What comes of asking, again after what may pass, but for what is `final`."""
        for attempt in range(1, self._patience.attempts + 1):
            try:
                return await once()
            except (ConnectionError, TimeoutError) as error:
                if attempt == self._patience.attempts or isinstance(error, final):
                    raise
                await asyncio.sleep(self._wait(attempt, error))
        raise AssertionError("every attempt returns or raises")

    async def _post_once(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return parse(_accepted(await self._fetch("POST", path, body)).content)

    async def _fetch(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> _Answer:
        """One request. The library bounds each wait; a server that trickles would never reach it.

        Raises:
            UnreachableError: no connection could be made.
            ConnectionError, TimeoutError: no whole answer came.
            RefusedError: it was redirected; the key is not for whoever is there.
        """
        url = self._http.base_url.join(path)
        try:
            async with (
                asyncio.timeout(self._patience.timeout),
                self._http.stream(method, path, json=body) as reply,
            ):
                if 300 <= reply.status_code < 400:
                    place = reply.headers.get("location", "a place that it does not name")
                    raise RefusedError(
                        reply.status_code,
                        f"{url} is redirected to {excerpt(place)}, and no redirection is followed;"
                        " set base_url to the server's own address",
                    )
                wait = reply.headers.get("retry-after", "")
                return _Answer(str(url), reply.status_code, wait, await _content(reply))
        except self._unreachable as error:
            why = str(error) or f"no connection in {self._to_connect:g} s (half of server.timeout)"
            raise UnreachableError(f"{url}: {type(error).__name__}: {why}") from error
        except (TimeoutError, self._timeouts) as error:
            raise TimeoutError(
                f"{url} did not answer in {self._patience.timeout:g} s (server.timeout)"
            ) from error
        except self._failures as error:
            raise ConnectionError(f"{url}: {type(error).__name__}: {error}") from error

    def _wait(self, attempt: int, error: Exception) -> float:
        longest = min(self._patience.first_wait * 2.0 ** (attempt - 1), _LONGEST_WAIT)
        asked_for = max(map(_seconds, getattr(error, "__notes__", ())), default=0.0)
        return max(min(asked_for, _LONGEST_WAIT), self._random.uniform(0.5, 1.0) * longest)

    @contextlib.contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """The connections are closed when the block raises, since nobody will hold them."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all connections. Closing twice does nothing."""
        self.loop.submit(self._http.aclose()).result(timeout=10)


def _accepted(answer: _Answer) -> _Answer:
    """The answer, unless the server could not or would not give what was asked for."""
    if answer.status in _MAY_PASS:
        busy = ConnectionError(f"HTTP {answer.status}: {answer.text}")
        busy.add_note(answer.retry_after)
        raise busy
    if answer.status >= 400:
        raise RefusedError(answer.status, f"{answer.text or 'no word'} (from {answer.url})")
    return answer


def _has_no_list(status: int) -> bool:
    """Whether a server has no list of models, or shows none to this key; both may complete."""
    return status == 501 or (400 <= status < 500 and status not in _MAY_PASS)


def _seconds(retry_after: str) -> float:
    """Seconds that a server asks to wait, as a number or a date; none where it tells neither."""
    with contextlib.suppress(ValueError):
        seconds = float(retry_after)
        return seconds if math.isfinite(seconds) else 0.0
    with contextlib.suppress(ValueError):
        date = parsedate_to_datetime(retry_after)
        now = datetime.datetime.now(datetime.UTC)
        return (date.replace(tzinfo=date.tzinfo or datetime.UTC) - now).total_seconds()
    return 0.0


async def _content(reply: httpx2.Response) -> bytes:
    """A body; raises `BadReplyError` as soon as it is larger than any answer."""
    content = bytearray()
    async for chunk in reply.aiter_bytes():
        content += chunk
        if len(content) > LARGEST_BODY:
            raise BadReplyError(
                f"{reply.url} sends more than {LARGEST_BODY} bytes, which no answer has; correct"
                " base_url, or ask for less by options"
            )
    return bytes(content)
