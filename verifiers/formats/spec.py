"""How a family of token-level process reward models is fed and read: data, no model."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from stepsearch.search.contracts import Aggregation
from stepsearch.search.errors import ConfigurationError

Activation = Literal["sigmoid", "softmax"]
_WIDTHS: dict[Activation, int] = {"sigmoid": 1, "softmax": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadFormat:
    """The scoring head: which weights, and which of its outputs is the score.

    Attributes:
        prefix: name of the head's weights in the safetensors files, such as `score` for
            `score.weight` and `score.bias`, or for `score.0.*` and `score.2.*` with a ReLU between.
        num_outputs: 1 for a scalar, 2 for classes.
        activation: `sigmoid` of the scalar or `softmax` over the classes; a softmax over one output
            is always 1, so what does not fit the width is refused.
        good: index of the output that means "this step is right".
    """

    prefix: str = "score"
    num_outputs: int
    activation: Activation
    good: int = 0

    def __post_init__(self) -> None:
        _check_choice("format.head.activation", self.activation, Activation)
        if self.num_outputs != _WIDTHS[self.activation]:
            raise ConfigurationError(
                f"format.head.activation={self.activation!r} needs format.head.num_outputs="
                f"{_WIDTHS[self.activation]}, not {self.num_outputs!r}: use sigmoid for one output "
                "and softmax for two"
            )
        if self.good not in range(self.num_outputs):
            raise ConfigurationError(
                f"format.head.good={self.good!r} must be the index of one of the "
                f"{self.num_outputs} outputs of the head, counted from 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFormat:
    """How question and steps become token ids, and where and how a score is read.

    The input is the prompt's ids, then for every step the ids of its cleaned text, encoded alone,
    and the ids of the mark. Marks are placed as ids, so no text can add, merge or hide one.

    Attributes:
        name: names the format in provenance and messages.
        prompt: `chat` renders the question as a user turn followed by the generation prompt;
            `plain` is the tokenizer's beginning-of-sequence id, if it has one, and the question.
        system: the system turn of a chat prompt; None means no system turn at all, an empty one
            whatever the template does by itself.
        template: chat template to use instead of the tokenizer's own.
        joiner: text between the question and the first step of a plain prompt, encoded together
            with the question.
        strip: which whitespace of a step is removed before it is encoded: at its `end` (the
            policy's separator) or at `both` ends.
        mark: text of the step mark, encoded once.
        mark_ids: the ids that the mark must have; None takes whatever the tokenizer gives.
        score_at: the score is read on the last id of the `mark`, or on the id `before_mark`.
        head: the scoring head.
        aggregation: how a chain's step scores become one number.
        threshold: a step below it counts as wrong; None when no value was tuned.
        reserved: strings that must not stand in a question or step; a chain with one is malformed.
        max_length: longest input in tokens; None means the context of the model.
    """

    name: str
    prompt: Literal["chat", "plain"]
    system: str | None = None
    template: str | None = None
    joiner: str = ""
    strip: Literal["end", "both"] = "end"
    mark: str
    mark_ids: tuple[int, ...] | None = None
    score_at: Literal["mark", "before_mark"] = "mark"
    head: HeadFormat
    aggregation: Aggregation = "last"
    threshold: float | None = None
    reserved: tuple[str, ...] = ()
    max_length: int | None = None

    def __post_init__(self) -> None:
        _check_choice("format.prompt", self.prompt, Literal["chat", "plain"])
        _check_choice("format.strip", self.strip, Literal["end", "both"])
        _check_choice("format.score_at", self.score_at, Literal["mark", "before_mark"])
        _check_choice("format.aggregation", self.aggregation, Aggregation)
        if not self.mark:
            raise ConfigurationError("format.mark is empty; give the text that ends a step")
        if self.prompt == "chat" and self.joiner:
            raise ConfigurationError("format.joiner belongs to prompt=plain; remove it")
        if self.prompt == "plain" and (self.system is not None or self.template is not None):
            raise ConfigurationError("format.system and format.template need prompt=chat")
        if "" in self.reserved:
            raise ConfigurationError("format.reserved holds an empty string, which is everywhere")
        if self.max_length is not None and self.max_length < 1:
            raise ConfigurationError(f"format.max_length={self.max_length} must be at least 1")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> StepFormat:
        """Build a format from a configuration mapping, `head` being a nested one.

        Raises:
            ConfigurationError: a key is unknown or missing, or a value does not fit.
        """
        values = _known(cls, "format", mapping)
        head = values["head"]
        if isinstance(head, Mapping):
            values["head"] = HeadFormat(**_known(HeadFormat, "format.head", head))
        elif not isinstance(head, HeadFormat):
            raise ConfigurationError(f"format.head={head!r} must be a mapping")
        if values.get("mark_ids") is not None:
            values["mark_ids"] = tuple(int(i) for i in values["mark_ids"])
        values["reserved"] = tuple(values.get("reserved") or ())
        return cls(**values)

    def clean(self, step: str) -> str:
        """The text of a step that is encoded."""
        return step.rstrip() if self.strip == "end" else step.strip()


def _check_choice(name: str, value: object, choices: Any) -> None:
    if value not in get_args(choices):
        raise ConfigurationError(f"{name}={value!r} must be one of {', '.join(get_args(choices))}")


def _known(
    cls: type[StepFormat | HeadFormat], where: str, mapping: Mapping[str, Any]
) -> dict[str, Any]:
    names = [f.name for f in fields(cls)]
    for key in mapping:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, n=3)
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            raise ConfigurationError(f"{where}.{key} is unknown; {hint}known: {', '.join(names)}")
    required = (
        {"name", "prompt", "mark", "head"} if cls is StepFormat else {"num_outputs", "activation"}
    )
    missing = sorted(required - set(mapping))
    if missing:
        raise ConfigurationError(f"{where}.{missing[0]} is missing; set it")
    return dict(mapping)
