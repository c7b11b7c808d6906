"""Cutting steps out of tokens that arrive many at a time, as backends with many rows deliver them.

The steps are those of `StepCutter`, which looks at every token; here only those tokens are looked
at where something can end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from stepsearch.policies.text import ChainReader, StepCutter, StepRules
from stepsearch.search.contracts import SamplingParams
from stepsearch.search.types import Stop


class Endings(NamedTuple):
    """Tokens at which a step or chain can end.

    Attributes:
        looked_at: [vocabulary] whether a token may end something.
        closing: tokens that hold a separator whole.
        always: a separator always lies within one token, so that no other token closes it.
    """

    looked_at: NDArray[np.bool_]
    closing: tuple[int, ...]
    always: bool


def find_endings(tokenizer: PreTrainedTokenizerBase, rules: StepRules) -> Endings:
    """Go through a vocabulary once.

    A separator of one character is never spread over tokens that decode alone, which is true of a
    line end in every vocabulary with bytes; a space may be hidden by how a token is decoded alone.
    """
    tokens: Any = tokenizer
    size = 1 + max(tokenizer.get_vocab().values())
    texts = tokens.batch_decode([[i] for i in range(size)], clean_up_tokenization_spaces=False)
    separator = rules.separator
    last = separator[-1]
    hidden = last == " " or not last.isascii()
    looked_at = np.fromiter((hidden or last in text for text in texts), np.bool_, size)
    looked_at[[i for i in rules.eos_ids if i < size]] = True
    closing = tuple(i for i, text in enumerate(texts) if separator in text)
    return Endings(looked_at, closing, len(separator) == 1 and not hidden)


class ChunkCutter(StepCutter):
    """A `StepCutter` that is given chunks.

    Args:
        reader: the state before the continuation; taken over.
        rules: where steps and chains end.
        params: limits.
        room: tokens that fit the context.
        endings: of the same rules.

    Attributes:
        num_tokens: tokens taken into steps, finished or not.
        num_surplus: tokens that came behind the end.
    """

    def __init__(
        self,
        reader: ChainReader,
        rules: StepRules,
        params: SamplingParams,
        room: int,
        endings: Endings,
    ) -> None:
        super().__init__(reader, rules, params, room)
        self._endings = endings
        self._looping = False
        self.goes_on = True
        self.num_surplus = 0

    @property
    def num_tokens(self) -> int:
        """Tokens taken into steps, finished or not."""
        return self._num_tokens

    @property
    def allowance(self) -> int:
        """Most tokens that can still be taken before the step or the continuation ends."""
        whole = min(self._params.max_tokens, self._room) - self._num_tokens
        if self._params.until == "step":
            return min(whole, self._params.max_step_tokens - len(self._ids))
        return whole

    def take(self, ids: Sequence[int], logprobs: Sequence[float] | None) -> bool:
        """Take in tokens; returns whether to go on.

        Args:
            ids: the tokens.
            logprobs: of each; None when unknown, and then the steps have none.
        """
        loop = self._reader.loops.find(ids)
        places = self._places(ids, loop)
        start = 0
        while self.goes_on and start < len(ids):
            limit = start + self._until_limit() - 1
            while places and places[0] < start:
                places.pop(0)
            stop = min(limit, places[0] if places else limit, len(ids) - 1)
            self._looping = loop is not None and stop >= loop
            self._take_run(ids[start : stop + 1], logprobs and logprobs[start : stop + 1])
            start = stop + 1
        self.num_surplus += len(ids) - start
        return self.goes_on

    def _places(self, ids: Sequence[int], loop: int | None) -> list[int]:
        row = np.asarray(ids, np.int64)
        known = len(self._endings.looked_at)
        looked_at = self._endings.looked_at[np.minimum(row, known - 1)] & (row < known)
        places: list[int] = looked_at.nonzero()[0].tolist()
        return places if loop is None else sorted({*places, loop})

    def _until_limit(self) -> int:
        """Tokens up to the one at which a limit is reached."""
        whole = min(self._params.max_tokens, self._room) - self._num_tokens
        return max(1, min(whole, self._params.max_step_tokens - len(self._ids)))

    def _take_run(self, ids: Sequence[int], logprobs: Sequence[float] | None) -> None:
        """Take in tokens of which only the last can end something."""
        self._num_tokens += len(ids)
        self._ids += ids
        self._logprob += float("nan") if logprobs is None else sum(logprobs)
        stop = self._stop_of_run(ids)
        if stop is not None:
            self.goes_on = self._end(stop)

    def _stop_of_run(self, ids: Sequence[int]) -> Stop | None:
        if ids[-1] in self._rules.eos_ids:
            self._text += self._reader.decoder.extend(ids[:-1])
            return "eos"
        self._text += self._reader.decoder.extend(ids)
        return self._stop_after(self._looping)
