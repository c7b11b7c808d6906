"""From a stream of tokens to text and steps: incremental decoding and the cutting of steps.

One piece of code cuts steps, whether one step is asked for or all of them.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from stepsearch.policies.sampling import Token
from stepsearch.search.contracts import SamplingParams
from stepsearch.search.types import Step, Stop

Decode = Callable[[Sequence[int]], str]

_INCOMPLETE = "\ufffd"
_MARKS = re.compile(r"\\begin\{|\\end\{|```|\\\\|\\\[|\\\]")
_LONGEST_PERIOD = 128
_SHORTEST_LOOP = 16
_SHORTEST_MATCH = _SHORTEST_LOOP // 2
_ID_BYTES = 4
_LONGEST_CHARACTER = 4


class IncrementalDecoder:
    """Text of a growing token sequence.

    Only a short tail is decoded again for each token. Joining what was given out and the last
    `flush` gives `decode(all ids)`, for every tokenizer whose decoding of a sequence begins with
    its decoding of a prefix, incomplete characters and a leading space aside.

    Args:
        decode: ids to text, special tokens kept, no clean-up of spaces.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._tail: list[int] = []
        self._clean = 0
        self._whole = 0
        self._given = 0

    def push(self, token_id: int) -> str:
        """The text that became certain with a token; a character cut in half waits for its rest."""
        return self._take((token_id,), self._decode([*self._tail, token_id]))

    def extend(self, token_ids: Sequence[int]) -> str:
        """What pushing tokens one after the other gives together, for the price of four decodes."""
        if not token_ids:
            return ""
        head = token_ids[:-1]
        text = self._decode([*self._tail, *head])
        if text.endswith(_INCOMPLETE):
            # A decoder of single bytes gives marks for all of them when the last are incomplete.
            head = token_ids[:-_LONGEST_CHARACTER]
            text = self._decode([*self._tail, *head])
        new = self._take(head, text) if head else ""
        return new + "".join(map(self.push, token_ids[len(head) :]))

    def _take(self, token_ids: Sequence[int], text: str) -> str:
        """Take in tokens, given the text of the tail and them; returns what became certain."""
        self._tail += token_ids
        certain = text.rstrip(_INCOMPLETE)
        new = certain[self._given :]
        self._given = max(self._given, len(certain))
        if certain == text:
            # Keep one complete stretch before the next tokens: what a token is decoded to may
            # depend on whether it is the first.
            self._tail = self._tail[self._clean :]
            self._clean = len(self._tail)
            self._given = self._whole = len(self._decode(self._tail))
        return new

    def flush(self) -> str:
        """What is left when no token follows: incomplete characters as replacement marks."""
        rest = self._decode(self._tail[self._clean :])[self._given - self._whole :]
        self._given += len(rest)
        return rest

    def copy(self) -> IncrementalDecoder:
        """An independent decoder in the same state."""
        twin = IncrementalDecoder(self._decode)
        twin._tail, twin._clean = list(self._tail), self._clean
        twin._whole, twin._given = self._whole, self._given
        return twin


def is_open(text: str) -> bool:
    r"""Whether text ends inside a LaTeX environment, a code fence or a `\[ ... \]`."""
    environments = brackets = 0
    fenced = False
    for mark in _MARKS.findall(text):
        if mark == "```":
            fenced = not fenced
        elif mark == r"\begin{":
            environments += 1
        elif mark == r"\end{":
            environments = max(0, environments - 1)
        elif mark == r"\[":
            brackets = 1
        elif mark == r"\]":
            brackets = 0
    return fenced or environments > 0 or brackets > 0


class LoopDetector:
    """Notices that a sequence ends in the same run of tokens, over and over.

    A run of p tokens, 1 to 128, counts when it was written `max_repeats` times and fills 16 tokens,
    so that the zeros of a number are no loop.

    Args:
        max_repeats: how often makes a loop, at least 2; 0 never notices.
    """

    def __init__(self, max_repeats: int) -> None:
        if max_repeats < 0 or max_repeats == 1:
            raise ValueError(f"max_repeats={max_repeats} must be 0 (never) or at least 2")
        self._max_repeats = max_repeats
        self._line = b""

    def push(self, token_id: int) -> bool:
        """Whether the sequence now ends in a loop."""
        return self.find((token_id,)) is not None

    def find(self, token_ids: Sequence[int]) -> int | None:
        """What pushing tokens one after the other gives: which of them first ends in a loop."""
        if not self._max_repeats or not token_ids:
            return None
        line = self._line + array("i", token_ids).tobytes()
        self._line = line[-_ID_BYTES * _LONGEST_PERIOD * self._max_repeats :]
        first = len(line) - len(token_ids) * _ID_BYTES
        for place in range(len(token_ids)):
            if self._ends_in_loop(line, first + (place + 1) * _ID_BYTES):
                return place
        return None

    def _ends_in_loop(self, line: bytes, end: int) -> bool:
        """Whether the tokens up to a byte end in a loop: then the last 8 were written before.

        Where they were says how long the run must be; most tokens follow no such run and cost one
        search for bytes.
        """
        start = end - _SHORTEST_MATCH * _ID_BYTES
        if start < 0:
            return False
        last = line[start:end]
        lowest = max(0, start - _LONGEST_PERIOD * _ID_BYTES)
        found = line.rfind(last, lowest, end - 1)
        while found >= 0:
            period, shift = divmod(start - found, _ID_BYTES)
            if not shift and self._repeats(line[:end], period):
                return True
            found = line.rfind(last, lowest, found + len(last) - 1)
        return False

    def _repeats(self, line: bytes, period: int) -> bool:
        """Whether a sequence ends in enough repeats of a run of so many tokens."""
        enough = max(period * (self._max_repeats - 1), _SHORTEST_LOOP - period)
        before = line[-_ID_BYTES * (enough + period) : -_ID_BYTES * period]
        return len(before) == enough * _ID_BYTES and line.endswith(before)

    def copy(self) -> LoopDetector:
        """An independent detector in the same state."""
        twin = LoopDetector(self._max_repeats)
        twin._line = self._line
        return twin


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRules:
    """Where steps and chains end.

    Attributes:
        separator: ends a step.
        final_prefix: a step that begins with it is the last; None if steps do not tell.
        eos_ids: tokens that end a chain.
    """

    separator: str
    final_prefix: str | None
    eos_ids: Collection[int]


class ChainReader:
    """What cutting must know of the tokens that stand before a continuation.

    Args:
        decode: see `IncrementalDecoder`.
        max_repeats: see `SamplingParams`.
    """

    def __init__(self, decode: Decode, max_repeats: int) -> None:
        self._decode, self._max_repeats = decode, max_repeats
        self.decoder = IncrementalDecoder(decode)
        self.loops = LoopDetector(max_repeats)
        self.last_texts: tuple[str, ...] = ()

    def read(self, token_ids: Sequence[int], texts: Sequence[str]) -> ChainReader:
        """Take in a chain of steps; returns itself."""
        self.decoder.extend(token_ids)
        self.loops.find(token_ids)
        self.last_texts = tuple(texts)
        return self

    def copy(self) -> ChainReader:
        """An independent reader in the same state."""
        twin = ChainReader(self._decode, self._max_repeats)
        twin.decoder, twin.loops = self.decoder.copy(), self.loops.copy()
        twin.last_texts = self.last_texts
        return twin


class StepCutter:
    """Cuts the tokens of one continuation into steps and says when it ends.

    A step ends after the token that completes the separator; what that token carries beyond it
    stays in the step. A step needs visible text, and a separator inside something open does not
    end it.

    Args:
        reader: the state before the continuation; taken over.
        rules: where steps and chains end.
        params: limits.
        room: tokens that fit the context.

    Attributes:
        steps: finished steps.
    """

    def __init__(
        self, reader: ChainReader, rules: StepRules, params: SamplingParams, room: int
    ) -> None:
        self.steps: list[Step] = []
        self._reader = reader
        self._rules = rules
        self._params = params
        self._room = room
        self._num_tokens = 0
        self._begin_step()

    def _begin_step(self) -> None:
        self._ids: list[int] = []
        self._logprob = 0.0
        self._text = ""
        self._searched = 0

    def push(self, token: Token) -> bool:
        """Take in a sampled token; returns whether to go on."""
        self._num_tokens += 1
        self._ids.append(token.id)
        self._logprob += token.logprob
        stop = self._stop(token.id)
        return stop is None or self._end(stop)

    def _end(self, stop: Stop) -> bool:
        """End the step; returns whether another one follows."""
        if stop != "step":
            self._text += self._reader.decoder.flush()
        self._finish(stop)
        return (
            stop == "step"
            and self._params.until == "end"
            and len(self.steps) < self._params.max_steps
            and self._num_tokens < min(self._params.max_tokens, self._room)
        )

    def close(self) -> None:
        """The tokens came to the model's own end without an end token among them."""
        if self._ids or not self.steps:
            self._text += self._reader.decoder.flush()
            self._finish("eos")
        else:
            self.steps[-1] = replace(self.steps[-1], stop="eos")

    def _finish(self, stop: Stop) -> None:
        reader, text = self._reader, self._text
        if stop == "step":
            reader.last_texts = (*reader.last_texts, text)
        logprob = None if math.isnan(self._logprob) else self._logprob
        step = Step(text=text, token_ids=tuple(self._ids), stop=stop, logprob=logprob)
        self.steps.append(step)
        self._begin_step()

    def _stop(self, token_id: int) -> Stop | None:
        if token_id in self._rules.eos_ids:
            return "eos"
        self._text += self._reader.decoder.push(token_id)
        return self._stop_after(self._reader.loops.push(token_id))

    def _stop_after(self, loops: bool) -> Stop | None:
        if self._is_complete():
            if self._is_final():
                return "eos"
            return "loop" if loops or self._repeats_steps() else "step"
        if loops:
            return "loop"
        if len(self._ids) >= self._params.max_step_tokens:
            return "length"
        if self._num_tokens >= self._params.max_tokens:
            return "budget"
        return "context" if self._num_tokens >= self._room else None

    def _is_complete(self) -> bool:
        """Whether a separator has closed the step."""
        separator = self._rules.separator
        while (found := self._text.find(separator, self._searched)) >= 0:
            end = found + len(separator)
            if self._text[:found].strip() and not is_open(self._text[:end]):
                return True
            self._searched = end
        self._searched = max(self._searched, len(self._text) - len(separator) + 1)
        return False

    def _is_final(self) -> bool:
        prefix = self._rules.final_prefix
        return prefix is not None and self._text.lstrip().startswith(prefix)

    def _repeats_steps(self) -> bool:
        """Whether the last steps, the current one included, all say the same."""
        before = self._params.max_repeats - 1
        last = (
            self._reader.last_texts[len(self._reader.last_texts) - before :] if before > 0 else ()
        )
        return before > 0 and len(last) == before and all(t == self._text for t in last)
