"""DVTS: subtrees that do not compare themselves with each other."""

from pathlib import Path

import pytest
from support.clock import run_virtual
from support.worlds import (
    SCORES,
    TABLE,
    engine,
    hash_verifier,
    outline,
    random_policy,
    table_policy,
    table_verifier,
)

from stepsearch import Budget, Chain, ConfigurationError, Problem
from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.strategies.dvts import Dvts
from stepsearch.verifiers.scripted import ScriptedVerifier

GOLDEN = Path(__file__).parent.parent / "golden"
PLENTY = Budget(policy_tokens=None)


def test_golden_tree() -> None:
    """Checked by hand: three subtrees of two candidates, in pairs of first steps.

    The first and the second go on from their "left" (0.80), the third has only "right" (0.30) and
    takes the earlier one. The first drew "bad" twice and must follow it (0.10), which a beam would
    not; the second leaves "bad" for "good" (0.90). Each ends with its first finished best. The open
    siblings are no candidates: six chains vote.
    """
    solution = engine(
        Dvts(n=6, width=2), table_policy(TABLE), table_verifier(SCORES), seed=2
    ).solve("q")
    assert outline(solution.tree) == (GOLDEN / "dvts.txt").read_text()
    assert solution.stop == "done"
    assert [candidate.answer for candidate in solution.candidates].count("9.") == 2
    assert len(solution.candidates) == 6
    assert solution.answer == "9."
    assert solution.score == pytest.approx(1.7 / (1.7 + 1.4 + 0.4))


def test_more_diverse_than_a_beam_of_the_same_size() -> None:
    """A beam's places go to its best first steps; every subtree follows one of its own."""

    def followed(strategy) -> list[int]:
        search = engine(strategy, random_policy(eos=0, max_depth=4), hash_verifier())
        solutions = search.solve_many(Problem(text="q", id=str(i)) for i in range(12))
        return [len({s.tree.path(c.node)[0] for c in s.candidates}) for s in solutions]

    assert followed(Dvts(n=12, width=3)) == [4] * 12
    assert sum(followed(Beam(n=12, width=3))) < 3 * 12


def test_one_subtrees_failure_is_not_the_searchs() -> None:
    """The subtree that fails is the last to expand: the others' answer stands."""

    def score(chain: Chain) -> float:
        return float("nan") if "bad" in chain.text else 0.5

    table = {"": ["fine ", "hard "], "fine ": ["#### 1."], "hard ": ["bad "]}
    verifier = ScriptedVerifier(score_fn=score)
    solutions = [
        engine(Dvts(n=2, width=1), table_policy(table), verifier, seed=seed).solve("q")
        for seed in range(8)
    ]
    both = {tuple(s.tree.texts[n] for n in s.tree.children(0)): s for s in solutions}
    assert both["fine ", "hard "].stop == both["hard ", "fine "].stop == "done"
    assert both["fine ", "hard "].answer == "1."
    assert both["hard ", "hard "].stop == "verifier_failed"


def test_a_slow_subtree_keeps_another_one_waiting_by_a_step_at_most() -> None:
    """Results enter in the order asked for, so a fast subtree leads by one step, not by more."""

    def seconds(chain: Chain, seed: int) -> float:
        return 1.0 if chain.text.startswith("fast") else 10.0 if chain.text else 0.0

    def propose(chain: Chain, seed: int):
        if not chain.text:
            return scripted_step("fast " if seed % 2 else "slow ", "step")
        return scripted_step("#### 1", "eos") if len(chain) == 4 else scripted_step("on ", "step")

    policy = ScriptedPolicy(propose, latency=seconds)
    search = engine(Dvts(n=8, width=1), policy, hash_verifier(), budget=PLENTY)
    solution, passed = run_virtual(search.asolve("q"))
    starts = {solution.tree.texts[node] for node in solution.tree.children(0)}
    assert starts == {"fast ", "slow "}
    assert passed == pytest.approx(40), "the slow ones alone: nothing is added to them"


def test_runs_side_by_side() -> None:
    """Eight subtrees take the time of one."""
    policy = random_policy(eos=0, max_depth=5, latency=lambda chain, seed: 1.0)
    search = engine(Dvts(n=16, width=2), policy, hash_verifier(), budget=PLENTY)
    solution, passed = run_virtual(search.asolve("q"))
    assert solution.stop == "done"
    assert passed == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n": 0}, "search.n=0 must be a whole number, at least 1"),
        ({"width": -1}, "search.width=-1"),
        ({"max_steps": 0}, "search.max_steps=0"),
        ({"n": 2, "width": 4}, "search.n=2 must be a multiple of search.width=4"),
        ({"n": 6, "width": 4}, "search.n=6 must be a multiple of search.width=4"),
    ],
)
def test_parameters_are_checked(settings, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Dvts(**settings)
