"""What the engine relies on in a verifier."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import get_args

from stepsearch.search.aggregate import AGGREGATIONS
from stepsearch.search.contracts import Kind, Range, ScoreFailure, StepScores, Verifier
from stepsearch.search.errors import VerifierError
from stepsearch.search.scores import bounds, checked
from stepsearch.search.tree import Chain
from stepsearch.testing.checks import require, require_object, run_checks
from stepsearch.verifiers.stepwise import chain_of, prefix

QUESTION = "Tom has 3 boxes with 4 pens each. He gives 5 pens away. How many pens are left?"
SOLUTIONS = (
    ("Tom has 3 * 4 = 12 pens.", "He has 12 - 5 = 7 pens left.", "#### 7"),
    ("Tom has 3 + 4 = 8 pens.", "#### 8"),
    ("He starts with pens in boxes.",),
)
AWKWARD = ("", " \n ", "two\nlines\n\nand more", "數學 ½ é \U0001f600", "\ud800", "<b>{x}</b>", "#")


def check_verifier(
    verifier: Verifier,
    *,
    chains: Sequence[Chain] | None = None,
    tolerance: float = 1e-4,
    timeout: float = 60.0,
) -> list[str]:
    """Check that a verifier keeps the contract; see `Verifier` and `StepScores`.

    Args:
        verifier: the verifier.
        chains: finished chains that it can score; default: short solutions of a word problem.
        tolerance: by how much a score may differ when it is computed beside others.
        timeout: seconds that each check may take.

    Returns:
        The names of the checks, all passed.

    Raises:
        ConformanceError: what is wrong, and what to do.
        ConfigurationError: a class was given, or an object that lacks a part.
    """
    require_object("verifier", verifier)
    given = list(chains) if chains is not None else [chain_of(QUESTION, s) for s in SOLUTIONS]
    suite = _Suite(verifier, given, tolerance)
    checks = {
        "spec": suite.spec,
        "counts": suite.counts,
        "order": suite.order,
        "repeat": suite.repeat,
        "growth": suite.growth,
        "words": suite.words,
        "awkward texts": suite.awkward_texts,
        "reserved strings": suite.reserved_strings,
        "length": suite.length,
        "tokens": suite.tokens,
        "nothing": suite.nothing,
    }
    return run_checks(f"verifier {verifier.spec.name!r}", checks, timeout)


class _Suite:
    def __init__(self, verifier: Verifier, chains: Sequence[Chain], tolerance: float) -> None:
        self._verifier = verifier
        self._chains = chains
        self._tolerance = tolerance

    async def spec(self) -> None:
        spec = self._verifier.spec
        require(spec.name, "spec.name is empty; it names the score column")
        require(spec.kind in get_args(Kind), f"spec.kind={spec.kind!r} is not known")
        require(spec.range in get_args(Range), f"spec.range={spec.range!r} is not known")
        require(spec.aggregation in AGGREGATIONS, f"spec.aggregation={spec.aggregation!r}")
        require(
            spec.aggregation != "product" or spec.range == "probability",
            "spec.aggregation='product' needs range 'probability'; use last, min or mean",
        )
        low, high = bounds(spec)
        require(
            spec.threshold is None or low <= spec.threshold <= high,
            f"spec.threshold={spec.threshold} lies outside range {spec.range!r}",
        )
        try:
            json.dumps(dict(spec.provenance), allow_nan=False)
        except (TypeError, ValueError) as error:
            require(False, f"spec.provenance must be plain JSON for traces: {error}")

    async def counts(self) -> None:
        for num_new in (None, 1):
            chains = [_awaiting(chain, num_new) for chain in self._chains]
            for chain, scores in zip(chains, await self._score(chains), strict=True):
                self._good(chain, scores)

    async def order(self) -> None:
        together = _values(await self._score(self._chains))
        backwards = _values(await self._score(self._chains[::-1]))[::-1]
        alone = [_values(await self._score([chain]))[0] for chain in self._chains]
        for other, how in ((backwards, "in another order"), (alone, "alone")):
            require(
                all(map(self._same, together, other)),
                f"chains scored {how} get other scores ({together} and {other}); result i belongs "
                "to chain i and must not depend on what else is in the call (padding, state)",
            )

    async def repeat(self) -> None:
        first, again = await self._values(self._chains), await self._values(self._chains)
        require(
            all(map(self._same, first, again)),
            f"the same chains get other scores the second time ({first} and {again}); fix the "
            "seeds of whatever is random",
        )

    async def growth(self) -> None:
        spec = self._verifier.spec
        for chain in self._chains:
            [whole] = await self._values([chain])
            [newest] = await self._values([_awaiting(chain, 1)])
            require(
                self._same(whole[-1:], newest[-1:]),
                f"the last step scores {newest[-1:]} when only it awaits a score and {whole[-1:]} "
                "when all do; num_new says what is asked for, not what is judged",
            )
            for length in range(1, len(chain)) if spec.incremental and spec.kind == "step" else ():
                [before] = await self._values([prefix(chain, length)])
                require(
                    self._same(before, whole[:length]),
                    f"scores of the first {length} steps change when the chain grows ({before} "
                    f"and {whole[:length]}); declare incremental=False, or look at earlier steps "
                    "only",
                )

    async def words(self) -> None:
        for scores in await self._score(self._chains):
            for name, said in {"notes": scores.notes, **scores.parts}.items():
                require(
                    len(said) <= len(scores.values),
                    f"{name} has {len(said)} entries for {len(scores.values)} values; give one for "
                    "each value, aligned to the end",
                )
            if scores.notes:
                require(len(scores.notes) == len(scores.values), "notes: give one a value or none")

    async def awkward_texts(self) -> None:
        chains = [chain_of(QUESTION, [text, "1 + 1 = 2"]) for text in AWKWARD]
        for text, chain in zip(AWKWARD, chains, strict=True):
            try:
                [scores] = await self._score([chain])
            except Exception as error:
                require(
                    False,
                    f"a step {text!r} raises {type(error).__name__}: {error}; return "
                    "StepScores(failure=ScoreFailure('malformed', ...)) for a text that you cannot "
                    "read",
                )
            if scores.failure is None:
                self._good(chain, scores)

    async def reserved_strings(self) -> None:
        for reserved in self._verifier.spec.reserved:
            for chain in (
                chain_of(QUESTION, [f"1 + 1 = 2 {reserved}"]),
                chain_of(f"{QUESTION} {reserved}", ["1 + 1 = 2"]),
            ):
                [scores] = await self._score([chain])
                require(
                    scores.failure is not None,
                    f"a text with the reserved string {reserved!r} gets the scores "
                    f"{scores.values}; return a failure of kind 'malformed'",
                )

    async def length(self) -> None:
        limit = self._verifier.spec.max_length
        if limit is None:
            return
        chain = chain_of(QUESTION, ["7 " * (2 * limit + 2)])
        try:
            [scores] = await self._score([chain])
        except VerifierError:
            return  # it may be told to end the search
        require(
            scores.failure is not None and scores.failure.kind == "too_long",
            f"a chain above max_length={limit} gets {scores}; return a failure of kind 'too_long' "
            "and never cut a chain silently",
        )

    async def tokens(self) -> None:
        empty = prefix(self._chains[0], 0)
        for chain in (empty, *self._chains):
            count = self._verifier.count_tokens(chain)
            require(
                count is None or (isinstance(count, int) and count >= 0),
                f"count_tokens gives {count!r}; give a number from 0 on, or None when unknown",
            )
        for scores in await self._score(self._chains):
            for name in ("tokens", "tokens_reused"):
                count = getattr(scores, name)
                require(count is None or count >= 0, f"StepScores.{name}={count} is negative")

    async def nothing(self) -> None:
        require(len(await self._verifier.score([])) == 0, "no chains must give no scores")

    async def _score(self, chains: Sequence[Chain]) -> Sequence[StepScores]:
        results = await self._verifier.score(chains)
        require(
            len(results) == len(chains),
            f"{len(chains)} chains give {len(results)} results; give one for each, in their order",
        )
        return results

    async def _values(self, chains: Sequence[Chain]) -> list[tuple[float, ...]]:
        results = await self._score(chains)
        return [self._good(chain, s).values for chain, s in zip(chains, results, strict=True)]

    def _good(self, chain: Chain, scores: StepScores) -> StepScores:
        good = checked(scores, self._verifier.spec, num_steps=len(chain), num_new=chain.num_new)
        if isinstance(good.failure, ScoreFailure):
            require(
                False,
                f"{good.failure.kind}: {good.failure.message}; a chain of {len(chain)} ordinary "
                f"steps, {chain.num_new} of them new, must get its scores within range "
                f"{self._verifier.spec.range!r} (give chains=... if it cannot read these)",
            )
        require(not scores.values or scores.failure is None, "give values or a failure, not both")
        return good

    def _same(self, first: Sequence[float], second: Sequence[float]) -> bool:
        near = self._tolerance
        return len(first) == len(second) and all(
            math.isclose(a, b, rel_tol=near, abs_tol=near) or (a != a and b != b)  # NaN
            for a, b in zip(first, second, strict=True)
        )


def _values(results: Sequence[StepScores]) -> list[tuple[float, ...]]:
    return [scores.values for scores in results]


def _awaiting(chain: Chain, num_new: int | None) -> Chain:
    return Chain(chain.tree, chain.node, chain.tail, len(chain) if num_new is None else num_new)
