"""Critiques: what a language model writes about a solution, and the verdict it comes to.

The verdict is not what happens to be sampled but how likely the model finds either word where its
critique comes to a verdict: p(good) / (p(good) + p(bad)), averaged over several critiques (Zhang et
al. 2024, arXiv:2408.15240; Zhao et al. 2025, arXiv:2504.00891). A critique without a verdict is no
half a verdict: it is left out and counted. Nothing that the model writes is ever executed.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stepsearch.search.batching import together
from stepsearch.search.contracts import Policy, Sample, SamplingParams, WeighsTexts
from stepsearch.search.errors import ConfigurationError, PolicyError, VerifierError
from stepsearch.search.tree import ROOT, Chain, Tree
from stepsearch.search.types import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictFormat:
    """How a verdict is asked for and where it stands.

    Attributes:
        prompt: what the model is asked; `{question}`, `{solution}` (the numbered steps so far) and
            `{number}` (of the last one) are filled in.
        cue: what a verdict begins with; the last one in a critique counts.
        good: what follows the cue when the model finds no error.
        bad: what follows it when it does.
    """

    prompt: str
    cue: str = "Verdict:"
    good: str = " correct"
    bad: str = " wrong"

    def __post_init__(self) -> None:
        if "{question}" not in self.prompt or "{solution}" not in self.prompt:
            raise ConfigurationError("prompt must hold {question} and {solution}")
        if not self.cue.strip():
            raise ConfigurationError("cue is empty; give the text that stands before a verdict")
        good, bad = _plain(self.good), _plain(self.bad)
        if not good or not bad or good.startswith(bad) or bad.startswith(good):
            raise ConfigurationError(
                f"good={self.good!r} and bad={self.bad!r} must be different words, neither the "
                "beginning of the other"
            )

    def fill(self, question: str, steps: Sequence[str]) -> str:
        """The prompt for a question and the steps of a solution up to the one that is judged."""
        solution = "\n".join(f"Step {k}: {text.strip()}" for k, text in enumerate(steps, start=1))
        values = {"question": question, "solution": solution, "number": str(len(steps))}
        # In one pass, so that braces in a question stay what they are.
        pattern = "|".join(f"{{{name}}}" for name in values)
        return re.sub(pattern, lambda match: values[match[0][1:-1]], self.prompt)

    def find(self, steps: Sequence[Step]) -> tuple[int, str, bool] | None:
        """The last verdict of a critique: its step, what stands before the cue, what it says."""
        for index in range(len(steps) - 1, -1, -1):
            before, cue, after = steps[index].text.rpartition(self.cue)
            if cue:
                said = _plain(after)
                if said.startswith((_plain(self.good), _plain(self.bad))):
                    return index, before, said.startswith(_plain(self.good))
                return None
        return None


class Verdict(NamedTuple):
    """What critiques of one thing came to.

    Attributes:
        probability: that it is right; None when no critique held a verdict.
        num_critiques: how many were written.
        num_verdicts: how many of them held a verdict.
        is_too_long: whether the prompt left no room in the model's context.
        tokens: computed and generated, None when unknown.
        tokens_reused: taken from a cache, None when unknown.
    """

    probability: float | None
    num_critiques: int
    num_verdicts: int
    is_too_long: bool
    tokens: int | None
    tokens_reused: int | None


class _Reading(NamedTuple):
    probability: float | None
    tokens: int | None
    tokens_reused: int | None
    is_too_long: bool = False


class Critic:
    """Asks a policy for critiques and reads their verdicts.

    Args:
        policy: the model, with its own prompt format.
        format: how it is asked.
        samples: critiques of each thing; 0 asks for the verdict at once, without a critique.
        temperature: of the critiques.
        max_tokens: longest critique.
        seed: of the critiques; the same prompt gets the same ones in every run.

    Attributes:
        num_critiques: how many were written so far.
        num_without_verdict: how many of them held no verdict.

    Raises:
        ConfigurationError: a setting is out of range, or the policy cannot tell how likely a text
            is and no critique is asked for.
    """

    def __init__(
        self,
        policy: Policy,
        format: VerdictFormat,
        *,
        samples: int,
        temperature: float,
        max_tokens: int,
        seed: int,
    ) -> None:
        if not isinstance(samples, int) or samples < 0:
            raise ConfigurationError(f"samples={samples!r} must be a number, at least 0")
        self._weighs = policy if isinstance(policy, WeighsTexts) else None
        if samples == 0 and self._weighs is None:
            raise ConfigurationError(
                f"samples=0 reads a verdict from log-probabilities of given texts, which policy "
                f"{policy.spec.name!r} does not tell (text_logprobs); ask for samples=1 or more"
            )
        self._policy = policy
        self._format = format
        self._samples = samples
        self._seed = seed
        self._params = SamplingParams(
            until="end",
            temperature=temperature,
            max_step_tokens=max_tokens,
            max_tokens=max_tokens,
        )
        self.num_critiques = 0
        self.num_without_verdict = 0

    async def judge(self, prompts: Sequence[str]) -> list[Verdict]:
        """A verdict on what each prompt asks about; all critiques are sampled together.

        Raises:
            VerifierError: the policy's backend failed for good.
        """
        roots = [Tree(prompt).chain(ROOT) for prompt in prompts]
        try:
            if self._samples == 0:
                readings = [[r] for r in await together(map(self._ask_at_once, roots))]
            else:
                readings = await self._read_critiques(roots)
        except PolicyError as error:
            raise VerifierError(f"the critic's model failed: {error}") from error
        return [self._joined(found) for found in readings]

    async def _read_critiques(self, roots: Sequence[Chain]) -> list[list[_Reading]]:
        chains = [root for root in roots for _ in range(self._samples)]
        seeds = [self._seed_of(root, k) for root in roots for k in range(self._samples)]
        samples: list[Sample] = []
        async for found in self._policy.sample(chains, seeds, self._params):
            samples += [found] if isinstance(found, Sample) else found.apart()
        samples.sort(key=_request)
        if [sample.request for sample in samples] != list(range(len(chains))):
            raise PolicyError(f"{len(samples)} critiques came back where {len(chains)} were asked")
        read = await together(map(self._read, chains, samples))
        return [read[k : k + self._samples] for k in range(0, len(read), self._samples)]

    async def _read(self, root: Chain, sample: Sample) -> _Reading:
        """The probability that a critique's verdict is `good`."""
        steps, reused = sample.steps, sample.prompt_tokens_reused
        tokens = total([sample.prompt_tokens, sum(step.num_tokens for step in steps)])
        verdict = self._format.find(steps)
        if verdict is None:
            return _Reading(None, tokens, reused, steps[0].stop == "context")
        index, before, is_good = verdict
        if self._weighs is None:
            return _Reading(float(is_good), tokens, reused)
        weighed = await self._weigh(Chain(root.tree, ROOT, steps[:index]), before)
        return weighed._replace(
            tokens=total([tokens, weighed.tokens]),
            tokens_reused=total([reused, weighed.tokens_reused]),
        )

    async def _ask_at_once(self, root: Chain) -> _Reading:
        return await self._weigh(root, "")

    async def _weigh(self, chain: Chain, before: str) -> _Reading:
        """Compare both verdicts behind a critique; what they share cancels."""
        assert self._weighs is not None
        words = (self._format.good, self._format.bad)
        texts = [before + self._format.cue + word for word in words]
        values, tokens, reused = await self._weighs.text_logprobs(chain, texts)
        if not values:
            return _Reading(None, tokens, reused, is_too_long=True)
        difference = values[0] - values[1]
        probability = None if math.isnan(difference) else 0.5 * (1 + math.tanh(difference / 2))
        return _Reading(probability, tokens, reused)

    def _joined(self, readings: Sequence[_Reading]) -> Verdict:
        known = [r.probability for r in readings if r.probability is not None]
        self.num_critiques += len(readings)
        self.num_without_verdict += len(readings) - len(known)
        return Verdict(
            probability=math.fsum(known) / len(known) if known else None,
            num_critiques=len(readings),
            num_verdicts=len(known),
            is_too_long=any(r.is_too_long for r in readings),
            tokens=total([r.tokens for r in readings]),
            tokens_reused=total([r.tokens_reused for r in readings]),
        )

    def _seed_of(self, root: Chain, number: int) -> int:
        text = f"{self._seed}\0{number}\0{root.prompt}".encode(errors="surrogatepass")
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def total(counts: Sequence[int | None]) -> int | None:
    """The sum; None when one of them is unknown."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _plain(text: str) -> str:
    """Words without what decorates them."""
    return text.strip(" \t\n*_`\"'.({[$").casefold()


def _request(sample: Sample) -> int:
    return sample.request
