"""What a server's answer says: its tokens, and how the text ended. Nothing is guessed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from stepsearch.policies.openai_fields import (
    BadReplyError,
    items,
    logprob,
    mapping,
    only,
    optional,
    prompt_usage,
    shown,
    string,
    whole,
)

_MOST_TOKENS = 1 << 31
"""No vocabulary has as many; ids are kept in 32 bits."""

_LEAST_LOGPROB = -1e30
"""No token is sampled at such odds; those of a step are added up in 32 bits."""

_INSTEAD_OF_TEXT = ("refusal", "tool_calls", "function_call", "audio")

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
        end_id: the token that the server names as the model's own end; None when it names none.
        prompt_tokens: length of the prompt; None when the server does not tell.
        cached: how many of them came from a cache; None when the server does not tell.
    """

    text: str
    ids: tuple[int, ...] | None
    pieces: tuple[str, ...] | None
    logprobs: tuple[float, ...] | None
    num_tokens: int | None
    end: End | None
    end_id: int | None
    prompt_tokens: int | None
    cached: int | None


def read_reply(answer: Mapping[str, Any], stop_ids: Collection[int] = ()) -> Reply:
    """Read the first choice of an answer to a completion or a chat.

    Args:
        answer: what the server sent.
        stop_ids: tokens that the server was asked to stop at and that are no end of the model.

    Raises:
        BadReplyError: a field is missing or not of its kind; the next answer may be better.
        ValueError: there is no text, or it ended in a way that no continuation ends.
    """
    choice = only(answer, "choices")
    usage = optional(answer.get("usage"), "usage")
    pieces, logprobs = _tokens(optional(choice.get("logprobs"), "logprobs"))
    ids = _ids(choice.get("token_ids"))
    count = _count(usage.get("completion_tokens"), ids, pieces)
    end, end_id = _end(choice, stop_ids)
    text = _text(choice, count)
    return Reply(text, ids, pieces, logprobs, count, end, end_id, *prompt_usage(usage))


def _count(told: object, ids: Sequence[int] | None, pieces: Sequence[str] | None) -> int | None:
    """How many tokens were sampled; what the server tells is read only where no ids say it."""
    if ids is not None:
        return len(ids)
    if told is not None:
        return whole(told, "usage.completion_tokens")
    return None if pieces is None else len(pieces)


def _text(choice: Mapping[str, Any], count: int | None) -> str:
    chat = "message" in choice
    text = _content(mapping(choice["message"], "message"), count) if chat else choice.get("text")
    if text is None:  # a refusal, or a call of a tool; the next answer would be another
        raise ValueError(f"the choice has no text: {_brief(choice)}")
    written = string(text, "content" if chat else "text")
    try:
        written.encode()
    except UnicodeEncodeError as error:  # which neither a trace nor the next prompt could hold
        raise BadReplyError(f"the text holds half a character: {shown(text)}") from error
    return written


def _brief(choice: Mapping[str, Any]) -> str:
    """A choice for a message; log-probabilities would hide what it says."""
    return shown({name: value for name, value in choice.items() if name != "logprobs"})


def _content(message: Mapping[str, Any], count: int | None) -> object:
    """What a chat answered; a null is an empty text, but for what stands in its place.

    All that was written may be reasoning, which servers put into a field of its own. A message
    without content, or a null for which no token was written, is a broken choice.
    """
    content = message.get("content")
    is_null = "content" in message and content is None
    if is_null and count and not any(message.get(field) for field in _INSTEAD_OF_TEXT):
        return ""
    return content


def _ids(told: object) -> tuple[int, ...] | None:
    if told is None:
        return None
    return tuple(whole(i, "an entry of token_ids", _MOST_TOKENS) for i in items(told, "token_ids"))


def _tokens(
    told: Mapping[str, Any],
) -> tuple[tuple[str, ...] | None, tuple[float, ...] | None]:
    """Texts and log-probabilities of the tokens, in the form of completions or of chats."""
    if told.get("content") is not None:
        entries = [mapping(e, "logprobs.content[]") for e in items(told["content"], "content")]
        texts, values = [e.get("token") for e in entries], [e.get("logprob") for e in entries]
    elif told.get("tokens") is not None and told.get("token_logprobs") is not None:
        texts = items(told["tokens"], "logprobs.tokens")
        values = items(told["token_logprobs"], "logprobs.token_logprobs")
    else:
        return None, None
    if None in values or len(values) != len(texts):
        return None, None
    pieces = tuple(string(text, "the text of a token") for text in texts)
    logprobs = tuple(logprob(value, "the logprob of a token") for value in values)
    if (least := min(logprobs, default=0.0)) < _LEAST_LOGPROB:
        raise BadReplyError(f"a token was sampled whose log-probability is {least}")
    return pieces, logprobs


def _end(choice: Mapping[str, Any], stop_ids: Collection[int]) -> tuple[End | None, int | None]:
    """How the text ended, and at which end token; servers name it in fields of their own."""
    match choice.get("finish_reason"):
        case "length":
            return "length", None
        case "stop":
            for field in ("stop_reason", "matched_stop"):
                if field in choice:
                    return _stopped(choice[field], field, stop_ids)
            return None, None
        case other:
            raise ValueError(
                f"finish_reason={shown(other)} is neither stop nor length: {_brief(choice)}"
            )


def _stopped(by: object, field: str, stop_ids: Collection[int]) -> tuple[End, int | None]:
    """What stopped a text: nothing but the model, a token, or a text.

    A server may know more end tokens than the files here, so a token that nobody asked for is one.
    """
    if by is None:
        return "eos", None
    if isinstance(by, str):
        return "stopped", None
    token = whole(by, field)
    return ("stopped", None) if token in stop_ids else ("eos", token)
