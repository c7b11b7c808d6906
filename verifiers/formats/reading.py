"""Formats from configuration mappings: unknown keys and values are refused by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, get_args

from stepsearch.search.errors import ConfigurationError


def check_choice(name: str, value: object, choices: Any) -> None:
    """Raise `ConfigurationError` unless the value is one of a `Literal`'s."""
    if value not in get_args(choices):
        raise ConfigurationError(f"{name}={value!r} must be one of {', '.join(get_args(choices))}")


def known_values(cls: type[Any], where: str, mapping: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping as a dict, when its keys are fields of the dataclass and none is missing.

    Raises:
        ConfigurationError: a key is unknown or missing.
    """
    names = [f.name for f in fields(cls)]
    for key in mapping:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, n=3)
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            raise ConfigurationError(f"{where}.{key} is unknown; {hint}known: {', '.join(names)}")
    required = {f.name for f in fields(cls) if f.default is MISSING}
    missing = sorted(required - set(mapping))
    if missing:
        raise ConfigurationError(f"{where}.{missing[0]} is missing; set it")
    return dict(mapping)
