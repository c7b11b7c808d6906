"""What a server's answer says: its tokens, and how the text ended. Nothing is guessed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

End = Literal["stopped", "eos", "length"]


class Reply(NamedTuple):
    """One choice of an answer.

    Attributes:
        text: what was written, without a stop string where the server cuts it off.
        ids: ids of all sampled tokens; None when the server does not tell.
        pieces: text of every token; None when the server does not tell.
        logprobs: of every token; None when the server does not tell.
        num_tokens: how many tokens were sampled; None when the server does not tell.
        end: behind a stop string or stop token, at the model's own end, or at `max_tokens`; None
            when the server says `stop` for both of the first.
        prompt_tokens: length of the prompt; None when the server does not tell.
        cached: how many of them came from a cache; None when the server does not tell.
    """

    text: str
    ids: tuple[int, ...] | None
    pieces: tuple[str, ...] | None
    logprobs: tuple[float, ...] | None
    num_tokens: int | None
    end: End | None
    prompt_tokens: int | None
    cached: int | None


def read_reply(answer: Mapping[str, Any], eos_ids: Collection[int] = ()) -> Reply:
    """Read the first choice of an answer to a completion or a chat.

    Args:
        answer: what the server sent.
        eos_ids: tokens at which the model ends.

    Raises:
        ValueError: it is not what such servers answer.
    """
    choice = answer["choices"][0]
    text = choice["message"].get("content") if "message" in choice else choice.get("text")
    if not isinstance(text, str):
        raise ValueError(f"the choice has no text: {choice}")
    usage = answer.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    pieces, logprobs = _tokens(choice.get("logprobs"))
    ids = choice.get("token_ids")
    count = usage.get("completion_tokens")
    if ids is not None:
        count = len(ids)
    elif pieces is not None and count is None:
        count = len(pieces)
    return Reply(
        text=text,
        ids=None if ids is None else tuple(ids),
        pieces=pieces,
        logprobs=logprobs,
        num_tokens=count,
        end=_end(choice, eos_ids),
        prompt_tokens=usage.get("prompt_tokens"),
        cached=details.get("cached_tokens"),
    )


def _tokens(
    told: Mapping[str, Any] | None,
) -> tuple[tuple[str, ...] | None, tuple[float, ...] | None]:
    """Texts and log-probabilities of the tokens, in the form of completions or of chats."""
    if not told:
        return None, None
    if told.get("content") is not None:
        entries: Sequence[Mapping[str, Any]] = told["content"]
        return tuple(e["token"] for e in entries), tuple(e["logprob"] for e in entries)
    values = told.get("token_logprobs")
    if told.get("tokens") is None or values is None or None in values:
        return None, None
    return tuple(told["tokens"]), tuple(values)


def _end(choice: Mapping[str, Any], eos_ids: Collection[int]) -> End | None:
    """How the text ended; servers name what stopped it in fields of their own."""
    match choice.get("finish_reason"):
        case "length":
            return "length"
        case "stop":
            for field in ("stop_reason", "matched_stop"):
                if field in choice:
                    by = choice[field]
                    return "eos" if by is None or by in eos_ids else "stopped"
            return None
        case other:
            raise ValueError(f"finish_reason={other!r} is neither stop nor length: {choice}")
