"""How implicit process reward models are fed: two language models, no head; data, no model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from stepsearch.search.contracts import Aggregation, ScoreFailure, VerifierSpec
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.parameters import check_choice, check_separator, known_values
from stepsearch.search.tree import Chain
from stepsearch.verifiers.formats.encoding import check_text
from stepsearch.verifiers.formats.spec import with_label

_MAX_QUESTIONS = 4096
_MAX_STEPS = 1 << 15
_BEYOND = 1
"""The published code reads a step's sum one token beyond the one that follows its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImplicitFormat:
    """A chat whose answer is the steps; a token's reward is `beta * (logp - logp of reference)`.

    The score of a step is the sum of the rewards from the first token of the answer on, up to the
    token where the published code reads it: the second one behind the step's text, which is the
    separator or belongs to the next step's label, and for the last step of a finished chain the
    end of the turn.

    Attributes:
        name: names the format in provenance and messages.
        system: the system turn; None means none at all, an empty one whatever the template does by
            itself.
        template: chat template to use instead of the tokenizer's own.
        template_hash: the hash that the template must have; None takes any.
        label: put before a step that lacks it.
        separator: between steps.
        beta: factor of the log-ratio.
        aggregation: how a chain's step scores become one number.
        threshold: a step below it counts as wrong; None when no value was tuned.
        threshold_from: what the threshold was tuned on.
        max_length: longest input in tokens; None means the context of the models.
    """

    name: str
    system: str | None = None
    template: str | None = None
    template_hash: str | None = None
    label: str = "Step {number}: "
    separator: str = "\n\n"
    beta: float
    aggregation: Aggregation = "min"
    threshold: float | None = None
    threshold_from: str | None = None
    max_length: int | None = None

    def __post_init__(self) -> None:
        check_choice("format.aggregation", self.aggregation, Aggregation)
        if self.label.count("{number}") != 1:
            raise ConfigurationError(
                f"format.label={self.label!r} must hold {{number}} once, as in 'Step {{number}}: '"
            )
        check_separator("format.separator", self.separator, may_be_empty=True)
        if not self.beta > 0:
            raise ConfigurationError(f"format.beta={self.beta} must be positive")
        if self.max_length is not None and self.max_length < 1:
            raise ConfigurationError(f"format.max_length={self.max_length} must be at least 1")

    @classmethod
    def from_mapping(cls, mapping: ImplicitFormat | Mapping[str, Any]) -> ImplicitFormat:
        """A format from a configuration mapping; a format stays one.

        Raises:
            ConfigurationError: a key is unknown or missing, or a value does not fit.
        """
        if isinstance(mapping, ImplicitFormat):
            return mapping
        return cls(**known_values(cls, "format", mapping))

    def declare(self, name: str) -> VerifierSpec:
        """What the scores mean, told by the format alone."""
        return VerifierSpec(
            name=name, range="unbounded", aggregation=self.aggregation, threshold=self.threshold
        )


class EncodedAnswer(NamedTuple):
    """What the models read for one chain.

    Attributes:
        ids: prompt and steps, up to the last token whose reward counts.
        num_prompt: ids of the prompt; rewards count from there on.
        ends: for every step and, before them, the prompt: how many ids its score needs.
        breaks: for every step and, before them, the prompt: how many ids end with its separator.
    """

    ids: list[int]
    num_prompt: int
    ends: list[int]
    breaks: list[int]


class AnswerEncoder:
    """Encodes chains; question and steps are encoded once and remembered.

    Args:
        format: the format.
        encode_prompt: ids of the prompt for a question.
        encode_text: ids of plain text.
        end_of_turn: what the template writes behind an answer.
    """

    def __init__(
        self,
        format: ImplicitFormat,
        encode_prompt: Callable[[str], list[int]],
        encode_text: Callable[[str], list[int]],
        end_of_turn: tuple[int, ...],
    ) -> None:
        self.format = format
        self._end_of_turn = end_of_turn
        self._encode_prompt = encode_prompt
        self._encode_text = encode_text
        self._prompt = lru_cache(_MAX_QUESTIONS)(self._encode_question)
        self._text = lru_cache(_MAX_STEPS)(self._encode_plain)

    def __call__(self, chain: Chain) -> EncodedAnswer | ScoreFailure:
        """Encode a chain and say where its steps are scored."""
        failure = check_text(chain.question, ()) or check_text("".join(chain.texts), ())
        if failure:
            return failure
        ids = list(self._prompt(chain.question))
        num_prompt = len(ids)
        ends, breaks = [num_prompt], [num_prompt]
        texts = [
            with_label(text.strip(), self.format.label, number)
            for number, text in enumerate(chain.texts, start=1)
        ]
        is_finished = bool(texts) and chain.steps[-1].stop != "step"
        for text in texts:
            ends.append(len(ids) + len(self._text(text)) + 1 + _BEYOND)
            ids += self._text(text + self.format.separator)
            breaks.append(len(ids))
        if is_finished:
            del ids[breaks[-2] :]
            ids += [*self._text(texts[-1]), *self._end_of_turn[:1]]
            ends[-1] = breaks[-1] = len(ids)
        elif texts:
            # A next step begins with its label, so what is read beyond this one is known already.
            ids += self._text(self.format.label.replace("{number}", str(len(texts) + 1)).rstrip())
            ends[-1] = min(ends[-1], len(ids))
        return EncodedAnswer(ids[: ends[-1]], num_prompt, ends, breaks)

    def _encode_question(self, question: str) -> tuple[int, ...]:
        return tuple(self._encode_prompt(question))

    def _encode_plain(self, text: str) -> tuple[int, ...]:
        return tuple(self._encode_text(text))
