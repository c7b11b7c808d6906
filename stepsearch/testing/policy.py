"""What the engine relies on in a policy."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

from stepsearch.search.contracts import (
    CountsPrompt,
    Policy,
    Sample,
    Samples,
    SamplingParams,
    WeighsTexts,
)
from stepsearch.search.tree import ROOT, Chain, Tree
from stepsearch.search.types import STOPS, Step
from stepsearch.testing.checks import require, require_object, run_checks

QUESTION = "Tom has 3 boxes with 4 pens each. He gives 5 pens away. How many pens are left?"
SEEDS = (3, 1 << 40, 5, 8)
STEP = SamplingParams(temperature=1.0, max_step_tokens=24, max_tokens=24)
END = replace(STEP, until="end", max_tokens=48)


def check_policy(policy: Policy, *, question: str = QUESTION, timeout: float = 120.0) -> list[str]:
    """Check that a policy keeps the contract; see `Policy` and `Sample`.

    Args:
        policy: the policy.
        question: what it continues; it must be able to write different things.
        timeout: seconds that each check may take.

    Returns:
        The names of the checks, all passed.

    Raises:
        ConformanceError: what is wrong, and what to do.
        ConfigurationError: a class was given, or an object that lacks a part.
    """
    require_object("policy", policy)
    suite = _Suite(policy, question)
    checks = {
        "spec": suite.spec,
        "one step": suite.one_step,
        "to the end": suite.to_the_end,
        "limits": suite.limits,
        "same seed": suite.same_seed,
        "different seeds": suite.different_seeds,
        "continuing": suite.continuing,
        "stopping early": suite.stopping_early,
        "nothing": suite.nothing,
        "prompt": suite.prompt,
        "weighing": suite.weighing,
    }
    return run_checks(f"policy {policy.spec.name!r}", checks, timeout)


class _Suite:
    def __init__(self, policy: Policy, question: str) -> None:
        self._policy = policy
        self._root = Tree(question).chain(ROOT)

    async def spec(self) -> None:
        spec = self._policy.spec
        require(spec.name, "spec.name is empty; it names the model in output")
        size = spec.num_parameters
        require(size is None or size >= 0, f"spec.num_parameters={size} is negative")

    async def one_step(self) -> None:
        for steps in await self._sample([self._root] * 4, SEEDS, STEP):
            require(
                len(steps) == 1,
                f"until='step' gives {len(steps)} steps; give exactly one, and use it up to its "
                "separator",
            )

    async def to_the_end(self) -> None:
        for steps in await self._sample([self._root] * 4, SEEDS, END):
            early = [step.stop for step in steps[:-1] if step.stop != "step"]
            require(
                not early,
                f"a step before the last one has stop {early}; only the last may end the chain",
            )

    async def limits(self) -> None:
        params = replace(END, max_tokens=7, max_step_tokens=5)
        await self._sample([self._root] * 4, SEEDS, params)
        for steps in await self._sample([self._root] * 4, SEEDS, replace(END, max_steps=1)):
            require(len(steps) == 1, f"max_steps=1 gives {len(steps)} steps; leave the chain there")

    async def same_seed(self) -> None:
        together = await self._sample([self._root] * 4, SEEDS, END)
        backwards = (await self._sample([self._root] * 4, SEEDS[::-1], END))[::-1]
        alone = [(await self._sample([self._root], [seed], END))[0] for seed in SEEDS]
        for other, how in ((backwards, "in another order"), (alone, "alone")):
            require(
                list(map(_written, together)) == list(map(_written, other)),
                f"the same seeds asked for {how} give other steps; draw everything from the "
                "request's own seed, and nothing from what else is in flight",
            )

    async def different_seeds(self) -> None:
        found = await self._sample([self._root] * 16, range(100, 116), END)
        require(
            len(set(map(_written, found))) > 1,
            "16 seeds at temperature 1 all give the same chain; use seeds[i] for request i",
        )

    async def continuing(self) -> None:
        groups = await self._sample([self._root] * 8, range(8), STEP)
        opens = [steps for steps in groups if steps[-1].stop == "step"]
        for steps in opens:
            chain = Chain(self._root.tree, ROOT, steps)
            before = (chain.text, chain.token_ids)
            await self._sample([chain, chain], [1, 2], STEP)
            require(
                (chain.text, chain.token_ids) == before,
                "sampling changes the chain that it continues; chains are read only",
            )

    async def stopping_early(self) -> None:
        stream = self._policy.sample([self._root] * 4, SEEDS, END)
        async for _ in stream:
            break
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()
        await self._sample([self._root], [1], STEP)

    async def nothing(self) -> None:
        found = [sample async for sample in self._policy.sample([], [], STEP)]
        require(not found, "no chains must give no samples")

    async def prompt(self) -> None:
        if isinstance(self._policy, CountsPrompt):
            count = self._policy.count_prompt_tokens(self._root.prompt)
            require(count > 0, f"count_prompt_tokens gives {count} for a question; count it")

    async def weighing(self) -> None:
        if not isinstance(self._policy, WeighsTexts):
            return
        values, *tokens = await self._policy.text_logprobs(self._root, [" yes", " no"])
        require(
            len(values) == 2 and all(math.isfinite(v) and v <= 1e-6 for v in values),
            f"text_logprobs gives {values} for two texts; give a log-probability (0 or less) each",
        )
        require(all(count is None or count >= 0 for count in tokens), f"tokens={tokens}")

    async def _sample(
        self, chains: Sequence[Chain], seeds: Sequence[int], params: SamplingParams
    ) -> list[tuple[Step, ...]]:
        """The steps of every request, each checked by itself."""
        found: dict[int, tuple[Step, ...]] = {}
        async for yielded in self._policy.sample(chains, seeds, params):
            for request, steps, *tokens in _apart(yielded):
                require(
                    0 <= request < len(chains) and request not in found,
                    f"request {request} is answered twice or was not asked; yield one sample for "
                    "each position in chains",
                )
                require(steps, f"request {request} has no steps; give at least one")
                _look_at(steps, tokens, params)
                found[request] = tuple(steps)
        missing = sorted(set(range(len(chains))) - found.keys())
        require(not missing, f"requests {missing} of {len(chains)} were not answered")
        return [found[request] for request in range(len(chains))]


def _apart(yielded: Any) -> list[Sample]:
    if isinstance(yielded, Samples):
        return yielded.apart()
    require(isinstance(yielded, Sample), f"yielded a {type(yielded).__name__}; yield Sample(...)")
    return [yielded]


def _look_at(steps: Sequence[Step], tokens: Sequence[int | None], params: SamplingParams) -> None:
    longest, total = max(s.num_tokens for s in steps), sum(s.num_tokens for s in steps)
    require(
        longest <= params.max_step_tokens and total <= params.max_tokens,
        f"max_step_tokens={params.max_step_tokens} and max_tokens={params.max_tokens} give a step "
        f"of {longest} and a chain of {total} tokens; budgets are hard, so stop at the limit",
    )
    require(
        all(count is None or count >= 0 for count in tokens),
        f"prompt tokens computed and reused are {tokens}; give numbers from 0 on, or None",
    )
    for step in steps:
        require(step.stop in STOPS, f"stop={step.stop!r} is not one of {', '.join(STOPS)}")
        require(
            step.num_tokens > 0 or step.stop == "context",
            f"a step with stop {step.stop!r} has no tokens; give token_ids, or count where the "
            "backend tells no ids",
        )
        require(
            step.logprob is None or step.logprob <= 1e-6,
            f"logprob={step.logprob} must be 0 or less, or None when the backend does not tell",
        )


def _written(steps: Sequence[Step]) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    return tuple((step.text, step.token_ids, step.stop) for step in steps)
