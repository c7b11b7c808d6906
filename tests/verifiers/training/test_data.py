"""Questions, variants, overlap, labels without a model, hand labels, files that go on."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from stepsearch.search.errors import ConfigurationError
from stepsearch.search.task import get_task
from stepsearch.verifiers.training.examples import Labelled, balanced
from stepsearch.verifiers.training.hand import from_hand, load_taxonomy, to_trl
from stepsearch.verifiers.training.lines import Journal, read_lines
from stepsearch.verifiers.training.measures import auroc, choice_measures, step_measures
from stepsearch.verifiers.training.outcome import OutcomeLabels, checker_labels
from stepsearch.verifiers.training.overlap import find_overlap
from stepsearch.verifiers.training.questions import (
    Question,
    from_gsm8k,
    is_held_out,
    without_marks,
)
from stepsearch.verifiers.training.variants import evaluate, variants

CLIPS = {
    "question": "Ann sold 48 clips in April and 17 clips in May, each for $6. What did she earn?",
    "answer": "She sold 48+17=<<48+17=65>>65 clips.\nShe earned 65*6=$<<65*6=390>>390.\n#### 390",
}


def clips(**changes: str) -> Question:
    return next(from_gsm8k(iter([CLIPS | changes])))


def test_variants_are_worked_out_again() -> None:
    made = variants(clips(), 5, seed=3)
    assert len(made) == 5
    assert len({q.problem for q in made}) == 5
    for question in made:
        a, b, price = map(int, re.findall(r"\d+", question.problem))
        assert question.answer == str((a + b) * price)
        assert question.solution.endswith(f"#### {question.answer}")
        assert "<<" not in question.solution
        assert question.group == clips().id
        assert a > b > price


def test_variants_are_the_same_for_the_same_seed() -> None:
    assert variants(clips(), 3, seed=1) == variants(clips(), 3, seed=1)
    assert variants(clips(), 3, seed=1) != variants(clips(), 3, seed=2)


@pytest.mark.parametrize(
    "changes",
    [
        {"question": "Ann sold 48% of 17th Street, each 6/7."},  # bound numbers
        {"answer": "She sold <<48+17=66>>66.\n#### 66"},  # the mark is wrong
        {"answer": "She sold 48+17 = 65.\n#### 65"},  # no mark
        {"answer": "She sold <<48+17=65>>65 of 99.\n#### 65"},  # 99 comes from nowhere
    ],
)
def test_what_is_not_certain_has_no_variant(changes: dict[str, str]) -> None:
    assert variants(clips(**changes), 3) == []


@pytest.mark.parametrize(
    ("text", "value"),
    [("2*(3+4)-1", 13), ("-5+2*3", 1), ("7/2", Fraction(7, 2)), ("1,000*.5", 500)],
)
def test_evaluate(text: str, value: Fraction) -> None:
    assert evaluate(text, {}) == value


@pytest.mark.parametrize("text", ["1/0", "2x", "3+", "(1", "", "2**3"])
def test_evaluate_refuses(text: str) -> None:
    assert evaluate(text, {}) is None


def test_evaluate_replaces_numbers() -> None:
    assert evaluate("48/2", {Fraction(48): Fraction(60)}) == 30


def test_overlap_finds_the_same_words_with_other_numbers() -> None:
    text = "A train with 40 wagons leaves the station and loses 7 of them on the long way home."
    other = text.replace("40", "55").replace("7", "9")
    found = find_overlap([clips(), clips(question=other)], {"test": ["nothing", text]}, n=10)
    assert [(e["test"], e["index"]) for e in found.found] == [("test", 1)]
    assert found.to_row()["left_out"] == 1
    assert found.num_checked == 2


def test_overlap_of_a_test_question_shorter_than_n() -> None:
    assert find_overlap([clips(question="Who is it?")], {"t": ["Who is it"]}).ids == {clips().id}


def test_held_out_depends_on_the_group_alone() -> None:
    names = [f"q{i}" for i in range(4000)]
    held = {name for name in names if is_held_out(name, 0.1)}
    assert 320 < len(held) < 480
    assert held < {name for name in names if is_held_out(name, 0.2)}
    assert not any(is_held_out(name, 0.0) for name in names)


def test_marks_and_blank_lines_go() -> None:
    assert without_marks("2*3=<<2*3=6>>6\n\n #### 6 ") == "2*3=6\n#### 6"


STEPS = "He has 3 * 4 = 12 pens.\nSo 12 - 5 = 8 pens.\nThat is all.\n#### 8"


@pytest.mark.parametrize(
    ("steps", "answer", "labels"),
    [
        ("outcome", "8", [1.0, 1.0, 1.0, 1.0]),
        ("outcome", "7", [0.0, 0.0, 0.0, 0.0]),
        ("checker", "8", [1.0, 0.0, 0.0, 0.0]),
        ("both", "8", [1.0, 0.0, 0.0, 0.0]),
    ],
)
def test_labels_without_a_model(steps: Any, answer: str, labels: list[float]) -> None:
    label = OutcomeLabels(task=get_task("math"), steps=steps)
    row = label({"id": "a", "problem": "p", "answer": answer, "samples": [{"text": STEPS}]})
    assert row["solutions"][0]["labels"] == labels
    assert row["solutions"][0]["outcome"] == float(answer == "8")
    assert row["solutions"][0]["answer"] == "8"


def test_checker_does_not_label_what_it_cannot_check() -> None:
    assert checker_labels(["Let us see.", "1 + 1 = 2"]) == [None, 1.0]


def test_an_unreadable_gold_answer_is_neither_right_nor_wrong() -> None:
    label = OutcomeLabels(task=get_task("math"))
    row = label({"id": "a", "problem": "p", "answer": " ", "samples": [{"text": "#### 8"}]})
    assert row["solutions"][0]["outcome"] is None
    assert row["solutions"][0]["labels"] == [None]


def test_balanced_takes_as_many_of_both() -> None:
    def solution(name: str, number: int, right: float) -> Labelled:
        text = (f"step {number}",)
        return Labelled(
            id=name, group=name, problem="p", steps=text, labels=(right,), outcome=right
        )

    many = [solution("a", i, float(i < 3)) for i in range(10)]
    always_wrong = [solution("b", i, 0.0) for i in range(10)]
    kept = balanced([*many, *many, *always_wrong], 8, seed=0)
    assert [sum(s.id == "a" and s.outcome == o for s in kept) for o in (1, 0)] == [3, 3]
    assert sum(s.id == "b" for s in kept) == 1
    assert len(balanced(many, 2, seed=0)) == 4


def test_auroc() -> None:
    assert auroc([0.1, 0.9, 0.5], [0, 1, 0]) == 1
    assert auroc([0.5, 0.5], [0, 1]) == 0.5
    assert auroc([0.9, 0.1, 0.2, 0.3], [0, 1, 1, 0]) == 0
    assert auroc([0.3], [1]) is None


def test_step_measures_by_depth() -> None:
    found = step_measures([[0.9, 0.1], [0.2, 0.3]], [[1, None], [0, 1]])
    assert found == {"auroc": 1.0, "auroc_depth1": 1.0, "auroc_depth2": None}


def test_choice_measures() -> None:
    def solution(answer: str, right: float) -> Labelled:
        return Labelled(
            id="a",
            group="a",
            problem="p",
            steps=("s",),
            labels=(right,),
            outcome=right,
            answer=answer,
        )

    group = [solution("7", 0), solution("7", 0), solution("8", 1)]
    found = choice_measures(group, [0.1, 0.2, 0.9], sizes=(3,))
    assert found["best@3"] == found["weighted@3"] == found["pass@3"] == 100
    assert found["majority@3"] == 0
    assert found["random"] == 33.33
    assert found["within"] == 1


PRM800K = {
    "question": {"problem": "2+2?", "ground_truth_answer": "4"},
    "label": {
        "steps": [
            {"completions": [{"text": "Hm.", "rating": 0}, {"text": "x", "rating": -1}],
             "chosen_completion": 0},
            {"completions": [{"text": "2+2=5", "rating": -1}], "chosen_completion": None},
        ],
        "finish_reason": "found_error",
    },
}  # fmt: skip


def test_prm800k() -> None:
    row = next(from_hand([PRM800K], "prm800k"))
    assert row["problem"] == "2+2?"
    assert row["solutions"][0] == {
        "steps": ["Hm.", "2+2=5"], "labels": [1.0, 0.0], "outcome": 0.0, "answer": None
    }  # fmt: skip


def test_trl_comes_back_as_it_was() -> None:
    rows = [{"prompt": "2+2?", "completions": ["a", "b"], "labels": [True, False]}]
    assert list(to_trl(from_hand(rows, "trl"))) == rows


def test_trl_export_ends_before_a_step_without_a_label() -> None:
    row = {"problem": "p", "solutions": [{"steps": ["a", "b"], "labels": [0.7, None]}]}
    assert list(to_trl([row])) == [{"prompt": "p", "completions": ["a"], "labels": [True]}]


def test_taxonomy_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("sound: 1\nvague: null\nrisky: 0.3\n")
    taxonomy = load_taxonomy(tmp_path / "t.yaml")
    rows = [{"problem": "p", "steps": ["a", "b", "c"], "labels": ["sound", "vague", "risky"]}]
    assert next(from_hand(rows, "names", taxonomy))["solutions"][0]["labels"] == [1.0, None, 0.3]
    with pytest.raises(ConfigurationError, match="'good' is not in the taxonomy"):
        list(from_hand([rows[0] | {"labels": ["good"] * 3}], "names", taxonomy))


@pytest.mark.parametrize("text", ["- a", "good: 2", "good: yes", "{"])
def test_taxonomy_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match="taxonomy"):
        load_taxonomy(tmp_path / "t.yaml")


def test_journal_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with Journal(path, {"n": 1}) as journal:
        journal.append({"id": "a"})
        journal.append({"id": "b"})
    path.write_text(path.read_text()[:-4])
    with Journal(path, {"n": 1}) as journal:
        assert [row["id"] for row in journal.left([{"id": "b"}])] == ["b"]
        journal.append({"id": "b", "x": 1})
    assert list(read_lines(path)) == [{"id": "a"}, {"id": "b", "x": 1}]


def test_journal_without_rows_is_gone_after_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"

    def failing(n: int, *rows: str) -> None:
        with Journal(path, {"n": n}) as journal:
            for row in rows:
                journal.append({"id": row})
            raise OSError("no questions")

    with pytest.raises(OSError, match="no questions"):
        failing(1)
    assert [file.name for file in tmp_path.iterdir()] == [".out.jsonl.lock"]
    with pytest.raises(OSError, match="no questions"):
        failing(2, "a")
    assert list(read_lines(path)) == [{"id": "a"}]
    with pytest.raises(OSError, match="no questions"):
        failing(2)
    assert list(read_lines(path)) == [{"id": "a"}], "rows of before are kept"


def test_journal_refuses_other_settings(tmp_path: Path) -> None:
    with Journal(tmp_path / "o.jsonl", {"n": 1}) as journal:
        journal.append({"id": "a"})
    with pytest.raises(ConfigurationError, match=r"other settings \(n\)"):
        Journal(tmp_path / "o.jsonl", {"n": 2})


def test_a_journal_has_one_process_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "o.jsonl"
    with Journal(path, {"n": 1}) as journal:
        for settings in ({"n": 1}, {"n": 2}):
            with pytest.raises(ConfigurationError, match="another process is at work on"):
                Journal(path, settings)
        journal.append({"id": "a"})
    with pytest.raises(ConfigurationError, match="other settings"):
        Journal(path, {"n": 2})
    with Journal(path, {"n": 1}) as journal:
        assert [row["id"] for row in journal.left([{"id": "b"}])] == ["b"]
    assert list(read_lines(path)) == [{"id": "a"}]


def test_broken_lines_are_named(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps({"id": 1}) + "\n[]\n")
    with pytest.raises(ConfigurationError, match="line 2"):
        list(read_lines(tmp_path / "x.jsonl"))
