"""What is set of a served model, and what a server's list of models tells."""

from __future__ import annotations

import json

from stepsearch.policies.openai_fields import items, mapping, shown, string
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.parameters import whole


def set_length(name: str, value: object) -> int | None:
    """A longest sequence that a user sets; None takes what the server tells.

    Raises:
        ConfigurationError: it is no length.
    """
    hint = "null (None) takes what the server tells"
    return None if value is None else whole(name, value, least=1, hint=hint)


def set_size(name: str, value: object) -> int | None:
    """A number of parameters that a user sets, in whatever way it is written; None is unknown.

    Raises:
        ConfigurationError: no model has as many.
    """
    if isinstance(value, float) and value.is_integer():  # 1.5e9
        value = int(value)
    return None if value is None else whole(name, value, least=1, hint="null (None) is unknown")


def read_lengths(content: bytes) -> dict[str, object]:
    """What a list of models tells of each one's length; nothing where there is no list.

    Raises:
        BadReplyError: it is not what such servers list.
    """
    try:
        listed = json.loads(content)["data"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}
    entries = [mapping(entry, "an entry of data") for entry in items(listed or [], "data")]
    return {string(entry.get("id"), "id"): entry.get("max_model_len") for entry in entries}


def known_length(model: str, told: object) -> int | None:
    """A length that a server tells of a model; None when it tells none.

    Raises:
        ConfigurationError: it is no length.
    """
    if told is None or (type(told) is int and told > 0):
        return told
    raise ConfigurationError(
        f"model={model}: the server tells max_model_len={shown(told)}, which is no length of a"
        " sequence; set max_length to the model's context"
    )
