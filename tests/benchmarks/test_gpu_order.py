"""Units of virtual time: a token of every continuation takes one, and nothing else does."""

from __future__ import annotations

import pytest

from stepsearch.benchmarks.perf.gpu_order import draw, units
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.strategies.mcts import Mcts


def test_one_chain_takes_a_unit_a_token() -> None:
    passed, tokens = units(Mcts(simulations=8, width=1, max_steps=8), "a")
    assert passed == tokens > 0


def test_candidates_of_a_step_are_written_side_by_side() -> None:
    passed, tokens = units(Beam(n=64, width=4, max_steps=1), "a")
    assert passed <= 128
    assert passed < tokens / 10


def test_steps_end_as_often_as_those_of_the_random_model() -> None:
    drawn = [draw(seed, 0) for seed in range(4000)]
    ends = [stop for _, stop in drawn]
    assert ends.count("step") / ends.count("eos") == pytest.approx(4.0, rel=0.15)
    assert sum(count for count, _ in drawn) / len(drawn) == pytest.approx(19.2, rel=0.1)
