"""What scores are used for beyond picking: first errors, withheld answers, signs on screen."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from support.worlds import engine, table_policy, table_verifier

import stepsearch
from stepsearch import ConfigurationError, Solution, VerifierSpec, solve
from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.contracts import ScoreFailure
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.search.strategies.greedy import Greedy
from stepsearch.search.task import MathTask
from stepsearch.search.tree import Chain
from stepsearch.search.types import ScoredStep, Step, Stop
from stepsearch.show import render
from stepsearch.verifiers.rule import RuleVerifier
from stepsearch.verifiers.scripted import ScriptedVerifier

LINES = ("2 + 2 = 4\n", "4 + 1 = 6\n", "so it grows\n", "#### 6")


def recite(chain: Chain, seed: int) -> Step:
    text = LINES[len(chain)]
    return scripted_step(text, "eos" if text.startswith("####") else "step")


def solved(**settings: Any) -> Solution:
    return solve("q", search="greedy", policy=ScriptedPolicy(recite), **settings)


def of_scores(*scores: float | None, **spec: Any) -> Solution:
    """A solution whose steps have these scores."""
    steps = tuple(ScoredStep(text=f"s{i}", score=s, note="too long") for i, s in enumerate(scores))
    return replace(solved(verifier="rule"), steps=steps, verifier=VerifierSpec(name="v", **spec))


def test_the_first_wrong_step_is_named() -> None:
    solution = solved(verifier="rule")
    assert solution.first_error() == 1
    assert solution.first_error(0.01) is None
    assert solution.first_error(2) == 0
    assert of_scores(0.6, 0.5, 0.4, threshold=0.5).first_error() == 2, "at the threshold is right"
    assert of_scores(threshold=0.5).first_error() is None


def test_a_verifier_without_a_threshold_asks_for_one() -> None:
    solution = solved(verifier=ScriptedVerifier(score_fn=lambda chain: 0.5))
    with pytest.raises(stepsearch.UnjudgedError, match=r"'scripted' has no threshold.*first_error"):
        solution.first_error()
    assert solution.first_error(0.6) == 0
    with pytest.raises(stepsearch.UnjudgedError, match="no verifier"):
        solved(verifier="none").first_error()
    with pytest.raises(stepsearch.UnjudgedError, match="nan"):
        solution.first_error(float("nan"))


def test_a_step_without_a_score_hides_what_follows_it_and_nothing_before() -> None:
    assert of_scores(0.1, None, threshold=0.5).first_error() == 0
    with pytest.raises(stepsearch.UnjudgedError, match=r"step 1 has no score \(too long\)"):
        of_scores(0.9, None, 0.1, threshold=0.5).first_error()


def test_the_rule_judges_only_where_wrong_differs_from_neutral() -> None:
    assert RuleVerifier().spec.threshold == 0.3
    assert RuleVerifier(wrong=0.3).spec.threshold is None


@pytest.mark.parametrize("floor", [float("nan"), float("inf"), True, "high", 70, -0.1])
def test_a_floor_that_cannot_be_compared_is_refused(floor: Any) -> None:
    policy = table_policy({"": ["1."]})
    verifier = ScriptedVerifier(score_fn=lambda chain: 0.5)
    with pytest.raises(ConfigurationError, match="abstain_below"):
        engine(Greedy(), policy, verifier, abstain_below=floor)


def test_an_unbounded_score_may_have_any_finite_floor() -> None:
    policy = table_policy({"": ["1."]})
    verifier = ScriptedVerifier(score_fn=lambda chain: 50.0, range="unbounded")
    made = engine(Greedy(), policy, verifier, select="best", abstain_below=70)
    assert made.solve("q").stop == "abstained"
    with pytest.raises(ConfigurationError, match="majority"):
        engine(Greedy(), policy, verifier, select="majority", abstain_below=70)


def test_a_withheld_answer_is_shown_as_withheld() -> None:
    solution = solved(verifier="rule", select="best", abstain_below=0.7)
    assert (solution.answer, solution.stop, solution.score) == (None, "abstained", 0.02)
    assert "answer  withheld  (score 0.020 is below abstain_below)" in render(
        solution, colour=False
    )
    kept = solved(verifier="rule", select="best", abstain_below=0.02)
    assert (kept.answer, kept.stop) == ("6", "done")


def test_a_failure_is_not_hidden_by_a_withheld_answer() -> None:
    verifier = ScriptedVerifier(score_fn=lambda chain: ScoreFailure("missing", "gone"))
    made = engine(
        BestOfN(n=2), table_policy({"": ["1."]}), verifier, select="majority", abstain_below=1.0
    )
    assert made.solve("q").stop == "verifier_failed"


def test_chains_without_a_score_are_not_called_unfinished() -> None:
    verifier = ScriptedVerifier(score_fn=lambda chain: ScoreFailure("missing", "gone"))
    policy = ScriptedPolicy(lambda chain, seed: scripted_step("#### 1", "eos"))
    shown = render(engine(BestOfN(n=2), policy, verifier).solve("q"), colour=False)
    assert "(no finished chain has a score)" in shown
    assert "2 finished" in shown


@pytest.mark.parametrize(
    ("text", "stop", "line"),
    [
        ("#### 1", "eos", "chains  2 finished, answers: 1 x2"),
        ("#### 1", "length", "chains  0 finished, 2 cut, answers: 1 x2"),
        ("hm", "eos", "chains  2 finished, answers: none (none can be read: is the policy one for"),
        ("hm", "length", "chains  0 finished, answers: none\n"),
    ],
)
def test_chains_are_called_what_they_are(text: str, stop: Stop, line: str) -> None:
    policy = ScriptedPolicy(lambda chain, seed: scripted_step(text, stop))
    solution = engine(BestOfN(n=2), policy, None, task=MathTask()).solve("q")
    assert line in render(solution, colour=False)


def test_the_command_line_withholds_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    from stepsearch.cli import main

    world = ["hydra.searchpath=[pkg://support.worldconf]", "policy=world", "verifier=rule"]
    arguments = ["solve", "q", *world, "search=greedy", "select=best", "--json"]
    status = main([*arguments, "abstain_below=0.7"])
    shown = json.loads(capsys.readouterr().out)
    assert (status, shown["stop"], shown["answer"]) == (1, "abstained", None)
    assert shown["score"] < 0.7
    assert main([*arguments, "abstain_below=70"]) == 2
    assert "abstain_below=70" in capsys.readouterr().err


def test_signs_need_no_colour() -> None:
    text = render(of_scores(0.9, 0.6, 0.1, None, threshold=0.5), colour=False)
    lines = text.splitlines()
    assert lines[0].startswith(" 0.900    s0")
    assert lines[1].startswith(" 0.600 ?  s1")
    assert lines[2].startswith(" 0.100 x  s2")
    assert lines[3].startswith("   -      s3")
    assert "steps   3 judged wrong (x), 1 of 4 unsure (?)" in text
    sure = render(of_scores(0.9, 0.8, threshold=0.5), colour=False)
    assert "steps   none judged wrong" in sure
    raw = render(of_scores(-3.0, 5.0, range="unbounded"), colour=False)
    assert "steps " not in raw
    assert "?" not in raw.split("answer")[0]


def test_colours_say_the_same_as_the_signs() -> None:
    lines = render(of_scores(0.9, 0.6, 0.1, threshold=0.5), colour=True).splitlines()
    assert [line[:5] for line in lines[:3]] == ["\x1b[32m", "\x1b[33m", "\x1b[31m"]


@pytest.mark.parametrize(
    ("scores", "by", "floor", "is_withheld"),
    [
        ({"1.": 0.3}, "weighted", 0.5, True),  # all agree, on what the verifier doubts
        ({"1.": 0.3}, "weighted", 0.2, False),
        ({"1.": 0.3}, "majority", 0.5, False),
        ({"1.": 0.3}, "best", 0.5, True),
        ({"1.": 0.9, "2.": 0.8}, "weighted", 0.7, True),  # the verifier is sure of both
        ({"1.": 0.9, "2.": 0.8}, "best", 0.7, False),
        ({"1.": 0.9, "2.": 0.8}, "majority", 0.7, True),
        ({"1.": 0.9, "2.": 0.1}, "weighted", 0.7, False),
    ],
)
def test_doubtful_is_what_few_chose_or_the_verifier_doubts(
    scores: dict[str, float], by: Any, floor: float, is_withheld: bool
) -> None:
    policy, verifier = table_policy({"": sorted(scores)}), table_verifier(scores)
    search = engine(BestOfN(n=16), policy, verifier, select=by, abstain_below=floor)
    solution = search.solve("q")
    assert {c.answer for c in solution.candidates} == set(scores)
    assert (solution.stop == "abstained") is is_withheld
    assert (solution.answer is None) is is_withheld


def test_it_is_shown_which_doubt_withheld_an_answer() -> None:
    search = engine(
        BestOfN(n=4), table_policy({"": ["1."]}), table_verifier({"1.": 0.3}), abstain_below=0.5
    )
    shown = render(search.solve("q"), colour=False)
    assert "withheld  (share 1.000 or chain's score 0.300 is below abstain_below)" in shown
