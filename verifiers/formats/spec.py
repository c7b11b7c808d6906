"""How a family of token-level process reward models is fed and read: data, no model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stepsearch.search.contracts import Aggregation, VerifierSpec
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.parameters import check_choice, check_separator, known_values
from stepsearch.verifiers.formats.readout import HeadFormat, TokensFormat, read_readout

Prompt = Literal["chat", "turns", "plain"]
Bos = Literal["automatic", "if_any", "required"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFormat:
    r"""How question and steps become token ids, and where and how a score is read.

    The input is the prompt's ids, then for every step the ids of its text and the ids of the mark.
    Marks are placed as ids, so no text can add, merge or hide one.

    Attributes:
        name: names the format in provenance and messages.
        prompt: `chat` renders the question as a user turn followed by the generation prompt;
            `turns` gives every step a user turn of its own, the first one behind the question, and
            the mark is the assistant's answer to each; `plain` is the question without a template.
        system: the system turn of a template; None means no system turn at all, an empty one
            whatever the template does by itself.
        template: chat template to use instead of the tokenizer's own.
        template_hash: the hash that the template must have, as `check-verifier` prints it; None
            takes any.
        bos: what begins a plain prompt: what the tokenizer adds by itself (`automatic`), its
            beginning-of-sequence id `if_any`, or the same id `required`.
        joiner: text between the question and the first step.
        separator: text between a mark and the next step.
        label: put before a step that lacks it, such as `"Step {number}: "`.
        strip: which whitespace of a step is removed before it is encoded: at its `end` (the
            policy's separator) or at `both` ends.
        newlines: a newline inside a step is kept (`keep`) or becomes a `space`, for formats whose
            mark is a newline.
        joined: the published code tokenises the text as a whole, so a step gets the ids that it has
            inside a text. False: every step is tokenised alone, and the joiner with the question.
            They differ for tokenizers that put a space before a text.
        mark: text of the step mark, encoded once.
        mark_ids: the ids that the mark must have; None takes the one id the tokenizer gives.
        score_at: the score is read on the last id of the `mark`, or on the id `before_mark`.
        head: the scoring head, or two tokens of the language model.
        aggregation: how a chain's step scores become one number.
        threshold: a step below it counts as wrong; None when no value was tuned.
        threshold_from: what the threshold was tuned on.
        reserved: strings that must not stand in a question or step; a chain with one is malformed.
        max_length: longest input in tokens; None means the context of the model.
    """

    name: str
    prompt: Prompt
    system: str | None = None
    template: str | None = None
    template_hash: str | None = None
    bos: Bos = "if_any"
    joiner: str = ""
    separator: str = ""
    label: str = ""
    strip: Literal["end", "both"] = "end"
    newlines: Literal["keep", "space"] = "keep"
    joined: bool = False
    mark: str
    mark_ids: tuple[int, ...] | None = None
    score_at: Literal["mark", "before_mark"] = "mark"
    head: HeadFormat | TokensFormat
    aggregation: Aggregation = "last"
    threshold: float | None = None
    threshold_from: str | None = None
    reserved: tuple[str, ...] = ()
    max_length: int | None = None

    def __post_init__(self) -> None:
        check_choice("format.prompt", self.prompt, Prompt)
        check_choice("format.bos", self.bos, Bos)
        check_choice("format.strip", self.strip, Literal["end", "both"])
        check_choice("format.newlines", self.newlines, Literal["keep", "space"])
        check_choice("format.score_at", self.score_at, Literal["mark", "before_mark"])
        check_choice("format.aggregation", self.aggregation, Aggregation)
        for name in ("joiner", "separator", "mark"):
            check_separator(f"format.{name}", getattr(self, name), may_be_empty=True)
        if not self.mark:
            raise ConfigurationError("format.mark is empty; give the text that ends a step")
        if self.label and self.label.count("{number}") != 1:
            raise ConfigurationError(
                f"format.label={self.label!r} must hold {{number}} once, as in 'Step {{number}}: '"
            )
        if "" in self.reserved:
            raise ConfigurationError("format.reserved holds an empty string, which is everywhere")
        if self.max_length is not None and self.max_length < 1:
            raise ConfigurationError(f"format.max_length={self.max_length} must be at least 1")
        self._check_prompt()

    def _check_prompt(self) -> None:
        if self.prompt == "chat" and self.joiner:
            raise ConfigurationError("format.joiner needs prompt=plain or prompt=turns; remove it")
        templated = (self.system, self.template, self.template_hash)
        if self.prompt == "plain" and templated != (None, None, None):
            raise ConfigurationError(
                "format.system, format.template and format.template_hash need a template:"
                " prompt=chat or prompt=turns"
            )
        if self.prompt == "turns" and self.score_at != "before_mark":
            raise ConfigurationError(
                "format.score_at must be before_mark with prompt=turns: the id before the answer"
                " predicts it, the answer itself is always the good one"
            )

    @classmethod
    def from_mapping(cls, mapping: StepFormat | Mapping[str, Any]) -> StepFormat:
        """A format from a configuration mapping, `head` being a nested one; a format stays one.

        Raises:
            ConfigurationError: a key is unknown or missing, or a value does not fit.
        """
        if isinstance(mapping, StepFormat):
            return mapping
        values = known_values(cls, "format", mapping)
        values["head"] = read_readout("format.head", values["head"])
        if values.get("mark_ids") is not None:
            values["mark_ids"] = tuple(int(i) for i in values["mark_ids"])
        values["reserved"] = tuple(values.get("reserved") or ())
        return cls(**values)

    def declare(self, name: str) -> VerifierSpec:
        """What the scores mean, told by the format alone."""
        return VerifierSpec(
            name=name,
            range=self.head.range,
            aggregation=self.aggregation,
            threshold=self.threshold,
            reserved=self.reserved,
        )

    def clean(self, step: str) -> str:
        """The text of a step that is encoded, without a label."""
        text = step.rstrip() if self.strip == "end" else step.strip()
        return re.sub(r"\s*\n\s*", " ", text) if self.newlines == "space" else text

    def labelled(self, step: str, number: int) -> str:
        """The cleaned text of the `number`-th step, with its label."""
        return with_label(self.clean(step), self.label, number).rstrip()


def with_label(text: str, label: str, number: int) -> str:
    """The text behind its label, unless it begins with a label of whatever number."""
    if not label:
        return text
    pattern = re.escape(label.rstrip()).replace(re.escape("{number}"), r"\d+")
    return text if re.match(pattern, text) else label.replace("{number}", str(number)) + text
