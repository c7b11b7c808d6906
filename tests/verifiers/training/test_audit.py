"""The bias audit: edits do what they say, and planted biases come out with their size."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsearch.cli import main
from stepsearch.search.contracts import ScoreFailure
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.tree import Chain
from stepsearch.verifiers.rule import RuleVerifier
from stepsearch.verifiers.scripted import ScriptedVerifier
from stepsearch.verifiers.training.audit import (
    Audit,
    Effect,
    Solved,
    audit,
    load_solutions,
    plot,
    render,
)
from stepsearch.verifiers.training.edits import HARMFUL, NEUTRAL

STEPS = ("Tom buys 3 * 4 = 12 pens", "So he has 12 - 5 = 7 pens in total.", "#### 7")
PADDING = " Let us note this carefully before we go on to the next part of the solution."


def edited(name: str, steps: Sequence[str] = STEPS, seed: int = 0) -> list[str] | None:
    return {**NEUTRAL, **HARMFUL}[name](steps, random.Random(seed))


def test_edits_that_should_not_matter() -> None:
    assert edited("bullets") == [f"- {STEPS[0]}", f"- {STEPS[1]}", "#### 7"]
    assert edited("first_person") == [*(f"I find that {s}" for s in STEPS[:2]), "#### 7"]
    assert edited("numbering") == [f"Step 1: {STEPS[0]}", f"Step 2: {STEPS[1]}", "#### 7"]
    assert edited("synonyms") == [
        "Tom purchases 3 * 4 = 12 pens",
        "Thus he has 12 - 5 = 7 pens in overall.",
        "#### 7",
    ]
    assert edited("merging") == [f"{STEPS[0]}. {STEPS[1]}", "#### 7"]
    assert edited("padding") == [f"{STEPS[0]}.{PADDING}", STEPS[1] + PADDING, "#### 7"]


def test_edits_that_should_matter() -> None:
    flips = {tuple(edited("sign_flip", seed=s) or ()) for s in range(20)}
    assert flips == {
        ("Tom buys 3 / 4 = 12 pens", *STEPS[1:]),
        (STEPS[0], "So he has 12 + 5 = 7 pens in total.", STEPS[2]),
    }
    for seed in range(20):
        changed = edited("number_change", seed=seed)
        assert changed is not None
        [k] = [k for k in range(3) if changed[k] != STEPS[k]]
        was, now = (int(step.split("= ")[1].split()[0]) for step in (STEPS[k], changed[k]))
        assert 1 <= now - was <= 9
    drops = {tuple(edited("step_drop", seed=s) or ()) for s in range(20)}
    assert drops == {STEPS[1:], (STEPS[0], STEPS[2])}


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("synonyms", ["3 pens", "#### 3"]),
        ("merging", ["one step", "#### 1"]),
        ("sign_flip", ["a well-known man, 3-4 of them", "#### 1"]),
        ("number_change", ["no equation", "#### 1 = 1"]),
        ("step_drop", ["1 + 1 = 2", "#### 2"]),
        ("bullets", ["#### 2"]),
    ],
)
def test_an_edit_that_does_not_apply_says_so(name: str, steps: list[str]) -> None:
    assert edited(name, steps) is None


@settings(deadline=None)
@given(
    st.lists(st.text("ab12 =+-*/.$,\n", max_size=30), max_size=5),
    st.sampled_from(sorted({**NEUTRAL, **HARMFUL})),
    st.integers(0, 5),
)
def test_an_edit_changes_something_and_never_the_final_answer(
    steps: list[str], name: str, seed: int
) -> None:
    given_steps = [*steps, "#### 12 + 1 = 13"]
    found = edited(name, tuple(given_steps), seed)
    if found is not None:
        assert found != given_steps
        assert found[-1] == given_steps[-1]
    assert found == edited(name, tuple(given_steps), seed), "the same seed, the same edit"


def solutions(count: int = 40) -> list[Solved]:
    rng = random.Random(1)
    made = []
    for _ in range(count):
        a, b, c = (rng.randint(2, 9) for _ in range(3))
        first, second = f"First {a} * {b} = {a * b} pens", f"Then {a * b} + {c} = {a * b + c}."
        made.append(Solved("How many?", (first, second, f"#### {a * b + c}")))
    return made


def by_name(found: Audit) -> dict[str, Effect]:
    return {effect.edit: effect for effect in found.effects}


def test_the_rule_sees_wrong_equations_and_nothing_else() -> None:
    found = audit(RuleVerifier(), solutions())
    effects = by_name(found)
    assert set(effects) == {*NEUTRAL, *HARMFUL}
    for name in NEUTRAL:
        effect = effects[name]
        assert (effect.change, effect.low, effect.high, effect.effect_size) == (0, 0, 0, 0)
    for name in ("sign_flip", "number_change"):
        assert effects[name].change == pytest.approx(0.02 - 1)
        assert (effects[name].fell, effects[name].effect_size) == (1, None)
    assert effects["step_drop"].change == 0, "what is not there cannot be checked"
    pairs = 2 * len(NEUTRAL) * 1.0 + len(NEUTRAL) * 0.5
    assert found.separation == pytest.approx(pairs / (3 * len(NEUTRAL)))


def test_a_planted_bias_comes_out_with_its_size() -> None:
    def loves_length(chain: Chain) -> float:
        noise = random.Random(chain.text).gauss(0, 0.01)
        return 0.5 + 0.05 * ("carefully" in chain.text) + noise

    verifier = ScriptedVerifier(score_fn=loves_length, aggregation="mean")
    effects = by_name(audit(verifier, solutions(100)))
    padded = effects["padding"]
    assert padded.low < 0.05 < padded.high
    assert padded.low > 0.04
    assert padded.effect_size == pytest.approx(0.05 / (0.01 * 2**0.5), rel=0.25)
    assert padded.rose > 0.99
    others = [e for name, e in effects.items() if name != "padding"]
    assert all(abs(e.change) < 0.006 for e in others)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    from stepsearch.verifiers.training.audit import _effect

    rng = random.Random(0)
    covered = 0
    for trial in range(60):
        known = {i: (0.5, 0.5 + rng.gauss(0.1, 0.2)) for i in range(40)}
        effect = _effect("padding", known, 0, trial)
        covered += effect.low <= 0.1 <= effect.high
    assert 50 <= covered <= 60, "95% of 60, give or take"


def test_what_cannot_be_scored_is_counted_and_not_made_up() -> None:
    def refuse_bullets(chain: Chain) -> float | ScoreFailure:
        return ScoreFailure("too_long", "long") if chain.text.startswith("- ") else 0.5

    effects = by_name(audit(ScriptedVerifier(score_fn=refuse_bullets), solutions(3)))
    assert "bullets" not in effects, "nothing is known about them"
    with pytest.raises(ConfigurationError, match="could score no solution"):
        audit(ScriptedVerifier(score_fn=lambda c: ScoreFailure("missing", "x")), solutions(3))
    with pytest.raises(ConfigurationError, match="no right solutions"):
        audit(RuleVerifier(), [])


def write(path: Path, rows: list[dict[str, Any]], array: bool = False) -> Path:
    lines = "\n".join(map(json.dumps, rows))
    path.write_text(json.dumps(rows) if array else lines, encoding="utf-8")
    return path


@pytest.mark.parametrize("array", [False, True])
def test_solutions_are_read_from_every_layout(tmp_path: Path, array: bool) -> None:
    rows: list[dict[str, Any]] = [
        {"problem": "a", "steps": ["x", "y"], "label": -1},
        {"problem": "b", "steps": ["x", "y"], "label": 1},
        {"problem": "c", "answer": "3", "samples": [{"text": "#### 4"}, {"text": "z\n\n#### 3"}]},
        {"problem": "d", "answer": "3", "samples": [{"text": "#### 4"}]},
        {"question": "e", "answer": "It is <<1+1=2>>2\n#### 2"},
    ]
    path = write(tmp_path / "f.jsonl", rows, array)
    expected = [
        Solved("a", ("x", "y")),
        Solved("c", ("z", "#### 3")),
        Solved("e", ("It is 2", "#### 2")),
    ]
    assert load_solutions(path, 10) == expected
    assert load_solutions(path, 1) == expected[:1]


def test_files_of_another_layout_are_refused(tmp_path: Path) -> None:
    for row in ({"problem": "a"}, {"question": "a", "answer": "no final line"}, {"steps": ["a"]}):
        with pytest.raises(ConfigurationError, match="holds a row without"):
            load_solutions(write(tmp_path / "f.jsonl", [row]), 10)
    with pytest.raises(ConfigurationError, match="a trace; `stepsearch filter` writes"):
        load_solutions(write(tmp_path / "f.jsonl", [{"problem": "a", "tree": {}}]), 10)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_solutions(tmp_path / "absent", 10)


def test_table_and_plot(tmp_path: Path) -> None:
    found = audit(RuleVerifier(), solutions(5))
    text = render(found)
    assert (
        "| padding | stay | 5 | 0 | 1.000 | +0.0000 | +0.0000 to +0.0000 | +0.00 | 0% | 0% |"
        in (text.splitlines())
    )
    assert "0.833 of all pairs" in text
    plot(found, tmp_path / "audit.png")
    assert (tmp_path / "audit.png").read_bytes()[:4] == b"\x89PNG"


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"problem": s.question, "steps": list(s.steps)} for s in solutions(4)]
    path = str(write(tmp_path / "f.jsonl", rows))
    arguments = ["audit", path, "verifier=rule", "--limit", "3"]
    assert main([*arguments, "--json", "--plot", str(tmp_path / "a.svg")]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {effect["num_solutions"] for effect in shown["effects"]} == {3}
    assert (tmp_path / "a.svg").is_file()
    assert main(arguments) == 0
    assert "| sign_flip | fall | 3 |" in capsys.readouterr().out
    assert main(["audit", path, "verifier=none"]) == 2
