"""When two answers are equal, when they are not, and what cannot hang or mislead."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsearch.search import equality_pool
from stepsearch.search.canonical import canonical
from stepsearch.search.equality import MathEquality, is_too_large
from stepsearch.search.equality_pool import WorkerPool


@pytest.fixture(scope="module")
def equal() -> Iterator[MathEquality]:
    equality = MathEquality(timeout=60.0)
    yield equality
    equality.close()


EQUAL = [
    (r"\frac{3}{4}", "0.75"),
    ("(2,3)", "(2, 3)"),
    ("1/2", "x=1/2"),
    (r"x \in (1,2)", "(1,2)"),
    ("28", r"28\%"),
    ("1234", "1,234"),
    ("0.333333", "1/3"),
    (r"\pm 2", r"\{2,-2\}"),
    ("2,1", "1,2"),
    (r"\{1,2\}", "2, 1"),
    ("(1,2),(3,4)", "(3,4),(1,2)"),
    ("x=1,y=2", "y=2, x=1"),
    ("x=1,y=2", "(1,2)"),
    (r"\{5\}", "5"),
    ("2516_8", "2516"),
    ("11_2", "3_{10}"),
    ("Monday", r"\text{monday}"),
    (r"10^{10^{10}}", r"10^{10^{10}}"),
    ("3x-y+13=0", "6x-2y+26=0"),
    ("3x-y+13=0", "y=3x+13"),
    ("y=2x+1", "2x+1"),
    ("x^2+2x+1", "(x+1)^2"),
    (r"\sqrt{2}/2", r"\frac{1}{\sqrt2}"),
    (r"\frac{1+\sqrt5}{2}", r"\frac{\sqrt5+1}{2}"),
    (r"\frac{x}{2}", r"\frac12x"),
    ("x>1", r"(1,\infty)"),
    ("x<2", "2>x"),
    ("3.14159265", r"\pi"),
    (r"\sin^2x+\cos^2x", "1"),
    ("5!", "120"),
    ("2^{10}", "1024"),
    ("6-5i", "-5i+6"),
    (r"e^{i\pi}", "-1"),
    ("i^2", "-1"),
    (r"\sin 30^\circ", r"\frac12"),
    (r"\varnothing", r"\emptyset"),
    (r"(\sqrt{4}, 1)", "(2, 1)"),
    (r"\sqrt{9}, \sqrt{4}", "2, 3"),
]

NOT_EQUAL = [
    ("3", "-3"),
    ("0,1", "01"),
    ("0,1", "1"),
    ("3", "3,4"),
    ("3,3", "3"),
    ("28%", "0.28"),
    ("1e-9", "2e-9"),
    ("0.333", "1/3"),
    ("1000000.00", "1000000.01"),
    ("100000000001", "100000000002"),
    (r"\pm 2", "2"),
    ("(1,2)", "[1,2]"),
    ("(1,2)", "(1,2]"),
    ("(1,2)", "(2,1)"),
    ("(2,1)", "(3,1)"),
    (r"\{1,2\}", "(1,2)"),
    (r"\{1,2\}", r"\{1,3\}"),
    ("x=2,y=1", "1,2"),
    ("11_2", "11_3"),
    ("Monday", "Tuesday"),
    ("Monday", "5"),
    (r"\text{even}", r"\text{odd}"),
    ("", "5"),
    (r"1-\frac{1}{\mathrm{e}}", r"1+\frac{1}{\mathrm{e}}"),
    ("3x-y+13=0", "3x+4y+14=0"),
    ("3x-y+13=0", "0"),
    ("2x+z=1", "1"),
    ("x=3", "y=3"),
    ("x>1", "x<1"),
    ("p-q", "q-p"),
    ("3.14", r"\pi"),
    ("2+i", "2-i"),
    ("x+i", "x-1"),
    (r"\sin 30^\circ", r"\sin 30"),
    (r"\sqrt{2}\cdot10^{-9}", r"2\sqrt{2}\cdot10^{-9}"),
    (r"\infty", r"-\infty"),
    ("x+1", "x+2"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\3\end{pmatrix}"),
    (r"(\sqrt{4}, 1)", "(1, 2)"),
    (r"\sqrt{9}, \sqrt{4}", "2, 4"),
]

UNDECIDED = [
    (r"\frac{1}{", "5"),
    (r"9^{9^{9}}", "5"),
    (r"10^{10^{10}}", "5"),
    (r"10^{-10^{10}}", "0"),
    ("1000000!", "1"),
    (r"(1, 9^{9^{9}})", "(1, 2)"),
    ("x<1 or x>3", r"(-\infty,1)\cup(3,\infty)"),
]


@pytest.mark.parametrize(("a", "b"), EQUAL)
def test_equal_in_both_orders(equal: MathEquality, a: str, b: str) -> None:
    assert equal(a, b) is True
    assert equal(b, a) is True


@pytest.mark.parametrize(("a", "b"), NOT_EQUAL)
def test_not_equal_in_both_orders(equal: MathEquality, a: str, b: str) -> None:
    assert equal(a, b) is False
    assert equal(b, a) is False


@pytest.mark.parametrize(("a", "b"), UNDECIDED)
def test_undecided_in_both_orders(equal: MathEquality, a: str, b: str) -> None:
    assert equal(a, b) is None
    assert equal(b, a) is None


def test_one_difference_decides_whatever_is_undecided(equal: MathEquality) -> None:
    assert equal(r"(1, 9^{9^{9}})", "(2, 5)") is False
    assert equal(r"7, 9^{9^{9}}", "5, 6") is False
    assert equal(r"5, 9^{9^{9}}", "5, 6") is None


ATOMS = st.sampled_from(
    ["1", "2", "0.5", "x", "y", r"\pi", "1,2", "(1,2)", r"\sqrt{2}", "x=1", "5%"]
)
FRAMES = st.sampled_from([r"\frac{{{}}}{{{}}}", "{}+{}", "{}-{}", "({},{})", "{}, {}", "{}={}"])
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.builds(lambda frame, a, b: frame.format(a, b), FRAMES, inner, inner),
    max_leaves=3,
)


@settings(max_examples=60, deadline=None)
@given(a=EXPRESSIONS, b=EXPRESSIONS)
def test_symmetric_and_consistent_with_the_canonical_form(
    equal: MathEquality, a: str, b: str
) -> None:
    forward = equal(a, b)
    equal._memo.clear()
    assert equal(b, a) is forward
    assert equal(a, a) is True
    if canonical(a) == canonical(b):
        assert forward is True


NUMBERS = st.decimals(-1000, 1000, places=3) | st.integers(-(10**12), 10**12)


@given(NUMBERS, NUMBERS)
def test_finite_decimals_are_compared_exactly(a: object, b: object) -> None:
    assert MathEquality()(str(a), str(b)) is (a == b)


def test_the_cheap_path_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(equality_pool, "Worker", refuse)
    equality = MathEquality()
    cheap = [("1,234", "1234.0"), ("$5", "6"), ("1/2", "0.5"), ("(1,2)", "(1,3)"), ("x=5", "5")]
    assert [equality(a, b) for a, b in cheap] == [True, False, True, False, True]
    with pytest.raises(AssertionError, match="a process was started"):
        equality("x+1", "1+x")


def test_decisions_are_remembered_and_timeouts_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = [None, True]
    monkeypatch.setattr(WorkerPool, "compare", lambda *_: replies.pop(0))
    equality = MathEquality()
    assert equality("x+1", "1+x") is None
    assert equality("x+1", "1+x") is True
    assert equality("1+x", "x+1") is True
    assert replies == []


def test_memory_of_decisions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkerPool, "compare", lambda *_: False)
    monkeypatch.setattr("stepsearch.search.equality._MAX_MEMO", 10)
    equality = MathEquality()
    threads = [
        threading.Thread(target=lambda k=k: [equality(f"x+{i}", f"y+{k}") for i in range(50)])
        for k in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(equality._memo) == 10


@pytest.mark.parametrize(
    "text",
    ["9^{9^{9}}", "2^{3^{4^{5}}}", "10^{-10^{10}}", "9^9^9", "2^{100000}", "99999!", "(9^9)^9^9",
     "x" * 1001, "(" * 31 + "x" + ")" * 31],
)  # fmt: skip
def test_the_guard_refuses(text: str) -> None:
    assert is_too_large(text)


@pytest.mark.parametrize(
    "text", ["2^{2^{2}}", "2^{1000}", "x^{2023}", "100!", "10^{-9}", "(2^3)^2"]
)
def test_the_guard_lets_pass(text: str) -> None:
    assert not is_too_large(text)
