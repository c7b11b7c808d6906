"""What a server's answer says of scores, checked against what was sent; nothing is guessed.

A field that is not of its kind is a `BadReplyError`, and the server is asked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepsearch.policies.openai_fields import (
    first,
    items,
    mapping,
    number,
    optional,
    prompt_usage,
    string,
    whole,
)


class UnreadableError(Exception):
    """A sound answer from which this sequence's score cannot be read."""


def read_logprobs(logprobs: Mapping[str, Any]) -> list[tuple[int | str, object]]:
    """Log-probabilities of the first new token's alternatives, each with its id or its text."""
    if not logprobs:
        raise ValueError("the server tells no log-probabilities; use one that does (logprobs)")
    if not logprobs.get("content"):
        top = first(logprobs, "top_logprobs")
        return [(string(key, "a key of top_logprobs"), value) for key, value in top.items()]
    listed = items(first(logprobs, "content").get("top_logprobs"), "top_logprobs")  # llama.cpp
    entries = [mapping(entry, "an entry of top_logprobs") for entry in listed]
    return [(_key(entry), entry.get("logprob")) for entry in entries]


def _key(entry: Mapping[str, Any]) -> int | str:
    if entry.get("id") is not None:
        return whole(entry["id"], "top_logprobs[].id")
    return string(entry.get("token"), "top_logprobs[].token")


def find_places(ids: Sequence[int], positions: Sequence[int], num_rows: int) -> list[int]:
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


def read_rows(values: Sequence[object], width: int) -> list[list[float]]:
    """Rows of a width; what is no number in JSON is NaN.

    Raises:
        BadReplyError: there are no rows of numbers.
        ValueError: a row has another width.
    """
    rows = [items(row, "a row of the head's outputs") for row in values]
    if widths := {len(row) for row in rows} - {width}:
        raise ValueError(
            f"the server's head has {widths.pop()} outputs, and the format says {width}"
            " (format.head.num_outputs)"
        )
    return [[_output(value) for value in row] for row in rows]


def _output(value: object) -> float:
    return float("nan") if value is None else number(value, "an output of the head")


def count_tokens(answer: Mapping[str, Any], sent: int) -> tuple[int | None, int | None]:
    """Tokens computed and reused.

    Raises:
        BadReplyError: what it tells are no numbers of tokens.
        ValueError: the server read another number of tokens than it was sent.
    """
    read, cached = prompt_usage(optional(answer.get("usage"), "usage"))
    if read is not None and read != sent:
        raise ValueError(
            f"the server read {read} tokens where {sent} were sent: it does not take ids as they"
            " are, so no score can be read from it"
        )
    if cached is None:
        return None, None
    return sent - whole(cached, "usage.prompt_tokens_details.cached_tokens", sent + 1), cached
