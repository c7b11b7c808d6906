"""Made-up word problems: solvable as told, as difficult as asked, train and test apart."""

import asyncio
import re

import pytest

from stepsearch import ConfigurationError
from stepsearch.benchmarks.word_problems import WordProblems, split_of
from stepsearch.search.task import MathTask
from stepsearch.search.tree import ROOT, Chain, Tree
from stepsearch.search.types import Step
from stepsearch.verifiers.rule import RuleVerifier

EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")


def equations(solution: str) -> list[str]:
    return [match.group() for match in EQUATION.finditer(solution)]


def test_solutions_are_right_by_our_own_rule() -> None:
    problems = WordProblems(limit=300).problems()
    for problem in problems:
        lines = problem.meta["solution"].splitlines(keepends=True)
        tree = Tree(problem.text)
        chain = Chain(tree, ROOT, tuple(Step(text=line) for line in lines), len(lines))
        [scores] = asyncio.run(RuleVerifier().score([chain]))
        assert set(scores.values) == {1.0}, problem
        assert len(lines) == problem.meta["steps"] + 1
        assert MathTask().extract(chain.text) == problem.answer


def test_every_number_of_the_solution_was_told_or_computed() -> None:
    words = {"half": 2, "third": 3, "quarter": 4, "fifth": 5, "tenth": 10}
    for problem in WordProblems(limit=300, seed=5).problems():
        known = {int(n) for n in re.findall(r"\d+", problem.text)}
        known |= {n for word, n in words.items() if word in problem.text}
        for a, _, b, result in EQUATION.findall(problem.meta["solution"]):
            assert {int(a), int(b)} <= known, problem
            assert int(result) >= 0
            known.add(int(result))


def test_settings_are_kept() -> None:
    problems = WordProblems(
        limit=100, steps=(3, 4), operations="+-", distractors=(2, 2), difficulty=(2, 2)
    ).problems()
    for problem in problems:
        assert problem.meta["steps"] in (3, 4)
        assert set(problem.meta["operations"]) <= set("+-")
        assert (problem.meta["distractors"], problem.meta["difficulty"]) == (2, 2)


def test_problems_repeat_with_the_seed_and_do_not_depend_on_their_number() -> None:
    few, many = WordProblems(limit=20).problems(), WordProblems(limit=60).problems()
    assert few == many[:20]
    assert len({p.text for p in many}) == len({p.id for p in many}) == 60
    assert few != WordProblems(limit=20, seed=1).problems()


def test_train_and_test_have_no_equations_in_common() -> None:
    seen = {}
    for split in ("train", "test"):
        easy = [
            WordProblems(
                limit=200, seed=seed, split=split, steps=(1, 2), difficulty=(1, 1)
            ).problems()
            for seed in range(3)
        ]
        solved = {tuple(equations(p.meta["solution"])) for problems in easy for p in problems}
        assert {split_of(e) for e in solved} == {split}
        seen[split] = solved
    assert not seen["train"] & seen["test"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"split": "dev"}, "benchmark.split='dev'"),
        ({"limit": 0}, "benchmark.limit=0"),
        ({"operations": "+%"}, "benchmark.operations"),
        ({"steps": (3, 2)}, "benchmark.steps"),
        ({"difficulty": (0, 1)}, "benchmark.difficulty"),
        ({"distractors": (1,)}, "benchmark.distractors"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        WordProblems(**settings)


def test_settings_that_give_too_few_problems_are_refused() -> None:
    narrow = WordProblems(operations="/", steps=(6, 6), difficulty=(1, 1))
    with pytest.raises(ConfigurationError, match=r"benchmark\.limit=200"):
        narrow.problems()
