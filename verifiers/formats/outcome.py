"""How an outcome reward model is fed and read: one score for a whole solution; data, no model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from stepsearch.search.contracts import ScoreFailure, VerifierSpec
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.parameters import check_choice, check_separator, known_values
from stepsearch.search.tree import Chain
from stepsearch.verifiers.formats.encoding import EncodedChain, check_text
from stepsearch.verifiers.formats.readout import HeadFormat, TokensFormat, read_readout

Ask = Literal["answer", "judge", "plain"]
_MAX_CHAINS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeFormat:
    """How question and solution become token ids, and what is read at the last of them.

    The text of a chain is rendered and tokenised as a whole, as the published code does. The id
    that is read follows the solution, so the score of a chain is its own: it is not a step of a
    longer chain's, and only what two inputs share as a prefix is reused.

    Attributes:
        name: names the format in provenance and messages.
        ask: `answer` renders the question as a user turn and the solution as the assistant's,
            closed as the template closes it; `judge` puts both into one user turn, see `judge`, and
            reads what the model would answer; `plain` joins them without a template.
        system: the system turn; None means none at all, an empty one whatever the template does by
            itself.
        template: chat template to use instead of the tokenizer's own.
        template_hash: the hash that the template must have; None takes any.
        judge: text of the user turn with `ask=judge`; holds {question} and {solution} once each.
        joiner: text between question and solution with `ask=plain`.
        head: the scoring head, or two tokens of the language model.
        threshold: a solution below it counts as wrong; None when no value was tuned.
        threshold_from: what the threshold was tuned on.
        max_length: longest input in tokens; None means the context of the model.
    """

    name: str
    ask: Ask = "answer"
    system: str | None = None
    template: str | None = None
    template_hash: str | None = None
    judge: str = ""
    joiner: str = ""
    head: HeadFormat | TokensFormat
    threshold: float | None = None
    threshold_from: str | None = None
    max_length: int | None = None

    def __post_init__(self) -> None:
        check_choice("format.ask", self.ask, Ask)
        parts = [self.judge.count(part) for part in ("{question}", "{solution}")]
        if self.ask == "judge" and parts != [1, 1]:
            raise ConfigurationError(
                f"format.judge={self.judge!r} must hold {{question}} and {{solution}} once each"
            )
        if self.ask != "judge" and self.judge:
            raise ConfigurationError("format.judge needs ask=judge; remove it")
        if self.ask != "plain" and self.joiner:
            raise ConfigurationError("format.joiner needs ask=plain; remove it")
        if self.ask == "plain" and (self.system or self.template or self.template_hash):
            raise ConfigurationError(
                "format.system, format.template and format.template_hash need a template:"
                " ask=answer or ask=judge"
            )
        check_separator("format.joiner", self.joiner, may_be_empty=True)
        if self.max_length is not None and self.max_length < 1:
            raise ConfigurationError(f"format.max_length={self.max_length} must be at least 1")

    @classmethod
    def from_mapping(cls, mapping: OutcomeFormat | Mapping[str, Any]) -> OutcomeFormat:
        """A format from a configuration mapping, `head` being a nested one; a format stays one.

        Raises:
            ConfigurationError: a key is unknown or missing, or a value does not fit.
        """
        if isinstance(mapping, OutcomeFormat):
            return mapping
        values = known_values(cls, "format", mapping)
        values["head"] = read_readout("format.head", values["head"])
        return cls(**values)

    def declare(self, name: str) -> VerifierSpec:
        """What the scores mean, told by the format alone."""
        return VerifierSpec(
            name=name, kind="outcome", range=self.head.range, threshold=self.threshold
        )

    def request(self, question: str, solution: str) -> str:
        """The user turn of `ask=judge`."""
        before, _, after = self.judge.partition("{question}")
        if "{solution}" in before:
            start, _, middle = before.partition("{solution}")
            return f"{start}{solution}{middle}{question}{after}"
        middle, _, end = after.partition("{solution}")
        return f"{before}{question}{middle}{solution}{end}"


class SolutionEncoder:
    """Encodes whole chains, read at their last id; those met before are remembered.

    Safe to call from several threads.

    Args:
        encode: ids of a question and its solution, plain text whatever they look like.
    """

    def __init__(self, encode: Callable[[str, str], list[int]]) -> None:
        self._encode = encode
        self._ids = lru_cache(_MAX_CHAINS)(self._encode_texts)

    def __call__(self, chain: Chain) -> EncodedChain | ScoreFailure:
        """Encode a chain: nothing of a longer or shorter one's input counts as known."""
        ids = self._ids(chain.question, "".join(chain.texts).rstrip())
        if isinstance(ids, ScoreFailure):
            return ids
        return EncodedChain(ids, [len(ids) - 1] if chain.num_new else [], 0)

    def _encode_texts(self, question: str, solution: str) -> list[int] | ScoreFailure:
        failure = check_text(question, ()) or check_text(solution, ())
        if failure:
            return failure
        return self._encode(question, solution)
