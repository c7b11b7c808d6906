"""Labels at equal cost: what a method spends, what is true of a step, and that all of it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepsearch.benchmarks.perf.label_budget import METHODS
from stepsearch.benchmarks.perf.label_methods import measure, table
from stepsearch.benchmarks.perf.label_setup import Setup
from stepsearch.benchmarks.perf.label_truth import label_figures, right_states
from stepsearch.search.errors import ConfigurationError
from stepsearch.verifiers.training.lines import read_lines, write_lines

WORKED = "There are 10 - 3 = 7 left.\nThere are 7 - 2 = 5 left.\n#### 5"
TINY = Setup(
    budget=2500,
    num_taught=480,
    policy_epochs=5,
    num_held_out=12,
    num_far=8,
    num_choices=4,
    prm_steps=3,
)


@pytest.mark.parametrize(
    ("steps", "right"),
    [
        (["10 - 3 = 7", "7 - 2 = 5", "#### 5"], [1, 1, 1]),
        (["10 - 4 = 6", "7 - 2 = 5", "#### 5"], [0, 1, 1]),  # the way there does not matter
        (["10 - 3 = 7", "7 - 2 = 4", "#### 4"], [1, 0, 0]),
        (["10 - 3 =", "#### 7"], [0, 0]),  # no number; another one
        (["10 - 3 = 7", "7 - 2 = 5", "#### 5", "#### 5"], [1, 1, 1, 0]),
    ],
)
def test_a_state_is_right_where_the_worked_solution_is(steps: list[str], right: list[int]) -> None:
    assert right_states(steps, WORKED) == right


def test_labels_are_counted_and_compared_with_states(tmp_path: Path) -> None:
    steps = ["10 - 3 = 7", "7 - 2 = 4", "#### 4"]
    solution = {"steps": steps, "labels": [0.25, None, 0.0], "outcome": 0.0, "answer": "4"}
    unlabelled = solution | {"labels": [None, None, None]}
    row = {"id": "q", "problem": "p", "answer": "5", "solutions": [solution, unlabelled]}
    write_lines(tmp_path / "labelled.jsonl", [row])
    found = label_figures(tmp_path / "labelled.jsonl", {"q": WORKED})
    assert found == {"solutions": 1, "steps": 2, "agree": 50}


@pytest.mark.slow  # a policy and six verifiers are trained, though on next to nothing
def test_every_method_spends_the_budget_and_no_more(tmp_path: Path) -> None:
    found = measure(tmp_path, 0, TINY)
    assert list(found) == list(METHODS)
    for name, figures in found.items():
        assert 0.6 * TINY.budget < figures["tokens"] <= TINY.budget, name
        assert (figures["rollouts"] > 0) == (name not in ("outcome", "checker", "both"))
        assert figures["steps"] > 0
    soft, hard = found["monte_carlo soft"], found["monte_carlo hard"]
    assert (soft["questions"], soft["rollouts"]) == (hard["questions"], hard["rollouts"])
    assert found["outcome"]["questions"] > found["bisection"]["questions"] >= soft["questions"]
    rollouts_are_counted(tmp_path, soft["rollouts"])
    assert table([found]).count("\n") == 2 + len(METHODS)
    assert measure(tmp_path, 0, TINY) == found  # nothing is done twice
    with pytest.raises(ConfigurationError, match="prm_steps"):
        measure(tmp_path, 0, Setup(budget=2500, prm_steps=4))


def rollouts_are_counted(folder: Path, rollouts: int) -> None:
    """Every prefix but the whole has `k` of them, and `hard` says whether one was right."""
    soft = list(read_lines(folder / "bought-monte_carlo-soft.jsonl"))
    hard = list(read_lines(folder / "bought-monte_carlo-hard.jsonl"))
    pairs = [
        (a["labels"], b["labels"])
        for one, other in zip(soft, hard, strict=True)
        for a, b in zip(one["solutions"], other["solutions"], strict=True)
    ]
    assert rollouts == TINY.k * sum(len(labels) - 1 for labels, _ in pairs)
    assert any(0 < value < 1 for labels, _ in pairs for value in labels)
    for values, whether in pairs:
        assert whether == [float(value > 0) for value in values]
    assert json.loads((folder / "setup.json").read_text())["k"] == TINY.k
