"""Reranking: rows against counting by hand, and what is refused."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from support.samples import QUICK, accuracy, problem, rows, said, write

from stepsearch import ConfigurationError
from stepsearch.benchmarks.grading import Grader
from stepsearch.benchmarks.rerank import RerankSettings, as_json, rerank
from stepsearch.benchmarks.rerank_text import render
from stepsearch.search.select import choose
from stepsearch.search.task import MathTask
from stepsearch.search.types import Candidate


def by_hand(by: str, value, golds: list[str], groups: list[list[tuple[str | None, float]]]):
    """Mean over all subsets with `search.select.choose`, for N = 1 to 4."""
    task = MathTask()
    means = []
    for n in range(1, 5):
        hits = []
        for gold, group in zip(golds, groups, strict=True):
            found = [
                Candidate(node=i, answer=a, score=s, stop="eos") for i, (a, s) in enumerate(group)
            ]
            for chosen in itertools.combinations(found, n):
                answer = choose(chosen, by, task.equal).candidate
                won = answer is not None and answer.answer is not None
                hits.append(won and task.equal(answer.answer, gold) is True)
        means.append(float(np.mean(hits)))
    return means


PRM = [
    [("5", 0.2), ("7", 0.8), ("7.0", 0.1), ("5", 0.3)],
    [("0.5", 0.6), (None, 1.0), ("3", 0.65), (r"\frac{1}{2}", 0.2)],
]


def test_rows_agree_with_the_selections_of_a_search(samples: Path) -> None:
    found = rows(samples, "prm", num_orders=4000)
    golds = ["7", "1/2"]
    for label, by in (("best prm", "best"), ("weighted prm", "weighted")):
        expected = by_hand(by, None, golds, PRM)
        tolerance = 1e-12 if by == "best" else 0.02
        assert accuracy(found[label]) == pytest.approx(expected, abs=tolerance), label
    expected = by_hand("majority", None, golds, PRM)
    assert accuracy(found["majority, ties by prm"]) == pytest.approx(expected, abs=0.02)
    assert [found[label]["exact"] for label in ("pass", "majority", "best prm")] == [True] * 3
    assert not found["weighted prm"]["exact"]


def test_pass_and_majority_are_always_there(samples: Path) -> None:
    found = rows(samples)
    assert set(found) == {"pass", "majority"}
    assert accuracy(found["pass"]) == pytest.approx([0.5, 5 / 6, 1, 1])
    assert accuracy(found["majority"])[-1] == pytest.approx((0.5 + 1) / 2), "a tie is shared"
    assert found["majority"]["mcnemar"] is None
    assert found["pass"]["mcnemar"] == {"only_a": 1, "only_b": 0, "p": 1.0}


def test_disjoint_groups(samples: Path) -> None:
    found = rows(samples, "prm", is_disjoint=True)
    # a: {5, 7}, {7, 5}; b: {1/2}, {3, 1/2}
    assert accuracy(found["best prm"])[1] == pytest.approx((1 + 0 + 1 + 0) / 4)
    assert accuracy(found["majority"])[1] == pytest.approx((0 + 1 + 1 + 0) / 4)
    assert accuracy(found["pass"])[:2] == pytest.approx([0.5, 1])


@pytest.mark.parametrize(
    ("verifier", "winners"),
    [
        ("prm", ["7", "3"]),
        ("prm:min", ["5", "3"]),
        ("prm:mean", ["5", "3"]),
        ("prm*orm", ["7", "3"]),
        ("prm:min*orm^3", ["7", "3"]),
        ("prm + orm", ["7", "3"]),
    ],
)
def test_expressions(samples: Path, verifier: str, winners: list[str]) -> None:
    [_, _, best] = as_json(
        rerank(RerankSettings(samples=samples, verifiers=[verifier], selections=["best"], **QUICK))
    )["rows"]
    assert best["label"] == f"best {verifier.replace(' ', '')}"
    assert accuracy(best)[-1] == pytest.approx(
        np.mean([w == g for w, g in zip(winners, ["7", "1/2"], strict=True)])
    )


def test_aggregations_cross_all_verifiers(samples: Path) -> None:
    found = rows(samples, "prm", "orm", aggregations=["min", "last"], selections=["best"])
    assert {"best prm (min)", "best prm (last)", "best orm (min)", "best orm (last)"} <= set(found)
    assert accuracy(found["best orm (min)"]) == accuracy(found["best orm (last)"])
    assert accuracy(found["best prm (min)"]) != accuracy(found["best prm (last)"])


def test_a_configured_verifier_is_run_without_a_policy(tmp_path: Path) -> None:
    path = write(
        tmp_path / "s.jsonl",
        [problem("a", 12, ("3 * 4 = 11\n#### 11", {}), ("3 * 4 = 12\n#### 12", {}), said(11))],
    )
    found = rows(path, "rule")
    assert accuracy(found["best rule"]) == pytest.approx([1 / 3, 2 / 3, 1])
    assert accuracy(found["weighted rule"])[-1] == 1
    assert accuracy(found["majority"])[-1] == 0
    kind = rows(path, "rule", overrides=["rule.wrong=0.3", "rule.correct=0.3"])
    assert accuracy(kind["best rule"])[-1] == 0, "all alike: the earliest wins"


def test_failed_and_missing_scores_are_counted_and_never_chosen(tmp_path: Path) -> None:
    path = write(
        tmp_path / "s.jsonl",
        [problem("a", 1, said(2, prm=math.nan), said(2), said(2, prm=None), said(1, prm=0.1))],
    )
    result = rerank(RerankSettings(samples=path, verifiers=["prm"], **QUICK))
    assert dict(result.unscored) == {"prm": 3}
    found = {line.row.label: line for line in result.lines}
    assert found["best prm"].accuracy[-1].value == found["weighted prm"].accuracy[-1].value == 1
    assert found["majority, ties by prm"].accuracy[-1].value == 0, "all vote"


def test_scores_that_are_no_probabilities(tmp_path: Path) -> None:
    path = write(
        tmp_path / "s.jsonl", [problem("a", 1, said(1, rm=-3.0), said(2, rm=-9.5), said(2, rm=-9))]
    )
    result = rerank(RerankSettings(samples=path, verifiers=["rm"], **QUICK))
    assert [line.row.label for line in result.lines][2:] == ["best rm", "majority, ties by rm"]
    assert any("--link rm=logistic" in note for note in result.notes)
    with pytest.raises(ConfigurationError, match="--link rm=logistic"):
        rows(path, "rm^2")
    found = rows(path, "rm", links=["rm=logistic"])
    assert accuracy(found["weighted rm"])[-1] == 1


def test_unknown_is_neither_right_nor_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def right(self: Grader, answer: str | None, gold: str) -> bool | None:
        return None if answer == "9" else answer == gold

    monkeypatch.setattr(Grader, "right", right)
    path = write(tmp_path / "s.jsonl", [problem("a", 1, said(9)), problem("b", 2, said(2))])
    row = rows(path)["majority"]
    assert (accuracy(row), row["undecided"]) == ([1.0], [1.0])


def test_unreadable_gold_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "s.jsonl", [problem("a", "", said(1)), problem("b", 2, said(2))])
    result = rerank(RerankSettings(samples=path, **QUICK))
    assert (result.excluded, result.num_problems) == (("a",), 1)
    assert result.lines[0].accuracy[0].value == 1


def test_problems_with_fewer_samples_count_with_all_they_have(tmp_path: Path) -> None:
    path = write(
        tmp_path / "s.jsonl",
        [problem("a", 1, said(1, v=1)), problem("b", 1, said(2, v=0.5), said(1, v=0.6))],
    )
    found = rows(path, "v")
    for label in ("pass", "best v"):
        assert accuracy(found[label]) == pytest.approx([0.75, 1.0])
    assert accuracy(found["weighted v"]) == pytest.approx([0.75, 1.0], abs=0.05)


def test_problems_without_a_sample_are_told(tmp_path: Path) -> None:
    path = write(tmp_path / "s.jsonl", [problem("a", 1, said(1)), problem("b", 1), problem("c", 1)])
    result = rerank(RerankSettings(samples=path, **QUICK))
    assert (result.num_problems, result.num_empty, result.num_short) == (3, 2, 0)
    assert result.lines[0].accuracy[0].value == pytest.approx(1 / 3)
    text = render(result)
    assert text.startswith("3 problems, up to 1 sample each, 100.0% of them with an answer;")
    assert "\n2 problems without a sample, and so an answer\n" in text


def test_an_alarm_when_few_answers_can_be_read(tmp_path: Path) -> None:
    path = write(tmp_path / "s.jsonl", [problem("a", 1, *[("it is 1", {})] * 9, said(1))])
    result = rerank(RerankSettings(samples=path, **QUICK))
    assert (result.num_samples, result.num_answers) == (10, 1)
    assert any("1 of 10 samples (10%)" in note for note in result.notes)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"verifiers": ["nothing"]}, ["verifier=nothing", "rule"]),
        ({"verifiers": ["prm:max"]}, ["'max'", "last, min"]),
        ({"verifiers": ["prm**orm"]}, ["cannot read"]),
        ({"verifiers": ["none"]}, ["verifier=none"]),
        ({"selections": ["first"]}, ["'first'", "weighted"]),
        ({"links": ["orm=tanh"]}, ["NAME=logistic"]),
        ({"links": ["rm=logistic"]}, ["'rm'", "prm"]),
        ({"against": "best orm"}, ["'best orm'", "majority"]),
        ({"overrides": ["rule.wrong=0.1"]}, ["'rule.wrong=0.1'"]),
        ({"overrides": [str(Path(__file__))]}, ["second file of samples; one is read"]),
        ({"samples": Path("nowhere.jsonl")}, ["nowhere.jsonl", "no such file"]),
        ({"num_orders": 0}, ["num_orders=0"]),
    ],
)
def test_mistakes_are_named(samples: Path, settings: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        rerank(RerankSettings(**{"samples": samples} | QUICK | settings))
    for word in words:
        assert word in str(caught.value)


TABLE = {
    "gsm8k": {
        "majority": (10.5, 16.2, 20.8),
        "weighted rule": (12.0, 16.9, 21.0),
        "weighted orm": (14.1, 17.9, 21.2),
        "weighted prm": (14.3, 17.9, 22.0),
        "weighted rule*prm": (14.5, 18.7, 22.2),
        "weighted rule*prm*orm": (14.8, 19.3, 23.8),
        "best prm": (14.0, 16.4, 19.2),
        "pass": (21.4, 40.8, 62.7),
    },
    "multiarith": {
        "majority": (28.7, 46.4, 58.0),
        "weighted rule": (34.3, 54.8, 65.7),
        "weighted orm": (36.9, 50.6, 57.7),
        "weighted prm": (37.1, 51.4, 61.7),
        "weighted rule*prm": (39.8, 59.2, 68.7),
        "weighted rule*prm*orm": (40.0, 59.1, 67.0),
        "best prm": (35.6, 44.2, 43.0),
        "pass": (51.9, 82.7, 93.7),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_a_published_table_comes_out_again(data_dir: Path, name: str) -> None:
    """Our rule reads equations between words, which the table's did not: up to 2.1 points."""
    verifiers = ["rule", "orm", "prm", "rule*prm", "rule*prm*orm"]
    path = data_dir / "data" / "samples" / f"{name}.jsonl"
    found = rows(path, *verifiers, is_disjoint=True, num_resamples=100)
    for label, expected in TABLE[name].items():
        values = [100 * accuracy(found[label])[n - 1] for n in (4, 16, 64)]
        tolerance = [2.1] * 3 if "rule" in label else [0.1] * 3
        if (name, label) == ("gsm8k", "majority"):
            tolerance[2] = 0.3  # "1,0000" is no number to us, which turns one tie of 400 problems
        for value, target, allowed in zip(values, expected, tolerance, strict=True):
            assert abs(value - target) <= allowed + 1e-9, (label, values, expected)


def test_with_one_sample_all_who_decide_alike_are_alike(samples: Path) -> None:
    """Whatever the seed of the orders: an error of theirs would look like a difference."""
    for seed in range(3):
        found = rows(samples, "prm", num_orders=7, seed=seed)
        labels = ("majority", "weighted prm", "best prm", "majority, ties by prm")
        firsts = [accuracy(found[label])[0] for label in labels]
        assert firsts == pytest.approx([firsts[0]] * 4)
