"""ProcessBench: the metric against the published table, tuning against brute force, the layout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsearch.benchmarks.processbench import (
    SPLITS,
    Case,
    Threshold,
    evaluate,
    first_error,
    harmonic_mean,
    load,
    measure,
    render,
    score_cases,
    tune,
)
from stepsearch.cli import main
from stepsearch.search.contracts import ScoreFailure
from stepsearch.search.errors import ConfigurationError
from stepsearch.verifiers.rule import RuleVerifier
from stepsearch.verifiers.scripted import ScriptedVerifier
from stepsearch.verifiers.stepwise import Scored

# Cases with and without a wrong step, by split.
SIZES = dict(zip(SPLITS, [(207, 193), (594, 406), (661, 339), (759, 241)], strict=True))

# Published F1 in percent by split, with both accuracies where they were printed, and the average
# (Zheng et al. 2024, arXiv:2412.06559, and Zhang et al. 2025, arXiv:2501.07301).
F1 = tuple[float, float, float] | float
PUBLISHED: dict[str, tuple[F1, F1, F1, F1, float]] = {
    "Math-Shepherd-7B": (
        *((47.9, 32.4, 91.7), (29.5, 18.0, 82.0), (24.8, 15.0, 71.1), (23.8, 14.2, 73.0)),
        31.5,
    ),
    "RLHFlow-Mistral": (
        *((50.4, 33.8, 99.0), (33.4, 21.7, 72.2), (13.8, 8.2, 43.1), (15.8, 9.6, 45.2)),
        28.4,
    ),
    "RLHFlow-Deepseek": (
        *((38.8, 24.2, 98.4), (33.8, 21.4, 80.0), (16.9, 10.1, 51.0), (16.9, 10.1, 51.9)),
        26.6,
    ),
    "Skywork-1.5B": (
        *((59.0, 50.2, 71.5), (48.0, 37.9, 65.3), (19.3, 15.4, 26.0), (19.2, 13.6, 32.8)),
        36.4,
    ),
    "Skywork-7B": (
        *((70.8, 61.8, 82.9), (53.6, 43.8, 69.2), (22.9, 17.9, 31.9), (21.0, 14.0, 41.9)),
        42.1,
    ),
    "EurusPRM-Stage1": (44.3, 35.6, 21.7, 23.1, 31.2),
    "EurusPRM-Stage2": (47.3, 35.7, 21.2, 20.9, 31.3),
    "Qwen2.5-Math-7B-Math-Shepherd": (62.5, 31.6, 13.7, 7.7, 28.9),
    "Qwen2.5-Math-7B-PRM800K": (
        *((68.2, 53.1, 95.3), (62.6, 48.0, 90.1), (50.7, 35.7, 87.3), (44.3, 29.8, 86.3)),
        56.5,
    ),
    "Qwen2.5-Math-PRM-7B": (
        *((82.4, 72.0, 96.4), (77.6, 68.0, 90.4), (67.5, 55.7, 85.5), (66.3, 55.2, 83.0)),
        73.5,
    ),
    "Qwen2.5-Math-PRM-72B": (87.3, 80.6, 74.3, 71.1, 78.3),
    "Qwen2.5-Math-RM-72B on prefixes": (43.5, 47.2, 37.6, 27.4, 38.9),
    "Llama-3.3-70B critic": (82.9, 59.4, 46.7, 43.0, 58.0),
    "Qwen2.5-72B critic": (76.2, 61.8, 54.6, 52.2, 61.2),
    "GPT-4o critic": (79.2, 63.6, 51.4, 53.5, 61.9),
    "QwQ-32B-Preview critic": (88.0, 78.7, 57.8, 61.3, 71.5),
    "o1-mini critic": (93.2, 88.9, 87.2, 82.4, 87.9),
    "R-PRM-7B-DPO": (80.7, 76.9, 63.8, 60.1, 70.4),
    "TRL 1.5B": (36.6, 49.6, 36.1, 37.0, 39.8),
    "TRL 7B": (70.8, 62.6, 47.1, 48.0, 57.1),
}
ROUNDING = 0.12


def answered(split: str, error: float, correct: float) -> tuple[list[Case], list[Scored]]:
    """Cases of a split's size and scores that meet both accuracies, in percent.

    The others miss in every way there is: too early, too late, not at all, without need.
    """
    wrong, right = SIZES[split]
    cases, scored = [], []
    hits = round(error / 100 * wrong)
    for k in range(wrong):
        cases.append(Case(id=f"w{k}", problem="q", steps=("a", "b", "c"), label=1))
        missed = [(0.1, 0.1, 0.9), (0.9, 0.9, 0.1), (0.9, 0.9, 0.9)][k % 3]
        scored.append((0.9, 0.2, 0.1) if k < hits else missed)
    hits = round(correct / 100 * right)
    for k in range(right):
        cases.append(Case(id=f"r{k}", problem="q", steps=("a", "b"), label=-1))
        scored.append((0.5, 0.9) if k < hits else (0.9, 0.4))
    return cases, list(scored)


@pytest.mark.parametrize("model", PUBLISHED)
def test_the_published_table_comes_out_again(model: str) -> None:
    *splits, average = PUBLISHED[model]
    printed = [entry[0] if isinstance(entry, tuple) else entry for entry in splits]
    assert sum(printed) / 4 == pytest.approx(average, abs=ROUNDING)
    for split, entry in zip(SPLITS, splits, strict=True):
        if not isinstance(entry, tuple):
            continue
        f1, error, correct = entry
        assert 100 * harmonic_mean(error / 100, correct / 100) == pytest.approx(f1, abs=ROUNDING)
        result = measure(split, *answered(split, error, correct), Threshold(0.5))
        assert (result.num_wrong, result.num_right) == SIZES[split]
        assert 100 * result.error_accuracy == pytest.approx(error, abs=0.0501)
        assert 100 * result.correct_accuracy == pytest.approx(correct, abs=0.0501)
        assert 100 * result.f1 == pytest.approx(f1, abs=ROUNDING)


def test_first_errors() -> None:
    assert first_error((0.9, 0.4, 0.1), 0.5) == 1
    assert first_error((0.5, 0.9), 0.5) == -1, "at the threshold is right"
    assert (harmonic_mean(0, 0), harmonic_mean(0, 1)) == (0, 0)


def one(label: int, *scores: float) -> tuple[Case, Scored]:
    case = Case(id="x", problem="q", steps=tuple("s" for _ in scores), label=label)
    return case, scores


def apart(pairs: Sequence[tuple[Case, Scored]]) -> tuple[list[Case], list[Scored]]:
    return [case for case, _ in pairs], [scores for _, scores in pairs]


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.integers(0, 6), min_size=1, max_size=4).flatmap(
            lambda s: st.tuples(st.integers(-1, len(s) - 1), st.just(tuple(map(float, s))))
        ),
        min_size=2,
        max_size=12,
    )
)
def test_tuning_finds_the_best_f1_there_is(rows: list[tuple[int, tuple[float, ...]]]) -> None:
    cases, scored = apart([one(label, *scores) for label, scores in rows])
    if len({case.label == -1 for case in cases}) < 2:
        with pytest.raises(ConfigurationError, match="needs wrong and right"):
            tune("a", cases, scored)
        return
    tuned = tune("a", cases, scored)
    every = [measure("b", cases, scored, Threshold(k / 2 - 0.25)).f1 for k in range(20)]
    assert measure("b", cases, scored, tuned).f1 == pytest.approx(max(every))


def test_the_tuned_split_is_not_reported() -> None:
    cases, scored = apart([one(0, 0.1), one(-1, 0.9)])
    threshold = tune("gsm8k", cases, scored)
    assert threshold == (pytest.approx(0.5), "gsm8k")
    assert measure("math", cases, scored, threshold).f1 == 1
    with pytest.raises(ConfigurationError, match=r"tuned on split 'gsm8k'.*flatter"):
        measure("gsm8k", cases, scored, threshold)


def test_a_case_without_scores_is_a_miss_and_counted() -> None:
    cases, scored = apart([one(0, 0.1), one(-1, 0.9), one(-1, 0.9)])
    scored[2] = ScoreFailure("too_long", "long")
    result = measure("a", cases, scored, Threshold(0.5))
    assert (result.num_failed, result.correct_accuracy) == (1, 0.5)
    scored[0] = ScoreFailure("too_long", "long")
    assert tune("a", cases, scored).tuned_on == "a"


ROWS: list[dict[str, Any]] = [
    {"id": "m-0", "generator": "g", "problem": "p", "steps": ["1 + 1 = 2", "2 + 2 = 5"], "label": 1}
    | {"final_answer_correct": False},
    {"id": "m-1", "problem": "p", "steps": ["1 + 1 = 2", "so 2"], "label": -1},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "math.json").write_text(json.dumps(ROWS))
    (tmp_path / "gsm8k.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


def test_the_public_layout_is_read(folder: Path) -> None:
    cases = load(folder, "math")
    assert cases == load(folder, "gsm8k")
    assert cases[0] == Case(id="m-0", problem="p", steps=("1 + 1 = 2", "2 + 2 = 5"), label=1)


@pytest.mark.parametrize(
    "row", [{"label": 2}, {"label": -2}, {"label": None}, {"steps": []}, {"steps": [1]}]
)
def test_a_row_of_another_layout_is_refused(tmp_path: Path, row: dict[str, Any]) -> None:
    (tmp_path / "math.json").write_text(json.dumps([ROWS[0] | row]))
    with pytest.raises(ConfigurationError, match="m-0 has"):
        load(tmp_path, "math")


def test_what_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"neither omnimath\.json"):
        load(folder, "omnimath")
    with pytest.raises(ConfigurationError, match="but gsm8k, math; name those to report"):
        load(folder, "omnimath")
    with pytest.raises(ConfigurationError, match="neither a folder"):
        load("./absent", "math")


def test_the_rule_finds_wrong_equations(folder: Path) -> None:
    [result] = evaluate(RuleVerifier(), folder, ["math"])
    assert (result.f1, result.threshold) == (1.0, Threshold(0.3))
    assert "| math | 1 | 1 | 0 | 100.0 | 100.0 | 100.0 |" in render([result])
    [tuned] = evaluate(RuleVerifier(), folder, ["math"], tuned_on="gsm8k")
    assert tuned.threshold.tuned_on == "gsm8k"


def test_thresholds_that_contradict_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be tuned on and reported"):
        evaluate(RuleVerifier(), folder, ["math"], tuned_on="math")
    with pytest.raises(ConfigurationError, match="nothing to tune"):
        evaluate(RuleVerifier(), folder, ["math"], tuned_on="gsm8k", threshold=0.5)
    without = ScriptedVerifier(score_fn=lambda chain: 0.5)
    with pytest.raises(ConfigurationError, match="no threshold of its own"):
        evaluate(without, folder, ["math"])


def test_an_outcome_verifier_is_asked_for_every_prefix() -> None:
    seen: list[int] = []

    def score(chain: Any) -> list[float]:
        seen.append(len(chain))
        return [1 / len(chain)]

    verifier = ScriptedVerifier(score_fn=score, kind="outcome")
    cases, _ = apart([one(-1, 0.0, 0.0, 0.0), one(-1, 0.0)])
    assert score_cases(verifier, cases) == [(1.0, 0.5, 1 / 3), (1.0,)]
    assert seen == [1, 2, 3, 1]


def test_on_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["processbench", str(folder), "--split", "math"]
    assert main([*command, "verifier=rule", "--json"]) == 0
    [shown] = json.loads(capsys.readouterr().out)
    assert (shown["split"], shown["f1"]) == ("math", 1.0)
    assert main([*command, "verifier=rule", "--tune", "math"]) == 2
    assert "cannot be tuned on" in capsys.readouterr().err
    assert main([*command, "verifier=none"]) == 2
