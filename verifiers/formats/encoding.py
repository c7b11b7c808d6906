"""From chains of text to token ids and the positions where scores are read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from stepsearch.search.contracts import ScoreFailure
from stepsearch.search.errors import VerifierError
from stepsearch.search.tree import Chain
from stepsearch.verifiers.formats.spec import StepFormat

_MAX_QUESTIONS = 4096
_MAX_STEPS = 1 << 15


class EncodedChain(NamedTuple):
    """What the model reads for one chain.

    Attributes:
        ids: prompt and steps, up to the last position where a score is read.
        positions: where the scores of the newest steps are read, one a step, increasing.
        num_known: leading ids that are the prompt, or that scoring the steps before the newest
            ones needs already.
    """

    ids: list[int]
    positions: list[int]
    num_known: int


class ChainEncoder:
    """Encodes chains in one format; question and steps are encoded once and remembered.

    A chain grows by whole steps and every step is encoded alone, so nothing of a chain is ever
    encoded again when it grows. Safe to call from several threads.

    Args:
        format: the format.
        encode_prompt: ids of the prompt for a question.
        encode_text: ids of plain text, without special tokens, whatever the text looks like.

    Raises:
        VerifierError: the tokenizer does not encode the mark as the format says.
    """

    def __init__(
        self,
        format: StepFormat,
        encode_prompt: Callable[[str], list[int]],
        encode_text: Callable[[str], list[int]],
    ) -> None:
        self.format = format
        self.mark = _encode_mark(format, encode_text)
        self._encode_prompt = encode_prompt
        self._encode_text = encode_text
        # A fast tokenizer holds state that a call may change, so calls must not overlap.
        self._lock = threading.Lock()
        self._prompt = lru_cache(_MAX_QUESTIONS)(self._encode_question)
        self._step = lru_cache(_MAX_STEPS)(self._encode_step)

    def __call__(self, chain: Chain) -> EncodedChain | ScoreFailure:
        """Encode a chain and place the score positions of its `chain.num_new` newest steps."""
        prompt = self._prompt(chain.question)
        if isinstance(prompt, ScoreFailure):
            return prompt
        ids = list(prompt)
        ends = [len(ids)]
        for number, text in enumerate(chain.texts, start=1):
            step = self._step(text)
            if isinstance(step, ScoreFailure):
                return ScoreFailure(step.kind, f"step {number}: {step.message}")
            ids += step
            at = len(ids) if self.format.score_at == "mark" else len(ids) - len(self.mark)
            ends.append(at)
        num_new = chain.num_new
        positions = [end - 1 for end in ends[len(ends) - num_new :]]
        assert len(positions) == num_new, "every step has exactly one score position"
        return EncodedChain(ids[: ends[-1]], positions, ends[len(ends) - 1 - num_new])

    def _encode_question(self, question: str) -> tuple[int, ...] | ScoreFailure:
        failure = self._check(question)
        if failure:
            return ScoreFailure(failure.kind, f"question: {failure.message}")
        with self._lock:
            return tuple(self._encode_prompt(question))

    def _encode_step(self, text: str) -> tuple[int, ...] | ScoreFailure:
        failure = self._check(text)
        if failure:
            return failure
        with self._lock:
            return (*self._encode_text(self.format.clean(text)), *self.mark)

    def _check(self, text: str) -> ScoreFailure | None:
        for reserved in self.format.reserved:
            if reserved in text:
                return ScoreFailure("malformed", f"holds the reserved string {reserved!r}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return ScoreFailure("malformed", f"is not valid Unicode: {error}")
        return None


def _encode_mark(format: StepFormat, encode_text: Callable[[str], list[int]]) -> tuple[int, ...]:
    mark = tuple(encode_text(format.mark))
    if not mark or (format.mark_ids is not None and mark != format.mark_ids):
        expected = "at least one id" if format.mark_ids is None else list(format.mark_ids)
        raise VerifierError(
            f"format.mark={format.mark!r} of format {format.name!r} is encoded as {list(mark)}, "
            f"expected {expected}: the tokenizer is not the one that the format was written for"
        )
    return mark
