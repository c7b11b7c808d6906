"""Calibration: known curves are found again, order is kept, and nothing is calibrated blindly."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsearch import ConfigurationError, VerifierError, solve
from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.scores import checked
from stepsearch.verifiers.calibration import (
    CalibratedVerifier,
    Calibration,
    fingerprint,
    fit,
)
from stepsearch.verifiers.ensemble import EnsembleVerifier
from stepsearch.verifiers.rule import RuleVerifier
from stepsearch.verifiers.scripted import ScriptedVerifier
from stepsearch.verifiers.stepwise import chain_of


def drawn(slope: float, intercept: float, n: int = 20_000) -> tuple[list[float], list[bool]]:
    """Unbounded scores whose labels follow a logistic curve."""
    rng = np.random.default_rng(0)
    x = rng.normal(3, 2, n)
    y = rng.random(n) < 1 / (1 + np.exp(-(slope * x + intercept)))
    return x.tolist(), y.tolist()


def test_platt_finds_the_curve_again() -> None:
    curve = fit(*drawn(0.8, -2.0), "platt", range="unbounded")
    assert curve.knots == pytest.approx((0.8, -2.0), abs=0.06)
    assert curve(2.5) == pytest.approx(0.5, abs=0.02)
    assert (curve(1e9), curve(-1e9)) == (1.0, 0.0)


def test_platt_on_probabilities_undoes_overconfidence() -> None:
    rng = np.random.default_rng(1)
    log_odds = rng.normal(0, 1.5, 20_000)
    labels = rng.random(len(log_odds)) < 1 / (1 + np.exp(-log_odds))
    overconfident = 1 / (1 + np.exp(-3 * log_odds))
    curve = fit(overconfident.tolist(), labels.tolist())
    assert curve.knots == pytest.approx((1 / 3, 0), abs=0.03)
    assert 0 < curve(0.0) < curve(1.0) < 1, "a score of 0 or 1 is no certainty"


def test_platt_on_scores_that_separate_stays_finite() -> None:
    curve = fit([-1.0, -0.5, 0.5, 1.0], [False, False, True, True], range="unbounded")
    assert 0 < curve(-1) < 0.5 < curve(1) < 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=7))
def test_isotonic_is_the_best_rising_function(samples: list[tuple[int, bool]]) -> None:
    scores, labels = [float(x) for x, _ in samples], [y for _, y in samples]
    try:
        curve = fit(scores, labels, "isotonic", range="unbounded")
    except ConfigurationError:
        return
    levels = sorted(set(scores))
    grid = np.arange(0, 61) / 60  # holds every mean of up to 5 labels
    errors = {
        x: (np.array([y for s, y in zip(scores, labels, strict=True) if s == x])[:, None] - grid)
        for x in levels
    }
    cost = {x: (e**2).sum(axis=0) for x, e in errors.items()}
    best = np.zeros(len(grid))
    for x in levels:  # dynamic programming over rising values
        best = np.minimum.accumulate(best) + cost[x]
    margin = 1 / (len(samples) + 2)
    found = 0.0
    for x in levels:
        value = curve(x)
        value = 0.0 if value <= margin else 1.0 if value >= 1 - margin else value
        found += sum((y - value) ** 2 for s, y in zip(scores, labels, strict=True) if s == x)
    assert found <= best.min() + 2e-2


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=2, max_size=40),
    st.sampled_from(["platt", "isotonic"]),
)
def test_order_is_kept_and_probabilities_come_out(
    samples: list[tuple[float, bool]], method: Any
) -> None:
    scores, labels = [x for x, _ in samples], [y for _, y in samples]
    try:
        curve = fit(scores, labels, method)
    except ConfigurationError:
        return
    out = curve.apply(np.linspace(0, 1, 200))
    assert ((out >= 0) & (out <= 1)).all()
    assert (np.diff(out) >= -1e-12).all()


def test_samples_that_say_nothing_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="all the same"):
        fit([0.1, 0.2], [True, True])
    for method in ("platt", "isotonic"):
        for scores in ([0.1, 0.9], [0.5, 0.5]):
            with pytest.raises(ConfigurationError, match="do not rise"):
                fit(scores, [True, False], method)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="finite"):
        fit([0.1, float("nan")], [True, False])
    with pytest.raises(ConfigurationError, match="one length"):
        fit([0.1], [True, False])


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_it_is_saved_and_read_again(tmp_path: Path, method: Any) -> None:
    curve = fit(*drawn(1, 0, 500), method, range="unbounded", verifier="abc")
    curve.save(tmp_path / "new")
    assert (tmp_path / "new" / "calibration.json").is_file()
    assert Calibration.load(tmp_path / "new") == curve
    (tmp_path / "bad.json").write_text(json.dumps({"version": 1, "knots": 3}))
    with pytest.raises(ConfigurationError, match="no calibration"):
        Calibration.load(tmp_path / "bad.json")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Calibration.load(tmp_path / "absent.json")


def raw(value: float, **spec: Any) -> ScriptedVerifier:
    return ScriptedVerifier(score_fn=lambda chain: value, range="unbounded", **spec)


def test_an_unbounded_verifier_becomes_a_member_of_an_ensemble() -> None:
    curve = fit(*drawn(1, 0, 2000), range="unbounded")
    verifier = CalibratedVerifier(raw(2.0, threshold=1.0), curve)
    assert verifier.spec.range == "probability"
    assert verifier.spec.threshold == curve(1.0)
    ensemble = EnsembleVerifier({"rule": RuleVerifier(), "prm": verifier})
    (scores,) = asyncio.run(ensemble.score([chain_of("q", ["1 + 1 = 2"])]))
    assert scores.values == (pytest.approx(curve(2.0)),)


def test_a_calibration_of_another_verifier_is_refused() -> None:
    verifier, other = RuleVerifier(), RuleVerifier(neutral=0.4)
    curve = fit([0.1, 0.9], [False, True], verifier=fingerprint(verifier.spec))
    assert CalibratedVerifier(verifier, curve).spec.provenance["calibration"]["num_samples"] == 2
    with pytest.raises(VerifierError, match="fit it again"):
        CalibratedVerifier(other, curve)
    with pytest.raises(ConfigurationError, match="range 'probability'"):
        CalibratedVerifier(raw(1.0), curve)
    moved = replace(verifier.spec, provenance={**verifier.spec.provenance, "device": "cuda:1"})
    assert fingerprint(moved) == fingerprint(verifier.spec), "where it runs does not matter"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1.5, -0.1])
def test_a_bad_score_does_not_become_a_good_one(bad: float) -> None:
    verifier = CalibratedVerifier(
        ScriptedVerifier(score_fn=lambda chain: bad), fit([0.1, 0.9], [False, True], "isotonic")
    )
    (scores,) = asyncio.run(verifier.score([chain_of("q", ["a"])]))
    failed = checked(scores, verifier.spec, num_steps=1, num_new=1)
    assert failed.failure is not None


def test_by_name_from_the_configuration(tmp_path: Path) -> None:
    fit([0.02, 0.3, 1.0, 1.0], [False, False, True, True], "isotonic").save(tmp_path)
    policy = ScriptedPolicy(lambda chain, seed: scripted_step("1 + 1 = 2 #### 2", "eos"))
    overrides = ["verifier=calibrated", "verifier@verifier.inner=rule", "search=greedy"]
    overrides += [f"verifier.calibration={tmp_path}", "select=best"]
    solution = solve("q", policy=policy, overrides=overrides)
    assert solution.score == pytest.approx(5 / 6), "1 of 6, moved in by one sample"


def test_a_real_prm_is_better_calibrated_on_questions_it_was_not_fitted_on(data_dir: Path) -> None:
    lines = (data_dir / "data/samples/gsm8k.jsonl").open(encoding="utf-8")
    scores: list[list[float]] = [[], []]
    labels: list[list[bool]] = [[], []]
    for number, line in enumerate(itertools.islice(lines, 200)):
        row = json.loads(line)
        for sample in row["samples"]:
            scores[number % 2].append(sample["scores"]["prm"][-1])
            labels[number % 2].append(sample["text"].rstrip().endswith(f"#### {row['answer']}"))
    lines.close()

    def brier(probabilities: Any) -> float:
        return float(np.mean((np.asarray(probabilities) - labels[1]) ** 2))

    for method in ("platt", "isotonic"):
        curve = fit(scores[0], labels[0], method)  # type: ignore[arg-type]
        assert brier(curve.apply(scores[1])) < brier(scores[1]) - 0.005
