"""Fields of a server's answer: each of its kind, or an error that shows what was sent instead."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from typing import Any

_SHOWN = 300
_ROUNDING = 1e-3
"""How far above 0 half precision may put the logarithm of a probability."""
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 120


class BadReplyError(ConnectionError):
    """The server's answer is not what was asked for; asking again may help."""


def shown(value: object) -> str:
    """A field as Python writes it, shortened for a message."""
    return excerpt(_SHORT.repr(value))


def excerpt(text: str) -> str:
    """The start of a text."""
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def start_of(content: bytes) -> str:
    """The start of a body, whatever it is encoded in."""
    return excerpt(content[: 4 * (_SHOWN + 1)].decode(errors="replace"))


def parse(content: bytes) -> Mapping[str, Any]:
    """The object that a body holds."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:  # the latter when it is nested without end
        sent = start_of(content) or "its body is empty"
        raise BadReplyError(f"the answer is no JSON: {sent}") from error
    return mapping(found, "answer")


def mapping(value: object, name: str) -> Mapping[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise _bad(value, name, "an object")
    return value


def optional(value: object, name: str) -> Mapping[str, Any]:
    """An object that may be left out, and is empty then."""
    return {} if value is None else mapping(value, name)


def items(value: object, name: str) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise _bad(value, name, "a list")
    return value


def first(answer: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The first object of a list that is never empty."""
    if not answer.get(name):
        raise BadReplyError(f"the answer has no {name}: {shown(answer)}")
    return mapping(items(answer[name], name)[0], f"{name}[0]")


def only(answer: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The only object of a list; others would have cost tokens that nobody asked for."""
    found = first(answer, name)
    if len(answer[name]) > 1:
        raise BadReplyError(f"the answer has {len(answer[name])} {name} where one was asked for")
    return found


def string(value: object, name: str) -> str:
    """A text."""
    if not isinstance(value, str):
        raise _bad(value, name, "a text")
    return value


def whole(value: object, name: str, below: int | None = None) -> int:
    """A number of tokens, or the number of a token."""
    if type(value) is not int or value < 0 or (below is not None and value >= below):
        wanted = "a whole number" if below is None else f"a whole number below {below}"
        raise _bad(value, name, wanted)
    return value


def number(value: object, name: str) -> float:
    """A number."""
    if type(value) not in (int, float):
        raise _bad(value, name, "a number")
    try:
        return float(value)  # type: ignore[arg-type]  # the two types above
    except OverflowError as error:
        raise _bad(value, name, "a number that a float can hold") from error


def logprob(value: object, name: str) -> float:
    """A log-probability: of at most 0, but for rounding."""
    found = number(value, name)
    if found > _ROUNDING:
        raise _bad(value, name, "a log-probability, which is never positive,")
    return found


def prompt_usage(usage: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Tokens of the prompt, and how many came from a cache; None where the server does not tell."""
    details = optional(usage.get("prompt_tokens_details"), "usage.prompt_tokens_details")
    length, cached = usage.get("prompt_tokens"), details.get("cached_tokens")
    if length is not None:
        length = whole(length, "usage.prompt_tokens")
    if cached is not None:
        most = None if length is None else length + 1
        cached = whole(cached, "usage.prompt_tokens_details.cached_tokens", most)
    return length, cached


def _bad(value: object, name: str, wanted: str) -> BadReplyError:
    return BadReplyError(
        f"the server sent {name}={shown(value)}, where {wanted} belongs; let base_url lead to a"
        " server that speaks OpenAI's interface, such as vLLM, SGLang or llama.cpp"
    )
