"""Tasks: wording, extraction, equality, grading; and agreement with the recorded samples."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from stepsearch.search.equality import MathEquality
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.task import ExactTask, MathTask, MultipleChoiceTask, Task, get_task


@pytest.fixture(scope="module")
def math() -> Iterator[MathTask]:
    equality = MathEquality(timeout=60.0)
    yield MathTask(equality=equality)
    equality.close()


@pytest.mark.parametrize("name", ["math", "exact", "multiple_choice"])
def test_get_task(name: str) -> None:
    task: Task = get_task(name)
    assert task.name == name
    assert task.word("What is 1+1?") == "What is 1+1?"


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("maths", "did you mean math[?]"),
        ("multiplechoice", "multiple_choice"),
        ("zzz", "Known: math, exact, mul"),
    ],
)
def test_get_task_names_the_nearest(wrong: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=f"task='{wrong}'.*{hint}"):
        get_task(wrong)


@pytest.mark.parametrize("kind", [MathTask, ExactTask, MultipleChoiceTask])
def test_instructions(kind: type[MathTask] | type[ExactTask] | type[MultipleChoiceTask]) -> None:
    assert kind(instruction="Be brief.").word("1+1?") == "1+1?\n\nBe brief."
    wrapped = kind(instruction=r"Q: {question} Use \boxed{}.")
    assert wrapped.word("{x} = 1?") == r"Q: {x} = 1? Use \boxed{}."


@pytest.mark.parametrize(
    ("text", "gold", "grade"),
    [
        (r"so \boxed{\frac12}", "0.5", True),
        (r"so \boxed{\frac12}", r"\dfrac{1}{2}", True),
        (r"so \boxed{(2, 3)}", "(2,3)", True),
        (r"so \boxed{(2, 3)}", r"\boxed{(2,3)}", True),
        (r"so \boxed{\frac{3}{4}}", r"\frac{3}{4}", True),
        ("#### 1,234", "1234", True),
        ("#### 27", "27.0", True),
        (r"The answer is **28%**.", "28", True),
        ("#### 01", "0,1", False),
        ("#### -3", "3", False),
        ("no idea", "5", False),
        (r"\boxed{}", "5", False),
        ("<think>#### 5</think>", "5", False),
        ("#### 5", " ", None),
        ("no idea", "", None),
        (r"\boxed{9^{9^{9}}}", "5", None),
        ("#### 5", r"\frac{1}{", None),
    ],
)
def test_math_grades(math: MathTask, text: str, gold: str, grade: bool | None) -> None:
    assert math.grade(text, gold) is grade


def test_math_names_its_grader(math: MathTask) -> None:
    assert re.fullmatch(r"math-verify \d+(\.\d+)+", math.grader)


def test_default_tasks_share_one_equality() -> None:
    assert MathTask().equality is MathTask(instruction="Be brief.").equality


def test_exact() -> None:
    task = ExactTask()
    assert task.grade("I think so.\nNew  york.", "New York") is True
    assert task.grade("#### 5.0", "5") is False
    assert task.grade("   ", "5") is False
    assert task.grade("#### 5", "") is None


def test_multiple_choice() -> None:
    task = MultipleChoiceTask()
    assert task.grade(r"so \boxed{\text{(B)}}", "B") is True
    assert task.grade("The answer is (B).", "(b)") is True
    assert task.grade("The answer is C", "B") is False
    assert task.grade("no idea", "B") is False
    assert task.grade("The answer is B", "Paris") is None
    assert task.equal("B", "12") is None


def _reference(text: str) -> Fraction | None:
    found = re.findall(r"#### *\$?(-?[\d,]*\.?\d+)%?\.?$", text, re.MULTILINE)
    return Fraction(found[-1].replace(",", "")) if found else None


@pytest.mark.parametrize("name", ["gsm8k", "multiarith"])
def test_recorded_samples_are_graded_as_by_their_numbers(math: MathTask, name: str) -> None:
    folder = os.environ.get("STEPSEARCH_DATA")
    if folder is None:
        pytest.skip("set STEPSEARCH_DATA to the folder that holds data/samples")
    with (Path(folder) / "data" / "samples" / f"{name}.jsonl").open(encoding="utf-8") as lines:
        problems = [json.loads(line) for _, line in zip(range(30), lines, strict=False)]
    num_right = 0
    for problem in problems:
        gold = Fraction(problem["answer"].replace(",", ""))
        for sample in problem["samples"]:
            grade = math.grade(sample["text"], problem["answer"])
            assert grade is (_reference(sample["text"]) == gold), sample["text"][-80:]
            num_right += grade is True
    assert num_right > 50
