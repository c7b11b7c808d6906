"""What a server is asked so that a score can be read, and what its answers say; nothing is guessed.

Sequences are sent as ids. Every answer is checked against what was sent: its rows are counted, and
so are the tokens that the server read, where it tells them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from stepsearch.policies.openai_client import OpenAIClient

_NUM_TOLD = 20
"""Most tokens whose log-probabilities vLLM tells by default."""

_IMPOSSIBLE = -9999.0
"""What vLLM writes for a log-probability of minus infinity, which JSON has not."""


class UnreadableError(Exception):
    """A sound answer from which this sequence's score cannot be read."""


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

    async def ask(self, path: str, expects: str, **body: Any) -> dict[str, Any]:
        """One request; the options have the last word."""
        return await self.client.post(
            path, {"model": self.model} | body | dict(self.options), expects
        )


class Route(Protocol):
    """One way to have rows read."""

    async def read(self, ids: Sequence[int], positions: Sequence[int], **extra: Any) -> Read:
        """Rows at some positions, increasing; `extra` stands in every request.

        Raises:
            UnreadableError: the answer holds no score for this sequence.
            ValueError, LookupError, TypeError: the answer is not what such servers send.
            RefusedError, ConnectionError, TimeoutError: as `OpenAIClient.post`.
        """
        ...


class ByCompletion:
    """Log-probabilities of two tokens behind each position: one request each, for one token.

    vLLM from 0.26 tells the two tokens that it is asked for, other servers their most likely ones.
    A temperature of 1 keeps the log-probabilities those of the model where servers apply it.

    Args:
        server: whom to ask.
        tokens: ids of the good and the bad token.
        texts: of the same, for servers that tell tokens by text.
    """

    def __init__(self, server: Served, tokens: tuple[int, int], texts: tuple[str, str]) -> None:
        self._server, self._tokens, self._texts = server, tokens, texts

    async def read(self, ids: Sequence[int], positions: Sequence[int], **extra: Any) -> Read:
        """See `Route.read`."""
        asks = [self._ask(ids[: position + 1], extra) for position in positions]
        return _joined(await asyncio.gather(*asks))

    async def _ask(self, ids: Sequence[int], extra: Mapping[str, Any]) -> Read:
        answer = await self._server.ask(
            "completions",
            "choices",
            prompt=list(ids),
            max_tokens=1,
            temperature=1.0,
            logprobs=_NUM_TOLD,
            logprob_token_ids=list(self._tokens),
            return_tokens_as_token_ids=True,
            **extra,
        )
        return Read(self._row(answer["choices"][0]), *_counted(answer, len(ids)))

    def _row(self, choice: Mapping[str, Any]) -> Tensor:
        told = _told(choice.get("logprobs"))
        row = []
        for token, text in zip(self._tokens, self._texts, strict=True):
            found = [told[key] for key in (token, f"token_id:{token}", text) if key in told]
            if not found:
                raise UnreadableError(
                    f"{text!r} ({token}) is not among the {len(told)} most likely tokens that the"
                    " server tells; vLLM from 0.26 tells the tokens that it is asked for"
                )
            row.append(float(found[0]))
        if max(row) <= _IMPOSSIBLE:
            raise UnreadableError(f"the server calls {self._texts} both impossible")
        return torch.tensor([row])


def _told(logprobs: Mapping[str, Any] | None) -> Mapping[int | str, float]:
    """Log-probabilities of the first new token's alternatives, by id or by text."""
    if not logprobs:
        raise ValueError("the server tells no log-probabilities; use one that does (logprobs)")
    if logprobs.get("content"):  # llama.cpp
        entries = logprobs["content"][0]["top_logprobs"]
        return {e.get("id", e["token"]): e["logprob"] for e in entries}
    top: Mapping[int | str, float] = logprobs["top_logprobs"][0]
    return top


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
        return _joined(await asyncio.gather(*asks))

    async def _ask(self, ids: Sequence[int], extra: Mapping[str, Any]) -> Read:
        asked: dict[str, Any] = {"use_activation": False} | dict(extra)
        path = f"{self._server.client.root}/classify"
        answer = await self._server.ask(path, "data", input=list(ids), **asked)
        return Read(_rows([_only(answer)["probs"]], self._width), *_counted(answer, len(ids)))


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
        answer = await self._server.ask(
            path, "data", input=list(ids), task="token_classify", **asked
        )
        rows = _rows(_only(answer)["data"], self._width)
        _counted(answer, len(ids))
        return Read(rows[_places(ids, positions, len(rows))], len(ids), 0)


def _places(ids: Sequence[int], positions: Sequence[int], num_rows: int) -> list[int]:
    """Which rows belong to the positions: there is a row for every token, or for every mark.

    Raises:
        ValueError: there is neither.
    """
    if num_rows == len(ids):
        return list(positions)
    mark = ids[positions[-1]]
    places = {at: row for row, at in enumerate(i for i, token in enumerate(ids) if token == mark)}
    if num_rows == len(places) and all(position in places for position in positions):
        return [places[position] for position in positions]
    raise ValueError(
        f"the server gave {num_rows} rows for {len(ids)} tokens with {len(places)} step marks, and"
        " one for each token or one for each mark is needed; start it with --pooler-config"
        ' \'{"tok_pooling_type": "ALL"}\''
    )


def _only(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    (found,) = answer["data"]
    assert isinstance(found, Mapping)
    return found


def _rows(values: Sequence[Sequence[float | None]], width: int) -> Tensor:
    """[rows, width]; what is no number in JSON is NaN.

    Raises:
        ValueError: a row has another width.
    """
    if widths := {len(row) for row in values} - {width}:
        raise ValueError(
            f"the server's head has {widths.pop()} outputs, and the format says {width}"
            " (format.head.num_outputs)"
        )
    numbers = [[float("nan") if value is None else value for value in row] for row in values]
    return torch.tensor(numbers, dtype=torch.float32).reshape(-1, width)


def _counted(answer: Mapping[str, Any], sent: int) -> tuple[int | None, int | None]:
    """Tokens computed and reused.

    Raises:
        ValueError: the server read another number of tokens than it was sent.
    """
    usage = answer.get("usage") or {}
    read = usage.get("prompt_tokens")
    if read is not None and read != sent:
        raise ValueError(
            f"the server read {read} tokens where {sent} were sent: it does not take ids as they"
            " are, so no score can be read from it"
        )
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    return (None, None) if cached is None else (sent - cached, cached)


def _joined(reads: Sequence[Read]) -> Read:
    rows, computed, reused = zip(*reads, strict=True)
    return Read(torch.cat(rows), _total(computed), _total(reused))


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
