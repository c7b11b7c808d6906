"""What a verifier returns is checked: anything odd is a typed failure, never a number."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.worlds import engine, random_policy

from stepsearch import Chain, StepScores, VerifierSpec
from stepsearch.search.contracts import NewestScores
from stepsearch.search.scores import bounds, checked
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.strategies.mcts import Mcts
from stepsearch.search.trace import read
from stepsearch.verifiers.scripted import ScriptedVerifier

SPEC = VerifierSpec(name="v")
NAN = math.nan


def check(scores: Any, spec: VerifierSpec = SPEC) -> StepScores:
    return checked(scores, spec, num_steps=3, num_new=2)


@pytest.mark.parametrize(
    ("scores", "kind", "words"),
    [
        (None, "malformed", "returned None"),
        (0.5, "malformed", "returned 0.5"),
        (StepScores(values=None), "malformed", "NoneType"),  # type: ignore[arg-type]
        (StepScores(values=(0.5, "0.5")), "malformed", "'0.5', not a number"),  # type: ignore[arg-type]
        (StepScores(values=(0.5, None)), "malformed", "None, not a number"),  # type: ignore[arg-type]
        (StepScores(values=(0.5, 10**400)), "malformed", "too large"),
        (StepScores(values=(0.5,)), "missing", "1 scores"),
        (StepScores(values=(0.5, NAN)), "not_a_number", "nan"),
        (StepScores(values=(0.5, 1.5)), "out_of_range", "1.5"),
        (StepScores(values=(0.5, 0.5), parts={"a": (0.5, NAN)}), "not_a_number", "part 'a'"),
        (StepScores(values=(0.5, 0.5), parts={"a": ("x",)}), "malformed", "part 'a'"),  # type: ignore[dict-item]
        (StepScores(values=(0.5, 0.5), parts={"a": (0.5,) * 3}), "malformed", "part 'a'"),
        (StepScores(values=(0.5, 0.5), parts={"v": (0.5,)}), "malformed", "own name"),
        (StepScores(values=(0.5, 0.5), parts=[0.5]), "malformed", "by name"),  # type: ignore[arg-type]
        (StepScores(values=(0.5, 0.5), notes=("a",)), "malformed", "1 notes for 2 scores"),
        (StepScores(values=(0.5, 0.5), notes=("a", None)), "malformed", "texts"),  # type: ignore[arg-type]
        (StepScores(values=(0.5, 0.5), notes="ab"), "malformed", "texts"),  # type: ignore[arg-type]
        (StepScores(values=(0.5, 0.5), tokens=-1), "malformed", "tokens=-1"),
        (StepScores(values=(0.5, 0.5), tokens=1.5), "malformed", "tokens=1.5"),  # type: ignore[arg-type]
        (StepScores(values=(0.5, 0.5), tokens_reused="3"), "malformed", "tokens_reused='3'"),  # type: ignore[arg-type]
        (StepScores(failure="sorry"), "malformed", "'sorry', not a ScoreFailure"),  # type: ignore[arg-type]
    ],
)
def test_what_is_odd_is_a_failure(scores: Any, kind: str, words: str) -> None:
    found = check(scores)
    assert found.failure is not None
    assert found.failure.kind == kind
    assert words in found.failure.message
    assert (found.values, found.notes, dict(found.parts)) == ((), (), {})
    assert found.tokens is None or found.tokens >= 0


def test_what_is_good_comes_back_as_it_is() -> None:
    good = StepScores(values=(0.5, 1.0), notes=("", "ok"), parts={"a": (0.5,)}, tokens=3)
    assert check(good) == good
    plain = StepScores(values=(0.5, 1.0))
    assert check(plain) is plain, "and costs nothing"
    failed = replace(check(StepScores()), tokens=7)
    assert check(failed) is failed, "checking twice is checking once"


def test_numbers_of_other_libraries_become_numbers() -> None:
    given = StepScores(
        values=tuple(np.array([0.5, 0.25], np.float32)),
        parts={"a": tuple(np.array([1, 0]))},
        tokens=np.int64(3),  # type: ignore[arg-type]
    )
    found = check(given)
    assert found == StepScores(values=(0.5, 0.25), parts={"a": (1.0, 0.0)}, tokens=3)
    assert {type(v) for v in (*found.values, *found.parts["a"])} == {float}
    assert type(found.tokens) is int


@pytest.mark.parametrize(
    ("tokens", "error"),
    [([1], ValueError), ([1, -1], ValueError), ([1, 2.5], TypeError), (["1", "2"], TypeError)],
)
@pytest.mark.parametrize("name", ["tokens", "tokens_reused"])
def test_counts_of_a_column_are_checked(tokens: Any, error: type[Exception], name: str) -> None:
    with pytest.raises(error):
        NewestScores([0.5, 0.5], **{name: tokens})


def test_counts_of_a_column_are_plain() -> None:
    scores = NewestScores(np.array([0.5, 0.25]), np.array([1, 2]))
    assert scores.tokens == array("q", [1, 2])
    assert scores[1:][0] == StepScores(values=(0.25,), tokens=2, tokens_reused=None)


@pytest.mark.parametrize("strategy", [Beam(n=4, width=2), Mcts(simulations=8, rollout=True)])
def test_unbounded_scores_never_overflow(strategy: Any) -> None:
    largest = bounds(VerifierSpec(name="v", range="unbounded"))[1]
    for value, is_good in ((largest, True), (1e308, False)):

        def score(chain: Chain, value: float = value) -> list[float]:
            depths = range(len(chain) - chain.num_new, len(chain))
            return [value if depth % 2 else -value for depth in depths]

        verifier = ScriptedVerifier(score_fn=score, range="unbounded", aggregation="mean")
        solution = engine(strategy, random_policy(), verifier, select="best").solve("q")
        assert (solution.answer is not None) is is_good
        assert ("out_of_range" in (solution.error or "")) is not is_good
        assert all(c.score is None or math.isfinite(c.score) for c in solution.candidates)


class Odd:
    """Returns what it was given for every chain."""

    def __init__(self, scores: Any) -> None:
        self.spec, self.scores = SPEC, scores

    def count_tokens(self, chain: Chain) -> int | None:
        return None

    async def score(self, chains: Sequence[Chain]) -> Any:
        return [self.scores] * len(chains)


@pytest.mark.parametrize(
    "scores",
    [StepScores(values=None), StepScores(values=(0.5,), tokens=-5)],  # type: ignore[arg-type]
)
def test_a_search_reports_what_its_verifier_got_wrong(scores: Any) -> None:
    solution = engine(Beam(n=4, width=2), random_policy(), Odd(scores)).solve("q")
    assert solution.stop == "verifier_failed"
    assert solution.error is not None
    assert solution.error.startswith("malformed: ")
    assert solution.usage.verifier_tokens is None, "a wrong count is an unknown one"


def test_counts_of_other_libraries_stay_numbers_in_a_trace(tmp_path: Any) -> None:
    scores = StepScores(values=(np.float32(0.5),), tokens=np.int64(3))  # type: ignore[arg-type]
    trace = tmp_path / "trace.jsonl"
    engine(Beam(n=2, width=2), random_policy(), Odd(scores), trace=trace).solve("q")
    [found] = read(trace)
    assert type(found.usage.verifier_tokens) is int
    assert found.usage.verifier_tokens == 3 * found.usage.verifier_calls
