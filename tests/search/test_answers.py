"""Where answers stand, and where they do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsearch.search.answers import (
    after_thinking,
    boxed,
    extract_choice,
    extract_line,
    extract_math,
)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{\frac{1}{2}} and \boxed{3}", "3"),
        (r"\boxed{3} and \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\text{a}_{1}}", r"\text{a}_{1}"),
        (r"\boxed{\text{2}}", r"\text{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed {5}", "5"),
        (r"\fbox{5}", "5"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{840} ... so \boxed{840}", "840"),
        (r"Step 1: \boxed{3}. Step 2: \boxed{7}.", "7"),
        (r"so \boxed{3}, then \boxed{7", "3"),
        (r"\boxed{5} We will write \boxed{} at the end.", "5"),
        (r"\boxed{5} as in \boxed{\ldots} or \boxed{ ... }", "5"),
        ("\\[\\boxed{5\n}\\]", "5"),
        (r"\boxed{-3}", "-3"),
        (r"f{ \boxed{4}", "4"),
        ("\\boxed{2}\n#### 3", "2"),
    ],
)
def test_last_complete_box(text: str, answer: str) -> None:
    assert extract_math(text) == answer


@pytest.mark.parametrize(
    "text",
    [
        r"We will write \boxed{} at the end.",
        r"\boxed{7",
        "",
        "There are 5 apples and 3 pears.",
        "The answer is not clear yet.",
        "We look for the answer in the second paragraph.",
        "#### Step 3: multiply",
        "##### 7",
        "<think>the answer is 4",
    ],
)
def test_no_answer_is_invented(text: str) -> None:
    assert extract_math(text) is None


def test_an_unclosed_box_does_not_hide_those_inside_and_costs_linear_time() -> None:
    assert boxed(r"\boxed{a \boxed{b} \boxed{c}") == ["b", "c"]
    assert boxed(r"\boxed{" * 200_000) == []


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so 9 * 2 = 18\n#### 18", "18"),
        ("#### 5\n#### 6", "6"),
        ("#### 5 #### 6", "6"),
        ("x\n####  $1,234  \n", "$1,234"),
        ("#### Step 1: foo\nbar\n#### 7", "7"),
        ("#### Final Answer\n7", "7"),
    ],
)
def test_hashes(text: str, answer: str) -> None:
    assert extract_math(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is **73**.", "73"),
        ("The answer is *73*.", "73"),
        ("**The answer is 5**", "5"),
        ("***The final answer is: 5.***", "5"),
        ("**Final Answer:** 42", "42"),
        ("**Answer**: `12`", "12"),
        ("FINAL ANSWER: 5", "5"),
        ("answer is $5$", "5"),
        ("The answer is: 12", "12"),
        ("The answer is $18.", "$18"),
        ("The answer is $18 and $20", "$18 and $20"),
        ("The answer is -3.", "-3"),
        ("The answer is 1,234.50.", "1,234.50"),
        ("The answer to the question is 3.5 apples. Good.", "3.5 apples"),
        (r"The final answer is $\frac{1}{2}$. I hope it is correct.", r"\frac{1}{2}"),
        ("The answer is $x=2$ or $x=3$.", "$x=2$ or $x=3$"),
        ("The answer is\n\\[ x^2\n+1 \\]", "x^2\n+1"),
        ("Answer: 5 because 6 is too many", "5"),
        ("### Answer:\n\n 12", "12"),
        ("The answer is 4. No, the answer is 5.", "5"),
        ("The answer is 4. Final Answer: 5. So the answer is 6?", "5"),
        ("the answer is 2 * 3 * 4", "2 * 3 * 4"),
        ("the answer is x_1 * y_2", "x_1 * y_2"),
    ],
)
def test_phrases(text: str, answer: str) -> None:
    assert extract_math(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"<think>\boxed{3}</think> The answer is 4", "4"),
        (r"\boxed{3}</think>\boxed{4}", "4"),
        (r"<think>a</think>\boxed{4}<think>\boxed{5}</think>\boxed{6}", "6"),
        (r"\boxed{3} <think> but \boxed{5}", "3"),
        (r"<think>\boxed{3}</think> done", None),
    ],
)
def test_reasoning_is_not_answer_text(text: str, answer: str | None) -> None:
    assert extract_math(text) == answer


def test_after_thinking_leaves_other_text_alone() -> None:
    assert after_thinking("1 < 2 and think") == "1 < 2 and think"


BALANCED = st.recursive(
    st.text(alphabet=r"ab1 +", max_size=5) | st.sampled_from([r"\{", r"\}", r"\\", r"\frac"]),
    lambda inner: st.lists(inner.map("{{{}}}".format) | inner, max_size=4).map("".join),
)


@given(BALANCED.filter(lambda text: any(c in text for c in "ab1")))
def test_a_box_gives_back_what_was_put_in(content: str) -> None:
    assert extract_math(rf"so \boxed{{{content}}} holds") == content.strip()


@given(st.text(max_size=200))
def test_extraction_never_raises(text: str) -> None:
    for extract in (extract_math, extract_line, extract_choice):
        answer = extract(text)
        assert answer is None or answer.strip()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("a\n#### Paris", "Paris"),
        ("The answer is Paris.", "Paris"),
        ("Let me think.\nParis\n\n", "Paris"),
        ("<think>Rome</think>\nParis", "Paris"),
        ("  \n", None),
    ],
)
def test_line(text: str, answer: str | None) -> None:
    assert extract_line(text) == answer


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        (r"\boxed{B}", "B"),
        (r"\boxed{\textbf{(C)}}", "C"),
        (r"\boxed{\text{D}}", "D"),
        (r"\boxed{B. Paris}", "B"),
        (r"\boxed{5}, hence option D", "D"),
        ("#### e", "E"),
        ("The answer is B.", "B"),
        ("answer: (D)", "D"),
        ("ANSWER: D", "D"),
        ("The answer is **A**", "A"),
        ("the answer is B because it fits", "B"),
        ("the answer is A because it fits", "A"),
        ("The correct option is B", "B"),
        ("Answer: C. Paris", "C"),
        ("Not (B) but (C)", "C"),
        ("so\n**C**", "C"),
        ("B", "B"),
        ("The answer is A prime number", None),
        ("The answer is a dog", None),
        ("The answer is I think wrong", None),
        ("The answer is Paris", None),
        ("Because of it", None),
        (r"\boxed{5}", None),
        (r"\boxed{Big}", None),
    ],
)
def test_choice(text: str, letter: str | None) -> None:
    assert extract_choice(text) == letter
