from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stepsearch.verifiers.equations.checker import check_equations


def verdicts(text: str) -> list[str]:
    return [equation.verdict for equation in check_equations(text)]


RIGHT = [
    "16 eggs/day * 3 days = 48 eggs",
    "$45/gallon x 8 gallons = $360",
    "$2 * 9 = $18",
    "3 apples + 4 apples = 7 apples",
    "16x7 = 112",
    "16 X 7 = 112",
    "16 \u00d7 7 = 112",
    "16 · 7 = 112",
    "112 ÷ 7 = 16",
    "5 \u2013 3 = 2",
    "5 \u2212 3 = 2",
    "2^10 = 1024",
    "2**10 = 1024",
    "3² + 1 = 10",
    "-5 + 3 = -2",
    "7 - -3 = 10",
    "2 * (3 + 4) = 14",
    "2(3 + 4) = 14",
    "[2 + 3] * 4 = 20",
    "2 + 3 * 4 = 14",
    "2^3^2 = 512",
    "8 - 3 - 2 = 3",
    "- 5 + 3 = 8",
    "20% of 50 = 10",
    "3/4 of the 20 eggs = 15",
    "50 * 20% = 10",
    "20/100 = 20%",
    "5 / 20 * 100 = 25%",
    "9 / 12 * 100% = 75",
    "100% - 20% = 80%",
    "1 1/2 * 2 = 3",
    "6 * 2½ = 15",
    "1/2 hour = 30 minutes",
    "2 hours + 30 minutes = 150 minutes",
    "$1 + 50 cents = $1.50",
    "50¢ + 50¢ = $1",
    "5 dozen + 3 = 63",
    "1,234 + 1 = 1,235",
    "1{,}234 + 1 = 1235",
    "35,700 + 16,000 = 51,700",
    ".5 * 3 = 1.50",
    r"\frac{1}{2} + \frac{1}{\frac{1}{2}} = 2.5",
    r"\frac12 + 1\frac{1}{2} = 2",
    r"$3 \times 4 \cdot 2 \div 6 = 4$",
    r"\left( 2 + 3 \right) \times 4 = \boxed{20}",
    r"3 \text{ apples} + 4 \text{ apples} = 7 \text{ apples}",
    "**3 + 4 = 7**",
    "3 + 4 = **7**",
    "10/3 = 3.33",
    "1/8 = 0.13",
    "1/8 = 0.12",
    "45/2 = 23",
    "5 - 7 = a total of -2",
    "2 - 9 = about -7",
    "45/2 = 22",
    "-45/2 = -23",
    "2/3 = 67%",
    "1/3 = 33.3...%",
    "22/7 ≈ 3.14",
    "3 * 331 = about 1000",
    "3 plus 4 is 7",
    "3 times 4 equals 12",
    "12 divided by 4 is equal to 3",
    "30 minus 4 leaves a total of 26",
    "2 g + 3 g = 5 g",
    "5 = 2 + 3",
    "$20 = 4 * 5",
    "6.67 = 20 / 3",
]

WRONG = [
    ("16 x 7 = 108", 112),
    ("16 eggs/day * 3 days = 47 eggs", 48),
    ("48 + 4 = 51", 52),
    ("He pays $10 - $60 = $40 change.", -50),
    (r"\left( 2 + 3 \right) \cdot 4 = 21", 20),
    ("10/3 = 3.34", Fraction(10, 3)),
    ("25 * 1.5 = 37", Fraction(75, 2)),
    ("50 * 20% = 11", 10),
    ("3 + 4 equals 8", 7),
    ("3 * 331 = about 2000", 993),
    ("2 hours * 30 = 61 minutes", 60),
    ("5 boys and 3 + 4 = 8 girls", 7),
    ("a total of 3 + 4 = 8", 7),
    ("1,234 + 1 = 2,345", 1235),
    ("2^3^2 = 64", 512),
    ("3 - 8 = exactly -6", -5),
    ("10 - 30 = only -25", -20),
    ("7-48 = 16", -41),
    ("18 - 9 = 11 carrots the second day", 9),
    ("1/3 + 1/3 = 1/6 of the pizza", Fraction(2, 3)),
    ("40/81 = 4", Fraction(40, 81)),
    ("of the 1/4 group, because 1/4 * 8 = 3", 2),
    ("20 * 1/4 group because 1/4 * 8 = 3", 2),
    ("5/0 = 0", None),
    ("2 + 3\n  = 6", 5),
    ("2 = 2 + 3", 5),
    ("So far. 24 = 31 - 24", 7),
    ("$20 = 4 * 6", 24),
    ("7 = 5 / 0", None),
    ("26 = 21", 26),
]

UNCHECKED = [
    "2x + 3 = 7",
    "3 * 2 = 6x",
    "x1 + 3 = 5",
    "2(number of eggs) + 3 = 7",
    "eggs * 3 = 48",
    "3 * eggs * 2 = 48",
    "the rest - 3 = 48",
    "Remaining = total - 30 = 70",
    "b = a + 3 = 8",
    "New total = total + 5 = 20",
    "Half of 40 - 5 = 15",
    "A third of 30 + 5 = 15",
    "twice 5 + 3 = 13",
    "5 more than 20 + 3 = 28",
    "$5 per 2 pounds * 6 pounds = $15",
    "$5 for 2 pounds * 6 pounds = $15",
    "Day 1 * 2 = 20 pages",
    "Day 2 = 3 * 4",
    "3 weeks = 3 * 7",
    "5 apples = 2 + 4",
    "6.66 = 20 / 3",
    "5 = 5",
    "1 = 20 students",
    "Day 2 = 24",
    "1 = 100%",
    "12 eggs = 13",
    "1/3 = 20 students",
    "Friday = 10 and 3 apples = 2 * 5",
    "1 ton = 2000 pounds",
    "the ratio 2:1 = 4:2",
    "7:30 + 2 = 9:30",
    "0900-0130 = 0730",
    "12,34 + 1 = 36",
    "0,123 + 1 = 125",
    "1 234 + 1 = 1 236",
    "14, 400 / 80 = 180",
    "$100 + 5% = $105",
    "$50 + 10% = $55",
    "60 miles/hour * 30 minutes = 30 miles",
    "20/3 = 6.66",
    "10/3 = 3",
    "11 / 3 = 3 boxes with 2 left",
    "17/3 = 5 and 2/3",
    "22/7 ≈ 3.3",
    "3 / 1/2 = 6",
    "9^9^9 = 5",
    "10^(10^10) = 1",
    "4^(1/2) = 3",
    r"\sqrt{16} + 1 = 6",
    "3 * (5 of 7) = 16",
    "there are 5 (2 + 3) = 6",
    "pages 3-5 = 3 pages",
    "9-17 = 8 hours",
    "3 + 4 and her total = 9",
    "3 * 4 is 5 more than 7",
]

NO_EQUATION = [
    "",
    "no numbers",
    "x = 5",
    "Let x = 3",
    "3 + 4 != 8",
    "3 + 4 <= 8 >= 2",
    "on 12/25/2020",
]


@pytest.mark.parametrize("text", RIGHT)
def test_right(text: str) -> None:
    assert verdicts(text) == ["right"]


@pytest.mark.parametrize(("text", "exact"), WRONG)
def test_wrong(text: str, exact: Fraction | None) -> None:
    (equation,) = check_equations(text)
    assert equation.verdict == "wrong"
    assert equation.exact == exact


@pytest.mark.parametrize("text", UNCHECKED)
def test_what_is_not_certain_is_unchecked(text: str) -> None:
    assert set(verdicts(text)) <= {"unchecked"}


@pytest.mark.parametrize("text", NO_EQUATION)
def test_no_equation(text: str) -> None:
    assert check_equations(text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2+3 = 5 = 10/2", ["right", "right"]),
        ("2+3 = 5 = 10/5", ["right", "wrong"]),
        ("2+3 = 6 = 12/2", ["wrong", "right"]),
        ("5/20 = .25 = 25%", ["right", "right"]),
        ("8 + 4 = 12 = 13", ["right", "wrong"]),
        ("8 + 4 apples = 12 apples = 13 pears", ["right", "unchecked"]),
        ("She has 2 + 3 = 5 apples and 5 + 4 = 10 pears", ["right", "wrong"]),
        ("2 + 3 = 5 + 4 = 9", ["unchecked", "right"]),
        ("total = 3 + 4 = 8", ["wrong"]),
        ("She has 5 (2+3 = 5), then 5 * 2 = 11.", ["right", "wrong"]),
    ],
)
def test_every_pair_of_a_chain(text: str, expected: list[str]) -> None:
    assert verdicts(text) == expected


def test_calculator_marks_are_checked_by_themselves() -> None:
    text = "She sold 48/2 = $<<48/2=25>>24 worth."
    outside, inside = check_equations(text)
    assert (outside.text, outside.verdict) == ("48/2 = $24", "right")
    assert (inside.text, inside.verdict, inside.exact) == ("48/2 = 25", "wrong", 24)


def test_text_of_an_equation_leaves_the_words_around_it() -> None:
    (equation,) = check_equations("So she sells 16 eggs/day  *  3 days = 48 eggs if it rains.")
    assert equation.text == "16 eggs/day * 3 = 48"


LEAVES = st.one_of(
    st.integers(0, 10**7),
    st.builds(lambda n, k: Fraction(n, 10**k), st.integers(0, 10**5), st.integers(1, 3)),
)
TREES: st.SearchStrategy[Any] = st.recursive(
    LEAVES, lambda t: st.tuples(st.sampled_from("+-*/"), t, t), max_leaves=6
)
UNITS = ["", " apples", " red apples", " eggs/crate", " coins per box", " (of them)"]
SIGNS = {
    "+": ["+"],
    "-": ["-", "\u2212"],
    "*": ["*", "x", "\u00d7", r"\times"],
    "/": ["/", "÷", r"\div"],
}


def decimal(value: int | Fraction) -> str:
    value = Fraction(value)
    places = next(k for k in range(40) if (value * 10**k).denominator == 1)
    digits = f"{abs(value.numerator * 10**places // value.denominator):0{places + 1}d}"
    text = digits[: len(digits) - places] + ("." + digits[-places:] if places else "")
    return text if value >= 0 else f"-{text}"


def written(value: int | Fraction, draw: Callable[[Any], Any]) -> str:
    text = decimal(value)
    if isinstance(value, int) and draw(st.booleans()):
        text = f"{value:,}"
    return f"{draw(st.sampled_from(['', '', '$']))}{text}{draw(st.sampled_from(UNITS))}"


def render(tree: Any, draw: Callable[[Any], Any]) -> tuple[str, Fraction]:
    """A random way to write the tree, fully bracketed, and its value."""
    if not isinstance(tree, tuple):
        return written(tree, draw), Fraction(tree)
    sign, left, right = tree
    (a, x), (b, y) = render(left, draw), render(right, draw)
    a = f"({a})" if isinstance(left, tuple) else a
    b = f"({b})" if isinstance(right, tuple) else b
    assume(sign != "/" or y != 0)
    value = {"+": x + y, "-": x - y, "*": x * y, "/": x / y if y else x}[sign]
    return f"{a} {draw(st.sampled_from(SIGNS[sign]))} {b}", value


@settings(max_examples=300, deadline=None)
@given(TREES.filter(lambda t: isinstance(t, tuple)), st.data())
def test_random_equations_hold_for_their_value_and_no_other(tree: Any, data: st.DataObject) -> None:
    left, value = render(tree, data.draw)
    is_decimal = 10**30 % value.denominator == 0
    for shift in (0, data.draw(st.integers(1, 10**6)), -data.draw(st.integers(1, 10**6))):
        result = value + shift
        right = decimal(result) if is_decimal else f"({result.numerator} / {result.denominator})"
        text = f"So she has {left} = {right} left."
        assert verdicts(text) == ["wrong" if shift else "right"], text


@settings(max_examples=300, deadline=None)
@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    check_equations(text)


PIECES = (
    r"1 2 0 12 1,000 .5 3.5.1 + - * / ^ ** ( ) [ } { % $ = ≈ x X of is and cents"
    r" \frac \text ½ ² : , . << >>"
)


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from([*PIECES.split(), " ", " ", "\n"]), max_size=40))
def test_any_jumble_of_arithmetic_can_be_read(pieces: list[str]) -> None:
    assert set(verdicts("".join(pieces))) <= {"right", "wrong", "unchecked"}


LONG: dict[str, Callable[[int], str]] = {
    "sum": lambda n: "1+" * n + "1 = 3",
    "chain": lambda n: "1+1=" * n,
    "equal signs": lambda n: "=" * n,
    "digits": lambda n: "9" * n + " + 1 = 3",
    "brackets": lambda n: "(" * n + "1" + ")" * n + " = 1",
    "open brackets": lambda n: "(1 " * n + "= 1",
    "brackets with equations": lambda n: "(1=(" * n,
    "brackets with words": lambda n: "5 (a " * n + "= 1",
    "factors in brackets": lambda n: "2(" * n + "1" + ")" * n + " = 3",
    "minus signs": lambda n: "3 = " + "-" * n + "1",
    "powers": lambda n: "2^" * n + "2 = 3",
    "percent signs": lambda n: "5" + "%" * n + " = 3",
    "products": lambda n: "99999 * " * n + "1 = 3",
    "denominators": lambda n: "+".join(f"1/{i}" for i in range(1, n)) + " = 3",
    "words": lambda n: "5 " + "a " * n + "= 3",
    "units": lambda n: "5" + "/a" * n + " = 3",
    "numbers": lambda n: "1 " * n + "= 3",
    "fractions": lambda n: r"\frac{1}{" * n + "1" + "}" * n + " = 1",
    "open fractions": lambda n: r"\frac{" * n + "=1",
    "marks": lambda n: "<<a" * n,
    "times": lambda n: "3 x " * n + "1 = 3",
    "verbs": lambda n: "3 is 3 " * n,
    "spaces": lambda n: "1" + " \n" * n + "= 3",
    "mixed": lambda n: "1 1/2 " * n + "= 3",
    "list marks": lambda n: "- 1 + 1 = 3\n" * n,
    "a long list item": lambda n: "- " + "1+" * n + "1 = -3",
    "denials": lambda n: "1 + 1 = 3 is not " * n,
    "rounding": lambda n: "3 * 3 = 8 rounds " * n,
    "functions": lambda n: "f(1) + " * n + "1 = 3",
    "remarks": lambda n: "5 a (1 b) + " * n + "1 = 3",
    "money and units": lambda n: "$5 cents + " * n + "1 = 3 dollars",
}


def count_lines(text: str) -> int:
    """Lines of Python that checking the text runs."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        check_equations(text)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("name", LONG)
def test_work_is_linear_in_the_length(name: str) -> None:
    short, long = (count_lines(LONG[name](n)) for n in (200, 800))
    # four times the text; a quadratic reader would do sixteen times the work
    assert long < 5 * short + 200


@pytest.mark.parametrize("name", LONG)
def test_a_very_long_step_is_read(name: str) -> None:
    text = LONG[name](100_000 // len(LONG[name](10)) * 10)
    assert all(e.exact is None or e.exact.denominator < 2**2048 for e in check_equations(text))


def test_what_has_no_value_small_enough_is_unchecked() -> None:
    for name in ("digits", "powers", "percent signs", "products", "denominators"):
        assert set(verdicts(LONG[name](3000))) <= {"unchecked"}, name


def gold_steps(data_dir: Path) -> list[str]:
    lines = (data_dir / "data/gsm8k/train.jsonl").read_text().splitlines()
    return [step for line in lines[:1500] for step in json.loads(line)["answer"].split("\n")]


def test_gold_solutions_are_hardly_ever_flagged(data_dir: Path) -> None:
    steps = [re.sub("<<.*?>>", "", step) for step in gold_steps(data_dir)]
    found = [verdicts(step) for step in steps if "=" in step]
    flagged = sum("wrong" in verdict for verdict in found)
    checked = sum("right" in verdict for verdict in found)
    assert flagged <= 0.002 * len(found)
    assert checked >= 0.93 * len(found)


def test_a_wrong_equation_foretells_a_wrong_answer(data_dir: Path) -> None:
    ends: dict[bool, list[bool]] = {True: [], False: []}
    with (data_dir / "data/samples/gsm8k.jsonl").open() as lines:
        for line in list(lines)[::10]:
            row = json.loads(line)
            for sample in row["samples"]:
                flagged = "wrong" in verdicts(sample["text"])
                answer = sample["text"].rpartition("####")[2].replace(",", "").strip()
                ends[flagged].append(answer == row["answer"].replace(",", ""))
    share = len(ends[True]) / (len(ends[True]) + len(ends[False]))
    assert 0.4 < share < 0.7
    right = {flagged: sum(ok) / len(ok) for flagged, ok in ends.items()}
    assert right[True] < 0.05 < 0.1 < right[False]
