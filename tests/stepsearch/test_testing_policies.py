"""The suite for policies: ours pass, and every check is failed by one that is broken so."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.worlds import random_policy

from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.contracts import (
    Policy,
    Sample,
    SamplingParams,
)
from stepsearch.search.errors import PolicyError
from stepsearch.search.tree import Chain
from stepsearch.search.types import Step
from stepsearch.testing import ConformanceError, check_policy


def test_our_policies_pass() -> None:
    passed = check_policy(random_policy())
    assert check_policy(random_policy(latency=lambda chain, seed: 0.001)) == passed


class Meddling:
    """A good policy, with what it yields changed."""

    def __init__(
        self, change: Callable[[Sample, SamplingParams], list[Any]], policy: Policy | None = None
    ) -> None:
        self._policy = policy or random_policy()
        self.spec = self._policy.spec
        self._change = change

    async def sample(
        self, chains: Sequence[Chain], seeds: Sequence[int], params: SamplingParams
    ) -> AsyncIterator[Any]:
        async for sample in self._policy.sample(chains, seeds, params):
            assert isinstance(sample, Sample)
            for changed in self._change(sample, params):
                yield changed


def meddling(change: Callable[[Sample, SamplingParams], Any]) -> Meddling:
    return Meddling(lambda sample, params: [change(sample, params)])


def with_last(sample: Sample, **fields: Any) -> Sample:
    return sample._replace(steps=(*sample.steps[:-1], replace(sample.steps[-1], **fields)))


class Counter:
    """Writes something else every time."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, chain: Chain, seed: int) -> Step:
        self.calls += 1
        return scripted_step(f"w{self.calls % 7} ####", "eos")


class Ignores(Meddling):
    """Takes the limits for hints."""

    def __init__(self) -> None:
        super().__init__(lambda sample, params: [sample])

    async def sample(
        self, chains: Sequence[Chain], seeds: Sequence[int], params: SamplingParams
    ) -> AsyncIterator[Any]:
        wide = replace(params, max_tokens=100, max_step_tokens=100, max_steps=100)
        async for sample in super().sample(chains, seeds, wide):
            yield sample


class Once(Meddling):
    """Cannot be asked again after its consumer stopped."""

    def __init__(self) -> None:
        super().__init__(lambda sample, params: [sample])
        self._stopped = False

    async def sample(
        self, chains: Sequence[Chain], seeds: Sequence[int], params: SamplingParams
    ) -> AsyncIterator[Any]:
        if self._stopped:
            raise PolicyError("the stream is broken")
        self._stopped = True
        async for sample in super().sample(chains, seeds, params):
            yield sample
        self._stopped = False


def touch(chain: Chain, seed: int) -> Step:
    if len(chain):
        chain.tree.texts[0] = "touched"
    return scripted_step(f"w{seed % 5}\n") if len(chain) < 5 else scripted_step("#### 1", "eos")


class Touches(Meddling):
    """Changes the chain that it continues."""

    async def sample(
        self, chains: Sequence[Chain], seeds: Sequence[int], params: SamplingParams
    ) -> AsyncIterator[Any]:
        for chain in chains:
            chain.tail = (*chain.tail[:1], *chain.tail[:1])
        async for sample in super().sample(chains, seeds, params):
            yield sample


class Weighs(Meddling):
    async def text_logprobs(self, chain: Chain, texts: Sequence[str]) -> Any:
        return ((0.5, math.nan), 0, 0)


class CountsNothing(Meddling):
    def count_prompt_tokens(self, prompt: str) -> int:
        return 0


class Nameless(Meddling):
    def __init__(self) -> None:
        super().__init__(lambda sample, params: [sample])
        self.spec = replace(self.spec, name="")


def same(sample: Sample, params: SamplingParams) -> list[Any]:
    return [sample]


def leave(chain: Chain, seed: int) -> Step:
    raise SystemExit(3)


ONE = scripted_step("same #### 1", "eos")
BROKEN_POLICIES: list[tuple[str, str, Any]] = [
    ("spec", "spec.name is empty", Nameless()),
    ("one step", "exactly one", meddling(lambda s, p: s._replace(steps=s.steps * 2))),
    ("one step", "is answered twice", Meddling(lambda s, p: [s, s])),
    ("one step", "were not answered", Meddling(lambda s, p: [s] if s.request else [])),
    ("one step", "no steps", meddling(lambda s, p: s._replace(steps=()))),
    ("one step", "raised SystemExit: 3", ScriptedPolicy(leave)),
    ("one step", "yield Sample", meddling(lambda s, p: tuple(s))),
    ("one step", "numbers from 0 on", meddling(lambda s, p: s._replace(prompt_tokens=-1))),
    ("one step", "is not one of", meddling(lambda s, p: with_last(s, stop="done"))),
    ("one step", "has no tokens", meddling(lambda s, p: with_last(s, token_ids=()))),
    ("one step", "must be 0 or less", meddling(lambda s, p: with_last(s, logprob=0.7))),
    (
        "to the end",
        "only the last may end",
        meddling(
            lambda s, p: s._replace(steps=tuple(replace(step, stop="eos") for step in s.steps))
        ),
    ),
    ("limits", "budgets are hard", Ignores()),
    (
        "to the end",
        "budgets are hard",
        meddling(lambda s, p: with_last(s, token_ids=(), count=99_999)),
    ),
    ("same seed", "other steps", ScriptedPolicy(Counter())),
    ("different seeds", "all give the same chain", ScriptedPolicy(lambda chain, seed: ONE)),
    ("continuing", "read only", Touches(same, ScriptedPolicy(touch))),
    ("stopping early", "stream is broken", Once()),
    (
        "nothing",
        "no samples",
        Meddling(same, ScriptedPolicy(lambda chain, seed: ONE)),
    ),
    ("prompt", "count it", CountsNothing(same)),
    ("weighing", "log-probability", Weighs(same)),
]


class Always(Meddling):
    """Answers even where nothing was asked."""

    async def sample(
        self, chains: Sequence[Chain], seeds: Sequence[int], params: SamplingParams
    ) -> AsyncIterator[Any]:
        yield Sample(0, (ONE,), 0, 0)
        if chains:
            async for sample in super().sample(chains[1:], seeds[1:], params):
                yield sample._replace(request=sample.request + 1)


BROKEN_POLICIES[-3] = ("nothing", "no samples", Always(same))


@pytest.mark.parametrize(("check", "message", "policy"), BROKEN_POLICIES)
def test_broken_policies_are_told_what_to_do(check: str, message: str, policy: Any) -> None:
    with pytest.raises(ConformanceError) as caught:
        check_policy(policy)
    assert message in caught.value.failures[check]
