"""Checks of what a user sets: numbers, texts, choices, and mappings that become dataclasses."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from numbers import Integral, Real
from typing import Any, get_args

from stepsearch.search.errors import ConfigurationError


def whole(name: str, value: Any, *, least: int, hint: str = "") -> int:
    """The value as an int.

    Args:
        name: of the parameter, for the message.
        value: what was given.
        least: the smallest that is allowed.
        hint: what else may be given, or what a value means.

    Raises:
        ConfigurationError: it is no whole number, or too small.
    """
    if type(value) is int and value >= least:
        return value
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ConfigurationError(
            f"{name}={value!r} must be a whole number, at least {least}{_note(hint)}"
        )
    return int(value)


def number(
    name: str,
    value: Any,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    hint: str = "",
) -> float:
    """The value, a finite number from `least` or above `above` to `most`; otherwise as `whole`.

    Raises:
        ConfigurationError: it is no such number.
    """
    is_number = type(value) in (int, float) or _is_real(value)
    if is_number and math.isfinite(value) and above < value <= most and value >= least:
        return value if isinstance(value, int | float) else float(value)
    limits = [f"at least {least:g}"] if least > -math.inf else []
    limits += [f"above {above:g}"] if above > -math.inf else []
    limits += [f"at most {most:g}"] if most < math.inf else []
    raise ConfigurationError(
        f"{name}={value!r} must be a finite number{', ' if limits else ''}"
        f"{' and '.join(limits)}{_note(hint)}"
    )


def require_text(name: str, value: Any) -> None:
    """Raise `ConfigurationError` when the value is no text."""
    if not isinstance(value, str):
        raise ConfigurationError(f"{name}={value!r} must be a text")


def check_choice(name: str, value: object, choices: Any) -> None:
    """Raise `ConfigurationError` unless the value is one of a `Literal`'s."""
    if value not in get_args(choices):
        raise ConfigurationError(f"{name}={value!r} must be one of {', '.join(get_args(choices))}")


def known_values(cls: type[Any], where: str, mapping: Mapping[str, Any] | None) -> dict[str, Any]:
    """The mapping as a dict, when its keys are fields of the dataclass and none is missing.

    Raises:
        ConfigurationError: it is no mapping, or a key is unknown or missing.
    """
    mapping = as_dict(where, mapping)
    names = [f.name for f in fields(cls)]
    for key in mapping:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, n=3)
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            raise ConfigurationError(f"{where}.{key} is unknown; {hint}known: {', '.join(names)}")
    required = {f.name for f in fields(cls) if f.default is f.default_factory is MISSING}
    missing = sorted(required - set(mapping))
    if missing:
        raise ConfigurationError(f"{where}.{missing[0]} is missing; set it")
    return mapping


def as_dict(name: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
    """The mapping as a dict; an empty one for None.

    Raises:
        ConfigurationError: it is no mapping.
    """
    if not isinstance(value, Mapping | None):
        raise ConfigurationError(f"{name}={value!r} must be a mapping of names to values")
    return dict(value or {})


def check_separator(name: str, value: str, *, may_be_empty: bool = False) -> None:
    """Look at a text that ends or joins steps.

    Raises:
        ConfigurationError: it is empty, or holds a backslash and an n: neither a shell nor Hydra
            makes a line end of them, and a step would never end.
    """
    if not value and not may_be_empty:
        raise ConfigurationError(f"{name}='' would never end a step; give a text, say a line end")
    if _WRITTEN_ESCAPE.search(value):
        raise ConfigurationError(
            f"{name}={value!r} holds a backslash and a letter where a line end or tab seems to be"
            " meant; write it in a YAML file"
        )


_WRITTEN_ESCAPE = re.compile(r"\\[nrt](?![a-z])")
"""What a programming language reads as a line end or tab, but no LaTeX command such as \\nabla."""


def _is_real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _note(hint: str) -> str:
    return f"; {hint}" if hint else ""
