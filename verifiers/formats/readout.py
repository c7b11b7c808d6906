"""What a score is read from: a head of the model's own, or two tokens of its language model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stepsearch.search.contracts import Range
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.parameters import check_choice, known_values

Activation = Literal["sigmoid", "softmax", "difference", "none"]
_WIDTHS: dict[Activation, int] = {"sigmoid": 1, "softmax": 2, "difference": 2, "none": 1}
_RANGES: dict[Activation, Range] = {
    "sigmoid": "probability",
    "softmax": "probability",
    "difference": "signed",
    "none": "unbounded",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadFormat:
    """The scoring head: which weights, and which of its outputs is the score.

    Attributes:
        prefix: name of the head's weights in the safetensors files, such as `score` for
            `score.weight` and `score.bias`, or for `score.0.*` and `score.2.*` with a ReLU between.
        num_outputs: 1 for a scalar, 2 for classes.
        activation: `sigmoid` of the scalar, `none` for the scalar itself, `softmax` over the
            classes, or their `difference` after it; a softmax over one output is always 1, so what
            does not fit the width is refused.
        good: index of the output that means "this step is right".
    """

    prefix: str = "score"
    num_outputs: int
    activation: Activation
    good: int = 0

    def __post_init__(self) -> None:
        check_choice("format.head.activation", self.activation, Activation)
        if self.num_outputs != _WIDTHS[self.activation]:
            raise ConfigurationError(
                f"format.head.activation={self.activation!r} needs format.head.num_outputs="
                f"{_WIDTHS[self.activation]}, not {self.num_outputs!r}: use sigmoid or none for one"
                " output, softmax or difference for two"
            )
        if self.good not in range(self.num_outputs):
            raise ConfigurationError(
                f"format.head.good={self.good!r} must be the index of one of the "
                f"{self.num_outputs} outputs of the head, counted from 0"
            )

    @property
    def range(self) -> Range:
        """What values the scores may have."""
        return _RANGES[self.activation]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensFormat:
    """Two tokens of the language model; the score is a softmax over their two logits.

    Attributes:
        good_token: text of the token that means "this step is right"; encoded as inside a text.
        bad_token: text of its opposite.
        ids: the ids that the two must have, good one first; None takes what the tokenizer gives.
    """

    good_token: str
    bad_token: str
    ids: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.good_token == self.bad_token:
            raise ConfigurationError(
                f"format.head.good_token and format.head.bad_token are both {self.good_token!r}"
            )

    @property
    def range(self) -> Range:
        """What values the scores may have."""
        return "probability"


def read_readout(where: str, value: Any) -> HeadFormat | TokensFormat:
    """A readout from a configuration mapping; one that names a `good_token` means tokens.

    Raises:
        ConfigurationError: a key is unknown or missing, or a value does not fit.
    """
    if isinstance(value, HeadFormat | TokensFormat):
        return value
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{where}={value!r} must be a mapping")
    if "good_token" not in value and "bad_token" not in value:
        return HeadFormat(**known_values(HeadFormat, where, value))
    values = known_values(TokensFormat, where, value)
    ids = values.get("ids")
    if ids is not None:
        if len(ids) != 2:
            raise ConfigurationError(f"{where}.ids={list(ids)} must be two ids, the good one first")
        values["ids"] = (int(ids[0]), int(ids[1]))
    return TokensFormat(**values)
