"""What stands in and around an equation: function names, units, rounding, denial, dates, marks."""

from __future__ import annotations

import pytest

from stepsearch.verifiers.equations.checker import check_equations

RIGHT = [
    "- 3 + 5 = 2",
    "- 3 + 5 = 8",
    "$- 3 + 5 = 2$",
    "\u2212 3 + 5 = 2",
    "\u2013 3 + 5 = 2",
    "- 3 * 4 = -12",
    "So we get\n- 7 - 2 = -9",
    r"\( - 3 + 5 = 2 \)",
    "2 quarters + 5 dimes = $1",
    "4 quarters + 5 dimes = $1.50",
    "2 teaspoons + 1 teaspoon = 1 tablespoon",
    "2 GB + 512 MB = 2.5 GB",
    "50 cents * 2 = $1",
    "$5 * 100 = 500 cents",
    "120 minutes / 60 = 2 hours",
    "2 weeks * 7 * 24 = 336 hours",
    "1 day * 24 * 60 * 60 = 86400 seconds",
    "$25/hour * 30 hours/week = $750/week",
    "$10/hour * 8 = $80/day",
    "30 hours / 2 hours/day = 15 days",
    "3 thousand * 2 thousand = 6 million",
    "2 weeks * 5 dollars = 10 dollars",
    "1000 / 3 ≈ 330",
    "45/2 = 22",
    "0x10 = 0",
    "4 feet is (4/12)*12 = 4",
    "3 + 4 = 7 wrong answers",
    "There are 3 + 4 = 7. Then 8 is wrong",
]

WRONG = [
    "- 3 + 5 = 3",
    "- 3 * 4 = 11",
    "3 * 20 ≈ 100",
    "100 ≈ 3 * 20",
    "7 * 8 ≈ 100",
    "500 * 1.2 ≈ 1000",
    "3 * 20 = about 100",
    "4 feet is (4/12)*12 = 6",
    "3 + 4 = 8 wrong answers",
    "There are 3 + 4 = 8. Then 9 is wrong",
    "3 + 4 = 8 rounds of golf",
    "120 potatoes / 0.25 seconds/minute = 40 minutes",
    "50 cents * 2 = $90",
    "1/4 + 2 = 1/3",
]

UNCHECKED = [
    "sqrt(9 + 16) = 5",
    "sqrt (9 + 16) = 5",
    "abs(3 - 8) = 5",
    "ceil(17/5) = 4",
    "log(10 * 10) = 2",
    "The function gives f(2 + 1) = 9",
    "3 + sqrt(16) = 16",
    "3 squared + 4 squared = 25",
    "2 * 3 squared = 18",
    "3 cubed + 1 = 28",
    "9 + 16 = 5 squared",
    "the square root of 9 + 7 = 4",
    "10 apples (5 red) + 5 = 15",
    "10 apples (5 red) + 5 = 10",
    "3 boxes (12 each) + 4 boxes = 7 boxes",
    "17 / 5 = 4 (rounded up)",
    "17 / 5 = 4, rounding up",
    "17 / 5 rounded up = 4",
    "19 / 5 ≈ 3 (round down)",
    "3.4 * 1 = 4, which rounds up",
    "9 am + 5 hours = 2 pm",
    "11 + 3 = 2 pm",
    "10 o'clock + 4 hours = 2 o'clock",
    "12/25 + 7 days = 1/1",
    "0x10 = 16",
    "factors of 6: 1, 2, 3, 6 = 4",
    "Room 101 + 5 = 6",
    "It is wrong that 3 + 4 = 8",
    "It is not 3 + 4 = 8",
    "instead of 3 + 4 = 8",
    '"3 + 4 = 8" is wrong',
    "3 + 4 = 8 (wrong)",
    "3 + 4 = 8 isn't right",
    "3 + 4 = 8 is not correct",
    "3 + 4 = 7 is false",
    "3 + 4 = 8 is not possible",
    "60 inches / 5 = 12 feet",
    "50 cents * 2 = $100",
    "50 cents + 50 cents = 100 dollars",
    "$5 + $3 = 8 cents",
    "4 hours * 2 = 8 minutes",
    "2 km + 3 km = 5 miles",
    "3 thousand * 2 = 6 million",
    "3 years + 2 years = 5 months",
    "1/4 + 1/8 = 0",
    "5 * 0.05 = 0",
    "1.4 + 0.1 = 2",
    "2.5 * 3 = 8",
    "- (3 + 4) = -7",
    "- 2^2 = -4",
]


def verdicts(text: str) -> list[str]:
    return [equation.verdict for equation in check_equations(text)]


@pytest.mark.parametrize("text", RIGHT)
def test_right(text: str) -> None:
    assert verdicts(text) == ["right"]


@pytest.mark.parametrize("text", WRONG)
def test_wrong(text: str) -> None:
    assert verdicts(text) == ["wrong"]


@pytest.mark.parametrize("text", UNCHECKED)
def test_what_is_not_certain_is_unchecked(text: str) -> None:
    assert set(verdicts(text)) == {"unchecked"}


def test_a_minus_sign_that_makes_an_equation_right_is_quoted() -> None:
    (equation,) = check_equations("- 3 + 5 = 2")
    assert (equation.text, equation.exact) == ("- 3 + 5 = 2", 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("17 / 5 = 3.4 = 4 (rounded up)", ["right", "unchecked"]),
        ("17 / 5 = 3.4 = 4", ["right", "wrong"]),
        ("3 squared + 4 squared = 9 + 16 = 25", ["unchecked", "right"]),
        ("50 cents * 2 = 100 cents = $100", ["right", "unchecked"]),
        ("50 cents * 2 = 100 cents = $1", ["right", "right"]),
        ("5 apples (2 + 3 = 6) and 2 + 2 = 4", ["wrong", "right"]),
    ],
)
def test_every_pair_of_a_chain(text: str, expected: list[str]) -> None:
    assert verdicts(text) == expected
