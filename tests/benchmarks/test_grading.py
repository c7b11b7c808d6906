"""Grading: unknown is not wrong, and what cannot be graded is counted."""

import pytest

from stepsearch import ConfigurationError
from stepsearch.benchmarks.grading import Grader, extraction_alarm, gradable
from stepsearch.search.task import ExactTask, MathTask, MultipleChoiceTask
from stepsearch.search.types import Problem

MATH = Grader(MathTask())


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("1/2", r"\frac{1}{2}", True),
        (None, "3", False),
        ("3", "4", False),
        (r"9^{9^{9^9}}", "x+1", None),
        (r"2\sqrt{2}", r"\sqrt{8}", True),
    ],
)
def test_right_wrong_or_unknown(answer: str | None, gold: str, expected: bool | None) -> None:
    assert MATH.right(answer, gold) is expected


@pytest.mark.parametrize(
    "gold", ["18", "1,234", "-3.5", r"\frac{3}{4}", r"(3, \frac{\pi}{2})", "1, 2", r"\text{Evelyn}",
             r"x^2+1", r"(-\infty, 2]", "12.5\\%", r"\{1,2\}"],
)  # fmt: skip
def test_gold_answers_that_can_be_graded(gold: str) -> None:
    assert MATH.can_grade(gold)


@pytest.mark.parametrize("gold", [None, "", "  ", r"\frac{1}{", "$", "= )("])
def test_gold_answers_that_cannot(gold: str | None) -> None:
    assert not MATH.can_grade(gold)


def test_other_tasks() -> None:
    assert Grader(MultipleChoiceTask()).can_grade("(B)")
    assert not Grader(MultipleChoiceTask()).can_grade("none of them")
    assert Grader(ExactTask()).can_grade("Paris")
    assert Grader(ExactTask()).right("paris.", "Paris") is True


def test_unreadable_gold_is_left_out_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    problems = [Problem(text="a?", id="a", answer="3"), Problem(text="b?", id="b", answer=" ")]
    found = gradable(problems, MATH)
    assert (found.problems, found.excluded) == ((problems[0],), ("b",))
    assert "left out: b" in caplog.text
    with pytest.raises(ConfigurationError, match="none of the 1 gold answers"):
        gradable(problems[1:], MATH)


def test_the_grader_says_who_it_is() -> None:
    assert "math-verify " in MATH.name
    assert Grader(ExactTask()).name.endswith("exact")


def test_an_alarm_for_too_few_answers() -> None:
    assert extraction_alarm(80, 100) is None
    assert extraction_alarm(0, 0) is None
    alarm = extraction_alarm(12, 100)
    assert alarm is not None
    assert "12 of 100 samples" in alarm
    assert "prompt format" in alarm
    assert "budget" not in alarm
    assert "the budget" in str(extraction_alarm(12, 100, "problems"))
