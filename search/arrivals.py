"""Arrivals: the continuations of an expansion as columns, and the chains that they make."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import overload

from stepsearch.search.steps import STOP_CODES, StepColumns
from stepsearch.search.tree import Chain

_EOS = STOP_CODES["eos"]


class Arrivals:
    """Continuations in the order they arrived.

    Attributes:
        steps: the steps of all of them, one after the other.
        first: where a continuation begins in `steps`; one entry more than there are continuations.
        children: which child of the expansion each is.
        prompt_tokens: prefix tokens computed for all of them; None when the policy does not tell.
        prompt_tokens_reused: prefix tokens taken from a cache, likewise.
    """

    __slots__ = ("children", "first", "prompt_tokens", "prompt_tokens_reused", "steps")

    def __init__(self) -> None:
        self.steps = StepColumns()
        self.first = array("i", [0])
        self.children = array("i")
        self.prompt_tokens: int | None = 0
        self.prompt_tokens_reused: int | None = 0

    def __len__(self) -> int:
        return len(self.children)

    @property
    def are_single(self) -> bool:
        """Whether every continuation is one step."""
        return len(self.steps) == len(self.children)

    @property
    def ends(self) -> Sequence[int]:
        """The last step of each continuation, as an index into `steps`."""
        return [after - 1 for after in self.first[1:]]

    @property
    def num_tokens(self) -> Sequence[int]:
        """Sampled tokens of each continuation."""
        tokens = self.steps.num_tokens
        if self.are_single:
            return tokens
        return [sum(tokens[start:stop]) for start, stop in pairwise(self.first)]

    @property
    def num_finished(self) -> int:
        """How many continuations ended their chain by `eos`; that stands only on a last step."""
        return self.steps.stop_code.count(_EOS)

    def add(self, child: int, steps: StepColumns) -> None:
        """Append one continuation."""
        self.steps.append_steps(steps)
        self.first.append(len(self.steps))
        self.children.append(child)

    def add_many(self, requests: Sequence[int], steps: StepColumns, start: int) -> None:
        """Append continuations of one step each; request r is child `start + r`.

        The columns of the first are taken over.
        """
        begin = len(self.steps) + 1
        if begin == 1:
            self.steps = steps
        else:
            self.steps.append_steps(steps)
        self.first.extend(range(begin, begin + len(steps)))
        self.children.extend([start + request for request in requests] if start else requests)

    def add_prompt(self, computed: int | None, reused: int | None) -> None:
        """Count prefix tokens."""
        self.prompt_tokens = plus(self.prompt_tokens, computed)
        self.prompt_tokens_reused = plus(self.prompt_tokens_reused, reused)

    def order(self) -> list[int] | None:
        """The arrivals in the order of the children; None when they arrived in that order."""
        children = self.children.tolist()
        if children == sorted(children):
            return None
        return sorted(range(len(children)), key=children.__getitem__)

    def reordered(self, order: Sequence[int]) -> Arrivals:
        """The arrivals in another order."""
        found = Arrivals()
        for index in order:
            steps = self.steps.part(self.first[index], self.first[index + 1])
            found.steps.append_steps(steps)
            found.first.append(len(found.steps))
            found.children.append(self.children[index])
        found.prompt_tokens = self.prompt_tokens
        found.prompt_tokens_reused = self.prompt_tokens_reused
        return found


class Candidates(Sequence[Chain]):
    """Chains that arrivals make, made when they are asked for; their new steps are in no tree yet.

    Args:
        bases: the chain that each child of the expansion continues.
        arrivals: the continuations.
        start: the first arrival that belongs here.
        stop: the first that does not.
    """

    def __init__(self, bases: Sequence[Chain], arrivals: Arrivals, start: int, stop: int) -> None:
        self._bases = bases
        self._arrivals = arrivals
        self._range = range(start, stop)

    def __len__(self) -> int:
        return len(self._range)

    @overload
    def __getitem__(self, index: int) -> Chain: ...
    @overload
    def __getitem__(self, index: slice) -> list[Chain]: ...
    def __getitem__(self, index: int | slice) -> Chain | list[Chain]:
        if isinstance(index, slice):
            return [self._chain(arrival) for arrival in self._range[index]]
        return self._chain(self._range[index])

    def _chain(self, arrival: int) -> Chain:
        arrivals = self._arrivals
        base = self._bases[arrivals.children[arrival]]
        own = range(arrivals.first[arrival], arrivals.first[arrival + 1])
        steps = tuple(map(arrivals.steps.step, own))
        return Chain(base.tree, base.node, steps, base.num_new + len(steps))

    def new_steps(self) -> StepColumns:
        """The new steps of all the chains as columns, to be read only."""
        arrivals, own = self._arrivals, self._range
        if own.start == 0 and own.stop == len(arrivals.children):
            return arrivals.steps
        return arrivals.steps.part(arrivals.first[own.start], arrivals.first[own.stop])


def plus(total: int | None, amount: int | None) -> int | None:
    """The sum, None when either is unknown."""
    return None if total is None or amount is None else total + amount
