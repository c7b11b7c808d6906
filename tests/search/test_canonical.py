"""The normal form of answers, and the arithmetic of its numbers."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsearch.search.canonical import canonical, normalize, parse_number, split_list

SAME = [
    (
        r"\dfrac12",
        r"\frac{1}{2}",
        r"\tfrac{1}2",
        r"\frac1{2}",
        "1/2",
        "0.5",
        ".50",
        "½",
        r"$\frac12$",
    ),
    (
        "1,234",
        "1234",
        "1{,}234",
        r"1\,234",
        "1 234",
        r"1\!,\!234",
        "1234.0",
        r"\$1,234",
        "$1,234.00",
        "1234.",
    ),
    ("28", r"28\%", "28%", "28 percent", r"28 \%"),
    (
        "13",
        r"\text{13}",
        r"\text{13 cm}",
        r"13\text{ cm}",
        r"13\,\mathrm{cm}^2",
        "13 cm",
        "13 apples",
        "13 meters squared",
        "13 squared inches",
        r"13\text{ squared inches}",
        "13 dozen",
    ),
    ("-3", "\u22123", "- 3", "$-3$", r"\boxed{-3}", "{-3}", "(-3)", "**-3**", r"\(-3\)", "-3.0"),
    ("7/2", r"3\frac{1}{2}", "3 1/2", "3.5"),
    ("90", r"90^\circ", r"90^{\circ}", "90°", "90 degrees"),
    ("1e-9", r"1 \times 10^{-9}", r"1\cdot10^{-9}", "0.000000001"),
    (
        "5000000",
        "5 million",
        "50 lakh",
        "50 lakhs",
        "$5 million dollars",
        r"5\text{ million}",
        "5,000,000",
    ),
    (r"10\pi", r"10\pi \text{ cm}^2", "10π", "10 pi"),
    (r"4\sqrt{3}", r"4\sqrt3", "4√3", "4sqrt(3)", r"4\sqrt{3} units"),
    ("B", r"\text{(B)}", "(B)", r"\textbf{B}", r"\mathrm{B}"),
    ("2,-2", r"\pm 2", "±2", "2 and -2", r"2 \text{ or } -2", "-2, 2"),
    ("monday", "Monday", r"\text{Monday}", "MONDAY."),
    ("x^2+1", "x^2 + 1", "$x^2+1$", "x² + 1"),
    ("(1, 2)", r"\left(1, 2\right)", "$(1, 2)$"),
    ("1-\\frac{1}{e}", r"1-\frac{1}{\mathrm{e}}", r"1 - \dfrac{1}{\text{e}}"),
]


@pytest.mark.parametrize("answers", SAME, ids=lambda answers: answers[0])
def test_one_form_for_many_spellings(answers: tuple[str, ...]) -> None:
    assert {canonical(answer): answer for answer in answers}.keys() == {canonical(answers[0])}


DIFFERENT = [
    ("0,1", "01"),
    ("0,1", "1"),
    ("1, 234", "1234"),
    ("(1,234)", "1234"),
    ("1,23", "123"),
    ("28%", "0.28"),
    ("4 squared", "4"),
    (r"4\text{ squared}", "4"),
    (r"3\text{ halves}", "3"),
    ("1 half", "1"),
    ("5 lakhs", "5"),
    ("3 halves", "3"),
    ("3 tenths of a mile", "3"),
    ("5 lakh", "5"),
    ("3", "-3"),
    ("1e-9", "2e-9"),
    ("5 pm", "5 am"),
    ("5 million", "5"),
    ("5 million", "5 billion"),
    ("2ab", "2"),
    ("4 xy", "4"),
    ("3 x", "3"),
    ("2 sin", "2"),
    ("x<1 or x>3", "x<1 and x>3"),
    (r"\text{a}_{1}", "a"),
    ("5 and 3", "5"),
    (r"\sin 30^\circ", r"\sin 30"),
    ("1 23", "123"),
    ("Monday", "Tuesday"),
    ("x", "X"),
    ("1/0", "0"),
    (r"1-\frac1e", r"1+\frac1e"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\3\end{pmatrix}"),
    ("(1,2)", "[1,2]"),
]


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_different_answers_keep_different_forms(a: str, b: str) -> None:
    assert canonical(a) != canonical(b)


def test_several_thousands_are_a_list_of_numbers() -> None:
    assert normalize("1,234, 5,678") == "1234,5678"
    assert split_list(r"(1,2),\{3,4\},\begin{pmatrix}5,6\end{pmatrix}, 7") == [
        "(1,2)",
        r"\{3,4\}",
        r"\begin{pmatrix}5,6\end{pmatrix}",
        "7",
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("007", 7),
        ("-1.25", Fraction(-5, 4)),
        (r"-\frac{-3}{4}", Fraction(3, 4)),
        ("-2 1/3", Fraction(-7, 3)),
        (r"-2\frac{1}{3}", Fraction(-7, 3)),
        ("1.5e3", 1500),
        (r"2 \times 10^{3}", 2000),
        ("2*10^3", 2000),
    ],
)
def test_numbers_are_exact(text: str, value: Fraction) -> None:
    number = parse_number(text)
    assert number is not None
    assert number.value == value


@pytest.mark.parametrize(
    "text", ["", "x", "1/0", r"\frac{1}{0}", "1e9999", "2^3", "1,2", "9" * 500]
)
def test_what_is_no_number(text: str) -> None:
    assert parse_number(text) is None


@given(st.integers(), st.integers(min_value=1))
def test_fractions_round_trip(top: int, bottom: int) -> None:
    value = Fraction(top, bottom)
    assert canonical(f"{top}/{bottom}") == str(value)
    assert canonical(rf"\frac{{{top}}}{{{bottom}}}") == str(value)


@given(st.integers(min_value=-(10**30), max_value=10**30))
def test_thousands_marks_are_dropped(number: int) -> None:
    assert canonical(f"{number:,}") == str(number)


@given(st.text(alphabet=r"01,. \{}()[]^_-+=x$%abtfrcpmd", max_size=30) | st.text(max_size=60))
def test_normal_form_is_total_and_stable(text: str) -> None:
    form = canonical(text)
    assert isinstance(form, str)
    assert canonical(text) == form


def test_long_texts_are_left_alone() -> None:
    assert normalize("1  + " * 1000) == " ".join(("1  + " * 1000).split())
