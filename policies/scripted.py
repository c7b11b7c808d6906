"""A policy made of a function: for tests, examples and simulations; needs no model."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Callable, Sequence

from stepsearch.search.contracts import PolicySpec, Sample, SamplingParams
from stepsearch.search.tree import Chain
from stepsearch.search.types import Step, Stop

Propose = Callable[[Chain, int], Step]


def scripted_step(text: str, stop: Stop = "step") -> Step:
    """A step whose tokens are the words of its text."""
    words = re.findall(r"\s*\S+\s*$|\s*\S+|\s+$", text)
    return Step(text=text, token_ids=tuple(zlib.crc32(w.encode()) >> 1 for w in words), stop=stop)


class ScriptedPolicy:
    """Asks a function for every step.

    Args:
        propose: the next step of a chain for a seed; must depend on nothing else. The seed is the
            same for all steps of a call with `until="end"`.
        latency: seconds until a continuation of a chain with a seed is finished; None means that
            the policy never waits.
        num_parameters: pretended size, for FLOPs.
    """

    def __init__(
        self,
        propose: Propose,
        *,
        latency: Callable[[Chain, int], float] | None = None,
        num_parameters: int | None = 0,
    ) -> None:
        self.spec = PolicySpec(name="scripted", num_parameters=num_parameters)
        self._propose = propose
        self._latency = latency

    def count_prompt_tokens(self, prompt: str) -> int:
        """Words of the prompt."""
        return len(prompt.split())

    async def sample(
        self, chains: Sequence[Chain], seeds: Sequence[int], params: SamplingParams
    ) -> AsyncIterator[Sample]:
        """See `Policy.sample`."""
        requests = list(zip(range(len(seeds)), chains, seeds, strict=True))
        if self._latency is None:
            for index, chain, seed in requests:
                yield Sample(index, self._continue(chain, seed, params), 0, 0)
            return
        tasks = [asyncio.ensure_future(self._wait(*request, params)) for request in requests]
        try:
            for task in asyncio.as_completed(tasks):
                yield await task
        finally:
            for pending in tasks:
                pending.cancel()

    async def _wait(self, index: int, chain: Chain, seed: int, params: SamplingParams) -> Sample:
        assert self._latency is not None
        await asyncio.sleep(self._latency(chain, seed))
        return Sample(index, self._continue(chain, seed, params), 0, 0)

    def _continue(self, chain: Chain, seed: int, params: SamplingParams) -> tuple[Step, ...]:
        steps: list[Step] = []
        left = params.max_tokens
        limit = 1 if params.until == "step" else params.max_steps
        while len(steps) < limit:
            step = self._propose(Chain(chain.tree, chain.node, (*chain.tail, *steps)), seed)
            if step.num_tokens > min(left, params.max_step_tokens):
                steps.append(_cut(step, left, params.max_step_tokens))
                break
            steps.append(step)
            left -= step.num_tokens
            if step.stop != "step" or left < 1:
                break
        return tuple(steps)


def _cut(step: Step, left: int, max_step_tokens: int) -> Step:
    """The step as far as the limits allow."""
    size = min(left, max_step_tokens)
    words = re.findall(r"\s*\S+\s*$|\s*\S+|\s+$", step.text)
    return Step(
        text="".join(words[:size]),
        token_ids=step.token_ids[:size],
        stop="length" if max_step_tokens <= left else "budget",
        logprob=None,
    )
