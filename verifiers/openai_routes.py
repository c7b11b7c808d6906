"""What a server is asked so that a score can be read, and what its answers say; nothing is guessed.

Sequences are sent as ids. Every answer is checked against what was sent: its rows are counted, and
so are the tokens that the server read, where it tells them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from stepsearch.policies.openai_client import OpenAIClient
from stepsearch.policies.openai_fields import items, only, optional
from stepsearch.search.batching import together
from stepsearch.verifiers.openai_answers import (
    UnreadableError,
    count_tokens,
    find_places,
    read_logprobs,
    read_rows,
)
from stepsearch.verifiers.openai_tokens import ReadTokens

_NUM_TOLD = 20
"""Most tokens whose log-probabilities vLLM tells by default."""

_IMPOSSIBLE = -9999.0
"""What vLLM writes for a log-probability of minus infinity, which JSON has not."""


class Read(NamedTuple):
    """What a server gave for one sequence.

    Attributes:
        rows: [positions, width] float32, before any activation; NaN where the server has no number.
        computed: tokens that the server computed; None when it does not tell.
        reused: tokens that it took from a cache; None when it does not tell.
    """

    rows: Tensor
    computed: int | None
    reused: int | None


class Served(NamedTuple):
    """Whom to ask.

    Attributes:
        client: the connection.
        model: its name on the server.
        options: what else stands in every request.
    """

    client: OpenAIClient
    model: str
    options: Mapping[str, Any]

    async def ask(self, path: str, read: Callable[[Mapping[str, Any]], Read], **body: Any) -> Read:
        """One request, asked again when the answer is malformed; the options have the last word."""
        return await self.client.post(path, {"model": self.model} | body | dict(self.options), read)


class Route(Protocol):
    """One way to have rows read."""

    async def read(self, ids: Sequence[int], positions: Sequence[int], **extra: Any) -> Read:
        """Rows at some positions, increasing; `extra` stands in every request.

        Raises:
            UnreadableError: the answer holds no score for this sequence.
            ValueError: the answer does not fit the format or what was sent.
            RefusedError, BadReplyError, ConnectionError, TimeoutError: as `OpenAIClient.post`.
        """
        ...


class ByCompletion:
    """Log-probabilities of two tokens behind each position: one request each, for one token.

    vLLM from 0.26 tells the two tokens that it is asked for, other servers their most likely ones.
    A temperature of 1 keeps the log-probabilities those of the model where servers apply it.

    Args:
        server: whom to ask.
        tokens: the good and the bad token.
    """

    def __init__(self, server: Served, tokens: ReadTokens) -> None:
        self._server, self._tokens = server, tokens

    async def read(self, ids: Sequence[int], positions: Sequence[int], **extra: Any) -> Read:
        """See `Route.read`."""
        asks = [self._ask(ids[: position + 1], extra) for position in positions]
        return _joined(await together(asks))

    async def _ask(self, ids: Sequence[int], extra: Mapping[str, Any]) -> Read:
        def read(answer: Mapping[str, Any]) -> Read:
            return Read(self._row(only(answer, "choices")), *count_tokens(answer, len(ids)))

        return await self._server.ask(
            "completions",
            read,
            prompt=list(ids),
            max_tokens=1,
            temperature=1.0,
            logprobs=_NUM_TOLD,
            logprob_token_ids=list(self._tokens.ids),
            return_tokens_as_token_ids=True,
            **extra,
        )

    def _row(self, choice: Mapping[str, Any]) -> Tensor:
        told = read_logprobs(optional(choice.get("logprobs"), "logprobs"))
        row = self._tokens.logprobs(told)
        if max(row) <= _IMPOSSIBLE:
            raise UnreadableError(f"the server calls {self._tokens.texts} both impossible")
        return torch.tensor([row])


class ByClassifier:
    """Outputs of a head for the last token, vLLM's `/classify`: one request a position.

    Args:
        server: whom to ask.
        width: outputs of the head.
    """

    def __init__(self, server: Served, width: int) -> None:
        self._server, self._width = server, width

    async def read(self, ids: Sequence[int], positions: Sequence[int], **extra: Any) -> Read:
        """See `Route.read`."""
        asks = [self._ask(ids[: position + 1], extra) for position in positions]
        return _joined(await together(asks))

    async def _ask(self, ids: Sequence[int], extra: Mapping[str, Any]) -> Read:
        asked: dict[str, Any] = {"use_activation": False} | dict(extra)
        path = f"{self._server.client.root}/classify"

        def read(answer: Mapping[str, Any]) -> Read:
            rows = read_rows([only(answer, "data").get("probs")], self._width)
            return Read(_tensor(rows), *count_tokens(answer, len(ids)))

        return await self._server.ask(path, read, input=list(ids), **asked)


class ByTokens:
    """Outputs of a head for all tokens, or all step marks: vLLM's `/pooling`, one request a chain.

    For this vLLM reads no prefix cache, so the whole sequence is computed every time.

    Args:
        server: whom to ask.
        width: outputs of the head.
    """

    def __init__(self, server: Served, width: int) -> None:
        self._server, self._width = server, width

    async def read(self, ids: Sequence[int], positions: Sequence[int], **extra: Any) -> Read:
        """See `Route.read`."""
        asked: dict[str, Any] = {"use_activation": False} | dict(extra)
        path = f"{self._server.client.root}/pooling"

        def read(answer: Mapping[str, Any]) -> Read:
            rows = read_rows(items(only(answer, "data").get("data"), "data[0].data"), self._width)
            count_tokens(answer, len(ids))
            places = find_places(ids, positions, len(rows))
            return Read(_tensor([rows[place] for place in places]), len(ids), 0)

        return await self._server.ask(path, read, input=list(ids), task="token_classify", **asked)


def _tensor(rows: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32)


def _joined(reads: Sequence[Read]) -> Read:
    rows, computed, reused = zip(*reads, strict=True)
    return Read(torch.cat(rows), _total(computed), _total(reused))


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
