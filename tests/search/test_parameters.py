"""Bad parameters are one sentence that names them, before any model is loaded."""

import math
from dataclasses import fields

import numpy as np
import pytest
from support.strategies import STRATEGIES
from support.worlds import random_policy

from stepsearch import Budget, ConfigurationError, SamplingParams, solve
from stepsearch.search.parameters import check_separator
from stepsearch.search.strategies.beam import Beam


def loud_verifier(**settings: str) -> str:
    told = "".join(f", {name}: {value}" for name, value in settings.items())
    return f"+verifier={{_target_: support.loud.LoudVerifier{told}}}"


def message(*overrides: str) -> str:
    """What solving with these settings says; whatever would load a model fails the test."""
    policy = ["~policy", "+policy={_target_: support.loud.LoudPolicy}"]
    with pytest.raises(ConfigurationError) as caught:
        solve("q", overrides=[*policy, *overrides])
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 250
    return text


COUNTS = [
    (type(strategy), field.name)
    for strategy in {type(s).__name__: s for s in STRATEGIES}.values()
    for field in fields(strategy)
    if field.name in ("n", "width", "rounds", "iterations", "max_steps")
]


@pytest.mark.parametrize(("strategy", "name"), COUNTS)
@pytest.mark.parametrize("value", [0, -3, 1.5, "many", None, True])
def test_counts_must_be_whole_and_positive(strategy, name: str, value) -> None:
    with pytest.raises(ConfigurationError) as caught:
        strategy(**{name: value})
    assert str(caught.value) == f"search.{name}={value!r} must be a whole number, at least 1"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["search=dvts", "search.width=16"], "search.n=8 must be a multiple of search.width=16"),
        (
            ["search=rebase", "search.temperature=-1"],
            "temperature=-1 must be a finite number",
        ),
        (["search=particle", "search.link=probit"], "search.link='probit' must be"),
        (["search=beam", "search.lookahead=abc"], "search.lookahead='abc' must be a whole number"),
        (["search=beam", "search.lookahead=1.5"], "search.lookahead=1.5 must be a whole number"),
        (["seed=true"], "seed=True must be a whole number"),
        (["concurrency=true"], "concurrency=True must be a whole number"),
        (["aggregation=sum"], "aggregation='sum' is not one of last, min, mean, product"),
    ],
)
def test_other_parameters(overrides: list[str], words: str) -> None:
    assert words in message(*overrides)


@pytest.mark.parametrize("search", ["beam", "dvts", "rebase", "particle", "refine"])
def test_what_goes_by_scores_needs_a_verifier(search: str) -> None:
    words = f"search={search} goes by the scores of a verifier; set verifier="
    assert words in message(f"search={search}", "verifier=none", "select=majority")


def test_what_needs_probabilities_refuses_other_scores() -> None:
    odd = ["~verifier", loud_verifier(range="unbounded")]
    assert "search.link=null does not fit verifier 'loud'" in message("search=particle", *odd)
    assert "aggregation='product' multiplies probabilities" in message("aggregation=product", *odd)
    assert "select='weighted' adds up probabilities" in message("select=weighted", *odd)
    own = loud_verifier(range="signed", aggregation="product")
    assert "aggregation='product' multiplies probabilities" in message("~verifier", own)


def test_a_link_is_refused_where_there_are_probabilities_already() -> None:
    known = ["verifier=rule"], ["verifier=trl_prm", "verifier.model=/nowhere"]
    for verifier in (*known, ["verifier=ensemble"], ["verifier=prm"]):
        text = message("search=particle", "search.link=logistic", *verifier)
        assert "search.link=logistic does not fit verifier" in text


def test_a_wrong_verifier_setting_does_not_wait_for_the_policys_model() -> None:
    assert "verifier.wrong=0.9" in message("verifier=rule", "verifier.wrong=0.9")
    text = message("verifier=trl_prm", "verifier.model=/nowhere", "verifier.format.head.good=7")
    assert "format.head.good=7" in text


def test_refine_needs_step_scores() -> None:
    outcome = ["~verifier", loud_verifier(kind="outcome")]
    assert "search=refine needs a score for every step" in message("search=refine", *outcome)


def test_a_beam_narrower_than_its_width_is_a_beam_of_one() -> None:
    assert Beam(n=2, width=4).places == 1


def test_a_verifier_that_does_not_declare_itself_is_asked_when_it_is_there() -> None:
    """A class without `declare` is loaded first, and refused then."""
    target = "stepsearch.verifiers.scripted.ScriptedVerifier"
    settings = ["~verifier", f"+verifier={{_target_: {target}, score_fn: null, range: unbounded}}"]
    with pytest.raises(ConfigurationError, match=r"search\.link=null"):
        solve("q", search="particle", policy=random_policy(), overrides=settings)


ODD = ["100", "abc", 10.5, True, math.inf, math.nan, [], 0, -1]


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("name", ["policy_tokens", "verifier_tokens", "completions"])
def test_a_budget_of_things_is_a_whole_number(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Budget(**{name: value})
    assert str(caught.value) == (
        f"budget.{name}={value!r} must be a whole number, at least 1; null (None) is no limit"
    )


@pytest.mark.parametrize("value", [v for v in ODD if v != 10.5])
@pytest.mark.parametrize("name", ["flops", "seconds"])
def test_a_budget_of_amounts_is_a_finite_number(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=rf"budget\.{name}=.* finite number, above 0"):
        Budget(**{name: value})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("until", ["STEP", None, 1]),
        ("temperature", ["1", None, True, math.inf, math.nan, -0.1]),
        ("top_p", ["1", None, True, math.nan, 0, 1.01]),
        ("top_k", ["1", None, True, 1.5, math.inf, -1]),
        ("max_repeats", ["1", None, True, 2.5, -1, 1]),
        ("max_step_tokens", ODD),
        ("max_tokens", ODD),
        ("max_steps", ODD),
    ],
)
def test_sampling_parameters(name: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(ConfigurationError) as caught:
            SamplingParams(**{name: value})
        assert str(caught.value).startswith(f"sampling.{name}={value!r} must be ")


def test_numbers_of_other_libraries_are_numbers() -> None:
    budget = Budget(policy_tokens=np.int32(7), seconds=np.float32(0.5))
    assert repr(budget) == repr(Budget(policy_tokens=7, seconds=0.5))
    SamplingParams(top_k=np.int64(3), temperature=np.float32(0.5))


@pytest.mark.parametrize("value", ["\\n", "\\n\\n", " \\t", "\\nStep ", "\\r\\n"])
def test_a_written_line_end_is_no_separator(value: str) -> None:
    with pytest.raises(ConfigurationError, match=r"format\.separator=.* holds a backslash"):
        check_separator("format.separator", value)


@pytest.mark.parametrize("value", ["\n", "\n\n", "\\nabla ", "\\text{Step}", " ки\n", "\\"])
def test_separators(value: str) -> None:
    check_separator("separator", value)


def test_an_empty_separator_joins_but_ends_nothing() -> None:
    check_separator("separator", "", may_be_empty=True)
    with pytest.raises(ConfigurationError, match="would never end a step"):
        check_separator("separator", "")
