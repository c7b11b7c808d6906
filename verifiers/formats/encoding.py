"""From chains of text to token ids and the positions where scores are read."""

from __future__ import annotations

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


class Turn(NamedTuple):
    """Ids of a template around the text of a step that has a turn of its own.

    Attributes:
        opening: before the text of every step but the first.
        closing: between the text and the mark.
    """

    opening: tuple[int, ...] = ()
    closing: tuple[int, ...] = ()


class ChainEncoder:
    """Encodes chains in one format; question and steps are encoded once and remembered.

    A chain grows by whole steps and a step's ids depend on its own text only, so nothing of a chain
    is ever encoded again when it grows. Safe to call from several threads.

    Args:
        format: the format.
        encode_prompt: ids of all that stands before the first step.
        encode_text: ids of plain text, without special tokens, whatever the text looks like.
        encode_mark: ids of the mark, which may be a special token; None encodes it as text.
        turn: ids of the template around a step.

    Raises:
        VerifierError: the tokenizer does not encode the mark as the format says.
    """

    def __init__(
        self,
        format: StepFormat,
        encode_prompt: Callable[[str], list[int]],
        encode_text: Callable[[str], list[int]],
        encode_mark: Callable[[str], list[int]] | None = None,
        turn: Turn | None = None,
    ) -> None:
        self.format = format
        self.mark = _checked_mark(format, (encode_mark or encode_text)(format.mark))
        self._turn = turn or Turn()
        self._encode_prompt = encode_prompt
        self._encode_text = encode_text
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
            # Where steps have no label, only the first differs from the others.
            step = self._step(text, number if self.format.label else min(number, 2))
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
        failure = check_text(question, self.format.reserved)
        if failure:
            return ScoreFailure(failure.kind, f"question: {failure.message}")
        return tuple(self._encode_prompt(question))

    def _encode_step(self, text: str, number: int) -> tuple[int, ...] | ScoreFailure:
        failure = check_text(text, self.format.reserved)
        if failure:
            return failure
        whole = self._lead(number) + self.format.labelled(text, number)
        # Templates trim the content of a turn.
        ids = self._encode_text(whole.rstrip() if self.format.prompt == "turns" else whole)
        opening = self._turn.opening if number > 1 else ()
        return (*opening, *ids, *self._turn.closing, *self.mark)

    def _lead(self, number: int) -> str:
        if number > 1:
            return self.format.separator
        # A question that is tokenised alone takes the joiner with it.
        return self.format.joiner if self.format.joined or self.format.prompt == "turns" else ""


def check_text(text: str, reserved: tuple[str, ...]) -> ScoreFailure | None:
    """Why a text cannot be encoded; None when it can."""
    for string in reserved:
        if string in text:
            return ScoreFailure("malformed", f"holds the reserved string {string!r}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return ScoreFailure("malformed", f"is not valid Unicode: {error}")
    return None


def _checked_mark(format: StepFormat, ids: list[int]) -> tuple[int, ...]:
    mark = tuple(ids)
    if format.mark_ids is None:
        if len(mark) == 1:
            return mark
        raise VerifierError(
            f"format.mark={format.mark!r} of format {format.name!r} is encoded as {list(mark)}, not"
            " as one id: give a mark that is one token, or, where the model was trained with all of"
            f" these ids, set format.mark_ids={list(mark)}"
        )
    if not mark or mark != format.mark_ids:
        raise VerifierError(
            f"format.mark={format.mark!r} of format {format.name!r} is encoded as {list(mark)}, "
            f"expected {list(format.mark_ids)}: the tokenizer is not the one that the format was"
            " written for; give the model's own tokenizer, or another format"
        )
    return mark
