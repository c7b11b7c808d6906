"""The suite for verifiers: ours pass, and every check is failed by one that is broken so."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.worlds import hash_verifier

from stepsearch.search.contracts import (
    ScoreFailure,
    StepScores,
    Verifier,
    VerifierSpec,
)
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.tree import Chain
from stepsearch.testing import ConformanceError, check_policy, check_strategy, check_verifier
from stepsearch.verifiers.ensemble import EnsembleVerifier
from stepsearch.verifiers.rule import RuleVerifier
from stepsearch.verifiers.scripted import ScriptedVerifier


def test_our_verifiers_pass() -> None:
    passed = check_verifier(RuleVerifier())
    assert "order" in passed
    assert check_verifier(hash_verifier()) == passed
    for kind in ("outcome", "prefix"):
        check_verifier(ScriptedVerifier(score_fn=lambda chain: [0.5], kind=kind))  # type: ignore[arg-type]
    judge = ScriptedVerifier(score_fn=lambda chain: [0.5], kind="outcome", name="orm")
    check_verifier(EnsembleVerifier([RuleVerifier(), judge]))
    growing = ScriptedVerifier(score_fn=lambda c: [1 / len(c)] * len(c), incremental=False)
    check_verifier(growing)


class Bare:
    """Has no spec, count_tokens or run."""

    async def score(self, chains: object) -> list[object]:
        return []


@pytest.mark.parametrize("check", [check_verifier, check_policy, check_strategy])
def test_an_object_that_lacks_a_part_is_told_which(check: Callable[[Any], object]) -> None:
    with pytest.raises(ConfigurationError, match=r"Bare has no (spec|run)"):
        check(Bare())


class Broken:
    """The rule, with something wrong."""

    def __init__(self, **spec: Any) -> None:
        self.rule = RuleVerifier()
        self.spec: VerifierSpec = replace(self.rule.spec, name="broken", **spec)

    def count_tokens(self, chain: Chain) -> int | None:
        return 0

    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        return await self.rule.score(chains)


class Changed(Broken):
    """Changes what the rule returned."""

    def __init__(self, change: Callable[[Chain, StepScores], StepScores], **spec: Any) -> None:
        super().__init__(**spec)
        self._change = change

    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        return list(map(self._change, chains, await super().score(chains)))


class Sorts(Broken):
    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        return sorted(await super().score(chains), key=lambda s: -len(s.values))


class Drops(Broken):
    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        return (await super().score(chains))[:-1] if len(chains) > 1 else []


class NeedsSome(Broken):
    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        assert chains
        return await super().score(chains)


class Negative(Broken):
    def count_tokens(self, chain: Chain) -> int | None:
        return -1 if len(chain) else 0


class Hangs(Broken):
    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        await asyncio.sleep(60)
        return []


def with_values(scores: StepScores, value: Callable[[int], float]) -> StepScores:
    return replace(scores, values=tuple(value(k) for k in range(len(scores.values))), notes=())


def only_new(chain: Chain, scores: StepScores) -> StepScores:
    return with_values(scores, lambda k: chain.num_new / 10)


def looks_ahead(chain: Chain, scores: StepScores) -> StepScores:
    return with_values(scores, lambda k: 1 / len(chain))


def raises_on_empty(chain: Chain, scores: StepScores) -> StepScores:
    if not chain.texts[0].strip():
        raise ValueError("empty step")
    return scores


BROKEN_VERIFIERS: list[tuple[str, str, Verifier]] = [
    ("spec", "spec.name is empty", Broken(range="unbounded", threshold=None)),
    ("spec", "lies outside range", Broken(threshold=2.0)),
    ("spec", "plain JSON", Broken(provenance={"model": object()})),
    ("spec", "needs range 'probability'", Broken(aggregation="product", range="unbounded")),
    ("counts", "missing: 0 scores", Changed(lambda c, s: StepScores())),
    ("counts", "not_a_number", Changed(lambda c, s: with_values(s, lambda k: math.nan))),
    ("counts", "out_of_range", Changed(lambda c, s: with_values(s, lambda k: 1.5))),
    ("counts", "give one for each", Drops()),
    ("order", "in another order", Sorts()),
    ("repeat", "second time", Changed(lambda c, s: with_values(s, lambda k: random.random()))),
    ("growth", "num_new says what is asked", Changed(only_new)),
    ("growth", "declare incremental=False", Changed(looks_ahead)),
    ("words", "aligned to the end", Changed(lambda c, s: replace(s, notes=("x",) * 9))),
    ("words", "give one a value or none", Changed(lambda c, s: replace(s, notes=("x",)))),
    ("awkward texts", "kind|'malformed'", Changed(raises_on_empty)),
    ("reserved strings", "kind 'malformed'", Broken(reserved=("<mark>",))),
    ("length", "never cut", Broken(max_length=50)),
    ("tokens", "count_tokens gives -1", Negative()),
    ("tokens", "tokens=-5 is negative", Changed(lambda c, s: replace(s, tokens=-5))),
    ("nothing", "AssertionError", NeedsSome()),
]
BROKEN_VERIFIERS[0][2].spec = replace(BROKEN_VERIFIERS[0][2].spec, name="")  # type: ignore[misc]


@pytest.mark.parametrize(("check", "message", "verifier"), BROKEN_VERIFIERS)
def test_broken_verifiers_are_told_what_to_do(check: str, message: str, verifier: Verifier) -> None:
    with pytest.raises(ConformanceError) as caught:
        check_verifier(verifier)
    assert any(part in caught.value.failures[check] for part in message.split("|"))
    assert f"- {check}: " in str(caught.value)


def test_a_verifier_that_hangs_is_named() -> None:
    with pytest.raises(ConformanceError, match="did not come back within"):
        check_verifier(Hangs(), timeout=0.02)


def test_a_plug_in_that_blocks_ends_the_suite() -> None:
    def block(chain: Chain) -> float:
        block.calls += 1
        time.sleep(1.5 if block.calls == 1 else 0)
        return 0.5

    block.calls = 0
    with pytest.raises(ConformanceError, match="blocked the event loop") as caught:
        check_verifier(ScriptedVerifier(score_fn=block), timeout=0.1)
    assert list(caught.value.failures) == ["counts"]


def test_a_failure_that_is_a_number_is_one_or_the_other() -> None:
    failure = ScoreFailure("missing", "x")
    both = Changed(lambda c, s: replace(s, failure=failure))
    with pytest.raises(ConformanceError, match="must get its scores"):
        check_verifier(both)


@pytest.mark.parametrize(
    ("check", "kind"),
    [(check_policy, "policy"), (check_verifier, "verifier"), (check_strategy, "strategy")],
)
def test_a_class_is_no_object(check: Any, kind: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"check_{kind}\(Beam\(...\)\)"):
        check(Beam)


def test_scores_that_are_no_numbers_are_not_said_to_be_out_of_order() -> None:
    broken = Changed(lambda c, s: with_values(s, lambda k: math.nan))
    with pytest.raises(ConformanceError) as caught:
        check_verifier(broken)
    assert "order" not in caught.value.failures


def test_a_method_that_is_no_coroutine_is_told_to_become_one() -> None:
    class Plain:
        spec = hash_verifier().spec

        def count_tokens(self, chain: Chain) -> None:
            return None

        def score(self, chains: Sequence[Chain]) -> list[StepScores]:
            return [StepScores(values=(0.5,) * chain.num_new) for chain in chains]

    with pytest.raises(ConformanceError, match="write `async def`"):
        check_verifier(Plain())  # type: ignore[arg-type]
