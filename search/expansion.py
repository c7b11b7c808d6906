"""Expansion: children on their way into the tree, sent as the budget allows, scored as they arrive.

A child is sent when its whole allotment is free. What does not fit waits until earlier children of
the same expansion have given back what they did not use, in the order they were sent; so what is
sent never depends on timing. When nothing is under way any more and the rest does not reach for a
whole allotment, the next child gets the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from stepsearch.search.arrivals import Arrivals, Candidates
from stepsearch.search.batching import Batcher, cancel_all, contained, is_cancelled
from stepsearch.search.contracts import (
    NewestScores,
    Policy,
    Sample,
    Samples,
    SamplingParams,
    StepScores,
)
from stepsearch.search.errors import PolicyError, StepsearchError, VerifierError
from stepsearch.search.ledger import Ledger
from stepsearch.search.scores import token_count
from stepsearch.search.steps import STOP_CODES, StepColumns
from stepsearch.search.tree import Chain

_log = logging.getLogger(__name__)

Scores = asyncio.Future[Sequence[StepScores | Exception]]
_STEP, _EOS = STOP_CODES["step"], STOP_CODES["eos"]
_LENGTH, _BUDGET = STOP_CODES["length"], STOP_CODES["budget"]
_MISSING = -1


class Expansion:
    """A set of children that are sampled together.

    Args:
        policy: who samples them.
        ledger: the budget.
        params: how to sample; `max_tokens` is the full allotment of one child.
        chains: what is continued, one per child, in the order in which they will be added; their
            `num_new` says how many of their own steps await a score.
        seeds: one per child.
        batcher: takes chains to the verifier as they arrive; None when nothing is scored.

    Attributes:
        arrivals: what arrived; a child that was not sent is not there.
        cut: whether the budget ended a continuation or kept a child from being sent.
        num_whole: how many children came before the first of those.
    """

    def __init__(
        self,
        *,
        policy: Policy,
        ledger: Ledger,
        params: SamplingParams,
        chains: Sequence[Chain],
        seeds: Sequence[int],
        batcher: Batcher[Chain, StepScores] | None,
    ) -> None:
        self._policy = policy
        self._ledger = ledger
        self._params = params
        self._chains = chains
        self._seeds = seeds
        self._batcher = batcher
        self._waited_for: list[asyncio.Future[None]] = []
        self._arrival_of = [_MISSING] * len(seeds)
        self._scoring: list[tuple[int, Scores]] = []  # of the arrivals before this one
        self._is_submitting = False
        self._unsettled = 0
        self.arrivals = Arrivals()
        self.cut = False
        self.num_whole = len(seeds)

    def reserve(self) -> bool:
        """Take the budget of every child when all can be sent in full now; whether that was so."""
        size, count = self._params.max_tokens, len(self._seeds)
        if self._ledger.affordable(size) < count:
            return False
        self._unsettled = count
        self._ledger.reserve(count, size)
        return True

    async def run(self) -> None:
        """Sample the children.

        Raises:
            PolicyError: the policy failed, or returned something else than it was asked for.
        """
        if self._unsettled:
            await self._sample(0, self._unsettled, self._params.max_tokens)
        else:
            await self._run_as_affordable()

    def settle(self) -> None:
        """Give back what was not used; belongs to the moment the children enter the tree."""
        if self._unsettled:
            arrivals, self._unsettled = self.arrivals, 0
            self._settle(arrivals.num_tokens, arrivals.num_finished, self._params.max_tokens)

    @property
    def candidates(self) -> Candidates:
        """The chains that the arrivals make."""
        return Candidates(self._chains, self.arrivals, 0, len(self.arrivals))

    async def scores(self) -> Sequence[StepScores | None]:
        """The scores of the arrivals.

        Raises:
            VerifierError: the verifier failed.
        """
        self._submit()
        if len(self._scoring) == 1:
            scores = await self._scoring[0][1]
            return scores if isinstance(scores, NewestScores) else [unwrap(s) for s in scores]
        found: list[StepScores | None] = []
        for _, future in self._scoring:
            found.extend([unwrap(scores) for scores in await future])
        return found

    def scores_so_far(self) -> Sequence[StepScores | None]:
        """The scores of the arrivals that are there now; what failed counts as not there."""
        found: list[StepScores | None] = []
        for stop, future in self._scoring:
            there = future.done() and not future.cancelled()
            scores = future.result() if there else [None] * (stop - len(found))
            found.extend([s if isinstance(s, StepScores) else None for s in scores])
        return found + [None] * (len(self.arrivals) - len(found))

    def abandon_scores(self) -> None:
        """Let the verifier leave what it is still at; nobody waits for it any more."""
        self._batcher = None
        for _, future in self._scoring:
            future.cancel()

    async def _run_as_affordable(self) -> None:
        loop = asyncio.get_running_loop()
        self._waited_for = [loop.create_future() for _ in self._seeds]
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._admit(tasks)
        finally:
            await cancel_all(tasks)

    async def _admit(self, tasks: list[asyncio.Task[None]]) -> None:
        full, total = self._params.max_tokens, len(self._seeds)
        sizes: list[int] = []
        settled = 0
        while settled < total:
            sent, size = len(sizes), full
            fits = max(0, int(min(total - sent, self._ledger.affordable(full))))
            if fits == 0 and settled == sent:
                size, fits = min(full, self._ledger.rest()), 1
                if size < 1:
                    self._cut_at(sent)
                    return
            if fits:
                self._ledger.reserve(fits, size)
                sizes.extend([size] * fits)
                tasks.append(asyncio.create_task(self._sample(sent, sent + fits, size)))
            else:
                await self._waited_for[settled]
                self._settle_child(settled, sizes[settled])
                if sizes[settled] < full and self._is_cut(settled):
                    self._cut_at(settled)
                settled += 1

    def _cut_at(self, child: int) -> None:
        if not self.cut:
            self.cut, self.num_whole = True, child

    def _is_cut(self, child: int) -> bool:
        """Whether the budget ended the continuation, rather than its own end within what it got."""
        end = self.arrivals.first[self._arrival_of[child] + 1] - 1
        return self.arrivals.steps.stop_code[end] == _BUDGET

    async def _sample(self, start: int, stop: int, size: int) -> None:
        try:
            await self._collect(start, stop, size)
        except BaseException as error:  # whatever it is, nobody waits for ever
            if is_cancelled():
                raise asyncio.CancelledError from error
            failure = error if isinstance(error, StepsearchError) else _failure(error)
            for arrival in self._waited_for[start:stop]:
                if not arrival.done():
                    arrival.set_exception(failure)
                    arrival.exception()  # it may be that nobody waits for it
            contained(error)
            raise failure from error

    async def _collect(self, start: int, stop: int, size: int) -> None:
        params = self._params
        if size != params.max_tokens:
            params = replace(params, max_tokens=size)
        chains, seeds = self._chains[start:stop], self._seeds[start:stop]
        missing = stop - start
        async for found in self._policy.sample(chains, seeds, params):
            missing -= self._arrive(found, start, stop, whole=size == self._params.max_tokens)
        if is_cancelled():
            raise asyncio.CancelledError
        if missing:
            raise PolicyError(
                f"the policy returned {stop - start - missing} of {stop - start} continuations"
            )

    def _arrive(self, found: Sample | Samples, start: int, stop: int, *, whole: bool) -> int:
        """Take in what the policy yielded for the children from `start` on; how many there are."""
        arrivals, begin = self.arrivals, len(self.arrivals)
        if isinstance(found, Sample):
            requests: Sequence[int] = (found.request,)
            steps = self._continuation(found)
            self._expect(requests, 1, start, stop)
            arrivals.add(start + found.request, steps)
        else:
            requests, steps = found.requests, found.steps
            if not isinstance(requests, range | list):
                requests = [int(request) for request in requests]
            _require_whole(steps)
            self._expect(requests, len(steps), start, stop)
            arrivals.add_many(requests, steps, start)
        arrivals.add_prompt(*_prompt_tokens(found))
        self._name_stops(begin, whole=whole)
        if len(arrivals) == len(self._seeds):
            self._submit()
        elif self._batcher is not None and not self._is_submitting:
            # In this turn of the loop, with those that arrive beside it.
            self._is_submitting = True
            asyncio.get_running_loop().call_soon(self._submit)
        if self._waited_for:
            for request in requests:
                self._waited_for[start + request].set_result(None)
        return len(requests)

    def _continuation(self, found: Sample) -> StepColumns:
        """The steps of one continuation, once they are known to be one."""
        limit = 1 if self._params.until == "step" else self._params.max_steps
        if not 1 <= len(found.steps) <= limit:
            raise PolicyError(
                f"the policy returned continuation {found.request} with {len(found.steps)} steps "
                f"where 1 to {limit} were asked for (until, max_steps)"
            )
        for step in found.steps[:-1]:
            if step.stop != "step":
                raise PolicyError(f"the policy returned a step after one that ended by {step.stop}")
        steps = StepColumns.of(found.steps)
        _require_whole(steps)
        return steps

    def _expect(self, requests: Sequence[int], count: int, start: int, stop: int) -> None:
        """Note which children arrive; each must be one that was sent."""
        if len(requests) != count:
            raise PolicyError(f"the policy returned {count} steps for {len(requests)} chains")
        arrival, arrival_of = len(self.arrivals), self._arrival_of
        if requests == range(stop - start) and arrival_of[start:stop].count(_MISSING) == count:
            arrival_of[start:stop] = range(arrival, arrival + count)
            return
        for request in requests:
            known = 0 <= request < stop - start and arrival_of[start + request] == _MISSING
            if not known:
                raise PolicyError(f"the policy returned continuation {request} twice or unasked")
            arrival_of[start + request] = arrival
            arrival += 1

    def _name_stops(self, begin: int, *, whole: bool) -> None:
        """Give the right reason where the call's limit of tokens ended a chain.

        With the whole allotment it was the limit of a chain, else the budget; a limit that is
        reached just where a step ends is one too.
        """
        first, codes, params = self.arrivals.first, self.arrivals.steps.stop_code, self._params
        one_step = params.until == "step"
        if one_step and _BUDGET not in codes[first[begin] :]:
            return
        for arrival in range(begin, len(self.arrivals)):
            count, last = first[arrival + 1] - first[arrival], first[arrival + 1] - 1
            open_end = codes[last] == _STEP and not one_step and count < params.max_steps
            if codes[last] == _BUDGET or open_end:
                codes[last] = _LENGTH if whole else _BUDGET

    def _submit(self) -> None:
        """Take the candidates that arrived to the verifier."""
        self._is_submitting = False
        start = self._scoring[-1][0] if self._scoring else 0
        stop = len(self.arrivals)
        if self._batcher is not None and start < stop:
            candidates = Candidates(self._chains, self.arrivals, start, stop)
            self._scoring.append((stop, self._batcher.submit(candidates)))

    def _settle_child(self, child: int, size: int) -> None:
        arrivals, arrival = self.arrivals, self._arrival_of[child]
        own = slice(arrivals.first[arrival], arrivals.first[arrival + 1])
        tokens, stops = arrivals.steps.num_tokens[own], arrivals.steps.stop_code[own]
        self._settle((sum(tokens),), stops.count(_EOS), size)

    def _settle(self, num_tokens: Sequence[int], finished: int, size: int) -> None:
        """Give back what continuations that were allotted `size` tokens did not use."""
        if max(num_tokens, default=0) > size:
            raise PolicyError(
                f"the policy generated {max(num_tokens)} tokens where {size} were allowed "
                "(max_tokens)"
            )
        count = len(num_tokens)
        self._ledger.settle(size * count - sum(num_tokens), count - finished)


def _require_whole(steps: StepColumns) -> None:
    if flaw := steps.flaw():
        raise PolicyError(f"the policy returned {flaw}")


def _prompt_tokens(found: Sample | Samples) -> tuple[int | None, int | None]:
    """Prefix tokens computed and reused."""
    try:
        return (
            token_count("prompt_tokens", found.prompt_tokens),
            token_count("prompt_tokens_reused", found.prompt_tokens_reused),
        )
    except ValueError as error:
        raise PolicyError(f"the policy miscounts prompt tokens: {error}") from error


def _failure(error: BaseException) -> PolicyError:
    _log.debug("the policy failed", exc_info=error)  # the code may be the user's own
    return PolicyError(f"{type(error).__name__}: {error}")


def unwrap(scores: StepScores | Exception) -> StepScores:
    """The scores, or the verifier's failure as an error of ours."""
    if isinstance(scores, StepScores):
        return scores
    if isinstance(scores, StepsearchError):
        raise scores
    if not isinstance(scores, Exception):
        raise VerifierError(f"the verifier gave {scores!r:.100} where StepScores belong")
    _log.debug("the verifier failed", exc_info=scores)
    raise VerifierError(f"{type(scores).__name__}: {scores}") from scores
