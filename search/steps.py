"""Steps as columns: what a tree is made of, and what a policy may hand over many steps in."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

from stepsearch.search.types import STOPS, Step, Stop

STOP_CODES: dict[Stop, int] = {stop: code for code, stop in enumerate(STOPS)}


class StepColumns:
    """Steps one after the other, a column per field; entry i of every column is step i.

    Attributes:
        texts: text of each step.
        tokens: the sampled ids of all steps, one after the other.
        offset: where a step's ids begin in `tokens`; one entry more than there are steps.
        num_tokens: sampled tokens of each step, also where the ids are unknown.
        stop_code: why each step ended, as index into `STOPS`.
        logprob: log-probability of each step, NaN when the backend did not tell.
    """

    __slots__ = ("logprob", "num_tokens", "offset", "stop_code", "texts", "tokens")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.tokens = array("i")
        self.offset = array("q", [0])
        self.num_tokens = array("i")
        self.stop_code = array("b")
        self.logprob = array("f")

    @classmethod
    def of(cls, steps: Sequence[Step]) -> StepColumns:
        """The steps as columns."""
        columns = cls()
        for step in steps:
            columns.append_step(step)
        return columns

    def __len__(self) -> int:
        return len(self.texts)

    def flaw(self) -> str | None:
        """What keeps these from being columns of steps, in words; None when nothing does."""
        columns = (self.tokens, self.offset, self.num_tokens, self.stop_code, self.logprob)
        if [getattr(column, "typecode", None) for column in columns] != list("iqibf"):
            return "columns that are not arrays of the types that StepColumns makes"
        count = len(self.texts)
        if any(len(column) != count for column in columns[2:]) or len(self.offset) != count + 1:
            return "columns of different lengths"
        ends = self.offset.tolist()
        if ends[0] != 0 or ends[-1] != len(self.tokens) or ends != sorted(ends):
            return "offsets that do not divide the tokens into steps"
        if count and not 0 <= min(self.stop_code) <= max(self.stop_code) < len(STOPS):
            return "a stop code that stands for no stop"
        if count and min(self.num_tokens) < 0:
            return f"a step of {min(self.num_tokens)} tokens"
        if sum(self.num_tokens) < len(self.tokens):  # the budget counts what the first sums to
            return "steps of fewer tokens (num_tokens, count) than they have ids"
        if math.inf in self.logprob or -math.inf in self.logprob:
            return "a log-probability that is infinite"
        return None if set(map(type, self.texts)) <= {str} else "a text that is no string"

    def append_step(self, step: Step) -> None:
        """Append one step."""
        self.texts.append(step.text)
        self.tokens.extend(step.token_ids)
        self.offset.append(len(self.tokens))
        self.num_tokens.append(step.num_tokens)
        self.stop_code.append(STOP_CODES[step.stop])
        self.logprob.append(math.nan if step.logprob is None else step.logprob)

    def append_steps(self, steps: StepColumns) -> None:
        """Append many steps, at memory speed."""
        base = len(self.tokens)
        self.texts += steps.texts
        self.tokens += steps.tokens
        self.offset.extend([base + end for end in steps.offset[1:]])
        self.num_tokens += steps.num_tokens
        self.stop_code += steps.stop_code
        self.logprob += steps.logprob

    def part(self, start: int, stop: int) -> StepColumns:
        """A copy of the steps from `start` to `stop - 1`."""
        part, base = StepColumns(), self.offset[start]
        part.texts = self.texts[start:stop]
        part.tokens = self.tokens[base : self.offset[stop]]
        part.offset = array("q", [end - base for end in self.offset[start : stop + 1]])
        part.num_tokens = self.num_tokens[start:stop]
        part.stop_code = self.stop_code[start:stop]
        part.logprob = self.logprob[start:stop]
        return part

    def token_ids(self, index: int) -> array[int]:
        """The sampled ids of a step."""
        return self.tokens[self.offset[index] : self.offset[index + 1]]

    def stop(self, index: int) -> Stop:
        """Why a step ended."""
        return STOPS[self.stop_code[index]]

    def step(self, index: int) -> Step:
        """A step as a value; its log-probability comes back in single precision."""
        logprob, ids = self.logprob[index], tuple(self.token_ids(index))
        count = self.num_tokens[index]
        return Step(
            text=self.texts[index],
            token_ids=ids,
            stop=STOPS[self.stop_code[index]],
            logprob=None if math.isnan(logprob) else logprob,
            count=None if count == len(ids) else count,
        )
