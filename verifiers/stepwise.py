"""Scores of solutions that come from a file rather than from a search: one for every step."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

from stepsearch.search.contracts import ScoreFailure, StepScores, Verifier, VerifierSpec
from stepsearch.search.errors import VerifierError
from stepsearch.search.outage import patient
from stepsearch.search.scores import checked
from stepsearch.search.tree import ROOT, Chain, Tree
from stepsearch.search.types import Step

Scored = tuple[float, ...] | ScoreFailure


def chain_of(question: str, steps: Sequence[str]) -> Chain:
    """A finished solution as a chain whose steps all await a score.

    Args:
        question: the question.
        steps: text of every step; a line end is added where it has none.
    """
    texts = [text if text.endswith("\n") else text + "\n" for text in steps]
    stops = ["step"] * (len(texts) - 1) + ["eos"]
    made = tuple(
        Step(text=text, stop="eos" if stop == "eos" else "step")
        for text, stop in zip(texts, stops, strict=False)
    )
    return Tree(question).chain(ROOT, made)


def prefix(chain: Chain, num_steps: int) -> Chain:
    """The first steps of a chain that is not in a tree yet, all of them awaiting a score."""
    return chain.tree.chain(chain.node, chain.tail[:num_steps])


async def ask(verifier: Verifier, chains: Sequence[Chain]) -> list[StepScores]:
    """A verifier's scores of some chains, one for each; an outage is waited out as in a search.

    A chain for which alone it stays out of reach has a failure.

    Raises:
        VerifierError: its `score` is not what the contract says, its backend failed for good, or
            it stays out of reach for all of several chains.
    """
    found = await patient(_Strict(verifier))(chains)
    errors = [result for result in found if isinstance(result, Exception)]
    if len(errors) == len(chains) > 1:
        raise errors[0]
    return [_unreached(result) if isinstance(result, Exception) else result for result in found]


def _unreached(error: Exception) -> StepScores:
    reason = str(error) if isinstance(error, VerifierError) else repr(error)
    return StepScores(failure=ScoreFailure("missing", reason))


@dataclass(frozen=True, slots=True)
class _Strict:
    """A verifier whose `score` is held to the contract."""

    inner: Verifier

    @property
    def spec(self) -> VerifierSpec:
        return self.inner.spec

    def count_tokens(self, chain: Chain) -> int | None:
        return self.inner.count_tokens(chain)

    async def score(self, chains: Sequence[Chain]) -> Sequence[StepScores]:
        name = self.spec.name
        called = self.inner.score(chains)
        if not inspect.isawaitable(called):
            raise VerifierError(
                f"{name}: score gives a {type(called).__name__}, which cannot be awaited; write it"
                " as `async def score` that returns a list, without `yield`"
            )
        try:
            found = list(await called)
        except GeneratorExit as error:
            raise VerifierError(
                f"{name}: score ended by GeneratorExit; let no closed generator's end out of it"
            ) from error
        if len(found) != len(chains):
            raise VerifierError(
                f"{name}: {len(found)} results for {len(chains)} chains; return one for each"
            )
        return found


async def score_steps(verifier: Verifier, chains: Sequence[Chain]) -> list[Scored]:
    """One score for every step of every chain, or why there is none.

    A verifier that gives one number for a whole prefix is asked for every prefix.

    Raises:
        VerifierError: the verifier's backend failed for good.
    """
    if verifier.spec.kind == "step":
        results = await ask(verifier, chains)
        return [_values(verifier, *pair) for pair in zip(chains, results, strict=True)]
    prefixes = [[prefix(c, k) for k in range(1, len(c) + 1)] for c in chains]
    flat = [one for many in prefixes for one in many]
    results = await ask(verifier, flat)
    last = iter([_values(verifier, *pair) for pair in zip(flat, results, strict=True)])
    return [_joined([next(last) for _ in many]) for many in prefixes]


def _values(verifier: Verifier, chain: Chain, scores: StepScores) -> Scored:
    good = checked(scores, verifier.spec, num_steps=len(chain), num_new=chain.num_new)
    return good.values if good.failure is None else good.failure


def _joined(scored: Sequence[Scored]) -> Scored:
    """The last score of every prefix; the first failure where there is one."""
    values = []
    for scores in scored:
        if isinstance(scores, ScoreFailure):
            return scores
        values.append(scores[-1])
    return tuple(values)
