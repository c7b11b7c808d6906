"""What the engine tax replays, and the line that it makes of its rounds; no engine runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from stepsearch.benchmarks.perf.gpu_replay import longest_path, replay_of
from stepsearch.benchmarks.perf.gpu_rounds import Run
from stepsearch.benchmarks.perf.gpu_row import HEAD, Row
from stepsearch.benchmarks.perf.gpu_tax import Plan
from stepsearch.policies.vllm import VllmPolicy
from stepsearch.search.tree import ROOT, Tree
from stepsearch.search.types import Solution, Step


def runs(*seconds: float) -> tuple[Run, ...]:
    return tuple(
        Run(seconds=s, tokens=1000, passes=round(10 * s), rows=1000, host=f"round of {s} s")
        for s in seconds
    )


def test_only_the_largest_number_of_problems_has_rounds() -> None:
    plan = Plan(searches=["beam"], problems=[8, 64, 1], n=64, rounds=3, until=1.0)
    assert [plan.rounds_at(load) for load in (64, 8, 1)] == [3, 1, 1]


def test_a_row_takes_the_kind_of_raw_run_with_the_smaller_median() -> None:
    row = Row(
        model="0.5b",
        search="beam",
        concurrency=64,
        requests=5,
        path=300,
        longest=100,
        runs=runs(14.0, 13.0, 15.0),
        raw=runs(9.0, 12.0, 12.5),
        raw_seeded=runs(10.0, 11.0, 10.5),
    )
    assert row.faster_raw is row.raw_seeded
    said = row.line()
    for part in ("14.00", "12.00", "10.50", "1.40 [1.18, 1.43]", ">1.25!", "140/100", "7/10"):
        assert f" {part} " in said
    assert said.endswith("round of 14.0 s")
    assert said.index("1.40 [") == HEAD.index("tax [")


def test_a_row_with_one_kind_of_raw_run_and_no_aim() -> None:
    row = Row(model="tiny", search="mcts", concurrency=1, runs=runs(2.0), raw=runs(1.0))
    assert "2.00 [2.00, 2.00]" in row.line()
    assert " - " in row.line()
    assert "!" not in row.line()


def test_what_a_search_asked_for() -> None:
    tree = Tree("q")
    first = tree.add(ROOT, Step(text="ab", token_ids=(1, 2)))
    tree.add(ROOT, Step(text="c", token_ids=(3,)))
    tree.add(first, Step(text="def", token_ids=(4, 5, 6)))
    policy = cast(VllmPolicy, SimpleNamespace(prompt_ids=lambda prompt: (9,)))
    solutions = [cast(Solution, SimpleNamespace(tree=tree))]
    assert replay_of(policy, "beam", solutions) == ([(9,), (9,), (9, 1, 2)], [2, 1, 3])
    assert longest_path(solutions) == 5
    chains = replay_of(policy, "best_of_n", solutions)
    assert (chains.prompts, sorted(chains.tokens)) == ([(9,), (9,)], [1, 5])
